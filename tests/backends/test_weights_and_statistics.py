"""Weights, conditions, statistics, penalties and further policies on every backend, against formulas without lowering.

Chains, trees and quivers with such words drawn at random, always off policy; packed and padded with holes, garbage of
every policy under the mask, rows of 0 tokens and of 1.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hierarchies import random_chains, random_quivers
from hierarchies.random_penalties import with_penalties
from hierarchies.random_token_formulas import with_policies, with_words
from oracles.backend_cases import (
    BACKENDS_HERE,
    F32,
    F64,
    ROUNDOFF,
    TORCH,
    Bounded,
    Case,
    case,
    holds_gate,
    holds_training,
)
from oracles.dense_case import LONGEST, against_dense
from oracles.matrices import dense
from support import operator, packed, padded, refuses, spread_batch, token, trajectory
from thorough import ALL

from fibration import (
    BatchError,
    Gate,
    Hierarchy,
    Parameter,
    absolute,
    clip_gate,
    exp,
    largest,
    log_prob,
    log_ratio,
    mean,
    pessimistic_clip_gate,
    policies,
    quantile,
    ratio_deviation,
    residual,
    some,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.atoms import BATCH, Stratum

MIX = (F64, F32, torch.bfloat16, F64, F32, torch.float16)
# Words that are drawn into a hierarchy: which seeds have no batch away from all of their breakpoints, and the everyday
# ones of each backend, of trees and quivers and of chains. Building takes time.
KINDS = {
    "words": (with_words, {41, 149}, {"torch": [3, 8, 13, 17, 20], "c": [4, 13], "triton": [6, 9]}),
    "penalties": (with_penalties, {33, 143, 178}, {"torch": [0, 1, 3, 5, 6], "c": [4], "triton": [2]}),
}
SEEDS = [(kind, s) for kind, (_, unclear, _) in KINDS.items() for s in range(200 if ALL else 9) if s not in unclear]
current, old, rollout = policies("current old rollout")
WHOLE = Stratum(BATCH)
k = log_prob(old) - log_prob(rollout)


@functools.cache
def drawn(kind, seed, dtype=F64, direct=False):
    """Even seeds are chains, odd ones trees and quivers."""
    if seed % 2:
        h = random_quivers.quiver(seed // 2 % random_quivers.COUNT)
        made = random_quivers.batch_for(h, seed, small=True)
    else:
        h = random_chains.chain(seed // 2)
        made = random_chains.batch_for(h, seed, small=True)
    find = against_dense if seed % 2 else case
    return find(KINDS[kind][0](h, seed), with_policies(made, seed), dtype, seed, direct)


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_the_interpreter_equals_the_formulas(kind, seed):
    """`J` and its coefficients of the program as lowered; of trees and quivers every level and the adjoint too."""
    c = drawn(kind, seed)
    layout = c.layout(TORCH, "packed")
    found = Case.bounds(c, layout, ROUNDOFF[F64])
    d = dense(c.hierarchy, c.batch, c.now, c.old)
    evaluated = found.run("evaluate")
    for word, value in (("coefficients", d.coefficients), ("objective", d.objective.value)):
        error = evaluated[word].error + LONGEST * np.abs(value).max()
        Bounded(value.astype(float), error.astype(float)).check(evaluated[word].value, F64, word)
    cotangent = np.cos(1 + np.arange(c.batch.tokens))
    for name, more in (("gate", {}), ("levels", {}), ("gate_adjoint", {"cotangent": cotangent})) if seed % 2 else ():
        expected = c.bounds(layout, ROUNDOFF[F64]).run(name, **more)
        for word, value in found.run(name, **more).items():
            expected[word].check(value.value, F64, word)


# ---------------------------------------------------------------- backends


def seeds_of(backend):
    return SEEDS if ALL else [(kind, s) for kind, (*_, few) in KINDS.items() for s in few[backend.name]]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "seed", "backend"), [(*of, b) for b in BACKENDS_HERE for of in seeds_of(b)], ids=lambda v: str(v)
)  # fmt: skip
def test_backends_equal_the_formulas(kind, seed, backend):
    """In every precision, packed and padded, with and without metrics."""
    dtype = MIX[seed // 2 % len(MIX)]
    c = drawn(kind, seed, dtype)
    holds_training(backend, c, "padded" if seed % 3 else "packed")
    if ALL or backend.name == "torch":
        holds_training(backend, c, "packed" if seed % 3 else "padded", metrics=False)
        if kind == "words":  # no gate reads a penalty
            holds_gate(backend, drawn(kind, seed, dtype, True), "padded")


here = pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
epsilon, delta = Parameter("epsilon", default=0.2), Parameter("delta", default=0.25)


def masked(objective, gate=None, **more):
    gates = {token: gate or pessimistic_clip_gate(epsilon, epsilon)}
    return Hierarchy(name="masked", gates=gates, decomposition=ratio_deviation(), objective=objective, **more)


# Weights and conditions of several kinds in one loss: every backend builds it once.
EVERY = masked(
    trajectory_mean()
    .weigh(where(k <= delta, exp(k), 0))
    .keep(mean(k, over=trajectory) <= delta, normaliser="kept")
    .keep(~some(absolute(token_log_ratio) > 2, over=trajectory) & some(absolute(k) < 9, over=WHOLE))
    .keep(some(k < 9, over=WHOLE) & (k < 9))  # these hold of every batch here, one number beside others
)


def by_hand(lengths, x, k, advantages):
    """`J` and its coefficients of EVERY, in float64."""
    row, n = np.repeat(np.arange(len(lengths)), lengths), len(lengths)
    means = np.bincount(row, k, minlength=n) / np.maximum(lengths, 1)
    counted = means[row] <= 0.25
    far = np.bincount(row, np.abs(x) > 2, minlength=n) > 0
    kept = counted & ~far[row]
    tokens = np.bincount(row, counted, minlength=n)
    mu = np.where(tokens > 0, 1 / np.maximum(tokens, 1), 0)[row] / max((tokens > 0).sum(), 1)
    deviation = np.where(advantages >= 0, np.minimum(np.expm1(x), 0.2), np.maximum(np.expm1(x), -0.2))
    terms = np.where(kept, mu * np.where(k <= 0.25, np.exp(np.minimum(k, 1)), 0) * advantages, 0)
    return (terms * (1 + deviation)).sum(), np.where(deviation == np.expm1(x), terms * np.exp(x), 0)


def called(op, layout, x, k, advantages, dtype=F64, before=-2.5):
    given = (before + x, np.full(len(x), before), advantages)
    now, then, a = (layout.tensor(v, dtype) for v in given)
    others = {"rollout": layout.tensor(before - k, dtype)} if "rollout" in op.hierarchy.policies else {}
    found = op.coefficients(now, then, a, layout.index, policies=others, metrics=False)
    return float(found.objective), layout.read(found.values), found


def rows_of(*lengths, seed=3):
    return replace(spread_batch(lengths, seed), labels={}, token_labels={})


@pytest.mark.sampled
@here
@pytest.mark.parametrize("dtype", [F64, F32, torch.bfloat16], ids=str)
def test_a_condition_is_right_exactly_at_its_bound(backend, dtype):
    """Numbers of every precision exactly at the bound of a weight, of a mean and of a largest value, and next to it."""
    lengths = (4, 2, 2, 2, 2)
    k = np.array([0.25, -0.25, 0.5, 0.0] + [0.25, 0.25] + [0.25, 0.3125] + [0.0, 0.125] + [0.0, 0.125])
    x = np.array([0.125, -0.125, 0.125, -0.5] + [0.0625, -0.25] + [0.125, 0.125] + [2.0, -2.0] + [2.125, 0.125])
    advantages = np.array([1.0, -1.0, 1.0, 1.0] + [1.0] * 4 + [-1.0, 1.0] * 2)
    op = operator(EVERY, backend)
    objective, values, _ = called(op, packed(op, rows_of(*lengths)), x, k, advantages, dtype)
    expected, coefficients = by_hand(lengths, x, k, advantages)
    assert (values != 0).tolist() == [True, True, False, True] + [True] * 2 + [False] * 2 + [True] * 2 + [False] * 2
    assert [objective, *values] == pytest.approx([expected, *coefficients], rel=1e-12 if dtype == F64 else 1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu" and (ALL or b.name == "c")])
def test_rows_of_0_1_and_a_hundred_thousand_tokens_have_right_statistics(backend):
    """In float32, where a mean is above its bound by less than float32 can tell at the bound."""
    lengths = (0, 1, 100_000, 3, 0)
    generator = np.random.default_rng(0)
    n = sum(lengths)
    x, k = generator.integers(-12, 13, n) / 64, np.full(n, 0.25)
    advantages = generator.integers(-4, 5, n) / 4
    op = operator(EVERY, backend)
    for more in (0.0, 2.0**-14):
        k[5000] = 0.25 + more
        objective, values, _ = called(op, packed(op, rows_of(*lengths)), x, k, advantages, F32)
        expected, coefficients = by_hand(lengths, x, k, advantages)
        assert bool(coefficients[1:100_001].any()) is (more == 0)
        assert values == pytest.approx(coefficients, rel=1e-6, abs=1e-20)
        assert objective == pytest.approx(expected, rel=1e-5)


@here
def test_without_a_kept_token_the_objective_is_0(backend):
    op, some_rows = operator(EVERY, backend), rows_of(3, 1, 0, 2)
    for make in (packed, padded):
        objective, values, found = called(op, make(op, some_rows), some_rows.x, np.full(6, 0.5), some_rows.advantages)
        assert objective == 0
        assert (values == 0).all()
        assert torch.isfinite(found.values).all()


@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu" and (ALL or not b.slow)])
def test_a_quantile_may_read_a_statistic_of_its_row(backend):
    """Its values need the mean of the batch too, so they are set aside in a later loop than the row's largest."""
    inner = k - mean(k, over=WHOLE) + largest(absolute(k), over=trajectory)
    h = Hierarchy(
        name="waiting", gates={token: clip_gate(0.2)}, decomposition=log_ratio(),
        objective=token_mean().keep(quantile(inner, 0.6, over=WHOLE) >= k + 0.25),
    )  # fmt: skip
    op, rows = operator(h, backend), rows_of(7, 1, 12, 3)
    k_of = np.random.default_rng(2).normal(size=23) / 4
    of_row = np.array([np.abs(k_of[rows.row == r]).max() for r in range(4)])
    values = k_of - k_of.mean() + of_row[rows.row]
    kept, inside = k_of + 0.25 <= np.quantile(values, 0.6), np.abs(rows.x) <= 0.2
    expected = np.where(kept & inside, np.exp(rows.x) * rows.advantages / 23, 0)
    _, found, _ = called(op, packed(op, rows), rows.x, k_of, rows.advantages)
    assert 0 < (kept & inside).sum() < inside.sum()
    assert found == pytest.approx(expected, rel=1e-12)


