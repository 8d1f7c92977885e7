"""The facts of weights, masks and normalisers: `second_moment`, and `normaliser`, what needs a whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from sympy import oo

from fibration.language.atoms import BATCH, Count, Stratum, Total, at
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.places import whole_batch
from fibration.language.report import Fact
from fibration.language.statistics import Aggregate, within
from fibration.language.traversal import atoms
from fibration.laws.proof.pieces import text
from fibration.laws.proof.subject import Subject
from fibration.laws.proof.weights import sampled_from, supremum

WHY_NOT = "no condition and no minimum bounds it, nor its square"


def second_moment(subject: Subject) -> Iterator[Fact]:
    """How large every weight is, and a bound of `E[w²]` under the policy that tokens are sampled from."""
    h = subject.hierarchy
    for weight in h.objective.weighed:
        most, name = supremum(h, weight), f"weight {weight}"
        if most == oo:
            yield Fact("second_moment", name, "w has no bound that is known", WHY_NOT)
            continue
        policy = sampled_from(h, weight)
        square = most if policy else sympy.expand(most**2)
        where = f" under {policy}" if policy else ""
        why = (
            f"w is at most a ratio to the probabilities of {policy}, whose mean there is 1" if policy else "w², at most"
        )
        yield Fact("second_moment", name, f"w is at most {text(most)}, E[w²] at most {text(square)}{where}", why)


def normaliser(h: Hierarchy) -> Fact:
    """Which numbers need the whole batch before any coefficient is known."""
    needed = list(dict.fromkeys(_needed(h)))
    if not needed:
        return Fact("normaliser", "objective", "nothing", "each row's coefficients are known without the others")
    why = "these are of the whole batch, and known before the coefficients of any row"
    return Fact("normaliser", "objective", "; ".join(needed), why)


def _needed(h: Hierarchy) -> Iterator[str]:
    mu = h.objective.spelled_out(h.leaves, h.rows)
    counts = [a for a in atoms(mu) if isinstance(a, (Count, Total)) and _is_beyond_rows(h, a.over)]
    kept = any(k.normaliser == "kept" for k in h.objective.kept)
    yield from (f"{a} of what is kept" if kept else str(a) for a in counts)
    read = [at(e, leaf) for e in h.objective.formulas for leaf in h.leaves] + [gate for _, _, gate in gates(h)]
    for a in (a for e in read for inner in within(e) for a in atoms(inner)):
        if isinstance(a, Aggregate) and _is_beyond_rows(h, a.over):
            yield str(a)


def _is_beyond_rows(h: Hierarchy, place: object) -> bool:
    """Whether an element may have tokens of several rows."""
    shape = whole_batch(h)
    if not isinstance(place, Stratum) or place not in shape.strata:
        return place == Stratum(BATCH)
    return place != h.rows and h.rows not in shape.coarser(place)
