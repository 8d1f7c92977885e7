"""Weights, masks and stopped formulas where all policies coincide: right losses, and slips that a law refutes.

Counterexamples are evaluated again by definition, from their JSON alone.
"""

from fractions import Fraction

import pytest
from fuzz.dual_numbers import value_of
from fuzz.judges.judge import attempt
from fuzz.witnesses import are_close, world_of
from hierarchies import weights_and_masks
from hierarchies.quivers import BOTH, image, make, text, trajectory
from hierarchies.weights_and_masks import (
    GATES_RIGHT,
    RIGHT,
    STOPS_RIGHT,
    STOPS_WRONG,
    WRONG,
    C,
    D,
    k,
    mu,
    one,
    rho,
)
from oracles.certified_facts import decided
from oracles.counterexample_json import from_json

from fibration import (
    Gate,
    Objective,
    Parameter,
    advantage,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    mean,
    minimum,
    residual,
    some,
    token_mean,
    where,
)
from fibration.language.strata import populated
from fibration.laws.verify import decide


def failing(hierarchy):
    """The first law that fails, which nothing else is the cause of."""
    return next(v for v in hierarchy.verify().verdicts if not v.accepted)


# ---------------------------------------------------------------- slips


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_each_slip_is_refuted_by_the_law_that_it_breaks(name):
    law, h = WRONG[name]
    verdict = failing(h)
    assert (verdict.law, verdict.status) == (law, "refuted"), verdict
    world, element = world_of(h, from_json(h, verdict).counterexample), verdict.counterexample.values["element"]
    (formula,) = h.objective.weighed or [keep.condition for keep in h.objective.kept]
    value, why = attempt(lambda: value_of(world.at_token(formula, element)))
    old, *others = world.batch.policies.values()
    others.append([a + x for a, x in zip(old, world.batch.x, strict=True)])
    assert all(v <= 0 for values in (old, *others) for v in values), "log-probs are those of probabilities"
    if law == "objective":
        assert why == "no value" or value < 0
        return
    assert all(abs(a - b) <= Fraction(2, 10**12) for values in others for a, b in zip(values, old, strict=True))
    assert not value if law == "mask_open" else why == "no value" or abs(value - 1) > 1e-6
    assert not h.verify().ok and verdict.remedy


@pytest.mark.sampled
@pytest.mark.parametrize("name", STOPS_WRONG)
def test_a_stop_in_the_wrong_place_changes_the_gradient(name):
    h = STOPS_WRONG[name]
    verdict = decided(h, "gradient")[0]
    assert verdict.status == "refuted"
    values = from_json(h, verdict).counterexample.values
    if "coefficients" not in values:
        assert values["slope"] == 0
        return
    world = world_of(h, from_json(h, verdict).counterexample)
    assert are_close(world.coefficients, values["coefficients"])
    right = [m * a for m, a in zip(world.mu(h.objective), world.batch.advantages, strict=True)]
    assert max(abs(c - r) for c, r in zip(world.coefficients, right, strict=True)) > 0.1


def test_the_collection_has_many_slips_of_each_law():
    laws = [s.law for s in WRONG.values()]
    assert len(WRONG) + len(STOPS_WRONG) >= 40
    assert all(laws.count(law) >= 10 for law in ("objective", "agreement", "mask_open"))


# ---------------------------------------------------------------- right ones


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_right_weights_and_masks_are_proved(name):
    """`corpus/test_judges.py` tries them on random batches."""
    report = RIGHT[name].verify()
    assert report.ok, report
    assert all(v.status == "proved" for v in report.verdicts if v.law in ("agreement", "mask_open", "objective"))


NOT_INWARD = {
    "DPPO by divergence": "beside 0 the constant that keeps the divergence finite makes it fall",
    "a trajectory that drifts is closed": "the drift of its tokens may fall as that of their mean rises",
    "a token whose trajectory drifts is closed": "the drift of the others may fall as the token's rises",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*STOPS_RIGHT, *GATES_RIGHT])
