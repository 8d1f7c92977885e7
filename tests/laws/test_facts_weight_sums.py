"""The fact `weight`: every sum of `μ` is that of many batches, and sums that no usual mean has are warnings."""

import random
import re
from fractions import Fraction

import pytest
from fuzz.batches import Batches
from fuzz.judges.level_facts import wrong_weight
from hierarchies.first_order_specs import deep_tree, quiver, three, tree
from oracles.definition import World

import fibration
from fibration import (
    Attribute,
    Hierarchy,
    Objective,
    Parameter,
    Penalty,
    clip_gate,
    constant_normaliser,
    count,
    exp,
    load,
    log_prob,
    log_ratio,
    maximum,
    policies,
    sqrt,
    strata,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.loading import shipped
from fibration.language.outline import whole_batch
from fibration.laws.facts.weight_sums import weight

token, trajectory, prompt_group, domain, batch = strata("token trajectory prompt_group domain batch")
T, B, N = count(token, over=trajectory), count(trajectory, over=batch), count(token, over=batch)
M, TG, G = count(trajectory, over=prompt_group), count(token, over=prompt_group), count(prompt_group, over=batch)
bonus = Attribute("bonus", on=trajectory)
worth = Attribute("worth", on=token)
length = Parameter("length", default=1024.0)
current, old, rollout = policies("current old rollout")


def made(objective, **more):
    objective = objective if isinstance(objective, Objective) else Objective(objective)
    fields = {"groups": [prompt_group], "rows": trajectory, **more}
    return Hierarchy(
        name="made", gates={token: clip_gate(0.2)}, decomposition=log_ratio(), objective=objective, **fields
    )


def fact(h):
    return next(iter(weight(h)))


def sums_hold(h, seed=0):
    """The stated sums are those that adding `μ` over the tokens of an element gives."""
    found = fact(h)
    assert " per " in found.value
    draw = Batches(h, random.Random(seed), 24)
    for _ in range(12):
        assert not (complaint := wrong_weight(h, found, draw)), complaint


def test_no_shipped_loss_has_a_warning():
    assert [name for name in shipped() for f in weight(load(name)) if f.level != "note" or not f.argument] == []


USUAL = {
    "token mean": (token_mean(), "1 per batch", "token_mean(): every token counts the same"),
    "trajectory mean": (trajectory_mean(), "1 per batch", "trajectory_mean(): every trajectory counts the same"),
    "a constant": (constant_normaliser(1024), "/(1024*", "constant_normaliser(1024): every token counts the same"),
    "a parameter": (constant_normaliser(length), "/(length*", "constant_normaliser(length): every token counts the same"),
    "twice": (2 / (B * T), "2 per batch", "every trajectory counts the same"),
    "a sum over rows": (1 / T, "1 per trajectory", "every trajectory counts the same"),
    "a mean over groups": (1 / (G * TG), "1 per batch", "every prompt_group counts the same"),
    "a mean over groups of rows": (1 / (G * M * T), "1 per batch", "every prompt_group counts the same"),
    "rows of a group and a constant": (1 / (G * M * 1024), " per trajectory", "sums of μ over tokens"),
    "a count that is never 0": (1 / maximum(N, 1), "1 per batch", "token_mean(): every token counts the same"),
    "an ε of trainers": (1 / (B * (T + Fraction(1, 10**8))), " per trajectory", ""),
    "a weight of rows": ((1 + bonus) / (B * T), "(1 + bonus)", ""),
    "a total of rows": (1 / (B * total(worth, over=trajectory)), " per trajectory", ""),
    "a total of the batch": (bonus / (total(bonus, over=batch) * T), "1 per batch", ""),
    "nothing": (0 * T, "0 per batch", "every token counts the same"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", USUAL)
def test_usual_means_are_named_and_their_sums_hold(name):
    mu, value, argument = USUAL[name]
    h = made(mu)
    found = fact(h)
    assert found.level == "note", found
    assert value in found.value and argument in f"{found.value.split(': ')[0]}: {found.argument}", found
    sums_hold(h)


# What μ is, the stratum that the warning names, and what its two elements count.
UNUSUAL = {
    "T + 1": (1 / (B * (T + 1)), "trajectory", "a trajectory of 1 token counts 1/2 and a trajectory of 2 tokens counts 2/3"),
    "T - 1": (1 / (B * maximum(T - 1, 1)), "trajectory", "a trajectory of 1 token counts 1 and a trajectory of 3 tokens counts 3/2"),
    "the square": (1 / (B * T * T), "trajectory", "a trajectory of 1 token counts 1 and a trajectory of 2 tokens counts 1/2"),
    "the root": (1 / (B * sqrt(T)), "trajectory", "a trajectory of 1 token counts 1 and a trajectory of 2 tokens counts 1.414"),
    "twice T": (T / N, "trajectory", "a trajectory of 1 token counts 1 and a trajectory of 2 tokens counts 4"),
    "a bound": (where(T <= 8, 1 / T, Fraction(1, 8)) / B, "trajectory", "a trajectory of 1 token counts 1 and a trajectory of 9 tokens counts 9/8"),
    "of both": (1 / (T + N), "trajectory", "in a batch of the two"),
    "tokens of a group + 1": (1 / (G * (TG + 1)), "prompt_group", "counts 1/2"),
    "rows of a group - 1": (1 / (G * maximum(M - 1, 1) * T), "prompt_group", "counts 1"),
    "rows + 1": (1 / (T * (B + 1)), "batch", "a batch of 1 trajectory counts 1/2 and a batch of 2 trajectories counts 2/3"),
    "tokens + 1": (1 / (N + 1), "batch", "a batch of 1 token counts 1/2 and a batch of 2 tokens counts 2/3"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNUSUAL)
def test_sums_that_no_usual_mean_has_are_warnings(name):
    mu, stratum, words = UNUSUAL[name]
    h = made(mu)
    found = fact(h)
    assert found.level == "warning" and found.value.endswith(f" per {stratum}"), found
    assert words in found.argument and "trajectory_mean()" in found.argument, found
    sums_hold(h)


def test_what_two_elements_of_a_warning_count_is_what_a_batch_of_them_has():
    """The numbers of a warning, of rows of `T` tokens, times what all rows share."""
    for name in ("T + 1", "T - 1", "the square", "a bound"):
        mu, *_ = UNUSUAL[name]
        said = re.findall(r"of (\d+) tokens? counts ([\d/]+)", fact(made(mu)).argument)
        assert len(said) == 2
        for n, counted in said:
            rows = [int(n), 7]
            parents = {(token, trajectory): [0] * rows[0] + [1] * rows[1], (trajectory, prompt_group): [0, 0]}
            world = World(made(mu), {token: sum(rows), trajectory: 2, prompt_group: 1}, parents)
            assert sum(world.mu(k) for k in range(rows[0])) * 2 == Fraction(counted)


@pytest.mark.thorough
def test_leaves_of_several_kinds_are_counted_together():
    for build in (tree, deep_tree):
        h = build({})
        for objective in (token_mean(), trajectory_mean()):
            sums_hold(h.replace(objective=objective))
            assert "1 per batch" in fact(h.replace(objective=objective)).value


def random_mu(rng, h):
    """A random `μ` of counts over the rows, over what is coarser and over the batch."""
    shape = whole_batch(h)
    places = [h.rows, *shape.coarser(h.rows)]
    leaf = rng.choice(h.leaves)
    counts = [count(s, over=p) for p in places for s in (leaf, h.rows, *shape.coarser(h.rows)) if p in shape.coarser(s)]
    mu = fibration.language.expressions.as_expression(1)
    for _ in range(rng.randrange(1, 4)):
        n = rng.choice(counts)
        factor = rng.choice([n, n, n + 1, sqrt(n), maximum(n, 2), n * n]) if len(h.leaves) == 1 else 1 + n
        mu = mu * factor if rng.random() < 0.3 else mu / factor
    return mu


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(40))
def test_sums_of_random_means_hold_on_many_batches(seed):
    rng = random.Random(seed)
    h = rng.choice([made(1 / T), load("fiberpo_domain"), three({}), tree({}), deep_tree({}), quiver({})])
    h = h.replace(objective=Objective(random_mu(rng, h)), advantages=None)
    sums_hold(h, seed)


def test_weights_masks_and_penalties_are_told():
    rho = exp(log_prob(old) - log_prob(rollout))
    assert fact(made(token_mean().weigh(rho))).argument.endswith("; weights w come on top")
    assert fact(made(token_mean().keep(rho <= 2))).argument.endswith("; tokens that keep(...) drops are counted")
    kept = fact(made(token_mean().keep(rho <= 2, normaliser="kept")))
    assert kept.argument.endswith("; counts and sums are those of the kept tokens")
    d = log_prob(current) - log_prob(old)
    own = made(token_mean(), penalties={"kl": Penalty(d * d / 2, Objective(1 / (B * (T + 1)))), "plain": d * d})
    said = {f.subject: f for f in weight(own)}
    assert [*said] == ["objective", "objective of the penalty 'kl'"]
    assert [f.level for f in said.values()] == ["note", "warning"]


def test_a_warning_changes_no_outcome():
    report = made(1 / (B * (T + 1))).verify()
    assert report.ok and [f.name for f in report.warnings] == ["weight"]
    assert report.to_dict()["facts"][[f.name for f in report.facts].index("weight")]["level"] == "warning"


def test_too_many_symbols_are_not_summed():
    many = [Parameter(f"p{k}", default=1.0) for k in range(13)]
    mu = 1 / T
    for p in many:
        mu = mu * p
    assert fact(made(mu)).value == "not stated"
