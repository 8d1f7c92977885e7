"""Orthogonality: no residual has anything left of what a coarser stratum already gates, `π_{u*} ρ_v = 0` for `u > v`.

On a tree it follows from reflecting kernels. In a quiver `ρ_v = s_v - Σ_u c_u s_u` in intensive units
(`Shape.moebius`), and with `P_u = E_m[. | u]` the projections decide: `P_u P_w` is `P_w` for `w` coarser than `u`, and
`P_z` for two strata that cross in proportional frequencies within their one common coarsening `z`. Where that does not
settle it, a small quiver is looked for on which the sum is not 0.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from fibration.language.assumptions import Balanced
from fibration.language.atoms import Stratum, token_log_ratio
from fibration.language.exact import NoValue
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Verdict
from fibration.laws.law import Law
from fibration.laws.proof.subject import Subject
from fibration.laws.reflecting import subject_of
from fibration.laws.structure import common_coarsening
from fibration.laws.witness.batches import Concrete, Witness, concretes, lies, plural, rounding, settings, token_masses
from fibration.laws.witness.fibres import Cover

STATEMENT = "the residual of every stratum sums to 0 over what it lies over: π_* ρ = 0"
CROSSED = "the residual of every stratum sums to 0 over each coarser one: π_{u*} ρ_v = 0 for u > v"
UNNEEDED = "orthogonalise='projection' only where the residuals would not be orthogonal without"
MAX_TRIED, MAX_SIZE = 1000, 60
TELESCOPES = "π_*(σ - K π_*σ) = π_*σ - (Σ K)·π_*σ = 0, since ΣK = 1"


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    strata = list(dict.fromkeys(f.source for f in h.fibrations))
    if h.shape.is_tree:
        for s in strata:
            yield _on_tree(subject, s)
        return
    broken = _foundation(subject)
    without = [_proof(subject, s) for s in strata]
    if h.orthogonalise == "projection":
        if not broken and all(isinstance(p, str) for p in without):
            yield _unneeded(h)
            return
        without = [_by_projection(subject, s) for s in strata]
    for s, proof in zip(strata, without, strict=True):
        what = f"residual on {s}"
        if broken:
            yield Verdict(
                "orthogonality", what, "undecided", "", required=CROSSED,
                found=f"{broken.subject} fails '{broken.law}'", remedy=broken.remedy,
            )  # fmt: skip
        elif isinstance(proof, str):
            yield Verdict("orthogonality", what, "proved", proof)
        else:
            witness = proof.witness if h.orthogonalise else _search(h, s)
            yield Verdict(
                "orthogonality", what, "refuted" if witness else "undecided", "", required=CROSSED,
                found=proof.found, remedy=proof.remedy, counterexample=witness,
            )  # fmt: skip


def _on_tree(subject: Subject, s: Stratum) -> Verdict:
    """Siblings over one target are summed together: their kernels reflect together."""
    h = subject.hierarchy
    (f,) = h.shape.below(s)
    cover = next(c for c in h.shape.covers(f.target) if f in c)
    kernel = next(v for v in subject.verdicts if v.law == "reflecting" and v.subject == subject_of(cover))
    what = f"residual on {s}"
    if kernel.status == "proved":
        return Verdict("orthogonality", what, "proved", TELESCOPES + _jointly(cover))
    return Verdict(
        "orthogonality",
        what,
        kernel.status,
        "",
        required=STATEMENT,
        found="π_*(σ - K π_*σ) = (1 - ΣK)·π_*σ, which is not 0" + _jointly(cover),
        remedy=kernel.remedy,
        counterexample=kernel.counterexample,
    )


def _jointly(cover: Cover) -> str:
    return "" if len(cover) == 1 else f", summed over {' and '.join(f.source.name for f in cover)} together"


def _foundation(subject: Subject) -> Verdict | None:
    """What projections rest on: kernels that spread one measure."""
    return subject.first_failure("markov", "reflecting", "coherent")


def _unneeded(h: Hierarchy) -> Verdict:
    assumed = [a for a in h.assume if isinstance(a, Balanced)]
    why = f" with {', '.join(map(repr, assumed))}" if assumed else ": no two strata cross"
    drop = "drop orthogonalise"
    return Verdict(
        "orthogonality",
        "hierarchy",
        "refuted",
        "",
        required=UNNEEDED,
        found=f"a projection that is asked for where none is needed: every residual is orthogonal{why}",
        remedy=f"{drop}, or {' and '.join(map(repr, assumed))}" if assumed else drop,
    )


# ---------------------------------------------------------------- proofs


@dataclass(frozen=True)
class _Open:
    """Why a residual was not shown to be orthogonal, and a witness where every batch is one."""

    found: str
    remedy: str
    witness: Witness | None = None


def _proof(subject: Subject, v: Stratum) -> str | _Open:
    """The argument for one stratum, or what is missing: what is 0 over the nearest strata is so over all coarser."""
    h = subject.hierarchy
    shape = h.shape
    nearest = [u for u in shape.coarser(v) if not any(u in shape.coarser(w) for w in shape.coarser(v))]
    algebra = _Algebra(h, v)
    failed = [u for u in nearest if not algebra.vanishes(u)]
    if failed:
        return _missing(h, v, algebra.opaque(failed))
    joint = ""
    for u in nearest:
        if shape.leaves_over(u) != shape.leaves_over(v):
            # v is one branch over u: what lies beside it is summed with it, and must leave out the same
            covers = [c for c in shape.covers(u) if v in [f.source for f in c]]
            if not covers or any(shape.moebius(f.source) != shape.moebius(v) for c in covers for f in c):
                return _partly(h, v)
            joint = _jointly(covers[0])
    return algebra.line(nearest) + joint


class _Algebra:
    """Products of the projections of the strata coarser than one."""

    def __init__(self, h: Hierarchy, v: Stratum) -> None:
        self.h, self.shape, self.v, self.c = h, h.shape, v, h.shape.moebius(v)
        self.used: dict[tuple[Stratum, Stratum], tuple[Stratum, Balanced]] = {}

    def product(self, u: Stratum, w: Stratum) -> Stratum | tuple[Stratum, Stratum]:
        """The stratum onto which `P_u P_w` projects, or the pair where that is not known."""
        if w == u or w in self.shape.coarser(u):
            return w
        if u in self.shape.coarser(w):
            return u
        meets = self.shape.meets(u, w)
        if len(meets) == 1:
            for a in self.h.assume:
                if isinstance(a, Balanced) and self._implies(a, u, w, meets[0]):
                    self.used[u, w] = meets[0], a
                    return meets[0]
        return u, w

    def _implies(self, a: Balanced, u: Stratum, w: Stratum, meet: Stratum) -> bool:
        """Balance of two strata is balance of what they lie over, as long as they meet in the same stratum."""
        shape = self.shape
        if len({shape.leaves_over(s) for s in (u, w, a.first, a.second)}) > 1:
            return False
        for first, second in ((a.first, a.second), (a.second, a.first)):
            if u in (first, *shape.coarser(first)) and w in (second, *shape.coarser(second)):
                return shape.meets(first, second) == (meet,)
        return False

    def terms(self, u: Stratum) -> Counter[Stratum | tuple[Stratum, Stratum]]:
        """`P_u ρ_v = P_u - Σ_w c_w P_u P_w`, as multiples of projections."""
        total: Counter[Stratum | tuple[Stratum, Stratum]] = Counter({u: 1})
        for w, c in self.c.items():
            total[self.product(u, w)] -= c
        return total

    def vanishes(self, u: Stratum) -> bool:
        return not any(self.terms(u).values())

    def opaque(self, failed: list[Stratum]) -> list[tuple[Stratum, Stratum]]:
        return [p for u in failed for p, n in self.terms(u).items() if n and isinstance(p, tuple)]

    def line(self, nearest: list[Stratum]) -> str:
        residual = _sum([("s", 1), *((f"s_{w}", -c) for w, c in self.c.items())])
        u, coarser = nearest[0], self.shape.coarser(self.v)
        parts = [(f"P_{u}", 1)]
        for w, c in self.c.items():
            product = self.product(u, w)
            parts.append((f"P_{product}", -c))
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


def _missing(h: Hierarchy, v: Stratum, pairs: list[tuple[Stratum, Stratum]]) -> _Open:
    """Which crossing is to blame, and what would mend it."""
    shape = h.shape
    for u, w in pairs:
        if not shape.meets(u, w):
            found = f"{u} and {w} have no common coarsening: what they share is taken from a {v} twice"
            return _Open(found, common_coarsening(h, u, w))
    for u, w in pairs:
        if len(meets := shape.meets(u, w)) > 1:
            both = " and ".join(s.name for s in meets)
            found = f"{u} and {w} meet in {both}, which cross each other"
            remedy = f"add the stratum of pairs {'_'.join(s.name for s in meets)} between them, with a chain through it"
            return _Open(found, remedy)
    for u, w in pairs:
        if shape.leaves_over(u) != shape.leaves_over(w):
            return _partly(h, v)
    if not pairs:
        return _partly(h, v)
    crossed = list(dict.fromkeys(_ordered(h, p) for p in pairs))
    # the balance of finer strata is that of what they lie over
    finest = [p for p in crossed if not any(q != p and _covers(h, q, p) for q in crossed)]
    assume = ", ".join(f"balanced({a}, {b})" for a, b in finest)
    u, w = finest[0]
    cell = next((s for s in h.strata if s.name in (f"{u}_{w}", f"{w}_{u}")), None)
    chain = f"a stratum {u}_{w} with a chain through it" if cell is None else f"{cell} over one of {u} and {w} alone"
    return _Open(
        f"{', '.join(f'{a} and {b}' for a, b in finest)} may cross in frequencies that are not proportional",
        f"assume=[{assume}], which is checked on every index; or {chain}; or orthogonalise='projection'",
    )


def _ordered(h: Hierarchy, pair: tuple[Stratum, Stratum]) -> tuple[Stratum, Stratum]:
    first, second = sorted(pair, key=h.strata.index)
    return first, second


def _covers(h: Hierarchy, finer: tuple[Stratum, Stratum], coarser: tuple[Stratum, Stratum]) -> bool:
    """Whether balance of one pair is that of another besides."""
    shape = h.shape
    along = any(
        all(c in (f, *shape.coarser(f)) for f, c in zip(finer, turned, strict=True))
        for turned in (coarser, coarser[::-1])
    )
    return along and shape.meets(*finer) == shape.meets(*coarser)


def _partly(h: Hierarchy, v: Stratum) -> _Open:
    """A stratum that shares some coarser one with branches that do not share all of them."""
    shape = h.shape
    beside = next((u for u in shape.coarser(v) if shape.leaves_over(u) != shape.leaves_over(v)), v)
    only = [u for u in shape.coarser(v) if u not in shape.coarser(beside) and u != beside]
    crossed = only[0] if only else beside
    return _Open(
        f"more than a {v} lies over a {beside}, and only a part of it over a {crossed}",
        f"let everything over {beside} lie over {crossed} too, or take {crossed} out of the hierarchy",
    )


# ---------------------------------------------------------------- projection


def _by_projection(subject: Subject, v: Stratum) -> str | _Open:
    """Least squares on the strata coarser than crossed ones. What they cannot tell apart is refused on every index."""
    h = subject.hierarchy
    shape = h.shape
    crossed = [s for s in shape.strata if len(shape.below(s)) > 1]
    spanned = {u for s in crossed for u in shape.coarser(s)}
    up = shape.coarser(v)
    for u, w in itertools.combinations(up, 2):
        related = u in shape.coarser(w) or w in shape.coarser(u)
        if not related and not shape.meets(u, w):
            found = f"{u} and {w} have no common coarsening: no projection can tell their means apart"
            every = Witness(f"on every batch, a constant is one of {u} and one of {w}: the fit has not full rank")
            return _Open(found, common_coarsening(h, u, w), every)
    if v in spanned or v in crossed:
        if len({shape.leaves_over(s) for s in (v, *up)}) > 1:
            return _partly(h, v)
        return f"least squares: P_u ρ = 0 for u = {', '.join(s.name for s in up)}, on every index of full rank"
    proof = _proof(subject, v)
    return _partly(h, v) if spanned & {f.target for f in shape.below(v)} else proof


# ---------------------------------------------------------------- refutations


def _search(h: Hierarchy, v: Stratum) -> Witness | None:
    """A token such that the residuals of its density do not sum to 0 over some coarser element."""
    groups = list(_groups(h, v))
    if not groups:
        return None
    weights = [f.weight for f in h.fibrations]
    densities = [h.with_mass(e, leaf) for _, e in h.decomposition.densities[:1] for leaf in h.leaves]
    tolerance = rounding(*weights)
    for tried, concrete in enumerate(concretes(h, [*weights, *densities])):
        if tried > MAX_TRIED:
            return None
        if sum(concrete.size.values()) > MAX_SIZE:
            continue
        try:
            m = token_masses(h, concrete)
        except NoValue:
            continue
        if any(x <= 0 for values in m.values() for x in values):
            continue
        for leaf in h.leaves:
            for i in range(concrete.size[leaf]):
                unit, size = _unit(h, concrete, leaf, i)
                for u, members in groups:
                    sums = over(h, concrete, m, leaf, i, u, members)
                    bad = next((b for b, total in enumerate(sums) if abs(total) > tolerance), None)
                    if bad is not None:
                        of = " and ".join(s.name for s in members)
                        value = sums[bad] * size
                        text = f"with {unit} at one {leaf}, the residuals on {of} over {u} {bad + 1} sum to {value}"
                        text = f"{_layout(concrete, members[0])}{text}{settings(concrete)}"
                        values = {
                            "leaf": leaf.name, "token": i, "density": size, "stratum": [s.name for s in members],
                            "over": u.name, "element": bad, "sum": value,
                        }  # fmt: skip
                        return Witness(text, concrete, values)
    return None


def _groups(h: Hierarchy, v: Stratum) -> Iterator[tuple[Stratum, tuple[Stratum, ...]]]:
    """Over which coarser strata the residuals must sum to 0, and with those of which others beside it."""
    shape = h.shape
    for u in shape.coarser(v):
        if shape.leaves_over(u) == shape.leaves_over(v):
            yield u, (v,)
        elif edge := next((f for f in shape.below(v) if f.target == u), None):
            covers = [c for c in shape.covers(u) if edge in c]
            for cover in covers:
                yield u, tuple(f.source for f in cover)
            if not covers:
                yield u, (v,)


def over(
    h: Hierarchy,
    concrete: Concrete,
    m: dict[Stratum, list[Fraction]],
    leaf: Stratum,
    token: int,
    u: Stratum,
    members: tuple[Stratum, ...],
) -> list[Fraction]:
    """`π_{u*} ρ` for the density that is 1 on one token, on every element of `u`."""
    shape = h.shape

    def sigma(s: Stratum, e: int) -> int:
        return int(s in (leaf, *shape.coarser(leaf)) and concrete.below(leaf, token, s) == e)

    sums = [Fraction(0)] * concrete.size[u]
    for v in members:
        c = shape.moebius(v)
        for a in range(concrete.size[v]):
            base = {w: concrete.below(v, a, w) for w in c}
            pulled = (n * m[v][a] / m[w][base[w]] * sigma(w, base[w]) for w, n in c.items())
            sums[concrete.below(v, a, u)] += sigma(v, a) - sum(pulled, Fraction(0))
    return sums


def _unit(h: Hierarchy, concrete: Concrete, leaf: Stratum, i: int) -> tuple[str, Fraction]:
    """The density of a token with log ratio 1, if it is rational; else a density of 1."""
    density = h.with_mass(h.decomposition.densities[0][1], leaf)
    if not rounding(density):
        try:
            return "log ratio 1", concrete.value(density, leaf, i, {token_log_ratio: Fraction(1)})
        except NoValue:
            pass
    return "density 1", Fraction(1)


def _layout(concrete: Concrete, stratum: Stratum) -> str:
    """Where the elements in question lie."""
    crossed = [s for s in (stratum, *concrete.shape.coarser(stratum)) if len(concrete.shape.below(s)) > 1]
    text = next((t for s in crossed if (t := lies(concrete, s))), "")
    if not text:
        return f"{plural(stratum.name)}: {concrete.size[stratum]}; " if concrete.size[stratum] > 1 else ""
    return f"{text}; "


LAW = Law("orthogonality", STATEMENT, decide)
