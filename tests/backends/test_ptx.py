"""The Triton backend without a GPU: the PTX of its kernels, on the emulator of `ptx/`.

Numbers are held against the float64 interpreter, within its own bound on roundings (`oracles/backend_cases.py`; near 1e-7 of
the largest coefficient for float32 inputs, 1e-15 for float64), and bits against those of other schedules. What the emulator
finds by itself is worse than a number: an access out of bounds or that nothing orders, a value that nobody wrote.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hierarchies.batch_of_every_regime import batch_of_every_regime
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import Case, case, holds_gate, holds_training
from ptx.device import Device, Edit
from ptx.emit import Emitter
from ptx.fault import Fault
from ptx.schedules import OnDevice, scheduled
from rank_batches import part, whole_rows
from support import OF_EVERY_KIND, Batch, _operator, packed, spec, trajectory
from thorough import ALL
from thread_ranks import ThreadGroup, on_ranks

from fibration import (
    Hierarchy,
    Parameter,
    Policy,
    after,
    before,
    decomposition,
    exp,
    gated,
    log_prob,
    token_log_ratio,
)
from fibration.backends.triton import coarse
from fibration.runtime.operator import Operator

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16


# ---------------------------------------------------------------- every program


def drawn(name: str, dtype: torch.dtype, direct: bool = False) -> Case:
    h = spec(name)
    batch = batch_of_every_regime() if name in ("fiberpo_domain", "ppo") else batch_for(h, OF_EVERY_KIND.index(name))
    return case(h, batch, dtype, OF_EVERY_KIND.index(name), direct)


PROGRAMS = ("objective", "evaluate", "gate")  # the last with its adjoint and the levels
SOME = [
    ("fiberpo_domain", "objective", "packed", F32),
    ("fiberpo_modal", "objective", "packed", F64),
    ("fiberpo", "gate", "padded", BF16),
    ("ppo", "evaluate", "packed", BF16),
]
LAID_OUT = [("padded", F32), ("packed", BF16), ("packed", F32), ("padded", F64), ("padded", BF16), ("packed", F64)]
EVERY = [
    (name, program, *LAID_OUT[(i + j + k) % len(LAID_OUT)])
    for i, name in enumerate(OF_EVERY_KIND)
    for j, program in enumerate(PROGRAMS)
    for k in range(0, len(LAID_OUT), 2)
]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "program", "kind", "dtype"), dict.fromkeys([*SOME, *EVERY] if ALL else SOME), ids=str)
def test_emulated_ptx_programs_equal_the_interpreter(emitter, name, program, kind, dtype):
    given = drawn(name, dtype, direct=program == "gate")
    if program == "gate":
        scheduled(emitter, lambda backend: holds_gate(backend, given, kind))
    else:
        scheduled(emitter, lambda backend: holds_training(backend, given, kind, metrics=program == "evaluate"))


@pytest.mark.thorough
def test_fused_multiply_add_keeps_finite_products_finite(emitter):
    """`p·q - p·q` is not 0 there: what tells numbers from infinite ones does not subtract."""
    x = log_prob(Policy("current")) - log_prob(Policy("reference"))
    h = spec("ppo").replace(name="product", penalties={"kl": exp(token_log_ratio) * x})
    given = case(
        h,
        replace(batch_of_every_regime(), labels={}, policies={"reference": -1.5 + 0.3 * batch_of_every_regime().x}),
        F32,
    )
    scheduled(emitter, lambda backend: holds_training(backend, given, "packed", metrics=False), seeds=1)


def ordered() -> Hierarchy:
    """Gradients flow through what comes before a token; a weight reads what comes after."""
    h, x, gamma = spec("ppo"), token_log_ratio, Parameter("gamma", default=0.75, upper=1)
    split = decomposition(density=before(x, over=trajectory, discount=gamma) / 9 + x, recovery=exp(gated("")))
    weight = exp(after(x, over=trajectory, discount=0.5))
    return h.replace(name="ordered", decomposition=split, objective=h.objective.weigh(weight))


@pytest.mark.thorough
@pytest.mark.parametrize("lengths", [(300, 1, 4, 0), (5, 0, 40, 3, 1, 33, 9)] if ALL else [(300, 1, 4, 0)], ids=str)
def test_emulated_ptx_sums_in_order_equal_the_interpreter(emitter, lengths):
    """Along a row in two tiles of four warps, by several blocks; short rows of one block are interleaved."""
    rng = np.random.default_rng(3)
    x, advantages = rng.normal(size=sum(lengths)) / 20, np.repeat(rng.normal(size=len(lengths)), lengths)
    given = case(ordered(), Batch(lengths, x, advantages), F32, 0)
    scheduled(emitter, lambda backend: holds_training(backend, given, "packed", metrics=False))


# ---------------------------------------------------------------- a batch that is spread over ranks


def trained(op: Operator, batch: Batch, metrics: bool, **group: object) -> tuple[np.ndarray, str]:
    """Coefficients, and what is the whole batch's."""
    layout = packed(op, batch, **group)
    now, old, advantages = (layout.tensor(v, F32) for v in (batch.x, 0 * batch.x, batch.advantages))
    found = op.coefficients(now, old, advantages, layout.index, batch.parameters, metrics=metrics)
    return layout.read(found.values), repr((float(found.objective), {k: float(v) for k, v in found.metrics.items()}))


