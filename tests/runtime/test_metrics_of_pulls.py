"""`LEVEL/pull`: how much of the pull on the tokens is left in the means of every level, against sums in fractions."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from oracles.definition import World
from oracles.pulls_of_levels import squares
from support import Batch, operator, packed, prompt_group, random_hierarchy, spec, token, trajectory

from fibration import Fibration, Hierarchy, Parameter, clip_gate, ratio_deviation, trajectory_mean, uniform
from fibration.compiler.diagnostics import has_pulls
from fibration.language.atoms import Component, mass
from fibration.language.loading import shipped

F = Fraction
LENGTHS = (3, 1, 4, 2, 3, 2)
GROUPS = [0, 0, 0, 1, 1, 1]


def batch_for(h, seed, centred=False):
    """Rows of a few tokens, with labels for every stratum of a chain or tree. `centred`: over prompt groups."""
    rng = np.random.default_rng(seed)
    of_rows = rng.normal(size=len(LENGTHS))
    groups = np.array(GROUPS)
    if centred:
        of_rows -= np.array([of_rows[groups == g].mean() for g in groups])
    labels = {"prompt_group": GROUPS, "domain": GROUPS}
    turns = {"turn": [f"{r}.{k // 2}" for r, n in enumerate(LENGTHS) for k in range(n)]}
    kinds = rng.random(sum(LENGTHS)) < 0.4
    leaves = {"text_token": (~kinds).tolist(), "image_token": kinds.tolist()}
    return Batch(
        LENGTHS,
        rng.normal(size=sum(LENGTHS)) * 0.2,
        np.repeat(of_rows, LENGTHS),
        labels={k: v for k, v in labels.items() if k in map(str, h.strata)},
        token_labels={k: v for k, v in {**turns, **leaves}.items() if k in map(str, h.strata)},
        weights=rng.uniform(0.5, 2, size=sum(LENGTHS)),
    )


def metrics_of(h, batch, backend="torch"):
    op = operator(h, backend)
    layout = packed(op, batch)
    given = [layout.tensor(v) for v in (batch.x, np.zeros(batch.tokens), batch.advantages)]
    return op.coefficients(*given, layout.index, batch.parameters).metrics


def measured(h, batch, backend="torch"):
    return {k.removesuffix("/pull"): m for k, m in metrics_of(h, batch, backend).items() if k.endswith("/pull")}


def two_leaves(h, texts, images):
    """Texts and images over their trajectories, these over two prompt groups."""
    text, image = h.leaves
    parents = {(text, trajectory): list(texts), (image, trajectory): list(images), (trajectory, prompt_group): GROUPS}
    given = {
        p: p.default if isinstance(p.default, Mapping) else dict.fromkeys("+-", p.default)
        for p in h.parameters.values()
    }
    values = {Component(p, c): F(float(v)) for p, channels in given.items() for c, v in channels.items()}
    values |= {p: F(float(p.default)) for p in given if not p.per_channel}
    sizes = {text: len(texts), image: len(images), trajectory: len(LENGTHS), prompt_group: 2}
    return World(h, sizes, parents, values)


def recounted(h, batch):
    """The metric of every level, by its name."""
    kinds = np.array(batch.token_labels.get("image_token", [False] * batch.tokens))
    order = np.concatenate([np.flatnonzero(~kinds), np.flatnonzero(kinds)])  # one leaf after the other
    world = World.of(h, batch) if len(h.leaves) == 1 else two_leaves(h, batch.row[~kinds], batch.row[kinds])
    found = squares(world, [F(float(x)) for x in batch.x[order]], [F(float(a)) for a in batch.advantages[order]])
    whole = sum((found[leaf] for leaf in h.leaves), F(0))
    return {str(s): float(v / whole) for s, v in found.items()}


SHIPPED = ["gspo", "fiberpo", "fiberpo_domain", "fiberpo_domain_inward", "fiberpo_turns", "fiberpo_modal"]


@pytest.mark.sampled
@pytest.mark.parametrize("backend", ["torch", "c"])
@pytest.mark.parametrize("name", SHIPPED)
def test_pulls_equal_a_recount(name, backend):
    batch = batch_for(spec(name), seed=3)
    found = measured(spec(name), batch, backend)
    expected = recounted(spec(name), batch)
    assert {k: float(m) for k, m in found.items()} == pytest.approx(expected, rel=0, abs=1e-12)
    assert sum(float(found[str(leaf)]) for leaf in spec(name).leaves) == pytest.approx(1, abs=1e-14)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(40))
def test_pulls_of_random_chains_equal_a_recount(seed):
    h = random_hierarchy(seed)
    if not has_pulls(h):
        assert not measured(h, batch_for(h, seed))
        return
    batch = batch_for(h, seed)
    expected = recounted(h, batch)
    assert {k: float(m) for k, m in measured(h, batch).items()} == pytest.approx(expected, rel=0, abs=1e-12)


def test_groups_and_domains_idle_under_centred_advantages():
    h = spec("fiberpo_domain")
    batch = batch_for(h, seed=5, centred=True)
    still = measured(h, batch.with_x(np.zeros(batch.tokens)))
    moved = measured(h, batch)
    for level in ("prompt_group", "domain"):
        assert float(still[level]) == pytest.approx(0, abs=1e-15)
        assert float(moved[level]) < 0.05
    assert float(still["trajectory"]) == pytest.approx(1, abs=1e-14)  # one advantage per row
    assert float(moved["trajectory"]) > 0.5


def test_closing_all_gates_changes_no_pull_in_ratio_deviations():
    """There the pull on a token is `μ·A`, whatever its ratio: the metric says what a level can do, not what it does."""
    budget = Parameter("C", default=0.2)
    h = Hierarchy(
        name="tower",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())],
        gates={s: clip_gate(budget).per(mass) for s in (prompt_group, trajectory, token)},
        decomposition=ratio_deviation(scale=mass),
        objective=trajectory_mean(),
    )
    found = []
    for bound, passed in ((100.0, 1), (1e-9, 0)):
        metrics = metrics_of(h, replace(batch_for(h, seed=4), parameters={"C": bound}))
        assert float(metrics["trajectory/passed"]) == passed
        found.append({k: float(m) for k, m in metrics.items() if k.endswith("/pull")})
    assert found[0] == found[1] and 0 < found[0]["prompt_group/pull"] < 1


def test_coarser_levels_have_less_of_the_pull():
    h = spec("fiberpo_domain")
    for seed in range(8):
        found = measured(h, batch_for(h, seed))
        of_levels = [float(found[str(s)]) for s in ("token", "trajectory", "prompt_group", "domain")]
        assert of_levels[0] == 1
        assert all(0 <= coarse <= fine + 1e-12 for fine, coarse in itertools.pairwise(of_levels))


def test_without_a_pull_there_is_no_metric():
    batch = replace(batch_for(spec("gspo"), seed=1), advantages=np.zeros(sum(LENGTHS)))
    assert all(math.isnan(float(m)) for m in measured(spec("gspo"), batch).values())


def test_pulls_of_two_batches_add_up():
    h = spec("fiberpo")
    first, second = (measured(h, batch_for(h, seed)) for seed in (1, 2))
    for level in first:
        both = first[level] + second[level]
        assert min(float(first[level]), float(second[level])) <= float(both)
        assert float(both) <= max(float(first[level]), float(second[level]))


def test_losses_whose_coefficients_are_no_sum_over_levels_have_no_pulls():
    without = {name for name in shipped() if len(spec(name).order) > 1 and not has_pulls(spec(name))}
    assert {"gspo_token", "fiberpo_crossed"} <= without
    for name in ("grpo", "gspo_token"):
        metrics = metrics_of(spec(name), batch_for(spec(name), seed=1))
        assert metrics and not any(k.endswith("/pull") for k in metrics)
