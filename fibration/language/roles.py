"""What two hierarchies declare, part by part, and what they declare under different names.

A match of parameters is a question, never an answer: the comparison of the losses is made under it. Parameters of one
name are always matched with each other, so two bounds that are exchanged stay a difference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from fibration.language.atoms import Parameter, Reading
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Keep
from fibration.language.report import Part
from fibration.language.statistics import atoms_within, rewritten
from fibration.language.traversal import desugar, transform

# Other spellings of the words of names.
_SPELLED = {
    "lo": "low", "lower": "low", "below": "low", "hi": "high", "upper": "high", "above": "high",
    "min": "least", "floor": "least", "max": "most", "cap": "most", "ceil": "most", "ceiling": "most",
    "neg": "negative", "minus": "negative", "pos": "positive", "plus": "positive", "eps": "epsilon", "coeff": "coef",
}  # fmt: skip
_SIDES = ("low", "high", "least", "most", "negative", "positive")
# Names with a word of one set are never matched with names that have a word of the other.
_OPPOSITE = (({"low", "least"}, {"high", "most"}), ({"negative"}, {"positive"}))
# Names that mean one thing, in the order in which they are looked for.
_SAME_POLICY = ({"reference", "ref"}, {"rollout", "engine", "sampler", "behaviour", "behavior"})
_SAME_STRATUM = ({"prompt_group", "group", "prompt"},)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

Match = dict[str, str]  # the name in the first hierarchy of each name in the second


def words(name: str) -> tuple[str, ...]:
    """Returns the words of a name, in one spelling: `clipHi` and `clip_upper` both have `clip` and `high`."""
    found = (w.lower() for w in _WORD.findall(name))
    return tuple(_SPELLED.get(w, w) for w in found)


def contradict(one: str, other: str) -> bool:
    """Whether one name says low and the other high, or one negative and the other positive."""
    a, b = (set(words(name)) for name in (one, other))
    return any(
        (a & x and b & y and not (a & y or b & x)) or (a & y and b & x and not (a & x or b & y)) for x, y in _OPPOSITE
    )


# ---------------------------------------------------------------- parameters


def may_match(one: Parameter, other: Parameter) -> bool:
    """Whether two parameters can be one: they have values in common, and their names do not contradict each other."""
    least = max((p.lower for p in (one, other) if p.lower is not None), default=None)
    most = min((p.upper for p in (one, other) if p.upper is not None), default=None)
    overlap = least is None or most is None or least < most
    return one.per_channel == other.per_channel and overlap and not contradict(one.name, other.name)


def match_parameters(first: Hierarchy, second: Hierarchy, mine: Sequence[str], yours: Sequence[str]) -> Match:
    """Returns the parameters among `mine` and `yours` that have one role. Both are names without a partner.

    A role is where a parameter stands in the loss; else the words of its name; else its side, such as low; else that it
    is the only one left. Two parameters of one role are left out.
    """
    left, other = list(mine), list(yours)
    found: Match = {}
    names = set(first.parameters) & set(second.parameters)
    stands = {id(h): _places(h, free, names) for h, free in ((first, left), (second, other))}
    roles: tuple[Callable[[Hierarchy, str], Hashable], ...] = (
        lambda h, n: stands[id(h)][n],
        lambda h, n: tuple(sorted(words(n))),
        lambda h, n: tuple(w for w in words(n) if w in _SIDES) or None,
        lambda h, n: "",
    )
    for role in roles:
        for a, b in _alike({n: role(first, n) for n in left}, {n: role(second, n) for n in other}):
            if may_match(first.parameters[a], second.parameters[b]):
                found[b] = a
                left.remove(a)
                other.remove(b)
    return found


def _alike(one: Mapping[str, Hashable], other: Mapping[str, Hashable]) -> Iterator[tuple[str, str]]:
    """Yields the names of one role, if each side has one of it."""
    for role in dict.fromkeys(one.values()):
        a, b = ([n for n, r in names.items() if r == role] for names in (one, other))
        if role is not None and len(a) == len(b) == 1:
            yield a[0], b[0]


def _places(h: Hierarchy, free: Sequence[str], known: set[str]) -> dict[str, Hashable]:
    """The formulas in which each free parameter stands, with it and all other parameters without their names."""
    formulas = [(place, desugared(e)) for place, e in formulas_of(h)]

    def at(name: str) -> Hashable:
        def anonymous(e: Expression) -> Expression:
            if not isinstance(e, Parameter):
                return e
            return Reading("this") if e.name == name else Reading(e.name if e.name in known else "other")

        read = (
            (p, e) for p, e in formulas if any(isinstance(a, Parameter) and a.name == name for a in atoms_within(e))
        )
        return frozenset(Counter((p, rewritten(e, lambda i: transform(i, anonymous))) for p, e in read).items())

    return {name: at(name) for name in free}


def desugared(e: Expression) -> Expression:
    """Returns a formula without sugar, inside its statistics too."""
    return rewritten(e, desugar)


def formulas_of(h: Hierarchy) -> Iterator[tuple[str, Expression]]:
    """Yields every formula with its place, in words that do not depend on names of parameters or penalties."""
    yield from ((f"kernel {f.source} {f.target}", f.weight) for f in h.fibrations)
    yield from ((f"gate {s}", g.expression) for s, g in h.gates.items())
    yield from ((f"density {channel}", e) for channel, e in h.decomposition.densities)
    yield from (("recovery", h.decomposition.recovery), ("scale", h.decomposition.scale))
    yield ("μ", h.objective.spelled_out(h.leaves, h.rows))
    yield from (("weight", w) for w in h.objective.weighed)
    yield from ((f"condition {k.normaliser}", k.condition) for k in h.objective.kept)
    if h.advantages is not None:
        yield ("advantages", h.advantages)
    for p in h.penalties.values():
        yield (f"penalty {p.over}", p.formula)
        if p.objective is not None:
            yield from (("penalty μ", e) for e in (p.objective.weight, *p.objective.formulas))


# ---------------------------------------------------------------- strata and policies


def match_names(first: Hierarchy, second: Hierarchy) -> Match:
    """Returns the strata and policies that are one thing under two names.

    Tokens are tokens and rows are rows, if each hierarchy has one stratum of tokens. Other names have a meaning of
    their own, and are matched if they are known to mean one thing, such as `ref` and `reference`.
    """
    found: Match = {}
    taken = [declared_names(h) for h in (first, second)]

    def match(a: str, b: str) -> None:
        if a != b and a not in taken[1] and b not in taken[0]:
            found[b] = a

    if len(first.leaves) == len(second.leaves) == 1:
        match(first.leaves[0].name, second.leaves[0].name)
    if first.rows not in first.leaves and second.rows not in second.leaves:
        match(first.rows.name, second.rows.name)
    policies = [[p.name for p in h.policies.values() if p.is_passed] for h in (first, second)]
    strata = [[s.name for s in (*h.strata, *h.groups)] for h in (first, second)]
    for (mine, yours), families in ((policies, _SAME_POLICY), (strata, _SAME_STRATUM)):
        for family in families:
            a, b = ([n for n in dict.fromkeys(names) if n in family] for names in (mine, yours))
            if len(a) == len(b) == 1:
                match(a[0], b[0])
    return found


def declared_names(h: Hierarchy) -> set[str]:
    """Returns the names of a hierarchy's strata, parameters, attributes and policies."""
    strata = {s.name for s in (*h.strata, *h.groups, h.rows)}
    strata |= {p.over.name for p in h.penalties.values() if p.over is not None}
    return {*strata, *h.parameters, *h.attributes, *h.policies}


# A name in a formula of a document: not in quotes, no keyword of an argument (`over=`), no function (`mean(`).
_NAME = re.compile(r'"[^"]*"|(?<![\w.])[A-Za-z]\w*\b(?!\s*(?:=(?!=)|\())')
_KEPT = ("name", "orthogonalise")  # entries of a document that name none of these


def renamed(h: Hierarchy, names: Mapping[str, str]) -> Hierarchy:
    """Returns a hierarchy in which everything called `old` is called `names[old]`, all at once.

    Two names may be exchanged. Gates and objectives keep the form in which they were written. Raises SpecError if a new
    name is taken, or is no name.
    """
    if all(old == new for old, new in names.items()):
        return h

    def text(value: str) -> str:
        return _NAME.sub(lambda m: names.get(m[0], m[0]), value)

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [put(v) for v in value]
        return {k: put(v) for k, v in value.items()} if isinstance(value, dict) else value

    document = h.model_dump(mode="json")
    made = {k: v if k in _KEPT else put(v) for k, v in document.items()}
    made["gates"] = {text(stratum): gate for stratum, gate in made["gates"].items()}
    made["gives_up"] = {text(key): why for key, why in document["gives_up"].items()}
    return Hierarchy.model_validate(made)


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
