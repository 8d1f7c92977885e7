"""Ordered sums, element statistics, leave-one-out means and deviations: the laws about them."""

from fractions import Fraction

import pytest
from hierarchies.weights_and_masks import C, k, mu, old, one, rho, token, trajectory, x
from oracles.certified_facts import decided, facts_of

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    Penalty,
    Stratum,
    absolute,
    after,
    before,
    centred,
    clip,
    clip_gate,
    decomposition,
    deviation,
    exp,
    gated,
    identity_gate,
    log,
    log_prob,
    log_ratio,
    mean,
    position,
    residual,
    reward,
    stop,
    token_mean,
    total,
)
from fibration.language.outline import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete

group, batch = Stratum("prompt_group"), Stratum("batch")
epsilon = Parameter("epsilon", default=0.2, upper=1)
HALF = Fraction(1, 2)


def of_tokens(density=x, gate=None, **more):
    return Hierarchy(
        name="one", gates={token: gate or identity_gate()}, objective=more.pop("objective", token_mean()),
        decomposition=decomposition(density=density, recovery=exp(gated(""))), **more,
    )  # fmt: skip


def test_equal_values_have_deviation_0_and_a_single_element_has_no_others():
    from fibration.language.exact import NoValue

    h = one(mu.keep(deviation(x, over=batch) < 1), groups=[group])
    maps = {(token, trajectory): (0, 0, 1), (trajectory, group): (0, 1), (group, batch): (0, 0)}
    here = Point(h, Concrete(whole_batch(h), maps), [Fraction(1, 3)] * 3, [Fraction(1)] * 3)
    assert here.value(deviation(x, over=batch), 0) == 0
    with pytest.raises(NoValue):
        here.value(mean(x * 0 + 1, over=group, of=trajectory, others=True), 0)


# ---------------------------------------------------------------- laws


def failing(h):
    return {v.law: v for v in h.verify().verdicts if not v.accepted}


@pytest.mark.parametrize(
    "density",
    [x + before(x, over=trajectory), x + after(x, over=trajectory, discount=HALF), x / (1 + position(over=trajectory))],
)
def test_a_decomposition_that_reads_other_tokens_breaks_recovery_and_gradient(density):
    found = failing(of_tokens(density))
    assert {law: v.status for law, v in found.items()} == dict.fromkeys(
        ("recovery", "first_order", "gradient"), "refuted"
    )
    point = found["gradient"].counterexample
    again = Point(of_tokens(density), point.concrete, point.values["log_ratios"], point.values["advantages"])
    assert tuple(again.coefficients) == point.values["coefficients"] != point.values["true"]


def test_a_stopped_prefix_in_a_decomposition_keeps_the_gradient():
    """Its value is another ratio than the token's. The gradient on policy is right."""
    h = of_tokens(x + stop(before(x, over=trajectory)), gate=clip_gate(epsilon))
    assert set(failing(h)) == {"recovery", "first_order"}
    verdict = decided(h, "gradient")[0]
    assert verdict.status == "proved" and "stopped" in verdict.argument
    assert h.replace(gives_up={"recovery": "a prefix's ratio", "first_order": "a prefix's ratio"}).verify().ok


LAWS = {
    "a prefix's ratio": (mu.weigh(exp(before(k, over=trajectory) + k)), {}),
    "a prefix of current ones": (mu.weigh(exp(before(x, over=trajectory))), {}),
    "a budget for the prefix": (mu.keep(absolute(before(x, over=trajectory) + x) <= epsilon), {}),
    "what rises so far": (mu.keep(before(x, over=trajectory) >= 0), {"mask_open": "refuted"}),
    "the prefix as it is": (mu.weigh(1 + before(x, over=trajectory)), {"objective": "refuted"}),
    "fewer and fewer": (mu.weigh(1 / (1 + position(over=trajectory))), {"agreement": "refuted"}),
    "the first four": (mu.keep(position(over=trajectory) < 4), {"mask_open": "refuted"}),
    "less where it is spread": (mu.weigh(1 / (1 + deviation(k, over=batch))), {"causal": "refuted"}),
    "by the spread": (mu.weigh(1 / deviation(k, over=batch)), {"objective": "refuted", "agreement": "refuted", "causal": "undecided"}),
    "where rows are spread": (mu.keep(deviation(mean(k, over=trajectory), over=batch, of=trajectory) <= C - 1), {"causal": "refuted"}),
    "the others' ratio": (mu.weigh(exp(mean(mean(k, over=trajectory), over=group, of=trajectory, others=True))), {}),
    "a sum of rows": (mu.weigh(total(mean(rho, over=trajectory), over=group, of=trajectory)), {"agreement": "refuted", "causal": "refuted"}),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAWS)
