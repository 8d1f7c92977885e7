"""The shipped losses that a loss is, or from which it differs in the fewest parts.

A loss has seven parts: its gates (with kernels and decomposition), μ, the estimator, weights, conditions, advantages
and penalties. Parts that are one formula are equal. Other parts are compared inside the shipped loss: it is the same
loss with the part of the other one, or it is not. So a gate that is written by hand is recognised too.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration.errors import FibrationError, listed
from fibration.language.atoms import Parameter, Reading, token_log_ratio
from fibration.language.expressions import Expression, as_expression
from fibration.language.fixed import with_parameters
from fibration.language.gates import ratio_deviation, zero_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load, shipped
from fibration.language.objectives import Objective, Penalty
from fibration.language.operators import exp
from fibration.language.pairs import Pair, pair
from fibration.language.roles import contradict, desugared, renamed, words
from fibration.language.statistics import rewritten
from fibration.language.traversal import transform
from fibration.laws.equivalent.matching import Matched, match_by_role
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.equivalent.search import FEW, difference
from fibration.laws.law import Proved
from fibration.laws.signs.branches import at_most

COMMON = ("ppo", "dapo", "grpo", "gspo", "cispo", "reinforce")  # named first
MOST = 10  # shipped losses whose parts are compared by value
FAR = 3  # parts; a loss that differs in more of them is no candidate
RATIO, TWICE = exp(token_log_ratio), "with the ratio twice"
COMPARISONS = 1000  # in the proof that one part is the same


@dataclass(frozen=True)
class Neighbour:
    """A shipped loss beside another one.

    - `name`: the shipped loss.
    - `differences`: what differs, in words: `("with the ratio twice",)`. Empty if the losses are the same.
    - `match`: names of the other loss that stand for names of the shipped one, `("epsilon_low", "eps_lo")`.
    """

    name: str
    differences: tuple[str, ...] = ()
    match: tuple[tuple[str, str], ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        said = f"`{self.name}`" + (f" {listed(self.differences)}" if self.differences else "")
        return said + (f" ({', '.join(f'{a} ↔ {b}' for a, b in self.match)})" if self.match else "")


def nearest(hierarchy: Hierarchy, *, ignore_advantages: bool = False) -> list[Neighbour]:
    """Returns the shipped losses that a loss is; if there are none, those from which it differs in the fewest parts.

    Other defaults are no difference; two bounds with each other's defaults are. Needs seconds: a part is compared by
    value only in the shipped losses that are nearest by formula.
    Returns [] if each differs in more than three parts.
    """
    h = hierarchy.replace(advantages=None, gives_up={}) if ignore_advantages else hierarchy
    found = [c for s in _all_shipped(ignore_advantages) if (c := _candidate(s, h)) is not None]
    equal = [c for c in found if not c.differing]
    if not equal and all("gates" in c.differing for c in found):
        found = _with_equal_gates(found)
    near = sorted(
        (c for c in found if len(c.differing) <= FAR),
        key=lambda c: (len(c.differing), len(c.differing) != 1 or not any(_exchanged(c))),
    )
    most = max(len(near[0].differing), 1) + 1 if near else 0
    made = [_judged(c) for c in equal or near[:MOST] if len(c.differing) <= most]
    if not any(len(n.differences) <= 1 for n in made):
        made += [Neighbour(c.shipped.name, (TWICE,), c.matched.pairs) for c in found if _has_the_ratio_twice(c)]
    least = min((len(n.differences) for n in made), default=0)
    closest = (n for n in made if len(n.differences) == least)
    return sorted(closest, key=lambda n: not any("exchanged" in d for d in n.differences))


# ---------------------------------------------------------------- the survey


@functools.lru_cache(2)
def _all_shipped(ignore_advantages: bool) -> tuple[Hierarchy, ...]:
    found = (load(n) for n in sorted(shipped(), key=lambda n: (n not in COMMON, n)))
    return tuple(h.replace(advantages=None, gives_up={}) if ignore_advantages else h for h in found)


@dataclass(frozen=True)
class _Candidate:
    """A shipped loss, the other loss in its names, and the parts whose formulas differ."""

    shipped: Hierarchy
    matched: Matched
    differing: tuple[str, ...]

    @property
    def h(self) -> Hierarchy:
        return self.matched.second

    @functools.cached_property
    def unified(self) -> Hierarchy:
        """The other loss with the shipped loss's declarations of parameters, so that parts of both go together."""
        mine, theirs = self.h.parameters, self.shipped.parameters
        return with_parameters(self.h, {mine[n]: theirs[n] for n in mine if n in theirs and mine[n] != theirs[n]}, {})


