"""The counterexample to the claim that two losses are the same: a batch, and the coefficients of both losses on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from fibration.language.atoms import Stratum
from fibration.language.conditions import WHOLE
from fibration.language.pairs import Pair
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, Witness
from fibration.laws.values.duals import LogOf, value_of
from fibration.laws.values.numerals import rounded, shown

Token = tuple[Stratum, int]


def witness(
    pair: Pair,
    points: tuple[Point, Point],
    rewards: Sequence[Fraction],
    token: Token,
    mine: Mapping[Token, Fraction],
    yours: Mapping[Token, Fraction],
    off: Fraction,
) -> Witness:
    """The counterexample in words and in numbers: the batch, its policies, and its rewards if there are any."""
    point, other = points
    concrete, (leaf, element) = point.concrete, token
    first, second = (f"'{h.name}'" for h in pair)
    if first == second:
        first, second = "the first", "the second"
    what, given = ("log ratios", point.log_ratios) if point.ratios is None else ("ratios", point.ratios)
    named, of_policy = _probabilities(point)
    of_policies = "".join(f", {named} {_listed(v)} under {p}" for p, v in of_policy.items())
    attributes = "".join(f", {a.name} {_listed(v)}" for a, v in concrete.attributes.items())
    advantages = f"advantages {_listed(point.advantages)}"
    theirs = tuple(dict(zip(other.places, other.advantages, strict=True))[t] for t in mine)
    if rewards:
        who = f"both make the {advantages}"
        if theirs != point.advantages:
            who = f"{first} makes the {advantages} and {second} {_listed(theirs)}"
        advantages = f"rewards {_listed(rewards)}, of which {who}"
    text = (
        f"on {_place(pair, concrete)}{concrete.chosen}{attributes}: with {what} {_listed(given)}{of_policies} and "
        f"{advantages}, {leaf} {element + 1} has the coefficient {_readable(mine[token])} in "
        f"{first} and {_readable(yours[token])} in {second}"
    )
    values = {
        "tokens": [f"{s} {i + 1}" for s, i in mine], what.replace(" ", "_"): given, "advantages": point.advantages,
        "token": f"{leaf} {element + 1}", "coefficients": tuple(rounded(c, off) for c in mine.values()),
        "other_coefficients": tuple(rounded(yours[t], off) for t in mine),
    }  # fmt: skip
    if rewards:
        values |= {"rewards": tuple(rewards), "other_advantages": theirs}
    values |= {f"{named.replace('-', '_')} of {p}": v for p, v in of_policy.items()}
    return Witness(text, concrete, values)


def _probabilities(point: Point) -> tuple[str, dict[str, tuple[Fraction, ...]]]:
    """The tokens' probabilities under each policy if all are rational, else their log-probs; and which it is."""
    if all(isinstance(v, LogOf) for values in point.log_probs.values() for v in values):
        found = {p: tuple(v.ratio for v in values if isinstance(v, LogOf)) for p, values in point.log_probs.items()}
        return "probabilities", found
    return "log-probs", {p: tuple(map(value_of, values)) for p, values in point.log_probs.items()}


def _listed(values: Sequence[Fraction]) -> str:
    return ", ".join(map(_readable, values))


def _readable(value: Fraction) -> str:
    """A rational number, or six digits of a long one."""
    return str(value) if len(str(value)) <= 16 else shown(value)


def _place(pair: Pair, concrete: Concrete) -> str:
    """The batch in words, from the finest stratum that has one element, as all coarser strata have."""
    single = [s for s in pair.shape.order if concrete.size[s] == 1 and pair.shape.above(s)]
    whole = [s for s in single if all(concrete.size[u] == 1 for u in pair.shape.strata if s in pair.shape.finer(u))]
    return concrete.describe(whole[-1] if whole else WHOLE)
