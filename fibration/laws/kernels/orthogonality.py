"""Orthogonality: no residual contains what a coarser stratum already gates, `π_{u*} ρ_v = 0` for `u > v`.

On a tree it follows from reflecting kernels. In a quiver `ρ_v = s_v - Σ_u c_u s_u` in intensive units
(`Shape.moebius`), and the projections `P_u = E_m[. | u]` decide: `P_u P_w` is `P_w` for `w` coarser than `u`, and `P_z`
for two strata that cross in proportional frequencies within their one common coarsening `z`. If that proves nothing, a
search looks for a small quiver on which the sum is not 0.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from fibration.errors import an, listed
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.strata import Balanced, balanced
from fibration.laws import topic
from fibration.laws.batches.concrete import Witness
from fibration.laws.kernels.kernel_search import Cover, residuals_that_do_not_sum_to_0
from fibration.laws.law import Decision, Law, following, proved, refuted, undecided, unproved
from fibration.laws.remedies import Fix, Offers, Otherwise
from fibration.laws.structure import common_coarsening, edges, in_one_chain, through_pairs
from fibration.laws.subject import Subject

STATEMENT = "the residual of every stratum sums to 0 over what it lies over: π_* ρ = 0"
CROSSED = "the residual of every stratum sums to 0 over each coarser one: π_{u*} ρ_v = 0 for u > v"
UNNEEDED = "orthogonalise='projection' only where the residuals would not be orthogonal without"
APART = "no common coarsening"
TELESCOPES = "π_*(σ - K π_*σ) = π_*σ - (Σ K)·π_*σ = 0, since ΣK = 1"


def decide_orthogonality(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    strata = list(dict.fromkeys(f.source for f in h.fibrations))
    if h.shape.is_tree:
        yield from (_on_tree(subject, s) for s in strata)
        return
    # projections need kernels that spread one measure
    broken = subject.first_failure("markov", "reflecting", "coherent")
    found = [_by_algebra(h, s) for s in strata]
    if h.orthogonalise == "projection":
        if not broken and all(d.status == "proved" for d in found):
            yield _unneeded(h)
            return
        found = [_by_projection(h, s) for s in strata]
    for s, decision in zip(strata, found, strict=True):
        if broken:
            why = f"{broken.subject} fails '{broken.law}'"
            yield following(undecided(decision.subject, why, broken.remedy, CROSSED), broken)
        elif decision.status == "undecided" and not h.orthogonalise:
            witness = residuals_that_do_not_sum_to_0(h, s)
            yield replace(decision, status="refuted", witness=witness) if witness else decision
        else:
            yield decision


def _on_tree(subject: Subject, s: Stratum) -> Decision:
    """The decision from the verdict on the kernels. Siblings over one target are summed, and reflect, together."""
    shape = subject.hierarchy.shape
    (f,) = shape.below(s)
    cover = next(c for c in shape.covers(f.target) if f in c)
    kernel = subject.verdict("reflecting", topic.kernel(*cover))
    assert kernel is not None
    what = topic.residual(s)
    if kernel.status == "proved":
        return proved(what, TELESCOPES + _jointly(cover))
    found = "π_*(σ - K π_*σ) = (1 - ΣK)·π_*σ, which is not 0" + _jointly(cover)
    return following(unproved(what, found, kernel.remedy, kernel.counterexample), kernel)


def _jointly(cover: Cover) -> str:
    return "" if len(cover) == 1 else f", summed over {' and '.join(f.source.name for f in cover)} together"


def _unneeded(h: Hierarchy) -> Decision:
    assumed = [a for a in h.assume if isinstance(a, Balanced)]
    why = f" with {', '.join(map(repr, assumed))}" if assumed else ": no two strata cross"
    found = f"a projection that is asked for where none is needed: every residual is orthogonal{why}"
    fixes = [Fix("write orthogonalise=None", lambda: h.replace(orthogonalise=None))]
    if assumed:
        others = [a for a in h.assume if a not in assumed]
        fixes.append(Fix(f"leave out {listed(map(repr, assumed))}", lambda: h.replace(assume=others)))
    return refuted("hierarchy", found, tuple(fixes), None, UNNEEDED)


# ---------------------------------------------------------------- proofs


def _open(v: Stratum, fault: str, found: str, remedy: Offers, witness: Witness | None = None) -> Decision:
    """Why a residual was not shown to be orthogonal, with a witness if every batch is one."""
    return replace(unproved(topic.residual(v), found, remedy, witness, CROSSED), fault=fault)


def _by_algebra(h: Hierarchy, v: Stratum) -> Decision:
    """The argument for one stratum, or what is missing. What is 0 over the nearest strata is 0 over all coarser."""
    shape = h.shape
    nearest = [u for u in shape.coarser(v) if not any(u in shape.coarser(w) for w in shape.coarser(v))]
    algebra = Projections(h, v)
    failed = [u for u in nearest if not algebra.vanishes(u)]
    if failed:
        return _missing(h, v, algebra.opaque(failed))
    joint = ""
    for u in nearest:
        if shape.leaves_over(u) != shape.leaves_over(v):
            # v is one branch over u: the branches beside it are summed with it, and must subtract the same strata
            covers = [c for c in shape.covers(u) if v in [f.source for f in c]]
            if not covers or any(shape.moebius(f.source) != shape.moebius(v) for c in covers for f in c):
                return _partly(h, v)
            joint = _jointly(covers[0])
    return proved(topic.residual(v), algebra.line(nearest) + joint)


def _missing(h: Hierarchy, v: Stratum, pairs: list[tuple[Stratum, Stratum]]) -> Decision:
    """The crossing to blame, and the remedy."""
    shape = h.shape
    for u, w in pairs:
        if not shape.meets(u, w):
            found = f"{u} and {w} have no common coarsening: what they share is taken from {an(v)} twice"
            return _open(v, APART, found, common_coarsening(h, u, w))
    for u, w in pairs:
        if len(meets := shape.meets(u, w)) > 1:
            both = " and ".join(s.name for s in meets)
            found = f"{u} and {w} meet in {both}, which cross each other"
            return _open(v, "several common coarsenings", found, through_pairs(h, u, w, tuple(meets)))
    if not pairs or any(shape.leaves_over(u) != shape.leaves_over(w) for u, w in pairs):
        return _partly(h, v)
    crossing = list(dict.fromkeys((u, w) if h.strata.index(u) < h.strata.index(w) else (w, u) for u, w in pairs))
    # balance of finer strata implies that of the strata that they lie over
    finest = [p for p in crossing if not any(q != p and _implies(h, q, p) for q in crossing)]
    assume = [balanced(a, b) for a, b in finest]
    u, w = finest[0]
    return _open(
        v,
        "unbalanced",
        f"{', '.join(f'{a} and {b}' for a, b in finest)} may cross in frequencies that are not proportional",
        (
            Fix(f"assume={assume}, which is checked on every index", lambda: h.replace(assume=[*h.assume, *assume])),
            in_one_chain(h, u, w),
            Fix("orthogonalise='projection'", lambda: h.replace(orthogonalise="projection")),
        ),
    )


def _implies(h: Hierarchy, finer: tuple[Stratum, Stratum], coarser: tuple[Stratum, Stratum]) -> bool:
    """Whether balance of a pair implies balance of strata that it lies over, if both pairs meet in the same strata."""
    shape = h.shape
    along = any(
        all(c in (f, *shape.coarser(f)) for f, c in zip(finer, turned, strict=True))
        for turned in (coarser, coarser[::-1])
    )
    one_set = len({shape.leaves_over(s) for s in (*finer, *coarser)}) == 1
    return along and one_set and shape.meets(*finer) == shape.meets(*coarser)


def _partly(h: Hierarchy, v: Stratum) -> Decision:
    """The fault of a stratum that shares one coarser stratum with branches that do not share all of them."""
    shape = h.shape
    beside = next((u for u in shape.coarser(v) if shape.leaves_over(u) != shape.leaves_over(v)), v)
    only = [u for u in shape.coarser(v) if u not in shape.coarser(beside) and u != beside]
    lone = only[0] if only else beside
    return _open(
        v,
        "in part",
        f"more than {an(v)} lies over {an(beside)}, and only a part of it over {an(lone)}",
        (
            edges(h, [], removed=[f for f in h.fibrations if lone in (f.source, f.target)]),
            Otherwise(f"let everything over {beside} lie over {lone} too"),
        ),
    )


# ---------------------------------------------------------------- projection


def _by_projection(h: Hierarchy, v: Stratum) -> Decision:
    """As `_by_algebra`, by least squares on the strata coarser than crossed ones. Every index checks the rank."""
    shape = h.shape
    spanned = shape.under_crossings()
    up = shape.coarser(v)
    for u, w in itertools.combinations(up, 2):
        if not shape.comparable(u, w) and not shape.meets(u, w):
            found = f"{u} and {w} have no common coarsening: no projection can tell their means apart"
            every = Witness(f"on every batch, a constant is one of {u} and one of {w}: the fit has not full rank")
            return _open(v, APART, found, common_coarsening(h, u, w), every)
    if v in spanned or v in shape.crossings():
        if len({shape.leaves_over(s) for s in (v, *up)}) > 1:
            return _partly(h, v)
        every_u = ", ".join(s.name for s in up)
        return proved(topic.residual(v), f"least squares: P_u ρ = 0 for u = {every_u}, on every index of full rank")
    return _partly(h, v) if any(f.target in spanned for f in shape.below(v)) else _by_algebra(h, v)


# ---------------------------------------------------------------- products of projections


class Projections:
    """Products of the projections `P_u = E_m[. | u]` of the strata coarser than one, as far as they are known."""

    def __init__(self, h: Hierarchy, v: Stratum) -> None:
        self.h, self.shape, self.v, self.c = h, h.shape, v, h.shape.moebius(v)
        self.used: dict[tuple[Stratum, Stratum], tuple[Stratum, Balanced]] = {}

    def product(self, u: Stratum, w: Stratum) -> Stratum | tuple[Stratum, Stratum]:
        """The stratum onto which `P_u P_w` projects; the pair `(u, w)` if that is not known."""
        if w == u or w in self.shape.coarser(u):
            return w
        if u in self.shape.coarser(w):
            return u
        meets = self.shape.meets(u, w)
        if len(meets) == 1:
            for a in self.h.assume:
                if isinstance(a, Balanced) and _implies(self.h, (a.first, a.second), (u, w)):
                    self.used[u, w] = meets[0], a
                    return meets[0]
        return u, w

    def terms(self, u: Stratum) -> Counter[Stratum | tuple[Stratum, Stratum]]:
        """`P_u ρ_v = P_u - Σ_w c_w P_u P_w`, as multiples of projections."""
        found: Counter[Stratum | tuple[Stratum, Stratum]] = Counter({u: 1})
        for w, c in self.c.items():
            found[self.product(u, w)] -= c
        return found

    def vanishes(self, u: Stratum) -> bool:
        return not any(self.terms(u).values())

    def opaque(self, failed: list[Stratum]) -> list[tuple[Stratum, Stratum]]:
        return [p for u in failed for p, n in self.terms(u).items() if n and isinstance(p, tuple)]

    def line(self, nearest: list[Stratum]) -> str:
        residual = _sum([("s", 1), *((f"s_{w}", -c) for w, c in self.c.items())])
        u, coarser = nearest[0], self.shape.coarser(self.v)
        parts = [(f"P_{u}", 1), *((f"P_{self.product(u, w)}", -c) for w, c in self.c.items())]
        rest = f", and so over {', '.join(s.name for s in coarser if s != u)}" if len(coarser) > 1 else ""
        reasons = dict.fromkeys(f"P_{a} P_{b} = P_{z} by {a_!r}" for (a, b), (z, a_) in self.used.items() if a == u)
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"P_{u}({residual}) = {_sum(parts)} = 0{why}{rest}"


def _sum(terms: list[tuple[str, int]]) -> str:
    text = ""
    for name, n in terms:
        shown = name if abs(n) == 1 else f"{abs(n)}·{name}"
        text += f" {'-' if n < 0 else '+'} {shown}" if text else shown
    return text


LAW = Law("orthogonality", STATEMENT, decide_orthogonality)