def _candidate(s: Hierarchy, h: Hierarchy) -> _Candidate | None:
    if {x.name for x in s.leaves} != {x.name for x in h.leaves} and len(s.leaves) + len(h.leaves) > 2:
        return None
    try:
        matched = match_by_role(s, h, {}, {})
    except FibrationError:
        return None
    return _Candidate(s, matched, tuple(n for n, part in PARTS.items() if part(s) != part(matched.second)))


def _with_equal_gates(found: list[_Candidate]) -> list[_Candidate]:
    """The candidates, those whose gates are equal by value without "gates" among what differs."""
    by_gates: dict[Hashable, list[_Candidate]] = {}
    for c in found:
        by_gates.setdefault((gates_of(c.shipped), tuple(c.matched.pairs)), []).append(c)
    equal = {id(c) for cs in by_gates.values() if _gates_are_same(cs[0].shipped, cs[0].h) for c in cs}
    return [replace(c, differing=tuple(p for p in c.differing if p != "gates" or id(c) not in equal)) for c in found]


def _judged(c: _Candidate) -> Neighbour:
    if c.differing and (swapped := next(_exchanged(c), None)):
        return Neighbour(c.shipped.name, (swapped,), c.matched.pairs)
    parts = [p for p in c.differing if not _is_same_part(c, p)]
    said = [w for p in parts for w in (_words_of_gates(c) if p == "gates" else [_words(c, p)])]
    if not said and c.differing and not are_same(lambda: pair(c.shipped, c.h)):
        said = [f"but for {listed(c.differing)} together"]
    return Neighbour(c.shipped.name, tuple(said or _exchanged_defaults(c)), c.matched.pairs)


def _has_the_ratio_twice(c: _Candidate) -> bool:
    """Whether a score estimator is written as a ratio times a weight: the gradient has the ratio once more."""
    estimators = [h.objective.estimator for h in (c.shipped, c.h)]
    if estimators[0] != "score" or estimators[1] == "score" or {"advantages", "penalties"} & set(c.differing):
        return False
    twice = bare(c.shipped).replace(objective=c.shipped.objective.weigh(RATIO))
    return are_same(lambda: pair(twice, c.h))


def _gates_are_same(s: Hierarchy, h: Hierarchy) -> bool:
    """Whether two losses have equal gates by value: as ratio estimators with one μ, without weights and terms."""

    def alone(x: Hierarchy) -> Hierarchy:
        objective = Objective(s.objective.weight)
        return x.replace(objective=objective, penalties={}, advantages=None, gives_up={})

    return are_same(lambda: pair(alone(s), alone(h)))


def _is_same_part(c: _Candidate, part: str) -> bool:
    if part == "gates":
        return _gates_are_same(c.shipped, c.h)
    if part == "estimator" or not (_has(c.shipped, part) and _has(c.h, part)):
        return False
    return are_same(lambda: pair(light(bare(c.shipped)), light(with_part(c.shipped, c.unified, part))))


def _has(h: Hierarchy, part: str) -> bool:
    has = {"weights": h.objective.weighed, "conditions": h.objective.kept, "penalties": h.penalties}
    return h.advantages is not None if part == "advantages" else bool(has.get(part, True))


# ---------------------------------------------------------------- words


def _words(c: _Candidate, part: str) -> str:
    s, h = c.shipped, c.h
    if part == "μ":
        own, theirs = (x.objective.spelled_out(x.leaves, x.rows) for x in (h, s))
        return f"but for μ: {own} in place of {theirs}"
    if part == "estimator":
        return "with a score estimator" if h.objective.estimator == "score" else "without the score estimator"
    if part == "weights":
        return _words_of_weights(c)
    if part == "advantages":
        made, other = ("given ones" if x.advantages is None else str(x.advantages) for x in (h, s))
        return f"but for its advantages: {made} in place of {other}"
    if part == "conditions":
        pick = [[(k.condition, k.normaliser) for k in x.objective.kept] for x in (s, h)]
        lost, new = _apart(*([f"{e}" if n == "all" else f'{e} (normaliser="kept")' for e, n in p] for p in pick))
        return _gone_and_new("the mask of", lost, new)
    lost, new = _apart(*([str(p) for p in x.penalties.values()] for x in (s, h)))
    return _gone_and_new("the penalty", lost, new)