def test_a_stop_in_the_right_place_and_gates_that_read_policies_are_accepted(name):
    h = {**STOPS_RIGHT, **GATES_RIGHT}[name]
    why = {"inward": NOT_INWARD[name]} if name in NOT_INWARD else {}
    report = h.replace(gives_up={**h.gives_up, **why}).verify()
    assert report.ok, report
    assert next(v for v in report.verdicts if v.law == "gradient").status == "proved"


@pytest.mark.parametrize("name", weights_and_masks.GATES_WRONG)
def test_a_gate_that_reads_a_statistic_is_refuted_by_its_gradient(name):
    """A statistic near on policy is near its value on policy. The gate then has another gradient."""
    report = weights_and_masks.GATES_WRONG[name].verify()
    assert not report.ok
    verdict = next(v for v in report.verdicts if v.law == "gradient")
    assert verdict.status == "refuted" and "instead of μ·A" in str(verdict.counterexample)


@pytest.mark.thorough
def test_an_old_probability_of_1_is_tried():
    """If the old policy gives a token probability 1, its divergence has no value without a margin."""
    verdict = failing(weights_and_masks.dppo(0))
    assert (verdict.law, verdict.status) == ("identity", "refuted")
    assert str(verdict.counterexample).endswith("g(0) has no value")
    assert "log-probs of 0" in str(verdict.counterexample)


def test_a_ratio_in_a_gate_times_the_old_probability_is_at_most_1():
    """The bound holds only if the residual is the ratio's: on one stratum, for one token."""
    beyond = where(weights_and_masks.p_old * weights_and_masks.ratio > 1, 0, residual)
    assert one(gate=Gate(beyond)).verify().ok
    assert (
        not weights_and_masks.two(
            identity_gate(), Gate(where(weights_and_masks.p_old * exp(residual) > 1, 0, residual))
        )
        .verify()
        .ok
    )


# ---------------------------------------------------------------- words


def test_the_remedy_names_the_bound_of_the_parameter():
    verdict = failing(WRONG["cap_below_1"].hierarchy)
    assert "not 1 where -1 + D is below 0" in verdict.found and "lower=1" in verdict.remedy
    assert str(verdict.counterexample).endswith(
        "where all policies coincide, the weight is 1/100 instead of 1 (D = 1/100)"
    )
    beside = failing(WRONG["cap_at_1"].hierarchy)
    assert "where all policies coincide but rollout, which is off by -1e-12, the token is dropped" in str(
        beside.counterexample
    )


def test_a_weight_without_a_value_is_the_cause_of_the_failure_of_agreement():
    report = WRONG["quotient_of_log_probs"].hierarchy.verify()
    agreement = next(v for v in report.verdicts if v.law == "agreement")
    assert agreement.status == "refuted" and agreement.cause.law == "objective"


def test_agreement_and_mask_open_are_given_up_only_if_they_fail():
    """A law without a subject cannot be given up, nor a law that holds."""
    given = {"agreement": "twice as hard", "mask_open": "the likely ones are left out"}
    both = one(mu.weigh(2 * rho).keep(rho <= 1), gives_up=given)
    assert both.verify().ok
    for law, objective in (
        ("agreement", mu.keep(rho <= 1)),
        ("mask_open", mu.weigh(2 * rho)),
        ("agreement", mu.weigh(rho)),
    ):
        found = one(
            objective, gives_up={**given, law: given[law]} if objective != mu.weigh(rho) else {law: "why"}
        ).verify()
        wrong = [v.subject for v in found.verdicts if v.law == "given_up"]
        assert wrong == [f"law '{law}'"]
    plain = decide(one())
    assert not [v for v in plain if v.law in given]


