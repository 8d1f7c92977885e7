"""The meaning of the IR in exact numbers: fractions, fractions with slopes, or bounds. `compiler/interpret.py` has that
in float64.

An element is computed when something reads it. So a missing value, such as a mean over nothing, raises `NoValue` only
from what reads it: a choice does not read the branch that it does not take. Nothing here uses sympy.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from fibration.compiler.derivative import ZERO
from fibration.compiler.ir import Const, Detach, Input, Map, Mix, Node, Pull, Push, Quantile, Scalar, Scan, arg
from fibration.compiler.scalars import to_scalar
from fibration.errors import SpecError
from fibration.language.atoms import Stratum
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import PRIMITIVES
from fibration.language.traversal import KEPT, desugar
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import DUALS, value_of, without_slopes
from fibration.laws.values.intervals import Interval, interval

NOTHING = None  # the largest of no values: less than every number, and no number itself
Place = tuple[Stratum, int]  # a token: its leaf, and which element of it


def places_of(h: Hierarchy, concrete: Concrete) -> tuple[Place, ...]:
    """Every token of a batch, leaf after leaf."""
    return tuple((leaf, i) for leaf in h.leaves for i in range(concrete.size[leaf]))


@dataclass(frozen=True)
class Exact:
    """The vectors of a program on a batch. Elements that stand for several count as many times.

    `domain` applies the operators, as in `traversal.fold`.
    """

    h: Hierarchy
    concrete: Concrete
    domain: Any = field(default=DUALS, kw_only=True)

    def given(self, node: Input, element: int, moves: bool) -> Any:
        """The value of an input at an element, with slopes if it moves."""
        raise NotImplementedError

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every token of a batch, leaf after leaf."""
        return places_of(self.h, self.concrete)

    @cached_property
    def known(self) -> dict[tuple[Node, int, bool], Any]:
        return {}

    def read(self, node: Node, element: int = 0, moves: bool = False) -> Any:
        """The value at an element, with slopes if it moves. Raises `NoValue` if there is none."""
        key = node, element, moves
        if key not in self.known:
            self.known[key] = self._read(node, element, moves)
        return self.known[key]

    def over(self, stratum: Stratum, element: int) -> list[int]:
        """Which tokens lie over an element."""
        reach, below = self.concrete.shape.leaves_over(stratum), self.concrete.below
        return [k for k, (leaf, i) in enumerate(self.places) if leaf in reach and below(leaf, i, stratum) == element]

    def _inside(self, source: str, target: str, element: int) -> list[tuple[int, int]]:
        """The `source` elements over an element, and how many each stands for."""
        of, base, number = self.concrete.strata[source], self.concrete.strata[target], self.concrete.stands_for
        return [(a, number(of, a) // number(base, element)) for a in self.concrete.over(of, base, element)]

    def _read(self, node: Node, element: int, moves: bool) -> Any:
        if isinstance(node, Map):
            return compute(node.body, lambda i, m: self.read(node.inputs[i], element, m), self.domain, moves)
        if isinstance(node, Input):
            found = self.given(node, element, moves)
            return self.domain.constant(found) if isinstance(found, Fraction) else found
        if isinstance(node, Const):
            return self.domain.constant(Fraction(node.value))
        if isinstance(node, Detach):
            return self.read(node.operand, element)
        if isinstance(node, Pull):
            base = self.concrete.strata.get(node.target)
            below = 0 if base is None else self.concrete.below(self.concrete.strata[node.source], element, base)
            return self.read(node.operand, below, moves)
        if isinstance(node, Push):
            inside = self._inside(node.source, node.target, element)
            if node.reduce == "max":
                found = [v for a, _ in inside if (v := self.read(node.operand, a)) is not NOTHING]
                return _quantile(found, [1] * len(found), Fraction(1)) if found else NOTHING
            values = (number(self.read(node.operand, a, moves)) * Fraction(n) for a, n in inside)
            return sum(values, self.domain.constant(Fraction(0)))
        if isinstance(node, Quantile):
            each = [(v, *one) for v in node.values for one in self._inside(v.stratum, node.target, element)]
            level = value_of(self.read(node.level, element))
            return _quantile([self.read(v, a) for v, a, _ in each], [n for *_, n in each], level)
        if isinstance(node, Scan):
            return self._scan(node, element, moves)
        assert isinstance(node, Mix)
        raise SpecError(
            f"hierarchy '{self.h.name}' takes residuals by projection",
            required="residuals of the Möbius recursion, which alone are evaluated exactly",
        )

    def _scan(self, node: Scan, element: int, moves: bool) -> Any:
        if self.concrete.alike:
            raise NoValue("a sum in order of tokens that stand for several, of which none is the first")
        below, target = self.concrete.below, self.concrete.strata[node.target]
        of, into = {self.concrete.strata[v.stratum]: v for v in node.values}, self.concrete.strata[node.into]
        reach = {s: self.concrete.shape.leaves_over(s) for s in of}
        tokens = [self.places[k] for k in self.over(target, below(into, element, target))]
        order = list(dict.fromkeys((s, below(*t, s)) for t in tokens for s in of if t[0] in reach[s]))
        own = order.index((into, element))
        discount, total = self.read(node.discount), self.domain.constant(Fraction(0))
        for s, a in order[:own] if node.forward else order[:own:-1]:
            value = self.domain.apply(PRIMITIVES["add"], [total, number(self.read(of[s], a, moves))])
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
        return domain.apply(row, list(map(number, arguments)))

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


def number(value: Any) -> Any:
    """A value that is a number; raises `NoValue` for the largest of none."""
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
