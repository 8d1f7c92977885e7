"""Three facts: `second_moment` of weights, `normaliser` (what needs the whole batch), `blocks` (of the Jacobian)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from sympy import oo

from fibration.language.atoms import Count, Density, Stratum, Summary, Total, at
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.outline import is_beyond_rows, whole_batch
from fibration.language.report import NOTE, Fact
from fibration.language.statistics import Ordered, atoms_within, within
from fibration.language.sympy_bridge import to_sympy, vanishes
from fibration.language.traversal import applications, atoms, desugar
from fibration.laws import topic
from fibration.laws.facts.weights import sampled_from, supremum
from fibration.laws.gates.contributions import is_effect
from fibration.laws.gates.coordinates import intensive
from fibration.laws.gates.pieces import text
from fibration.laws.signs.neighbourhood import RHO
from fibration.laws.subject import Subject

WHY_NOT = "no condition and no minimum bounds it, nor its square"


def second_moment(subject: Subject) -> Iterator[Fact]:
    """Yields a bound of every weight, and of its `E[w²]` under the policy that tokens are sampled from."""
    h = subject.hierarchy
    for weight in h.objective.weighed:
        most, name = supremum(h, weight), topic.weight(weight)
        if most == oo:
            yield Fact("second_moment", name, "w has no bound that is known", WHY_NOT, NOTE)
            continue
        policy = sampled_from(h, weight)
        square = most if policy else sympy.expand(most**2)
        where = f" under {policy}" if policy else ""
        ratio = f"w is at most a ratio to the probabilities of {policy}, whose mean there is 1"
        why = ratio if policy else "w², at most"
        yield Fact("second_moment", name, f"w is at most {text(most)}, E[w²] at most {text(square)}{where}", why, NOTE)


def normaliser(h: Hierarchy) -> Iterator[Fact]:
    """Yields the numbers over several rows that must be known before any coefficient."""
    needed = list(dict.fromkeys(_needed(h)))
    why = "these span several rows: they must be known before any coefficient"
    why = why if needed else "each row's coefficients are known without the others"
    yield Fact("normaliser", "objective", "; ".join(needed) or "nothing", why)


def _needed(h: Hierarchy) -> Iterator[str]:
    mu = h.objective.spelled_out(h.leaves, h.rows)
    counts = [a for a in atoms(mu, Count, Total) if is_beyond_rows(h, a.over)]
    kept = any(k.normaliser == "kept" for k in h.objective.kept)
    yield from (f"{a} of what is kept" if kept else str(a) for a in counts)
    levels = [intensive(h, s, c) for s in h.order for c in h.decomposition.channels]
    levels += [f.weight for f in h.fibrations if not is_beyond_rows(h, f.target)]
    read = [at(e, leaf) for e in h.objective.formulas for leaf in h.leaves]
    given = [] if h.advantages is None else [h.advantages]
    given += [e for p in h.penalties.values() for e in (p.formula, *(p.objective.formulas if p.objective else ()))]
    inner = [e for formula in (*read, *levels, *given) for e in within(formula)]
    measures = (a for e in inner for a in atoms(e, Count, Total))
    yield from (str(a) for a in measures if is_beyond_rows(h, a.over))
    joined = read_by_gates(h)
    yield from (str(Density(s)) for s in h.order if s in joined and is_beyond_rows(h, s))
    joined_by = [*read, *(gate for _, _, gate in gates(h)), *given, *(e for _, e in h.decomposition.densities)]
    gathered = (a for formula in joined_by for a in atoms_within(formula, Summary))
    yield from (str(a) for a in gathered if is_beyond_rows(h, a.over))
    for name, p in h.penalties.items():
        if p.objective is not None:
            own = atoms(p.objective.spelled_out(h.leaves, h.rows))
            counted = (str(a) for a in own if isinstance(a, (Count, Total)) and is_beyond_rows(h, a.over))
            kept = any(k.normaliser == "kept" for k in p.objective.kept)
            yield from (f"{a} of what the penalty '{name}' keeps" if kept else a for a in counted)
        elif p.over is not None:
            yield f"how many there are of what the penalty '{name}' is read over, {p.over}"


# ---------------------------------------------------------------- blocks


def blocks(h: Hierarchy) -> Iterator[Fact]:
    """Yields the stratum over which the Jacobian of `𝒢` is block-diagonal (prop:traj_independence)."""
    yield Fact("blocks", "Jacobian of 𝒢", *_block(h))


def _block(h: Hierarchy) -> tuple[str, str]:
    """The blocks in words, and why."""
    needed = read_by_gates(h)
    joined = {o.over for _, e in h.decomposition.densities for o in atoms(e, Ordered)}
    if joined:
        rows = [s for s in joined if isinstance(s, Stratum)]
        widest = next((s for s in rows if all(s == o or s in whole_batch(h).coarser(o) for o in rows)), None)
        if widest is None or any(s != widest and widest not in whole_batch(h).coarser(s) for s in needed):
            return "one block", "F reads what comes before a token, and gates what is coarser"
        return f"block-diagonal over {widest}", f"F reads what comes before or after a token over one {widest}"
    common = [s for s in h.order if all(n == s or s in h.coarser(n) for n in needed)]
    finest = [s for s in common if not any(s in h.coarser(o) for o in common)]
    if not finest:
        return "one block", "no stratum is coarser than all that the gates read"
    if not needed and len(h.leaves) > 1:
        return "diagonal", "every gate is the identity"
    why = "no gate reads beyond the element of this stratum that it lies over"
    over = {a.over for _, _, gate in gates(h) for a in atoms(gate, Summary)}
    if any(o != s and s not in h.shape.coarser(o) for o in over for s in finest if isinstance(o, Stratum)):
        why += ", but for statistics, which are held"
    return f"block-diagonal over {' and over '.join(s.name for s in finest)}", why


def read_by_gates(h: Hierarchy) -> set[Stratum]:
    """The strata whose densities decide the sum of all levels.

    Levels that pass unchanged telescope: `D = σ + Σ (h_v - ρ_v)` over the other levels. So a token depends on the
    densities in these residuals and gates, at the elements that the token lies over.
    """
    needed: set[Stratum] = set()
    for stratum, _, gate in gates(h):
        if not is_identity(gate):
            needed |= {stratum, *h.shape.moebius(stratum)}
            needed |= {a.stratum for a in atoms(gate, Density)}
            if is_effect(h, stratum):  # a least-squares fit joins all strata that cross
                needed.update(h.shape.crossed())
    return needed


def is_identity(gate: Expression) -> bool:
    """Whether a gate passes every residual unchanged, in one branch."""
    return not applications(desugar(gate), "where") and vanishes(to_sympy(gate) - RHO)
