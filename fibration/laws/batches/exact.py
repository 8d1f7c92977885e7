"""The meaning of the IR in exact numbers: fractions, fractions with slopes, or bounds. `compiler/interpret.py` has that
in float64.

An element is computed when something reads it. So a missing value, such as a mean over nothing, raises `NoValue` only
from what reads it: a choice does not read the branch that it does not take. Nothing here uses sympy.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fibration.compiler.derivative import ZERO
from fibration.compiler.ir import Const, Detach, Input, Map, Mix, Node, Pull, Push, Quantile, Scalar, Scan, arg
from fibration.compiler.scalars import to_scalar
from fibration.errors import SpecError
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.operators import PRIMITIVES
from fibration.language.traversal import KEPT, desugar
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import DUALS, value_of, without_slopes
from fibration.laws.values.intervals import Interval, interval

NOTHING = None  # the largest of no values: less than every number, and no number itself
Place = tuple[Any, int]  # a token: its leaf, and which element of it


class Exact:
    """The vectors of a program on a batch. `given(node, element, moves)` is an input's value, with slopes if it moves.

    `domain` applies the operators, as in `traversal.fold`. Elements that stand for several count as many times.
    """

    def __init__(
        self, concrete: Concrete, places: Sequence[Place], domain: Any, given: Callable[[Input, int, bool], Any]
    ) -> None:
        self.concrete, self.places, self.domain, self.given = concrete, places, domain, given
        self.strata = {s.name: s for s in concrete.shape.order}
        self.known: dict[tuple[Node, int, bool], Any] = {}

    def value(self, node: Node, element: int = 0, moves: bool = False) -> Any:
        """The value at an element, with slopes if it moves. Raises `NoValue` if there is none."""
        key = node, element, moves
        if key not in self.known:
            self.known[key] = self._value(node, element, moves)
        return self.known[key]

    def over(self, source: str, target: str, element: int) -> list[tuple[int, int]]:
        """The `source` elements over an element, and how many each stands for. A stratum that the batch lacks has one
        element.
        """
        of, base = self.strata.get(source), self.strata.get(target)
        if of is None or base is None:
            return [(a, 1) for a in range(1 if of is None else self.concrete.size[of])]
        inside, number = self.concrete.over(of, base, element), self.concrete.stands_for
        return [(a, number(of, a) // number(base, element)) for a in inside]

    def below(self, source: str, element: int, target: str) -> int:
        of, base = self.strata.get(source), self.strata.get(target)
        return 0 if of is None or base is None else self.concrete.below(of, element, base)

    def _value(self, node: Node, element: int, moves: bool) -> Any:
        if isinstance(node, Map):
            return compute(node.body, lambda i, m: self.value(node.inputs[i], element, m), self.domain, moves)
        if isinstance(node, Input):
            found = self.given(node, element, moves)
            return self.domain.constant(found) if isinstance(found, Fraction) else found
        if isinstance(node, Const):
            return self.domain.constant(Fraction(node.value))
        if isinstance(node, Detach):
            return self.value(node.operand, element)
        if isinstance(node, Pull):
            return self.value(node.operand, self.below(node.source, element, node.target), moves)
        if isinstance(node, Push):
            return self._push(node, element, moves)
        if isinstance(node, Quantile):
            level = value_of(self.value(node.level, element))
            inside = [(v, *one) for v in node.values for one in self.over(v.stratum, node.target, element)]
            return _quantile([self.value(v, a) for v, a, _ in inside], [n for *_, n in inside], level)
        if isinstance(node, Scan):
            return self._scan(node, element, moves)
        assert isinstance(node, Mix)
        raise SpecError(
            "residuals are those of a projection",
            required="residuals of the Möbius recursion, which alone are evaluated exactly",
        )

    def _push(self, node: Push, element: int, moves: bool) -> Any:
        inside = self.over(node.source, node.target, element)
        if node.reduce == "max":
            values = (self.value(node.operand, a) for a, _ in inside)
            found = [v for v in values if v is not NOTHING]
            return _quantile(found, [1] * len(found), Fraction(1)) if found else NOTHING
        total: Any = Fraction(0)
        for a, n in inside:
            value = _number(self.value(node.operand, a, moves))
            total = value + total if n == 1 else value * Fraction(n) + total
        return total

    def _scan(self, node: Scan, element: int, moves: bool) -> Any:
        if self.concrete.alike:
            raise NoValue("a sum in order of tokens that stand for several, of which none is the first")
        base, of = self.below(node.into, element, node.target), {v.stratum: v for v in node.values}
        order: dict[tuple[str, int], None] = {}
        for leaf, i in self.places:
            if self.strata.get(node.target) in (None, leaf, *self.concrete.shape.coarser(leaf)):
                reach = (leaf.name, *(s.name for s in self.concrete.shape.coarser(leaf)))
                if self.below(leaf.name, i, node.target) == base:
                    order |= {(s, self.below(leaf.name, i, s)): None for s in of if s in reach}
        inside = list(order)
        own = inside.index((node.into, element))
        discount, total = self.value(node.discount), self.domain.constant(Fraction(0))
        for stratum, a in inside[:own] if node.forward else inside[:own:-1]:
            value = self.domain.apply(PRIMITIVES["add"], [total, _number(self.value(of[stratum], a, moves))])
            total = self.domain.apply(PRIMITIVES["mul"], [value, discount])
        return total


def compute(body: Scalar, argument: Callable[[int, bool], Any], domain: Any, moves: bool = False) -> Any:
    """The value of a body, with slopes if it moves. Those of conditions, of what is stopped and of a product with 0 are
    not computed.
    """
    done: dict[tuple[Scalar, bool], Any] = {}  # bodies share parts; nested choices share them many times

    def of(s: Scalar, moves: bool) -> Any:
        if s.op == "arg":
            return argument(s.value, moves)  # type: ignore[arg-type]
        if s.op == "const":
            return NOTHING if s.value == -math.inf else domain.constant(s.value)
        if (s, moves) not in done:
            done[s, moves] = applied(s, moves)
        return done[s, moves]

    def applied(s: Scalar, moves: bool) -> Any:
        if s.op == "select":
            return of(s.args[1 if of(s.args[0], False) else 2], moves)
        row = PRIMITIVES[s.op]
        still = row.is_condition or s.op == "stop" or (s.op == "mul" and ZERO in s.args)
        arguments = [of(a, moves and not still) for a in s.args]
        if arguments[0] is not NOTHING is not arguments[-1]:
            return domain.apply(row, arguments)
        if s.op in ("lt", "le"):
            return arguments[0] is NOTHING and (s.op == "le" or arguments[1] is not NOTHING)
        raise NoValue("the largest of none")

    return of(body, moves)


def differentiate(expression: Expression, values: Callable[[Expression], Any], domain: Any = DUALS) -> Any:
    """As `traversal.evaluate`, in a domain whose numbers may have slopes. Raises `NoValue` without a value or slope."""
    body, read = _of_atoms(expression)

    def argument(i: int, moves: bool) -> Any:
        return values(read[i]) if moves or read[i].is_condition else without_slopes(values(read[i]))

    return compute(body, argument, domain, True)


@lru_cache(KEPT)
def _of_atoms(expression: Expression) -> tuple[Scalar, list[Expression]]:
    """An expression as a body, and the atoms that are its arguments."""
    read: dict[Expression, int] = {}
    body = to_scalar(desugar(expression), lambda a: arg(read.setdefault(a, len(read))))
    return body, list(read)


def _number(value: Any) -> Any:
    if value is NOTHING:
        raise NoValue("the largest of none")
    return value


def _quantile(values: list[Any], numbers: list[int], level: Fraction) -> Any:
    """The value at a level among the sorted values, of which each counts so many times; linear between two of them."""
    if not values:
        raise NoValue("a quantile of none")
    position = (sum(numbers) - 1) * level
    if not any(isinstance(v, Interval) for v in values):
        return _ordered(values, numbers, position)
    known = [interval(v) for v in values]
    return Interval(*(_ordered([getattr(v, end) for v in known], numbers, position) for end in ("low", "high")))


def _ordered(values: list[Any], numbers: list[int], position: Fraction) -> Any:
    ranked = sorted(zip(values, numbers, strict=True), key=lambda found: value_of(found[0]))
    ends = list(itertools.accumulate(n for _, n in ranked))
    low, share = math.floor(position), position - math.floor(position)
    a = ranked[bisect.bisect_right(ends, low)][0]
    if not share:
        return a
    b = ranked[bisect.bisect_right(ends, low + 1)][0]
    return a * (1 - share) + b * share
