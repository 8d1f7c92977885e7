"""Pairs of hierarchies that read the same batches and parameters, so that their losses can be compared.

Strata, attributes and policies are matched by name. Parameters are matched by name, or as the user says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import networkx as nx

from fibration.errors import ParameterError, SpecError, located
from fibration.language.atoms import Count, Parameter, Stratum, Summary, advantage, reward
from fibration.language.conditions import Condition, Equal, OnPolicy, Same, condition, policies_of, strata_of
from fibration.language.declared import CURRENT, NAME, OLD, FrozenMap, Policy
from fibration.language.expressions import Expression, as_expression
from fibration.language.fixed import Here, put_parameters, with_parameters
from fibration.language.grammar import parse
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, atoms_within
from fibration.language.strata import Assumption, Fibration, Shape, uniform
from fibration.language.token_formulas import roots
from fibration.language.traversal import atoms

Given = Mapping[str, str | float | Fraction]


@dataclass(frozen=True)
class Pair:
    """Two hierarchies with matched names, and the conditions on the batches on which they are compared."""

    first: Hierarchy
    second: Hierarchy
    when: tuple[Condition, ...]
    fixed: Mapping[str, float | str]  # a number, or a formula in parameters of the other hierarchy
    ranges: tuple[Expression, ...] = ()  # keep each formula for a parameter within the parameter's bounds

    def __iter__(self) -> Iterator[Hierarchy]:
        yield from (self.first, self.second)

    @cached_property
    def shape(self) -> Shape:
        """The strata of both hierarchies, the rows and the batch, without fibrations that compose from others."""
        edges = dict.fromkeys((f.source, f.target) for h in self for f in whole_batch(h).fibrations)
        graph = nx.DiGraph(list(edges))
        if not nx.is_directed_acyclic_graph(graph):
            cycle = " → ".join(str(s) for s, _ in nx.find_cycle(graph))
            raise SpecError(
                f"'{self.first.name}' and '{self.second.name}' do not describe one batch: {cycle} lie over one another",
                required="strata of one name that lie over each other alike",
                remedy="give strata that are not the same different names",
            )
        kept = nx.transitive_reduction(graph)
        strata = dict.fromkeys(s for h in self for s in whole_batch(h).strata)
        return Shape(tuple(strata), tuple(Fibration(s, t, uniform()) for s, t in edges if kept.has_edge(s, t)))

    @cached_property
    def assume(self) -> tuple[Assumption, ...]:
        return tuple(dict.fromkeys(a for h in self for a in h.assume))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(dict.fromkeys(p for h in self for p in h.parameters.values()))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The user's conditions, the ranges, and two implied conditions:

        - an advantage that is read below the tokens has one value per element;
        - a mean of others has at least one other element.
        """
        leaves = self.first.leaves
        below = [s for h in self for s in h.order if advantage in atoms(h.gate(s))]
        below += [p.over for h in self for p in h.penalties.values() if p.over and advantage in atoms(p.formula)]
        of = [a for a in self._gathered if isinstance(a.of, Stratum)]
        below += [a.of for a in of if advantage in atoms(a.formula)]  # type: ignore[misc]
        same = [Equal(value=advantage, on=s) for s in below if s not in leaves]
        others = [a for a in of if isinstance(a, Aggregate) and a.others]
        several = [Count(a.of, a.over) > 1 for a in others if a.of and a.over]
        return tuple(dict.fromkeys((*self.when, *self.ranges, *same, *several)))

    @cached_property
    def _gathered(self) -> tuple[Summary, ...]:
        """Every statistic and order in the formulas of both hierarchies, at any depth."""
        read = (a for h in self for root in roots(h) for a in atoms_within(root.formula, Summary))
        return tuple(dict.fromkeys(read))

    @property
    def takes_rewards(self) -> bool:
        """Whether both hierarchies take rewards and compute advantages from them."""
        return self.first.advantages is not None

    @cached_property
    def has_rewards_of_rows(self) -> bool:
        """Whether rewards are read at rows, so that all tokens of a row have one reward."""
        of = (a for a in self._gathered if reward in atoms(a.formula) and a.of is not None)
        return any(a.of not in self.first.leaves for a in of)

    @cached_property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy that formulas or conditions name, without the current and the old policy."""
        named = [p for h in self for p in h.policies.values()]
        named += [p for c in self.conditions for p in policies_of(c)]
        return tuple(p for p in dict.fromkeys(named) if p.is_passed)

    @cached_property
    def same_policies(self) -> tuple[frozenset[str], ...]:
        """The sets of policies, by name, that the conditions make equal."""
        everyone = {CURRENT, OLD, *(p.name for p in self.policies)}
        if any(isinstance(c, OnPolicy) for c in self.conditions):
            return (frozenset(everyone),)
        found: list[frozenset[str]] = []
        for c in self.conditions:
            if isinstance(c, Same):
                names = frozenset({c.first.name, c.second.name})
                joined = names.union(*(g for g in found if g & names))
                found = [g for g in found if not g & names] + [joined]
        return tuple(found)

    @cached_property
    def is_on_policy(self) -> bool:
        """Whether every log ratio is 0."""
        return any({CURRENT, OLD} <= g for g in self.same_policies)


def check_hierarchies(first: object, second: object) -> None:
    """Raises SpecError for anything that is no hierarchy."""
    for h in (first, second):
        if not isinstance(h, Hierarchy):
            raise SpecError(f"{h!r} is no hierarchy", remedy="load one: fibration.load('gspo')")


def check_comparable(first: Hierarchy, second: Hierarchy) -> None:
    """Raises SpecError for two hierarchies that do not read the same batches."""
    check_strata(first, second)
    check_rewards(first, second)
    check_attributes(first, second)


def pair(first: Hierarchy, second: Hierarchy, when: object = None, parameters: Given | None = None) -> Pair:
    """Returns two hierarchies made comparable. Raises SpecError or ParameterError for a mismatch."""
    check_hierarchies(first, second)
    check_comparable(first, second)
    first, second, fixed, ranges = _matched(first, second, parameters or {})
    names: dict[str, object] = {s.name: s for h in (first, second) for s in whole_batch(h).strata}
    for h in (first, second):
        names |= {**h.policies, **h.parameters, **h.attributes}
    given = [when] if isinstance(when, (str, *Condition.__args__)) else when or ()
    if not isinstance(given, Iterable):
        raise SpecError(
            f"when={when!r}", required="a condition on batches, or several", remedy="when='advantage=trajectory'"
        )
    found = Pair(first, second, tuple(condition(c, names) for c in given), FrozenMap(fixed), ranges)
    known_policies = {Policy(CURRENT), Policy(OLD), *first.policies.values(), *second.policies.values()}
    for c in found.when:
        for p in policies_of(c):
            if p not in known_policies:
                known = ", ".join(sorted(map(repr, known_policies)))
                raise SpecError(f"the condition {c!r} names the policy {p!r}", required=f"one of {known}")
        for s in strata_of(c):
            if s not in found.shape.strata:
                known = ", ".join(x.name for x in found.shape.strata)
                raise SpecError(f"the condition {c!r} names the stratum {s}", required=f"one of {known}")
    return found


# ---------------------------------------------------------------- parameters


_MATCH = 'parameters={{"{mine}": "{yours}"}}, or --param {mine}={yours}; or fix one to a number'


def _matched(
    first: Hierarchy, second: Hierarchy, given: Given
) -> tuple[Hierarchy, Hierarchy, dict[str, float | str], tuple[Expression, ...]]:
    """Returns both hierarchies with matched parameters merged, the fixed values and formulas, and the ranges.

    A range keeps a formula within the bounds of the parameter that it replaces.
    """
    both = (first, second)
    written = _written_out(first, second, given)
    tied, fixed = _asked(first, second, {n: v for n, v in given.items() if n not in written})
    for a, b in tied:  # a parameter that is matched with a fixed one is fixed too
        fixed |= {b: fixed[a]} if a in fixed else {a: fixed[b]} if b in fixed else {}
    out = {(w.owner, n) for n, w in written.items()}
    free = [[n for n in h.parameters if n not in fixed and (k, n) not in out] for k, h in enumerate(both)]
    alone = [[n for n in names if n not in {t[k] for t in tied}] for k, names in enumerate(free)]
    read = [{str(a) for w in written.values() if w.owner != k for a in atoms(w.formula)} for k in (0, 1)]
    one, other = ([n for n in alone[k] if n not in read[k]] for k in (0, 1))
    check_alone("parameter", first, second, one, other, _MATCH)
    same = nx.Graph()
    same.add_nodes_from((k, n) for k, names in enumerate(free) for n in names)
    same.add_edges_from(((0, a), (1, b)) for a, b in (*tied, *((n, n) for n in alone[0] if n in alone[1])))
    renamed: list[dict[Expression, Expression]] = [{}, {}]
    taken: set[str] = set()
    for group in nx.connected_components(same.subgraph((k, n) for k, names in enumerate(free) for n in names)):
        members = sorted(group)
        found = [(both[k], both[k].parameters[n]) for k, n in members]
        _, made = functools.reduce(_both, found)
        if made.name in taken:  # another parameter of this name has another match
            made = made.model_copy(update={"name": f"{second.name}_{made.name}"})
        taken.add(made.name)
        places = {p.on for _, p in found if p.on is not None}
        for (k, _), (h, p) in zip(members, found, strict=True):
            own = made.model_copy(update={"on": p.on or _place_in_gates(h, p, places)})
            if p != own:
                renamed[k][p] = own
    values = [{h.parameters[n]: v for n, v in fixed.items() if n in h.parameters} for h in both]
    ranges: list[Expression] = []
    for name, w in written.items():
        p, k = both[w.owner].parameters[name], 1 - w.owner
        renamed[w.owner][p] = formula = put_parameters(w.formula, renamed[k], values[k], Here(both[k].shape))
        ranges += [formula > as_expression(p.lower)] if p.lower not in (None, -math.inf) else []
        ranges += [formula < as_expression(p.upper)] if p.upper not in (None, math.inf) else []
    hierarchies = []
    for h, change, numbers in zip(both, renamed, values, strict=True):
        with located(f"hierarchy '{h.name}'"):
            hierarchies.append(with_parameters(h, change, numbers))
    said: dict[str, float | str] = {n: str(w.formula) for n, w in written.items()}
    return hierarchies[0], hierarchies[1], said | {k: float(v) for k, v in fixed.items()}, tuple(ranges)


class _Written(NamedTuple):
    """A formula for a parameter: the owner (0 or 1), and the formula in parameters of the other hierarchy."""

    owner: int
    formula: Expression


def _written_out(first: Hierarchy, second: Hierarchy, given: Given) -> dict[str, _Written]:
    """Returns the parameters that are given as formulas, such as `bound = 1 + epsilon`.

    If both hierarchies have the parameter, it is the first hierarchy's.
    """
    both, made = (first, second), dict[str, _Written]()
    for name, text in given.items():
        if not isinstance(text, str) or NAME.match(text):
            continue
        owner = next((k for k, h in enumerate(both) if name in h.parameters), None)
        if owner is None:
            raise _refusal(f"there is no parameter '{name}' to write out", both)
        other = both[1 - owner]
        formula = parse(text, other.parameters, f"the formula of '{name}'")
        split = both[owner].parameters[name].per_channel
        wrong = [a for a in atoms(formula) if not isinstance(a, Parameter) or (a.per_channel and not split)]
        if wrong or formula.is_condition:
            raise ParameterError(
                f"the parameter '{name}' cannot be {formula}",
                required=f"a number made of parameters of '{other.name}'" + ("" if split else " that have one value"),
            )
        made[name] = _Written(owner, formula)
    return made


def _refusal(
    what: str, both: tuple[Hierarchy, Hierarchy], required: str = "a parameter of either loss"
) -> ParameterError:
    known = "; ".join(f"{', '.join(h.parameters) or 'none'} in '{h.name}'" for h in both)
    return ParameterError(what, required=required, found=known)


def _asked(
    first: Hierarchy, second: Hierarchy, given: Given
) -> tuple[list[tuple[str, str]], dict[str, float | Fraction]]:
    """Returns the pairs of matched parameters (first, second), and the fixed values by name."""
    mine, yours = first.parameters, second.parameters
    tied: list[tuple[str, str]] = []
    fixed: dict[str, float | Fraction] = {}
    for name, value in given.items():
        if not isinstance(value, str):
            if name not in mine and name not in yours:
                raise _refusal(f"there is no parameter '{name}' to fix", (first, second))
            fixed[name] = value
        elif name in mine and value in yours:
            tied.append((name, value))
        elif value in mine and name in yours:
            tied.append((value, name))
        else:
            what = f"the parameters '{name}' and '{value}' cannot be matched"
            raise _refusal(what, (first, second), "a number, or one parameter of each loss")
    return tied, fixed


def _both(one: tuple[Hierarchy, Parameter], other: tuple[Hierarchy, Parameter]) -> tuple[Hierarchy, Parameter]:
    """Returns one parameter with the values that both parameters allow."""
    (first, a), (second, b) = one, other
    if a.per_channel != b.per_channel:
        of = next(h.name for h, p in (one, other) if p.per_channel)
        raise SpecError(
            f"the parameters '{a.name}' of '{first.name}' and '{b.name}' of '{second.name}' are not alike",
            required="one value in both, or one per channel in both",
            found=f"one per channel in '{of}' alone",
            remedy="give one of them another name",
        )
    lower = max((p.lower for p in (a, b) if p.lower is not None), default=None)
    upper = min((p.upper for p in (a, b) if p.upper is not None), default=None)
    if lower is not None and upper is not None and not lower < upper:
        raise SpecError(
            f"no value is allowed for '{a.name}' in '{first.name}' and for '{b.name}' in '{second.name}'",
            required="ranges with something in common",
            found=f"{a.range} and {b.range}",
        )
    inside = all((lower is None or v > lower) and (upper is None or v < upper) for _, v in a.default_items())
    return first, a.model_copy(update={"lower": lower, "upper": upper, "default": a.default if inside else None})


def _place_in_gates(h: Hierarchy, p: Parameter, places: set[Stratum]) -> Stratum | None:
    """The one stratum of `places` whose gates alone read a parameter, so that each of its elements may have a value."""
    readers = [s for s in h.gates if p in atoms_within(h.gate(s))]
    alone = len(readers) == sum(p in atoms_within(root.formula) for root in roots(h)) == 1
    return readers[0] if alone and readers[0] in places else None


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
