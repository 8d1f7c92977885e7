"""The precision in which a pass computes the values of its tokens."""

from __future__ import annotations

from fibration.compiler.ir import Input, Map, Node, Scalar
from fibration.compiler.plan import Pass, Plan

CHEAP = frozenset({"arg", "const", "add", "sub", "mul", "neg"})


class Precisions:
    """Which values of the passes of a plan are float64, and which are in the tokens' precision too."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._precise: dict[Pass, frozenset[Node]] = {}
        self._both: dict[Pass, frozenset[Node]] = {}

    def precise(self, step: Pass) -> frozenset[Node]:
        if step not in self._precise:
            self._precise[step] = self.plan.precise_in(step)
        return self._precise[step]

    def both(self, step: Pass) -> frozenset[Node]:
        """The float64 values of a pass that others read in the tokens' precision, and that are computed in it again.

        These are inputs, and their sums and products: to compute them again costs less than to round them.
        """
        if step not in self._both:
            self._both[step] = frozenset() if step.wide else self._computed_again(step)
        return self._both[step]

    def _computed_again(self, step: Pass) -> frozenset[Node]:
        precise = self.precise(step)
        read = {p.operand for p in step.pushes}.union(*(n.operands for n in step.values if n not in precise))
        cheap = [n for n in step.values if n in precise and _is_cheap(n)]
        found: set[Node] = set()
        for node in reversed(cheap):
            if node in read and all(o in cheap or o not in precise for o in node.operands):
                found.add(node)
                read.update(node.operands)
        return frozenset(found)


def _is_cheap(node: Node) -> bool:
    return isinstance(node, Input) or (isinstance(node, Map) and _operators(node.body) <= CHEAP)


def _operators(body: Scalar) -> set[str]:
    return {body.op}.union(*map(_operators, body.args))
