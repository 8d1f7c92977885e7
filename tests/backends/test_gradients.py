"""Coefficients and backward passes against finite differences, exact slopes, and the declared slopes at breakpoints."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.definition import exact
from oracles.interpreter import Interpreter, central
from support import (
    Batch,
    coefficients,
    example_words,
    operator,
    packed,
    padded,
    reads_advantage,
    spec,
    spread_batch,
    token,
    trajectory,
)

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    dual_clip_gate,
    identity_gate,
    log_ratio,
    pessimistic_clip_gate,
    ratio_deviation,
    signed_log_ratio,
    trajectory_mean,
    uniform,
)
from fibration.language.grammar import CONSTRUCTORS, construct

# ---------------------------------------------------------------- every registered gate, in a small hierarchy

USUAL = {"k": 4.0, "ceiling": 1.5}  # other parameters of an example get 0.15
GATES = {text: c for c in CONSTRUCTORS.values() if issubclass(c.kind, Gate) for text in c.examples}


def example_gate(text, level):
    """The gate of an example; each of its free words is a parameter."""
    known = {"token": token, "trajectory": trajectory, "residual": None, "advantage": None}
    free = [w for w in example_words(text) if w not in known]
    names = {w: Parameter(f"{w}_{level}", default=USUAL.get(w, 0.15), lower=0) for w in free}
    return construct(Gate, text, {**names, "token": token, "trajectory": trajectory}, "an example")


COORDINATES = {
    "log": lambda: log_ratio(scale=1 / count(token, over=trajectory)),
    "signed": lambda: signed_log_ratio(scale=1 / count(token, over=trajectory)),
    "deviation": lambda: ratio_deviation(),
}


def around(text, level, coordinates):
    """Two levels with the example's gate on one of them and the identity on the other."""
    made = example_gate(text, level)
    return Hierarchy(
        name="example",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={
            trajectory: made if level == "trajectory" else identity_gate(),
            token: made if level == "token" else identity_gate(),
        },
        decomposition=COORDINATES[coordinates](),
        objective=trajectory_mean(),
    )


def clear_of_breakpoints(hierarchy, scale, start=0, tokens=(3, 1, 4, 2)):
    """A batch at a distance from every comparison that a gate makes, and from x = 0."""
    per_row = any(s != hierarchy.leaves[0] for s in reads_advantage(hierarchy))
    for seed in range(start, start + 200):
        batch = spread_batch(lengths=tokens, seed=seed, scale=scale, per_row=per_row)
        if exact(hierarchy, batch).gap > 1e-4 and np.abs(batch.x).min() > 1e-4:
            return batch
    raise AssertionError("no such batch")


@pytest.mark.sampled
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("level", ["trajectory", "token"])
@pytest.mark.parametrize("text", GATES)
def test_every_gates_coefficients_equal_finite_differences(text, level, coordinates):
    hierarchy = around(text, level, coordinates)
    op = operator(hierarchy)
    for scale in (0.05, 0.25, 0.8):
        batch = clear_of_breakpoints(hierarchy, scale)
        oracle = Interpreter.of(hierarchy, batch)
        values, _ = coefficients(op, packed(op, batch), batch)
        assert values == pytest.approx(oracle.difference(), rel=1e-6, abs=1e-8)
        assert values == pytest.approx(oracle.coefficients(), rel=1e-12, abs=1e-15)
        direction = np.sin(1 + np.arange(batch.tokens))
        assert values @ direction == pytest.approx(exact(hierarchy, batch, direction).slope, rel=1e-11, abs=1e-13)


@pytest.mark.sampled
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("level", ["trajectory", "token"])
@pytest.mark.parametrize("text", GATES)
def test_every_gates_backward_pass_is_its_transposed_jacobian(text, level, coordinates):
    hierarchy = around(text, level, coordinates)
    op = operator(hierarchy)
    batch = clear_of_breakpoints(hierarchy, 0.3)
    oracle = Interpreter.of(hierarchy, batch)
    jacobian = central(oracle.ratio, batch.x).T  # [ratio, x]
    layout = padded(op, batch)
    x = layout.tensor(batch.x, under_mask=0.0).requires_grad_()
    gated = op.gate(x, layout.index, advantages=layout.tensor(batch.advantages))
    for seed in range(2):
        cotangent = np.random.default_rng(seed).normal(size=batch.tokens)
        (back,) = torch.autograd.grad(gated, x, layout.tensor(cotangent, under_mask=5.0), retain_graph=True)
        assert layout.read(back) == pytest.approx(cotangent @ jacobian, rel=1e-6, abs=1e-8)
        assert layout.read(back) == pytest.approx(
            oracle.run("gate_adjoint", cotangent=cotangent)["log_ratio_gradient"], rel=1e-12, abs=1e-15
        )
        assert back.abs().sum().item() == pytest.approx(
            np.abs(layout.read(back)).sum(), rel=1e-12
        )  # nothing under the mask


