"""A shipped loss with one thing changed is recognised as that loss, and the thing is named."""

from __future__ import annotations

import functools
import itertools
import operator

import pytest
from hierarchies.loss_pairs import dapo, grpo, token
from support import OF_EVERY_KIND
from thorough import some

from fibration import (
    Gate,
    Objective,
    Parameter,
    Penalty,
    Stratum,
    advantage,
    clip,
    count,
    exp,
    identity_gate,
    load,
    log_prob,
    pessimistic_clip_gate,
    policies,
    residual,
    reward,
    token_log_ratio,
    token_mean,
    where,
)
from fibration.language.loading import shipped
from fibration.language.pairs import pair
from fibration.language.roles import renamed
from fibration.laws import budget
from fibration.laws.equivalent import neighbours as module
from fibration.laws.equivalent.decide import equivalent
from fibration.laws.equivalent.neighbours import nearest

current, reference, teacher = policies("current reference teacher")


def odd_weight(h):
    """A slip: `T + 1` for `T`."""
    length = functools.reduce(operator.add, [count(leaf, over=h.rows) for leaf in h.leaves])
    return 1 / (count(h.rows, over=Stratum("batch")) * (length + 1))


def changed(h, **parts):
    objective = h.objective
    made = Objective(parts.get("weight", objective.spelled_out(h.leaves, h.rows)))
    made = made.score() if objective.estimator == "score" else made
    for w in parts.get("weighed", objective.weighed):
        made = made.weigh(w)
    for k in parts.get("kept", objective.kept):
        made = made.keep(k.condition, k.normaliser)
    return h.replace(objective=made, gives_up={})


def other_mu(h):
    return changed(h, weight=odd_weight(h)), "but for μ"


def ratio_twice(h):
    """Of a loss whose coefficients have no plain ratio, the weight is named."""
    said = "with the ratio twice" if h.name in WITH_RATIO else "with the "
    return changed(h, weighed=(*h.objective.weighed, exp(token_log_ratio))), said


def other_advantages(h):
    return h.replace(advantages=reward * reward + 3, gives_up={}), "but for its advantages"


def added_penalty(h):
    x = log_prob(current) - log_prob(teacher)
    return h.replace(penalties={**h.penalties, "near": x**4}, gives_up={}), "with the penalty"


def other_estimator(h):
    """Another formula for the first penalty."""
    if not h.penalties:
        return None
    name, p = next(iter(h.penalties.items()))
    return h.replace(
        penalties={**h.penalties, name: Penalty(3 * p.formula, p.objective, p.over)}, gives_up={}
    ), "in place of"


def without_mask(h):
    return (changed(h, kept=h.objective.kept[:-1]), "without the mask of") if h.objective.kept else None


def exchanged_bounds(h):
    if not {"epsilon_low", "epsilon_high"} <= h.parameters.keys():
        return None
    return renamed(
        h, {"epsilon_low": "epsilon_high", "epsilon_high": "epsilon_low"}
    ), "epsilon_low and epsilon_high exchanged"


WITH_RATIO = ("ppo", "grpo", "dapo", "cispo", "gspo", "fiberpo", "tis")
NO_OBJECTIVE = ("real",)  # all of it is a penalty, so that μ and weights count for nothing
MUTATIONS = (other_mu, ratio_twice, other_advantages, added_penalty, other_estimator, without_mask, exchanged_bounds)


@functools.cache
def said(name, mutation):
    made = mutation(load(name))
    if made is None:
        return None
    h, words = made
    return nearest(h.replace(name="ours")), words


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "mutation"),
    some([pytest.param(n, m, id=f"{n}-{m.__name__}") for m in MUTATIONS for n in shipped()], 6),
)
def test_a_shipped_loss_with_one_thing_changed_is_named_with_it(name, mutation):
    found = said(name, mutation)
    if found is None:
        pytest.skip("it has no such part")
    near, words = found
    if name in NO_OBJECTIVE and mutation in (other_mu, ratio_twice):
        assert near[0].is_same and name in [n.name for n in near]
        return
    if all(n.is_same for n in near):  # the changed loss is another shipped one
        assert name not in [n.name for n in near]
        return
    mine = [n for n in near if n.name == name]
    assert len(mine) == 1
    assert words in str(mine[0])


@pytest.mark.sampled
@pytest.mark.parametrize("name", shipped())
def test_every_shipped_loss_is_its_own_nearest(name):
    near = nearest(load(name).replace(name="ours"))
    assert name in [n.name for n in near]
    assert all(n.is_same for n in near)
    for n in near:
        assert equivalent(load(name), load(n.name)).ok


