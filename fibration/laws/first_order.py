"""First-order agreement (thm:fbg_first_order): near on-policy `𝒢(r) = r`, so that value and gradient are the true ones.

Three arguments, the simplest that works: every gate is the identity near 0; every gate has value 0 and slope 1 there;
the gates of all levels together add up to the leaf's density (`levels_together.py`). Where value and gradient do not
both agree, the verdict says what still holds: the gradient alone, or both for advantages constant on a stratum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy

from fibration.language.atoms import Stratum, gated
from fibration.language.expressions import Expression
from fibration.language.hierarchy import gates
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import symbol, vanishes
from fibration.laws.first_order_subspace import span, subspace
from fibration.laws.identity import reference_is_zero
from fibration.laws.law import Decision, Law, following, proved, refuted, undecided, unproved
from fibration.laws.markov import without_a_value
from fibration.laws.proof import levels_together
from fibration.laws.proof.branches import TooManyCases, cases
from fibration.laws.proof.coordinates import X, composed
from fibration.laws.proof.near import beside, is_kinked
from fibration.laws.proof.subject import Subject
from fibration.laws.witness import definition
from fibration.laws.witness.batches import Witness

STATEMENT = "near on-policy 𝒢(r) = r to first order, so that value and gradient are those of the true objective"
GRADIENT = "on policy the gradient is that of the true objective"


def decide_first_order(subject: Subject) -> Iterator[Decision]:
    if subject.hierarchy.objective.estimator == "score":
        yield from _score_estimator(subject)
        return
    # Σ_k K ρ_k telescopes whatever the weights are, but they must be numbers
    failure = subject.first_failure("recovery", "identity") or without_a_value(subject, *subject.hierarchy.fibrations)
    slopes = declared_slopes(subject)
    slope = next((s for s in slopes if s != 1), 1)
    argument = _gate_by_gate(subject) if failure is None else _together(subject, failure)
    if argument and slope == 1:
        yield proved("hierarchy", argument)
    elif failure is None or argument:
        yield _wrong_slope(slope)
    else:
        found = f"{failure.subject} fails '{failure.law}'"
        yield following(unproved("hierarchy", found, failure.remedy, _felt(subject, failure)), failure)
        yield from _what_still_holds(subject, failure, slopes)


def _wrong_slope(slope: Any) -> Decision:
    required = "the declared derivative of R∘F at x = 0 is 1, where every first update starts"
    remedy = "let one channel own x = 0: where(token_log_ratio >= 0, ...)"
    if slope is None:
        return undecided("decomposition", "a derivative that was not found", remedy, required)
    witness = Witness(f"a token with log ratio 0 has the coefficient {slope}·μ·A", None, {"slope": slope})
    return refuted("decomposition", f"the derivative {slope}", remedy, witness, required)


def _what_still_holds(subject: Subject, failure: Verdict, slopes: list[Any]) -> Iterator[Decision]:
    """Value and gradient for advantages constant on a stratum, or else the gradient alone."""
    coarse = subspace(subject, slopes)
    if coarse is not None:
        what = f"{span(subject, coarse)} near 0, finer residuals sum to 0 over a {coarse}, and μ·R' has one value there"
        yield proved(f"advantages constant on each {coarse}", what)
    elif failure.law == "identity" and all(s == 1 for s in slopes) and _has_slope_one(subject):
        yield proved("gradient", "𝒢'(1) = 1: only the value at r = 1 is not the true one")


# ---------------------------------------------------------------- proofs


def _gate_by_gate(subject: Subject) -> str:
    exact = all(subject.germ(g, s).passes for s, _, g in gates(subject.hierarchy))
    near = "is the identity near 0" if exact else "has value 0 and slope 1 at 0"
    return f"every gate {near}, Σ_k K ρ_k telescopes to σ, and R∘F = id"


def _together(subject: Subject, failure: Verdict) -> str:
    """The gates of all levels add up, though one of them alone is not the identity; '' if that is not shown."""
    if failure.law != "identity" or not _can_add(subject):
        return ""
    if kind := levels_together.agrees(subject):
        return levels_together.argument(subject, kind)
    if _is_one(subject) and _has_slope_one(subject):
        return "𝒢(1) = 1 and 𝒢'(1) = 1: what the gates add at r = 1 cancels in R"
    return ""


def _can_add(subject: Subject) -> bool:
    """Whether the gates of all levels can be added up in the densities of all strata."""
    return (
        subject.proved("recovery")
        and reference_is_zero(subject)
        and not without_a_value(subject, *subject.hierarchy.fibrations)
        and levels_together.usable(subject)
    )


def declared_slopes(subject: Subject) -> list[Any]:
    """`d R(F)/dx` at exactly `x = 0`, in every branch that can hold there; None where it could not be found."""
    h, slopes = subject.hierarchy, []
    for leaf in h.leaves:
        near = beside(subject.at(leaf), 0, variable=X)
        try:
            found = near.branches(composed(h, leaf))
        except TooManyCases:
            return [None]
        slopes += [
            sympy.cancel(sympy.diff(value, X).subs(X, 0)) if near.is_smooth(c) and not is_kinked(value) else None
            for c, value in ((c, c.sympy()) for c in found)
        ]
    return slopes


def _has_slope_one(subject: Subject) -> bool:
    """Whether `d𝒢/dr = 1` at `r = 1`, on every side of it, whatever `𝒢(1)` is."""
    if not _can_add(subject):
        return False
    found = levels_together.reference_values(subject, exactly=False, flat=True)
    return found is not None and all(_recovers_alike(subject, leaf, values) for leaf, values in found.items())


def _recovers_alike(subject: Subject, leaf: Stratum, values: dict[str, list[Any]]) -> bool:
    """Whether `R'` is the same at these gated densities as at 0."""
    h = subject.hierarchy
    recovery, mass = _recovery(subject, leaf)
    if recovery is None:
        return False
    zero: dict[Any, Any] = {symbol(gated(c)): 0 for c in h.decomposition.channels}
    for g in zero:
        slope = sympy.diff(recovery, g)
        others = slope.free_symbols & zero.keys()
        for at in _points({c: v for c, v in values.items() if symbol(gated(c)) in others}, mass):
            if not vanishes(slope.subs(at) - slope.subs(zero)):
                return False
    return True


def _points(values: dict[str, list[Any]], mass: Any) -> Iterator[dict[Any, Any]]:
    """Gated densities, one choice of value per channel."""
    for chosen in itertools.product(*values.values()):
        yield {symbol(gated(channel)): mass * v for channel, v in zip(values, chosen, strict=True)}


def _recovery(subject: Subject, leaf: Stratum) -> tuple[Any, Any]:
    """`R` and `m` on a leaf, where both have one branch; None for `R` where not."""
    h = subject.hierarchy
    expressions: list[Expression] = [h.with_mass(h.decomposition.recovery, leaf), h.masses[leaf]]
    try:
        [[recovery], [mass]] = [cases(e, subject.at(leaf)) for e in expressions]
    except (ValueError, TooManyCases):
        return None, None
    value = recovery.sympy()
    return (None, None) if is_kinked(value) else (value, mass.sympy())


# ---------------------------------------------------------------- refutations


def _felt(subject: Subject, failure: Verdict) -> Witness | None:
    """A witness against the operator, for a gate that is at fault: gates may make up for one another."""
    own = failure.counterexample
    if failure.law != "identity" or not isinstance(own, Witness):
        return None
    if not (subject.proved("recovery") and (subject.proved("reflecting") or not subject.hierarchy.fibrations)):
        return None
    if subject.hierarchy.shape.is_chain and _is_felt(subject, own):
        return own
    return definition.off_policy(subject.hierarchy) if levels_together.usable(subject) else None


def _is_felt(subject: Subject, own: Witness) -> bool:
    """Whether what was found on one gate of a chain is felt by the operator.

    A slope is: move that gate's residuals alone, and every other gate passes or adds nothing. A value is, unless
    another gate or the other channel takes it away again.
    """
    h, values = subject.hierarchy, own.values
    wrong = {s.name for s, _, g in gates(h) if not subject.germ(g, s).value_ok}
    if values["part"] == "slope":
        return not wrong
    return wrong <= {values["stratum"]} and not values["densities"] and h.decomposition.channels == ("",)


# ---------------------------------------------------------------- score estimators


def _score_estimator(subject: Subject) -> Iterator[Decision]:
    """`Σ μ·stop(𝒢)·A·log π`: no value to agree, a gradient that does where `𝒢(1) = 1`."""
    found = "the value of a score estimator is Σ μ·𝒢·A·log π, not J"
    remedy = "a score estimator is meant for its gradient: gives_up={'first_order': 'the value is not J'}"
    two = "one token with log π = -1 and advantage 1 has the value -μ·𝒢(1) on policy, and with log π = -2 another"
    yield refuted("hierarchy", found, remedy, Witness(two, None, {"log_prob": -1, "advantage": 1}))
    if subject.proved("recovery") and not without_a_value(subject, *subject.hierarchy.fibrations) and _is_one(subject):
        yield proved("gradient", "𝒢(1) = 1, so that on policy Σ μ·𝒢·A·∇log π is the gradient of J")
        return
    usable = levels_together.usable(subject) and (subject.first_failure("markov", "reflecting") is None)
    witness = definition.on_policy(subject.hierarchy) if usable else None
    found = "gates that do not add up to 0 on policy" if witness else "a value 𝒢(1) that was not found"
    remedy = "scale the gates so that on policy nothing is gated; or gives_up={'first_order': 'why'}"
    cause = subject.first_failure("recovery", "identity") or without_a_value(subject, *subject.hierarchy.fibrations)
    yield following(unproved("gradient", found, remedy, witness, f"{GRADIENT}: 𝒢(1) = 1"), cause)


def _is_one(subject: Subject) -> bool:
    """Whether `𝒢(1) = 1`."""
    if not (levels_together.usable(subject) and reference_is_zero(subject)):
        return False
    found = levels_together.reference_values(subject, exactly=True, flat=False)
    return found is not None and all(_recovers_one(subject, leaf, values) for leaf, values in found.items())


def _recovers_one(subject: Subject, leaf: Stratum, values: dict[str, list[Any]]) -> bool:
    if all(vanishes(v) for options in values.values() for v in options):
        return True  # R(F(1)) = 1
    recovery, mass = _recovery(subject, leaf)
    return recovery is not None and all(vanishes(recovery.subs(p) - 1) for p in _points(values, mass))


LAW = Law("first_order", STATEMENT, decide_first_order)
