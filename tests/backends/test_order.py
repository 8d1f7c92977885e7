"""Sums over the tokens before or after a token, on every backend, against their definition in rationals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hierarchies import random_chains, random_quivers
from hierarchies.random_order import with_order
from hierarchies.random_quivers import batch_for
from hierarchies.random_token_formulas import with_policies
from numpy.typing import NDArray
from oracles.backend_cases import BACKENDS_HERE, Backend, Case, case, holds_gate, holds_training
from oracles.order_sums import before as summed
from oracles.order_sums import rounded, sums
from support import Batch as Tokens
from support import Layout, coefficients, operator, packed, padded, prompt_group, spec, token, trajectory, turn
from thorough import ALL

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    after,
    before,
    clip_gate,
    decomposition,
    exp,
    gated,
    identity_gate,
    log_ratio,
    mean,
    minimum,
    pipeline,
    position,
    ratio_deviation,
    residual,
    stop,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
)
from fibration.compiler.interpret import interpret
from fibration.compiler.ir import BATCH, Const, Key, Node, Scan, part, token_input
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.runtime.batch import Batch

Vector = NDArray[np.float64]
F64, F32 = torch.float64, torch.float32
CPU = [b for b in BACKENDS_HERE if b.device == "cpu"]
WORDS = ("gated_ratio", "coefficients", "log_ratio_gradient")  # results that all leaves fill together
Taken = tuple[str, float, bool]  # over which stratum, with which discount, forward


def program(h: Hierarchy, taken: tuple[Taken, ...]) -> Program:
    """Up to three sums in order of log ratios."""
    leaves = tuple(s.name for s in h.leaves)
    read: dict[str, Node] = {leaf: token_input("log_ratio", leaf, leaves) for leaf in leaves}
    outputs: dict[Key, Node] = {}
    for word, (over, discount, forward) in zip(WORDS, taken, strict=False):
        values = tuple(read[s.name] for s in h.leaves if over in (BATCH, h.rows.name, *map(str, h.coarser(s))))
        for v in values:
            outputs[part(word, v.stratum, leaves)] = Scan(v.stratum, over, values, Const(discount, BATCH), forward)
    return optimise(Program("p", leaves, outputs, {}).validate())


@functools.cache
def made(h: Hierarchy, backend: str, taken: tuple[Taken, ...]):
    return pipeline.load(pipeline.emit(h, backend, {"objective": program(h, taken)}))


def found(h: Hierarchy, backend: str, taken, layout: Layout, x: Vector, dtype=F64) -> dict[str, Vector]:
    batch = Batch(layout.index, {"log_ratio": layout.tensor(x, dtype)}, None, False, {}, F64, 0.0)
    outputs = made(h, backend, taken)("objective", batch)
    return {k.word: layout.read(v) for k, v in outputs.items() if not k.stratum}


def interpreted(p: Program, layout: Layout, x: Vector) -> dict[str, Vector]:
    index = layout.index
    of = {s: slice(None) if index.tokens_of(s) is None else index.tokens_of(s).numpy() for s in p.leaves}
    said = interpret(p, {i: x[of[i.over]] for i in p.inputs}, index.sizes(p.edges))
    result: dict[str, Vector] = {}
    for key, parts in p.results().items():
        result[key.word] = np.zeros(len(x))
        for leaf, output in parts.items():
            result[key.word][of[leaf]] = said[output]
    return result


def element(layout: Layout, over: str) -> Vector:
    """The element under every token, whatever leaf it is of."""
    index = layout.index
    below = np.full(len(layout.slots), -1)
    for leaf in index.leaves_over(over):
        tokens = index.tokens_of(leaf)
        below[slice(None) if tokens is None else tokens.numpy()] = index.parent(leaf, over).numpy()
    return below


def holds(h: Hierarchy, backend: str, taken: tuple[Taken, ...], layout: Layout, x: Vector, dtype=F64) -> None:
    """On a backend and in the interpreter, with a rounding per token that comes before."""
    said_by = {"interpreter": interpreted(program(h, taken), layout, x)}
    said_by[backend] = found(h, backend, taken, layout, x, dtype)
    for who, given in said_by.items():
        for word, (over, discount, forward) in zip(WORDS, taken, strict=False):
            below = element(layout, over)
            said, size = (rounded(sums(v, below, discount, forward)) for v in (x, abs(x)))
            error, most = abs(given[word] - said)[below >= 0], np.unique(below, return_counts=True)[1].max()
            assert (error <= (2**-52 * most * size)[below >= 0]).all(), (who, over, discount, forward)


def named(value: object) -> str:
    """A function by its name: its address is another in every process."""
    return getattr(value, "__name__", str(value))


LENGTHS = (1, 2, 40, 0, 3, 17, 70)
LABELS = {"prompt_group": list("abaccba"), "domain": [g == "c" for g in "abaccba"]}
WAYS = (("trajectory", 1.0, True), ("trajectory", 0.5, False), ("trajectory", 0.9, True))
EVERYWHERE = [(packed, F64), (padded, F32), (padded, torch.bfloat16)]


@pytest.mark.sampled
@pytest.mark.usefixtures("shipped_c")
@pytest.mark.parametrize(("lay", "dtype", "backend"), [
    (*met, b) for b in CPU for met in EVERYWHERE if not b.slow or met[1] == F32
], ids=named)  # fmt: skip
def test_sums_along_ragged_rows_equal_rationals(lay, dtype, backend: Backend):
    """One row without a token, one of a single one, holes in the mask; several sums in one program."""
    h, generator = spec("fiberpo_domain"), np.random.default_rng(1)
    batch = Tokens(LENGTHS, generator.normal(size=sum(LENGTHS)), np.zeros(sum(LENGTHS)), LABELS)
    x = torch.from_numpy(batch.x).to(dtype).double().numpy()
    holds(h, backend.name, WAYS, lay(operator(h, "torch"), batch), x, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("backend", CPU, ids=str)
@pytest.mark.parametrize(("over", "discount"), [("trajectory", 1.0), ("prompt_group", 0.5), ("batch", 0.9)])
def test_tokens_of_several_leaves_have_one_order(over, discount, backend: Backend):
    """Tokens of several leaves over one element come in the order of the batch, and a discount counts all of them."""
    h = spec("fiberpo_modal")
    layout = padded(operator(h, "torch"), batch := batch_for(h, 3, small=backend.slow))
    holds(h, backend.name, ((over, discount, True), (over, discount, False)), layout, batch.x)


@pytest.mark.sampled
@pytest.mark.parametrize("backend", CPU, ids=str)
@pytest.mark.parametrize("over", ["prompt_group", "batch"])
def test_interleaved_rows_have_the_order_of_their_positions(over, backend: Backend):
    """Of the segments of a sweep, and of what is coarser."""
    rows = Hierarchy(
        name="grouped", fibrations=[Fibration(token, prompt_group, uniform())], decomposition=log_ratio(),
        gates={token: identity_gate(), prompt_group: identity_gate()}, objective=trajectory_mean(),
    )  # fmt: skip
    positions = np.array([0, 2, 9, 1, 3, 4, 8, 5, 7])
    batch = Tokens((3, 4, 2), np.arange(1.0, 10), np.zeros(9), {"prompt_group": list("aba")})
    layout = packed(operator(rows, "torch"), batch, positions=torch.from_numpy(positions))
    mine = found(rows, backend.name, ((over, 0.5, True), (over, 0.5, False)), layout, batch.x)
    listed, below = np.argsort(positions), element(layout, over)
    for word, forward in zip(WORDS, (True, False), strict=False):
        said = rounded(sums(batch.x[listed], below[listed], 0.5, forward))
        np.testing.assert_array_equal(mine[word][listed], said)


@pytest.mark.parametrize("backend", [b for b in CPU if not b.slow], ids=str)
def test_sums_over_a_row_of_a_million_tokens_are_exact(backend: Backend):
    """Whole numbers, whose sums are exact: nothing is lost of what comes before, and nothing of another row is in it."""
    h, n = spec("gspo"), (1, 1_000_000, 3)
    x = np.random.default_rng(5).integers(-99, 100, sum(n)).astype(float)
    x[0], x[-3:] = 2.0**60, (2.0**70, np.nan, 1)
    layout = packed(operator(h, "torch"), Tokens(n, x, np.zeros(len(x))))
    mine = found(h, backend.name, (("trajectory", 1.0, True), ("trajectory", 1.0, False)), layout, x)
    row = x[1:-3].cumsum()
    np.testing.assert_array_equal(mine[WORDS[0]], [0, 0, *row[:-1], 0, 2.0**70, np.nan])
    np.testing.assert_array_equal(mine[WORDS[1]], [0, *(row[-1] - row), np.nan, 1, 0])


@pytest.mark.parametrize("backend", CPU, ids=str)
def test_a_discount_of_0_gives_0(backend: Backend):
    h, batch = spec("gspo"), Tokens((3, 2), np.arange(5.0), np.zeros(5))
    layout = packed(operator(h, "torch"), batch)
    assert not found(h, backend.name, (("trajectory", 0.0, True),), layout, batch.x)[WORDS[0]].any()


# ---------------------------------------------------------------- in losses

x, gamma, lam = token_log_ratio, Parameter("gamma", default=0.75, upper=1), Parameter("lam", default=0.5, upper=1)
PREFIX = before(x, over=trajectory)


@dataclass
class Rows:
    """A batch as formulas below see it: log ratios, those that are held where something is detached, rows and turns."""

    x: Vector
    held: Vector
    row: Vector
    turn: Vector
    a: Vector

    @property
    def one(self) -> Vector:
        return np.ones(len(self.x))

    def sum(self, values: Vector, discount: float = 1.0, forward: bool = True) -> Vector:
        return summed(values, self.row, discount, forward)

    def mean(self, values: Vector, over: Vector) -> Vector:
        return np.array([values[over == e].mean() for e in over])

    def turns(self, values: Vector, discount: float) -> Vector:
        """The sum over earlier turns of a row, of one value for each."""
        first = np.unique(self.turn, return_index=True)[1]
        each = dict(zip(self.turn[first].tolist(), summed(values[first], self.row[first], discount), strict=True))
        return np.array([each[t] for t in self.turn.tolist()])


def loss(objective=None, gate=None, split=None, **more) -> Hierarchy:
    gates = {token: gate or identity_gate(), **{s: identity_gate() for s in more.pop("coarser", ())}}
    split, objective = split or ratio_deviation(), objective or trajectory_mean()
    return Hierarchy(name="ordered", gates=gates, decomposition=split, objective=objective, **more)


def of_ratio(density) -> Hierarchy:
    return loss(split=decomposition(density=density, recovery=exp(gated(""))), gate=clip_gate(0.6))


def cut(v: Vector) -> Vector:
    return np.exp(np.clip(v, -0.6, 0.6))


MU = trajectory_mean()
LOSSES: dict[str, tuple[Hierarchy, Callable[[Rows], Vector]]] = {
    "prefix weight": (loss(MU.weigh(exp(minimum(PREFIX, 0)))), lambda b: np.exp(b.x) * np.exp(np.minimum(b.sum(b.held), 0))),
    "weight of what follows, and of places": (
        loss(
            MU.weigh(exp(after(x / 4, over=trajectory, discount=gamma * lam) - after(1, over=trajectory) / 9))
            .weigh(1 / (1 + position(over=trajectory)))
        ),
        lambda b: np.exp(b.x + b.sum(b.held / 4, 0.375, False) - b.sum(b.one, 1, False) / 9) / (1 + b.sum(b.one)),
    ),
    "kept by its prefix": (
        loss(MU.keep(before(x, over=trajectory, discount=gamma) > -0.3)),
        lambda b: np.exp(b.x) * (b.sum(b.held, 0.75) > -0.3),
    ),
    "a statistic of sums": (
        loss(MU.weigh(exp(mean(before(after(x, over=trajectory) * x, over=trajectory, discount=0.5), over=trajectory)))),
        lambda b: np.exp(b.x + b.mean(b.sum(b.sum(b.held, 1, False) * b.held, 0.5), b.row)),
    ),
    "prefix ratio": (of_ratio(PREFIX + x), lambda b: cut(b.sum(b.x) + b.x)),
    "discounted ratio of what follows": (
        of_ratio(after(x * x, over=trajectory, discount=gamma) + x), lambda b: cut(b.sum(b.x**2, 0.75, False) + b.x),
    ),
    "sums of sums": (
        of_ratio(before(exp(after(x, over=trajectory, discount=0.5)) * x, over=trajectory, discount=0.25)),
        lambda b: cut(b.sum(np.exp(b.sum(b.x, 0.5, False)) * b.x, 0.25)),
    ),
    "a stopped prefix": (of_ratio(stop(PREFIX - x) + x), lambda b: cut(b.sum(b.held) - b.held + b.x)),
    "a gate that reads its prefix": (
        loss(gate=Gate(where(PREFIX < 0.2, residual, residual / (2 + PREFIX)))),
        lambda b: 1 + np.expm1(b.x) * np.where(b.sum(b.held) < 0.2, 1, 1 / (2 + b.sum(b.held))),
    ),
    "penalties of order": (
        loss(penalties={"drift": (PREFIX + x) ** 2 / 4, "turned": mean(after(x, over=trajectory, discount=0.5) * x, over=trajectory) ** 2}),
        lambda b: np.exp(b.x) - ((b.sum(b.x) + b.x) ** 2 / 4 + b.mean(b.sum(b.x, 0.5, False) * b.x, b.row) ** 2) / b.a,
    ),
    "earlier turns": (
        loss(
            MU.weigh(exp(before(mean(x, over=turn), over=trajectory, discount=gamma, of=turn))),
            fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
            coarser=(turn, trajectory),
        ),
        lambda b: np.exp(b.x + b.turns(b.mean(b.held, b.turn), 0.75)),
    ),
}  # fmt: skip


def expected(formula: Callable[[Rows], Vector], b: Rows, a: Vector) -> tuple[Vector, float]:
    """J and its slopes by differences, of long doubles."""
    mu = 1 / (np.array([(b.row == r).sum() for r in b.row]) * len(set(b.row.tolist())))

    def objective(v: Vector) -> Any:
        return (mu * a * formula(replace(b, x=v))).sum()

    steps = np.eye(len(b.x), dtype=np.longdouble) * np.longdouble(1e-7)
    slopes = [(objective(b.x + e) - objective(b.x - e)) / np.longdouble(2e-7) for e in steps]
    return np.array(slopes, float), float(objective(b.x))


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "backend"), [(n, b) for b in CPU for n in LOSSES], ids=str)
def test_losses_with_order_equal_their_formula(name, backend: Backend):
    """Off policy, on ragged rows with holes in their mask and turns of several lengths: J and its gradient."""
    h, formula = LOSSES[name]
    generator, lengths = np.random.default_rng(7), (1, 5, 0, 9, 4)
    n, row = sum(lengths), np.repeat(np.arange(5), lengths)
    turns = (row * 10 + np.arange(n) // 3).tolist()
    batch = Tokens(lengths, generator.normal(size=n) / 2, generator.normal(size=n), token_labels={"turn": turns})
    held = batch.x.astype(np.longdouble)
    said, value = expected(formula, Rows(held, held, row, np.array(turns), batch.advantages), batch.advantages)
    mine, objective = coefficients(backend.operator(h), padded(backend.operator(h), batch), batch)
    np.testing.assert_allclose(mine, said, rtol=1e-7, atol=1e-9)
    assert objective == pytest.approx(value, rel=1e-12)
    assert np.count_nonzero(said) > n // 3


@pytest.mark.parametrize("backend", CPU, ids=str)
def test_tokens_and_rows_of_a_group_have_the_order_of_positions(backend: Backend):
    """Rows that no gate is over: their tokens alternate, and a row comes where its first token does."""
    earlier = before(mean(x, over=trajectory), over=prompt_group, of=trajectory)
    h = loss(MU.weigh(exp(before(x, over=prompt_group, discount=0.5) / 4 + earlier / 4)), groups=[prompt_group])
    values, place = np.random.default_rng(0).normal(size=9), np.array([3, 4, 9, 1, 2, 5, 8, 0, 7])
    row, group, listed = np.repeat([0, 1, 2], (3, 4, 2)), np.repeat([0, 1, 0], (3, 4, 2)), np.argsort(place)
    op, batch = backend.operator(h), Tokens((3, 4, 2), values, np.ones(9))
    layout = packed(op, batch, positions=torch.from_numpy(place), prompt_group=list("aba"))
    prefix = np.zeros(9)
    prefix[listed] = summed(values[listed], group[listed], 0.5)
    others = np.array([values[row == 2].mean(), 0, 0])[row]  # the last row's first token is the group's first
    said = np.exp(values + prefix / 4 + others / 4) / 3 / np.bincount(row)[row]
    np.testing.assert_allclose(coefficients(op, layout, batch)[0], said, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", [b for b in CPU if not b.slow], ids=str)
def test_bits_do_not_depend_on_threads(backend: Backend):
    """Along rows and over the batch, of more tokens than one thread takes for itself."""
    h, lengths = spec("gspo"), (30_000, 1, 900, 20_000)
    values = np.random.default_rng(6).normal(size=sum(lengths))
    layout = packed(operator(h, "torch"), Tokens(lengths, values, np.zeros(len(values))))
    taken, threads = (
        (("trajectory", 0.97, True), ("trajectory", 1.0, False), ("batch", 0.5, True)),
        torch.get_num_threads(),
    )
    ran = []
    try:
        for n in (1, 2, 3, 1):
            torch.set_num_threads(n)
            ran.append(found(h, backend.name, taken, layout, values))
    finally:
        torch.set_num_threads(threads)
    for word in WORDS:
        assert len({mine[word].tobytes() for mine in ran}) == 1


@pytest.mark.parametrize("backend", CPU, ids=str)
def test_a_bound_of_a_prefix_is_compared_in_float64(backend: Backend):
    """In float32 too: it is below a bound that has the same float32."""
    x32 = np.array([0.1, 0.2, 0.3], np.float32).astype(float)
    bound = float(np.nextafter(x32[0] + x32[1], 1))
    assert np.float32(bound) == np.float32(x32[0] + x32[1])
    h = loss(MU.keep(bound > PREFIX))
    op, batch = backend.operator(h), Tokens((3,), x32, np.ones(3))
    layout = packed(op, batch)
    result = op.coefficients(*(layout.tensor(v, F32) for v in (x32, np.zeros(3), np.ones(3))), layout.index)
    np.testing.assert_allclose(layout.read(result.values), np.exp(x32) / 3, rtol=1e-6)


def test_a_pass_reads_its_own_sums_and_counts_positions_itself():
    (sweep,) = pipeline.plan(LOSSES["prefix weight"][0], "objective").sweeps
    assert [[s.forward for s in p.scans] for p in sweep.passes] == [[True], []]
    counted = pipeline.plan(loss(MU.weigh(1 / (1 + position(over=trajectory)))), "objective")
    assert [p.aside for s in counted.sweeps for p in s.passes] == [()]
    turned = pipeline.plan(LOSSES["discounted ratio of what follows"][0], "objective")
    assert "sum what comes after of token along trajectory" in str(turned)


# ---------------------------------------------------------------- drawn


@functools.cache
def drawn(seed: int, dtype, small: bool, direct: bool = False) -> Case:
    """Even seeds are chains, odd ones trees and quivers."""
    kind, number = (random_quivers, seed // 2 % random_quivers.COUNT) if seed % 2 else (random_chains, seed // 2)
    h = kind.quiver(number) if seed % 2 else kind.chain(number)
    return case(with_order(h, seed), with_policies(kind.batch_for(h, seed, small=small), seed), dtype, seed, direct)


SEEDS = {"torch": (0, 3), "c": (1, 7, 42), "triton": (2,)}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("seed", "backend"), [(s, b) for b in CPU for s in (range(60) if ALL else SEEDS[b.name])], ids=str
)
def test_random_sums_match_the_interpreter(seed, backend):
    c = drawn(seed, (F64, F32, torch.bfloat16)[seed % 3], backend.slow)
    holds_training(backend, c, "padded" if seed % 4 < 2 else "packed", metrics=False)
    if ALL and not backend.slow:
        holds_gate(backend, drawn(seed, F64, False, True), "packed")
