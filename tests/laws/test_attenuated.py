"""Weights that attenuate outward tokens, on any number of levels: their laws, and coefficients against their formula."""

import itertools

import numpy as np
import pytest
from hierarchies.builders import domain, prompt_group, token, trajectory
from support import Batch, operator, packed, padded, spec
from support import coefficients as computed

from fibration import (
    Hierarchy,
    Parameter,
    absolute,
    advantage,
    before,
    exp,
    identity_gate,
    maximum,
    mean,
    ratio_deviation,
    token_log_ratio,
    trajectory_mean,
    where,
)

OUTWARD = advantage * token_log_ratio > 0
SIZE = absolute(token_log_ratio)
LEVELS = (trajectory, prompt_group, domain)
# what an element's drift leaves of an outward pull beyond its budget, as a formula and as a function
KINDS = {
    "soft": (lambda d, b: 1 / maximum(d / b, 1), lambda d, b: min(1.0, b / d)),
    "hard": (lambda d, b: where(d > b, 0, 1), lambda d, b: float(d <= b)),
    "smooth": (lambda d, b: exp(-d / b), lambda d, b: np.exp(-d / b)),
}
LOOKS_AHEAD = {"causal": "drifts include later tokens"}


def budgets(level):
    high, low = (Parameter(f"C_{level}_{w}", default=v, on=level) for w, v in (("high", 0.2), ("low", 0.1)))
    return where(advantage > 0, high, low)


def attenuated(levels, kind="soft", drift=lambda s: mean(SIZE, over=s), **more):
    objective = trajectory_mean()
    for s in levels:
        objective = objective.weigh(where(OUTWARD, KINDS[kind][0](drift(s), budgets(s)), 1))
    fields = {
        "gates": {token: identity_gate()},
        "decomposition": ratio_deviation(),
        "groups": [s for s in levels if s != trajectory],
        "gives_up": dict(LOOKS_AHEAD),
    }
    return Hierarchy(name="attenuated", objective=objective, **{**fields, **more})


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [LEVELS[:1], LEVELS[1:2], LEVELS[2:], LEVELS[:2]])
def test_every_law_but_causal_is_proved(levels, kind):
    keys = {f"causal of {w}": why for w, why in zip(subjects(levels, kind), itertools.repeat("drifts look ahead"))}
    report = attenuated(levels, kind, gives_up=keys).verify()
    assert report.ok, str(report)
    assert {v.law for v in report.verdicts if v.status != "proved"} == {"causal"}


def subjects(levels, kind):
    """The subjects of `causal`, which has one for each weight."""
    return [f"weight {w}" for w in attenuated(levels, kind).objective.weighed]


@pytest.mark.thorough
def test_a_weight_that_does_not_tend_to_1_is_refused():
    report = attenuated(LEVELS[:1], drift=lambda s: 1 + mean(SIZE, over=s)).verify()
    assert {v.law for v in report.failures} == {"agreement"}


def test_a_drift_of_earlier_tokens_is_causal():
    for earlier in (before(SIZE, over=trajectory), before(SIZE, over=trajectory, discount=0.9)):
        assert attenuated(LEVELS[:1], drift=lambda s, d=earlier: d, gives_up={}).verify().ok
    others = mean(mean(SIZE, over=trajectory), over=prompt_group, of=trajectory, others=True)
    assert attenuated(LEVELS[1:2], drift=lambda s: others, gives_up={}).verify().ok


# ---------------------------------------------------------------- coefficients

LENGTHS = (3, 1, 4, 2, 5, 2)
LABELS = {"prompt_group": [0, 0, 1, 1, 2, 2], "domain": ["math", "math", "math", "code", "code", "code"]}
PER_LABEL = {"C_domain_high": {"math": 0.3, "code": 0.05}, "C_domain_low": {"math": 0.02, "code": 0.4}}


def batch_of(seed, levels):
    rng = np.random.default_rng(seed)
    advantages = np.repeat(rng.normal(size=len(LENGTHS)), LENGTHS)
    labels = {k: v for k, v in LABELS.items() if k in map(str, levels)}
    given = PER_LABEL if domain in levels else {}
    return Batch(LENGTHS, rng.normal(size=sum(LENGTHS)) * 0.3, advantages, labels, parameters=given)


def expected(batch, levels, kind):
    """`μ·w·A·r` of every token, by loops."""
    row, found = batch.row, []
    names = {trajectory: list(range(len(LENGTHS))), **{s: LABELS[str(s)] for s in levels if s != trajectory}}
    for k, (x, a) in enumerate(zip(batch.x, batch.advantages, strict=True)):
        w = 1.0
        for s in levels if a * x > 0 else ():
            own = names[s][row[k]]
            drift = np.mean([abs(batch.x[i]) for i in range(len(row)) if names[s][row[i]] == own])
            side = "high" if a > 0 else "low"
            budget = batch.parameters.get(f"C_{s}_{side}", {"high": 0.2, "low": 0.1}[side])
            w *= KINDS[kind][1](drift, budget[own] if isinstance(budget, dict) else budget)
        found.append(w * a * np.exp(x) / (len(LENGTHS) * LENGTHS[row[k]]))
    return np.array(found)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [LEVELS[:1], LEVELS[1:2], LEVELS[2:], LEVELS[:2], LEVELS])
def test_coefficients_are_those_of_the_formula(levels, kind):
    """Any number of levels, budgets per label and per channel, packed and padded."""
    op, place = operator(attenuated(levels, kind)), [packed, padded]
    for seed in range(4):
        batch = batch_of(seed, levels)
        found, _ = computed(op, place[seed % 2](op, batch), batch)
        wanted = expected(batch, levels, kind)
        assert np.abs(found - wanted).max() <= 1e-13 * np.abs(wanted).max()
        pulled = batch.advantages * found
        assert (pulled >= 0).all()  # no token is pushed against its advantage
        inward = batch.advantages * batch.x < 0
        assert np.allclose(found[inward], (expected(batch, (), kind))[inward], rtol=1e-13)


def test_what_an_answer_loses_goes_to_no_other():
    """The eight answers of `test_levels_of_a_tower.py`: the others keep their pull."""
    rewards = np.array([1.0] + 7 * [0.0])
    advantages = (rewards - rewards.mean()) / rewards.std(ddof=1)
    batch = Batch((1,) * 8, np.array([0.15] + 7 * [0.0]), advantages, {})
    op = operator(spec("attenuated_trajectory"))
    given = Batch(**{**vars(batch), "parameters": {"C_high": 0.05}})
    found = computed(op, packed(op, given), given)[0] * 8
    assert found == pytest.approx([2.88 / 3] + 7 * [-0.354], abs=0.005)
