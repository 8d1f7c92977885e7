"""Statistics, sums in order, and advantages: formulas of many tokens, or of many elements of a stratum, at an element.

A statistic is one number of all that lies over an element. The `total` of an attribute is the additive measure of
`atoms.py`. A gradient flows through totals and means in penalties only.

A sum in order runs over the tokens before a token of a trajectory, or the turns after a turn. The prefix is the state
in which a token was sampled. Elements are ordered by the places of their tokens in a row, or by the positions that the
index was given.

Advantages are detached formulas of `reward`: `Hierarchy(advantages=centred(reward, over=prompt_group))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import overload

from fibration.errors import SpecError
from fibration.language.atoms import (
    ROWS,
    Attribute,
    Gathered,
    Parameter,
    Stratum,
    Summary,
    Total,
    Where,
    of_strata,
)
from fibration.language.expressions import Apply, Expression, Number, Operand, Spelled, as_expression, spell
from fibration.language.traversal import A, atoms, transform

BEFORE, AFTER = "before", "after"
ONE = as_expression(1)


@dataclass(frozen=True, repr=False, eq=False)
class Ordered(Summary):
    """A discounted sum of a formula over all elements before an element, or after it, without the element itself.

    `formula` and the sum are read at the elements of `of` (None: at tokens). `before` is `Σ_{s<t} discount^(t-s) f_s`
    over the elements of `of` that lie over the same element of `over`. `after` is `Σ_{s>t} discount^(s-t) f_s`.
    """

    direction: str  # before, after
    formula: Expression
    over: Where
    discount: Expression = ONE
    of: Where = None

    def __post_init__(self) -> None:
        depth = 1 + max(self.formula.depth, self.discount.depth)
        size = 1 + self.formula.size + self.discount.size
        self._nest(depth, size, self.direction, self.formula, self.over, self.discount, self.of)

    @property
    def word(self) -> str:
        return self.direction

    @property
    def is_forward(self) -> bool:
        """Whether the sum runs over the elements before, not after."""
        return self.direction == BEFORE

    @property
    def is_position(self) -> bool:
        return (self.direction, self.formula, self.discount) == (BEFORE, ONE, ONE)

    def spelled(self) -> Spelled:
        if self.is_position:
            return spell("position", over=self.over, of=self.of)
        discount = None if self.discount == ONE else self.discount
        return spell(self.direction, self.formula, over=self.over, discount=discount, of=self.of)


def before(formula: Operand, over: Where = None, discount: Operand = 1, of: Where = None) -> Ordered:
    """Returns the discounted sum of a formula over the tokens before this one: `Σ_{s<t} discount^(t-s) f_s`.

    - `over`: the sum stays within this token's element of `over`. It is 0 at the element's first token.
    - `discount`: a number from 0 to 1, a Parameter with bounds in that range, or a product of them.
    - `of`: sums over the elements of this stratum instead of tokens, such as the turns of an episode.

    Masked tokens are not counted.
    """
    return _ordered(BEFORE, formula, over, discount, of)


def after(formula: Operand, over: Where = None, discount: Operand = 1, of: Where = None) -> Ordered:
    """Returns the discounted sum of a formula over the tokens after this one: `Σ_{s>t} discount^(s-t) f_s`.

    The arguments are those of `before`; the sum is 0 at the last token. The generalised advantage estimate is
    `delta + after(delta, over=trajectory, discount=gamma*lam)`.
    """
    return _ordered(AFTER, formula, over, discount, of)


def position(over: Where = None, of: Where = None) -> Ordered:
    """Returns the number of tokens before this one in its element of `over`, from 0: `before(1, over=...)`."""
    return _ordered(BEFORE, 1, over, 1, of)


def _ordered(direction: str, formula: object, over: object, discount: object, of: object) -> Ordered:
    value = as_expression(formula, f"the formula of {direction}")
    if value.is_condition:
        remedy = "write where(condition, 1, 0)"
        raise SpecError(f"{direction} takes a number, not {value}", required="a number", remedy=remedy)
    share = as_expression(discount, f"the discount of {direction}")
    if not _is_share(share):
        ranges = [
            f"{a.name} in {a.range}" + f", one per {a.on}" * (a.on is not None) + ", one per channel" * a.per_channel
            for a in atoms(share, Parameter)
        ]
        raise SpecError(
            f"the discount of {direction} is {share}",
            required="a number from 0 to 1, a Parameter of one value with bounds in there, or a product of such",
            found=", ".join(ranges),
            remedy="declare one number for all: gamma = Parameter('gamma', default=0.99, upper=1)" if ranges else "",
        )
    if over is None:
        raise SpecError(
            f"{direction}({value}) names no over=",
            required="the element within which there is an order, such as over=trajectory",
        )
    each = None if of is None else of_strata(of, f"{direction}(..., of=)")
    return Ordered(direction, value, of_strata(over, f"{direction}(..., over=)"), share, each)


def _is_share(discount: Expression) -> bool:
    """Whether a discount is certain to lie from 0 to 1."""
    if isinstance(discount, Apply) and discount.operator == "*":
        return all(map(_is_share, discount.arguments))
    if isinstance(discount, Parameter):
        ends = discount.lower, discount.upper
        return not discount.per_channel and discount.on is None and all(e is not None and 0 <= e <= 1 for e in ends)
    return isinstance(discount, Number) and 0 <= discount.value <= 1


@dataclass(frozen=True, repr=False, eq=False)
class Aggregate(Summary, Gathered):
    """A statistic of a formula over all elements of `of` (None: over tokens) that lie over an element of `over`.

    `formula` is read at the elements of `of`, the statistic at the elements of `over` (None: at the current element).
    `level` is the fraction of a quantile. A mean of the `others` leaves out the element of `of` at which it is read.
    """

    kind: str  # total, mean, largest, some, quantile, deviation
    formula: Expression
    over: Where = None
    level: Expression | None = None
    of: Where = None
    others: bool = False

    def __post_init__(self) -> None:
        parts = self.kind, self.formula, self.over, self.level, self.of, self.others
        self._nest(1 + self.formula.depth, 1 + self.formula.size, *parts)

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.kind == "some"

    @property
    def word(self) -> str:
        return self.kind

    def spelled(self) -> Spelled:
        others = self.others or None
        return spell(self.kind, self.formula, self.level, over=self.over, of=self.of, others=others)


def _aggregate(
    kind: str, formula: object, over: object, of: object, level: object = None, others: object = False
) -> Aggregate:
    value = as_expression(formula, f"the formula of {kind}")
    if value.is_condition is not (kind == "some"):
        wanted = "a condition" if kind == "some" else "a number"
        remedy = "" if kind == "some" else "write where(condition, 1, 0)"
        raise SpecError(f"{kind} takes {wanted}, not {value}", required=wanted, remedy=remedy)
    place = None if over is None else of_strata(over, f"{kind}(..., over=)")
    each = None if of is None else of_strata(of, f"{kind}(..., of=)")
    if not isinstance(others, bool):
        raise SpecError(f"{kind}(..., others={others!r})", required="True or False")
    if others and each is None:
        required = "of=, the stratum whose element at hand is left out"
        raise SpecError(f"{kind}({value}, others=True) names no of=", required=required, remedy="of=token for tokens")
    share = None if level is None else as_expression(level, f"the level of {kind}")
    return Aggregate(kind, value, place, share, each, others)


def mean(formula: Operand, over: Where = None, of: Where = None, others: bool = False) -> Aggregate:
    """Returns the mean of a formula over the tokens of one element of `over`.

    - `over`: the stratum of the element: the current element, or the coarser element that the current one belongs to.
      Default: the current element.
    - `of`: takes the mean over the elements of this stratum instead of tokens. Each element counts once.
    - `others=True`: leaves out the current element of `of`.
    """
    return _aggregate("mean", formula, over, of, others=others)


def deviation(formula: Operand, over: Where = None, of: Where = None) -> Aggregate:
    """Returns the standard deviation, `sqrt(Σ(f - mean)²/(n - 1))`, or 0 for one element. Arguments as in `mean`."""
    return _aggregate("deviation", formula, over, of)


def largest(formula: Operand, over: Where = None, of: Where = None) -> Aggregate:
    """Returns the largest value of a formula. Arguments as in `mean`. The smallest value is `-largest(-formula)`."""
    return _aggregate("largest", formula, over, of)


def some(condition: Expression, over: Where = None, of: Where = None) -> Aggregate:
    """Returns whether a condition holds on some element. Arguments as in `mean`. On all: `~some(~condition)`."""
    return _aggregate("some", condition, over, of)


def quantile(formula: Operand, level: Operand, over: Where = None) -> Aggregate:
    """Returns the quantile of a formula over the tokens of one element of `over`, without a gradient.

    `level` is a number from 0 to 1, or a Parameter with bounds in that range. Between two values the quantile is
    interpolated linearly, as `torch.quantile` does by default.
    """
    made = _aggregate("quantile", formula, over, None, level)
    if not is_fraction(made.level):
        given = made.level
        found = f"a Parameter {_bounds(given)}" if isinstance(given, Parameter) else ""
        raise SpecError(f"the level of a quantile is {given}", required=LEVEL, found=found, remedy=FRACTION)
    return made


LEVEL = "a number from 0 to 1, or a Parameter whose bounds lie from 0 to 1, the same for both channels"
FRACTION = "declare the level as Parameter('level', default=0.5, upper=1)"


def _bounds(p: Parameter) -> str:
    if p.per_channel:
        return "with a value for each channel"
    return f"from {'-inf' if p.lower is None else f'{p.lower:g}'} to {'inf' if p.upper is None else f'{p.upper:g}'}"


def is_fraction(level: Expression | None) -> bool:
    """Whether the level of a quantile lies from 0 to 1 for all values that it can have."""
    if isinstance(level, Parameter):
        return not level.per_channel and all(end is not None and 0 <= end <= 1 for end in (level.lower, level.upper))
    return isinstance(level, Number) and 0 <= level.value <= 1


def total(summed: Attribute | Expression, over: Where = None, of: Where = None) -> Total | Aggregate:
    """Returns the sum of an attribute or a formula over one element of `over`. Arguments as in `mean`.

    The total of an attribute, without `of`, may be the measure of a kernel, as `count` may.
    """
    if not isinstance(summed, Expression):
        raise SpecError(f"total takes an Attribute or a formula, not {summed!r}", remedy="tokens are counted by count")
    if not isinstance(summed, Attribute) or of is not None:
        return _aggregate("total", summed, over, of)
    return Total(summed, None if over is None else of_strata(over, "total(..., over=)"))


def within(expression: Expression) -> Iterator[Expression]:
    """Yields the expression, and the formulas in its statistics and order, at any depth. They are read elsewhere."""
    yield expression
    for atom in atoms(expression):
        if isinstance(atom, Summary):
            yield from within(atom.formula)
        if isinstance(atom, Aggregate) and atom.level is not None:
            yield atom.level
        if isinstance(atom, Ordered):
            yield atom.discount


@overload
def atoms_within(expression: Expression) -> tuple[Expression, ...]: ...
@overload
def atoms_within(expression: Expression, kind: type[A], /, *more: type[A]) -> tuple[A, ...]: ...
def atoms_within(expression: Expression, *kinds: type[Expression]) -> tuple[Expression, ...]:
    """As `atoms`, of the expression and of the formulas in its statistics and order."""
    return tuple(dict.fromkeys(a for e in within(expression) for a in atoms(e, *kinds)))


def named(expressions: Iterable[Expression]) -> Iterator[object]:
    """Yields all that formulas name: strata, places, parameters, attributes, policies; in order, with repeats."""
    for atom in (a for read in expressions for a in atoms_within(read)):
        value = atom.attribute if isinstance(atom, Total) else atom
        yield value
        yield from (getattr(v, word, None) for v in (atom, value) for word in ("of", "over", "on", "stratum", "policy"))


def of_rows(expression: Expression, rows: Stratum) -> Expression:
    """Returns an expression whose statistics and order over the rows name the stratum of the rows."""

    def named(atom: Expression) -> Expression:
        return replace(atom, of=rows) if isinstance(atom, (Aggregate, Ordered)) and atom.of == ROWS else atom

    return rewritten(expression, lambda e: transform(e, named))


def rewritten(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Returns `change` of an expression and of all formulas in its statistics and order, the innermost first."""
    return change(rewritten_within(expression, change))


