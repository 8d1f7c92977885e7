"""Gates that read their pull, against dense matrices and by hand. No slope goes through a pull."""

import itertools

import numpy as np
import pytest
from oracles import matrices
from support import Batch, coefficients, operator, packed, spec

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    Objective,
    aggregate_gate,
    clip_gate,
    count,
    identity_gate,
    log_ratio,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
)

token, turn, trajectory, group, whole = strata("token turn trajectory prompt_group batch")
length, share = Attribute("length", on=token), Attribute("share", on=turn)


def regimes(seed, labels):
    """Rows that drift either way, inside a budget, in the strip and beyond it, with advantages of both signs and 0."""
    rng = np.random.default_rng(seed)
    drifts = [s * d for s in (1, -1) for d in (0.02, 0.15, 0.3, 0.7)]
    rows = [*itertools.product(drifts, (1.5, -0.7)), (0.25, 0.0), (0.0, 1.0)]
    rows = [rows[k] for k in rng.permutation(len(rows))]
    lengths = [int(n) for n in rng.integers(1, 5, len(rows))]
    x = np.concatenate(
        [d + rng.choice([0, 0.03, -0.11, 0.4, -0.5], n) for (d, _), n in zip(rows, lengths, strict=True)]
    )
    groups = [k // 3 for k in range(len(rows))]
    names = {"prompt_group": groups, "domain": [g // 2 for g in groups]}
    advantages = np.repeat([a for _, a in rows], lengths)
    return Batch(tuple(lengths), x, advantages, {k: names[k] for k in labels})


SPECS = {
    "fiberpo_inward": (),
    "fiberpo_inward_clip": (),
    "fiberpo_domain_inward": ("prompt_group", "domain"),
    "fiberpo_domain_inward_clip": ("prompt_group", "domain"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SPECS)
def test_coefficients_of_inward_losses_equal_dense_matrices(name, seed):
    batch, op = regimes(seed, SPECS[name]), operator(spec(name))
    found, value = coefficients(op, packed(op, batch), batch)
    expected = matrices.dense(spec(name), batch)
    assert value == pytest.approx(float(expected.objective.value[0]), rel=1e-12)
    assert found == pytest.approx(expected.coefficients.astype(float), rel=1e-9, abs=1e-13)


# ---------------------------------------------------------------- one drift of all tokens, ten of them


def pulled(h, drift, advantage):
    """`c/μ` of every token, where all have one log ratio and one advantage."""
    batch = Batch((10,), np.full(10, drift), np.full(10, advantage))
    op = operator(h)
    found, _ = coefficients(op, packed(op, batch), batch)
    assert found == pytest.approx(np.full(10, found[0]), rel=1e-12)
    return found[0] * 10


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "drift", "above", "below"),
    [
        ("fiberpo", 0.1, 1.105, -1.105),
        ("fiberpo", 0.205, -11.62, 11.62),  # pulled back, and pushed further out
        ("fiberpo", 0.25, 0, 0),  # the gradient that would have brought it back is lost
        ("fiberpo_inward", 0.1, 1.105, -1.105),
        ("fiberpo_inward", 0.205, -1.215, -1.2275),
        ("fiberpo_inward", 0.5, 0, -1.6487),
        ("fiberpo_inward_clip", 0.205, 0, -1.2275),
        ("fiberpo_inward_clip", 0.25, 0, -1.2840),
        ("grpo", 0.205, 0, -1.2275),
    ],
)
def test_coefficients_beyond_the_budget_depend_on_the_direction_of_the_pull(name, drift, above, below):
    assert pulled(spec(name), drift, 1.0) == pytest.approx(above, rel=1e-3, abs=1e-12)
    assert pulled(spec(name), drift, -1.0) == pytest.approx(below, rel=1e-3, abs=1e-12)


def test_on_channel_minus_the_pull_has_the_other_sign():
    h = spec("fiberpo_inward")
    assert pulled(h, -0.105, -1.0) == pytest.approx(np.exp(-0.095), rel=1e-12)  # outward, and rolled back
    assert pulled(h, -0.105, 1.0) == pytest.approx(np.exp(-0.105), rel=1e-12)  # inward, and passes


# ---------------------------------------------------------------- the gate itself


def alone(gate, split):
    return Hierarchy(name="alone", gates={token: gate}, decomposition=split, objective=token_mean())


def gated(h, x, advantage):
    op = operator(h)
    batch = Batch((len(x),), np.asarray(x), np.full(len(x), advantage))
    found, _ = coefficients(op, packed(op, batch), batch)
    return found * len(x)


STRIP = aggregate_gate(0.2, rollback=2)
X = np.array([-0.35, -0.3, -0.25, -0.2, -0.1, 0.0, 0.1, 0.2, 0.25, 0.3, 0.35])
SLOPE = np.array([0, 0, -2, 1, 1, 1, 1, 1, -2, 0, 0])  # where the pull is outward
VALUE = np.array([0, 0, -0.1, -0.2, -0.1, 0, 0.1, 0.2, 0.1, 0, 0])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_outward_pull_meets_the_gate_and_an_inward_one_passes(advantage):
    outward = advantage * X > 0
    slope, value = np.where(outward, SLOPE, 1), np.where(outward, VALUE, X)
    found = gated(alone(STRIP.inward(), log_ratio()), X, advantage)
    assert found == pytest.approx(advantage * slope * np.exp(value), abs=1e-12)


def test_an_advantage_of_0_makes_an_inward_gate_0():
    assert (gated(alone(STRIP.inward(), log_ratio()), X, 0.0) == 0).all()


def test_passed_residuals_stop_at_the_ceiling():
    found = gated(alone(clip_gate(0.2).inward(ceiling=0.3), log_ratio()), X, -1.0)
    inside = np.where(X > 0, X <= 0.3, X >= -0.2)
    value = np.where(X > 0, np.minimum(X, 0.3), np.maximum(X, -0.2))
    assert found == pytest.approx(-1.0 * inside * np.exp(value), abs=1e-12)


def test_inward_and_per_may_be_applied_in_either_order():
    twice = [clip_gate(0.1).per(2).inward(), clip_gate(0.1).inward().per(2), clip_gate(0.2).inward()]
    found = [gated(alone(gate, log_ratio()), X, -1.0) for gate in twice]
    assert (found[0] == found[2]).all()
    assert (found[1] == found[2]).all()


def test_an_inward_clip_of_ratios_equals_ppos():
    low = alone(clip_gate(0.2).inward(), ratio_deviation())
    assert gated(low, X, -1.0) == pytest.approx(-np.where(np.expm1(X) >= -0.2, np.exp(X), 0), abs=1e-12)
    assert gated(low, X, 1.0) == pytest.approx(np.where(np.expm1(X) <= 0.2, np.exp(X), 0), abs=1e-12)


def test_inward_leaves_the_identity_gate_unchanged():
    gates = {trajectory: identity_gate().inward(), token: identity_gate().inward()}
    h = Hierarchy(
        name="passing", fibrations=[Fibration(token, trajectory, uniform())], gates=gates,
        decomposition=log_ratio(), objective=trajectory_mean(),
    )  # fmt: skip
    batch = regimes(7, ())
    op = operator(h)
    found, _ = coefficients(op, packed(op, batch), batch)
    mu = 1 / (len(batch.lengths) * np.asarray(batch.lengths)[batch.row])
    assert found == pytest.approx(mu * batch.advantages * np.exp(batch.x), rel=1e-12)


def test_the_pull_on_a_group_has_the_weights_of_the_objective():
    """Of ten tokens one is kept, and `μ` counts that one: the row pulls ten times as hard, and the other way wins."""
    scale = 1 / count(token, over=trajectory)
    h = Hierarchy(
        name="kept",
        fibrations=[
            Fibration(token, trajectory, kernel=uniform()),
            Fibration(trajectory, group, kernel=uniform()),
        ],
        gates={
            group: clip_gate(0.1).per(count(trajectory)).inward(),
            trajectory: identity_gate(),
            token: identity_gate(),
        },
        decomposition=log_ratio(scale=scale),
        objective=trajectory_mean().keep(token_log_ratio <= 0.4, normaliser="kept"),
    )
    x = np.array([0.3, *[0.5] * 9, 0.3, 0.3])
    batch = Batch((10, 2), x, np.repeat([1.5, -1.0], (10, 2)), {"prompt_group": [0, 0]})
    kept = matrices.dense(h, batch)
    op = operator(h)
    found, _ = coefficients(op, packed(op, batch), batch)
    assert found == pytest.approx(kept.coefficients.astype(float), rel=1e-12, abs=1e-15)


@pytest.mark.sampled
@pytest.mark.parametrize("weight", [
    1 / count(token, over=trajectory), 1 / total(length, over=trajectory), 1 / total(share, over=trajectory),
    1 / (count(turn, over=trajectory) * count(trajectory, over=whole)), 1 / (total(length, over=whole) * count(token, over=trajectory)),
], ids=str)  # fmt: skip
def test_the_pull_on_a_group_has_the_counts_of_the_objective(weight):
    """Tokens, turns, and what attributes of these add up to, of which most of one row are dropped."""
    chain = (token, turn, trajectory, group)
    h = Hierarchy(
        name="counted",
        fibrations=[Fibration(a, b, uniform()) for a, b in itertools.pairwise(chain)],
        gates={s: identity_gate() for s in chain} | {group: clip_gate(0.1).inward()},
        decomposition=log_ratio(),
        objective=Objective(weight).keep(token_log_ratio <= 0.4, normaliser="kept"),
    )
    x = np.array([0.3, *[0.5] * 9, 0.3, 0.35])
    attributes = {
        "length": np.array([0.5, *[0.75] * 9, 0.5, 0.25]),
        "share": {0: 0.5, 1: 0.75, 2: 0.75, 3: 0.75, 4: 1.0},
    }
    batch = Batch(
        (10, 2), x, np.repeat([2.5, -1.0], (10, 2)), {"prompt_group": [0, 0]},
        token_labels={"turn": [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]}, attributes=attributes,
    )  # fmt: skip
    op = operator(h)
    found, _ = coefficients(op, packed(op, batch), batch)
    assert found == pytest.approx(matrices.dense(h, batch).coefficients.astype(float), rel=1e-12, abs=1e-15)
