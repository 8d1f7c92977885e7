"""Simplifies a program until nothing changes. No rewrite changes a value by more than a rounding.

Interned nodes are shared already, and nodes that no output reaches are dead. The rewrites are for constants and neutral
elements in bodies (`rules.py`), for constant operands, and for a map that another map reads. `hoist` computes what is
constant on a fibre once per fibre, and takes it out of the sums over the fibre:

    f(pull(x), pull(y))    →  pull(f(x, y))
    push(pull(x)·y)        →  x·push(y)
    unless(pull(x), y)     →  pull(unless(x, push(y)))     `unless`: x, or NaN where y is

By the third row, a token that is not finite takes the result from all tokens that share it. The second row holds for
maxima too, where the factor is an exponential.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from fibration.compiler import ir
from fibration.compiler.ir import BATCH, Const, Detach, Input, Key, Map, Mix, Node, Pull, Push, Scalar, Scan
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.compiler.scalars import ZERO, closed_value

BOUNDED = "ratio_of_coarser"  # the word of exponentials that are certainly finite
UNLESS = ir.scalar("select", ir.scalar("le", ir.arg(1), ir.const(0.0)), ir.arg(0), ir.const(math.nan))


def hoist(program: Program) -> Program:
    """`program` with these rows applied, for fibres of tokens."""
    leaves = program.leaves
    program = program.mapped(lambda n: _once(n) if isinstance(n, Map) and n.stratum in leaves else n)
    pulls = ((n, key) for n, key in program.names.items() if isinstance(n, Pull))
    segments = {n.operand: Key(key.word, n.target, key.channel) for n, key in pulls}  # for a value of each token
    program = replace(program, names={**segments, **program.names})
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
    pulls = (o for o in node.inputs if isinstance(o, Pull))
    pulled = (o.operand if o.target == target else Pull(target, o.target, o.operand) for o in pulls)
    return Pull(node.stratum, target, Map(node.body, tuple(pulled)))


def _may_be_zero(body: Scalar) -> bool:
    """Whether a choice in the body has the branch 0. An infinite factor must not reach it, and moves into the other."""
    return (body.op == "select" and ir.const(0.0) in body.args[1:]) or any(map(_may_be_zero, body.args))


def _taken_out(push: Push, alone: bool, bounded: Collection[Node]) -> Node:
    factors = _Factoring(push.source, push.target, alone, bounded)
    found = factors.of_node(push.operand)
    if found.factor is None or (push.reduce == "max" and not (found.is_positive and alone)):
        return push
    if found.chooses_0 and not factors.is_finite(found.factor):
        return push
    of = replace(push, operand=found.rest)
    if alone:
        return ir.binary("mul", found.factor, of)
    some = ir.scalar("lt", ir.const(0.0), ir.arg(0))  # the factor of an element without tokens may be infinite
    body = ir.scalar("select", some, ir.scalar("mul", ir.arg(1), ir.arg(2)), ir.const(0.0))
    return Map(body, (ir.count_input(push.source, push.target), found.factor, of))


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
            made = x._replace(rest=map_of(ir.scalar("neg", ir.arg(0)), (x.rest,)))
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
            counted = (self.leaf, self.target)  # the leaf's tokens, or the elements that the sum is over
            return isinstance(found, Input) and found.kind == "count" and (self.alone or found.key[0] in counted)
        if s.op == "mul":
            return all(self.is_positive(a, node) for a in s.args)
        counts = s.op == "add" and self.is_finite_body(s, node)  # no summand is below 0
        return (s.op == "const" and (s.value or 0.0) > 0) or (counts and any(self.is_positive(a, node) for a in s.args))


def _of_product(op: str, x: Factored, y: Factored) -> Factored | None:
    if op == "div" and y.factor is not None:
        return None
    factors = [p.factor for p in (x, y) if p.factor is not None]
    factor = ir.binary("mul", *factors) if len(factors) == 2 else next(iter(factors), None)
    positive = all(p.is_positive for p in (x, y) if p.factor is not None)
    return Factored(factor, ir.binary(op, x.rest, y.rest), positive, x.chooses_0 or y.chooses_0)


def _of_choice(condition: Scalar, node: Map, x: Factored, y: Factored) -> Factored:
    """A choice between values with one common factor, or between such a value and 0."""
    zeros = [p for p in (x, y) if p.rest is Const(0.0, node.stratum)]
    common = y if x in zeros else x
    n = len(node.inputs)
    body = ir.scalar("select", condition, ir.arg(n), ir.arg(n + 1))
    rest = map_of(body, (*node.inputs, x.rest, y.rest))
    chooses_0 = bool(zeros) or x.chooses_0 or y.chooses_0
    is_common = x.factor is y.factor or zeros
    return Factored(common.factor if is_common else None, rest, common.is_positive, chooses_0)


def map_of(body: Scalar, inputs: tuple[Node, ...]) -> Node:
    """A map of the distinct inputs that its body reads; of one input if it reads none."""
    read = dict.fromkeys(inputs[i] for i in sorted(ir.arguments(body))) or dict.fromkeys(inputs[:1])
    place = {n: ir.arg(i) for i, n in enumerate(read)}
    body = ir.with_arguments(body, [place.get(n, ir.arg(0)) for n in inputs])
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
    return replace(node, body=ir.scalar("sub", value, ir.scalar("mul", *asked.args[:1] * 2))) if marked else node


MINUS = ir.scalar("neg", ir.arg(0))
FUSED_SIZE = 60  # a longer body is harder to read, and no faster


def optimise(program: Program) -> Program:
    """Simplifies every body, then fuses a map into its only user."""
    program = program.mapped(tidy)
    summed = {replace(n, wide=False) for n in program.nodes() if isinstance(n, Push) and n.wide}
    if summed:  # a sum that is needed in float64 is computed once, in float64
        program = program.mapped(tidy, lambda n: replace(n, wide=True) if n in summed else n)
    program, leaves = hoist(program), program.leaves
    while True:
        uses = Counter(o for n in program.nodes() for o in n.operands)
        kept = set(program.outputs.values()) | set(program.names)
        fusable: set[Node] = {
            n
            for n in program.nodes()
            if isinstance(n, Map) and uses[n] == 1 and n not in kept and size(n.body) < FUSED_SIZE
        }
        fused = program.mapped(lambda n: _positive(tidy(n), leaves), partial(_fuse, inner=fusable))
        if list(fused.outputs.values()) == list(program.outputs.values()):
            return fused.validate()
        program = fused


def size(body: Scalar) -> int:
    return 1 + sum(size(a) for a in body.args)


def _fuse(node: Node, inner: set[Node]) -> Node:
    if not isinstance(node, Map) or not any(o in inner for o in node.inputs):
        return node
    operands: dict[Node, int] = {}
    substitution = []
    for o in node.inputs:
        if o in inner and isinstance(o, Map):
            table = [ir.arg(operands.setdefault(x, len(operands))) for x in o.inputs]
            substitution.append(ir.with_arguments(o.body, table))
        else:
            substitution.append(ir.arg(operands.setdefault(o, len(operands))))
    return Map(ir.with_arguments(node.body, substitution), tuple(operands))


def tidy(node: Node) -> Node:
    """Simplifies a map's body, binds constant operands, and drops unused ones. A sum of a constant becomes a count."""
    if isinstance(node, Const):
        return Const(float(node.value), node.over)
    if isinstance(node, Detach):  # derivatives have been taken
        return node.operand
    if isinstance(node, Mix) and _is_zero(node.operand):
        return Const(0.0, node.stratum)
    if isinstance(node, Scan) and (_is_zero(node.discount) or all(map(_is_zero, node.values))):
        return Const(0.0, node.stratum)
    if isinstance(node, (Push, Pull)) and isinstance(node.operand, Const):
        value = node.operand.value
        if isinstance(node, Pull) or node.reduce == "max" or value == 0.0:
            return Const(value, node.stratum)
        return tidy(Map(ir.scalar("mul", ir.const(value), ir.arg(0)), (ir.count_input(node.source, node.target),)))
    if isinstance(node, Push) and node.reduce == "sum" and isinstance(x := node.operand, Map) and x.body.op == "neg":
        positive = tidy(Map(x.body.args[0], x.inputs))  # two channels often have one sum, up to
        return Map(ir.scalar("neg", ir.arg(0)), (replace(node, operand=positive),))  # the sign
    if not isinstance(node, Map):
        return node
    operands: dict[Node, int] = {}
    table: list[Scalar] = []
    for o in node.inputs:
        table.append(ir.const(o.value) if isinstance(o, Const) else ir.arg(operands.setdefault(o, len(operands))))
    body = simplify(ir.with_arguments(node.body, table))
    for x in [x for x in operands if isinstance(x, Map) and x.body is MINUS]:  # even functions of both channels are one
        of = operands.setdefault(x.inputs[0], len(operands))
        places = [ir.scalar("neg", ir.arg(of)) if i == operands[x] else ir.arg(i) for i in range(len(operands))]
        without = simplify(ir.with_arguments(body, places))
        body = without if size(without) <= size(body) else body
    used = sorted(ir.arguments(body))
    if not used:
        return Const(closed_value(body), node.stratum)
    return ir.map_over(body, list(operands), used)


def _positive(node: Node, leaves: Collection[str]) -> Node:
    """A sum over tokens without the minus sign that all branches but 0 have: so two channels often share a sum's work,
    up to the sign.
    """
    x = node.operand if isinstance(node, Push) and node.reduce == "sum" and node.source in leaves else None
    if not isinstance(node, Push) or not isinstance(x, Map):
        return node
    inputs = dict.fromkeys(x.inputs)

    def of(s: Scalar) -> Scalar | None:
        if s.op == "arg" and isinstance(y := x.inputs[int(s.value or 0)], Map) and y.body is MINUS:
            inputs[y.inputs[0]] = None
            return ir.arg(list(inputs).index(y.inputs[0]))
        if s.op != "select":
            return s.args[0] if s.op == "neg" else s if s is ZERO else None
        a, b = map(of, s.args[1:])
        return None if a is None or b is None else ir.scalar("select", s.args[0], a, b)

    body = of(x.body)
    return node if body is None else Map(MINUS, (replace(node, operand=tidy(Map(body, tuple(inputs)))),))


def _is_zero(node: Node) -> bool:
    return isinstance(node, Const) and node.value == 0.0