SPREAD = [("fiberpo_domain", False), ("fiberpo_domain", True), ("fiberpo_modal", False), ("fiberpo_crossed", False)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "cut"), SPREAD if ALL else SPREAD[:1])
def test_emulated_ptx_kernels_on_ranks_equal_one_process(emitter, name, cut):
    """What one process gives, in bits; where rows are cut, but for roundings (half a unit of a few float32 operations)."""
    batch = batch_of_every_regime() if name == "fiberpo_domain" else batch_for(spec(name), OF_EVERY_KIND.index(name))
    halves = [
        [(r, 0, n // 2) for r, n in enumerate(batch.lengths)],
        [(r, n // 2, n) for r, n in enumerate(batch.lengths)],
    ]
    parts = [part(batch, pieces) for pieces in (halves if cut else whole_rows(batch, len(batch.lengths) // 3))]
    device = Device(emitter)
    with device.used():
        op = _operator.__wrapped__(spec(name), "triton", None)
        wanted, whole = trained(op, batch, metrics=ALL)
        before = len(device.launches)

        def work(group: ThreadGroup) -> tuple[np.ndarray, str]:
            mine = parts[group.rank]
            keys = {"trajectory": list(mine.rows)} if cut else {}
            return trained(op, mine.batch, metrics=ALL, group=group, **keys)

        found = on_ranks(2, work)
    modules = {launch.path for launch in device.launches[:before]}, {launch.path for launch in device.launches[before:]}
    assert modules[1] and not modules[0] & modules[1]
    assert found[0][1] == found[1][1] and (cut or found[0][1] == whole)
    for mine, (values, _) in zip(parts, found, strict=True):
        bound = 1e-6 * np.abs(wanted).max() if cut else 0.0
        assert np.abs(values - wanted[mine.places]).max() <= bound


# ---------------------------------------------------------------- sums over the batch by several programs


def many_rows(rows: int = 70) -> Batch:
    rng = np.random.default_rng(8)
    lengths = tuple(int(n) for n in rng.integers(1, 3, rows))
    labels = {"prompt_group": [i // 4 for i in range(rows)], "domain": [i // 40 for i in range(rows)]}
    return Batch(lengths, rng.normal(size=sum(lengths)) / 10, np.repeat(rng.normal(size=rows), lengths), labels)


def in_parts(name: str) -> Case:
    """Under a name of its own, because code of the shipped one may be kept."""
    batch, h = many_rows(), spec(name).replace(name=f"{name}_in_parts")
    return case(h, batch if name == "fiberpo_domain" else replace(batch, labels={}), F32, 0)


@pytest.fixture
def small_parts(monkeypatch):
    """A program sums 32 elements at a time, not 512: several programs sum over few rows."""
    monkeypatch.setattr(coarse, "PART", 32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", "fiberpo_domain"] if ALL else ["ppo"])
def test_emulated_parts_of_sums_equal_the_interpreter(emitter, name, small_parts):
    """Metrics too. All schedules give the same bits, whichever program is the last to arrive."""
    given = in_parts(name)
    scheduled(emitter, lambda backend: holds_training(backend, given, "packed", metrics=True), seeds=3)


@pytest.mark.parametrize("words", ["neither releases", "releases alone", "acquires alone", "store left out"])
def test_the_emulator_finds_mistakes_in_parts_of_sums(emitter, words, small_parts):
    given = in_parts("ppo")
    ((edit, found),) = (planted for name, planted in PLANTED.items() if words in name)
    with pytest.raises(Fault, match=found), Device(emitter, edit=edit).used():
        backend = OnDevice()
        layout = given.layout(backend, "packed")
        backend.operator(given.hierarchy).coefficients(*given.tensors(layout), layout.index, metrics=False)


# ---------------------------------------------------------------- planted mistakes


def objective(emitter: Emitter, edit: Edit) -> None:
    """The coefficients of `fiberpo_domain`, whose coarse stages share one counter."""
    given = drawn("fiberpo_domain", F32)
    with Device(emitter, edit=edit).used():
        backend = OnDevice()
        layout = given.layout(backend, "packed")
        backend.operator(given.hierarchy).coefficients(*given.tensors(layout), layout.index, metrics=False)


def without(pattern: str, number: int = 0) -> Edit:
    """Leave out the statement that begins so, the `number`th of them."""

    def edit(text: str) -> str:
        found = list(re.finditer(rf"^\s*{pattern}[^;]*;", text, re.MULTILINE))
        return text[: found[number].start()] + text[found[number].end() :] if found else text

    return edit


def unordered(text: str) -> str:
    """Without the barrier before a block says that it has arrived."""
    before, atom, after = text.partition("atom.global.")
    return without("bar.sync", -1)(before) + atom + after if atom else text


def kept(text: str) -> str:
    """Without the first store after the counter has been added to, which puts it back to 0."""
    before, atom, after = text.partition("atom.global.")
    return before + atom + without(r"(@%p\d+ )?st\.global\.b32")(after) if atom else text


PLANTED = {
    "an arrival that neither releases nor acquires": (lambda t: t.replace(".acq_rel.", ".relaxed."), "nothing orders them"),
    "an arrival that releases alone": (lambda t: t.replace(".acq_rel.", ".release."), "nothing orders them"),
    "an arrival that acquires alone": (lambda t: t.replace(".acq_rel.", ".acquire."), "nothing orders them"),
    "an arrival before the block's stores": (unordered, "nothing orders them"),
    "a counter that is not put back": (kept, "nobody has written"),
    "a store left out": (without(r"(@%p\d+ )?st\.global\.b64"), "nobody has written"),
    "one token too far": (lambda t: t.replace("setp.lt.s64", "setp.le.s64"), "nobody has written|bounds|race"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize(("edit", "words"), PLANTED.values(), ids=PLANTED)
def test_the_emulator_finds_each_planted_mistake(emitter, edit, words):
    with pytest.raises(Fault, match=words):
        objective(emitter, edit)
