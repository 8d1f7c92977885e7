"""The kernels of a head on a GPU, against a closed form in float64. Without a GPU Triton interprets them."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from oracles.backend_cases import triton_interprets
from random_steps import VOCABULARY, HeadStep, furthest
from support import operator, padded, spec

from fibration.head import fused, logits, products
from fibration.head.logits import Shape, Statistics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    not find_spec("triton") or (DEVICE == "cpu" and not triton_interprets()), reason="needs Triton, or its interpreter"
)
ROWS, COLUMNS = 7, 45
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def in_small_blocks(monkeypatch):
    """Rows in three blocks, the last one not full."""
    monkeypatch.setattr(fused, "BLOCK", 16)
    monkeypatch.setattr(fused, "runs_on", lambda device: True)


def distributions(temperature):
    """Products, targets; and of the exact distributions the probabilities, log-probs and entropies."""
    generator = np.random.default_rng(0)
    z = generator.normal(size=(ROWS, COLUMNS)) * np.array([0, 1, 3, 30, 1, 1, 2000])[:, None]
    z[4, :17] = z[5, 1:] = -np.inf  # nothing in the first block, and nothing but one
    targets = generator.integers(COLUMNS, size=ROWS)
    targets[4], targets[5], targets[6] = 20, 0, np.argmax(z[6])
    z = z.astype(np.float32)
    scaled = z.astype(np.float64) / temperature
    log_p = scaled - scaled.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    p = np.exp(log_p)
    entropy = -(p * np.where(p > 0, log_p, 0)).sum(1)
    return torch.from_numpy(z).to(DEVICE), torch.from_numpy(targets).to(DEVICE), p, log_p, entropy


def measured(z, targets, temperature=1.0, entropy=True):
    wide = torch.empty(len(z), device=DEVICE)
    found = Statistics(
        *(torch.full_like(wide, np.nan) for _ in range(3)), torch.full_like(wide, np.nan) if entropy else None
    )
    fused.measure(z, targets, Shape(None, None, temperature), found)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_are_those_of_the_closed_form(temperature):
    z, targets, _, log_p, entropy = distributions(temperature)
    before = z.clone()
    found = measured(z, targets, temperature)
    wanted = log_p[np.arange(ROWS), targets.cpu()]
    far = EPS * (
        8 + 2 * np.abs(before.cpu().numpy()[np.arange(ROWS), targets.cpu()]) / temperature + 2 * np.abs(wanted)
    )
    assert (np.abs(found.log_probs.cpu().numpy() - wanted) <= far).all()
    assert found.log_probs.max() <= 0
    assert np.abs(found.entropy.cpu().numpy() - entropy).max() <= 100 * EPS
    assert torch.equal(z, before)  # the products are read again
    alone = measured(z, targets, temperature, entropy=False)
    assert alone.entropy is None and torch.equal(alone.log_probs, found.log_probs)


def test_a_value_that_is_not_finite_makes_its_row_nan_and_no_other():
    z, targets, *_ = distributions(1.0)
    z[1, 3], z[2, 40] = np.nan, np.inf
    with np.errstate(invalid="ignore"):  # of the interpreter
        found = measured(z, targets)
    assert torch.equal(found.log_probs.isnan().cpu(), torch.isin(torch.arange(ROWS), torch.tensor([1, 2])))


@pytest.mark.parametrize("bonus", [0.0, 0.3])
@pytest.mark.parametrize("rows", [None, [1, 2, 4, 6], [6]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_closed_form(dtype, rows, bonus):
    temperature = 0.7
    z, targets, p, log_p, entropy = distributions(temperature)
    before = z.cpu().numpy().copy()
    found = measured(z, targets, temperature)
    which = None if rows is None else torch.tensor(rows, device=DEVICE)
    kept = np.arange(ROWS) if rows is None else np.array(rows)
    c = np.array([0.5, -1.0, 2.0, 0.0, 1.5, 1.0, -0.25])[kept]
    wanted = p[kept] * c[:, None]
    wanted[np.arange(len(kept)), targets.cpu()[kept]] -= c
    spread = np.where(p > 0, log_p, 0)[kept] + entropy[kept][:, None]
    wanted = (wanted + bonus * p[kept] * spread) / temperature
    at = found if which is None else found.at(which)
    picked = targets if which is None else targets[which]
    into = z if dtype == torch.float32 else torch.full((ROWS, COLUMNS), np.nan, dtype=dtype, device=DEVICE)
    coefficients = torch.from_numpy(c).float().to(DEVICE)
    got = fused.differentiate(z, which, picked, coefficients, bonus, Shape(None, None, temperature), at, into)
    assert got.shape == wanted.shape and got.dtype == dtype
    size = (
        np.where(np.isfinite(before), np.abs(before), 0).max(1)[kept][:, None] / temperature
    )  # of logits, rounded once
    far = EPS * (64 * (1 + np.abs(spread)) + 4 * size) + torch.finfo(dtype).eps * np.abs(wanted)
    assert (np.abs(got.double().cpu().numpy() - wanted) <= far).all()


def test_programs_that_run_at_once_never_write_rows_that_others_read(monkeypatch):
    """The interpreter runs one program after the other, where rows may be moved up in place."""
    calls = []

    class Launch:
        def __getitem__(self, grid):
            return lambda *given, **named: calls.append((named["CHOSEN"], given[0].data_ptr(), given[7].data_ptr()))

    monkeypatch.setattr("fibration.head.kernels.differentiate_rows", Launch())
    z, targets, *_ = distributions(1.0)
    found, which = measured(z, targets), torch.tensor([1, 4], device=DEVICE)
    for into in (z, torch.empty_like(z)):
        given = which, targets[which], torch.ones(2, device=DEVICE), 0.0, Shape(None, None, 1.0), found.at(which), into
        fused.differentiate(z, *given)
    (in_place, *_), (apart, *_) = calls
    assert not in_place and apart  # rows were copied; rows are read where they lie
    assert all(read != written for _, read, written in calls)


def noting(calls, module):
    """The module's `differentiate`, which notes that it was called."""
    plain = module.differentiate
    return lambda *given: calls.append(module) or plain(*given)


