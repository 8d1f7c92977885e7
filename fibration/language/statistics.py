"""Statistics of tokens: one number of all tokens that lie over an element, through which no gradient flows.

What they are of is a formula read at each token; where it counts nothing but an attribute, `total` is the additive
measure of `atoms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Gathered, Parameter, Total, Where, of_strata, over_text
from fibration.language.expressions import Expression, Number, Operand, as_expression, check_size
from fibration.language.traversal import atoms, transform


@dataclass(frozen=True, repr=False, eq=False)
class Aggregate(Gathered):
    """A statistic of a formula over all tokens that lie over an element; no gradient flows through it.

    `formula` is read at the tokens, the statistic at the elements of `over` (None: at the current one). `level` is the
    fraction of a quantile.
    """

    kind: str  # total, mean, largest, some, quantile
    formula: Expression
    over: Where = None
    level: Expression | None = None
    depth: int = field(init=False)
    size: int = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + self.formula.depth)
        object.__setattr__(self, "size", 1 + self.formula.size)
        check_size(self)
        object.__setattr__(self, "_hash", hash((self.kind, self.formula, self.over, self.level)))

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.kind == "some"

    def __reduce__(self) -> tuple[Any, ...]:  # as Apply's
        return Aggregate, (self.kind, self.formula, self.over, self.level)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        mine = (self.kind, self.formula, self.over, self.level)
        return self is other or (
            isinstance(other, Aggregate)
            and self._hash == other._hash
            and mine == (other.kind, other.formula, other.over, other.level)
        )

    def text(self) -> str:
        level = "" if self.level is None else f", {self.level}"
        return f"{self.kind}({self.formula}{level}{over_text(self.over)})"


def _aggregate(kind: str, formula: object, over: object, level: object = None) -> Aggregate:
    value = as_expression(formula, f"the formula of {kind}")
    if value.is_condition is not (kind == "some"):
        wanted = "a condition" if kind == "some" else "a number"
        remedy = "" if kind == "some" else "write where(condition, 1, 0)"
        raise SpecError(f"{kind} takes {wanted}, not {value}", required=wanted, remedy=remedy)
    place = None if over is None else of_strata(over, f"{kind}(..., over=)")
    return Aggregate(kind, value, place, None if level is None else as_expression(level, f"the level of {kind}"))


def mean(formula: Operand, over: Where = None) -> Aggregate:
    """The mean of a formula over the tokens that lie over the `over` element at or below the current one, detached."""
    return _aggregate("mean", formula, over)


def largest(formula: Operand, over: Where = None) -> Aggregate:
    """The largest value of a formula on those tokens, detached; the least is `-largest(-formula)`."""
    return _aggregate("largest", formula, over)


def some(condition: Expression, over: Where = None) -> Aggregate:
    """Whether a condition holds on some of those tokens; on all of them is `~some(~condition)`."""
    return _aggregate("some", condition, over)


def quantile(formula: Operand, level: Operand, over: Where = None) -> Aggregate:
    """The quantile of a formula on those tokens, detached: between the two values next to `level·(n - 1)`, linearly.

    As `numpy.quantile` and `torch.quantile` do by default, so that equal values need no order. `level` is a number
    from 0 to 1, or a Parameter whose bounds lie in there.
    """
    made = _aggregate("quantile", formula, over, level)
    given = made.level
    inside = isinstance(given, Number) and 0 <= given.value <= 1
    if isinstance(given, Parameter):
        ends = given.lower, given.upper
        inside = not given.per_channel and all(end is not None and 0 <= end <= 1 for end in ends)
    if not inside:
        raise SpecError(
            f"the level of a quantile is {given}",
            required="a number from 0 to 1, or a Parameter of one value with lower=0 and upper=1, or bounds between",
        )
    return made


def total(summed: Attribute | Expression, over: Where = None) -> Total | Aggregate:
    """Sum over the `over` element at or below the current one.

    Of an attribute it is an additive measure, like `count`; of any other formula a statistic of tokens, detached.
    """
    if not isinstance(summed, Expression):
        raise SpecError(f"total takes an Attribute or a formula, not {summed!r}", remedy="tokens are counted by count")
    if not isinstance(summed, Attribute):
        return _aggregate("total", summed, over)
    return Total(summed, None if over is None else of_strata(over, "total(..., over=)"))


def within(expression: Expression) -> Iterator[Expression]:
    """The expression, and the formulas of the aggregates that it reads, however deep: those are read at tokens."""
    yield expression
    for atom in atoms(expression):
        if isinstance(atom, Aggregate):
            yield from within(atom.formula)
            if atom.level is not None:
                yield atom.level


def rewritten(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """`change` of an expression, and of all formulas in the statistics that it reads, the innermost first."""

    def inside(atom: Expression) -> Expression:
        if not isinstance(atom, Aggregate):
            return atom
        level = None if atom.level is None else change(atom.level)
        return replace(atom, formula=rewritten(atom.formula, change), level=level)

    return change(transform(expression, inside))
