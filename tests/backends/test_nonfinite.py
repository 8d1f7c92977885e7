"""Without a check of inputs, as on a GPU, an input that is not finite makes results NaN, also those of trainers.

The devices here are the CPU, and the library is told not to look.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hierarchies.levels import one_level
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import BACKENDS_HERE, Backend
from oracles.interpreter import Interpreter
from support import (
    NAN,
    OF_EVERY_KIND,
    Batch,
    operator,
    padded,
    prompt_group,
    reads_advantage,
    spec,
    spread_batch,
    token,
    trajectory,
    turn,
)
from thorough import some

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    exp,
    identity_gate,
    log,
    log_ratio,
    pessimistic_clip_gate,
    pipeline,
    residual,
    sqrt,
    trajectory_mean,
    uniform,
    where,
)
from fibration.backends.c.language import token_constant, wide_constant
from fibration.backends.triton.language import constant as triton_constant
from fibration.backends.vectors import constant as torch_constant
from fibration.compiler import diagnostics
from fibration.language.atoms import BATCH, Stratum
from fibration.language.report import Report
from fibration.runtime import devices
from fibration.runtime.operator import Operator

HERE = [b for b in BACKENDS_HERE if b.device == "cpu"]
FAST = [b for b in HERE if b.name == "torch"]
BOTH_ZEROS = ("cispo", "fiberpo_turns")  # among their coefficients below
NEVER = (
    "cispo",
    "fiberpo_crossed",
    "fiberpo_experts",
    "fiberpo_inward_clip",
    "truly_ppo",
)  # no token's coefficient is 0
BAD = [(tensor, value) for tensor in ("now", "old", "advantages") for value in (NAN, math.inf, -math.inf)]


@pytest.fixture
def unseen(monkeypatch):
    monkeypatch.setattr(devices, "can_sync", lambda device: False)


class Case:
    """A hierarchy's batch, far off policy, and the tokens to spoil: some that a gate has closed, where it closes any."""

    def __init__(self, hierarchy: Hierarchy, backend: Backend, scale: float = 30.0) -> None:
        batch = batch_for(hierarchy, 3)
        if any(s not in hierarchy.leaves for s in reads_advantage(hierarchy)):
            first = np.searchsorted(batch.row, batch.row)  # the first token of each one's row
            batch = replace(batch, advantages=batch.advantages[first])
        self.batch: Batch = batch.with_x(scale * batch.x)
        self.op = operator(hierarchy, backend.name)
        self.layout = padded(self.op, self.batch)
        clean = self.layout.read(self.results(self.tensors())["coefficients"])
        closed, open_ = (np.flatnonzero(clean == 0), np.flatnonzero(clean != 0))
        self.closed = len(closed)
        self.tokens = [int(t[k]) for t in (closed, open_) for k in (0, -1) if len(t)]

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        half = self.batch.x / 2
        values = {"now": half, "old": -half, "advantages": self.batch.advantages}
        return {name: self.layout.tensor(v, dtype) for name, v in values.items()}

    def spoiled(self, tensor: str, value: float, tokens: list[int]) -> dict[str, torch.Tensor]:
        given = self.tensors()
        given[tensor].view(-1)[torch.from_numpy(self.layout.slots[tokens])] = value
        return given

    def results(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        now = given["now"].clone().requires_grad_()
        result = self.op.loss(now, given["old"], given["advantages"], self.layout.index, metrics=False)
        result.loss.backward()
        c = self.op.coefficients(now, given["old"], given["advantages"], self.layout.index, metrics=False)
        return {"loss": result.loss.detach(), "gradient": now.grad, "coefficients": c.values}

    def gated(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = (given["now"] - given["old"]).requires_grad_()
        ratio = self.op.gate(x, self.layout.index, advantages=given["advantages"])
        (back,) = torch.autograd.grad(ratio, x, torch.ones_like(ratio))
        return {"ratio": ratio.detach(), "back": back}


def lost(case, result, tokens):
    """Whether each of the tokens has NaN."""
    return np.isnan(case.layout.read(result)[tokens]).all()


@pytest.mark.sampled
@pytest.mark.parametrize("name", OF_EVERY_KIND)
@pytest.mark.parametrize("backend", FAST, ids=str)
def test_one_token_that_is_not_finite_makes_the_results_nan(unseen, backend, name):
    case = Case(spec(name), backend)
    for tensor, value in BAD:
        for one in ([t] for t in case.tokens):
            given = case.spoiled(tensor, value, one)
            found = case.results(given)
            assert math.isnan(found["loss"]), (tensor, value)
            assert lost(case, found["gradient"], one)
            assert lost(case, found["coefficients"], one)
            if tensor != "advantages" or reads_advantage(spec(name)):
                found = case.gated(given)
                assert lost(case, found["ratio"], one), (tensor, value)
                assert lost(case, found["back"], one) or tensor == "advantages"


def test_the_batches_have_closed_gates(unseen):
    """What the others rest on: a closed gate is what would turn NaN into an innocent 0."""
    closing = [n for n in OF_EVERY_KIND if Case(spec(n), FAST[0]).closed]
    assert set(OF_EVERY_KIND) - set(closing) == set(NEVER)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["ppo", "gspo", "fiberpo", "fiberpo_modal"])
@pytest.mark.parametrize("backend", HERE[1:], ids=str)
def test_kernels_propagate_nan(unseen, backend, name):
    case = Case(spec(name), backend)
    for tensor, value in BAD[::4]:
        given = case.spoiled(tensor, value, case.tokens)
        found = case.results(given)
        assert math.isnan(found["loss"]), (tensor, value)
        assert lost(case, found["gradient"], case.tokens)
        assert lost(case, found["coefficients"], case.tokens)
        if tensor != "advantages":
            found = case.gated(given)
            assert lost(case, found["ratio"], case.tokens)
            assert lost(case, found["back"], case.tokens)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.int64 if tensor.dtype == torch.float64 else torch.int32)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((n, "torch") for n in some(OF_EVERY_KIND, 2)), ("fiberpo_domain", "c"), ("ppo", "c"), ("gspo", "c")],
)
def test_no_finite_result_changes_in_any_bit(monkeypatch, name, backend):
    """Beside programs that mark nothing; 0.0 and -0.0 are told apart, and both are among the coefficients."""
    if backend not in [b.name for b in HERE]:
        pytest.skip(f"{backend} does not run here")
    monkeypatch.setattr(diagnostics, "_unless", lambda nothing, node: node)
    made = pipeline.emit(spec(name), backend, pipeline.programs(spec(name)))
    bare = Operator(spec(name), Report(spec(name), ()), backend, made.source, made.programs, pipeline.load(made))
    monkeypatch.undo()
    case = Case(spec(name), next(b for b in HERE if b.name == backend), scale=1.0)
    made = pipeline.emit(spec(name), backend, pipeline.programs(spec(name)))  # without bounds, like the other
    case.op = Operator(spec(name), Report(spec(name), ()), backend, made.source, made.programs, pipeline.load(made))
    assert {p for p in bare.programs if bare.programs[p].outputs == case.op.programs[p].outputs} == {"levels"}
    advantages = case.batch.advantages * (np.arange(case.batch.tokens) % 3 > 0)  # in whole rows where rows need it
    if any(s not in case.op.hierarchy.leaves for s in reads_advantage(case.op.hierarchy)):
        advantages = case.batch.advantages * (case.batch.row % 3 > 0)
    found = []
    for op in (bare, case.op):
        case.op = op
        case.layout = padded(op, case.batch)
        given = {**case.tensors(torch.float64), "advantages": case.layout.tensor(advantages)}
        found.append({**case.results(given), **case.gated(given)})
    for word, expected in found[0].items():
        assert torch.equal(bits(found[1][word]), bits(expected)), word
    zeros = [c for c in case.layout.read(found[0]["coefficients"]) if c == 0]
    assert name not in BOTH_ZEROS or {math.copysign(1, c) for c in zeros} == {1.0, -1.0}


