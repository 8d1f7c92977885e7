"""The Triton backend: generated modules under Triton's interpreter, against the float64 interpreter."""

import ast
import functools
import importlib.util
import logging
import math
import pickle
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.backend_cases import Backend, case, holds_gate, holds_training, triton_interprets
from support import SPECS, Batch, compiled, operator, packed, padded, spec, trajectory, triton_artifact
from thorough import ALL

from fibration import (
    BackendError,
    Fibration,
    Gate,
    Hierarchy,
    log_ratio,
    mean,
    residual,
    strata,
    token_log_ratio,
    token_mean,
    uniform,
    where,
)
from fibration.backends.triton import load
from fibration.backends.triton.emit import alone, shared
from fibration.backends.triton.kernels import kernels
from fibration.backends.triton.language import FUNCTIONS, fitted, is_literal, typed
from fibration.compiler.interpret import MEANING
from fibration.pipeline import choose, compile
from fibration.pipeline import load as load_artifact

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
interpreted = pytest.mark.skipif(not triton_interprets(), reason="kernels are compiled where there is a GPU")
TRITON = Backend("triton", slow=True)


def batch_of(lengths, seed=0, groups=3, domains=2):
    generator = np.random.default_rng(seed)
    n, rows = sum(lengths), len(lengths)
    group = generator.permutation(np.arange(rows) % groups)
    labels = {"prompt_group": [f"g{g}" for g in group], "domain": [f"d{g % domains}" for g in group]}
    x, advantages = generator.normal(0, 0.15, n), generator.normal(size=n)
    return Batch(tuple(lengths), x, advantages, labels, parameters={"epsilon": 0.1})


def tensors(layout, batch):
    old = layout.tensor(np.full(batch.tokens, -0.7), F32)
    return layout.tensor(batch.x, F32) + old, old, layout.tensor(batch.advantages, F32)


def holds(name, batch, kind, dtype, everything=True):
    """Objective and coefficients are the interpreter's, and if `everything` so are metrics, gated ratios and levels."""
    h = spec(name)
    batch = replace(batch, parameters={k: v for k, v in batch.parameters.items() if k in h.parameters})
    if name == "gspo":
        row = np.repeat(np.cumsum([0, *batch.lengths[:-1]]), batch.lengths)
        batch = replace(batch, advantages=batch.advantages[row])
    holds_training(TRITON, case(h, batch, dtype), kind, metrics=everything)
    if everything:
        holds_gate(TRITON, case(h, batch, dtype, direct=True), kind)


# ---------------------------------------------------------------- under the interpreter

CASES = [("packed", F32), ("padded", BF16), ("padded", F64)]
SHORT = (3, 1, 7, 2, 40, 6, 1, 1, 5, 9)  # tiles of 4 tokens, 32 rows


@pytest.mark.sampled
@interpreted
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [(n, *c) for i, n in enumerate(SPECS) for j, c in enumerate(CASES) if ALL or n == "fiberpo_domain" or i % 3 == j],
)
def test_batches_of_many_tiles_match_the_interpreter(name, kind, dtype):
    """On tiles so small that batches have many. `test_shipped.py` holds each against dense matrices, in two precisions."""
    holds(name, batch_of(SHORT, seed=SPECS.index(name)), kind, dtype)


@pytest.mark.sampled
@interpreted
@pytest.mark.parametrize(
    ("lengths", "dtype"),
    [((1,) * 9, F64), ((33, 1, 64, 100, 2), F32), ((257, 300, 1), F32), ((1, 513, 700), BF16)],
    ids=["ones", "tiles of 32", "tiles of 256", "tiles of 512"],
)
def test_rows_shorter_and_longer_than_a_tile_match_the_interpreter(lengths, dtype):
    holds("fiberpo", batch_of(lengths), "padded", dtype, everything=False)


