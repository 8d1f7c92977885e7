"""What is constant on a fibre is computed once per fibre, and leaves the sums over the fibre.

    f(pull(x), pull(y))    →  pull(f(x, y))
    push(pull(x)·y)        →  x·push(y)
    unless(pull(x), y)     →  pull(unless(x, push(y)))     `unless`: x, or NaN where y is

By the third row, a token that is not finite takes the result from all tokens that share it. The second row holds for
maxima too, where the factor is an exponential.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fibration.compiler.ir import (
    BATCH,
    Const,
    Input,
    Map,
    Node,
    Pull,
    Push,
    Scalar,
    arg,
    arguments,
    binary,
    const,
    count_input,
    scalar,
    with_arguments,
)
from fibration.compiler.keys import Key
from fibration.compiler.program import Program

BOUNDED = "ratio_of_coarser"  # the word of exponentials that are certainly finite
UNLESS = scalar("select", scalar("le", arg(1), const(0.0)), arg(0), const(math.nan))


def hoist(program: Program) -> Program:
    """`program` with these rows applied, for fibres of tokens."""
    leaves = program.leaves
    program = program.mapped(lambda n: _once(n) if isinstance(n, Map) and n.stratum in leaves else n)
    program = replace(program, names={**_names_of_pulled(program), **program.names})
    pushes = [n for n in program.nodes() if isinstance(n, Push) and n.source in leaves]
    sums = {(p.operand, p.target): p for p in pushes if p.reduce == "sum"}
    # the sum of a whole batch adds up the sums of its rows, if these are of the same values
    unchanged = {p for p in pushes if p.target == BATCH or (p.operand, BATCH) in sums}
    alone = len(leaves) == 1  # else an element may lie under no token of a leaf
    bounded = frozenset(n for n, key in program.names.items() if key.word == BOUNDED)

    def rule(node: Node) -> Node:
        if isinstance(node, Push) and node.source in leaves:
            return _taken_out(node, alone, bounded)
        return _marked(node, sums) if isinstance(node, Map) and node.body is UNLESS else node

    return program.mapped(rule, unchanged=unchanged)


def _names_of_pulled(program: Program) -> dict[Node, Key]:
    """The user's words for values per segment that stood for a value of each token."""
    pulls = ((n, key) for n, key in program.names.items() if isinstance(n, Pull))
    return {n.operand: Key(key.word, n.target, key.channel) for n, key in pulls}


def _marked(node: Map, sums: Mapping[tuple[Node, str], Push]) -> Node:
    """`unless(pull(x), y)` as `pull(unless(x, push(y)))`, where that sum is taken anyway."""
    value, nothing = node.inputs
    found = sums.get((nothing, value.target)) if isinstance(value, Pull) else None
    if found is None or not isinstance(value, Pull):
        return node
    return replace(value, operand=Map(UNLESS, (value.operand, found)))


def _once(node: Map) -> Node:
    """`f(pull(x), pull(y))` as `pull(f(x, y))`. What is pulled from the batch alone stays: it needs no sum."""
    targets = {o.target if isinstance(o, Pull) else None for o in node.inputs} - {BATCH}
    if len(targets) != 1 or None in targets or _may_be_zero(node.body):
        return node
    (target,) = targets
    assert target is not None
    pulled = (_at(o, target) for o in node.inputs if isinstance(o, Pull))
    return Pull(node.stratum, target, Map(node.body, tuple(pulled)))


def _may_be_zero(body: Scalar) -> bool:
    """Whether a choice in the body has the branch 0. An infinite factor must not reach it, and moves into the other."""
    return (body.op == "select" and const(0.0) in body.args[1:]) or any(map(_may_be_zero, body.args))


def _at(pull: Pull, target: str) -> Node:
    """What a token of `pull` reads, over `target`, which the token lies over."""
    return pull.operand if pull.target == target else Pull(target, pull.target, pull.operand)


def _taken_out(push: Push, alone: bool, bounded: Collection[Node]) -> Node:
    factors = _Factoring(push.source, push.target, alone, bounded)
    found = factors.of_node(push.operand)
    if found.factor is None or (push.reduce == "max" and not (found.is_positive and alone)):
        return push
    if found.chooses_0 and not factors.is_finite(found.factor):
        return push
    of = replace(push, operand=found.rest)
    if alone:
        return binary("mul", found.factor, of)
    some = scalar("lt", const(0.0), arg(0))  # the factor of an element without tokens may be infinite
    body = scalar("select", some, scalar("mul", arg(1), arg(2)), const(0.0))
    return Map(body, (count_input(push.source, push.target), found.factor, of))


class Factored(NamedTuple):
    """A value of tokens: a factor over the target of a sum, or None for 1, times the rest."""

    factor: Node | None
    rest: Node
    is_positive: bool = False  # whether the factor is certainly above 0
    chooses_0: bool = False  # whether the rest has a choice of 0, which an infinite factor must not multiply


