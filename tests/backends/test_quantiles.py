"""Quantiles on every backend, bit for bit those of numpy, and conditions that compare tokens with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from hierarchies.random_quivers import batch_for
from numpy.typing import NDArray
from oracles.backend_cases import BACKENDS_HERE, Backend
from support import Batch as Tokens
from support import Layout, operator, packed, padded, spec
from thread_ranks import on_ranks

from fibration import Hierarchy, pipeline
from fibration.compiler.interpret import interpret
from fibration.compiler.ir import (
    Const,
    Key,
    Map,
    Node,
    Pull,
    Quantile,
    Scalar,
    arg,
    const,
    part,
    scalar,
    token_input,
)
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.runtime.batch import Batch

Vector = NDArray[np.float64]
Taken = Sequence[tuple[str, float]]  # over which stratum, at which level
F64, F32 = torch.float64, torch.float32
CHAIN = (("trajectory", 0.3), ("prompt_group", 0.5), ("domain", 0.9), ("batch", 0.75), ("trajectory", 1.0))
STEEP = scalar("exp", scalar("mul", const(1.7), arg(0)))  # what a pass in float32 rounds otherwise than one in float64


def program(h: Hierarchy, taken: Taken, formula: Scalar | None = None) -> Program:
    """Quantiles of log ratios, or of a formula in them; `coefficients` adds up 2^i of those that a token is not above."""
    leaves = tuple(s.name for s in h.leaves)
    inputs = [token_input("log_ratio", leaf, leaves) for leaf in leaves]
    read: list[Node] = [Map(formula, (x,)) if formula else x for x in inputs]
    over = {t: tuple(v for v, leaf in zip(read, h.leaves, strict=True) if lies_over(h, leaf, t)) for t, _ in taken}
    outputs: dict[Key, Node] = {
        Key(f"quantile_{i}", t): Quantile(t, over[t], Const(level, t)) for i, (t, level) in enumerate(taken)
    }
    for leaf, x in zip(leaves, inputs, strict=True):
        operands, body = [cast(Node, x)], const(0.0)
        for i, q in enumerate(list(outputs.values())[: len(taken)]):
            if leaf in q.sources:  # type: ignore[attr-defined]
                operands.append(Pull(leaf, q.stratum, q))
                inside = scalar("le", formula or arg(0), arg(len(operands) - 1))  # worked out again
                body = scalar("add", body, scalar("select", inside, const(2.0**i), const(0.0)))
        outputs[part("coefficients", leaf, leaves)] = Map(body, tuple(operands))
    return optimise(Program("p", leaves, outputs, {}).validate())


def lies_over(h: Hierarchy, leaf, stratum: str) -> bool:
    return stratum in ("batch", h.rows.name, *(s.name for s in h.coarser(leaf)))


@functools.cache
def made(h: Hierarchy, backend: str, taken: tuple[tuple[str, float], ...], formula: Scalar | None = None):
    return pipeline.load(pipeline.emit(h, backend, {"objective": program(h, taken, formula)}))


def found(h: Hierarchy, backend: str, taken: Taken, layout: Layout, x, dtype=F64, formula=None) -> dict[Key, Vector]:
    tokens = {"log_ratio": layout.tensor(x, dtype)}
    outputs = made(h, backend, tuple(taken), formula)(
        "objective", Batch(layout.index, tokens, None, False, {}, F64 if dtype == F64 else F32, 0.0)
    )
    return {k: layout.read(v) if k.word == "coefficients" else v.cpu().numpy() for k, v in outputs.items()}


def expected(h: Hierarchy, taken: Taken, layout: Layout, x: Vector, formula=None) -> dict[Key, Vector]:
    """By numpy alone, but for the formula and where infinities are, which are the interpreter's."""
    p, index = program(h, taken, formula), layout.index
    inputs = {i: x if index.tokens_of(i.over) is None else x[index.tokens_of(i.over).numpy()] for i in p.inputs}
    with np.errstate(all="ignore"):
        said = interpret(p, inputs, index.sizes(p.edges))
        values = x if formula is None else np.exp(x * 1.7)
    result, marks = {}, np.zeros(len(x))
    for i, (stratum, level) in enumerate(taken):
        key = Key(f"quantile_{i}", stratum)
        element = np.full(len(x), -1)
        for leaf in (s for s in h.leaves if lies_over(h, s, stratum)):
            where = index.tokens_of(leaf.name)
            element[slice(None) if where is None else where.numpy()] = index.parent(leaf.name, stratum).numpy()
        result[key] = np.zeros(index.size[stratum])
        for b in range(index.size[stratum]):
            mine = values[element == b]
            if len(mine):
                result[key][b] = np.quantile(mine, level) if np.isfinite(mine).all() else said[key][b]
        marks += 2.0**i * ((element >= 0) & (values <= result[key][element]))
    return {**result, Key("coefficients"): marks}


