"""Levels that push elements further out than their budget are refuted by a batch, and all others are proved."""

from fractions import Fraction

import pytest
from hierarchies.builders import T, W, budget, chain, epsilon, one, prompt_group, token, trajectory, two, weight, x
from oracles import brute_force, verdicts
from oracles.counterexample_json import from_json

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    advantage,
    aggregate_gate,
    atan,
    before,
    clip,
    clip_gate,
    count,
    decomposition,
    dual_clip_gate,
    exp,
    gated,
    identity_gate,
    load,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    pessimistic_clip_gate,
    policies,
    position,
    ratio_deviation,
    residual,
    sign,
    signed_log_ratio,
    some,
    stop,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import channel_sign, density, mass
from fibration.laws import LAWS
from fibration.laws.subject import Subject

STRIP = aggregate_gate(budget, rollback=count(token))
LOG = log_ratio(scale=1 / T)
low, high = Parameter("low", default=0.2, upper=1), Parameter("high", default=0.3)
ceiling = Parameter("ceiling", default=3.0, lower=1)
M = count(trajectory)


def groups(gate):
    """Advantages are of trajectories, and vary within a group."""
    return chain(uniform(), uniform(), gates={prompt_group: gate}, split=signed_log_ratio(scale=mass))


def dead_zone(rho):
    return where(abs(rho) <= budget, rho, where(abs(rho) < 2 * budget, sign(rho) * budget, rho - sign(rho) * budget))


PROVED = {
    **{n: load(n) for n in ("ppo", "grpo", "dapo", "dr_grpo", "gspo", "sapo", "cispo", "truly_ppo", "apc_obj")},
    **{n: load(n) for n in ("gspo_token", "ce_gppo", "fiberpo_inward", "fiberpo_inward_clip", "fiberpo_domain_inward")},
    "dual clip below its upper bound": one(dual_clip_gate(low, high, ceiling)),
    "clips": two(outer=clip_gate(budget)),
    "soft": one(epsilon * tanh(residual / epsilon), log_ratio()),
    "softer": one(epsilon * atan(residual / epsilon), log_ratio()),
    "nothing": two(outer=zero_gate(), gives_up={"first_order": "on purpose", "gradient": "on purpose"}),
    "bent between its bounds": one(where(abs(residual) <= 0.5, residual - residual**3, sign(residual) * 0.375), log_ratio()),
    "by a logarithm": one(residual / (1 + 3 * log1p(residual * residual)), log_ratio()),
    "by a logarithm, in units of a bound": one(residual / (1 + log1p((residual / budget) ** 2)), log_ratio()),
    "by a logarithm of ratios": one(residual / (1 + log1p(residual * residual))),
    "by a hyperbolic tangent": one(residual / (1 + tanh(abs(residual) / budget)), log_ratio()),
    "back smoothly, outwards alone": one(
        where(advantage * residual > 0, residual * exp(-((residual / budget) ** 2) / 2), residual), log_ratio()
    ),
    "inward": two(outer=STRIP.inward(), split=LOG),
    "inward, on both channels": two(outer=STRIP.inward(), inner=clip_gate(epsilon).per(1 / T).inward()),
    "inward with a ceiling": two(outer=STRIP.inward(ceiling=1 + budget), split=LOG),
    "inward in other units": two(outer=STRIP.inward().per(2), split=LOG),
    "inward over groups": groups(STRIP.per(M).inward()),
    "an inward dead zone": one(dead_zone(residual), log_ratio()).replace(gates={token: clip_gate(budget).inward()}),
    "a budget that moves with a density": two(
        inner=Gate(clip(residual, -epsilon - abs(density(trajectory)), epsilon + abs(density(trajectory)))), split=LOG
    ),
    "steeper where the mean ratio is above 0, as it is": two(
        inner=Gate(residual * (1 + density(trajectory))), split=ratio_deviation(scale=1 / T)
    ),
    "the same in sums of ratios": two(inner=Gate(residual * (1 + density(trajectory) / T)), split=ratio_deviation()),
    "the same of a weighted mean": two(
        weight / W, inner=Gate(residual * (1 + density(trajectory))), split=ratio_deviation(scale=weight / W)
    ),
    "a bound by the mean ratio": two(
        inner=Gate(clip(residual, -epsilon * (1 + density(trajectory)) / T, 1)), split=ratio_deviation(scale=1 / T)
    ),
    "rolled back against the advantage alone": two(
        outer=Gate(where(advantage > 0, minimum(residual, 2 * budget - residual), residual)), split=LOG
    ),
}  # fmt: skip
TURNED, LOST, OPENED = "turned", "lost", "opened"
REFUTED = {
    "the paper's": (load("fiberpo"), "trajectory", TURNED),
    "the paper's, a level higher": (load("fiberpo_domain"), "prompt_group", TURNED),
    "by least squares": (load("fiberpo_crossed"), "modality", TURNED),
    "where strata cross": (load("fiberpo_experts"), "expert", TURNED),
    "in ratios": (one(where(residual > high, 2 * high - residual, residual)), "token", TURNED),
    "a clip on the wrong side": (
        one(where(advantage >= 0, maximum(residual, -low), minimum(residual, high))), "token", LOST,
    ),
    "a dead zone that opens": (one(dead_zone(residual), log_ratio()), "token", OPENED),
    "an inward dead zone that opens": (one(Gate(dead_zone(residual)).inward(), log_ratio()), "token", OPENED),
    "the channel's sign forgotten": (two(outer=STRIP.inward(pull=advantage)), "trajectory", TURNED),
    "the channel's sign where there is none to turn": (
        two(outer=STRIP.inward(pull=-channel_sign * advantage), split=LOG), "trajectory", LOST,
    ),
    "the plain mean of advantages": (
        groups(STRIP.per(M).inward(pull=channel_sign * mean(advantage, over=prompt_group))), "prompt_group", TURNED,
    ),
    "a bell": (one(residual / (1 + residual * residual), log_ratio()), "token", TURNED),
    "a sharp logarithm": (one(residual / (1 + 4 * log1p(residual * residual)), log_ratio()), "token", TURNED),
    "a bell of an exponential": (one(residual * exp(-(residual * residual)), log_ratio()), "token", TURNED),
    "back smoothly, inwards alone": (
        one(where(advantage * residual < 0, residual * exp(-((residual / budget) ** 2) / 2), residual), log_ratio()),
        "token", TURNED,
    ),
    "steeper where the mean log ratio is above -1": (
        two(inner=Gate(residual * (1 + density(trajectory))), split=LOG), "token", TURNED,
    ),
    "steeper where a sum of ratios is above its length less 1": (
        two(inner=Gate(residual * (1 + density(trajectory))), split=ratio_deviation()), "token", TURNED,
    ),
    "steeper where the mean ratio is above 2/3": (
        two(inner=Gate(residual * (1 + 3 * density(trajectory))), split=ratio_deviation(scale=1 / T)), "token", TURNED,
    ),
    "a score below 0": (one(2 * residual).replace(objective=token_mean().score()), "hierarchy", TURNED),
}  # fmt: skip


