"""Projections onto strata, as far as their products are known for every batch. For proofs of `orthogonality`."""

from __future__ import annotations

from collections import Counter

from fibration.language.assumptions import Balanced
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy


class Projections:
    """Products of the projections `P_u = E_m[. | u]` of the strata coarser than one.

    `P_u P_w` is `P_w` for `w` coarser than `u`, and `P_z` for two strata that cross in proportional frequencies within
    their one common coarsening `z`.
    """

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
                if isinstance(a, Balanced) and self._implies(a, u, w, meets[0]):
                    self.used[u, w] = meets[0], a
                    return meets[0]
        return u, w

    def _implies(self, a: Balanced, u: Stratum, w: Stratum, meet: Stratum) -> bool:
        """Whether balance implies that of `u` and `w`: its strata lie over them, and meet in the same stratum."""
        shape = self.shape
        if len({shape.leaves_over(s) for s in (u, w, a.first, a.second)}) > 1:
            return False
        for first, second in ((a.first, a.second), (a.second, a.first)):
            if u in (first, *shape.coarser(first)) and w in (second, *shape.coarser(second)):
                return shape.meets(first, second) == (meet,)
        return False

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
