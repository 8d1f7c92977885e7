"""Expected updates of proved and refuted advantages, summed over all samples of small bandits."""

import itertools
import json
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hierarchies.baselines import (
    ONWARD_RIGHT,
    ONWARD_WRONG,
    RIGHT,
    WRONG,
    G,
    Half,
    T,
    batch,
    kl,
    others,
    prompt_group,
    reward,
    share,
    spec,
    token,
    trajectory,
)
from oracles.certified_facts import decided

from fibration import (
    Attribute,
    absolute,
    after,
    before,
    count,
    deviation,
    exp,
    maximum,
    mean,
    position,
    some,
    where,
)

# Answers to one prompt: their probabilities, and what each of them has.
BANDITS = [
    [(Fraction(p), SimpleNamespace(r=Fraction(r), T=length, k=Fraction(k))) for p, r, length, k in answers]
    for answers in (
        [("1/2", 0, 1, "1/2"), ("1/4", 1, 2, "1/3"), ("1/4", 2, 1, "-1/4")],
        [("1/6", 0, 1, "0"), ("1/2", 1, 1, "1/5"), ("1/3", 3, 3, "1/2")],
    )
]


def verdict(formula):
    (found,) = decided(spec(formula), "baseline", alone=True)
    return found


def expected(bandit, n, of):
    """`E[mean over rows of A·∇log p]` in the answers' logits, over all samples of `n` answers."""
    p = [q for q, _ in bandit]
    found = [Fraction(0)] * len(p)
    for chosen in itertools.product(range(len(p)), repeat=n):
        rows = [bandit[a][1] for a in chosen]
        chance = Fraction(1)
        for a in chosen:
            chance *= p[a]
        for i, a in enumerate(chosen):
            advantage = of(i, rows)
            for b in range(len(p)):
                found[b] += chance * advantage * ((a == b) - p[b]) / n
    return found


def true(bandit, score):
    """The gradient of the expected score of one answer."""
    mean = sum(p * score(x) for p, x in bandit)
    return [p * (score(x) - mean) for p, x in bandit]


@pytest.mark.parametrize("name", RIGHT)
def test_the_expected_update_of_a_proved_baseline_is_its_factor_times_the_gradient(name):
    row = RIGHT[name]
    found = verdict(row.formula)
    assert found.status == "proved", found
    assert ("A = R - b" in found.argument) is (row.kappa(2) == 1)
    assert ("own sample" in found.argument) is row.adds
    for bandit, n in itertools.product(BANDITS, (2, 3)):
        score = {
            "a divergence in the reward": lambda x: x.r - x.k / 2,
            "length in the reward": lambda x: x.r - Fraction(x.T, 4),
        }
        goal = true(bandit, score.get(name, lambda x: x.r))
        assert expected(bandit, n, row.of) == [row.kappa(n) * g for g in goal]


def test_the_factor_of_a_group_mean_is_stated_for_every_group_size():
    said = verdict(RIGHT["the group's mean"].formula).argument
    assert "(-1 + count(trajectory, over=prompt_group))/count(trajectory, over=prompt_group)" in said and share(
        4
    ) == Fraction(3, 4)
    assert (
        "count(prompt_group, over=batch)*count(trajectory, over=prompt_group)"
        in verdict(RIGHT["the groups' mean"].formula).argument
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_the_expected_update_of_a_refuted_advantage_is_no_multiple_of_the_gradient(name):
    """No single factor fits all bandits of two answers."""
    row = WRONG[name]
    found = verdict(row.formula)
    assert found.status == "refuted", found
    factors = set()
    for bandit in BANDITS:
        update, goal = expected(bandit, 2, row.of), true(bandit, lambda x: x.r)
        factors |= {round(float(u / g), 9) for u, g in zip(update, goal, strict=True)}
    assert len(factors) > 1 or max(factors) <= 0, factors
    steps = [float(Fraction(v)) for v in json.loads(json.dumps(found.counterexample.to_dict()))["values"]["steps"]]
    assert len(set(steps)) == 2 or max(steps) <= 0


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_the_steps_in_a_counterexample_are_those_of_the_formula(name):
    """The formula in plain numbers is evaluated on the rewards of the counterexample."""
    row, found = WRONG[name], verdict(WRONG[name].formula).counterexample
    values = found.values

    def rows(of, rewards, drift):
        made = {}
        for k, (r, x) in enumerate(zip(of, rewards, strict=True)):
            at = made.setdefault(r, SimpleNamespace(r=x, T=0, k=Fraction(0)))
            at.T += 1
            at.k -= int(bool(drift) and k == 0) * (1 if drift == "old" else -1)
        return list(made.values())

    here = rows(values["row"], values["rewards"], "")
    there = rows(values["after_row"], values["after_rewards"], values["policy"])
    seen = []
    for b, own in itertools.product((here, there), (True, False)):
        for low, high in ((0, 1), (1, 2), (-1, 0)):
            ends = []
            for r in (low, high):
                moved = [
                    SimpleNamespace(**{**vars(x), "r": Fraction(r)}) if (j == 0) is own else x for j, x in enumerate(b)
                ]
                ends.append(row.of(0, moved))
            seen.append(float(ends[1] - ends[0]))
    for step in values["steps"]:
        assert any(abs(float(step) - s) < 1e-9 for s in seen), (step, seen)


# ---------------------------------------------------------------- tokens

FIRST, SECOND = (Fraction(1, 3), Fraction(2, 3)), ((Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 4), Fraction(3, 4)))
R0, R1 = (Fraction(0), Fraction(2)), ((Fraction(1), Fraction(3)), (Fraction(0), Fraction(5)))
V0, V1 = Fraction(3, 2), (Fraction(2), Fraction(1, 2))


