"""Divergences: estimators against sums in plain Python, and GSPO's radius."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from oracles.trust_region_samples import Sample, deviation_of, refuses_with_a_rule, samples, tensor

from fibration.errors import BatchError, HierarchyIndexError, ParameterError
from fibration.trust_region.divergences import (
    exact_kl,
    exact_max,
    exact_mean,
    exact_tv,
    kl_max,
    kl_mean,
    kl_per_state,
    kl_per_trajectory,
    kl_trajectory_mean,
    tv_max,
    tv_mean,
    tv_per_state,
    tv_per_trajectory,
    tv_trajectory_mean,
)
from fibration.trust_region.radius import gspo_radius, gspo_threshold, trpo_radius
from fibration.trust_region.tokens import steps, trajectories

NAN = float("nan")
OLD = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], dtype=torch.float64)
NEW = torch.tensor([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)


# ---------------------------------------------------------------- estimators


@given(samples())
def test_estimators_equal_the_papers_sums(sample: Sample):
    x, deviation = sample.log_ratio_of, deviation_of(sample.log_ratio_of)
    per_state = tv_per_state(sample.log_ratio, sample.state)
    assert per_state.ids.tolist() == sample.states
    assert per_state.counts.tolist() == [sample.count(s) for s in sample.states]
    tv = [sample.tv(s, deviation) for s in sample.states]
    assert per_state.values.tolist() == pytest.approx(tv, rel=1e-12)
    kl = [-sum(sample.n[s, a] * x[s, a] for a in sample.actions(s)) / sample.count(s) for s in sample.states]
    assert kl_per_state(sample.log_ratio, sample.state).values.tolist() == pytest.approx(kl, rel=1e-12, abs=1e-15)
    assert float(tv_max(sample.log_ratio, sample.state)) == pytest.approx(max(tv))
    assert float(kl_max(sample.log_ratio, sample.state)) == pytest.approx(max(kl), abs=1e-15)

    total = len(sample.tokens)  # eq:dbar_mc, first form
    average = sum(sample.count(s) * d for s, d in zip(sample.states, tv, strict=True)) / total
    assert float(tv_mean(sample.log_ratio)) == pytest.approx(average)
    assert float(kl_mean(sample.log_ratio)) == pytest.approx(-sum(x[p] for p in sample.tokens) / total, abs=1e-15)

    rows, at = [], 0
    for length in sample.lengths:
        rows.append(sample.tokens[at : at + length])
        at += length
    tv_rows = [sum(abs(deviation[p]) for p in row) / len(row) for row in rows]
    kl_rows = [-sum(x[p] for p in row) / len(row) for row in rows]
    per_row = tv_per_trajectory(sample.log_ratio, sample.trajectory)
    assert per_row.values.tolist() == pytest.approx(tv_rows, rel=1e-12)
    assert per_row.counts.tolist() == list(sample.lengths)
    assert kl_per_trajectory(sample.log_ratio, sample.trajectory).values.tolist() == pytest.approx(kl_rows, abs=1e-15)
    assert float(tv_trajectory_mean(sample.log_ratio, sample.trajectory)) == pytest.approx(np.mean(tv_rows))
    assert float(kl_trajectory_mean(sample.log_ratio, sample.trajectory)) == pytest.approx(np.mean(kl_rows), abs=1e-15)
    # eq:dbar_from_traj
    weighted = sum(n * d for n, d in zip(sample.lengths, tv_rows, strict=True)) / total
    assert float(tv_mean(sample.log_ratio)) == pytest.approx(weighted)


ESTIMATORS = {
    "tv_per_state": lambda x, i, m: tv_per_state(x, i, m).values,
    "kl_per_state": lambda x, i, m: kl_per_state(x, i, m).values,
    "tv_per_trajectory": lambda x, i, m: tv_per_trajectory(x, i, m).values,
    "kl_per_trajectory": lambda x, i, m: kl_per_trajectory(x, i, m).values,
    "tv_mean": lambda x, i, m: tv_mean(x, m),
    "kl_mean": lambda x, i, m: kl_mean(x, m),
    "tv_max": tv_max,
    "kl_max": kl_max,
    "tv_trajectory_mean": tv_trajectory_mean,
    "kl_trajectory_mean": kl_trajectory_mean,
}


@pytest.mark.parametrize("garbage", [NAN, float("inf"), 1e30])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_masked_values_are_never_read(name, garbage):
    mask = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
    x = torch.full((3, 3), garbage, dtype=torch.float64)
    x[mask] = tensor([0.5, -0.25, 1.0, -1.5])
    x.requires_grad_()
    ids = torch.tensor([[4, 9, 2], [4, 4, 9], [9, 9, 9]])
    found = ESTIMATORS[name](x, ids, mask)
    packed = x.detach()[mask]
    assert torch.equal(found.detach(), ESTIMATORS[name](packed, ids[mask], None))
    assert torch.equal(found.detach(), ESTIMATORS[name](x.detach(), ids, mask.long()))
    found.sum().backward()
    assert (x.grad[~mask] == 0).all()
    assert x.grad[mask].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_float_is_computed_in_float64(dtype):
    x = torch.linspace(-1, 1, 7).to(dtype)
    ids = torch.zeros(7, dtype=torch.int32)
    assert tv_mean(x).dtype == torch.float64
    assert torch.equal(tv_per_state(x, ids).values, tv_per_state(x.double(), ids).values)


def test_small_log_ratios_keep_their_digits():
    assert float(tv_mean(tensor([1e-12]))) == pytest.approx(1e-12 + 5e-25, rel=1e-15, abs=0)


# ---------------------------------------------------------------- exact divergences


def test_exact_divergences_equal_rational_arithmetic():
    p = [[Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], [Fraction(1), Fraction(0), Fraction(0)]]
    q = [[Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)], [Fraction(2, 3), Fraction(1, 3), Fraction(0)]]
    old, new = (tensor([[float(x) for x in row] for row in rows]) for rows in (p, q))
    tv = [sum(abs(a - b) for a, b in zip(x, y, strict=True)) / 2 for x, y in zip(p, q, strict=True)]
    assert exact_tv(old, new).tolist() == pytest.approx([float(v) for v in tv], rel=1e-14)
    kl = [
        float(sum(mpmath.mpf(a.numerator) / a.denominator * mpmath.log(a / b) for a, b in zip(x, y, strict=True) if a))
        for x, y in zip(p, q, strict=True)
    ]
    assert exact_kl(old, new).tolist() == pytest.approx(kl, rel=1e-12)
    assert exact_kl(new, old).tolist()[1] == math.inf
    assert exact_kl(old[0], old[0]).shape == ()
    assert float(exact_max(exact_tv(old, new))) == pytest.approx(float(max(tv)))
    rho = tensor([0.25, 0.75])
    assert float(exact_mean(exact_tv(old, new), rho)) == pytest.approx(float(tv[0] / 4 + 3 * tv[1] / 4))
    assert float(exact_mean(exact_kl(new, old), tensor([1.0, 0.0]))) < math.inf


# ---------------------------------------------------------------- radii


def test_trpos_radius_vanishes_as_gamma_tends_to_1():
    gammas = [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(999, 1000)]
    expected = [float((1 - g) / (8 * g)) for g in gammas]
    assert trpo_radius(tensor([float(g) for g in gammas])).tolist() == pytest.approx(expected, rel=1e-12)
    assert trpo_radius(1.0) == 0
    assert trpo_radius(1).dtype == torch.float64
    near = [float(trpo_radius(1 - 10.0**-k)) for k in range(1, 12)]
    assert near == sorted(near, reverse=True)
    assert 0 < near[-1] < 1e-11


def test_the_radius_of_gspo_equals_its_formula():
    assert float(gspo_radius(4e-4)) == pytest.approx(math.sqrt(2e-4))  # rem:gspo_delta
    assert round(float(gspo_radius(4e-4)), 3) == 0.014
    assert float(gspo_radius(0.3, first_order=False)) == pytest.approx(math.sqrt(-math.log(0.7) / 2))
    assert float(gspo_radius(1e-9, first_order=False)) == pytest.approx(float(gspo_radius(1e-9)), rel=1e-9)
    epsilon = tensor([0.0, 1e-4, 0.2, 0.9])
    assert (gspo_radius(epsilon, first_order=False) >= gspo_radius(epsilon)).all()
    torch.testing.assert_close(gspo_threshold(gspo_radius(epsilon)), epsilon, rtol=1e-14, atol=0)


# ---------------------------------------------------------------- offsets, errors


@given(samples())
def test_offsets_number_trajectories_and_steps(sample: Sample):
    assert trajectories(sample.offsets).tolist() == sample.trajectory.tolist()
    assert steps(sample.offsets.int()).tolist() == sample.step.tolist()


def test_steps_skip_masked_tokens_and_empty_trajectories():
    offsets = torch.tensor([0, 0, 4, 4, 6, 6])
    mask = torch.tensor([False, True, False, True, True, True])
    assert trajectories(offsets).tolist() == [1, 1, 1, 1, 3, 3]
    assert steps(offsets, mask)[mask].tolist() == [0, 1, 0, 1]
    assert steps(offsets).tolist() == [0, 1, 2, 3, 0, 1]


X, IDS = tensor([0.1, 0.2, 0.3]), torch.tensor([0, 0, 1])

BAD = {
    "empty mask": (lambda: tv_mean(X, torch.zeros(3)), HierarchyIndexError, "the mask keeps no token"),
    "mask of twos": (lambda: tv_mean(X, torch.full((3,), 2)), HierarchyIndexError, "mask holds values other than 0"),
    "mask shape": (lambda: tv_mean(X, torch.ones(2)), BatchError, r"mask has shape \[2\]"),
    "no tokens": (lambda: tv_mean(X[:0]), HierarchyIndexError, "there is no token"),
    "nan": (lambda: kl_mean(tensor([0.0, NAN])), BatchError, r"log_ratio of token \[1\] is nan"),
    "overflow": (lambda: tv_mean(tensor([0.0, 800.0]).requires_grad_()), BatchError, r"token \[1\] is 800: its ratio"),
    "integers": (lambda: tv_mean(IDS), BatchError, "log_ratio: torch.int64"),
    "float ids": (lambda: tv_per_state(X, X), HierarchyIndexError, "state: torch.float64"),
    "id shape": (lambda: tv_per_trajectory(X, IDS[:2]), BatchError, r"trajectory has shape \[2\]"),
    "list": (lambda: tv_per_state(X, [0, 0, 1]), BatchError, "state: list"),
    "offset start": (lambda: trajectories(torch.tensor([1, 3])), HierarchyIndexError, "they start at 1"),
    "offset order": (lambda: steps(torch.tensor([0, 3, 1])), HierarchyIndexError, "fall by 2 after entry 1"),
    "offset dtype": (lambda: trajectories(tensor([0.0, 1.0])), HierarchyIndexError, "offsets: torch.float64"),
    "gamma 0": (lambda: trpo_radius(0.0), ParameterError, "gamma is 0"),
    "gamma above": (lambda: trpo_radius(tensor([0.5, 1.5])), ParameterError, "gamma is 1.5"),
    "gamma nan": (lambda: trpo_radius(NAN), ParameterError, "gamma is nan"),
    "gamma text": (lambda: trpo_radius("one"), ParameterError, "gamma is 'one'"),
    "epsilon 1": (lambda: gspo_radius(1.0), ParameterError, "epsilon is 1"),
    "delta": (lambda: gspo_threshold(0.8), ParameterError, "delta is 0.8"),
    "policy": (lambda: exact_tv(OLD, NEW * 1.1), BatchError, r"new\[0\] is no distribution"),
    "negative": (lambda: exact_kl(tensor([1.5, -0.5]), tensor([0.5, 0.5])), BatchError, "smallest -0.5"),
    "policy shapes": (lambda: exact_tv(OLD, NEW[0]), BatchError, r"new has shape \[3\]"),
    "weights": (lambda: exact_mean(X, tensor([0.5, 0.5])), BatchError, r"distribution has shape \[2\]"),
    "no state": (lambda: exact_max(X[:0]), BatchError, "hold no state"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_what_is_wrong(case):
    refuses_with_a_rule(*BAD[case])
