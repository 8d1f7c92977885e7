"""Kernels on small concrete hierarchies: weights over an element, and sums of residuals of one token's density."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.language.atoms import Stratum, advantage, token_log_ratio
from fibration.language.exact import NoValue, TooLarge
from fibration.language.hierarchy import Hierarchy
from fibration.language.statistics import Ordered
from fibration.language.strata import Fibration, Shape
from fibration.language.traversal import atoms
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Place, places_of
from fibration.laws.batches.concrete import Concrete, Witness, lies, rounding, token_masses
from fibration.laws.batches.search import concretes, find
from fibration.laws.values.numerals import in_full, plural, rounded

MOST_ELEMENTS = 60  # of all strata together: sums are taken for each token and each coarser element
Cover = tuple[Fibration, ...]
Masses = dict[Stratum, list[Fraction]]
Fibre = list[tuple[Fibration, int, Fraction | None]]  # source elements over one target element; None: without a value


def weights(h: Hierarchy, cover: Cover) -> Iterator[tuple[Concrete, int, Fibre]]:
    """For every target element of the candidates: the elements over it, with their weights."""
    read = {f: list(atoms(f.weight)) for f in cover}
    # most elements of a regular hierarchy read the same
    known: dict[tuple[int, tuple[Fraction, ...]], Fraction | None] = {}
    for concrete in concretes(h, [f.weight for f in cover]):
        for b in range(concrete.size[cover[0].target]):
            fibre: Fibre = []
            try:
                for i, f in enumerate(cover):
                    for a in concrete.over(f.source, f.target, b):
                        key = i, tuple(concrete.atom(e, f.source, a) for e in read[f])
                        if key not in known:
                            known[key] = concrete.attempt(f.weight, f.source, a)
                        fibre.append((f, a, known[key]))
            except TooLarge:
                continue
            yield concrete, b, fibre


# ---------------------------------------------------------------- sums of residuals


def residuals_that_do_not_sum_to_0(h: Hierarchy, v: Stratum) -> Witness | None:
    """A witness: a token whose density has residuals that do not sum to 0 over some coarser element."""
    groups = list(_groups(h, v))
    if not groups:
        return None
    weights = [f.weight for f in h.fibrations]
    densities = [h.with_mass(e, leaf) for _, e in h.decomposition.densities[:1] for leaf in h.leaves]
    tolerance = rounding(*weights)

    def fails(concrete: Concrete) -> Witness | None:
        try:
            m = token_masses(h, concrete)
        except (NoValue, TooLarge):
            return None
        if any(x <= 0 for values in m.values() for x in values):
            return None
        shape = concrete.shape
        for leaf, i in places_of(h, concrete):
            for u, members in groups:
                sums = _sums(h.shape, concrete, m, (leaf, i), u, members)
                bad = next((b for b, total in enumerate(sums) if abs(total) > tolerance), None)
                if bad is not None:
                    unit, size = _unit(h, concrete, leaf, i)
                    of = " and ".join(s.name for s in members)
                    value = rounded(sums[bad] * size, tolerance)
                    # where the elements in question lie
                    crossings = (s for s in (members[0], *shape.coarser(members[0])) if s in shape.crossings())
                    where = next((t for s in crossings if (t := lies(concrete, s))), "")
                    if not where and concrete.size[members[0]] > 1:
                        where = f"{plural(members[0].name)}: {concrete.size[members[0]]}"
                    text = (
                        f"{f'{where}; ' if where else ''}with {unit} at one {leaf}, the residuals on {of} over "
                        f"{u} {bad + 1} sum to {in_full(value)}"
                    )
                    values = {
                        "leaf": leaf.name, "token": i, "density": size, "stratum": [s.name for s in members],
                        "over": u.name, "element": bad, "sum": value,
                    }  # fmt: skip
                    return Witness.on(concrete, text, values)
        return None

    batches = concretes(h, [*weights, *densities], caps.ORTHOGONALITY)
    return find((c for c in batches if sum(c.size.values()) <= MOST_ELEMENTS), fails)


def _groups(h: Hierarchy, v: Stratum) -> Iterator[tuple[Stratum, tuple[Stratum, ...]]]:
    """The coarser strata over which residuals must sum to 0, each with the strata that are summed together."""
    shape = h.shape
    for u in shape.coarser(v):
        if shape.leaves_over(u) == shape.leaves_over(v):
            yield u, (v,)
        elif edge := next((f for f in shape.below(v) if f.target == u), None):
            for cover in [c for c in shape.covers(u) if edge in c] or [(edge,)]:
                yield u, tuple(f.source for f in cover)


def _sums(
    shape: Shape, concrete: Concrete, m: Masses, token: Place, u: Stratum, members: tuple[Stratum, ...]
) -> list[Fraction]:
    """`π_{u*} ρ` for the density that is 1 on one token, on every element of `u`."""
    sums = [Fraction(0)] * concrete.size[u]
    below = {s: concrete.below(*token, s) for s in (token[0], *shape.coarser(token[0]))}
    for v in members:
        if v in below:
            sums[below[u]] += 1
        for w, c in shape.moebius(v).items():
            for a in range(concrete.size[v]) if w in below else ():
                if concrete.below(v, a, w) == below[w]:
                    sums[concrete.below(v, a, u)] -= c * m[v][a] / m[w][below[w]]
    return sums


def _unit(h: Hierarchy, concrete: Concrete, leaf: Stratum, i: int) -> tuple[str, Fraction]:
    """The density of a token with log ratio 1, if it is rational and reads only that token; else a density of 1."""
    density = h.with_mass(h.decomposition.densities[0][1], leaf)
    if not rounding(density) and not atoms(density, Ordered):
        value = concrete.attempt(density, leaf, i, {token_log_ratio: Fraction(1), advantage: Fraction(1)})
        if value is not None:
            return "log ratio 1", value
    return "density 1", Fraction(1)