@pytest.mark.thorough
@interpreted
@pytest.mark.parametrize(("rows", "groups", "domains"), [(600, 2, 1), (90, 40, 3)], ids=["fibres of 300", "40 fibres"])
def test_fibres_longer_and_more_than_a_tile_match_the_interpreter(rows, groups, domains):
    batch = batch_of((1, 2) * (rows // 2), groups=groups, domains=domains)
    holds("fiberpo_domain", batch, "packed", F64, everything=False)


@interpreted
@pytest.mark.parametrize("name", ["ppo", pytest.param("fiberpo_domain", marks=pytest.mark.thorough)])
def test_the_same_call_gives_the_same_bits(name):
    op, batch = compiled(spec(name), "triton"), batch_of(SHORT)
    found = []
    for lay_out in (packed, packed, functools.partial(padded, gaps=False), padded):
        layout = lay_out(op, batch)
        result = op.coefficients(*tensors(layout, batch), layout.index)
        found.append((layout.read(result.values).tolist(), float(result.objective)))
    assert all(f == found[0] for f in found)


@interpreted
def test_a_row_in_several_micro_batches_counts_the_tokens_of_the_step() -> None:
    """Where a kernel takes the size of what it has before it for the count, this gradient is wrong by a factor."""
    log_probs, places = torch.linspace(-1, -0.2, 28).view(4, 7), torch.arange(7).expand(4, 7).clone()
    places[1] += 7
    given = log_probs, log_probs.flip(1), torch.tensor([1.0, 1.0, -1.0, 0.5])
    op = operator(spec("grpo"), "triton")
    index = op.index(mask=torch.ones(4, 7, dtype=torch.bool), trajectory=["a", "a", "b", "c"], positions=places)
    whole = op.coefficients(*given, index).values
    for rows in ([0], [1, 2], [3]):
        assert torch.equal(op.coefficients(*(t[rows] for t in given), index.micro(rows)).values, whole[rows])


@interpreted
def test_a_mean_of_ones_is_1() -> None:
    """A product with `1 / n` is not: this weight then lets no row pass."""
    passes = mean(where(token_log_ratio < 4, 1, 0), over=trajectory)
    h = spec("grpo").replace(name="all_pass", objective=token_mean().weigh(where(passes >= 1, 1, 0)))
    mask = torch.arange(190) < torch.tensor([49, 98, 103, 107, 161, 187])[:, None]
    x, op = torch.full(mask.shape, -0.7), operator(h, "triton")
    assert (op.coefficients(x, x, torch.ones(6), op.index(mask=mask)).values[mask] > 0).all()


@interpreted
def test_a_program_needs_nothing_that_metrics_alone_read() -> None:
    op, x = operator(spec("prefix_is"), "triton"), torch.linspace(-1, -0.2, 12).view(3, 4)
    given = x, x.flip(1), torch.tensor([1.0, -1.0, 0.5]), op.index(mask=torch.ones(3, 4, dtype=torch.bool))
    without, with_all = (op.coefficients(*given, metrics=m).values for m in (False, True))
    assert torch.equal(without, with_all)


@interpreted
def test_constants_keep_every_digit_in_float64():
    """A choice between two literals would be float32."""
    token, trajectory = strata("token trajectory")
    h = Hierarchy(
        name="constants",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={
            trajectory: Gate(residual * where(residual <= 0.05, 1.1, 0.9)),
            token: Gate(residual * where(residual <= 0.1, 0.7, 1.3)),
        },
        decomposition=log_ratio(),
        objective=token_mean(),
    )
    batch = batch_of(SHORT)
    found = []
    for backend in ("triton", "torch"):
        op = operator(h, backend)
        layout = packed(op, batch)
        found.append(layout.read(op.gate(layout.tensor(batch.x), layout.index)))
    assert np.abs(found[0] - found[1]).max() <= 1e-15 * np.abs(found[1]).max()


# ---------------------------------------------------------------- the source


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["ppo", "gspo", "fiberpo_domain"])
def test_a_module_imports_only_torch_and_triton(name):
    source = alone(triton_artifact(name).source)
    imported = {a.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"sys", "torch", "triton", "triton.language"}
    beside = {n.module for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)}
    assert beside == {"pathlib", "fibration_triton"}
    imported = {a.name for n in ast.walk(ast.parse(shared())) if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"torch", "triton", "triton.language"} and "from " not in shared().partition("\n\n\n")[0]
    assert max(map(len, source.splitlines())) <= 120
    functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    for program in (plans := triton_artifact(name).plans):
        assert ast.get_docstring(functions[program])
        assert 1 <= len(kernels(plans, program)) <= 5
    assert all(ast.get_docstring(f) for f in functions.values())
    assert not re.search(r"\.item\(|\.cpu\(|\.tolist\(|synchronize", source)


@interpreted
@pytest.mark.parametrize("name", ["ppo", pytest.param("fiberpo_domain", marks=pytest.mark.thorough)])
def test_sums_over_many_rows_are_of_several_programs(name):
    """Their parts add up to what torch finds."""
    batch = batch_of([1 + i % 2 for i in range(1100)], groups=50)
    results = []
    for backend in ("torch", "triton"):
        op = operator(spec(name), backend)
        layout = packed(op, batch)
        given = (layout.tensor(t) for t in (batch.x - 1, -np.ones(batch.tokens), batch.advantages[batch.row]))
        results.append(op.coefficients(*given, layout.index))
    torch.testing.assert_close(results[1].values, results[0].values, rtol=1e-10, atol=1e-16)
    for key, value in results[0].scalars().items():
        assert results[1].scalars()[key] == pytest.approx(value, rel=1e-10), key


def test_literals_are_recognised():
    assert is_literal("0.5") and is_literal("(-0.5)") and is_literal('float("-inf")') and is_literal('(float("nan"))')
    assert not is_literal("a") and not is_literal("0.5 + a") and not is_literal("f(0.5)")
    assert typed("(-0.1)", "tl.float64") == "tl.full([], -0.1, tl.float64)"
    assert typed("x", "REAL") == "x"


