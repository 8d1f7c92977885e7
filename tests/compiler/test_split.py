"""Exponentials are split where a certified fact says that no part of them is large, and only there."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import BACKENDS_HERE
from support import SPECS, operator, packed, programs, spec, spread_batch

from fibration import (
    BatchError,
    Gate,
    Parameter,
    clip_gate,
    count,
    identity_gate,
    log_ratio,
    maximum,
    minimum,
    residual,
)
from fibration import pipeline as compiling
from fibration.compiler.fuse import sweeps
from fibration.compiler.interpret import interpret
from fibration.compiler.ir import Input, Key, Map
from fibration.compiler.split import LIMIT, SUFFIX, Licence, split
from fibration.language.atoms import mass
from fibration.pipeline import bounded, generate, plan
from fibration.runtime.operator import Operator

COMPILED = [b.name for b in BACKENDS_HERE if b.device == "cpu" and b.name != "torch"]
SPLIT = ("fiberpo_crossed", "fiberpo_domain", "fiberpo_domain_tis", "fiberpo_modal", "fiberpo_turns")


@functools.cache
def found(name):
    h = spec(name)
    return bounded(h, programs(h), h.verify())


def parameter(name, channel=""):
    return Input(name, "batch", "parameter", (name, channel))


# ---------------------------------------------------------------- what is split


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPLIT)
def test_losses_of_three_levels_and_more_save_a_sweep(name):
    h, (made, _) = spec(name), found(name)
    assert set(made) == {"evaluate" + SUFFIX, "objective" + SUFFIX}
    for program, p in made.items():
        plans = [sweeps(q, h.rows.name) for q in (programs(h)[program.removesuffix(SUFFIX)], p)]
        assert [len(q.sweeps) for q in plans] == [3, 2]


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in SPECS if n not in SPLIT])
def test_no_other_loss_is_split(name):
    assert found(name) is None


@pytest.mark.thorough
def test_a_level_without_a_bound_licenses_nothing():
    h = spec("fiberpo_domain")
    for stratum in h.order:
        open_ = replace_gate(h, stratum)
        assert bounded(open_, programs(open_), open_.verify()) is None, stratum


def replace_gate(h, stratum):
    return h.model_copy(update={"gates": {**h.gates, stratum: identity_gate()}})


def test_the_plan_is_printed():
    text = str(plan(spec("fiberpo_domain"), "objective" + SUFFIX))
    assert text.startswith("plan of fiberpo_domain: 2 sweeps, 3 passes over the tokens")


@pytest.mark.parametrize("backend", COMPILED)
def test_a_gate_that_is_a_sum_is_not_cut(backend):
    """What a level adds has a bound, its summands have none: the row's mean of -120 is one of them."""
    h = spec("fiberpo_domain")
    token, bound = h.leaves[0], Parameter("bound", default=0.2)
    gate = Gate(residual - maximum(residual - bound, 0) - minimum(residual + bound, 0)).per(mass)
    gates = {s: clip_gate(Parameter(f"C_{s}", default=0.2)).per(mass) for s in h.order if s != token}
    made = h.replace(
        name="sums",
        gates={**gates, token: gate},
        gives_up={},
        decomposition=log_ratio(scale=1 / count(token, over=h.rows)),
    )
    n, report = 4, made.verify()
    assert report.ok
    op = Operator(made, report, backend, "", (a := generate(made, backend, report)).programs, compiling.load(a))
    index, x = op.index(offsets=torch.tensor([0, n]), prompt_group=[0], domain=[0]), torch.full((n,), -120.0)
    given = x - 200, torch.full_like(x, -200.0), torch.linspace(-1, 1, n)
    found = op.coefficients(*given, index, metrics=False)
    exact = operator(made).coefficients(*(t.double() for t in given), index, metrics=False)
    torch.testing.assert_close(found.values.double(), exact.values, rtol=1e-5, atol=1e-7)
    assert a.licence is not None


# ---------------------------------------------------------------- the licence