def _words_of_weights(c: _Candidate) -> str:
    lost, new = _apart(*([str(w) for w in x.objective.weighed] for x in (c.shipped, c.h)))
    # the ratio counts in a loss that is no score estimator with a gate that passes nothing
    counts = c.shipped.objective.estimator == "ratio" or any(str(g.expression) != "0" for g in c.shipped.gates.values())
    if counts and len(new) == 1 and not lost:
        (weight,) = (w for w in c.unified.objective.weighed if str(w) == new[0])

        def alone(weight: Expression) -> Hierarchy:
            base = light(bare(c.shipped)).replace(penalties={}, advantages=None)
            return base.replace(objective=Objective(base.objective.weight).score().weigh(weight))

        if are_same(lambda: pair(alone(weight), alone(RATIO))):
            return TWICE
    return _gone_and_new("the weight", lost, new)


def _words_of_gates(c: _Candidate) -> list[str]:
    s, h = c.shipped, c.h
    for a, b in _pairs(c):
        if contradict(a, b) and _gates_are_same(s, renamed(h, {a: b, b: a})):
            return [f"with {a} and {b} exchanged"]
    found = []
    if set(s.gates) != set(h.gates):
        levels = [", ".join(x.name for x in one.order) for one in (h, s)]
        found.append(f"but for its levels: {levels[0]} in place of {levels[1]}")
    apart = [x for x in s.gates if x in h.gates and plain(s.gate(x)) != plain(h.gate(x))]
    found += [f"but for the gate on {x}: {h.gates[x]} in place of {s.gates[x]}" for x in apart]
    kernels, _, *split = gates_of(s)
    own_kernels, _, *own_split = gates_of(h)
    found += ["but for its kernels"] if kernels != own_kernels and set(s.gates) == set(h.gates) else []
    found += (
        [f"but for the decomposition: {h.decomposition} in place of {s.decomposition}"] if split != own_split else []
    )
    return found or ["but for the gates"]


def _pairs(c: _Candidate) -> Iterator[tuple[str, str]]:
    """Two parameters that both losses have, low before high."""
    names = [n for n in c.shipped.parameters if n in c.h.parameters]
    return itertools.combinations(sorted(names, key=lambda n: bool({"high", "most"} & set(words(n)))), 2)


def _exchanged(c: _Candidate) -> Iterator[str]:
    """Two parameters of which each stands where the other one stands in the shipped loss."""
    for a, b in _pairs(c):
        if not contradict(a, b):  # places match other names
            continue
        swapped = renamed(c.h, {a: b, b: a})
        if all(part(swapped) == part(c.shipped) for part in PARTS.values()):
            yield f"with {a} and {b} exchanged"


def _exchanged_defaults(c: _Candidate) -> Iterator[str]:
    """Two parameters of a loss that have each other's defaults."""
    mine = {n: p.default for n, p in c.h.parameters.items()}
    theirs = {n: p.default for n, p in c.shipped.parameters.items()}
    for a, b in _pairs(c):
        if (
            theirs[a] != theirs[b]
            and None not in (theirs[a], theirs[b])
            and (mine[a], mine[b]) == (theirs[b], theirs[a])
        ):
            yield f"with the values of {a} and {b} exchanged"


def _apart(one: list[str], other: list[str]) -> tuple[list[str], list[str]]:
    """What is only in the first list, and what is only in the second."""
    first, second = Counter(one), Counter(other)
    return list((first - second).elements()), list((second - first).elements())


def _gone_and_new(what: str, lost: list[str], new: list[str]) -> str:
    if not lost and not new:
        return f"but for {what} tokens"
    if lost and new:
        return f"with {what} {listed(new)} in place of {listed(lost)}"
    return f"with {what} {listed(new)}" if new else f"without {what} {listed(lost)}"


# ---------------------------------------------------------------- the parts of a loss


def gates_of(h: Hierarchy) -> tuple[Any, ...]:
    split = h.decomposition
    return (
        frozenset((f.source, f.target, plain(f.weight)) for f in h.fibrations),
        frozenset((s, plain(h.gate(s))) for s in h.gates),
        frozenset((c, plain(e)) for c, e in split.densities),
        plain(split.recovery), plain(split.scale), h.orthogonalise,
    )  # fmt: skip


