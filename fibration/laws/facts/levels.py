"""Four facts about the levels of a hierarchy: `idle`, `share`, `spill` and `reversal`.

In units of the leaf measure `m`, let `h'_v` be the slope of the gate on a stratum `v` at the element that a token lies
over, and `Y_v = E_m[(μ/m)·w·A·∂𝒢/∂D | v]` the mean pull there. Then

    c_i/m_i = F'(x_i)·Σ_v (h'_v·Y_v - Σ_u c_u·E_m[h'_v·Y_v | u(i)])

with the Möbius numbers `c_u` of the coarser strata `u`: on a tree, 1 for the stratum directly below. So

- a gate whose `Y_v` is 0 reaches no coefficient, whatever its slope is: the level is *idle*;
- the sum is the split of a coefficient over levels, and on policy the parts of two levels are orthogonal: *share*;
- an element with the share `K` of the mass of its coarser element keeps the share `K` of a pull that its gate stops.
  The rest goes to its siblings, because residuals sum to 0: *spill*.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy

from fibration.errors import an
from fibration.language.atoms import Stratum, read_at
from fibration.language.hierarchy import Hierarchy, adds_up_levels, gates
from fibration.language.outline import whole_batch
from fibration.language.report import NOTE, WARNING, Fact
from fibration.language.sympy_bridge import ATOM_OF, cancelled, show, to_sympy, vanishes
from fibration.laws import topic
from fibration.laws.facts.batch_facts import is_identity
from fibration.laws.facts.weight_sums import Sums
from fibration.laws.gates.contributions import Lines
from fibration.laws.objectives.centred import is_centred
from fibration.laws.off_policy.reversal import never_reverses, one_advantage
from fibration.laws.off_policy.reversal_search import reversed_token
from fibration.laws.on_policy.expansion import is_one
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import plural

WITHOUT_RESIDUALS = "budgets without residuals do not, such as those of 'attenuated_group'"
LOGARITHMS, DEVIATIONS = ("log", "split"), ("deviation", "split deviation")


def has_levels(subject: Subject, known: str) -> bool:
    """Whether a coefficient is the sum of what several levels pass on: a ratio estimator over several strata."""
    h = subject.hierarchy
    return known in (*LOGARITHMS, *DEVIATIONS) and len(h.order) > 1 and h.objective.estimator == "ratio"


# ---------------------------------------------------------------- idle


def idle(subject: Subject, known: str) -> Iterator[Fact]:
    """Yields every level whose pull `Y` is 0 on policy, or always: for the declared advantages, or on a condition."""
    if not has_levels(subject, known) or not _has_weight_one(subject):
        return
    always = known in DEVIATIONS and not subject.hierarchy.objective.formulas
    if not (always or subject.proved("first_order") or is_one(subject)):
        return
    when = "idle" if always else "idle on policy"
    pulls = _Pulls(subject.hierarchy)
    for stratum in subject.hierarchy.order:
        if stratum in subject.hierarchy.leaves:
            continue
        if subject.hierarchy.advantages is not None:
            over = pulls.centred_over(stratum)
            if over is None:
                continue
            value, why = when, f"the declared advantages are centred over {over}"
        elif stratum in pulls.shape.coarser(subject.hierarchy.rows):
            value, why = f"{when} {pulls.condition(stratum)}", ""
        else:
            continue
        total = f"Σ μ·A is then 0 over every {stratum}: the slope of its gate reaches no coefficient"
        aside = "" if always else ", and beside r = 1 it moves one by no more than the order of log ratios"
        yield Fact("idle", topic.gate(stratum), value, "; ".join(filter(None, (why, total + aside))))


def _has_weight_one(subject: Subject) -> bool:
    """Whether every weight is 1 and every token is kept where all policies coincide."""
    objective = subject.hierarchy.objective
    return all(subject.proved("agreement", topic.weight(w)) for w in objective.weighed) and all(
        subject.proved("mask_open", topic.condition(k.condition)) for k in objective.kept
    )


class _Pulls:
    """Sums of `μ·A` over the elements of coarser strata, on policy."""

    def __init__(self, h: Hierarchy) -> None:
        self.h, self.sums = h, Sums(h, h.objective)
        self.shape = whole_batch(h)

    def centred_over(self, stratum: Stratum) -> Stratum | None:
        """The coarsest stratum over which `Σ μ·A` is shown to be 0, and whose elements fill those of `stratum`."""
        inside = (stratum, *(s for s in self.shape.finer(stratum) if s not in self.h.leaves))
        full = (s for s in inside if self.shape.leaves_over(stratum) <= self.shape.leaves_over(s))
        return next((s for s in full if self._is_centred(s)), None)

    def _is_centred(self, over: Stratum) -> bool:
        rows, of_row = self.h.rows, self.sums.over(self.h.rows)
        by_rows = over in self.shape.coarser(rows) and of_row is not None and is_centred(self.h, of_row, over, rows)
        return by_rows or is_centred(self.h, self.sums.mu, over, None)

    def _is_one_number(self, value: Any, over: Stratum) -> bool:
        return value is not None and all(self.sums.shared(ATOM_OF[s], over) for s in value.free_symbols)

    def condition(self, stratum: Stratum) -> str:
        """What advantages of a call must be for the level to be idle."""
        if self._is_one_number(self.sums.over(self.h.rows), stratum):
            return f"where the advantages of the {plural(self.h.rows.name)} of every {stratum} sum to 0"
        if self._is_one_number(self.sums.mu, stratum):
            return f"where the advantages of the tokens of every {stratum} sum to 0"
        return f"where Σ μ·A is 0 over every {stratum}"


# ---------------------------------------------------------------- share


def share(subject: Subject, known: str) -> Iterator[Fact]:
    """Yields what every level adds to a coefficient, as an expression."""
    h = subject.hierarchy
    if not has_levels(subject, known) or not adds_up_levels(h):
        return
    fine = subject.proved("identity") and _has_weight_one(subject) and _has_one_pull(h)
    for stratum in h.order:
        taken = [f"{_times(c)}E[h'·Y | {u}]" for u, c in h.shape.moebius(stratum).items() if c]
        value = "".join(["h'·Y", *(f" - {t}" if not t.startswith("-") else f" + {t[1:]}" for t in taken)])
        y = f"Y = E[(μ/m)·{'w·' if h.objective.formulas else ''}A·∂𝒢/∂D | {stratum}], h' the slope of the gate"
        none = "; on policy 0 for one advantage per row" if fine and _is_apart(h, stratum) else ""
        yield Fact("share", topic.gate(stratum), value, f"c/(m·F') is the sum over levels; {y}{none}")


def _is_apart(h: Hierarchy, stratum: Stratum) -> bool:
    """Whether a level adds 0 for a pull that is one number per row.

    It does if it subtracts that number once: its elements, and those of the strata whose means it subtracts, lie in one
    row each and have the same tokens. Experts that cross rows have tokens of several, and so do groups. Beside another
    branch of a tree, the mean has only the branch's share of the number.
    """
    shape, means = h.shape, h.shape.moebius(stratum)
    of_one_row = {stratum, *means} <= {h.rows, *whole_batch(h).finer(h.rows)}
    is_whole = all(shape.leaves_over(u) == shape.leaves_over(stratum) for u in means)
    return of_one_row and is_whole and sum(means.values()) == 1


def _has_one_pull(h: Hierarchy) -> bool:
    """Whether `(μ/m)·A` is one number per row on policy, for an advantage that is one."""
    mu, shape = Sums(h, h.objective).mu, whole_batch(h)
    found = [cancelled(mu / to_sympy(h.masses[leaf])) for leaf in h.leaves]
    places = (h.rows, *shape.coarser(h.rows))
    read = (read_at(ATOM_OF[s]) for s in found[0].free_symbols)
    return all(vanishes(found[0] - f) for f in found) and all(p is None or p in places for p in read)


def _times(c: int) -> str:
    return "" if c == 1 else "-" if c == -1 else f"{c}·"


# ---------------------------------------------------------------- spill


def spill(subject: Subject, known: str) -> Iterator[Fact]:
    """Yields the largest share of a stopped pull that the siblings of an element get, for every level with siblings."""
    h = subject.hierarchy
    if not has_levels(subject, known) or not adds_up_levels(h) or not h.shape.is_tree:
        return
    passing = {s: True for s in h.order}
    for stratum, _, gate in gates(h):
        passing[stratum] = passing[stratum] and is_identity(gate)
    for stratum in h.order:
        if passing[stratum] or stratum in h.roots:
            continue
        (f,) = h.shape.below(stratum)
        kept = to_sympy(f.weight)
        known_share = str(f.weight) if kept.has(sympy.Piecewise) else show(cancelled(kept))
        value = f"1 - ({known_share})" if kept.is_Add or kept.has(sympy.Piecewise) else f"1 - {known_share}"
        ratio = ", times the ratio of a token" if known in DEVIATIONS else ""
        why = f"{an(stratum)} keeps its share of its {f.target}'s mass, and the others over the {f.target} get the rest"
        yield Fact("spill", topic.gate(stratum), value, f"{why}{ratio}")


# ---------------------------------------------------------------- reversal


def reversal(subject: Subject, known: str, table: Lines) -> Iterator[Fact]:
    """Yields whether some token is pushed further out against its own advantage; with the smallest batch found."""
    h = subject.hierarchy
    mu = Sums(h, h.objective).mu
    is_mean = all(-1 not in subject.at(leaf).signs(mu) for leaf in h.leaves)
    shown = never_reverses(subject, table, known) if is_mean else None
    if shown is not None:
        free = len(h.order) > 1 and h.objective.estimator == "ratio" and not one_advantage(h)
        condition = f" where every {h.rows} has one advantage" if free else ""
        yield Fact("reversal", "hierarchy", f"none{condition}", shown.argument, NOTE)
    elif (witness := reversed_token(h)) is not None:
        remedy = "a gate that obeys 'inward' does not" if len(h.order) == 1 else WITHOUT_RESIDUALS
        why = f"{witness}; {remedy}"
        yield Fact("reversal", "hierarchy", "some tokens are pushed out against their advantage", why, WARNING)
    else:
        why = "no argument applies, and no small batch was found with such a token"
        yield Fact("reversal", "hierarchy", "not certified", why, NOTE)
