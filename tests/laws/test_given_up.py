"""A reason covers one fault of one law. Other subjects and other faults are still decided."""

import re
from dataclasses import replace

import pytest
from hierarchies import baselines, divergences
from hierarchies.builders import T, budget, epsilon, two
from hierarchies.divergences import d, k3
from hierarchies.weights_and_masks import C, batch, k, mu, one, rho, trajectory
from oracles import brute_force
from oracles.counterexample_json import from_json

from fibration import (
    Gate,
    Hierarchy,
    LawError,
    SpecError,
    aggregate_gate,
    clip_gate,
    exp,
    identity_gate,
    load,
    log_ratio,
    maximum,
    mean,
    minimum,
    ratio_deviation,
    residual,
    sign,
    some,
    token_mean,
    total,
    where,
    zero_gate,
)
from fibration.language.atoms import advantage, mass

WHY = "on purpose"
SEQUENCE = exp(mean(k, over=trajectory))
WHOLE, LAST = minimum(exp(total(k, over=trajectory)), C), exp(mean(k, over=batch))
CLOSED = ~some(rho > C, over=trajectory)
STANDARDISED = baselines.standardised(baselines.reward, over=baselines.prompt_group)
LOG = log_ratio(scale=1 / T)
ROLLS_BACK = aggregate_gate(budget, rollback=1)
WRONG_SIDE = Gate(where(advantage >= 0, maximum(residual, -epsilon), minimum(residual, epsilon)))
OPENS = Gate(where(abs(residual) <= budget, residual, where(abs(residual) < 2 * budget, 0, residual)))
FURTHER = abs(residual) - 2 * budget
PASSES_AGAIN = Gate(where(abs(residual) <= budget, residual, where(FURTHER < 0, -FURTHER, FURTHER) * sign(residual)))
WRONG_WAY = Gate(where((advantage * residual < 0) & (abs(residual) > budget), -FURTHER * sign(residual), residual))
TWO_WAYS = Gate(
    where(residual < -budget, -2 * budget - residual, where(advantage < 0, minimum(residual, budget), residual))
)


def penalised(gives_up=(), **penalties):
    return Hierarchy(
        name="one",
        gates={divergences.token: identity_gate()},
        decomposition=ratio_deviation(),
        objective=token_mean(),
        penalties=penalties,
        gives_up={key: WHY for key in gives_up},
    )


def levels(outer, inner, *gives_up):
    return two(outer=outer, inner=inner, split=LOG, gives_up={key: WHY for key in gives_up})


def weighed(objective, *gives_up):
    return one(objective, gives_up={key: WHY for key in gives_up})