@pytest.mark.sampled
@pytest.mark.skipif(DEVICE == "cuda", reason="test_gpu.py")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "chunk"), [("grpo", 3), ("gspo", 4), ("real", 1000)])
def test_a_call_with_kernels_gives_what_operations_of_torch_give(monkeypatch, name, chunk, dtype):
    found = []
    for with_kernels in (True, False):
        monkeypatch.undo()
        monkeypatch.setattr(fused, "runs_on", lambda device, it=with_kernels: it)
        monkeypatch.setattr(fused, "BLOCK", 16)
        calls = []
        for module in (fused, logits):
            monkeypatch.setattr(module, "differentiate", noting(calls, module))
        made = HeadStep(operator(spec(name)), 2, padded, scale=0.3)
        made.old = made.new  # on policy, so that rounding moves no token over a bound
        leaves = made.leaves(dtype)
        result = made.loss_of_head(leaves, chunk=chunk, temperature=0.9, entropy_bonus=0.1)
        result.loss.backward()
        assert set(calls) == {fused if with_kernels else logits}
        found.append([*made.got(leaves), result.log_probs.numpy(), result.entropy.numpy()])
    eps = torch.finfo(dtype).eps
    assert furthest(*found) <= 4 * max(eps, 8 * EPS)


@pytest.mark.parametrize("head", [{"softcap": 2.0}, {"bias": np.ones(VOCABULARY)}])
def test_heads_with_bias_or_softcap_and_float64_take_operations_of_torch(monkeypatch, head):
    monkeypatch.setattr(fused, "measure", None)
    for given, dtype in ((head, torch.float32), ({}, torch.float64)):
        made = HeadStep(operator(spec("grpo")), 2, padded, **dict(given))
        made.loss_of_head(made.leaves(dtype)).loss.backward()


def test_kernels_run_on_gpus_alone(monkeypatch):
    monkeypatch.undo()
    assert not fused.runs_on(torch.device("cpu")) and fused.runs_on(torch.device("cuda"))
    assert products.returns_float32(torch.device("cpu")) is False