def test_long_statements_are_broken_where_python_allows_it():
    words = " + ".join(f"some_name_{i}" for i in range(40))
    for statement in (f"x = {words}", f"x += {words}", f"f({words.replace(' +', ',')})"):
        lines = fitted(statement, "    ")
        assert max(map(len, lines)) <= 118 and len(lines) > 3
        assert ast.unparse(ast.parse("\n".join(line[4:] for line in lines))) == statement


# ---------------------------------------------------------------- what must be refused, and chosen


def test_tensors_on_the_cpu_are_refused(monkeypatch):
    monkeypatch.setattr(load, "interpreted", lambda: False)
    made = triton_artifact("fiberpo")
    run = load_artifact(made)
    op = compiled(spec("fiberpo"), "torch")
    layout = packed(op, batch_of(SHORT))
    op = type(op)(op.hierarchy, op.report, "triton", made.source, made.programs, run)
    with pytest.raises(BackendError, match="operator 'fiberpo' is compiled for the Triton backend") as caught:
        op.gate(layout.tensor(batch_of(SHORT).x), layout.index)
    assert "TRITON_INTERPRET=1" in caught.value.remedy


def test_without_the_package_triton_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.language", None)
    with pytest.raises(BackendError, match="triton backend is not available") as caught:
        load.load("ppo", triton_artifact("ppo").source, triton_artifact("ppo").plans)
    assert "pip install triton" in caught.value.remedy


def test_auto_chooses_the_best_backend_of_the_machine(monkeypatch, caplog):
    def refuse():
        raise BackendError("there is no C compiler")

    monkeypatch.delenv("CC", raising=False)  # with it, that there is no compiler is a warning
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO, logger="fibration"):
        monkeypatch.setattr("fibration.backends.c.build.compiler", lambda: "/bin/cc")
        assert choose("auto") == "c"
        monkeypatch.setattr("fibration.backends.c.build.compiler", refuse)
        assert choose("auto") == "torch"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a chip")
        assert choose("auto") == "triton"
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == [
        "fibration: backend 'c'",
        "fibration: backend 'torch'",
        "fibration: backend 'triton'",
    ]


def test_on_a_gpu_machine_batches_on_the_cpu_run_on_the_cpu(monkeypatch, caplog):
    """A README's first lines, and a unit test of a trainer, on a machine with a GPU: their tensors lie on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a chip")
    h, batch = spec("fiberpo"), batch_of(SHORT)
    with caplog.at_level(logging.INFO, logger="fibration"):
        made = compile(h)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # now the CPU's own part
    assert made.backend == "triton" and "tl.load" in made.source
    wanted = compiled(h, "c")
    for op in (made, pickle.loads(pickle.dumps(wanted))):
        layout = packed(op, batch)
        found = op.coefficients(*tensors(layout, batch), layout.index)
        given = wanted.coefficients(*tensors(layout, batch), layout.index)
        assert torch.equal(found.values, given.values) and found.metrics.keys() == given.metrics.keys()
    assert made.calls.on(torch.device("cpu")).name == "c" and made.calls.on(torch.device("cuda", 0)).name == "triton"
    assert pickle.loads(pickle.dumps(made)).backend == "c"  # where it arrives there is no GPU
    assert compile(h, "triton").calls.on(torch.device("cpu")).name == "triton"  # what is named is what runs


# ---------------------------------------------------------------- functions that Triton has not

LOOP = """
import triton
import triton.language as tl
from fibration.backends.triton.functions import {name}


@triton.jit
def loop(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, {name}(tl.load(x + i)))
"""
EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 87.0, -87.0, 1e30, -1e30)


@interpreted
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_functions_are_accurate_and_right_at_special_values(name, dtype, tmp_path):
    (tmp_path / f"loop_{name}.py").write_text(LOOP.format(name=name))
    made = importlib.util.spec_from_file_location(f"loop_{name}", tmp_path / f"loop_{name}.py")
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    sizes = np.geomspace(1e-20, 300, 1000)
    x = torch.from_numpy(np.resize(np.concatenate([EDGES, sizes, -sizes, np.linspace(-8, 8, 2000)]), 4096)).to(dtype)
    y = torch.empty_like(x)
    with np.errstate(all="ignore"):
        module.loop[(1,)](x, y, 4096)
        exact = MEANING[name](x.double().numpy())
        rounded = exact.astype(x.numpy().dtype).astype(float)
    normal = np.isnan(rounded) | (rounded == 0) | (np.abs(rounded) >= np.finfo(x.numpy().dtype).smallest_normal)
    roundings = 8 * torch.finfo(dtype).eps * np.ones_like(rounded)
    if dtype == F32 and name in ("exp", "expm1", "sigmoid", "softplus"):  # a GPU computes 2^(x·log2 e), and so do these
        size = np.abs(x.double().numpy())
        roundings += np.where(np.isfinite(size), size, 0.0) * torch.finfo(dtype).eps
    close = np.isclose(y.double().numpy()[normal], rounded[normal], rtol=roundings[normal], atol=0, equal_nan=True)
    assert close.all()