def test_a_licence_adds_up_the_widths_of_all_levels():
    _, licence = found("fiberpo_domain")
    (width,) = licence.widths
    assert width == (
        ("C_domain", "+", 1.0), ("C_domain", "-", 1.0), ("C_prompt_group", "+", 2.0), ("C_prompt_group", "-", 2.0),
        ("C_trajectory", "+", 2.0), ("C_trajectory", "-", 2.0), ("epsilon", "", 4.0),
    )  # fmt: skip
    values = {parameter(name, channel): 0.25 for name, channel, _ in width}
    assert licence.holds(values)
    rest = 0.25 * 10
    assert licence.holds({**values, parameter("epsilon"): (LIMIT - rest) / 4})
    assert not licence.holds({**values, parameter("epsilon"): (LIMIT - rest) / 4 + 1e-9})
    assert not licence.holds({**values, parameter("C_prompt_group", "-"): 8.0})


def test_every_leaf_needs_a_licence():
    _, licence = found("fiberpo_modal")
    assert len(licence.widths) == 2
    small = {parameter(name, channel): 0.1 for w in licence.widths for name, channel, _ in w}
    assert licence.holds(small)
    for epsilon in ("epsilon_text", "epsilon_image"):
        assert not licence.holds({**small, parameter(epsilon): 5.0})
    assert Licence.of(spec("fiberpo_modal").verify().facts, 3) is None


def arguments_of_exponentials(name, batch):
    """The arguments of all exponentials that a ratio is split into, on a batch."""
    h, op = spec(name), operator(spec(name))
    made = split(programs(h)["objective"])
    parts = [n for n in made.nodes() if isinstance(n, Map) and n.body.op == "exp"]
    logs = [Map(n.body.args[0], n.inputs) for n in parts]
    assert {n.stratum for n in logs} > {s.name for s in h.leaves}
    program = replace(made, names={}, outputs={Key(f"log_{i}"): n for i, n in enumerate(logs)})
    layout = packed(op, batch)
    x = torch.from_numpy(batch.x)
    given = op.inputs(
        layout.index, x, layout.tensor(batch.advantages), {}, "objective", (x - 2, torch.full_like(x, -2)),
        policies={p: torch.full_like(x, -2) for p in h.policies if p not in ("current", "old")},
    )  # fmt: skip
    return interpret(program, {i: v.numpy() for i, v in given.items()}, layout.index.sizes(program.edges))


@pytest.mark.parametrize("name", SPLIT)
def test_no_exponential_is_larger_than_its_licence_says(name):
    """On batches near and far off policy, with drifts on every level: roll-backs make far ones small again."""
    h, (_, licence) = spec(name), found(name)
    width = max(sum(f * default_of(h, parameter, channel) for parameter, channel, f in w) for w in licence.widths)
    largest = 0.0
    for seed in range(6 if name == "fiberpo_crossed" else 3):
        batch = batch_for(h, seed)
        for scale in (0.1, 0.3, 1.0, 30.0):
            logs = arguments_of_exponentials(name, batch.with_x(scale * batch.x))
            largest = max(largest, *(np.abs(v).max(initial=0.0) for v in logs.values()))
    assert width / 12 < largest <= width


def default_of(h, name, channel):
    value = h.parameters[name].default
    return value[channel] if isinstance(value, dict) else value


# ---------------------------------------------------------------- calls


def chosen(op, monkeypatch):
    """The programs that calls of an operator run, as they run."""
    alone, seen = op.calls.on(torch.device("cpu")).run._alone, []
    prepare = alone.prepare
    monkeypatch.setattr(alone, "prepare", lambda program, batch: seen.append(program) or prepare(program, batch))
    return seen