TWO_WEIGHTS = mu.weigh(SEQUENCE).weigh(LAST)
ACCEPTED = {
    "one weight": weighed(mu.weigh(SEQUENCE), "causal"),
    "one weight, by its name": weighed(mu.weigh(SEQUENCE), f"causal of weight {SEQUENCE}"),
    "two weights, by their names": weighed(TWO_WEIGHTS, *(f"causal of weight {w}" for w in (SEQUENCE, LAST))),
    "one of two weights by its name": weighed(TWO_WEIGHTS, f"causal of weight {LAST}", "causal"),
    "a weight and a condition by their names": weighed(
        mu.weigh(WHOLE).keep(CLOSED), f"causal of weight {WHOLE}", f"causal of condition {CLOSED}"
    ),
    "a weight and a condition of one statistic": weighed(mu.weigh(SEQUENCE).keep(SEQUENCE <= C), "causal"),
    "a weight of two that is not 1": weighed(mu.weigh(rho).weigh(2 * rho), "agreement"),
    "one mask of two": weighed(mu.keep(rho < C).keep(rho < 1), f"mask_open of condition {rho < 1}"),
    "k3": penalised(["kl_gradient"], kl=k3),
    "k3 by its name": penalised(["kl_gradient of kl"], kl=k3, other=d**2),
    "k3 as the report shows it": penalised(["kl_gradient of penalty 'kl'"], kl=k3),
    "k3 and k1 by their names": penalised(["kl_gradient of kl", "kl_gradient of other"], kl=k3, other=d),
    "k3 by its name and k1": penalised(["kl_gradient of kl", "kl_gradient"], kl=k3, other=d),
    "a roll-back": levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward"),
    "a roll-back by its name": levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward of trajectory"),
    "a roll-back as the report shows it": levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward of gate on trajectory"),
    "roll-backs on both levels": levels(ROLLS_BACK, ROLLS_BACK.per(mass), "inward"),
    "each roll-back by its name": levels(ROLLS_BACK, ROLLS_BACK.per(mass), "inward of trajectory", "inward of token"),
    "a roll-back, and the wrong side by its name": levels(ROLLS_BACK, WRONG_SIDE, "inward", "inward of token"),
    "the paper's": load("fiberpo_domain"),
    "nothing of a level": levels(clip_gate(budget), zero_gate(), "first_order"),
    "nothing of a level, by its name": levels(clip_gate(budget), zero_gate(), "first_order", "identity of token"),
    "by the deviation": baselines.spec(STANDARDISED, gives_up={"baseline": WHY}),
}  # fmt: skip
FALLS_SHORT = {  # and the verdicts that no reason covers
    "two weights": (weighed(TWO_WEIGHTS, "causal"), [f"causal of weight {w}" for w in (SEQUENCE, LAST)]),
    "another weight by its name": (weighed(TWO_WEIGHTS, f"causal of weight {LAST}"), [f"causal of weight {SEQUENCE}"]),
    "a weight and a condition": (
        weighed(mu.weigh(WHOLE).keep(CLOSED), "causal"), [f"causal of weight {WHOLE}", f"causal of condition {CLOSED}"],
    ),
    "two weights of one statistic": (
        weighed(mu.weigh(SEQUENCE).weigh(SEQUENCE**2), "causal"), [f"causal of weight {w}" for w in (SEQUENCE, SEQUENCE**2)],
    ),
    "a weight and two conditions of one statistic": (
        weighed(mu.weigh(SEQUENCE).keep(SEQUENCE <= C).keep(SEQUENCE >= 1 / C), "causal"),
        [f"causal of weight {SEQUENCE}", f"causal of condition {SEQUENCE <= C}", f"causal of condition {SEQUENCE >= 1 / C}"],
    ),
    "two weights that are not 1": (
        weighed(mu.weigh(rho / 2).weigh(2 * rho), "agreement"), [f"agreement of weight {w}" for w in (rho / 2, 2 * rho)],
    ),
    "two masks": (
        weighed(mu.keep(rho < 1).keep(rho > 1), "mask_open"), [f"mask_open of condition {c}" for c in (rho < 1, rho > 1)],
    ),
    "k3 and k1": (penalised(["kl_gradient"], kl=k3, other=d), ["kl_gradient of kl", "kl_gradient of other"]),
    "k1 twice": (penalised(["kl_gradient"], kl=d, other=2 * d), ["kl_gradient of kl", "kl_gradient of other"]),
    "k1 beside k3 by its name": (penalised(["kl_gradient of kl"], kl=k3, other=d), ["kl_gradient of other"]),
    "a roll-back and the wrong side": (
        levels(ROLLS_BACK, WRONG_SIDE, "inward"), ["inward of trajectory", "inward of token"],
    ),
    "the wrong side beside a roll-back by its name": (
        levels(ROLLS_BACK, WRONG_SIDE, "inward of trajectory"), ["inward of token"],
    ),
    "a roll-back and a dead zone that opens": (
        levels(ROLLS_BACK, OPENS, "inward"), ["inward of trajectory", "inward of token"],
    ),
    "a roll-back and one of the name of another": (
        levels(ROLLS_BACK, ROLLS_BACK.per(mass), "inward of token"), ["inward of trajectory"],
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_reason_covers_the_fault_that_it_names(name):
    found = ACCEPTED[name].verify()
    assert found.ok, found
    assert Hierarchy.model_validate_json(ACCEPTED[name].model_dump_json()).verify().to_dict() == found.to_dict()


@pytest.mark.sampled
@pytest.mark.parametrize("name", FALLS_SHORT)
def test_a_reason_covers_no_other_fault(name):
    h, keys = FALLS_SHORT[name]
    found = h.verify()
    with pytest.raises(LawError):
        found.raise_for_status()
    open_ = [v for v in found.failures if v.law == keys[0].partition(" of ")[0]]
    assert len(open_) == len(keys)
    for key, v in zip(keys, open_, strict=True):
        assert f"gives_up={{{key!r}: 'why'}}" in v.remedy
        assert not v.given_up
    named = h.replace(gives_up={**h.gives_up, **dict.fromkeys(keys, WHY)})
    bare = {"causal", "agreement", "mask_open", "kl_gradient", "inward"}
    assert named.replace(gives_up={k: why for k, why in named.gives_up.items() if k not in bare}).verify().ok


@pytest.mark.thorough
def test_a_reason_covers_an_undecided_level_only_by_name():
    undecided = Gate(where(abs(residual) <= budget * T, residual, where(abs(residual) <= budget, 0, residual)))
    h = levels(ROLLS_BACK, undecided, "inward")
    status = {v.subject: (v.status, v.accepted) for v in h.verify().verdicts if v.law == "inward"}
    assert status["gate on trajectory"] == ("refuted", True)
    assert status["gate on token"] == ("undecided", False)
    alone = levels(clip_gate(budget), undecided, "inward").verify()
    assert alone.ok, alone


NOTHING = {  # a key, of what hierarchy, and what is said of it
    "holds": (levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward", "inward of token"), "inward of token", "holds"),
    "of a weight that holds": (
        weighed(mu.weigh(rho).weigh(SEQUENCE), "causal", f"causal of weight {rho}"), f"causal of weight {rho}", "holds"
    ),
    "of a penalty that holds": (
        penalised(["kl_gradient of kl", "kl_gradient of other"], kl=k3, other=d**2), "kl_gradient of other", "holds"
    ),
    "no such weight": (
        weighed(mu.weigh(SEQUENCE), "causal", f"causal of weight {WHOLE}"), f"causal of weight {WHOLE}", "has no verdict"
    ),
    "no such subject": (two(gives_up={"positivity of token": WHY}), "positivity of token", "has no verdict"),
    "no residual": (two(gives_up={"orthogonality of trajectory": WHY}), "orthogonality of trajectory", "has no verdict"),
    "a law of formulas, without one": (weighed(mu, f"causal of weight {rho}"), f"causal of weight {rho}", "has nothing to speak of"),
    "all are named": (
        levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward", "inward of trajectory"), "inward", "covers nothing"
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", NOTHING)
def test_a_key_that_covers_nothing_is_refused(name):
    h, key, how = NOTHING[name]
    (failure,) = h.verify().failures
    assert (failure.law, failure.subject, failure.fault) == ("given_up", f"law '{key}'", how)
    with pytest.raises(LawError, match=how):
        h.verify().raise_for_status()
    assert h.replace(gives_up={k: why for k, why in h.gives_up.items() if k != key}).verify().ok


def test_the_error_for_an_unknown_subject_lists_the_subjects():
    (failure,) = NOTHING["no such weight"][0].verify().failures
    assert f"'causal of weight {SEQUENCE}'" in failure.remedy


MISTAKES = {
    "a stratum that is not there": ({"inward of trajectori": WHY}, "did you mean 'inward of trajectory'?"),
    "a stratum of another hierarchy": ({"identity of domain": WHY}, "identity of token"),
    "an unknown law of a subject": ({"inwards of token": WHY}, "did you mean 'inward'?"),
    "a foundation of a subject": ({"reflecting of token": WHY}, "mend the hierarchy"),
    "without a reason": ({"inward of token": " "}, "a sentence"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_an_unknown_key_is_refused_at_the_declaration(name):
    given, said = MISTAKES[name]
    with pytest.raises(SpecError, match=said.replace("?", r"\?")):
        two(gives_up=given)


def test_a_key_with_an_unknown_penalty_is_refused_at_the_declaration():
    with pytest.raises(SpecError, match="did you mean 'kl_gradient of kl'"):
        penalised(["kl_gradient of k"], kl=k3)


def test_the_report_has_the_reason_of_each_subject():
    reasons = {
        "inward of trajectory": "the strip looks at drift alone",
        "inward of token": "bounded the other way round",
    }
    found = two(outer=ROLLS_BACK, inner=WRONG_SIDE, split=LOG, gives_up=reasons).verify()
    assert found.ok
    for key, why in reasons.items():
        assert f"inward           gate on {key.removeprefix('inward of ')}: given up: {why}" in found.table()
        assert f"given up         {key.replace('of', 'of gate on')}: {why}" in str(found)
    assert {v["given_up"] for v in found.to_dict()["verdicts"] if v.get("given_up")} == set(reasons.values())
    assert {v["fault"] for v in found.to_dict()["verdicts"] if v.get("fault")} == {"turned", "lost"}


def test_if_several_subjects_fail_the_remedy_names_each_of_them():
    found = levels(ROLLS_BACK, ROLLS_BACK.per(mass)).verify()
    for v in found.failures:
        assert f"gives_up={{'inward of {v.subject.removeprefix('gate on ')}': 'why'}}" in v.remedy
    (alone,) = levels(ROLLS_BACK, clip_gate(epsilon).per(mass)).verify().failures
    assert "gives_up={'inward': 'why'}" in alone.remedy


# ---------------------------------------------------------------- what is left

R = baselines.reward
LEFT = {  # what is given up, and whether what is left of the law is right
    "baseline: by the deviation": (baselines.spec(STANDARDISED, gives_up={"baseline": WHY}), True),
    "baseline: turned": (baselines.spec(-STANDARDISED, gives_up={"baseline": WHY}), False),
    "baseline: turned, by its name": (baselines.spec(-STANDARDISED, gives_up={"baseline of advantages": WHY}), False),
    "baseline: of rewards, turned": (
        baselines.spec(baselines.standardised(-R, over=baselines.prompt_group), gives_up={"baseline": WHY}), False,
    ),
    "baseline: without a reward": (baselines.spec(baselines.greedy, gives_up={"baseline": WHY}), False),
    "baseline: a constant": (baselines.spec(0 * R + 1, gives_up={"baseline": WHY}), False),
    "kl_gradient: k3": (penalised(["kl_gradient"], kl=k3), True),
    "kl_gradient: k3, turned": (penalised(["kl_gradient"], kl=-k3), False),
    "kl_gradient: k3, turned, by its name": (penalised(["kl_gradient of kl"], kl=-k3), False),
    "kl_gradient: k1": (penalised(["kl_gradient"], kl=d), True),
    "kl_gradient: k1, by its name": (penalised(["kl_gradient of kl"], kl=d), True),
    "inward: a roll-back": (levels(ROLLS_BACK, clip_gate(epsilon).per(mass), "inward"), True),
    "inward: a dead zone that opens": (levels(OPENS, clip_gate(epsilon).per(mass), "inward"), True),
    "inward: the wrong side": (levels(WRONG_SIDE, clip_gate(epsilon).per(mass), "inward"), True),
    "inward: a roll-back that opens again": (levels(PASSES_AGAIN, clip_gate(epsilon).per(mass), "inward"), False),
    "inward: a roll-back on the wrong side": (levels(WRONG_WAY, clip_gate(epsilon).per(mass), "inward"), False),
    "inward: a roll-back on the wrong side, by its name": (
        levels(WRONG_WAY, clip_gate(epsilon).per(mass), "inward of trajectory"), False,
    ),
    "inward: a roll-back below 0, and the wrong side above": (
        levels(TWO_WAYS, clip_gate(epsilon).per(mass), "inward"), False,
    ),
    "kl_gradient: no slope": (penalised(["kl_gradient"], kl=0 * k3), False),
    "kl_gradient: no slope, by its name": (penalised(["kl_gradient of kl"], kl=0 * k3), False),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEFT)
def test_the_remainder_of_a_given_up_law_is_decided(name):
    h, right = LEFT[name]
    found = h.verify()
    law, (given,) = name.partition(":")[0], h.gives_up
    left = [v for v in found.verdicts if v.law == law and v.subject.startswith("what is left of ")]
    if right:
        assert found.ok, found
        assert all(v.status == "proved" for v in left)
        return
    (failure,) = found.failures
    assert left == [failure]
    if law == "inward":
        whole = replace(from_json(h, failure), subject=failure.subject.removeprefix("what is left of "))
        brute_force.confirm(h, whole, found.verdicts)
    assert failure.status == "refuted" and failure.counterexample
    with pytest.raises(LawError, match="what is left of"):
        found.raise_for_status()
    (key,) = re.findall(r"gives_up=\{['\"](.*?)['\"]: 'why'\}", failure.remedy)
    assert key.startswith(f"{law} of what is left of ")
    assert h.replace(gives_up={given: WHY, key: WHY}).verify().ok


def test_giving_up_a_remainder_that_holds_is_refused():
    given = {"kl_gradient": WHY, "kl_gradient of what is left of kl": WHY}
    (failure,) = penalised(given, kl=k3).verify().failures
    assert (failure.law, failure.fault) == ("given_up", "holds")
