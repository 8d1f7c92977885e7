"""First-order agreement on a subspace: for advantages that are constant on each element of a stratum (GSPO)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy

from fibration.language.atoms import BATCH, Stratum, advantage, gated
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import Signs
from fibration.language.places import home, whole_batch
from fibration.language.sympy_bridge import cancelled, from_sympy, symbol, to_sympy, vanishes
from fibration.laws import topic
from fibration.laws.kernels.orthogonality import LAW as ORTHOGONALITY
from fibration.laws.on_policy.at_ratio_one import starts
from fibration.laws.on_policy.levels_together import usable
from fibration.laws.signs.branches import TooManyCases, cases, merged
from fibration.laws.signs.neighbourhood import is_kinked
from fibration.laws.subject import Subject


def constant_on(coarse: Stratum) -> str:
    """The subject of a verdict on advantages that are constant on each element of a stratum."""
    return f"advantages constant on each {coarse}"


def span(subject: Subject, coarse: Stratum) -> str:
    """The gates that must be the identity, in words."""
    h = subject.hierarchy
    kept = [s for s in h.order if s not in h.shape.finer(coarse)]
    if len(kept) == 1:
        return f"the gate on {coarse} is the identity"
    if h.shape.is_chain:
        return f"the gates from {kept[0]} to {coarse} are the identity"
    return f"the gates on {', '.join(s.name for s in kept[:-1])} and {kept[-1]} are the identity"


def subspace(subject: Subject) -> Stratum | None:
    """The finest stratum for whose constant advantages first-order agreement holds; None if none was found.

    Every finer level must have `Σ μ_i A_i R'_i (K h(ρ))_i = c·A·μ·R'·Σ ρ = 0` over each element of the stratum. So on
    each element the level's gate must have one slope `c`, and `μ R'` one value. All other gates, also on strata that
    cross this one, must be the identity.
    """
    h = subject.hierarchy
    if not (subject.proved("reflecting") and all(s.is_true for s in starts(subject))):
        return None
    if any(v.law == "identity" and v.subject == "reference" for v in subject.verdicts):
        return None
    good = _finest(subject)
    if good is None or not (h.shape.is_tree or (usable(subject) and _residuals_vanish(subject, good))):
        return None
    slopes_of: dict[Stratum, list[Slope]] = {}
    for stratum, _, gate in gates(h):
        if stratum in h.shape.finer(good):
            near = subject.germ(gate, stratum)
            if not near.value_ok or near.slopes is None:
                return None
            slopes = [({d: v for d, v in held if is_constant(h, d, good)}, slope) for held, slope in near.slopes]
            if not (_are_one(slopes) and all(is_constant(h, slope, good) for _, slope in slopes)):
                return None
            slopes_of.setdefault(stratum, []).extend(slopes)
    if not all(map(_are_one, _summed(h, slopes_of))):
        return None
    shares = _shares(subject)
    if not shares or any(not vanishes(a - b) for leaf in shares[1:] for a, b in zip(leaf, shares[0], strict=True)):
        return None  # the share of a token must not depend on its leaf
    flat = [share for leaf in shares for share in leaf]
    finite = not any(share.has(sympy.zoo, sympy.nan, sympy.oo) for share in flat)
    return good if finite and all(is_constant(h, share, good) for share in flat) else None


Slope = tuple[dict[Any, Signs], Any]  # with conditions that hold on all of an element, or on none of it


def _are_one(slopes: list[Slope]) -> bool:
    """Whether slopes that can occur on one element are equal."""
    pairs = itertools.combinations(slopes, 2)
    return all(vanishes(s - t) for (held, s), (other, t) in pairs if merged(held, other) is not None)


def _summed(h: Hierarchy, slopes: dict[Stratum, list[Slope]]) -> Iterator[list[Slope]]:
    """Yields the slopes of strata whose residuals sum to 0 only together, such as the branches of a tree."""
    beside: dict[Stratum | None, list[Slope]] = {}
    for s in slopes:
        if h.shape.leaves_over(s) != set(h.leaves):
            target = h.shape.below(s)[0].target if h.shape.is_tree else None
            beside.setdefault(target, []).extend(slopes[s])
    yield from beside.values()


def _finest(subject: Subject) -> Stratum | None:
    """The finest stratum below all leaves such that every gate with another value or slope than 0 and 1 is finer."""
    h, shape = subject.hierarchy, subject.hierarchy.shape
    wrong = {s for s, _, g in gates(h) if not (subject.germ(g, s).value_ok and subject.germ(g, s).slope_ok)}
    below_all = (s for s in reversed(h.order) if shape.above(s) and shape.leaves_over(s) == set(h.leaves))
    return next((s for s in below_all if wrong <= set(shape.finer(s))), None)


def _residuals_vanish(subject: Subject, coarse: Stratum) -> bool:
    """Whether the residuals of finer strata sum to 0 over each element. On a tree this is the law of reflection."""
    h = subject.hierarchy
    found = {v.subject: v.status for v in ORTHOGONALITY.decide(subject)}
    return all(found.get(topic.residual(s)) == "proved" for s in h.shape.finer(coarse))


def _shares(subject: Subject) -> list[list[Any]]:
    """`μ·∂R/∂D` of every leaf and channel on policy; [] if the recovery has several branches."""
    h = subject.hierarchy
    weight = to_sympy(h.objective.spelled_out(h.leaves, h.rows))
    found = []
    for leaf in h.leaves:
        try:
            recovery = cases(h.with_mass(h.decomposition.recovery, leaf), subject.at(leaf))
        except TooManyCases:
            return []
        if len(recovery) > 1 or is_kinked(recovery[0].sympy()):
            return []
        zero = {symbol(gated(c)): 0 for c in h.decomposition.channels}
        found.append([weight * recovery[0].slope(g).subs(zero) for g in zero])
    return found


def is_constant(h: Hierarchy, value: Any, stratum: Stratum) -> bool:
    """Whether a value is constant on each element of a stratum, as the advantage is assumed to be."""
    allowed = {s.name for s in (stratum, *whole_batch(h).coarser(stratum))} | {BATCH}
    read = (from_sympy(s) for s in cancelled(sympy.together(value)).free_symbols)
    return all(atom == advantage or home(h, atom) in allowed for atom in read)
