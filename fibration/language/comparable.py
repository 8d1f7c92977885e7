"""Checks that the losses of two hierarchies can be compared: strata, rewards, attributes. `pairs.py` uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fibration.errors import SpecError
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Keep

_ONE_NAME = "say that they are one: --match {mine}={yours}; or give it one name in both"


def check_strata(first: Hierarchy, second: Hierarchy) -> None:
    for what, stratum, strata in (
        ("tokens", "token", [h.leaves for h in (first, second)]),
        ("rows", "row", [(first.rows,), (second.rows,)]),
    ):
        one, other = (", ".join(sorted(s.name for s in names)) for names in strata)
        if one != other:
            raise SpecError(
                f"'{first.name}' and '{second.name}' use different {stratum} strata",
                required=f"the same strata as {what}, by name",
                found=f"{one}, and {other}",
                remedy="give the same stratum one name in both",
            )


def check_rewards(first: Hierarchy, second: Hierarchy) -> None:
    """Raises SpecError unless both losses take rewards, or both take advantages."""
    if (first.advantages is None) is not (second.advantages is None):
        made, taken = (first, second) if second.advantages is None else (second, first)
        raise SpecError(
            f"'{made.name}' makes its advantages of rewards, and '{taken.name}' is given advantages",
            required="two losses from rewards, or two from advantages",
            found=f"advantages={made.advantages} only in '{made.name}'",
            remedy="compare what they do with advantages: --ignore-advantages, or replace(advantages=None) of "
            f"'{made.name}'; or give '{taken.name}' the same formula",
        )


def check_attributes(first: Hierarchy, second: Hierarchy) -> None:
    for name in first.attributes.keys() & second.attributes.keys():
        a, b = first.attributes[name], second.attributes[name]
        if a != b:
            raise SpecError(
                f"'{first.name}' and '{second.name}' declare the attribute '{name}' differently",
                required="one declaration",
                found=f"{a.model_dump()} and {b.model_dump()}",
            )
    check_alone("attribute", first, second, first.attributes, second.attributes, _ONE_NAME)


def check_alone(
    what: str, first: Hierarchy, second: Hierarchy, one: Iterable[str], other: Iterable[str], remedy: str
) -> None:
    """Raises SpecError if each hierarchy has a name that the other lacks: one thing may have two names."""
    mine, yours = ([n for n in names if n not in set(others)] for names, others in ((one, other), (other, one)))
    if mine and yours:
        raise SpecError(
            f"'{first.name}' and '{second.name}' use different {what}s",
            required=f"{what}s of the same names, or more of them in one of the two",
            found=f"{', '.join(mine)} only in '{first.name}'; {', '.join(yours)} only in '{second.name}'",
            remedy=remedy.format(mine=mine[0], yours=yours[0]),
        )


Options = Mapping[str, Sequence[str]]  # by part of a config's loss, the options that decide it


class Part(NamedTuple):
    """A part of two losses, as each declares it; "" where one has no such part."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        return self.first != self.second


def declared(h: Hierarchy) -> dict[str, str]:
    """Returns the parts of a loss as they are declared, by name."""
    return {
        "strata": ", ".join(s.name for s in h.order),
        "the decomposition": str(h.decomposition),
        "the normaliser": f"μ = {h.objective.spelled_out(h.leaves, h.rows)}",
        "the estimator": h.objective.estimator,
        "weights": " and ".join(map(str, h.objective.weighed)) or "none",
        "conditions": " and ".join(_kept(k) for k in h.objective.kept) or "none",
        "penalties": ", ".join(str(p) for p in h.penalties.values()) or "none",
        "advantages": "given" if h.advantages is None else str(h.advantages),
        **{f"the gate on {s}": str(g) for s, g in h.gates.items()},
    }


def _kept(keep: Keep) -> str:
    return f"{keep.condition}{', of which μ counts the kept tokens' if keep.normaliser == 'kept' else ''}"


def declared_parts(first: Hierarchy, second: Hierarchy) -> tuple[Part, ...]:
    """Returns the parts of two losses, those of the first in front."""
    one, other = declared(first), declared(second)
    return tuple(Part(name, one.get(name, ""), other.get(name, "")) for name in {**one, **other})