def holds(h: Hierarchy, backend: str, taken: Taken, layout: Layout, x: Vector, dtype=F64, formula=None) -> None:
    for key, said in expected(h, taken, layout, x, formula).items():
        mine = found(h, backend, taken, layout, x, dtype, formula)[key]
        if formula is None or key.word == "coefficients":
            np.testing.assert_array_equal(mine, said, err_msg=str(key))
        else:  # exponentials differ in their last bits
            np.testing.assert_allclose(mine, said, rtol=4e-15, err_msg=str(key))


CPU = [b for b in BACKENDS_HERE if b.device == "cpu"]


def named(value: object) -> str:
    """A function by its name: its address is another in every process."""
    return getattr(value, "__name__", str(value))


EVERYWHERE = [(packed, F64, None), (padded, F32, STEEP), (padded, torch.bfloat16, None)]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.usefixtures("shipped_c")
@pytest.mark.parametrize(("lay", "dtype", "formula", "backend"), [
    (*met, b) for b in CPU for met in EVERYWHERE if not b.slow or met[1] == F32
], ids=named)  # fmt: skip
def test_quantiles_over_every_stratum_equal_numpy(lay, dtype, formula, backend: Backend):
    """Ragged rows, one of them without a token and one with a single one; several in one program."""
    h, generator = spec("fiberpo_domain"), np.random.default_rng(1)
    n = (1, 2, 40, 0, 3, 17, 70)
    labels = {"prompt_group": list("abaccba"), "domain": [g == "c" for g in "abaccba"]}
    batch = Tokens(n, generator.normal(size=sum(n)), np.zeros(sum(n)), labels)
    x = torch.from_numpy(batch.x).to(dtype).double().numpy()
    holds(h, backend.name, CHAIN[1:3] if backend.slow else CHAIN, lay(operator(h, "torch"), batch), x, dtype, formula)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "lay", "backend"), [
    (name, lay, b) for b in CPU for name, lay in (("fiberpo_modal", padded), ("fiberpo_crossed", packed))
    if not b.slow or name == "fiberpo_modal"
], ids=named)  # fmt: skip
def test_quantiles_over_several_leaves_and_crossed_strata_equal_numpy(name, lay, backend: Backend):
    """Tokens of all leaves over an element count together, whatever their order in the batch."""
    h, batch = spec(name), batch_for(spec(name), 3, small=backend.slow)
    strata = sorted({s.name for s in h.order if s not in h.leaves} | {"batch"})
    taken = [(s, 0.6) for s in (strata[:1] if backend.slow else strata)] + [("trajectory", 0.05)] * (not backend.slow)
    holds(h, backend.name, taken, lay(operator(h, "torch"), batch), batch.x)


def shapes(n: int) -> dict[str, Vector]:
    """`n` numbers that are hard to select among."""
    g = np.random.default_rng(n)
    normal = g.normal(size=n)
    return {
        "ordered": np.sort(normal),
        "periodic": np.resize(np.arange(37.0), n),
        "equal": np.full(n, -0.25),
        "two": np.where(np.arange(n) < n // 2, 1e-3, 0.0),
        "ties": np.round(normal, 1),
        "mostly one": np.where(g.random(n) < 0.1, normal, 0.0),
        "zeros": np.where(g.random(n) < 0.5, 0.0, -0.0),
        "denormal": normal * 5e-324 * 2.0 ** g.integers(0, 60, n),
        "every order of magnitude": normal * 2.0 ** g.integers(-1060, 900, n),
        "infinities": np.where(g.random(n) < 0.3, np.copysign(np.inf, normal), normal),
    }


LONG, LONGEST = 20_000, 140_000  # what is sampled more, and in several rounds
HARD = [(kind, b) for b in CPU for kind in shapes(8) if not b.slow or kind in ("infinities", "ties")]


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "backend"), HARD, ids=str)
def test_quantiles_of_extreme_numbers_equal_numpy(kind, backend: Backend):
    """Of few tokens, hundreds and many, over a row and over the batch, at both ends and between them."""
    h = spec("gspo")
    lengths, levels = (
        ((2, 33), (0.37,))
        if backend.slow
        else (
            (1, 2, 5, 33, 300, 2000, LONGEST if (kind, backend.name) == ("two", "c") else LONG),
            (0.0, 1e-4, 0.37, 0.9, 1.0),
        )
    )
    x = np.concatenate([shapes(n)[kind] for n in lengths])
    layout = packed(operator(h, "torch"), Tokens(lengths, x, np.zeros(len(x))))
    for stratum in ("batch",) if backend.slow else ("trajectory", "batch"):
        holds(h, backend.name, [(stratum, level) for level in levels], layout, x)


