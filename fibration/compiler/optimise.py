"""IR → IR: rewrite rules that never change a value by more than a rounding, applied until nothing changes.

Sharing is free (nodes are interned), and dead nodes are those no output reaches. What is left for rules: constants,
neutral elements, and maps that run directly into one another.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TypeGuard

from fibration.compiler.derivative import times
from fibration.compiler.ir import (
    CONDITIONS,
    Const,
    Detach,
    Map,
    Mix,
    Node,
    Program,
    Pull,
    Push,
    Scalar,
    arg,
    bind,
    const,
    count_input,
    scalar,
)
from fibration.compiler.scalars import compute

ONE, ZERO, MINUS_ONE = const(1.0), const(0.0), const(-1.0)
TRUE, FALSE = scalar("le", ZERO, ZERO), scalar("lt", ZERO, ZERO)
FUSED_SIZE = 60  # a longer body is harder to read, and no faster


def optimise(program: Program) -> Program:
    """Simplify every body, then fuse a map into its only user."""
    program = _rebuild(program, lambda node: node)
    while True:
        uses = Counter(o for n in program.nodes() for o in n.operands)
        kept = set(program.outputs.values()) | set(program.names)
        fusable = {
            n
            for n in program.nodes()
            if isinstance(n, Map) and uses[n] == 1 and n not in kept and size(n.body) < FUSED_SIZE
        }
        fused = _rebuild(program, lambda node, inner=fusable: _fuse(node, inner))  # type: ignore[misc]
        if list(fused.outputs.values()) == list(program.outputs.values()):
            return fused.validate()
        program = fused


def size(body: Scalar) -> int:
    return 1 + sum(size(a) for a in body.args)


def _rebuild(program: Program, rule) -> Program:  # type: ignore[no-untyped-def]
    """Apply `rule`, then `simplify`, to every node, bottom-up."""
    done: dict[Node, Node] = {}
    for node in program.nodes():
        done[node] = _tidy(_with_operands(rule(node), done))
    names: dict[Node, str] = {}
    for node, name in program.names.items():
        if node in done:
            names.setdefault(done[node], name)
    return replace(program, outputs={k: done[v] for k, v in program.outputs.items()}, names=names)


def _with_operands(node: Node, done: dict[Node, Node]) -> Node:
    if isinstance(node, Map):
        return Map(node.body, tuple(done[o] for o in node.inputs))
    if not node.operands:
        return node
    return replace(node, operand=done[node.operands[0]])  # type: ignore[call-arg]


def _fuse(node: Node, inner: set[Node]) -> Node:
    if not isinstance(node, Map) or not any(o in inner for o in node.inputs):
        return node
    operands: dict[Node, int] = {}
    substitution = []
    for o in node.inputs:
        if o in inner and isinstance(o, Map):
            table = [arg(operands.setdefault(x, len(operands))) for x in o.inputs]
            substitution.append(bind(o.body, table))
        else:
            substitution.append(arg(operands.setdefault(o, len(operands))))
    return Map(bind(node.body, substitution), tuple(operands))


def _tidy(node: Node) -> Node:
    """Simplify a map's body, bind constant operands, drop unused ones; a sum of a constant is a count."""
    if isinstance(node, Detach):  # derivatives have been taken
        return node.operand
    if isinstance(node, Mix) and isinstance(node.operand, Const) and node.operand.value == 0.0:
        return Const(0.0, node.stratum)
    if isinstance(node, (Push, Pull)) and isinstance(node.operand, Const):
        value = node.operand.value
        if isinstance(node, Pull) or node.reduce == "max" or value == 0.0:
            return Const(value, node.stratum)
        return _tidy(Map(scalar("mul", const(value), arg(0)), (count_input(node.source, node.target),)))
    if isinstance(node, Push) and node.reduce == "sum" and _is_negated(node.operand):
        positive = _tidy(Map(node.operand.body.args[0], node.operand.inputs))  # the channels often sum the same but for
        return Map(scalar("neg", arg(0)), (Push(node.source, node.target, positive),))  # the sign
    if not isinstance(node, Map):
        return node
    operands: dict[Node, int] = {}
    table: list[Scalar] = []
    for o in node.inputs:
        table.append(const(o.value) if isinstance(o, Const) else arg(operands.setdefault(o, len(operands))))
    body = simplify(bind(node.body, table))
    used = sorted(_arguments(body))
    if not used:
        return Const(_value(body), node.stratum)
    renumber = {old: arg(new) for new, old in enumerate(used)}
    chosen = tuple(list(operands)[i] for i in used)
    body = bind(body, [renumber.get(i, ZERO) for i in range(len(operands))])
    return chosen[0] if body is arg(0) else Map(body, chosen)


