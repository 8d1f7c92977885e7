"""The gradient on policy, where every first update starts, is that of `J`, whatever else a loss gives up.

For a ratio estimator the law follows from first-order agreement, or from slopes alone. Agreement for advantages that
are constant on a stratum is enough if the stratum is that of the rows, or lies over the rows: an outcome reward is one
number per row. On a coarser stratum it shows nothing: an advantage that is constant on a prompt group is 0 once the
mean over the group is subtracted.

A scale that `R` does not undo changes the meaning of every bound of a gate. So this law requires `R(F(r)) = r` to first
order. The law of recovery requires it for all ratios; a loss may give up recovery, to cut large ratios for example, and
keep this law.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fibration.errors import an
from fibration.language.atoms import Density, Stratum, in_channel, reward
from fibration.language.gates import identity_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import home, whole_batch
from fibration.language.sympy_bridge import cancelled, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, cancel, desugar
from fibration.laws import topic
from fibration.laws.batches.first_update import opposed_advantage, wrong_coefficients
from fibration.laws.gates.coordinates import X, recovery_slopes
from fibration.laws.law import Decision, Law, following, proved, undecided, unproved
from fibration.laws.objectives.samples import of_tokens
from fibration.laws.on_policy import expansion
from fibration.laws.on_policy.first_order import constant_on, is_constant, wrong_start
from fibration.laws.on_policy.identity import GIVE_UP
from fibration.laws.remedies import Fix, Offers
from fibration.laws.signs.neighbourhood import SIDES
from fibration.laws.subject import Subject

STATEMENT = "on policy the gradient is that of the true objective: at r = 1 and towards it, ∂J/∂log π_i = μ_i·A_i"
REST = "on policy an advantage of one row alone does not lower the row's log-probs: A·Σ ∂J/∂log π ≥ 0 over the row"


def decide_gradient(subject: Subject) -> Iterator[Decision]:
    if subject.proved("first_order"):
        yield proved("hierarchy", "by first_order, 𝒢(r) = r to first order, so that ∂J/∂log π_i = μ_i·A_i")
    elif start := wrong_start(subject, held=True):
        yield following(start, subject.first_failure("recovery") or subject.verdict("first_order", "decomposition"))
    else:
        yield _of_slopes(subject) or _refused(subject)


def _of_slopes(subject: Subject) -> Decision | None:
    h = subject.hierarchy
    if h.objective.estimator == "score":
        argument = "𝒢(1) = 1, so that on policy Σ μ·𝒢·A·∇log π is the gradient of J"
        return proved("hierarchy", argument) if expansion.is_one(subject) else None
    if expansion.reads_order(h) and subject.proved("identity") and expansion.is_smooth(subject):
        return proved("hierarchy", "𝒢'(1) = 1: what comes before a token has a value in F and is stopped")
    if expansion.has_slope_one(subject):
        return proved("hierarchy", "𝒢'(1) = 1: only the value at r = 1 is not the true one")
    over = (s for s in h.order if h.rows in (s, *h.coarser(s)))
    coarse = next((s for s in over if subject.proved("first_order", constant_on(s))), None)
    if coarse is None:
        return None
    if not _is_one_number(h, coarse):
        found = f"A = {h.advantages}, which differs within {an(coarse)}: value and gradient agree for others alone"
        remedy = f"write advantages that are one number per {coarse}; or gives_up={{'gradient': 'why'}}"
        return undecided("hierarchy", found, remedy)
    what = f"by first_order, value and gradient agree for these, and an outcome reward is one number per {h.rows}"
    return proved(constant_on(coarse), what)


def _is_one_number(h: Hierarchy, coarse: Stratum) -> bool:
    """Whether the declared advantages are one number per element of a stratum; True if none are declared."""
    if h.advantages is None:
        return True
    formula = desugar(h.advantages)
    places = {s.name for s in (coarse, h.rows, *whole_batch(h).coarser(coarse))}
    read = (a for a in atoms(formula) if a != reward)
    return not of_tokens(h, formula) and all(home(h, a) in places for a in read)


def _passing(subject: Subject) -> Offers:
    """The remedy: gates that pass small residuals, at the levels that do not. Of one level, what `identity` says."""
    h = subject.hierarchy
    own = next((v.remedy for v in subject.verdicts if v.law == "identity" and v.status != "proved"), "")
    if len(h.order) == 1 and own:
        return (own.removesuffix(f"; or {GIVE_UP}"),)
    levels = [s for s in h.order if (v := subject.verdict("identity", topic.gate(s))) and v.status != "proved"]
    gates = {s: identity_gate() for s in levels or h.order}
    written = ", ".join(f"{s}: {gate}" for s, gate in gates.items())
    words = f"write gates={{{written}, ...}}, or clip_gate(bound) there: they pass small residuals with slope 1"
    return (Fix(words, lambda: h.replace(gates={**h.gates, **gates})),)


def _refused(subject: Subject) -> Decision:
    witness = wrong_coefficients(subject.hierarchy)
    score = subject.hierarchy.objective.estimator == "score"
    part = "value 𝒢(1)" if score else "slope 𝒢'(1)"
    found = f"a {part} that is not 1" if witness else f"a {part} that was not found"
    remedy = (*_passing(subject), "gives_up={'gradient': 'why'}, if the loss means it")
    # a law that no loss may give up comes first: once it holds, what the loss gives up may be harmless
    lacking = subject.kernel_without_a_value(*subject.hierarchy.fibrations)
    cause = lacking or subject.first_failure("reflecting", "coherent", "identity")
    return following(unproved("hierarchy", found, remedy, witness), cause)


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up: `R∘F` and all gates together turn no advantage round."""
    if argument := follows_advantages(subject):
        yield proved("hierarchy", argument)
        return
    h = subject.hierarchy
    witness = opposed_advantage(h)
    found = "an advantage that lowers its own log-probs" if witness else "advantages whose direction was not found"
    start = wrong_start(subject, held=True)
    yield unproved("hierarchy", found, start.remedy if start else _passing(subject), witness, REST)