def rewritten_within(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Returns an expression with `change` of all formulas in its statistics and order, the innermost first."""

    def inside(atom: Expression) -> Expression:
        if isinstance(atom, Ordered):
            return replace(atom, formula=rewritten(atom.formula, change), discount=change(atom.discount))
        if not isinstance(atom, Aggregate):
            return atom
        level = None if atom.level is None else change(atom.level)
        return replace(atom, formula=rewritten(atom.formula, change), level=level)

    return transform(expression, inside)


def centred(formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS) -> Expression:
    """Returns a formula minus its mean over an element of `over`, in which every element of `of` counts once.

    - `over`: a stratum such as `prompt_group`.
    - `of`: a stratum. Default: the rows of the batch.
    - `leave_one_out=True`: subtracts the mean of the other elements (RLOO). An element without others is then an error.
    """
    return as_expression(formula) - mean(formula, over=over, of=of, others=_said("centred", leave_one_out))


def standardised(
    formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS, epsilon: Operand = 1e-6
) -> Expression:
    """Returns `centred(...)` divided by the standard deviation plus `epsilon` (GRPO); 0 if all values are equal.

    The deviation divides by `n - 1`, as in torch.std and the trainers.
    """
    spread = deviation(formula, over=over, of=of) + as_expression(epsilon, "the epsilon of standardised")
    return centred(formula, over, _said("standardised", leave_one_out), of) / spread


def _said(function: str, leave_one_out: object) -> bool:
    if not isinstance(leave_one_out, bool):
        raise SpecError(f"{function}(..., leave_one_out={leave_one_out!r})", required="True or False")
    return leave_one_out
