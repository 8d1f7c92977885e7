"""Sums over order within an element: over the tokens before a token of a trajectory, or the turns after a turn.

The prefix is the state in which a token was sampled. Elements are ordered by the places of their tokens in a row, or by
the positions that the index was given.
"""

from __future__ import annotations

from dataclasses import dataclass

from fibration.errors import SpecError
from fibration.language.atoms import Parameter, Summary, Where, of_strata, over_text
from fibration.language.expressions import Apply, Expression, Number, Operand, as_expression
from fibration.language.traversal import atoms

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

    def text(self) -> str:
        of = "" if self.of is None else f", of={self.of!r}"
        if self.is_position:
            return f"position({over_text(self.over)[2:]}{of})"
        discount = "" if self.discount == ONE else f", discount={self.discount}"
        return f"{self.direction}({self.formula}{over_text(self.over)}{discount}{of})"


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