# ---------------------------------------------------------------- advantages of what is coarser


@pytest.mark.parametrize("backend", HERE, ids=str)
def test_advantages_that_vary_within_a_trajectory_make_it_nan(unseen, backend):
    """No token's is taken for that of all: objective and gradient are NaN in the trajectory, and elsewhere as they were."""
    case = Case(spec("gspo"), backend)
    row = int(case.batch.row[case.tokens[0]])
    mine = np.flatnonzero(case.batch.row == row)
    for tokens in (mine[:1], mine[-1:], mine[1:]):
        given = case.tensors()
        clean = case.results(given), case.gated(given)
        given["advantages"].view(-1)[torch.from_numpy(case.layout.slots[tokens])] += 1
        found = case.results(given), case.gated(given)
        assert math.isnan(found[0]["loss"])
        others = np.flatnonzero(case.batch.row != row)
        for words, before in zip(found, clean, strict=True):
            for word in words.keys() - {"loss"}:
                assert lost(case, words[word], mine), word
                assert case.layout.read(words[word])[others].tolist() == case.layout.read(before[word])[others].tolist()


@pytest.mark.parametrize("stratum", [turn, prompt_group, Stratum(BATCH)], ids=str)
def test_advantages_that_vary_within_an_element_make_it_nan(unseen, stratum):
    """Over the rows, under them, and of the whole batch: what varies there is NaN for all that lies over it."""
    p = Parameter("p", default=0.25, upper=1)
    chain = (token, turn, trajectory, prompt_group, Stratum(BATCH))
    h = Hierarchy(
        name="reading",
        fibrations=[Fibration(a, b, uniform()) for a, b in itertools.pairwise(chain)],
        gates={s: pessimistic_clip_gate(p, p) if s == stratum else identity_gate() for s in chain},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    batch = replace(spread_batch(), advantages=np.ones(17))
    op = operator(h)
    layout = padded(op, batch)
    under = layout.index.parent("token", stratum.name)
    x, ones = layout.tensor(batch.x), np.ones(17)
    for advantages, mine in ((ones, under < 0), (np.where(np.arange(17) == 4, 2, ones), under == under[4])):
        found = op.coefficients(x, x * 0, layout.tensor(advantages), layout.index)
        assert math.isnan(found.objective) == bool(mine.any())
        assert np.isnan(layout.read(found.values)).tolist() == mine.tolist()
        ratio = op.gate(x, layout.index, advantages=layout.tensor(advantages))
        assert np.isnan(layout.read(ratio)).tolist() == mine.tolist()


def test_ambiguous_advantages_that_differ_are_nan(unseen):
    """Advantages that may be per token or per row: where the two differ, they are neither."""
    op = operator(spec("grpo"))
    index = op.index(offsets=[0, 0, 2, 3])
    now = torch.tensor([0.1, 0.2, 0.3])
    same, other = (torch.tensor(v) for v in ([0.5, 0.5, 0.25], [0.5, 0.25, 0.25]))
    found = [op.coefficients(now, now * 0, a, index) for a in (same, other)]
    one_each = op.index(offsets=[0, 1, 2, 3])
    assert torch.isfinite(op.coefficients(now, now * 0, other, one_each).values).all()
    assert [math.isnan(f.objective) for f in found] == [False, True]
    assert found[0].values.isnan().tolist() == [False, False, False]
    assert found[1].values.isnan().tolist() == [True, False, False]


def test_every_level_shows_nan(unseen):
    case = Case(spec("fiberpo_domain"), FAST[0])
    x = case.tensors()["now"]
    seen = case.op.levels(x, case.layout.index)
    assert all(torch.isfinite(v).all() for v in (*seen.residual.values(), *seen.gated.values()))
    x.view(-1)[int(case.layout.slots[0])] = math.inf
    seen = case.op.levels(x, case.layout.index)
    assert all(v.isnan().all() for v in (*seen.residual.values(), *seen.gated.values()))


# ---------------------------------------------------------------- constants that are not finite

NOTHING = residual - residual
WITHOUT_VALUES = {
    "a root with a slope of 0/0": Gate(residual + sqrt(NOTHING)),
    "a root in a branch": Gate(where(residual > 0, residual * sqrt(NOTHING), exp(-residual) - 1)),
    "a logarithm of 0": Gate(where(residual > 0, residual + log(NOTHING), residual)),
    "a quotient by 0": Gate(where(residual > 0, 1 / NOTHING, residual)),
    "minus a quotient by 0": Gate(where(residual > 0, -1 / NOTHING, residual)),
    "a condition on a logarithm of 0": Gate(where(log(NOTHING) < 0, residual, 2 * residual)),
    "a condition beside another": Gate(where((residual > 0) & (log(NOTHING) < 1), residual, 3 * residual)),
    "a finite value of an infinity": Gate(where(residual > 0, residual + exp(log(NOTHING)), residual)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WITHOUT_VALUES)
@pytest.mark.parametrize("backend", BACKENDS_HERE, ids=str)
def test_constants_without_a_finite_value_are_those_of_the_interpreter(backend, name):
    """`0/0` is NaN and `log(0)` is -inf, in values and slopes of gates. `verify` refuses such gates."""
    h = one_level(WITHOUT_VALUES[name])
    batch = Batch((3, 2), np.array([0.25, -0.5, 1.0, 0.0, -2.0]), np.array([1.0, 1.0, 1.0, -1.0, -1.0]))
    wanted, layout, op = Interpreter.of(h, batch), backend.packed(h, batch), backend.operator(h)
    x, a = layout.tensor(batch.x), layout.tensor(batch.advantages)
    found = op.coefficients(x, x * 0, a, layout.index, metrics=False)
    pairs = [(found.values, wanted.coefficients()), (op.gate(x, layout.index, advantages=a), wanted.ratio())]
    for values, expected in [*pairs, (found.objective.reshape(1), [wanted.objective()])]:
        np.testing.assert_allclose(values.cpu().numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("constant", [torch_constant, wide_constant, token_constant, triton_constant])
def test_constants_are_written_with_their_sign(constant):
    """In parentheses, because C reads `--0.0` as a decrement."""
    for value in (-0.0, -1.5, -math.inf):
        assert re.search(r"\(-(0\.0|1\.5|INFINITY|math\.inf)f?\)$|^float\(\"-inf\"\)$", constant(value)), constant(
            value
        )
    assert "nan" in constant(math.nan).lower() and "-" not in constant(math.nan) + constant(math.inf) + constant(0.0)
