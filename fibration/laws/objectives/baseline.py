"""Baselines: an advantage is the reward from the token on, less a baseline that does not read what was sampled there.

Then the expected update is the gradient of the expected reward, times a factor. The baseline may read everything else:
other rows, earlier tokens, a critic's values. If the token's own reward enters beyond a fixed share, as in a division
by a deviation, the gradient is another one, however many samples are drawn.

The proof splits an advantage into parts: a share of the reward of the token and of each later one; other values of its
own row; values of other rows and of the prefix. The arguments of a product, a quotient or another function must be of
one kind. Then the parts add up, and everything but the reward is a baseline, or an added reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import BATCH, Count, Stratum, Summary, at, read_at, reward
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import NOT_NEGATIVE, POSITIVE
from fibration.language.outline import whole_batch
from fibration.language.statistics import ONE, Aggregate, Ordered, atoms_within
from fibration.language.sympy_bridge import ATOM_OF, from_sympy, show, symbol, to_sympy, vanishes
from fibration.language.traversal import desugar
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.baseline_search import not_its_own, raised
from fibration.laws.objectives.one_other_reward import rises
from fibration.laws.objectives.samples import AHEAD, EVERYWHERE, HERE, OTHERS, ROW, Place, Reads, Samples, of_tokens
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.claim import Claim
from fibration.laws.subject import Subject

STATEMENT = (
    "an advantage is the reward from the token on, less what does not depend on what was sampled there, times "
    "κ: A = κ·(R - b). κ is given, the same at all tokens of a row, nowhere below 0, above 0 where rows are compared"
)
REMEDY = (
    "take off what is not of its own sample: centred(reward, over={group}, leave_one_out=True), or an attribute; "
    "divide by no statistic of rewards, multiply by nothing that changes along a row; or gives_up={{'baseline': 'why'}}"
)

WEAKER = (
    "where all other rewards are alike, and so is everything else: a reward above the others gives no less advantage "
    "than the same reward, one below gives no more, and they do not all give the same"
)
REMEDY_OF_WEAKER = "let the advantage rise with reward, as reward - b does, or (reward - b)/s with s above 0"


def decide_baseline(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    if h.advantages is None:
        return
    formula = at(h.advantages, h.leaves[0])
    if (argument := _argument(h, formula)) is not None:
        yield proved("advantages", argument)
        return
    witness = not_its_own(h, desugar(formula), of_tokens(h, formula))
    unknown = "" if witness else ", which was not shown to be a reward less a baseline"
    coarser = whole_batch(h).coarser(h.rows)
    group = next((str(a.over) for a in atoms_within(h.advantages, Summary) if a.over in coarser), BATCH)
    decision = unproved("advantages", f"A = {h.advantages}{unknown}", REMEDY.format(group=group), witness)
    yield following(decision, subject.failure("objective", "advantages"))


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up: an advantage rises with its own reward.

    A reward above or below the others is compared with an equal reward; two rewards above are not compared.
    """
    h = subject.hierarchy
    if h.advantages is None:
        return
    formula = at(h.advantages, h.leaves[0])
    rising = rises_onward(h, formula) or (None if of_tokens(h, formula) else rises(h, formula))
    steps = raised(h, desugar(formula))
    if rising:
        found = next((w for step, w in steps if step > 0), None)
        if found is not None:
            yield proved("advantages", f"{WEAKER}: {found}")
            return
    wrong = next((w for step, w in steps if step < 0 or (rising is False and not step)), None)
    yield unproved("advantages", f"A = {h.advantages}", REMEDY_OF_WEAKER, wrong, required=WEAKER)


# ---------------------------------------------------------------- proofs


def _argument(h: Hierarchy, formula: Expression) -> str | None:
    """Why an advantage is `κ·(R - b)`; None if that was not shown.

    `κ` is one number for all tokens of a row, at least 0, and above 0 where rows are compared.
    """
    by_token = of_tokens(h, formula)
    parts = _Taken(h, by_token).parts(desugar(formula), HERE)
    if parts is None or not vanishes(parts.now - parts.later) or _is_sampled(h, parts.now):
        return None
    try:
        kappa = from_sympy(parts.now)
    except SpecError:  # some results of sympy have no written form
        return None
    alone, share = Assumptions(whole_batch(h), h.assume, h.rows), sympy.factor(parts.now)
    words = "A = R - b" if share == 1 else f"A = κ·(R - b), κ = {show(share)}"
    if not Claim(kappa, alone, POSITIVE).is_shown:
        if not (Claim(kappa, alone, NOT_NEGATIVE).is_shown and Claim(kappa, compared(h), POSITIVE).is_shown):
            return None
        words += ", which is above 0 where rows are compared with others"
    of = "the rewards from the token on" if by_token else "the reward of its row"
    of += ", with what is added of its own sample" if parts.own else ""
    return f"{words}, R {of}, and b is of nothing that was sampled there{Samples(h).granted(formula)}"