def _is_negated(node: Node) -> TypeGuard[Map]:
    return isinstance(node, Map) and node.body.op == "neg"


def _value(body: Scalar) -> float:
    """Of a body without arguments."""
    return float(body.value or 0.0) if body.op == "const" else compute(body.op, *(_value(a) for a in body.args))


def _arguments(body: Scalar) -> set[int]:
    if body.op == "arg":
        return {int(body.value or 0)}
    return set().union(*(_arguments(a) for a in body.args)) if body.args else set()


def simplify(body: Scalar) -> Scalar:
    """Fold constants and neutral elements, bottom-up."""
    if not body.args:
        return body
    args = tuple(simplify(a) for a in body.args)
    s = Scalar(body.op, args, body.value)
    if all(a.op == "const" for a in args) and s.op not in CONDITIONS and s.op != "select":
        value = compute(s.op, *(float(a.value or 0.0) for a in args))
        return const(value) if math.isfinite(value) else s
    return _rule(s)


def _rule(s: Scalar) -> Scalar:
    a = s.args[0]
    b = s.args[1] if len(s.args) > 1 else ZERO
    match s.op:
        case "add":
            if b.op == "neg":
                return _rule(scalar("sub", a, b.args[0]))
            if a.op == b.op == "select" and a.args[0] is b.args[0] and ZERO in (*a.args[1:], *b.args[1:]):
                sums = (_rule(scalar("add", *pair)) for pair in zip(a.args[1:], b.args[1:], strict=True))
                return _rule(scalar("select", a.args[0], *sums))
            return b if a is ZERO else a if b is ZERO else s
        case "sub":
            if b.op == "neg":
                return _rule(scalar("add", a, b.args[0]))
            return a if b is ZERO else _rule(scalar("neg", b)) if a is ZERO else s
        case "mul":
            if a is ZERO or b is ZERO:
                return ZERO
            if a is ONE:
                return b
            if b is ONE:
                return a
            if a is MINUS_ONE or b is MINUS_ONE:
                return _rule(scalar("neg", b if a is MINUS_ONE else a))
            if a.op == "div" and a.args[1] is b:  # (x/n)·n, as when means of means are weighted
                return a.args[0]
            for branch, factor in ((a, b), (b, a)):
                if branch.op == "select" and ZERO in branch.args[1:]:
                    return _deep(times(branch, factor))
            return s
        case "div":
            return a if b is ONE else ZERO if a is ZERO else s
        case "neg":
            if a.op == "neg":
                return a.args[0]
            if a.op == "sub":
                return scalar("sub", a.args[1], a.args[0])
            return s
        case "lt" | "le":
            if a is b or (a.op == b.op == "const"):
                return TRUE if (s.op == "le" and a is b) or (a is not b and _value(s)) else FALSE
            return _compared_choice(s) or s
        case "and":
            return FALSE if FALSE in (a, b) else b if a is TRUE else a if b is TRUE else s
        case "or":
            return TRUE if TRUE in (a, b) else b if a is FALSE else a if b is FALSE else s
        case "not":
            return FALSE if a is TRUE else TRUE if a is FALSE else s
        case "select":
            if a is TRUE or a is FALSE:
                return s.args[1 if a is TRUE else 2]
            if b.op == "const" and s.args[2].op == "select" and s.args[2].args[1] is b:
                return _rule(scalar("select", _rule(scalar("or", a, s.args[2].args[0])), b, s.args[2].args[2]))
            return b if b is s.args[2] else s
        case _:
            return s


def _compared_choice(s: Scalar) -> Scalar | None:
    """A choice between constants, compared with a constant, is a condition of the choice: slopes often are."""
    choice, other = (s.args[0], s.args[1]) if s.args[0].op == "select" else (s.args[1], s.args[0])
    if other.op != "const" or not _only_constants(choice):
        return None
    condition, *branches = choice.args
    a, b = (_rule(scalar(s.op, *((x, other) if choice is s.args[0] else (other, x)))) for x in branches)
    chosen = _rule(scalar("and", condition, a)), _rule(scalar("and", _rule(scalar("not", condition)), b))
    return _rule(scalar("or", *chosen))


def _only_constants(s: Scalar) -> bool:
    return s.op == "const" or (s.op == "select" and all(_only_constants(a) for a in s.args[1:]))


def _deep(s: Scalar) -> Scalar:
    """Simplify the branches that a factor was just moved into."""
    if s.op == "select":
        return scalar("select", s.args[0], _deep(s.args[1]), _deep(s.args[2]))
    return simplify(s)
