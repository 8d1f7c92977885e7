"""Formulas inside a statistic or an order may read the row's own sample. Three laws depend on that."""

import pytest
from hierarchies.baselines import G, gamma, others, token, trajectory
from hierarchies.baselines import prompt_group as group
from hierarchies.divergences import current, d, entropy, k3, r, x
from hierarchies.weights_and_masks import batch
from oracles.certified_facts import decided

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    Penalty,
    Stratum,
    advantage,
    after,
    before,
    centred,
    count,
    deviation,
    exp,
    identity_gate,
    largest,
    log_prob,
    mean,
    minimum,
    policies,
    position,
    ratio_deviation,
    reward,
    stop,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.laws.objectives.samples import HERE, Samples

old, neg = policies("old neg")
here = count(token)  # with of=trajectory it is the row's length
T = count(token, over=trajectory)
turn = Stratum("turn")
value = Attribute("value", on=token, positive=False)
seen = Attribute("seen", on=token)
hard = Attribute("hard", on=trajectory, positive=False)
lp = log_prob(current)
k2 = d**2 / 2


def of(law, **given):
    h = Hierarchy(
        **{"name": "one", "gates": {token: identity_gate()}, "decomposition": ratio_deviation(), "objective": token_mean(),
           "groups": [group], **given}
    )  # fmt: skip
    return next(iter(decided(h, law)), None)


def rows(formula, statistic=mean, **more):
    return statistic(formula, over=group, of=trajectory, **more)


def row(formula, statistic=mean):
    return statistic(formula, over=trajectory)


RETURN = reward + after(reward, over=trajectory)
NO_BASELINE = {
    "the whole return, before it": row(reward, total) - before(row(reward, total), over=trajectory),
    "the return of what comes before": RETURN - before(after(reward, over=trajectory), over=trajectory),
    "rewards of rows at earlier tokens": reward - before(total(reward, over=batch, of=trajectory), over=trajectory),
    "rewards that count many times": RETURN + after(before(reward, over=trajectory), over=trajectory),
    "by the mean length": centred(reward, over=group) / rows(here),
    "by the longest": reward / rows(here, largest),
    "by how lengths differ": reward * (1 + rows(here, deviation)),
    "by attributes of all tokens": reward / rows(total(seen)),
    "others by the length before": reward - others * before(T, over=trajectory),
    "others by what follows": reward - after(others, over=trajectory),
    "others of others": reward - rows(rows(reward, others=True), others=True) * 2 + rows(rows(reward)) / G,
    "later rewards of a turn alone": None,
}
BASELINE = {
    "what came before": (RETURN - before(reward, over=trajectory), "A = R - b"),
    "by the number of rows": (centred(reward, over=group) / G, "κ = "),
    "less the mean length": (reward - rows(here), "with what is added of its own sample"),
    "a bonus for each that follows": (
        reward + after(1 + reward, over=trajectory),
        "with what is added of its own sample",
    ),
    "others by what came before": (reward - others * before(seen, over=trajectory), "A = R - b"),
    "others by their lengths": (reward - rows(reward * here, others=True), "A = R - b"),
    "lengths before, beside": (reward - before(T, over=trajectory), "with what is added of its own sample"),
}


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("name", NO_BASELINE)
def test_a_statistic_that_contains_the_own_sample_is_no_baseline(name):
    formula, more = NO_BASELINE[name], {}
    if formula is None:
        more = {"fibrations": [Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())]}
        more |= {"gates": {s: identity_gate() for s in (token, turn, trajectory)}}
        formula = reward + after(reward, over=turn)
        assert of("baseline", advantages=RETURN, **more).status == "proved"
    found = of("baseline", advantages=formula, **more)
    assert found.status == "refuted" or (found.status == "undecided" and name.startswith(("others of", "later"))), found


@pytest.mark.sampled
@pytest.mark.parametrize("name", BASELINE)
def test_a_statistic_without_the_own_sample_is_a_baseline(name):
    formula, said = BASELINE[name]
    found = of("baseline", advantages=formula)
    assert found.status == "proved" and said in found.argument, found
    assert ("own sample" in found.argument) is ("own sample" in said)


def test_a_baseline_may_fail_at_later_tokens_alone():
    witness = of("baseline", advantages=NO_BASELINE["the whole return, before it"]).counterexample
    assert "the advantage of token 2 rises by 0 as the reward of token 2 goes from 0 to 1" in witness.text
    assert witness.values["token"] == 1 and witness.values["steps"] == (0,)


AHEAD = {
    "the mean length of a group": 1 / rows(here),
    "others, of which it is one itself": exp(before(rows(row(x), others=True), over=group, of=trajectory)),
    "a length, before it": 1 / (1 + before(T, over=trajectory)),
    "what follows those before": exp(minimum(before(after(x, over=trajectory), over=trajectory), 0)),
}
PREFIX = {
    "the others' lengths": 1 / rows(here, others=True),
    "rows before it": exp(before(row(x), over=group, of=trajectory)),
    "how many rows there are": 1 / rows(count(trajectory)),
    "a prefix of prefixes": exp(before(before(x, over=trajectory) + x, over=trajectory)),
    "good answers of a group": 1 + rows(where(advantage > 0, 1, 0)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*AHEAD, *PREFIX])
def test_a_weight_is_causal_unless_its_statistics_contain_later_tokens(name):
    found = of("causal", objective=token_mean().weigh({**AHEAD, **PREFIX}[name]))
    assert found.status == ("refuted" if name in AHEAD else "proved"), found