@pytest.mark.parametrize("backend", [b for b in CPU if not b.slow], ids=str)
def test_values_that_are_equal_in_float32_are_compared_in_float64(backend: Backend):
    """Half of the tokens are above the median, though all their values round to one float32."""
    h, n = spec("gspo"), (41, 1000)
    x = np.concatenate([np.float32(1e-3) + np.arange(float(k)) * 2.0**-33 for k in n]).astype(np.float32).astype(float)
    layout = packed(operator(h, "torch"), Tokens(n, x, np.zeros(len(x))))
    for taken in ([("trajectory", 0.5)], [("batch", 0.3)]):
        holds(h, backend.name, taken, layout, x, F32, STEEP)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", CPU, ids=str)
def test_a_nan_makes_a_quantile_nan(backend: Backend):
    """More than one program of a grid counts; NaN among them makes the quantile NaN, which no token is below."""
    h, n = spec("gspo"), (9000, 200)
    x = np.random.default_rng(5).normal(size=sum(n))
    layout = packed(operator(h, "torch"), Tokens(n, x, np.zeros(len(x))))
    holds(h, backend.name, [("batch", 0.9)], layout, x)
    if not backend.slow:
        x[-7] = np.nan
        mine = found(h, backend.name, [("batch", 0.9), ("trajectory", 0.0)], layout, x)
        assert np.isnan(mine[Key("quantile_0", "batch")]).all()
        assert np.isnan(mine[Key("quantile_1", "trajectory")]).tolist() == [False, True]


def piece(
    h: Hierarchy, backend: str, batch: Tokens, rows, dtype, taken, group=None
) -> tuple[Vector, dict[Key, Vector]]:
    """What one rank finds, which has pieces (row, first token, end) of a batch; and which tokens these are."""
    places = np.concatenate([np.flatnonzero(batch.row == r)[a:b] for r, a, b in rows] or [[]]).astype(int)
    mine = Tokens(
        tuple(b - a for _, a, b in rows), batch.x[places], batch.advantages[places],
        {k: [v[r] for r, _, _ in rows] for k, v in batch.labels.items()},
    )  # fmt: skip
    keys = {"trajectory": [r for r, _, _ in rows], "group": group} if group else {}
    layout = packed(operator(h, "torch"), mine, **keys)
    return places, found(h, backend, taken, layout, mine.x, dtype)


@pytest.mark.parametrize("backend", CPU, ids=str)
def test_quantiles_on_ranks_equal_one_process(backend: Backend):
    """Whole rows on each rank, and rows cut anywhere, down to single tokens and to none."""
    h, generator, dtype = spec("fiberpo_domain"), np.random.default_rng(2), F32
    taken = CHAIN[2:4] if backend.slow else CHAIN
    n = (12, 1, 40, 3, 50)
    labels = {"prompt_group": list("abacc"), "domain": [g == "c" for g in "abacc"]}
    batch = Tokens(n, np.round(generator.normal(size=sum(n)), 2), np.zeros(sum(n)), labels)
    whole = [(r, 0, m) for r, m in enumerate(n)]
    _, alone = piece(h, backend.name, batch, whole, dtype, taken)
    halves = [[(r, 0, m // 2) for r, m in enumerate(n)], [(r, m // 2, m) for r, m in enumerate(n)]]
    for ways in ([whole[:1], [], whole[1:]], halves):
        ran = on_ranks(len(ways), lambda g, w=ways: piece(h, backend.name, batch, w[g.rank], dtype, taken, g))
        tokens = np.zeros(sum(n))
        for places, mine in ran:
            tokens[places] = mine.pop(Key("coefficients"))
            for key, value in mine.items():
                assert sorted(value) == sorted(alone[key]), key  # elements have other numbers
        np.testing.assert_array_equal(tokens, alone[Key("coefficients")])