@pytest.mark.parametrize("backend", COMPILED)
def test_a_call_runs_what_its_parameters_allow(backend, monkeypatch):
    """A change of parameters on one index changes the program, the metrics too."""
    h, batch = spec("fiberpo_domain"), spread_batch(scale=2.0)
    op, exact = operator(h, backend), operator(h)
    seen = chosen(op, monkeypatch)
    layout, other = packed(op, batch), packed(exact, batch)
    limit = (LIMIT - sum(f * default_of(h, p, c) for p, c, f in found(h.name)[1].widths[0] if p != "epsilon")) / 4
    for epsilon, name in ((0.05, SUFFIX), (limit + 1e-9, ""), (limit - 1e-9, SUFFIX), (40.0, ""))[
        :: 3 if backend == "triton" else 1
    ]:
        for metrics in (True, False):
            seen.clear()
            given = [layout.tensor(v, torch.float64) for v in (batch.x / 2, -batch.x / 2, batch.advantages)]
            mine, expected = (
                o.coefficients(*given, where.index, {"epsilon": epsilon}, metrics=metrics)
                for o, where in ((op, layout), (exact, other))
            )
            assert seen == [("evaluate" if metrics else "objective") + name]
            torch.testing.assert_close(mine.values, expected.values, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(mine.objective, expected.objective, rtol=1e-12, atol=1e-15)
            if metrics:
                a, b = mine.measured.scalars(""), expected.measured.scalars("")
                assert a.keys() == b.keys() and a == pytest.approx(b, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("backend", COMPILED)
def test_ratios_near_1_whose_levels_are_far_apart_stay_finite(backend, monkeypatch):
    """A row drifts by -120, one of its tokens by +120 more: their exponentials are beyond float32, their product not.

    With the programs that the licence refuses, results are not finite.
    """
    h, n = spec("fiberpo_domain"), 6
    wide = {"epsilon": 400.0, **{f"C_{s}": {"+": 300.0, "-": 300.0} for s in ("domain", "prompt_group", "trajectory")}}
    op = operator(h, backend)
    index = op.index(offsets=torch.tensor([0, n, 2 * n]), prompt_group=[0, 1], domain=[0, 0])
    x = torch.full((2 * n,), -140.0)
    x[0] = 0.5
    given = x - 200, torch.full_like(x, -200.0), torch.linspace(-1, 1, 2 * n)
    expected = operator(h).coefficients(*(t.double() for t in given), index, wide, metrics=False)
    fine = op.coefficients(*given, index, wide, metrics=False)
    torch.testing.assert_close(fine.values.double(), expected.values, rtol=1e-4, atol=1e-7)
    monkeypatch.setattr(Licence, "holds", lambda self, largest: True)
    again = op.index(offsets=torch.tensor([0, n, 2 * n]), prompt_group=[0, 1], domain=[0, 0])
    with pytest.raises((BatchError, AssertionError)):
        broken = op.coefficients(*given, again, wide, metrics=False)
        torch.testing.assert_close(broken.values.double(), expected.values, rtol=1e-4, atol=1e-7)


def test_micro_batches_run_what_their_step_runs(monkeypatch):
    """Even those without the label whose parameter is large: bits are those of the whole step."""
    op, batch = operator(spec("fiberpo_domain"), "c"), spread_batch(scale=2.0)
    seen = chosen(op, monkeypatch)
    layout = packed(op, batch)
    given = [layout.tensor(v, torch.float32) for v in (batch.x / 2, -batch.x / 2, batch.advantages)]
    for large, name in ((9.0, ""), (0.3, SUFFIX)):
        budgets = {"C_domain": {"math": 0.1, "code": large}}
        seen.clear()
        whole = op.coefficients(*given, layout.index, budgets, metrics=False)
        rows = [r for r, label in enumerate(batch.labels["domain"]) if label == "math"]
        micro = layout.index.micro(rows)
        of = [torch.cat([t[a:b] for a, b in spans(batch, rows)]) for t in given]
        part = op.coefficients(*of, micro, budgets, metrics=False)
        assert seen == ["objective" + name] * 2
        assert torch.equal(part.values, torch.cat([whole.values[a:b] for a, b in spans(batch, rows)]))


def spans(batch, rows):
    ends = np.cumsum(batch.lengths)
    return [(ends[r] - batch.lengths[r], ends[r]) for r in rows]


def test_torch_and_files_need_no_licence():
    h = spec("fiberpo_domain")
    assert generate(h, "torch", h.verify()).licence is None
    assert generate(h, "c").licence is None


def test_whole_rows_over_ranks_meet_once():
    """All levels lie above what the first sweep sums, so that nothing is exchanged after it."""
    h = spec("fiberpo_domain")
    assert [len(plan(h, "objective" + more, ranks="whole").collectives) for more in ("", SUFFIX)] == [2, 1]