# ---------------------------------------------------------------- the direction of the gradient


def follows_advantages(subject: Subject) -> str | None:
    """The argument that on policy a row's advantage does not lower its log-probs; None if there is none.

    Suppose that one row has an advantage `A`, and all others have 0. In units of the leaf measure `m`, let `D` be what
    all gates add to a token, and `d_u = ∂D/∂σ_u` its slope in the density of a stratum `u`. If `F'` is one number over
    the row, the coefficients of the row add up to

        A·Σ_j μ_j·R'_j·F'·Σ_u d_u·k_u

    over its tokens `j`. `k_u` is the share of the row in the mass of the element of `u` below `j`: 1 for the row and
    what lies over it, and no more for a coarser stratum than for a finer one. The sum is least where every share is 0
    or 1.
    """
    h = subject.hierarchy
    if not expansion.has_sums(subject):
        return None
    if h.objective.estimator == "score":
        values = [(leaf, r and r[0]) for leaf, r in expansion.reached(subject, expansion.together(subject))]
        if not values or any(v is None or -1 in subject.at(leaf).signs(cancelled(v)) for leaf, v in values):
            return None
        return "𝒢(1) is not below 0, and on policy every coefficient is μ·𝒢·A"
    channels = h.decomposition.channels
    are_one = all(_rises(subject, channel, True) for channel in channels)
    if h.orthogonalise is not None or not (are_one or all(_rises(subject, channel, False) for channel in channels)):
        return None
    found = expansion.together(_without_inner_gates(subject) if are_one else subject)
    for stack, meetings in found or ():
        for meeting in meetings:
            slopes, assume = _slopes(stack, meeting), stack.assume.with_signs(meeting.conditions)
            if slopes is None or any(-1 in assume.signs(cancelled(sum(slopes[u] for u in f))) for f in _full(stack)):
                return None
            # where F' differs within a row, what the gates add must depend on a token's own density alone
            if not are_one and not all(vanishes(d) for u, d in slopes.items() if u != stack.leaf):
                return None
    why = "R∘F does not fall at r = 1, nor what the gates of all levels add, whatever share of a level an element is"
    return why if found else None


def _without_inner_gates(subject: Subject) -> Subject:
    """The hierarchy without the gates within a row whose residuals do not move if all its densities move alike."""
    h, shape = subject.hierarchy, whole_batch(subject.hierarchy)
    inside = {h.rows, *shape.finer(h.rows)}
    still = [s for s in h.order if (c := h.shape.moebius(s)) and set(c) <= inside and sum(c.values()) == 1]
    still = [s for s in still if not any(atoms(in_channel(h.gate(s), c), Density) for c in h.decomposition.channels)]
    return Subject(h.replace(gates={**h.gates, **dict.fromkeys(still, identity_gate())}), subject.verdicts)


def _slopes(stack: expansion.Stack, meeting: expansion.Meeting) -> dict[Stratum, Any] | None:
    """`d_u` of every stratum below a leaf; None if gates read densities of the other channel."""
    slopes, own = dict(meeting.slopes), {u: symbol(Density(u, stack.channel)) for u in stack.path}
    found = {u: cancelled(to_sympy(stack.h.masses[u]) * slopes.pop(v) + int(u == stack.leaf)) for u, v in own.items()}
    return found if all(map(vanishes, slopes.values())) else None


def _full(stack: expansion.Stack) -> Iterator[list[Stratum]]:
    """Yields the strata whose shares can be 1 where all others are 0.

    The share of a row in an element of a stratum that crosses the rows may be any.
    """
    h, shape = stack.h, whole_batch(stack.h)
    inside = [s for s in stack.path if s in (h.rows, *shape.finer(h.rows))]
    above, coarse = [s for s in stack.path if s not in inside], set(shape.coarser(h.rows))
    ordered = [(v, u) for u in above for v in above if u in h.coarser(v) and {u, v} <= coarse]
    for n in range(len(above) + 1):
        for chosen in itertools.combinations(above, n):
            if all(v in chosen for v, u in ordered if u in chosen):
                yield [*inside, *chosen]


def _rises(subject: Subject, channel: str, is_one: bool) -> bool:
    """Whether `F` moves as `R` does at `r = 1`; `is_one`: and with one slope over every row, on each side of it."""
    h, ways = subject.hierarchy, recovery_slopes(subject, channel)
    for side in SIDES:
        found: list[Any] = []
        for leaf in h.leaves:
            density = cancel(h.with_mass(h.decomposition[channel], leaf) / h.masses[leaf])
            for end in expansion.ends(subject, leaf, density, side) or (None,):
                if end is None or not all(map(vanishes, end.slopes[1:])):
                    return False
                held = {d: s for d, s in end.case.signs if not d.has(X)}
                if any(s * way < 0 for s in subject.at(leaf).with_signs(held).signs(end.slopes[0]) for way in ways):
                    return False
                found.append(end.slopes[0])
        if is_one and not all(vanishes(s - found[0]) and is_constant(h, s, h.rows) for s in found):
            return False
    return True


LAW = Law("gradient", STATEMENT, decide_gradient, remainder=remainder)