def test_the_laws_of_weights_decide_order_functions(name):
    objective, expected = LAWS[name]
    found = failing(one(objective, groups=[group]))
    assert {law: v.status for law, v in found.items()} == expected, found


def test_penalties_and_advantages_with_order_functions_need_a_value():
    spread = (reward - mean(reward, over=group, of=trajectory)) / deviation(reward, over=group, of=trajectory)
    whole = total(exp(x), over=trajectory)
    for more, status in (
        ({"penalties": {"p": Penalty(log(1 + whole), over=trajectory)}}, "proved"),
        ({"penalties": {"p": Penalty(log(whole - 1), over=trajectory)}}, "refuted"),
        ({"penalties": {"p": 1 / x}}, "refuted"),
        ({"penalties": {"p": Penalty(1 / x, objective=token_mean().keep(x > 0))}}, "proved"),
        ({"penalties": {"p": Penalty(x**2, objective=token_mean().weigh(x))}}, "refuted"),
        ({"advantages": spread}, "refuted"),
        ({"advantages": centred(reward, over=group, leave_one_out=True)}, "proved"),
        ({"advantages": log(reward)}, "refuted"),
    ):
        found = decided(one(groups=[group], **more), "objective")
        assert ("refuted" in {v.status for v in found}) is (status == "refuted"), (more, found)
        assert {v.status for v in found} <= {"proved", "refuted"} and len(found) > 1


@pytest.mark.thorough
def test_facts_of_a_gate_that_reads_order_say_what_is_certified():
    quiet = Gate(clip(residual, -epsilon * (1 + position(over=trajectory)), epsilon * (1 + position(over=trajectory))))
    report = one(gate=quiet, split=log_ratio()).verify()
    assert report.ok, report
    (amplification,) = facts_of(report.hierarchy, "amplification")
    assert "reached" not in amplification.value  # of tokens that are alike none is the first
    prefix = of_tokens(
        x + before(x, over=trajectory), gives_up=dict.fromkeys(("recovery", "first_order", "gradient"), "a prefix")
    )
    (blocks,) = facts_of(prefix, "blocks")
    assert blocks.value == "block-diagonal over trajectory"


def test_the_fact_normaliser_names_order_functions_of_the_whole_batch():
    h = one(
        groups=[group], advantages=centred(reward, over=group), gives_up={},
        penalties={"p": Penalty(log(total(exp(x), over=group)), over=group), "q": (log_prob(old) - mean(log_prob(old), over=batch)) * x},
    ).replace(gives_up={"kl_gradient": "a statistic's"})  # fmt: skip
    said = facts_of(h, "normaliser")[0].value
    for part in (
        "mean(reward, over=prompt_group, of=trajectory)",
        "total(exp(token_log_ratio), over=prompt_group)",
        "'p' is read over",
        "over=batch",
    ):
        assert part in said


def test_a_counterexample_has_at_least_two_elements_if_others_are_read():
    """An index refuses a batch with a single element there."""
    weight = mean(mean(k, over=trajectory), over=group, of=trajectory, others=True)
    witness = failing(one(mu.weigh(weight), groups=[group]))["objective"].counterexample
    assert witness.concrete.size[trajectory] > 1 and "has no value" not in str(witness)