STEEP = Hierarchy(
    name="steep",
    gates={token: clip_gate(2000)},
    decomposition=log_ratio(),
    objective=token_mean().weigh(exp(k)).keep((log_prob(rollout) > -900) & (token_log_ratio < 700)),
)


@here
def test_a_dropped_token_with_an_infinite_weight_adds_0(backend):
    """And a weight that is infinite where the token is kept is an error that names it."""
    op, rows = operator(STEEP, backend), rows_of(3, 2)
    layout = padded(op, rows)
    x, k = np.array([0.1, 1000.0, -0.2, 0.3, 0.1]), np.array([0.2, -0.1, 0.3, 1000.0, 0.1])
    objective, values, _ = called(op, layout, x, k, rows.advantages)
    kept = [0, 2, 4]
    terms = np.exp((x + k)[kept]) * rows.advantages[kept] / 5
    assert values[kept] == pytest.approx(terms, rel=1e-12)
    assert (values[[1, 3]] == 0).all()
    assert objective == pytest.approx(terms.sum(), rel=1e-12)
    k[3] = 800.0
    refuses(
        BatchError,
        lambda: called(op, layout, x, k, rows.advantages),
        what=("the weight of token", "of trajectory 1 is not finite"),
        required="finite weights of all kept tokens",
        found="weigh(exp(log_prob(old) - log_prob(rollout)))",
    )