@pytest.mark.thorough
def test_a_gate_that_is_written_by_hand_is_recognised():
    low, high = Parameter("eps_lo", default=0.2, upper=1), Parameter("eps_hi", default=0.2)
    wins = where(residual < high, residual, where(residual <= high, residual, high))
    gate = where(advantage < 0, where(residual >= -low, residual, -low), wins)
    ours = dapo.replace(name="ours", gates={token: Gate(gate)})
    (found,) = nearest(ours)
    assert (found.name, found.differences) == ("dapo", ())
    assert dict(found.match) == {"epsilon_low": "eps_lo", "epsilon_high": "eps_hi"}
    assert "epsilon_low ↔ eps_lo" in str(found)
    near = nearest(changed(ours, weight=odd_weight(grpo)))
    assert {"dapo", "grpo"} <= {n.name for n in near}
    assert all("but for μ" in str(n) for n in near)


def test_no_clock_decides_which_parts_are_the_same(monkeypatch):
    """The comparisons of a proof are counted, so that a busy machine gives the same answer."""
    monkeypatch.setattr(budget, "monotonic", itertools.count(0, 1000).__next__)
    low, high = (dapo.parameters[name] for name in ("epsilon_low", "epsilon_high"))
    gate = where(advantage < 0, where(residual >= -low, residual, -low), where(residual <= high, residual, high))
    ours = dapo.replace(name="ours", gates={token: Gate(gate)})
    assert module.are_same(lambda: pair(dapo, ours))
    monkeypatch.setattr(module, "COMPARISONS", 1)
    assert not module.are_same(lambda: pair(dapo, ours))


def test_a_weight_is_the_ratio_by_its_value():
    said = []
    for weight in (exp(2 * token_log_ratio), exp(log_prob(current) - log_prob(policies("old")[0]))):
        ours = changed(grpo, weighed=(weight,)).replace(name="ours")
        said.append(module._words(module._candidate(grpo, ours), "weights"))
    assert said == ["with the weight exp(2*token_log_ratio)", "with the ratio twice"]


@pytest.mark.thorough
def test_a_weight_that_is_not_the_ratio_is_named_itself():
    twice = nearest(changed(grpo, weighed=(exp(2 * token_log_ratio),)))
    assert [str(n) for n in twice if n.name == "grpo"] == ["`grpo` with the weight exp(2*token_log_ratio)"]
    written = nearest(changed(grpo, weighed=(exp(log_prob(current) - log_prob(policies("old")[0])),)))
    assert [str(n) for n in written if n.name == "grpo"] == ["`grpo` with the ratio twice"]


@pytest.mark.thorough
def test_cispo_with_the_ratio_twice():
    """The weight is CISPO's clipped ratio, and the estimator has a ratio of its own."""
    low, high = load("cispo").parameters.values()
    weight = 1 + clip(exp(token_log_ratio) - 1, -low, high)
    ours = dapo.replace(name="ours", gates={token: identity_gate()}, objective=token_mean().weigh(weight))
    assert "`cispo` with the ratio twice" in map(str, nearest(ours))


def test_bounds_with_each_others_defaults_are_a_difference_by_value():
    low, high = Parameter("epsilon_low", default=0.28, upper=1), Parameter("epsilon_high", default=0.2)
    ours = dapo.replace(name="ours", gates={token: pessimistic_clip_gate(low, high)})
    (found,) = nearest(ours)
    assert str(found) == "`dapo` with the values of epsilon_low and epsilon_high exchanged"


def test_how_advantages_are_made_may_not_count():
    names = {n.name for n in nearest(load("grpo_rewards"), ignore_advantages=True)}
    assert {"grpo", "grpo_rewards"} <= names
    assert "grpo" not in {n.name for n in nearest(load("grpo_rewards"))}


@pytest.mark.thorough
def test_a_loss_that_is_far_from_all_differs_in_several_parts():
    far = grpo.replace(
        name="far",
        gates={token: Gate(residual / (1 + residual * residual))},
        objective=Objective(odd_weight(grpo)).weigh(exp(log_prob(reference))),
        penalties={"near": log_prob(teacher) ** 2 * log_prob(current)},
    )
    assert all(len(n.differences) > 1 for n in nearest(far))


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_no_neighbour_is_called_the_same_that_is_not(name):
    for mutation in MUTATIONS:
        found = said(name, mutation)
        for n in found[0] if found else ():
            if n.is_same:
                h = mutation(load(name))[0]
                assert equivalent(h.replace(name="ours"), load(n.name)).ok


def test_a_bound_for_each_channel_is_not_one_bound():
    """The names are equal, and values of one loss cannot be given to the other."""
    each = Parameter("epsilon_high", default=0.2, per_channel=True)
    h = grpo.replace(
        name="ours", gates={token: pessimistic_clip_gate(grpo.parameters["epsilon_low"], each)}, gives_up={}
    )
    assert not any(n.is_same for n in nearest(h))
