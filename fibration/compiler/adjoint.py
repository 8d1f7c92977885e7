"""Adds derivatives to a program: the reverse sweep, one rule per kind of node.

    Push (sum)  ↔  Pull          the transpose of a sum over fibres is a broadcast, and the reverse
    Mix         →  Mix           of the transposed matrix
    Scan        →  Scan          in the other direction, into each of its sources
    Map(body)   →  Map(∂body)    branch by branch: the branch that holds at a point is the one differentiated
    Detach      →  nothing       a Quantile too, because it is detached

The transpose of a kernel `K` is a weighted pushforward. The result is ordinary IR, like the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fibration.compiler import ir
from fibration.compiler.ir import Const, Detach, Input, Key, Map, Mix, Node, Pull, Push, Quantile, Scan
from fibration.compiler.program import Program
from fibration.compiler.scalars import ZERO, derivative, times
from fibration.errors import IRError
from fibration.language.hierarchy import Hierarchy


def drops_tokens(h: Hierarchy) -> bool:
    """Whether the objective, or that of a penalty, leaves tokens out."""
    objectives = (h.objective, *(p.objective for p in h.penalties.values()))
    return any(objective is not None and objective.kept for objective in objectives)


def adjoint(
    program: Program, seeds: Mapping[Key, Node], results: Mapping[Key, tuple[Node, ...]], drops: bool = False
) -> Program:
    """`program` with one more output per entry of `results`: the sum of the derivatives with respect to its nodes.

    `seeds` are the cotangents of outputs. A result has the stratum of its nodes. `drops`: what `drops_tokens`
    says; the derivative of a dropped token is 0, however large a slope is there.
    """
    order = list(program.nodes())
    depends = {n for nodes in results.values() for n in nodes}
    for node in order:
        if not isinstance(node, (Detach, Quantile)) and any(o in depends for o in node.operands):
            depends.add(node)

    cotangents: dict[Node, list[Node]] = {}
    received: dict[Node, Node] = {}
    for output, seed in seeds.items():
        cotangents.setdefault(program.outputs[output], []).append(seed)
    names = dict(program.names)
    for node in reversed(order):
        if node not in depends or node not in cotangents:
            continue
        cotangent = received[node] = ir.total(cotangents.pop(node))
        if node in program.names:
            names.setdefault(cotangent, program.names[node]._replace(word=f"d_{program.names[node].word}"))
        for operand, contribution in _transpose(node, cotangent, depends, drops):
            cotangents.setdefault(operand, []).append(contribution)
    gradients = {}
    for result, nodes in results.items():
        found = [received[n] for n in nodes if n in received]
        gradients[result] = ir.total(found or [Const(0.0, nodes[0].stratum)])
    return replace(program, outputs={**program.outputs, **gradients}, names=names).validate()


def _transpose(node: Node, cotangent: Node, depends: set[Node], drops: bool) -> list[tuple[Node, Node]]:
    if isinstance(node, Push):
        if node.reduce != "sum":
            raise IRError(f"a push with reduction '{node.reduce}' has no derivative here")
        return [(node.operand, Pull(node.source, node.target, cotangent))]
    if isinstance(node, Pull):
        return [(node.operand, Push(node.source, node.target, cotangent))]
    if isinstance(node, Mix):
        return [(node.operand, Mix(node.into, node.of, cotangent, not node.transposed))]
    if isinstance(node, Scan):
        given = tuple(cotangent if s == node.into else Const(0.0, s) for s in node.sources)
        back = {s: Scan(s, node.target, given, node.discount, not node.forward) for s in node.sources}
        return [(v, back[v.stratum]) for v in node.values if v in depends]
    if isinstance(node, Map):
        bound = (*node.inputs, cotangent, node)
        pairs = []
        for i, operand in enumerate(node.inputs):
            slope = derivative(node.body, i)
            if operand in depends and slope is not ZERO:
                read = {part.op for part in ir.parts(slope)}
                overflows = ("exp" in read and (drops or isinstance(operand, Input))) or ("div" in read and drops)
                # the slopes of exp, tanh and others contain their value: read it, do not compute it again
                slope = ir.replaced(slope, node.body, ir.arg(len(bound) - 1))
                received = ir.arg(len(bound) - 2)
                product = times(slope, received)
                if overflows:  # a closed gate passes no gradient, however steep F is
                    closed = ir.scalar("and", ir.scalar("le", received, ZERO), ir.scalar("le", ZERO, received))
                    product = ir.scalar("select", closed, ZERO, product)
                pairs.append((operand, ir.map_over(product, bound, [*ir.arguments(product)])))
        return pairs
    return []
