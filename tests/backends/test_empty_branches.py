"""Statistics of rows without images, on every backend: weights of a tree, written by hand."""

import numpy as np
import pytest
import torch
from hierarchies.quivers import batch, group, image, make, text, trajectory
from oracles.backend_cases import BACKENDS_HERE
from support import operator

from fibration import (
    Gate,
    Penalty,
    count,
    deviation,
    largest,
    log,
    log_prob,
    mean,
    residual,
    some,
    sqrt,
    token_log_ratio,
    token_mean,
    total,
    where,
)
from fibration.language.declared import policies
from fibration.language.expressions import as_expression

here = pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
old, current = policies("old current")
ONE = as_expression(1)
JOINT = 1 / (count(text, over=trajectory) + count(image, over=trajectory))
IMAGES = {"over": trajectory, "of": image}
N = count(image, over=trajectory)
# text and image tokens of four rows: the second has no images, the third nothing else
ROW = np.array([0, 0, 0, 1, 1, 2, 2, 3])
IS_IMAGE = np.array([0, 1, 1, 0, 0, 1, 1, 0], dtype=bool)
X = np.array([0.1, -0.2, 0.3, 0.05, -0.4, 0.2, 0.1, -0.3])
OLD = np.array([-1.0, -2.0, -0.5, -3.0, -1.5, -0.25, -2.5, -1.0])
A = np.array([1.0, 1.0, 1.0, -2.0, -2.0, 0.5, 0.5, 3.0])


def by_row(values, of=IS_IMAGE):
    """A sum over the images of each row, at its tokens."""
    return np.bincount(ROW, values * of, minlength=4)[ROW]


IMAGES_OF_ROW = by_row(np.ones(8))
HAS = IMAGES_OF_ROW > 0
MEAN_X = (np.bincount(ROW, X) / np.bincount(ROW))[ROW]
MEAN_OLD = by_row(OLD) / np.maximum(IMAGES_OF_ROW, 1)
WEIGHTS = {
    "some of one": (where(some(count(image, over=image) > 0, **IMAGES), 2, 3), np.where(HAS, 2, 3)),
    "not some of one": (where(~some(count(image, over=image) > 1, **IMAGES), 2, 3), np.full(8, 2)),
    "all of none": (where(~some(count(image, over=image) < 1, **IMAGES), 2, 3), np.full(8, 2)),
    "some of the row's": (where(some(N > 0, **IMAGES), 2, 3), np.where(HAS, 2, 3)),
    "some over the batch": (
        where(some(some(count(image, over=image) > 0, **IMAGES), over=batch, of=trajectory), 2, 3), np.full(8, 2),
    ),
    "rows with some": (
        total(where(some(count(image, over=image) > 0, **IMAGES), ONE, 0), over=batch, of=trajectory), np.full(8, 2),
    ),
    "a total of ones": (1 + total(ONE, **IMAGES), 1 + IMAGES_OF_ROW),
    "a total of shares": (1 + total(1 / N, **IMAGES), 1 + HAS),
    "a total of means": (4 + total(mean(log_prob(old), **IMAGES), **IMAGES), 4 + MEAN_OLD * IMAGES_OF_ROW),
    "a total of largest": (
        4 + total(largest(-log_prob(old), **IMAGES), **IMAGES),
        4 + np.array([2.0, 0, 2.5, 0])[ROW] * IMAGES_OF_ROW,
    ),
    "a total of products": (4 + total(N * mean(log_prob(old), **IMAGES), **IMAGES), 4 + MEAN_OLD * IMAGES_OF_ROW**2),
    "a total of shares of totals": (1 + total(ONE / total(ONE, **IMAGES), **IMAGES), 1 + HAS),
    "a mean asked for": (where(N > 0, 4 + mean(log_prob(old), **IMAGES), 1), np.where(HAS, 4 + MEAN_OLD, 1)),
    "a largest of ones asked for": (where(N > 0, 1 + largest(ONE, **IMAGES), 1), np.where(HAS, 2, 1)),
    "a deviation asked for": (
        where(N > 0, 1 + deviation(log_prob(old), **IMAGES), 1), 1 + np.array([1.5 / 2**0.5, 0, 2.25 / 2**0.5, 0])[ROW],
    ),
    "a total of a mean over tokens": (
        1 + total(mean(token_log_ratio, over=trajectory) ** 2, **IMAGES),
        1 + MEAN_X**2 * IMAGES_OF_ROW,
    ),
}  # fmt: skip


def called(h, backend):
    op = operator(h, backend)
    index = op.index(
        offsets=torch.tensor([0, 3, 5, 7, 8]),
        image_token=torch.tensor(IS_IMAGE.astype(int)),
        **({"prompt_group": ["a", "a", "b", "b"]} if group in h.groups else {}),
    )
    given = (torch.tensor(v, dtype=torch.float64) for v in (OLD + X, OLD, A))
    result = op.coefficients(*given, index)
    return result.values.numpy(), float(result.objective)


