"""First-order agreement (thm:fbg_first_order): near on-policy `𝒢(r) = r`, so that value and gradient are the true ones.

The proof is the first of three arguments that works: every gate is the identity near 0; every gate has value 0 and
slope 1 there; the gates of all levels together add up to the leaf's density (`levels_together.py`). If value and
gradient do not both agree, a second verdict may prove that they agree for advantages that are constant on a stratum.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.errors import an
from fibration.language.hierarchy import gates
from fibration.language.report import Verdict
from fibration.laws.batches import first_update
from fibration.laws.batches.concrete import Witness
from fibration.laws.gates.recovery import inverted
from fibration.laws.law import Decision, Law, following, proved, refuted, unproved
from fibration.laws.on_policy import levels_together
from fibration.laws.on_policy.at_ratio_one import can_add, has_slope_one, is_one, is_smooth, reads_order, recovers
from fibration.laws.on_policy.first_order_subspace import constant_on, span, subspace
from fibration.laws.on_policy.gradient import wrong_start
from fibration.laws.subject import Subject

STATEMENT = "near on-policy 𝒢(r) = r to first order, so that value and gradient are those of the true objective"


def decide_first_order(subject: Subject) -> Iterator[Decision]:
    if subject.hierarchy.objective.estimator == "score":
        yield _no_value()
        return
    failure = _failure(subject)
    argument = _gate_by_gate(subject) if failure is None else _together(subject, failure)
    if argument:
        yield wrong_start(subject) or proved("hierarchy", argument)
        return
    found = f"{failure.subject} fails '{failure.law}'" if failure else f"R = {subject.hierarchy.decomposition.recovery}"
    remedy = failure.remedy if failure else inverted(subject.hierarchy)
    yield following(unproved("hierarchy", found, remedy, _felt(subject, failure)), failure)
    coarse = subspace(subject)
    if coarse is not None:
        what = (
            f"{span(subject, coarse)} near 0, finer residuals sum to 0 over {an(coarse)}, and μ·R' has one value there"
        )
        yield proved(constant_on(coarse), what)


def _no_value() -> Decision:
    """The gradient of `Σ μ·stop(𝒢)·A·log π` may be that of `J`, but its value is not `J`."""
    found = "the value of a score estimator is Σ μ·𝒢·A·log π, not J"
    remedy = "a score estimator is meant for its gradient: gives_up={'first_order': 'the value is not J'}"
    two = "one token with log π = -1 and advantage 1 has the value -μ·𝒢(1) on policy, and with log π = -2 another"
    return refuted("hierarchy", found, remedy, Witness(two, None, {"log_prob": -1, "advantage": 1}))


def _failure(subject: Subject) -> Verdict | None:
    """The first failed law that agreement rests on; recovery counts only if it fails beside `r = 1`."""
    recovery = None if recovers(subject) else subject.first_failure("recovery")
    # residuals add up to densities whatever the weights of kernels are, as long as they have values
    kernel = subject.kernel_without_a_value(*subject.hierarchy.fibrations)
    return recovery or subject.first_failure("identity") or kernel


# ---------------------------------------------------------------- proofs


def _gate_by_gate(subject: Subject) -> str | None:
    exact = all(subject.germ(g, s).passes for s, _, g in gates(subject.hierarchy))
    if not exact and not is_smooth(subject):
        return None
    near = "is the identity near 0" if exact else "has value 0 and slope 1 at 0"
    if len(subject.hierarchy.order) == 1:
        return f"the gate {near}, and {_back(subject)}"
    return f"every gate {near}, a token's residuals on all levels add up to its density σ, and {_back(subject)}"


def _back(subject: Subject) -> str:
    return "R(F(r)) = r" if subject.proved("recovery") else "R(F(r)) has value 1 and slope 1 at r = 1"


def _together(subject: Subject, failure: Verdict) -> str | None:
    """The argument that the gates of all levels add up, although one is not the identity; None if there is none."""
    if failure.law != "identity" or not can_add(subject):
        return None
    kind = levels_together.agrees(subject)
    if kind == "exact" or (kind and is_smooth(subject)):
        return f"{levels_together.argument(subject, kind)}, and {_back(subject)}"
    if is_one(subject) and has_slope_one(subject, still=True):
        return "𝒢(1) = 1 and 𝒢'(1) = 1: what the gates add at r = 1 cancels in R"
    return None


# ---------------------------------------------------------------- refutations


def _felt(subject: Subject, failure: Verdict | None) -> Witness | None:
    """A witness against the operator, or None. A gate's own may not be enough: gates may compensate each other."""
    own = failure.counterexample if failure else None
    if reads_order(subject.hierarchy):
        return first_update.off_policy(subject.hierarchy)
    if failure and (failure.law != "identity" or not isinstance(own, Witness)):
        return None
    if not (recovers(subject) and (subject.proved("reflecting") or not subject.hierarchy.fibrations)):
        return None
    if isinstance(own, Witness) and subject.hierarchy.shape.is_chain and _is_felt(subject, own):
        return own
    return first_update.off_policy(subject.hierarchy) if levels_together.usable(subject) else None


def _is_felt(subject: Subject, own: Witness) -> bool:
    """Whether a witness against one gate of a chain refutes the operator too.

    A wrong slope does: if that gate's residuals move alone, every other gate passes or adds nothing. A wrong value
    does, unless another gate or the other channel cancels it.
    """
    h, values = subject.hierarchy, own.values
    wrong = {s.name for s, _, g in gates(h) if not subject.germ(g, s).value_ok}
    if values["part"] == "slope":
        return not wrong
    return wrong <= {values["stratum"]} and not values["densities"] and h.decomposition.channels == ("",)


LAW = Law("first_order", STATEMENT, decide_first_order)