def test_each_weight_and_each_condition_has_a_verdict():
    found = one(mu.weigh(rho).weigh(2 * rho).keep(rho < 2).keep(rho < 1)).verify().verdicts
    status = {v.subject: v.status for v in found if v.law in ("agreement", "mask_open")}
    assert list(status.values()) == ["proved", "refuted", "proved", "refuted"]
    assert list(status) == [f"weight {rho}", f"weight {2 * rho}", f"condition {rho < 2}", f"condition {rho < 1}"]


def test_on_trees_weights_and_conditions_are_decided_on_every_leaf():
    """Statistics run over the tokens of all leaves. A total of 1 is the number of tokens."""
    both = make(
        (text, trajectory, BOTH), (image, trajectory, BOTH), objective=token_mean().weigh(mean(rho, over=trajectory)),
        gives_up=weights_and_masks.WHOLE,
    )  # fmt: skip
    assert both.verify().ok
    objective = token_mean().weigh(minimum(rho, D)).keep(~some(k > 1, over=trajectory))
    found = {v.law: v.status for v in both.replace(objective=objective).verify().verdicts}
    assert found["agreement"] == "refuted" and found["mask_open"] == "proved"


def test_a_populated_branch_may_have_no_kept_token():
    """The assumption is about all tokens, not about kept ones."""
    per_text = Objective(1 / count(text, over=trajectory))
    both = make((text, trajectory, BOTH), (image, trajectory, BOTH), assume=[populated(text, over=trajectory)])
    for objective, status in (
        (per_text.keep(rho <= weights_and_masks.C), "proved"),
        (per_text.keep(rho <= weights_and_masks.C, normaliser="kept"), "undecided"),
        (token_mean().keep(rho <= weights_and_masks.C, normaliser="kept"), "proved"),
    ):
        verdicts = both.replace(objective=objective).verify().verdicts
        assert [v.status for v in verdicts if (v.law, v.subject) == ("objective", "weight")] == [status]


def test_the_sign_of_one_token_is_not_assumed_for_a_mean():
    """A token with a positive log ratio says nothing about the mean of its trajectory."""
    rose = weights_and_masks.x > 0
    for formula, status in ((mean(weights_and_masks.x, over=trajectory), "undecided"), (weights_and_masks.x, "proved")):
        verdicts = one(mu.weigh(where(rose, formula, 0))).verify().verdicts
        assert next(v for v in verdicts if v.law == "objective" and v.subject != "weight").status == status


def test_a_log_prob_is_never_above_0():
    """The proof uses `π ≤ 1` for `old`, for `current`, and for a further policy."""
    for weight in (
        2 - exp(log_prob(p)) for p in (weights_and_masks.old, weights_and_masks.current, weights_and_masks.rollout)
    ):
        verdicts = decided(one(mu.weigh(weight)), "objective")
        assert [v.status for v in verdicts] == ["proved", "proved"]
    largest_of_all = 2 - largest(exp(log_prob(weights_and_masks.old)), over=trajectory)
    assert one(mu.weigh(largest_of_all)).verify().verdicts[-1].law
    found = [
        v.status
        for v in one(mu.weigh(Fraction(1, 2) - exp(log_prob(weights_and_masks.old)))).verify().verdicts
        if v.law == "objective"
    ]
    assert found == ["proved", "refuted"]


def test_the_law_gradient_ignores_weights():
    """The law is about gates: a weight of 2 breaks agreement, and no other law."""
    found = {
        v.law: v.status for v in one(mu.weigh(2 * rho).keep(advantage > 0)).verify().verdicts if v.law != "objective"
    }
    assert found["first_order"] == found["gradient"] == "proved"
    assert found["agreement"] == found["mask_open"] == "refuted"
    cap = Parameter("cap", default=2, lower=1, upper=3)
    assert one(mu.weigh(minimum(rho, cap))).verify().ok


def test_the_report_names_no_bound_that_always_holds():
    """`C` is above 1, so the other bound always holds and is no reason for the failure."""
    (found,) = decided(one(mu.keep((rho > 1 / C) & (rho <= 1))), "mask_open")
    assert found.status == "refuted" and found.found.endswith(" <= 1))")