def _penalty(h: Hierarchy, p: Penalty) -> Hashable:
    o = p.objective
    own = None if o is None else (plain(o.spelled_out(h.leaves, h.rows)), _weights(o), _conditions(o))
    return plain(p.formula), own, p.over


def _weights(o: Objective) -> Hashable:
    return frozenset(Counter(map(plain, o.weighed)).items())


def _conditions(o: Objective) -> Hashable:
    return frozenset(Counter((plain(k.condition), k.normaliser) for k in o.kept).items())


@functools.lru_cache(4096)
def plain(e: Expression) -> Expression:
    """A formula without sugar, in which a parameter is its name, and what it has a value for."""

    def named(a: Expression) -> Expression:
        if not isinstance(a, Parameter):
            return a
        return Reading(f"parameter {a.name} on {a.on}, {'per channel' if a.per_channel else 'one'}")

    return rewritten(desugared(e), lambda inner: transform(inner, named))


PARTS: Mapping[str, Callable[[Hierarchy], Hashable]] = {
    "gates": gates_of,
    "μ": lambda h: plain(h.objective.spelled_out(h.leaves, h.rows)),
    "estimator": lambda h: h.objective.estimator,
    "weights": lambda h: _weights(h.objective),
    "conditions": lambda h: _conditions(h.objective),
    "advantages": lambda h: None if h.advantages is None else plain(h.advantages),
    "penalties": lambda h: frozenset(Counter(_penalty(h, p) for p in h.penalties.values()).items()),
}


def with_part(shipped_one: Hierarchy, h: Hierarchy, part: str) -> Hierarchy:
    """The shipped loss with one part of another loss. Raises SpecError if it cannot have it."""
    o, own = shipped_one.objective, h.objective
    changes: dict[str, dict[str, Any]] = {
        "gates": {
            "gates": h.gates, "fibrations": h.fibrations, "decomposition": h.decomposition,
            "orthogonalise": h.orthogonalise, "assume": h.assume,
        },
        "μ": {"objective": o.with_parts(weight=own.weight)},
        "estimator": {"objective": o.with_parts(estimator=own.estimator)},
        "weights": {"objective": o.with_parts(weighed=own.weighed)},
        "conditions": {"objective": o.with_parts(kept=own.kept)},
        "advantages": {"advantages": h.advantages, "groups": dict.fromkeys((*shipped_one.groups, *h.groups))},
        "penalties": {"penalties": h.penalties},
    }  # fmt: skip
    return bare(shipped_one).replace(**changes[part])


def bare(h: Hierarchy) -> Hierarchy:
    """A loss without the laws that it gives up: its other parts may have no subject for them."""
    return h.replace(gives_up={})


def times(h: Hierarchy, factor: Fraction) -> Hierarchy:
    """A loss with `factor` times the coefficients. Raises SpecError if `μ` would be negative."""
    k, o = as_expression(factor), h.objective

    def scaled(p: Penalty) -> Penalty:  # one without an objective has the loss's `μ`
        own = p.objective is None and p.over is None
        return p if own else p.model_copy(update={"formula": k * p.formula})

    penalties = {name: scaled(p) for name, p in h.penalties.items()}
    return bare(h).replace(objective=o.with_parts(weight=k * o.spelled_out(h.leaves, h.rows)), penalties=penalties)


def are_same(paired: Callable[[], Pair]) -> bool:
    """Whether two losses with matched names are proved the same, after a quick search for a difference.

    A pair that is refused when it is made is not the same. No clock decides: the search and the proof end after a
    number of steps.
    """
    try:
        both = paired()
        if difference(both, FEW, any_size=True) is not None:
            return False
        with at_most(COMPARISONS):
            return isinstance(same_loss(both), Proved)
    except (FibrationError, ArithmeticError):
        return False


def light(h: Hierarchy) -> Hierarchy:
    """A loss with the same weights and terms, and a gate that is proved at once: the gradient is `Σ μ·w·A·∇log π`."""
    if len(h.leaves) > 1:
        return h
    (leaf,) = h.leaves
    groups = dict.fromkeys(s for s in (*h.strata, *h.groups) if s not in (leaf, h.rows))
    objective = h.objective.with_parts(estimator="score")
    changes = {
        "gates": {leaf: zero_gate()},
        "fibrations": (),
        "decomposition": ratio_deviation(),
        "orthogonalise": None,
    }
    try:
        return h.replace(**changes, groups=groups, objective=objective, assume=(), gives_up={})
    except FibrationError:  # a stratum below the rows
        return h