@dataclass(frozen=True)
class _Factoring:
    """Finds the factors of token values that are constant on the fibres over `target`. `bounded` ones are finite."""

    leaf: str
    target: str
    alone: bool  # whether it is the only leaf
    bounded: Collection[Node]

    def of_node(self, node: Node) -> Factored:
        if isinstance(node, Pull) and node.target == self.target:
            x = node.operand
            return Factored(x, Const(1.0, node.source), isinstance(x, Map) and x.body.op == "exp")
        if isinstance(node, Map):
            found = self.of_body(node.body, node)
            return found._replace(rest=node) if found.factor is None else found
        return Factored(None, node)

    def of_body(self, s: Scalar, node: Map) -> Factored:
        """The factors of `s`, a part of the body of `node`."""
        if s.op == "arg":
            return self.of_node(node.inputs[int(s.value or 0)])
        if s.op == "const":
            return Factored(None, Const(float(s.value or 0.0), node.stratum))
        made = None
        if s.op == "neg":
            x = self.of_body(s.args[0], node)
            made = x._replace(rest=map_of(scalar("neg", arg(0)), (x.rest,)))
        elif s.op in ("mul", "div"):
            made = _of_product(s.op, *(self.of_body(a, node) for a in s.args))
        elif s.op == "select":
            made = _of_choice(s.args[0], node, *(self.of_body(a, node) for a in s.args[1:]))
        if made is None or made.factor is None:
            return Factored(None, map_of(s, node.inputs), chooses_0=made is not None and made.chooses_0)
        return made

    def is_finite(self, node: Node) -> bool:
        """Whether a factor is certainly finite, and not below 0, at an element with tokens: bounded, or of counts."""
        if node in self.bounded:
            return True
        if isinstance(node, Map):
            return self.is_finite_body(node.body, node)
        if isinstance(node, Pull):
            return self.is_finite(node.operand)
        return isinstance(node, Input) and node.kind == "count"

    def is_finite_body(self, s: Scalar, node: Map) -> bool:
        if s.op == "arg":
            return self.is_finite(node.inputs[int(s.value or 0)])
        if s.op == "div":
            return self.is_finite_body(s.args[0], node) and self.is_positive(s.args[1], node)
        if s.op == "const":
            return 0 <= (s.value or 0.0) < math.inf
        return s.op in ("mul", "add") and all(self.is_finite_body(a, node) for a in s.args)

    def is_positive(self, s: Scalar, node: Map) -> bool:
        """Whether a divisor is certainly above 0: a product or a sum of counts, of tokens that are there."""
        if s.op == "arg":
            found = node.inputs[int(s.value or 0)]
            while isinstance(found, Pull):
                found = found.operand
            if isinstance(found, Map):
                return self.is_positive(found.body, found)
            return isinstance(found, Input) and found.kind == "count" and (self.alone or self.counts_itself(found))
        if s.op == "mul":
            return all(self.is_positive(a, node) for a in s.args)
        counts = s.op == "add" and self.is_finite_body(s, node)  # no summand is below 0
        return (s.op == "const" and (s.value or 0.0) > 0) or (counts and any(self.is_positive(a, node) for a in s.args))

    def counts_itself(self, count: Input) -> bool:
        """Whether a count is of the leaf's tokens, or of the elements that the sum is over."""
        return count.key[0] in (self.leaf, self.target)


def _of_product(op: str, x: Factored, y: Factored) -> Factored | None:
    if op == "div" and y.factor is not None:
        return None
    factors = [p.factor for p in (x, y) if p.factor is not None]
    factor = binary("mul", *factors) if len(factors) == 2 else next(iter(factors), None)
    positive = all(p.is_positive for p in (x, y) if p.factor is not None)
    return Factored(factor, binary(op, x.rest, y.rest), positive, x.chooses_0 or y.chooses_0)


def _of_choice(condition: Scalar, node: Map, x: Factored, y: Factored) -> Factored:
    """A choice between values with one common factor, or between such a value and 0."""
    zeros = [p for p in (x, y) if p.rest is Const(0.0, node.stratum)]
    common = y if x in zeros else x
    n = len(node.inputs)
    body = scalar("select", condition, arg(n), arg(n + 1))
    rest = map_of(body, (*node.inputs, x.rest, y.rest))
    chooses_0 = bool(zeros) or x.chooses_0 or y.chooses_0
    is_common = x.factor is y.factor or zeros
    return Factored(common.factor if is_common else None, rest, common.is_positive, chooses_0)


def map_of(body: Scalar, inputs: tuple[Node, ...]) -> Node:
    """A map of the distinct inputs that its body reads; of one input if it reads none."""
    read = dict.fromkeys(inputs[i] for i in sorted(arguments(body))) or dict.fromkeys(inputs[:1])
    place = {n: arg(i) for i, n in enumerate(read)}
    body = with_arguments(body, [place.get(n, arg(0)) for n in inputs])
    return next(iter(read)) if body.op == "arg" else Map(body, tuple(read))


def is_mark(node: Node) -> bool:
    """Whether a value is 0 or NaN: a sum of such values is the same in every order and precision."""

    def is_nothing(body: Scalar) -> bool:
        if body.op == "sub":
            return body.args[0] == body.args[1]
        return body.op == "add" and all(map(is_nothing, body.args))

    return isinstance(node, Map) and is_nothing(node.body)


def subtracted(node: Node) -> Node:
    """`unless(x, y)` as `x - y·y`, where y is 0 or NaN: no comparison and no choice, and a zero keeps its sign."""
    if not isinstance(node, Map) or node.body.op != "select" or node.body.args[2] is not UNLESS.args[2]:
        return node
    asked, value, _ = node.body.args
    if asked.op != "le" or asked.args[0].op != "arg" or asked.args[1] is not UNLESS.args[0].args[1]:
        return node
    marked = is_mark(node.inputs[int(asked.args[0].value or 0)])
    return replace(node, body=scalar("sub", value, scalar("mul", *asked.args[:1] * 2))) if marked else node