def rises_onward(h: Hierarchy, formula: Expression) -> bool:
    """Whether an advantage has a share above 0 of the token's reward, and at least 0 of later (discounted) rewards."""
    parts = _Taken(h, of_tokens(h, formula), discounted=True).parts(desugar(formula), HERE)
    if parts is None or _is_sampled(h, parts.now) or _is_sampled(h, parts.later.subs(dict.fromkeys(LEFT_OF, 1))):
        return False
    known = compared(h).with_signs({left: NOT_NEGATIVE for left in parts.later.free_symbols if left in LEFT_OF})
    return known.signs(parts.now) == POSITIVE and known.signs(parts.later) <= NOT_NEGATIVE


def compared(h: Hierarchy) -> Assumptions:
    """The assumptions on a row if every element that it lies over has several rows."""
    shape = whole_batch(h)
    several = {symbol(Count(h.rows, below)) - 1: POSITIVE for below in shape.coarser(h.rows)}
    return Assumptions(shape, h.assume, h.rows).with_signs(several)


def _is_sampled(h: Hierarchy, share: Any) -> bool:
    """Whether a share of rewards depends on what was sampled, or changes along a row."""
    read, samples = [ATOM_OF.get(s) for s in share.free_symbols], Samples(h)
    places = (a.over if isinstance(a, Ordered) else read_at(a) for a in read if a is not None)
    return any(place is not None and not samples.is_coarse(place) for place in places) or any(
        a is None or samples.of_atom(a, HERE) for a in read
    )


def _is_multiple(e: Expression) -> bool:
    """Whether a formula is a multiple of the reward, with nothing added."""
    if not isinstance(e, Apply):
        return e == reward or (isinstance(e, Number) and not e.value)
    found = [_is_multiple(a) for a in e.arguments]
    if e.operator in ("+", "-"):
        return all(found)
    return any(found[:1] if e.operator == "/" else found) if e.operator in ("*", "/", "neg") else False


NONE = sympy.Integer(0)


@dataclass(frozen=True)
class Parts:
    """`now` times the token's reward plus `later` times every later one. `own`: plus values of its own sample from the
    token on; `rest`: plus values of other rows, or of earlier tokens."""

    now: Any = NONE
    later: Any = NONE
    own: bool = False
    rest: bool = False

    @property
    def is_fixed(self) -> bool:
        return not (self.has_reward or self.own or self.rest)

    @property
    def has_reward(self) -> bool:
        return not (vanishes(self.now) and vanishes(self.later))

    def plus(self, other: Parts) -> Parts:
        own, rest = self.own or other.own, self.rest or other.rest
        return Parts(self.now + other.now, self.later + other.later, own, rest)

    def times(self, factor: Any) -> Parts:
        return replace(self, now=self.now * factor, later=self.later * factor)


