"""The remainder of a given-up law: an advantage rises with its reward, a penalty leads towards its policy."""

import contextlib
import math
import random
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hierarchies import baselines, divergences
from hierarchies.baselines import G, T, greedy, others, prompt_group, spec, trajectory
from hierarchies.divergences import Term, beta, current, d, entropy, k3, old, slope, x
from laws.test_kl_gradient import NAMES, gradient, states, update

import fibration
from fibration import after, deviation, log_prob, mean, reward, standardised, where
from fibration.laws.objectives import baseline, kl_gradient
from fibration.laws.subject import Subject

ROWS = {**baselines.RIGHT, **baselines.WRONG}
REWARDED = (
    "best_of_group dapo_rewards grpo_rewards hierarchical_grpo opo pass_at_k ppo_gae reinforce_pp reinforce_pp_baseline "
    "dr_grpo_rewards rloo rloo_kl remax grpo_k3"
).split()
by_group = standardised(reward, over=prompt_group)


def left(law, hierarchy):
    return [found.status for found in law.remainder(Subject(hierarchy, []))]


@pytest.mark.sampled
@pytest.mark.parametrize("name", REWARDED)
def test_shipped_advantages_rise_with_reward(name):
    assert left(baseline, fibration.load(name)) == ["proved"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", ROWS)
def test_an_accepted_advantage_rises_with_its_own_reward(name):
    """All other rewards stay the same. Groups have two to six rows, in plain numbers."""
    (status,) = left(baseline, spec(ROWS[name].formula))
    steps = []
    for n, length in ((n, length) for n in range(2, 7) for length in (1, 3)):
        for base in (0, 1, -2):
            values = {}
            for own in (-3, -1, 0, 1, 3):
                row = SimpleNamespace(T=length, k=Fraction(0))
                rows = [SimpleNamespace(**vars(row), r=Fraction(base + own * (i == 0))) for i in range(n)]
                with contextlib.suppress(ZeroDivisionError):
                    values[own] = float(ROWS[name].of(0, rows))
            steps += [(values[own] - values[0]) * (1 if own > 0 else -1) for own in values if 0 in values]
    falls, flat = min(steps) < -1e-9, max(map(abs, steps)) < 1e-9
    assert status == ("undecided" if status == "undecided" else "refuted" if falls or flat else "proved")
    undefined_or_bent = ("by the mean", "less its square")  # for some rewards
    assert falls or flat or status == "proved" or name in undefined_or_bent


FALLS = {
    "GRPO, turned": -by_group,
    "rewards, turned": standardised(-reward, over=prompt_group),
    "no reward": standardised(greedy, over=prompt_group),
    "others alone": others - greedy,
    "a constant": reward * 0 + 1,
    "the length": 1 * T,
    "turned in groups of four": where(G > 3, -1, 1) * by_group,
    "turned in large groups": where(G > 30, -1, 1) * by_group,
    "less ten times as much": by_group - 10 * (reward - mean(reward, over=prompt_group, of=trajectory)),
    "how far it is from others": abs(reward - others),
    "squared": reward**2,
    "not centred, by the deviation": (reward - greedy) / (deviation(reward, over=prompt_group, of=trajectory) + 1e-6),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", FALLS)
def test_an_advantage_that_does_not_rise_with_its_reward_is_refused(name):
    assert left(baseline, spec(FALLS[name])) == ["undecided" if "large" in name else "refuted"]


def test_rewards_of_tokens_may_be_discounted_and_not_negated():
    rows = baselines.ONWARD_WRONG
    assert left(baseline, spec(rows["generalised"].formula)) == ["proved"]
    assert left(baseline, spec(-rows["discounted"].formula)) == ["refuted"]
    assert left(baseline, spec(baselines.value - rows["generalised"].formula)) == ["refuted"]


def test_a_subtracted_discount_may_reverse_a_later_reward():
    """The reward of k tokens later has the share 3·0.3**k - 0.8**k, which is above 0 for the next token alone."""
    soon, late = (after(reward, over=trajectory, discount=by) for by in (0.3, 0.8))
    assert left(baseline, spec(reward + 3 * soon - late)) == ["undecided"]
    assert left(baseline, spec(reward + 3 * soon + late)) == ["proved"]


# ---------------------------------------------------------------- penalties

TERMS = {**divergences.RIGHT, **divergences.WRONG}


@pytest.mark.sampled
@pytest.mark.parametrize("name", TERMS)
def test_a_proved_penalty_leads_towards_its_policy(name):
    term = TERMS[name]
    (status,) = left(kl_gradient, term.hierarchy)
    along = []
    for state in states(random.Random(name)):
        on = {p: state["current"] for p in state} | {"reference": state["reference"]}
        if term.target == "old":
            on |= {"old": near(state["current"])}
        goal = gradient(term.target, on)
        along += [float(update(term, on, "current") @ goal) / float(goal @ goal)]
        along += [float(update(term, on, "old") @ goal) / float(goal @ goal)] * (term.target == "old")
    one_way = min(along) > 1e-5 or (term.target == "" and max(along) < -1e-5)
    assert one_way if status == "proved" else True, along
    assert status != "refuted" or not min(along) > 1e-5 or name == "squashed"


def near(probabilities):
    moved = probabilities * np.exp(1e-4 * np.arange(len(probabilities)))
    return moved / moved.sum()


def test_a_squashed_penalty_leads_away_from_a_far_policy_and_is_refuted():
    term, state = TERMS["squashed"], {p: np.array([0.5, 0.5]) for p in NAMES} | {"reference": np.array([0.25, 0.75])}
    assert left(kl_gradient, term.hierarchy) == ["refuted"]
    c = [slope(term.of, **{NAMES[p]: math.log(v[a]) for p, v in state.items()}) for a in range(2)]
    assert c[0] < c[1]  # where log(π/reference) is log 2 and log 2/3


y = log_prob(current) - log_prob(old)
LEFT = {
    "k3": (k3, "proved"),
    "k3 of some states": (where(entropy > 1, k3, 0), "proved"),
    "k3, turned": (-k3, "refuted"),
    "k3, turned in some states": (where(entropy > 1, k3, -k3), "refuted"),
    "k3 by what may be below 0": ((entropy - 1) * k3, "refuted"),
    "k1": (beta * d, "refuted"),
    "no gradient": (x * 1, "refuted"),
    "the log ratio, and away from old": (x - 3 * x**2, "refuted"),
    "the same by log-probs": (y - 3 * y**2, "refuted"),
    "k1, and away from old": (d - 10 * x**2, "undecided"),
    "flat near old, and rising": (x**4, "undecided"),
    "of tokens that are joined": (mean(k3, over=trajectory), "undecided"),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_remainder_of_kl_gradient_is_the_direction(name):
    formula, status = LEFT[name]
    assert left(kl_gradient, Term(formula, lambda t: 0.0).hierarchy) == [status]


def test_the_remainder_of_each_penalty_has_a_verdict():
    h = divergences.RIGHT["k2"].hierarchy.replace(penalties={"kl": k3, "none": d})
    assert left(kl_gradient, h) == ["proved", "refuted"]
