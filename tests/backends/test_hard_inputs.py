"""Inputs that break naive code: garbage under masks, odd sizes, low precision, huge drifts, autograd's corners."""

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from oracles.definition import exact
from oracles.interpreter import Interpreter
from support import DTYPES, SPECS, Batch, coefficients, gated_ratio, operator, packed, padded, spec, spread_batch
from thorough import ALL, some

from fibration import BatchError

pytestmark = pytest.mark.usefixtures("shipped_c")  # an optimiser may take liberties with them

GARBAGE = [float("nan"), float("inf"), -float("inf"), 3e38, 0.0]
LIKE_PPO = ("grpo", "dapo", "dr_grpo")  # the same sweep over tokens
MET = some([(n, g) for n in SPECS for g in GARBAGE if ALL or n not in LIKE_PPO], 2)


# ---------------------------------------------------------------- under the mask


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "garbage"), MET)
def test_masked_values_are_never_read(operator, name, garbage):
    op = operator(spec(name))
    batch = spread_batch(per_row=True)
    layout = padded(op, batch)
    clean, dirty = (
        [layout.tensor(v, under_mask=u) for v in (batch.x, np.zeros(batch.tokens), batch.advantages)]
        for u in (0.5, garbage)
    )
    expected, found = op.loss(*clean, layout.index), op.loss(*dirty, layout.index)
    assert torch.equal(found.loss, expected.loss)
    assert {k: float(v) for k, v in found.metrics.items()} == {k: float(v) for k, v in expected.metrics.items()}
    for now, old, a in (clean, dirty):
        now.requires_grad_()
        op.loss(now, old, a, layout.index).loss.backward()
        assert torch.isfinite(now.grad).all()
    assert torch.equal(clean[0].grad, dirty[0].grad)
    x = dirty[0].detach().requires_grad_()
    gated = op.gate(x, layout.index, advantages=dirty[2])
    assert torch.isfinite(gated).all()
    (back,) = torch.autograd.grad(gated, x, torch.full_like(gated, 2.0))
    assert torch.isfinite(back).all()
    covered = torch.ones(layout.shape, dtype=torch.bool).reshape(-1)
    covered[torch.from_numpy(layout.slots)] = False
    assert (back.reshape(-1)[covered] == 0).all()
    seen = op.levels(x, layout.index, advantages=dirty[2])
    assert all(torch.isfinite(v).all() for v in (*seen.residual.values(), *seen.gated.values()))