def two_steps(of):
    """`E[Σ_t A_t·∇log π]` in the logits of all states of two steps with two actions each."""
    found = {"first": [Fraction(0)] * 2, 0: [Fraction(0)] * 2, 1: [Fraction(0)] * 2}
    for a, b in itertools.product((0, 1), repeat=2):
        chance = FIRST[a] * SECOND[a][b]
        r, v = [R0[a], R1[a][b]], [V0, V1[a]]
        for c in (0, 1):
            found["first"][c] += chance * of(0, r, v) * ((a == c) - FIRST[c])
            found[a][c] += chance * of(1, r, v) * ((b == c) - SECOND[a][c])
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*ONWARD_RIGHT, *ONWARD_WRONG])
def test_an_advantage_per_token_is_the_reward_from_the_token_on_or_is_refuted(name):
    right = name in ONWARD_RIGHT
    row = {**ONWARD_RIGHT, **ONWARD_WRONG}[name]
    found = verdict(row.formula)
    assert found.status == ("proved" if right else "refuted"), found
    # "steps of potentials" is another reward, which the verdict says
    adds = name == "steps of potentials"
    assert not right or (("own sample" in found.argument) is adds)
    goal = two_steps(lambda t, r, v: sum(r[t:]) + (sum(v[t + 1 :]) if adds else 0))
    assert (two_steps(row.of) == goal) is right


def test_a_factor_may_read_attributes_and_not_samples():
    from fibration import Parameter

    hard = Attribute("hard", on=spec(reward).rows)
    assert "κ = hard" in verdict(hard * reward).argument
    assert verdict(Parameter("scale", default=2) * reward).status == "proved"
    assert verdict(Attribute("entropy", on=spec(reward).leaves[0]) * reward).status != "proved"


hard = Attribute("hard", on=trajectory, positive=False)
place = position(over=trajectory)
FACTORS = {  # what stands in the place of κ, or is taken off
    "0 in small groups": (where(G > 2, 1, 0) * (reward - others), "refuted"),
    "0 in small batches": (where(count(trajectory, over=batch) > 2, 1, 0) * (reward - others), "refuted"),
    "0 in large groups": (where(G > 30, 0, 1) * (reward - others), "undecided"),
    "below 0 in large groups": (where(G > 30, -1, 1) * (reward - others), "undecided"),
    "0 in groups of three": (reward * maximum(3 - G, 0), "refuted"),
    "how far a constant varies": (deviation(1, over=prompt_group, of=trajectory) * (reward - others), "refuted"),
    "how far an attribute varies": (deviation(hard, over=prompt_group, of=trajectory) * (reward - others), "refuted"),
    "an attribute that may be 0": (absolute(hard) * reward, "refuted"),
    "the first of a group": (reward * position(over=prompt_group, of=trajectory), "refuted"),
    "a mean of groups less that of all": (
        mean(reward, over=prompt_group, of=trajectory)
        - mean(mean(reward, over=prompt_group, of=trajectory), over=batch, of=prompt_group),
        "refuted",
    ),
    "how far along": (reward * (1 + place), "refuted"),
    "how far along, of later rewards too": ((reward + after(reward, over=trajectory)) * (1 + place), "refuted"),
    "a decay along the row": (reward / (1 + place), "refuted"),
    "a sum of discounts": (reward * (1 + before(1, over=trajectory, discount=Half)), "refuted"),
    "twice as much far along": (where(place > 2, reward, 2 * reward), "undecided"),
    "an attribute of tokens": (Attribute("entropy", on=token) * reward, "refuted"),
    "what came before": (reward * (1 + exp(before(kl, over=trajectory))), "undecided"),
    "0 alone": (where(G > 1, 1, 0) * (reward - others), "proved"),
    "a number that is small": (exp(-100) * reward, "proved"),
    "an attribute, whatever it is": (exp(hard) * reward, "proved"),
    "whether some are hard": (where(some(hard > 1, over=prompt_group, of=trajectory), 1, 2) * reward, "proved"),
    "the number in its group": (reward * (1 + position(over=prompt_group, of=trajectory)), "proved"),
    "less, far along": (where(place > 2, reward - 1, reward - others), "proved"),
    "less, where others fail": (where(others > 0, reward - 1, reward), "proved"),
    "less, where it is long": (where(T > 2, reward - 1, reward), "proved"),
    "less than others, where it is long": (where(T > 2, reward - others, reward - 1), "refuted"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_is_positive_and_constant_along_a_row(name):
    formula, status = FACTORS[name]
    assert verdict(formula).status == status


def test_the_argument_says_if_the_factor_of_a_single_row_is_0():
    assert "above 0 where rows are compared" in verdict(RIGHT["the group's mean"].formula).argument
    assert "above 0 where" not in verdict(RIGHT["length in the reward"].formula).argument


def test_a_counterexample_along_a_row_shows_the_steps_of_two_tokens():
    found = verdict(FACTORS["how far along"][0]).counterexample
    assert "token 1 rises by 1 as its own reward goes from 0 to 1, and that of token 2 by 2" in found.text
    assert found.values["steps"] == (1, 2)


def test_baseline_is_not_decided_without_advantages_from_rewards():
    h = spec(reward).replace(advantages=None)
    assert not any(v.law == "baseline" for v in h.verify().verdicts)
    assert not h.replace(gives_up={"baseline": "by the deviation"}).verify().ok
    assert spec(WRONG["by the deviation"].formula, gives_up={"baseline": "by the deviation"}).verify().ok
