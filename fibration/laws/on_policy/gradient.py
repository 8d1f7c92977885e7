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

from collections.abc import Iterator

from fibration.errors import an
from fibration.language.atoms import Stratum, reward
from fibration.language.gates import identity_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import home, whole_batch
from fibration.language.traversal import atoms, desugar
from fibration.laws import topic
from fibration.laws.batches.first_update import opposed_advantage, start_not_recovered, wrong_coefficients
from fibration.laws.gates.coordinates import composed
from fibration.laws.gates.recovery import inverted
from fibration.laws.law import Decision, Law, following, proved, undecided, unproved
from fibration.laws.objectives.samples import of_tokens
from fibration.laws.on_policy.at_ratio_one import has_slope_one, is_one, is_smooth, reads_order, starts
from fibration.laws.on_policy.direction import follows_advantages
from fibration.laws.on_policy.first_order_subspace import constant_on
from fibration.laws.on_policy.identity import GIVE_UP
from fibration.laws.remedies import Fix, Offers
from fibration.laws.subject import Subject

STATEMENT = "on policy the gradient is that of the true objective: at r = 1 and towards it, ∂J/∂log π_i = μ_i·A_i"
REST = "on policy an advantage of one row alone does not lower the row's log-probs: A·Σ ∂J/∂log π ≥ 0 over the row"
START = "R(F(r)) = r to first order at r = 1, where every first update starts: value 1, slope 1"


def decide_gradient(subject: Subject) -> Iterator[Decision]:
    if subject.proved("first_order"):
        yield proved("hierarchy", "by first_order, 𝒢(r) = r to first order, so that ∂J/∂log π_i = μ_i·A_i")
    elif start := wrong_start(subject, held=True):
        yield following(start, subject.first_failure("recovery") or subject.verdict("first_order", "decomposition"))
    else:
        yield _of_score(subject) or _of_slopes(subject) or _refused(subject)


def wrong_start(subject: Subject, held: bool = False) -> Decision | None:
    """The verdict if `R∘F` is not the identity to first order at `r = 1`; None if it is.

    `held`: sums before or after a token may add a stopped value.
    """
    h = subject.hierarchy
    off = next((s for s in starts(subject) if not (s.flows_alone if held else s.is_true)), None)
    if off is None:
        return None
    wholes = {leaf: composed(h, leaf) for leaf in h.leaves}
    witness = next((w for leaf, whole in wholes.items() if (w := start_not_recovered(h, leaf, whole))), None)
    if witness is None and reads_order(h):
        witness = wrong_coefficients(h)
    found = f"R(F(r)) = {wholes[off.leaf]}"
    owner = "" if off.side else "one channel alone has x = 0, as where(token_log_ratio >= 0, ...) and its negation: "
    return unproved("decomposition", found, inverted(h, owner), witness, START)


def _of_score(subject: Subject) -> Decision | None:
    if subject.hierarchy.objective.estimator == "score" and is_one(subject):
        return proved("hierarchy", "𝒢(1) = 1, so that on policy Σ μ·𝒢·A·∇log π is the gradient of J")
    return None


def _of_slopes(subject: Subject) -> Decision | None:
    h = subject.hierarchy
    if h.objective.estimator == "score":
        return None
    if reads_order(h) and subject.proved("identity") and is_smooth(subject):
        return proved("hierarchy", "𝒢'(1) = 1: what comes before a token has a value in F and is stopped")
    if has_slope_one(subject):
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


LAW = Law("gradient", STATEMENT, decide_gradient, remainder=remainder)