# ---------------------------------------------------------------- the on-policy point


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_a_token_with_log_ratio_0_belongs_to_channel_plus(operator, name):
    """A token with x = 0 among others belongs to `+` alone."""
    op, hierarchy = operator(spec(name)), spec(name)
    batch = spread_batch(scale=0.2)
    x = batch.x.copy()
    x[::3] = 0.0
    batch = batch.with_x(x)
    values, _ = coefficients(op, packed(op, batch), batch)
    for i in range(batch.tokens):
        truth = exact(hierarchy, batch, np.eye(batch.tokens)[i])
        assert truth.gap > 1e-6
        assert values[i] == pytest.approx(truth.slope, rel=1e-11, abs=1e-15)


# ---------------------------------------------------------------- breakpoints


def scalar_gate(gate, decomposition=None):
    return Hierarchy(
        name="one",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: gate, token: identity_gate()},
        decomposition=decomposition or log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )


def response(gate, s, decomposition=None, operator=operator):
    """Value and slope of a gate at a trajectory of one token: log of the gated ratio, and its derivative."""
    op = operator(scalar_gate(gate, decomposition))
    x = torch.tensor([s], dtype=torch.float64, requires_grad=True)
    gated = op.gate(x, op.index(offsets=[0, 1]))
    gated.sum().backward()
    return math.log(gated.item()), x.grad.item() / gated.item()


