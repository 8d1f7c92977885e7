"""Matches the names of two losses before they are compared: as the user says, by name, by role, or by trial."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fibration.errors import ParameterError, SpecError, shown
from fibration.language.hierarchy import Hierarchy
from fibration.language.pairs import Given, pair
from fibration.language.roles import Match, declared_names, match_names, match_parameters, may_match, renamed
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.equivalent.search import FEW, difference
from fibration.laws.law import Proved

MOST = 24  # matches of parameters that are tried
_NAME = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class Matched:
    """Two hierarchies to compare. The second has the names of the first where `pairs` says so.

    `pairs`: names of the first hierarchy, each with the name that the second had. `given`: what `pair` takes.
    """

    first: Hierarchy
    second: Hierarchy
    given: Given
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(f"{a} ↔ {b}" for a, b in self.pairs)

    def under(self, match: Match) -> Matched:
        """Returns the hierarchies with further names matched: the name in the first, by the name in the second."""
        taken = declared_names(self.second) - set(match)
        ties = {a: b for b, a in match.items() if a in taken}  # the name has another meaning there
        second = renamed(self.second, {b: a for b, a in match.items() if a not in taken})
        order = [*self.first.parameters]  # other names come first
        pairs = sorted(((a, b) for b, a in match.items()), key=lambda p: order.index(p[0]) if p[0] in order else -1)
        return Matched(self.first, second, {**self.given, **ties}, (*self.pairs, *pairs))

    @property
    def alone(self) -> tuple[list[str], list[str]]:
        """The parameters of each hierarchy that have no partner and that the user did not mention."""
        said = set(self.given) | {n for v in self.given.values() if isinstance(v, str) for n in _NAME.findall(v)}
        mine, yours = self.first.parameters, self.second.parameters
        return [n for n in mine if n not in said and n not in yours], [
            n for n in yours if n not in said and n not in mine
        ]


def match_by_role(first: Hierarchy, second: Hierarchy, given: Given, match: Mapping[str, str]) -> Matched:
    """Returns the hierarchies with all names matched that have one role, and those that `match` says."""
    found = _as_said(Matched(first, second, given), match)
    mentioned = {*match, *match.values()}
    names = match_names(found.first, found.second)
    found = found.under({b: a for b, a in names.items() if not {a, b} & mentioned})
    mine, yours = found.alone
    if mine and yours:
        found = found.under(match_parameters(found.first, found.second, mine, yours))
    return found


def _as_said(found: Matched, match: Mapping[str, str]) -> Matched:
    said: Match = {}
    ties: dict[str, str] = {}
    first, second = found.first, found.second
    for one, other in match.items():
        ways = ((a, b, _kind(first, a), _kind(second, b)) for a, b in ((one, other), (other, one)))
        fits = next(((a, b, kind) for a, b, kind, theirs in ways if kind and kind == theirs), None)
        if fits is None:
            named = (f"{', '.join(sorted(declared_names(h)))} in '{h.name}'" for h in (first, second))
            raise ParameterError(
                f"the names '{one}' and '{other}' cannot be matched",
                required="a name of each loss: two parameters, strata, policies or attributes",
                found="; ".join(named),
                remedy=f"--match A=B, with A of '{first.name}' and B of '{second.name}', of one kind",
            )
        a, b, kind = fits
        if kind == "parameter":
            ties[a] = b
        elif a in declared_names(second) and a != b:
            raise SpecError(
                f"'{second.name}' has another '{a}', so its '{b}' cannot be that of '{first.name}'",
                required="a name that the other loss does not use",
                remedy=f"rename '{a}' in '{second.name}'",
            )
        else:
            said[b] = a
    matched = found.under(said)
    return replace(matched, given={**ties, **found.given}, pairs=(*matched.pairs, *ties.items()))


def _kind(h: Hierarchy, name: str) -> str:
    """The kind of thing that a hierarchy calls by a name; '' if nothing."""
    if name in h.parameters:
        return "parameter"
    if name in h.attributes:
        return "attribute"
    if name in h.policies:
        return "policy" if h.policies[name].is_passed else ""
    return "stratum" if name in declared_names(h) else ""


def match_by_trial(found: Matched, when: object) -> Matched:
    """Returns the hierarchies with the parameters matched that no role matches, if one match makes the losses equal.

    Raises SpecError if there are several matches, and no one of them alone makes them equal.
    """
    mine, yours = found.alone
    if not (mine and yours):
        return found
    options = list(itertools.islice(_options(found, mine, yours), MOST + 1))
    if len(options) == 1:
        return found.under(options[0])
    equal: list[Matched] = []
    for option in options[:MOST]:
        tried = found.under(option)
        if difference(pair(tried.first, tried.second, when, tried.given), FEW, any_size=True) is None:
            equal.append(tried)
    if len(equal) == 1 and len(options) <= MOST:
        return equal[0]
    for tried in equal:
        if isinstance(same_loss(pair(tried.first, tried.second, when, tried.given)), Proved):
            return tried
    raise _not_unique(found, mine, yours, len(options))


def _options(found: Matched, mine: Sequence[str], yours: Sequence[str]) -> Iterator[Match]:
    """Yields the matches of all parameters of the hierarchy that has fewer of them."""
    one, other = found.first.parameters, found.second.parameters
    few, many = sorted((mine, yours), key=len)
    for chosen in itertools.permutations(many, len(few)):
        match = dict(zip(yours, chosen, strict=True)) if few is yours else dict(zip(chosen, mine, strict=True))
        if all(may_match(one[a], other[b]) for b, a in match.items()):
            yield match


def _not_unique(found: Matched, mine: Sequence[str], yours: Sequence[str], n: int) -> SpecError:
    first, second = found.first, found.second
    number = f"more than {MOST} matches are possible" if n > MOST else f"{n} matches are possible"
    if not n:
        number = "no two of them have values in common, and names that agree"
    elif n <= MOST:
        number += ", and none of them could be shown to make the losses equal"
    fits = ((a, b) for a in mine for b in yours if may_match(first.parameters[a], second.parameters[b]))
    a, b = next(fits, (mine[0], yours[0]))
    return SpecError(
        f"'{first.name}' and '{second.name}' use different parameters",
        required="parameters of the same names or roles, or more of them in one of the two",
        found=f"{', '.join(mine)} only in '{first.name}'; {', '.join(yours)} only in '{second.name}'; {number}",
        remedy=f"say which are one: --match {a}={b}, or match={shown({a: b})}; or fix one to a number, "
        f"--param {a}=0.1; or compare the losses --at-defaults",
    )