@dataclass(frozen=True)
class _Taken:
    """Splits formulas into `Parts`, with rewards of tokens (`by_token`) or of rows.

    A formula is read at the token, at each of several tokens of its row (`now` is then the share of each one's own
    reward), at its row, or at an element that the row lies over.
    """

    h: Hierarchy
    by_token: bool
    discounted: bool = False  # later rewards may be discounted

    def parts(self, e: Expression, place: Place) -> Parts | None:
        if isinstance(e, Apply):
            return self._applied(e, place)
        if isinstance(e, Number):
            return Parts()
        if e == reward:
            one = sympy.Integer(1)
            if self.by_token:
                return Parts(one) if place.of is None else None
            return Parts(one, one) if place == HERE or place.of == self.h.rows else None
        read = Samples(self.h, self.by_token).of_atom(e, place)
        if (found := _plain(read)) is not None:
            return found
        if place.of is None and len(place.tokens) > 1:
            return None
        if isinstance(e, Ordered):  # a sum over all later tokens of the row; undiscounted, unless `discounted`
            is_sum = place == HERE and e.of is None and e.over == self.h.rows and (self.discounted or e.discount == ONE)
            found = self._each(e.formula) if is_sum and not e.is_forward else None
            left = _left(e.discount) if self.discounted else 1
            return None if found is None else replace(found, now=NONE, later=found.now * left)
        return self._gathered(e, place) if isinstance(e, Aggregate) else None

    def _applied(self, e: Apply, place: Place) -> Parts | None:
        found = [self.parts(a, place) for a in e.arguments]
        if any(f is None for f in found):
            return None
        known = [f for f in found if f is not None]
        first, last = known[0], known[-1]
        if e.operator in ("+", "-"):
            return first.plus(last if e.operator == "+" else last.times(-1))
        if e.operator == "neg":
            return first.times(-1)
        if e.operator == "*" and first.is_fixed:
            return last.times(self._given(e.arguments[0], place))
        if e.operator in ("*", "/") and last.is_fixed:
            given = self._given(e.arguments[1], place)
            return first.times(given if e.operator == "*" else 1 / given)
        if e.operator == "where":
            return self._chosen(*known)
        # the arguments of any other function have no reward and are of one kind
        own, rest = any(p.own for p in known), any(p.rest for p in known)
        return None if any(p.has_reward for p in known) or (own and rest) else Parts(own=own, rest=rest)

    def _given(self, e: Expression, place: Place) -> Any:
        return to_sympy(at(e, place.of or self.h.leaves[0]))

    def _chosen(self, condition: Parts, one: Parts, other: Parts) -> Parts | None:
        """The parts of `where`: both values have the same share of the reward, and the condition is of their kind."""
        if condition.has_reward or not (vanishes(one.now - other.now) and vanishes(one.later - other.later)):
            return None
        both = one.plus(other).plus(condition)
        if both.own and both.rest and not condition.is_fixed:
            return None
        return replace(both, now=one.now, later=one.later)

    def _gathered(self, a: Aggregate, place: Place) -> Parts | None:
        """The parts of a sum or a mean with the own reward, in which each element's formula reads its own sample."""
        if Samples(self.h).is_coarse(a.of):
            return self._of_rows(a)
        is_sum = a.kind == "total" and a.of is None and Samples(self.h).is_coarse(a.over)
        found = self._each(a.formula) if is_sum and self._is_apart(a.formula, self.h.rows) else None
        return None if found is None else replace(found, later=found.now, rest=True)

    def _each(self, formula: Expression) -> Parts | None:
        """A formula at every token of the row that a sum covers: a share of that token's reward."""
        found = self.parts(desugar(formula), Place(ROW, None, self.h.rows))
        if found is None or found.rest or not vanishes(found.later) or _is_sampled(self.h, found.now):
            return None
        return replace(found, own=found.own or not _is_multiple(desugar(formula)))

    def _of_rows(self, a: Aggregate) -> Parts | None:
        """The parts of a sum or a mean over rows, or over coarser elements, whose formula reads no other element."""
        assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
        if a.others or a.kind not in ("total", "mean") or not self._is_apart(a.formula, a.of):
            return None
        own = Place(ROW if a.of == self.h.rows else EVERYWHERE, a.of, a.of)
        inside = self.parts(desugar(at(a.formula, a.of)), own)
        if inside is None or _is_sampled(self.h, inside.now):
            return None
        share = 1 if a.kind == "total" else 1 / to_sympy(Count(a.of, a.over))
        return replace(inside.times(share), rest=True)

    def _is_apart(self, formula: Expression, of: Stratum) -> bool:
        """Whether a formula at one element reads nothing of other elements."""
        read = Samples(self.h, self.by_token).of(formula, Place(OTHERS, of, of))
        return not any(when != "others" for when, _ in read)


LEFT_OF: dict[Any, Any] = {}  # the discount whose powers a symbol stands for


@cache
def _left(discount: Expression) -> Any:
    """The symbol for the powers of a discount; each discount has its own. 1 if nothing is discounted."""
    if discount == ONE:
        return sympy.Integer(1)
    made = sympy.Dummy(f"what {discount} leaves", real=True)
    LEFT_OF[made] = discount
    return made


def _plain(read: Reads) -> Parts | None:
    """The parts of what reads no own reward and is of one kind: sampled from the token on, or anything else."""
    ahead = {what for when, what in read if when in AHEAD}
    beside = any(when == "others" or what == "reward" for when, what in read if when not in AHEAD)
    if "reward" in ahead or (ahead and beside):
        return None
    return Parts(own=bool(ahead), rest=bool(read) and not ahead)


LAW = Law("baseline", STATEMENT, decide_baseline, remainder=remainder)