def test_weights_and_statistics_of_the_policy_have_no_gradient():
    """A weight of the ratio itself, and a gate by how far a trajectory's ratios are: both as if they were numbers."""
    ratio, spread = exp(log_prob(old) - log_prob(current)), mean(token_log_ratio * token_log_ratio, over=trajectory)
    held = Hierarchy(
        name="held",
        gates={token: Gate(residual * (1 + spread))},
        decomposition=log_ratio(),
        objective=token_mean().weigh(ratio),
    )
    op, rows = operator(held), rows_of(3, 1, 4)
    _, values, _ = called(op, packed(op, rows), rows.x, np.zeros(8), rows.advantages)
    means = np.array([rows.x[rows.row == r] @ rows.x[rows.row == r] for r in range(3)]) / rows.lengths
    slope = 1 + means[rows.row]
    assert values == pytest.approx(slope * np.exp(rows.x * slope - rows.x) * rows.advantages / 8, rel=1e-12)


@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu" and (ALL or b.name == "c")])
def test_the_sign_of_a_statistic_is_that_of_its_float64_sum(backend):
    """What is left of large numbers that cancel, in float32: statistics are summed in float64, compared with 0 too."""
    op = operator(masked(token_mean().keep(total(k, over=trajectory) > 0)), backend)
    rows = rows_of(129, 129)
    large = [4096.0] * 64
    k_of = np.array([*large, 2.0**-11, *(-x for x in large), *large, -(2.0**-11), *(-x for x in large)])
    x, advantages = np.full(258, 0.125), np.ones(258)
    _, values, _ = called(op, packed(op, rows), x, k_of, advantages, F32)
    assert (values[:129] > 0).all()
    assert (values[129:] == 0).all()
