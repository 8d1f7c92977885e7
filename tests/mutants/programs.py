"""Mistakes in programs, by rule. At every place of a program where a rule applies, it makes one mutant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fibration.compiler.ir import (
    Const,
    Detach,
    Input,
    Map,
    Mix,
    Node,
    Pull,
    Push,
    Quantile,
    Scalar,
    Scan,
    arg,
    arguments,
    const,
    parts,
    scalar,
)
from fibration.compiler.program import Program, describe

BEYOND = 2.0**-2  # how far a bound is moved


@dataclass(frozen=True)
class Mutant:
    """A mistake in a program: by which rule, and in which node, which becomes `new`."""

    rule: str
    of: Program
    node: Node
    new: Node
    place: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.place}"

    def program(self) -> Program:
        return self.of.mapped(lambda n: self.new if n is self.node else n)


# ---------------------------------------------------------------- one operator of a map's body


def of_scalars(s: Scalar, arity: int) -> Iterator[tuple[str, Scalar]]:
    """The rules that apply to a part of a body, with what the part becomes. `arity`: the arguments of the body."""
    match s.op, s.args:
        case "select", (condition, a, b):
            yield "branches of a choice exchanged", scalar("select", condition, b, a)
            yield "first branch of a choice lost", b
            yield "second branch of a choice lost", a
        case (("lt" | "le"), (a, b)):
            yield "comparison turned", scalar(s.op, b, a)
            yield "bound moved", scalar(s.op, a, scalar("add", b, const(BEYOND)))
        case (("and" | "or"), (a, b)):
            yield "one for the other of 'and' and 'or'", scalar("or" if s.op == "and" else "and", a, b)
            yield "condition forgotten", a
            yield "condition forgotten", b
        case "not", (a,):
            yield "negation forgotten", a
        case "add", (a, b):
            yield "term dropped", a
            yield "term dropped", b
            yield "sign turned", scalar("sub", a, b)
        case "sub", (a, b):
            yield "term dropped", a
            yield "term dropped", scalar("neg", b)
            yield "sign turned", scalar("add", a, b)
            yield "difference turned", scalar("sub", b, a)
        case "mul", (a, b):
            yield "factor dropped", a
            yield "factor dropped", b
        case "div", (a, b):
            yield "normaliser dropped", a
            yield "factor for normaliser", scalar("mul", a, b)
        case "neg", (a,):
            yield "sign turned", a
        case "const", ():
            yield "another number", const(1.25 * float(s.value or 0.0) or 0.25)
        case "arg", ():
            for i in range(arity):
                if i != s.value:
                    yield "another argument", arg(i)
        case _, (a,):
            yield "function dropped", a


# ---------------------------------------------------------------- one node


def of_nodes(node: Node, every: list[Node]) -> Iterator[tuple[str, Node]]:
    """The rules that apply to a node, with what the node becomes. `every`: the nodes of the program."""
    if isinstance(node, Push):
        yield "another reduction", replace(node, reduce="max" if node.reduce == "sum" else "sum")
    if isinstance(node, Pull):
        for other in every:
            if isinstance(other, Pull) and other.source == node.source and other.target != node.target:
                yield "another stratum", other
    if isinstance(node, Input):
        yield "input dropped", Const(1.0, node.over)
        for other in every:
            if isinstance(other, Input) and other.over == node.over and other is not node:
                yield "another input", other
    if isinstance(node, Quantile):
        yield "another quantile", replace(node, level=Map(scalar("sub", const(1.0), arg(0)), (node.level,)))
        for i in range(len(node.values) if len(node.values) > 1 else 0):
            yield "leaf left out", replace(node, values=(*node.values[:i], *node.values[i + 1 :]))
    if isinstance(node, Scan):
        yield "order turned", replace(node, forward=not node.forward)
        yield "another discount", replace(node, discount=Map(scalar("mul", const(0.5), arg(0)), (node.discount,)))
        for v in node.values:
            zero = tuple(Const(0.0, o.stratum) if o is v else o for o in node.values)
            yield "leaf left out", replace(node, values=zero)
    if isinstance(node, Mix):
        yield "matrix dropped", Const(0.0, node.stratum)


def of_gradients(node: Node) -> Iterator[tuple[str, Node]]:
    """The rules about what carries a gradient, for programs whose adjoint is taken afterwards."""
    if isinstance(node, Detach):
        yield "stop forgotten", node.operand
    elif node.operands:
        yield "gradient stopped", Detach(node)


# ---------------------------------------------------------------- mutants


def mutants(program: Program, gradients: bool = False) -> Iterator[Mutant]:
    """Every mutant of a program. `gradients`: also those by `of_gradients`."""
    every = list(program.nodes())
    label = {node: f"%{i}" for i, node in enumerate(every)}

    def made(rule: str, node: Node, new: Node, where: str = "") -> Mutant:
        return Mutant(rule, program, node, new, where or f"{label[node]} = {describe(node, label)}")

    for node in every:
        for rule, new in (*of_nodes(node, every), *(of_gradients(node) if gradients else ())):
            yield made(rule, node, new)
        if isinstance(node, Map):
            for s in sorted(parts(node.body), key=str):
                for rule, part in of_scalars(s, len(node.inputs)):
                    body = with_part(node.body, s, part)
                    if body is not node.body and arguments(body):
                        yield made(rule, node, Map(body, node.inputs), f"{label[node]}, {s} becomes {part}")


def with_part(body: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """`body` with `new` wherever `old` stands."""
    if body is old:
        return new
    return Scalar(body.op, tuple(with_part(a, old, new) for a in body.args), body.value) if body.args else body