other = Parameter("c", default=0.3)
(old,) = policies("old")
above, back = density(trajectory), 2 * budget - residual


def reopens(near, far):
    return where(near, residual, where(far, sign(residual) * budget, residual))


def tree(image_gate):
    text, image = strata("text image")
    both = MarkovKernel(1 / (count(text, over=trajectory) + count(image, over=trajectory)))
    return Hierarchy(
        name="tree",
        fibrations=[Fibration(text, trajectory, both), Fibration(image, trajectory, both)],
        gates={
            trajectory: identity_gate(),
            text: identity_gate(),
            image: Gate(image_gate(count(text, over=trajectory))),
        },
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


def logs(gate):
    return one(gate, log_ratio()), "token"


def reads(gate):
    return two(inner=Gate(gate), split=LOG), "token"


# Wrong, or not known to be right: each with what a batch shows, None where it is left undecided.
NOT_PROVED = {
    "a stop that turns round": (logs(where(residual > budget, 2 * stop(residual) - residual, residual)), TURNED),
    "a bound less what moves": (
        (one(where(residual > budget, budget - (residual - stop(residual)), residual)), "token"), TURNED,
    ),
    "what comes back is stopped": (
        logs(where((advantage * residual < 0) & (abs(residual) > budget), stop(residual), residual)), LOST,
    ),
    "stopped near 0 alone": (logs(where(abs(residual) < budget, stop(residual), residual)), OPENED),
    "stopped between two budgets": (logs(reopens(abs(residual) <= budget, abs(residual) < 2 * budget)), OPENED),
    "between two squares": (logs(reopens(residual**2 <= budget**2, residual**2 <= 4 * budget**2)), OPENED),
    "between two cubes": (logs(reopens(abs(residual**3) <= budget, abs(residual**3) <= 8 * budget)), OPENED),
    "between bounds without an order": (logs(reopens(abs(residual) <= budget, abs(residual) < other)), OPENED),
    "between exponentials": (logs(reopens(exp(residual) <= 1 + budget, exp(residual) <= 1 + 2 * budget)), OPENED),
    "between a bound and its square": (logs(reopens(abs(residual) <= budget, residual**2 <= other)), OPENED),
    "at one residual": (logs(where(residual < budget, residual, where(residual <= budget, budget, residual))), None),
    "turned at one residual": (logs(where((residual <= budget) & (residual >= budget), back, residual)), None),
    "a density that opens": (reads(where(abs(above) > budget, residual, 0)), OPENED),
    "a density that opens again": (reads(reopens(abs(residual) <= budget, abs(residual) < budget + abs(above))), None),
    "a density on the wrong side": (
        reads(where(advantage > 0, where(above < -budget, 0, residual), where(above > budget, 0, residual))), None,
    ),
    "a density that stops what comes back": (
        reads(where(advantage * residual > 0, residual, where(above > budget, 0, residual))), None,
    ),
    "a statistic of the policy that opens": (
        logs(where(abs(mean(token_log_ratio, over=trajectory)) > budget, residual, 0)), OPENED,
    ),
    "a mean of advantages on the wrong side": (
        logs(where(mean(advantage, over=trajectory) > 0, maximum(residual, -budget), minimum(residual, budget))), LOST,
    ),
    "a mean of a group's advantages": (
        (
            chain(uniform(), uniform(), split=log_ratio(scale=mass), gates={token: Gate(
                where(mean(advantage, over=prompt_group, of=trajectory) > 0, maximum(residual, -budget), minimum(residual, budget))
            )}),
            "token",
        ),
        LOST,
    ),
    "whether some advantage is positive": (
        logs(where(some(advantage > 0, over=trajectory), maximum(residual, -budget), minimum(residual, budget))), LOST,
    ),
    "a large advantage": (logs(where(advantage > 1, clip(residual, -budget, budget), residual)), LOST),
    "a small advantage": (logs(where(abs(advantage) < 2, residual, where(residual > 0, back, residual))), TURNED),
    "far log-probs": (logs(where((log_prob(old) < -3) & (residual > budget), back, residual)), TURNED),
    "late tokens": (logs(where((position(over=trajectory) > 5) & (residual > budget), back, residual)), None),
    "a large attribute": (
        logs(where((Attribute("v", on=token) > 100) & (residual > budget), back, residual)), None,
    ),
    "a budget that no ratio reaches": ((one(where(advantage > 0, 0, clip(residual, -1, 1))), "token"), LOST),
    "a budget that no mean of ratios reaches": (
        (
            two(outer=Gate(where(advantage > 0, 0, clip(residual, -1, 1))), split=ratio_deviation(scale=2 / T)),
            "trajectory",
        ),
        None,
    ),
    "an empty branch": (
        (tree(lambda texts: where(abs(residual) <= texts * abs(advantage), residual, -residual)), "image"), TURNED,
    ),
}  # fmt: skip
BESIDE = {
    "a stop beyond a budget": logs(where(abs(residual) > budget, stop(residual), residual)),
    "squares": logs(where(residual**2 <= budget**2, residual, sign(residual) * budget)),
    "cubes": logs(where(residual**3 <= budget, residual, 0)),
    "exponentials": logs(where(exp(residual) + residual <= 1 + budget, residual, 0)),
    "two bounds without an order": logs(where((abs(residual) <= budget) & (abs(residual) <= other), residual, 0)),
    "a bound by an attribute": logs(clip(residual, -Attribute("v", on=token), budget)),
    "a bound by the advantage": logs(where(abs(residual) <= budget * abs(advantage), residual, 0)),
    "a density that closes": reads(where(abs(above) <= budget, residual, 0)),
    "a bound by another branch": (tree(lambda texts: clip(residual, -budget * texts, budget * texts)), "image"),
}


def verdict(h, subject):
    subject = subject if subject == "hierarchy" else f"gate on {subject}"
    return next(v for v in h.verify().verdicts if (v.law, v.subject) == ("inward", subject))


NEAR = abs(x) < 0.1


def split_of(outside, inside=NEAR):
    return decomposition(density=where(inside, x, outside), recovery=exp(gated("")))


AGAINST, BACK = x * advantage < 0, 2 * stop(x) - x
OF_DECOMPOSITIONS = {  # the status of R∘F, its fault, and the status of what is left
    "back on both sides": (one(residual, split_of(BACK)), "refuted", TURNED, "proved"),
    "R, back on both sides": (
        one(residual, decomposition(density=x, recovery=where(abs(gated("")) < 0.1, exp(gated("")), exp(2 * stop(gated("")) - gated(""))))),
        "refuted", TURNED, "proved",
    ),
    "back where the advantage is against it": (one(residual, split_of(BACK, ~AGAINST)), "refuted", TURNED, "undecided"),
    "back where the advantage is with it": (one(residual, split_of(BACK, AGAINST)), "proved", "", ""),
    "in a chain": (two(split=decomposition(density=where(abs(x) < 0.1, x, BACK) / T, recovery=exp(gated("") * T), scale=1 / T)), "refuted", TURNED, "proved"),
    "stopped": (one(residual, split_of(stop(x))), "proved", "", ""),
    "steeper": (one(clip(residual, -1, 1), split_of(3 * x - 2 * stop(x))), "proved", "", ""),
    "stopped on the wrong side": (one(residual, split_of(stop(x), ~AGAINST | (abs(x) < 0.1))), "undecided", LOST, "proved"),
    "open again": (one(residual, split_of(where(abs(x) < 1, stop(x), x))), "undecided", OPENED, "proved"),
    "beside what comes before": (one(residual, decomposition(density=x + stop(before(x, over=trajectory)), recovery=exp(gated("")))), "proved", "", ""),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", OF_DECOMPOSITIONS)
def test_a_decomposition_with_stop_is_judged_as_a_gate_of_log_ratios(name):
    h, status, fault, rest = OF_DECOMPOSITIONS[name]
    subject = Subject(h, [])
    [found] = (v for v in LAWS["inward"].decide(subject) if v.subject == "decomposition")
    assert (found.status, found.fault) == (status, fault)
    if status == "refuted":
        brute_force.confirm(h, found)
    subject.verdicts.append(found)
    assert "".join(v.status for v in LAWS["inward"].decide_rest(subject, [found] if fault else [])) == rest


@pytest.mark.sampled
@pytest.mark.parametrize("name", PROVED)
def test_a_gate_that_never_pushes_further_out_is_proved(name):
    h = PROVED[name]
    found = [v for v in h.verify().verdicts if v.law == "inward"]
    assert found
    assert all(v.status == "proved" for v in found), [str(v) for v in found]


@pytest.mark.sampled
@pytest.mark.parametrize("name", REFUTED)
def test_a_gate_that_pushes_further_out_is_refuted(name):
    h, subject, what = REFUTED[name]
    found = verdict(h, subject)
    assert found.status == "refuted", found
    assert found.counterexample.values["what"] == what
    assert "inward" in found.remedy
    plain = h.replace(orthogonalise=None) if h.orthogonalise else h  # on a balanced batch they agree
    brute_force.confirm(plain, from_json(h, found))


def test_a_sum_of_deviations_is_below_minus_1_where_several_ratios_fall():
    """Rows of equal advantages have the coefficients of no gate: residuals add up to 0. The text says so."""
    h = two(outer=identity_gate(), inner=Gate(residual * (1 + density(trajectory))), split=ratio_deviation())
    found = verdict(h, "token")
    assert found.status == "refuted" and found.counterexample.values["ratios"] == (1, Fraction(2, 5), Fraction(2, 5))
    assert "those of μ·A·r: other tokens make up for it on this batch" in found.counterexample.text


@pytest.mark.sampled
@pytest.mark.parametrize("name", NOT_PROVED)
def test_a_gate_with_stopped_slopes_or_unordered_breakpoints_is_not_proved(name):
    (h, subject), what = NOT_PROVED[name]
    found = verdict(h, subject)
    assert found.status == ("refuted" if what else "undecided"), found
    assert found.counterexample is None or found.counterexample.values["what"] == what


@pytest.mark.sampled
@pytest.mark.parametrize("name", BESIDE)
def test_a_gate_that_closes_for_good_is_proved_for_any_order_of_its_breakpoints(name):
    h, subject = BESIDE[name]
    found = verdict(h, subject)
    assert found.status == "proved", found


def test_a_recovery_that_falls_where_no_density_lies_is_not_taken_as_rising():
    """`R(F(r)) = r` says nothing of the gap from 1 to 2, in which the gate puts residuals."""
    x, y = token_log_ratio, gated("")
    h = Hierarchy(
        name="gap",
        gates={token: Gate(where(residual > 2.5, where(advantage < 0, residual - 1, 2.5), residual))},
        decomposition=decomposition(
            density=where(x < 1, x, x + 1), recovery=where(y < 1, exp(y), where(y < 2, exp(2 - y), exp(y - 1)))
        ),
        objective=trajectory_mean(),
    )
    verdicts_of = {v.law: v.status for v in h.verify().verdicts}
    assert verdicts_of["recovery"] == "proved" and verdicts_of["inward"] != "proved"


def test_the_counterexample_is_the_smallest_batch_with_its_coefficient():
    found = verdict(load("fiberpo"), "trajectory")
    assert str(found.counterexample) == (
        'in a trajectory of 1 token with advantage -1 and log ratio 11/50, trajectory 1 on channel "+" has the residual '
        "11/50 and is pulled back, and its gate turns that round with the slope -1: the coefficient ∂J/∂log π is 1.19722 "
        "instead of μ·A·r = -1.24608 (C_trajectory[+] = 1/5; C_trajectory[-] = 1/10; epsilon = 1/20)"
    )


def test_the_remedy_for_fiberpo_domain_verifies():
    h = load("fiberpo_domain")
    mended = h.replace(gates={s: g.inward() for s, g in h.gates.items()}, gives_up={})
    assert mended.verify().ok


@pytest.mark.sampled
@pytest.mark.parametrize("split", [signed_log_ratio(scale=1 / T), LOG, ratio_deviation(scale=1 / T)])
def test_giving_up_inward_is_refused_if_it_holds(split):
    why = {"inward": "on purpose"}
    assert two(outer=aggregate_gate(budget, rollback=1), split=split, gives_up=why).verify().head is not None
    kept = two(outer=identity_gate(), inner=identity_gate(), split=split, gives_up=why).verify()
    assert any(v.law == "given_up" and v.status == "refuted" for v in kept.verdicts)


def test_a_clip_on_the_wrong_side_is_refuted_and_that_of_ppo_is_proved():
    wrong, right = REFUTED["a clip on the wrong side"][0], one(pessimistic_clip_gate(low, high))
    assert verdict(right, "token").status == "proved"
    assert verdict(wrong.replace(gates={token: wrong.gates[token].inward()}), "token").status == "proved"


def test_the_remedy_for_swapped_bounds_is_to_swap_them():
    """`inward()` would leave the gate without a bound. The coefficient is too large, not of the wrong sign."""
    found = verdict(REFUTED["a clip on the wrong side"][0], "token")
    assert found.remedy.startswith("write token: pessimistic_clip_gate(low, high) in gates")
    text = str(found.counterexample)
    assert "its gate lets pass, though it stops what would come back from there" in text
    assert "instead of" not in text and ", all of μ·A·r" in text
    plain = one(residual, log_ratio())
    for gate in (clip_gate(budget).inward(pull=-advantage), aggregate_gate(0.1, rollback=1).inward(pull=-advantage)):
        found = verdict(plain.replace(gates={token: gate}), "token")
        assert found.remedy.startswith("leave pull= out of inward()")
        assert found.counterexample.values["what"] == LOST, "which the sentence is of, too"
        assert found.found.endswith("which stops inward pulls, and no outward pull")


def test_the_remedy_for_gates_per_channel_names_each_channel():
    found = verdict(two(outer={"+": STRIP, "-": aggregate_gate(epsilon, rollback=1)}), "trajectory")
    mended = (
        f'write trajectory: {{"+": {STRIP}.inward(), "-": {aggregate_gate(epsilon, rollback=1)}.inward()}} in gates;'
    )
    assert found.remedy.startswith(mended)


@pytest.mark.parametrize("pull", [advantage - 1, advantage - 0.5, 2 * advantage + 5])
def test_a_wrong_pull_is_found_at_advantages_between_its_breakpoints(pull):
    found = verdict(one(aggregate_gate(0.1, rollback=1).inward(pull=pull).expression, log_ratio()), "token")
    assert found.status == "refuted" and found.counterexample.values["what"] == TURNED


@verdicts.wrong_specs("inward")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