NO_DIVERGENCE = {
    "by how attributes differ": row(seen, deviation) * k3 + k2,
    "beside their mean": (value - row(value)) * k3 + k2,
    "by their mean": seen / row(seen) * k2,
    "by what may be below 0": (row(value) - value + 1) * k2,
    "beside a mean of rows": (hard - mean(hard, over=batch, of=trajectory)) * k3 + k2,
    "by a mean before it": exp(before(row(log_prob(old)), over=trajectory)) * k2,
    "by a total before it": exp(before(row(entropy, total), over=trajectory)) * k2,
    "less one to another": k2 - (lp - log_prob(neg)) ** 2 / 2,
    "the entropy of some states": where(entropy > 1, k2, lp**2 / 2),
    "of likely tokens, by states": where(d > 0, where(entropy > 1, k2, d**2), 0),
    "steeper beside what is above": where(row(x, largest) > 0, x**2 / 2, x**2),
    "steeper above than below": where(x > 0, x**2 / 2, x**2),
}
WHERE_OLD = "there alone, where neg is old"
DIVERGENCE = {
    "by what its row has": (exp(row(hard)) * k2, "exp(hard)·(log π - log reference) + const"),
    "by its position": ((1 + position(over=trajectory)) * k2, "(1 + position(over=trajectory))·KL(current‖reference)"),
    "the entropy, taken off": (-(lp**2) / 2, "= -log π + const: the gradient of entropy"),
    "both": (k2 - lp**2 / 8, "KL(current‖reference) + 0.25·entropy"),
    "by another policy's ratio": (exp(log_prob(neg) - log_prob(old)) * k2, WHERE_OLD),
    "where another policy is near": (where(log_prob(neg) - log_prob(old) < 1, k2, 0), WHERE_OLD),
    "by the row's ratio": (stop(exp(row(x))) * r * d, "there alone"),
    "by the largest ratio": ((1 + row(x, largest)) * r * d, "there alone"),
    "by the prefix's ratio": (stop(exp(before(x, over=trajectory))) * r * d, "r·(exp(before(token_log_ratio, over=trajectory))·(log π"),
    "twice in some states": (where(entropy > 1, k2, d**2), "KL(current‖reference) or 2·KL(current‖reference)"),
    "cut far off": (where(x < 1, x**2 / 2, x), "KL(current‖old), near it"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*NO_DIVERGENCE, *DIVERGENCE])
def test_the_gradient_of_a_penalty_includes_what_its_statistics_read(name):
    formula, said = DIVERGENCE.get(name, (None, None))
    found = of("kl_gradient", penalties={"p": NO_DIVERGENCE.get(name, formula)})
    assert (found.status == "proved") is (name in DIVERGENCE), found
    if said:
        assert said in found.argument
        assert ("off policy too" in found.argument) is (name == "by the prefix's ratio")


def test_a_penalty_without_an_objective_uses_the_losss_own_counts():
    likely = log_prob(old) > -1
    told = {}
    for normaliser in ("kept", "all"):
        objective = token_mean().weigh(exp(log_prob(old))).keep(likely, normaliser=normaliser)
        told[normaliser] = of("kl_gradient", objective=objective, penalties={"p": k2})
    said = of("kl_gradient", penalties={"p": Penalty(k2, token_mean().keep(likely))})
    assert (told["kept"].status, told["all"].status) == ("refuted", "proved")
    assert told["kept"].counterexample.text == said.counterexample.text
    good = token_mean().keep(advantage > 0, normaliser="kept")
    assert of("kl_gradient", objective=good, penalties={"p": k2}) is None
    near = of("kl_gradient", objective=token_mean().keep(x < 1, normaliser="kept"), penalties={"p": r * d})
    assert near.status == "proved" and "there alone" in near.argument


def test_a_place_is_earlier_or_later_relative_to_the_token():
    h = Hierarchy(
        name="turns", fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={s: identity_gate() for s in (token, turn, trajectory)}, decomposition=ratio_deviation(),
        objective=token_mean(), groups=[group],
    )  # fmt: skip

    def read(formula, by_token=True):
        found = Samples(h, by_token).of(formula, HERE)
        return {f"{when} {what}" for when, what in found}

    own = {"earlier value", "earlier number", "now value", "later value", "later number"}
    assert read(before(mean(x, over=turn), over=trajectory, of=turn)) == {"earlier value", "earlier number"}
    assert read(before(mean(x, over=turn), over=trajectory)) == own
    assert read(before(mean(x, over=trajectory), over=trajectory, of=turn)) == own
    assert read(after(x, over=trajectory, discount=gamma)) == {"later value", "later number"}
    assert read(position(over=trajectory)) == {"earlier number"}
    assert read(before(x, over=batch)) == {"earlier value", "earlier number", "others value", "others number"}
    crossed = Fibration(token, Stratum("expert"), uniform())
    h = h.replace(fibrations=[*h.fibrations, crossed], gates={**h.gates, crossed.target: identity_gate()})
    assert read(before(mean(x, over=crossed.target), over=batch, of=crossed.target)) >= own
    assert read(rows(row(x), others=True)) == {"others value", "others number"}
    assert read(rows(mean(x, over=group), others=True)) == own | {"others value", "others number"}
    assert read(rows(rows(row(x), others=True), others=True)) == own | {"others value", "others number"}
    assert read(mean(rows(row(x)), over=batch, of=group, others=True)) == {"others value", "others number"}
    assert read(after(reward, over=group, of=trajectory), False) == {"others reward"}
    assert read(before(mean(reward, over=turn), over=trajectory, of=turn), True) == {"earlier reward", "earlier number"}
    assert "later reward" in read(before(mean(reward, over=turn), over=trajectory, of=turn), False)
    assert read(total(value, over=turn)) == {"earlier value", "earlier number", "later value", "later number"}
    assert read(value + hard + count(trajectory, over=group) + count(token) + rows(hard)) == set()