def tree(**more):
    return make((text, trajectory, JOINT), (image, trajectory, JOINT), rows=trajectory, **more)


@pytest.mark.sampled
@here
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_rows_without_images_are_as_expected(name, backend):
    weight, expected = WEIGHTS[name]
    values, objective = called(tree(objective=token_mean().weigh(weight)), backend)
    assert values == pytest.approx(expected * np.exp(X) * A / 8, rel=1e-12)
    assert objective == pytest.approx((expected * np.exp(X) * A / 8).sum(), rel=1e-12)
    if not isinstance(expected[0], float):  # as a condition of what is kept
        values, _ = called(tree(objective=token_mean().keep(weight > 2)), backend)
        assert values == pytest.approx(np.where(expected > 2, np.exp(X) * A / 8, 0), rel=1e-12)


@pytest.mark.sampled
@here
def test_gates_and_penalties_of_rows_without_images_are_as_expected(backend):
    slope = where(some(count(image, over=image) > 0, **IMAGES), 1, 2)
    values, _ = called(tree(gates={trajectory: Gate(slope * residual)}), backend)
    ratio = np.exp(X - MEAN_X + np.where(HAS, 1, 2) * MEAN_X)
    pulls = np.bincount(ROW, ratio * A) / np.bincount(ROW)
    assert values == pytest.approx((ratio * A + (np.where(HAS, 1, 2) - 1) * pulls[ROW]) / 8, rel=1e-12)
    share = mean(token_log_ratio, **{"over": trajectory}) * total(mean(ONE, **IMAGES), **IMAGES)
    values, objective = called(tree(penalties={"p": Penalty(share**2, over=trajectory)}), backend)
    slopes = 2 * IMAGES_OF_ROW**2 * MEAN_X / np.bincount(ROW)[ROW] / 4
    assert values == pytest.approx(np.exp(X) * A / 8 - slopes, rel=1e-12)


FLOWING = {  # and the slope towards the mean log ratio of the row
    "divided by none": (mean(token_log_ratio) / total(ONE, **IMAGES), 1 / np.maximum(IMAGES_OF_ROW, 1)),
    "a logarithm of none": (log(total(ONE, **IMAGES)) * mean(token_log_ratio), np.full(8, np.log(2))),
    "times a mean of none": (mean(token_log_ratio) * mean(log_prob(old), **IMAGES), MEAN_OLD),
    "times the largest of none": (
        mean(token_log_ratio) * largest(log_prob(old), **IMAGES), np.array([-0.5, 0, -0.25, 0])[ROW],
    ),
    "a square root of none": (
        sqrt(total(mean(token_log_ratio, over=trajectory) ** 2, **IMAGES)), np.sqrt(2) * np.sign(MEAN_X),
    ),
}  # fmt: skip


@pytest.mark.sampled
@here
@pytest.mark.parametrize("name", FLOWING)
def test_statistics_of_an_empty_branch_have_gradient_0(name, backend):
    """A row without images has a value and a slope of 0 there, and not 0 times what it lacks."""
    formula, slope = FLOWING[name]
    values, _ = called(tree(penalties={"p": Penalty(where(N > 0, formula, 0), over=trajectory)}), backend)
    tokens = np.bincount(ROW)[ROW]
    assert values == pytest.approx(np.exp(X) * A / 8 - np.where(HAS, slope, 0) / tokens / 4, rel=1e-12)
    flat = where(N > 0, token_log_ratio / total(ONE, **IMAGES), 0)
    values, _ = called(tree(penalties={"p": flat}), backend)
    assert values == pytest.approx((np.exp(X) * A - HAS / np.maximum(IMAGES_OF_ROW, 1)) / 8, rel=1e-12)


@pytest.mark.sampled
@here
def test_a_gate_with_a_condition_on_an_empty_branch_has_a_value(backend):
    """The same number where there are none, whichever branch of the gate lacks a value."""
    asked = where(N > 0, residual * (1 + mean(log_prob(old), **IMAGES)), residual)
    divided = where(N > 0, residual / total(ONE, **IMAGES), residual)
    for gate, slope in ((asked, 1 + MEAN_OLD), (divided, 1 / np.maximum(IMAGES_OF_ROW, 1))):
        slope = np.where(HAS, slope, 1)
        values, _ = called(tree(gates={trajectory: Gate(gate)}), backend)
        ratio = np.exp(X - MEAN_X + slope * MEAN_X)
        pulls = np.bincount(ROW, ratio * A) / np.bincount(ROW)
        assert values == pytest.approx((ratio * A + (slope - 1) * pulls[ROW]) / 8, rel=1e-12)