UP = math.nextafter(0.25, 1)
DOWN = math.nextafter(0.25, 0)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("s", "value", "slope"),
    [
        (0.0, 0.0, 1), (0.125, 0.125, 1), (DOWN, DOWN, 1), (0.25, 0.25, 1), (UP, 0.25, -4), (0.28125, 0.125, -4),
        (0.3125, 0.0, 0), (0.5, 0.0, 0), (-0.125, -0.125, 1), (-0.25, -0.25, 1), (-UP, -0.25, -4), (-0.28125, -0.125, -4),
        (-0.3125, 0.0, 0), (-0.5, 0.0, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("coordinates", ["log", "signed"])
def test_aggregate_gate_at_its_breakpoints(operator, s, value, slope, coordinates):
    """Slope 1 on the closed budget, -k in the open strip, 0 from (1 + 1/k)·C on; budget 1/4 and k = 4 are exact."""
    found = response(aggregate_gate(0.25, rollback=4), s, COORDINATES[coordinates](), operator)
    assert found == pytest.approx((value, slope), rel=1e-14, abs=1e-15)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("s", "value", "slope"),
    [
        (0.0, 0, 1),
        (DOWN, DOWN, 1),
        (0.25, 0.25, 1),
        (UP, 0.25, 0),
        (-0.25, -0.25, 1),
        (-UP, -0.25, 0),
        (-DOWN, -DOWN, 1),
    ],
)
def test_clip_gate_at_its_breakpoints(operator, s, value, slope):
    assert response(clip_gate(0.25), s, operator=operator) == pytest.approx((value, slope), rel=1e-14, abs=1e-15)


def against(gate, s, advantage):
    """As `response`, for a token gate that reads the advantage."""
    h = Hierarchy(name="one", gates={token: gate}, decomposition=log_ratio(), objective=trajectory_mean())
    op = operator(h)
    index = op.index(offsets=[0, 1])
    x = torch.tensor([s], dtype=torch.float64, requires_grad=True)
    gated = op.gate(x, index, advantages=torch.tensor([advantage], dtype=torch.float64))
    gated.sum().backward()
    return math.log(gated.item()), x.grad.item() / gated.item()


@pytest.mark.parametrize(
    ("s", "advantage", "value", "slope"),
    [
        (0.25, 1, 0.25, 1), (UP, 1, 0.25, 0), (0.25, 0, 0.25, 1), (UP, 0, 0.25, 0), (0.375, -1, 0.375, 1), (0.5, -1, 0.5, 1),
        (0.75, -1, 0.75, 1), (-0.125, -1, -0.125, 1), (-0.126, -1, -0.125, 0), (-0.126, 1, -0.126, 1), (0.0, 1, 0, 1), (0.0, -1, 0, 1),
    ],
)  # fmt: skip
def test_pessimistic_clip_gate_at_its_breakpoints(s, advantage, value, slope):
    """`min(rA, clip(r)A)` keeps the gradient on the closed interval, and on the harmless side; at A = 0 as for A > 0."""
    assert against(pessimistic_clip_gate(0.125, 0.25), s, advantage) == pytest.approx(
        (value, slope), rel=1e-14, abs=1e-15
    )


@pytest.mark.parametrize(
    ("s", "advantage", "value", "slope"),
    [
        (0.5, -1, 0.5, 1),
        (0.500001, -1, 0.5, 0),
        (0.25, 1, 0.25, 1),
        (0.5, 1, 0.25, 0),
        (-0.5, -1, -0.125, 0),
        (-0.5, 1, -0.5, 1),
    ],
)
def test_dual_clip_gate_at_its_ceiling(s, advantage, value, slope):
    """For negative advantages the residual counts as at most `ceiling - 1`; its slope there is 1."""
    assert against(dual_clip_gate(0.125, 0.25, 1.5), s, advantage) == pytest.approx(
        (value, slope), rel=1e-14, abs=1e-15
    )


def test_dual_clip_of_ratios_equals_its_closed_form():
    op = operator(spec("ppo"))
    index = op.index(offsets=[0, 1])
    minus = torch.tensor([-1.0], dtype=torch.float64)
    for x, slope in ((math.log(3) - 1e-9, 1), (math.log(3) + 1e-9, 0), (math.log(1.5), 1), (4.0, 0)):
        point = torch.tensor([x], dtype=torch.float64)
        c = op.coefficients(point, point * 0, minus, index).values.item()
        assert c == pytest.approx(-math.exp(x) * slope, rel=1e-12, abs=1e-300)
        assert op.coefficients(point, point * 0, -minus, index).values.item() == 0
        assert op.gate(point, index, advantages=minus).item() == pytest.approx(min(math.exp(x), 3), rel=1e-14)


def test_fiberpo_has_the_inner_derivative_at_its_breakpoints():
    """A trajectory with s^+ = C^+ and tokens with |u| = epsilon: the inner derivatives, by eq:fiberpo_jacobian."""
    op = operator(spec("fiberpo"))
    x = torch.tensor([0.5, 0.25, 0.0, 0.25], dtype=torch.float64)  # s^+ = 1/4, u = 1/4, 0, -1/4, 0
    index = op.index(offsets=[0, 4])
    a = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    values = {"C_trajectory": {"+": 0.25, "-": 0.5}, "epsilon": 0.25}
    found = op.coefficients(x, x * 0, a, index, values)
    assert found.values.tolist() == pytest.approx((a * x.exp() / 4).tolist(), rel=1e-14)
    outside = op.coefficients(x, x * 0, a, index, {**values, "C_trajectory": {"+": DOWN, "-": 0.5}}).values
    gamma = -4  # the strip begins at once: every token feels -T through the trajectory's mean
    g = x.exp() / 4 * a
    assert outside.tolist() == pytest.approx([(g[j] + (gamma - 1) * g.sum() / 4).item() for j in range(4)], rel=1e-12)
    narrow = op.coefficients(x, x * 0, a, index, {**values, "epsilon": DOWN}).values
    clipped = torch.tensor([True, False, True, False])
    expected = [((0 if clipped[j] else g[j]) + (g.sum() - g[~clipped].sum()) / 4).item() for j in range(4)]
    assert narrow.tolist() == pytest.approx(expected, rel=1e-12)


def test_negative_aggregates_are_gated_like_positive_ones():
    """Residuals of aggregates may be negative, so g_agg is odd: the lower trajectory of a group rolls back as the upper."""
    op = operator(spec("fiberpo_domain"))
    index = op.index(offsets=[0, 2, 4], prompt_group=["g", "g"], domain=["d", "d"])
    x = torch.tensor([0.5, 0.5, 0.25, 0.25], dtype=torch.float64)
    values = {
        "C_domain": 1.0, "C_prompt_group": 1.0, "C_trajectory": {"+": 0.1, "-": 1.0}, "epsilon": 0.5,
    }  # fmt: skip
    gated = op.gate(x, index, values).log()
    back = 0.1 - 2 * (0.125 - 0.1)
    assert gated.tolist() == pytest.approx([0.375 + back] * 2 + [0.375 - back] * 2, rel=1e-13)


@pytest.mark.sampled
def test_one_token_trajectories_keep_their_gradient(operator):
    """T = 1: the trajectory's mean is the token; FiberPO rolls back with slope -1."""
    op = operator(spec("fiberpo"))
    batch = Batch((1, 1, 1), np.array([0.25, -0.125, 0.3]), np.array([1.0, 2.0, -1.0]))
    values = {"C_trajectory": {"+": 0.25, "-": 0.25}}
    batch = replace(batch, parameters=values)
    found, _ = coefficients(op, packed(op, batch), batch)
    expected = [math.exp(0.25) / 3, 2 * math.exp(-0.125) / 3, math.exp(0.2) / 3]
    assert found == pytest.approx(expected, rel=1e-13)