MASKS = {
    "prompts before, padding after": [[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]],
    "rows without tokens at both ends": [[0] * 6, [1] * 6, [0] * 6],
    "tokens apart": [[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]],
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", MASKS)
def test_every_masked_place_of_a_result_is_filled(operator, name):
    """Each result in memory that had another one's fill: ratios are 1 there, coefficients 0."""
    op, mask = operator(spec("fiberpo")), torch.tensor(MASKS[name], dtype=torch.bool)
    index = op.index(mask=mask)
    x = torch.where(mask, 0.125, math.nan).double()
    for _ in range(3):
        ratio = op.gate(x, index)
        assert (ratio[~mask] == 1).all()
        del ratio
        found = op.coefficients(x, x * 0, x, index, metrics=False)
        assert (found.values[~mask] == 0).all()
        del found


def test_a_cotangent_under_the_mask_is_never_read(operator):
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = padded(op, batch)
    x = layout.tensor(batch.x).requires_grad_()
    gated = op.gate(x, layout.index)
    cotangent = np.cos(np.arange(batch.tokens))
    a, b = (
        torch.autograd.grad(gated, x, layout.tensor(cotangent, under_mask=u), retain_graph=True)[0]
        for u in (0.0, math.nan)
    )
    assert torch.equal(a, b)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
def test_rows_without_tokens_change_nothing(operator, name):
    op = operator(spec(name))
    batch = spread_batch(lengths=(3, 1, 4), per_row=True)
    with_empty = replace(
        batch,
        lengths=(0, 3, 0, 0, 1, 4, 0),
        labels={k: [None, v[0], "x", None, v[1], v[2], float("nan")] for k, v in batch.labels.items()},
    )
    expected = coefficients(op, packed(op, batch), batch)
    for layout in (packed(op, with_empty), padded(op, with_empty)):
        found = coefficients(op, layout, with_empty)
        assert found[0].tolist() == expected[0].tolist()
        assert found[1] == expected[1]
    layout = padded(op, with_empty)
    advantages = torch.full((7,), math.nan, dtype=torch.float64)
    advantages[[1, 4, 5]] = torch.tensor([batch.advantages[batch.row == r][0] for r in range(3)], dtype=torch.float64)
    result = op.coefficients(layout.tensor(batch.x), layout.tensor(batch.x * 0), advantages, layout.index)
    assert layout.read(result.values).tolist() == expected[0].tolist()


# ---------------------------------------------------------------- length

MILLION = 1_000_000


def drifted(s, generator):
    """A million float32 log ratios, all positive, whose exact mean is near `s`; and that mean."""
    x = (s + 0.01 * generator.standard_normal(MILLION)).clip(1e-3).astype(np.float32)
    for _ in range(3):  # pull the mean of the rounded values to where it should be
        x = (x + np.float32(0) + (s - x.astype(np.float64).mean())).astype(np.float32)
    x[:1000] = (x[:1000] + (s - x.astype(np.float64).mean()) * 1000).astype(np.float32)
    whole = (x.astype(np.float64) * 2.0**40).astype(object)
    mean = Fraction(sum(int(v) for v in whole.tolist()), 2**40 * MILLION)
    assert all(float(v).is_integer() for v in (x[:100].astype(np.float64) * 2.0**40))
    return x, mean


@pytest.mark.sampled
@pytest.mark.long
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_rollback_of_a_million_tokens_in_float32(operator, part):
    """The strip (C, (1 + 1/k)C) is 2e-7 wide at C = 0.2, narrower than float32 resolves the mean; the result is right."""
    budget = Fraction(0.2)
    target = float(budget + Fraction(part) * budget / MILLION)
    x, mean = drifted(target, np.random.default_rng(1))
    inside = (mean - budget) / (budget / MILLION)
    assert 0 < inside < 1
    beyond = budget - MILLION * (mean - budget)
    assert 0 < beyond < budget
    op = operator(spec("fiberpo"))
    index = op.index(offsets=[0, MILLION])
    values = {"C_trajectory": {"+": 0.2, "-": 0.1}, "epsilon": 0.05}
    tensor = torch.from_numpy(x)
    seen = op.levels(tensor, index, values)
    found = seen.gated["trajectory", "+"].item()
    assert abs(Fraction(found) - beyond) <= Fraction(1, 10**4) * beyond
    gated = op.gate(tensor, index, values)
    with mpmath.workdps(40):
        for i in (0, 17, MILLION - 1):
            u = Fraction(float(x[i])) - mean
            phi = min(max(u, -Fraction(0.05)), Fraction(0.05))
            log = beyond + phi
            truth = mpmath.exp(mpmath.mpf(log.numerator) / log.denominator)
            assert abs(gated[i].item() - truth) <= 1e-4 * truth
    result = op.coefficients(tensor, torch.zeros(MILLION), torch.ones(1), index, values)
    # at the bottom of eq:fiberpo_jacobian: c_j = sum_i mu G_i [1(i = j, free) + (-T - 1(i free))/T]
    free = np.abs(x.astype(np.float64) - float(mean)) <= 0.05
    g = gated.double().numpy() / MILLION
    expected = np.where(free, g, 0) + (-MILLION * g.sum() - g[free].sum()) / MILLION
    assert np.abs(result.values.double().numpy() - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.long
def test_a_million_tokens_in_one_trajectory(operator):
    """Sums stay means, and means keep their digits: against exactly rounded sums."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=MILLION) * 0.02
    op = operator(spec("fiberpo"))
    index = op.index(offsets=[0, MILLION])
    values = {"C_trajectory": {"+": 0.2, "-": 0.2}, "epsilon": 1.0}
    gated = op.gate(torch.from_numpy(x), index, values)
    assert np.abs(gated.log().numpy() - x).max() < 1e-14
    seen = op.levels(torch.from_numpy(x), index, values)
    assert seen.residual["trajectory", "+"].item() == pytest.approx(math.fsum(x[x >= 0]) / MILLION, rel=1e-12)
    result = op.coefficients(torch.from_numpy(x), torch.zeros(MILLION).double(), torch.ones(1).double(), index, values)
    assert result.objective.item() == pytest.approx(math.fsum(np.exp(x)) / MILLION, rel=1e-12)


@pytest.mark.long
def test_fifty_thousand_trajectories_keep_the_invariants(operator):
    """Fifty thousand rows, shuffled over a hundred groups; the cheap invariants."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 5, size=50_000)
    groups = generator.integers(0, 100, size=50_000)
    op = operator(spec("fiberpo_domain"))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = op.index(offsets=offsets, prompt_group=groups.tolist(), domain=(groups % 7).tolist())
    assert index.count("trajectory", "prompt_group").sum() == 50_000
    x = torch.from_numpy(generator.normal(size=int(offsets[-1])) * 0.01)
    assert (op.gate(x, index).log() - x).abs().max() < 1e-14


# ---------------------------------------------------------------- precision


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_low_precision_inputs_are_computed_in_float64(name, dtype):
    """Against the float64 interpreter on the same rounded inputs; outputs are float32 or wider."""
    op = operator(spec(name))
    batch = spread_batch(scale=0.2, per_row=True)
    layout = padded(op, batch)
    now = layout.tensor(batch.x - 1.5, dtype)
    old = layout.tensor(np.linspace(-1.6, -1.4, batch.tokens), dtype)
    a = layout.tensor(batch.advantages, dtype)
    rounded = replace(batch, x=layout.read(now) - layout.read(old), advantages=layout.read(a))
    assert exact(spec(name), rounded).gap > 1e-6
    oracle = Interpreter.of(spec(name), rounded)
    result = op.coefficients(now, old, a, layout.index)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert result.values.dtype == result.objective.dtype == wide
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert layout.read(result.values) == pytest.approx(oracle.coefficients(), rel=tolerance, abs=1e-15)
    assert float(result.objective) == pytest.approx(oracle.objective(), rel=tolerance)
    now.requires_grad_()
    loss = op.loss(now, old, a, layout.index).loss
    assert loss.dtype == wide
    loss.backward()
    assert now.grad.dtype == dtype
    half = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(dtype, tolerance)
    assert layout.read(now.grad) == pytest.approx(-oracle.coefficients(), rel=half, abs=1e-7)
    gated = op.gate(layout.tensor(rounded.x, dtype), layout.index, advantages=a)
    assert gated.dtype == dtype


@pytest.mark.parametrize(
    "dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64), (torch.float64, torch.float16)], ids=str
)
def test_the_inputs_may_have_different_dtypes(dtypes):
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = packed(op, batch)
    now, old = layout.tensor(batch.x, dtypes[0]), layout.tensor(batch.x * 0.5, dtypes[1])
    a = layout.tensor(batch.advantages, torch.float16)
    found = layout.read(op.coefficients(now, old, a, layout.index).values)
    rounded = replace(batch, x=layout.read(now) - layout.read(old), advantages=layout.read(a))
    assert found == pytest.approx(Interpreter.of(spec("fiberpo"), rounded).coefficients(), rel=1e-6)


def test_the_difference_of_log_probs_is_taken_in_float64():
    """-1000 and -1000 + 2^-10 differ in float32 by less than their rounding once added up there."""
    op = operator(spec("ppo"))
    index = op.index(offsets=[0, 1])
    now = torch.tensor([-1000.0 + 2**-13])
    old = torch.tensor([-1000.0])
    result = op.coefficients(now.double(), old, torch.ones(1), index)
    assert result.values.item() == pytest.approx(math.exp(2**-13), rel=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-8, 20.0, 600.0, 1000.0])
def test_log_ratios_from_tiny_to_huge_have_right_results(operator, name, size):
    op = operator(spec(name))
    shape = spread_batch(scale=1.0, per_row=True)
    batch = shape.with_x(np.sign(shape.x) * size * (1 + 0.1 * np.abs(shape.x).clip(0, 1)))
    values, objective = coefficients(op, packed(op, batch), batch)
    oracle = Interpreter.of(spec(name), batch)
    assert not np.isnan(values).any()
    assert values == pytest.approx(oracle.coefficients(), rel=1e-9, abs=1e-300)
    assert objective == pytest.approx(oracle.objective(), rel=1e-9)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain", "gspo", "grpo"])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e300])
def test_huge_log_ratios_give_finite_results(operator, name, size):
    """exp(1e3) overflows; a gate that limits or zeroes it must not let an infinity or NaN through."""
    op = operator(spec(name))
    batch = Batch(
        (2, 2),
        np.array([size, size, -size, -size]),
        np.array([1.0, 1.0, -1.0, -1.0]),
        {"prompt_group": ["a", "b"], "domain": ["m", "m"]},
    )
    for order in (batch, batch.with_x(-batch.x) if name != "grpo" and name != "gspo" else batch):
        layout = packed(op, order)
        values, objective = coefficients(op, layout, order)
        assert np.isfinite(values).all()
        assert math.isfinite(objective)
        ratio = gated_ratio(op, layout, order)
        assert np.isfinite(ratio).all()
        assert (ratio > 0).all()


def test_the_gated_ratio_of_fiberpo_stays_within_its_bounds():
    """theory: log G lies in [-C^- - 2ε, C^+ + 2ε], whatever the drift."""
    op = operator(spec("fiberpo"))
    generator = np.random.default_rng(0)
    values = {"C_trajectory": {"+": 0.2, "-": 0.1}, "epsilon": 0.05}
    index = op.index(offsets=list(range(0, 401, 4)))
    for scale in (0.1, 0.3, 1, 10, 1e4):
        gated = op.gate(torch.from_numpy(generator.normal(size=400) * scale), index, values).log()
        assert gated.max() <= 0.3 + 1e-12
        assert gated.min() >= -0.2 - 1e-12


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
def test_zeros_of_either_sign_are_zero(operator, name):
    op, batch = operator(spec(name)), spread_batch(per_row=True)
    layout, even = packed(op, batch), np.arange(batch.tokens) % 2 == 0
    a, b = (coefficients(op, layout, batch.with_x(np.where(even, zero, batch.x))) for zero in (0.0, -0.0))
    assert a[0].tolist() == b[0].tolist()
    assert a[1] == b[1]
    values, objective = coefficients(op, layout, replace(batch, advantages=np.zeros(17)))
    assert values.tolist() == [0.0] * 17
    assert objective == 0


def test_huge_advantages_scale_the_coefficients(operator):
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = packed(op, batch)
    base = coefficients(op, layout, batch)[0]
    big = coefficients(op, layout, replace(batch, advantages=batch.advantages * 2.0**900))[0]
    assert big.tolist() == (base * 2.0**900).tolist()


# ---------------------------------------------------------------- autograd


def a_batch(dtype=torch.float64, operator=operator):
    op = operator(spec("fiberpo"))
    batch = spread_batch(scale=0.2)
    layout = padded(op, batch)
    now = layout.tensor(batch.x - 1, dtype, under_mask=-1.0)
    old = layout.tensor(np.full(batch.tokens, -1.0), dtype, under_mask=-1.0)
    return op, layout, now, old, layout.tensor(batch.advantages, dtype)


def test_a_call_under_no_grad_has_the_same_value():
    op, layout, now, old, a = a_batch()
    expected = op.loss(now, old, a, layout.index)
    assert not expected.loss.requires_grad
    x = now.clone().requires_grad_()
    with torch.no_grad():
        loss = op.loss(x, old, a, layout.index).loss
        assert not loss.requires_grad
        assert not op.gate(x - old, layout.index).requires_grad
        # where no gradient is recorded, what requires grad is data
        wanted = [t.clone().requires_grad_() for t in (old, a)]
        epsilon = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        assert torch.equal(op.loss(x, *wanted, layout.index, {"epsilon": epsilon}).loss, loss)
    assert torch.equal(loss, expected.loss)
    with torch.inference_mode():
        assert torch.equal(op.coefficients(x, old, a, layout.index).objective, -expected.loss)
    assert not op.coefficients(x, old, a, layout.index).values.requires_grad
    assert not op.levels(x - old, layout.index).residual["trajectory", "+"].requires_grad
    assert all(not v.requires_grad for v in [op.coefficients(x, old, a, layout.index).objective])


def test_inputs_are_left_as_they_were(operator):
    op, layout, now, old, a = a_batch(operator=operator)
    copies = [t.clone() for t in (now, old, a)]
    x = now.requires_grad_()
    op.loss(x, old, a, layout.index).loss.backward()
    op.gate(now.detach() - old, layout.index)
    op.levels(now.detach() - old, layout.index)
    assert all(
        torch.equal(t.detach().nan_to_num(7), c.nan_to_num(7)) for t, c in zip((now, old, a), copies, strict=True)
    )


def second_derivatives():
    op, layout, now, old, a = a_batch()
    x = now.clone().requires_grad_()
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    gated = op.gate
    index = layout.index
    return x, {
        "loss alone": lambda: op.loss(x, old, a, index).loss,
        "loss with a regulariser": lambda: op.loss(x, old, a, index).loss + (x**3).sum(),
        "loss times a weight": lambda: op.loss(x, old, a, index).loss * w,
        "loss squared": lambda: op.loss(x, old, a, index).loss ** 2,
        "loss of a function": lambda: op.loss(torch.sin(x), old, a, index).loss,
        "gate": lambda: gated(x - old, index).sum(),
        "gate with a regulariser": lambda: gated(x - old, index).sum() + (x**3).sum(),
        "gate squared": lambda: (gated(x - old, index) ** 2).sum(),
    }


@pytest.mark.parametrize("which", list(second_derivatives()[1]))
def test_second_derivatives_are_refused(which):
    """Coefficients are constants of the backward pass; a Hessian without their derivative would be silently wrong."""
    x, cases = second_derivatives()
    (g,) = torch.autograd.grad(cases[which](), x, create_graph=True)
    with pytest.raises(BatchError, match="differentiated again") as caught:
        torch.autograd.grad(g.sum(), x)
    assert "create_graph" in caught.value.remedy


def test_create_graph_alone_raises_no_error():
    x, cases = second_derivatives()
    for make in cases.values():
        (a,) = torch.autograd.grad(make(), x)
        (b,) = torch.autograd.grad(make(), x, create_graph=True)
        assert torch.equal(a, b.detach())


def test_anomaly_detection_finds_nothing():
    op, layout, now, old, a = a_batch()
    x = now.clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        op.loss(x, old, a, layout.index).loss.backward()


def test_expanded_and_sliced_inputs_are_accepted(operator):
    op, layout, now, old, a = a_batch(operator=operator)
    base = torch.zeros(layout.shape[0] + 2, layout.shape[1] * 2, dtype=torch.float64, requires_grad=True)
    view = base[1:-1, ::2]
    loss = op.loss(view, old + 1, a, layout.index).loss
    loss.backward()
    expected = op.coefficients(view, old + 1, a, layout.index).values
    assert torch.equal(base.grad[1:-1, ::2], -expected)
    assert base.grad.abs().sum() == expected.abs().sum()
    constant = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    op.loss(constant.expand(layout.shape), old + 1, a, layout.index).loss.backward()
    assert constant.grad.item() == pytest.approx(-expected.sum().item(), rel=1e-13)
