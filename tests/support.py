"""Shared helpers: batches and their layouts, operators without a verdict, random hierarchies, checks of errors."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

from fibration import (
    Attribute,
    Fibration,
    FibrationError,
    Gate,
    Hierarchy,
    Parameter,
    SpecError,
    aggregate_gate,
    cache,
    clip_gate,
    compile,
    count,
    density,
    dual_clip_gate,
    exp,
    expm1,
    identity_gate,
    load,
    log1p,
    log_clip_gate,
    log_ratio,
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    sign,
    signed_log_ratio,
    sqrt,
    strata,
    tanh,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration import pipeline as compiling
from fibration.compiler.program import Program
from fibration.language.atoms import BATCH, Reading, Stratum
from fibration.language.grammar import Invocation, Operation, Word, read
from fibration.language.loading import shipped_file
from fibration.language.report import Report
from fibration.language.traversal import atoms
from fibration.pipeline import Artifact
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

SPECS = ("ppo", "grpo", "dapo", "dr_grpo", "gspo", "fiberpo", "fiberpo_domain")
# Shipped losses of every kind of program. Others differ in formulas; `tests/specs` compares them with their sources.
OF_EVERY_KIND = (
    "apc_obj",
    "cispo",
    "dapo",
    "dr_grpo",
    "fiberpo",
    "fiberpo_crossed",
    "fiberpo_domain",
    "fiberpo_experts",
    "fiberpo_inward",
    "fiberpo_inward_clip",
    "fiberpo_modal",
    "fiberpo_turns",
    "grpo",
    "gspo",
    "gspo_residual",
    "ppo",
    "sapo",
    "truly_ppo",
)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NAN = float("nan")

token, turn, trajectory, prompt_group, domain = strata("token turn trajectory prompt_group domain")


def two_levels(**changes: Any) -> Hierarchy:
    """FiberPO's two levels, with arguments of the hierarchy changed."""
    bound = Parameter("C", default={"+": 0.2, "-": 0.1}, per_channel=True)
    arguments: dict[str, Any] = dict(
        name="two_levels",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: aggregate_gate(bound, rollback=count(token)), token: identity_gate()},
        decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )
    return Hierarchy(**{**arguments, **changes})


@functools.cache
def spec(name: str) -> Hierarchy:
    """A shipped hierarchy."""
    return load(name)


def compiled(hierarchy: Hierarchy, backend: str) -> Operator:
    """`fibration.compile`, one operator per hierarchy and C compiler."""
    return _compiled(hierarchy, backend, os.environ.get("CC"))


@functools.cache
def _compiled(hierarchy: Hierarchy, backend: str, _cc: str | None) -> Operator:
    return compile(hierarchy, backend=backend)


@functools.cache
def programs(hierarchy: Hierarchy) -> Mapping[str, Program]:
    """The programs from which every backend emits source."""
    return compiling.programs(hierarchy)


def operator(hierarchy: Hierarchy, backend: str = "torch") -> Operator:
    """Compile without a refusal, because tests of numbers also use hierarchies that break a law.

    Shipped ones are compiled with their facts, as `fibration.compile` does.
    """
    return _operator(hierarchy, backend, os.environ.get("CC"))


def fresh(name: str) -> Operator:
    """An operator of a shipped hierarchy that nothing has called."""
    made = operator(spec(name))
    run = made.calls.on(torch.device("cpu")).run
    return Operator(made.hierarchy, made.report, made.backend, made.source, made.programs, run)


@functools.cache
def _operator(hierarchy: Hierarchy, backend: str, _cc: str | None) -> Operator:
    shipped = hierarchy.name in SPECS and hierarchy is spec(hierarchy.name)
    report = hierarchy.verify() if shipped else Report(hierarchy, ())
    made = compiling.generate(hierarchy, backend, report)
    load = compiling.load(made)
    return Operator(hierarchy, report, backend, made.source, made.programs, load, compiling.compile)


@functools.cache
def triton_artifact(name: str) -> Artifact:
    """The Triton modules of a shipped hierarchy."""
    return compiling.generate(spec(name), "triton", spec(name).verify())


@functools.cache
def raw_programs(hierarchy: Hierarchy) -> dict[str, Program]:
    """The programs as lowering and the adjoint build them."""
    return compiling.build(hierarchy)


# ---------------------------------------------------------------- batches


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, one after another. `labels` are per row, `token_labels` per token.

    `weights` is the attribute `weight`; `attributes` are others, per token or by label; `policies` are log-probs of
    further policies; `positions` are per token, or None.
    """

    lengths: tuple[int, ...]
    x: np.ndarray
    advantages: np.ndarray
    labels: Mapping[str, list[Any]] = field(default_factory=dict)
    token_labels: Mapping[str, list[Any]] = field(default_factory=dict)
    weights: np.ndarray | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, np.ndarray] = field(default_factory=dict)
    positions: np.ndarray | None = None

    @property
    def row(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def tokens(self) -> int:
        return int(sum(self.lengths))

    def with_x(self, x: Any) -> Batch:
        return replace(self, x=np.asarray(x, np.float64))

    def permuted(self, order: list[int]) -> tuple[Batch, np.ndarray]:
        """The same rows in another order, and the old place of each token."""
        places = np.concatenate([np.flatnonzero(self.row == r) for r in order]).astype(int)
        moved = replace(
            self,
            lengths=tuple(self.lengths[r] for r in order),
            x=self.x[places],
            advantages=self.advantages[places],
            labels={k: [v[r] for r in order] for k, v in self.labels.items()},
            token_labels={k: [v[p] for p in places] for k, v in self.token_labels.items()},
            weights=None if self.weights is None else self.weights[places],
            policies={k: v[places] for k, v in self.policies.items()},
        )
        return moved, places


@dataclass(frozen=True)
class Layout:
    """A batch laid out in tensors: `tensor` writes a vector over its tokens, `read` gets one back."""

    index: Index
    slots: np.ndarray
    shape: tuple[int, ...]

    def tensor(self, values: Any, dtype: torch.dtype = torch.float64, under_mask: float = NAN) -> Tensor:
        result = torch.full(self.shape, under_mask, dtype=dtype)
        result.view(-1)[torch.from_numpy(self.slots)] = torch.as_tensor(np.asarray(values)).to(dtype)
        return result.to(self.index.device)

    def read(self, tensor: Tensor) -> np.ndarray:
        return tensor.detach().cpu().double().reshape(-1).numpy()[self.slots]


def _labels_for(op: Operator, batch: Batch) -> dict[str, Any]:
    wanted = {s.name for s in (*op.hierarchy.strata, *op.hierarchy.groups)} - {op.hierarchy.rows.name, BATCH}
    return {k: v for k, v in batch.labels.items() if k in wanted}


def _attributes_for(op: Operator, batch: Batch, slots: np.ndarray, shape: tuple[int, ...]) -> dict[str, Any] | None:
    given = {**batch.attributes, **({} if batch.weights is None else {"weight": batch.weights})}
    chosen = {k: given[k] for k in op.hierarchy.attributes if k in given}
    for name, value in chosen.items():
        if isinstance(value, np.ndarray):  # per token: NaN at masked positions
            chosen[name] = np.full(int(np.prod(shape)), NAN)
            chosen[name][slots] = value
            chosen[name] = chosen[name].reshape(shape)
    return chosen or None


def packed(op: Operator, batch: Batch, device: str = "cpu", **more: Any) -> Layout:
    """Tokens row after row, with offsets. `more` goes to `index`: `group`, or keys of the rows."""
    offsets = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int64)
    shape = (batch.tokens,)
    wanted = {s.name for s in op.hierarchy.strata}
    per_token: dict[str, Any] = {k: v for k, v in batch.token_labels.items() if k in wanted}
    per_token |= {} if batch.positions is None else {"positions": batch.positions}
    index = op.index(
        offsets=torch.from_numpy(offsets),
        attributes=_attributes_for(op, batch, np.arange(batch.tokens), shape),
        device=device,
        **_labels_for(op, batch),
        **per_token,
        **more,
    )
    return Layout(index, np.arange(batch.tokens), shape)


def padded(op: Operator, batch: Batch, seed: int = 0, gaps: bool = True, device: str = "cpu", **more: Any) -> Layout:
    """One row each, in the same order, with masked positions before, between and after the tokens."""
    generator = np.random.default_rng(seed)
    width = max(batch.lengths, default=0) + (3 if gaps else 0)
    mask = np.zeros((len(batch.lengths), width), bool)
    for r, n in enumerate(batch.lengths):
        mask[r, np.sort(generator.permutation(width)[:n]) if gaps else np.arange(n)] = True
    slots = np.flatnonzero(mask)
    wanted = {s.name for s in op.hierarchy.strata}
    per_token: dict[str, Any] = {}
    if batch.positions is not None:
        per_token["positions"] = np.full(mask.shape, -1)
        per_token["positions"].reshape(-1)[slots] = batch.positions
    for name, given in batch.token_labels.items():
        if name in wanted:
            leaf = name in {s.name for s in op.hierarchy.leaves}
            flat: list[Any] = [False if leaf else None] * mask.size
            for slot, label in zip(slots, given, strict=True):
                flat[slot] = label
            per_token[name] = [flat[r * width : (r + 1) * width] for r in range(len(mask))]
    index = op.index(
        mask=torch.from_numpy(mask),
        attributes=_attributes_for(op, batch, slots, mask.shape),
        device=device,
        **_labels_for(op, batch),
        **per_token,
        **more,
    )
    return Layout(index, slots, mask.shape)


def coefficients(op: Operator, layout: Layout, batch: Batch, **options: Any) -> tuple[np.ndarray, float]:
    """Coefficients over the batch's tokens, and J."""
    result = op.coefficients(
        layout.tensor(batch.x),
        layout.tensor(np.zeros(batch.tokens)),
        layout.tensor(batch.advantages),
        layout.index,
        batch.parameters,
        **options,
    )
    return layout.read(result.values), float(result.objective)


def gated_ratio(op: Operator, layout: Layout, batch: Batch) -> np.ndarray:
    advantages = layout.tensor(batch.advantages)
    return layout.read(op.gate(layout.tensor(batch.x), layout.index, batch.parameters, advantages=advantages))


# ---------------------------------------------------------------- random hierarchies and batches

CHAINS = (
    (token,),
    (token, trajectory),
    (token, prompt_group),
    (token, trajectory, prompt_group),
    (token, turn, trajectory),
    (token, trajectory, Stratum(BATCH)),
    (token, trajectory, prompt_group, domain),
    (token, turn, trajectory, domain),
)
POOL = 32


@functools.cache
def random_hierarchy(seed: int, identity: bool = False) -> Hierarchy:
    """A hierarchy of depth 1 to 4 with random kernels, gates, coordinates and objective; always the same for a seed."""
    choose = random.Random(seed)
    chain = CHAINS[seed % len(CHAINS)]
    weight = Attribute("weight", on=token)
    signed = choose.random() < 0.4
    log_coordinates = signed or choose.random() < 0.6
    two = dict(per_channel=True) if signed and choose.random() < 0.5 else {}

    kernels = []
    for above, below in zip(chain, chain[1:], strict=False):
        options: list[Any] = [uniform(), proportional(count(token)), proportional(total(weight))]
        if above in (prompt_group, domain):
            options.append(proportional(count(trajectory)))
        kernels.append(Fibration(above, below, kernel=choose.choice(options)))

    def parameter(s: Stratum, what: str, value: float) -> Parameter:
        return Parameter(f"{what}_{s.name}", default={"+": value, "-": value / 2} if two else value, upper=1, **two)

    def gate(s: Stratum) -> Gate:
        p, m = parameter(s, "p", 0.25), parameter(s, "q", 0.5)
        near = s in (token, trajectory)
        options = [
            identity_gate(),
            clip_gate(p),
            clip_gate(p).per(1 / count(token, over=s)) if s != token else clip_gate(p).per(0.5),
            aggregate_gate(p, rollback=count(token)),
            aggregate_gate(p, rollback=3).per(count(token)),
            Gate(where(abs(residual) <= p, residual, m * sign(residual) * p + (1 - m) * residual)),
            Gate(p * tanh(residual / p)),
            Gate(residual / (1 + residual**2)),
            Gate(2 * (sigmoid(2 * residual) - 0.5)),
            Gate(where((residual > p) | (residual < -p), 0, expm1(residual))),
            Gate(residual / sqrt(1 + exp(-residual) * residual**2)),
        ]
        if near and not two:
            options += [pessimistic_clip_gate(p, m), log_clip_gate(p, m), dual_clip_gate(p, m, 1 + m)]
        if s != chain[-1]:
            base = density(chain[-1])
            room = p + abs(base) / (1 + base**2)
            options += [Gate(where(residual < -room, -room, where(residual > room, room, residual)))]
            options += [Gate(residual * (1 + base**2) / (1 + log1p(base**2) + base**2))]
        if s == chain[-1] and len(chain) > 1:
            options.append(zero_gate())
        return choose.choice(options)

    scales = [None, 1 / count(token, over=trajectory if trajectory in chain else chain[-1]), 0.5]
    scale = choose.choice(scales)
    make = signed_log_ratio if signed else log_ratio if log_coordinates else ratio_deviation
    return Hierarchy(
        name=f"random_{seed}",
        fibrations=kernels,
        gates={s: identity_gate() if identity else gate(s) for s in chain},
        decomposition=make() if scale is None else make(scale=scale),
        objective=choose.choice([trajectory_mean(), token_mean()]),
    )


def reads_advantage(hierarchy: Hierarchy) -> list[Stratum]:
    """The strata whose gate reads the advantage, coarsest first."""
    return [
        s
        for s in hierarchy.order
        if any(isinstance(a, Reading) and a.name == "advantage" for a in atoms(hierarchy.gate(s)))
    ]


def _unambiguous(lengths: list[int]) -> bool:
    """At least one token; and not as many tokens as rows, unless tokens and rows are the same thing."""
    return any(lengths) and (sum(lengths) != len(lengths) or all(n == 1 for n in lengths))


@st.composite
def batches(draw: st.DrawFn, hierarchy: Hierarchy | None = None, scale: float = 1.0, empty_rows: bool = True) -> Batch:
    """Up to five short rows with nested labels. Log ratios are multiples of 1/64, so some are exactly 0."""
    lengths = draw(st.lists(st.integers(0 if empty_rows else 1, 4), min_size=1, max_size=5).filter(_unambiguous))
    n = sum(lengths)
    number = st.integers(-48, 48).map(lambda k: scale * k / 64)
    x = draw(st.lists(number, min_size=n, max_size=n))
    per_row = hierarchy is not None and any(s != hierarchy.leaves[0] for s in reads_advantage(hierarchy))
    size = len(lengths) if per_row else n
    a = draw(st.lists(st.integers(-8, 8).map(lambda k: k / 4), min_size=size, max_size=size))
    domains = draw(st.lists(st.sampled_from(["math", "code"]), min_size=len(lengths), max_size=len(lengths)))
    groups = [(d, draw(st.integers(0, 1))) for d in domains]
    turns = [(r, draw(st.integers(0, 1))) for r, m in enumerate(lengths) for _ in range(m)]
    weights = draw(st.lists(st.integers(1, 24).map(lambda k: k / 8), min_size=n, max_size=n))
    advantages = np.repeat(np.array(a), lengths) if per_row else np.array(a)
    return Batch(
        lengths=tuple(lengths),
        x=np.array(x, float),
        advantages=advantages.astype(float),
        labels={"prompt_group": groups, "domain": domains},
        token_labels={"turn": turns},
        weights=np.array(weights, float),
    )


@st.composite
def cases(draw: st.DrawFn, identity: bool = False, pool: int = POOL, scale: float = 1.0) -> tuple[Hierarchy, Batch]:
    """A random hierarchy and a batch for it."""
    hierarchy = random_hierarchy(draw(st.integers(0, pool - 1)), identity)
    return hierarchy, draw(batches(hierarchy, scale=scale))


def spread_batch(
    lengths: tuple[int, ...] = (3, 1, 4, 2, 5, 2), seed: int = 0, scale: float = 0.3, per_row: bool = False
) -> Batch:
    """A batch of two domains and three prompt groups, with values that are not special."""
    generator = np.random.default_rng(seed)
    n, rows = sum(lengths), len(lengths)
    groups = ["a", "b", "a", "c", "b", "c", "a", "b"][:rows]
    a = np.repeat(generator.normal(size=rows), lengths) if per_row else generator.normal(size=n)
    return Batch(
        lengths=lengths,
        x=generator.normal(size=n) * scale,
        advantages=a,
        labels={"prompt_group": groups, "domain": ["math" if g != "c" else "code" for g in groups]},
        token_labels={"turn": [(r, i // 2) for r, m in enumerate(lengths) for i in range(m)]},
        weights=generator.uniform(0.5, 2, size=n),
    )


def message(error: BaseException) -> dict[str, str]:
    """The parts of a library error: what, required, found, remedy."""
    return {k: getattr(error, k) for k in ("what", "required", "found", "remedy")}


def example_words(text: str) -> list[str]:
    """The free words of a registered example: its parameters."""

    def words(tree: Any) -> Iterator[str]:
        if isinstance(tree, Word):
            yield tree.text
        children = tree.operands if isinstance(tree, Operation) else ()
        if isinstance(tree, Invocation):
            children = (*tree.positional, *(t for _, t in tree.named))
        for child in children:
            yield from words(child)

    return list(dict.fromkeys(words(read(text))))


def check(caught, kind, *, what=(), required=None, found=None, remedy=None):
    """Assert that an error has the given words in each of its four parts, and that its message shows them."""
    error = caught if isinstance(caught, Exception) else caught.value
    assert type(error) is kind
    parts = message(error)
    for key, words in (("what", what), ("required", required), ("found", found), ("remedy", remedy)):
        for word in [words] if isinstance(words, str) else words or ():
            assert word in parts[key], parts
            assert word in str(error)
    assert str(error).startswith(parts["what"])


def refuses(kind, call, **expected):
    with pytest.raises(FibrationError) as caught:
        call()
    check(caught, kind, **expected)


def refuses_a_spec(call: Callable[[], object], what: str, found: str, remedy: str) -> None:
    """Assert the words of the error; those of the remedy may be in the rule."""
    with pytest.raises(SpecError) as caught:
        call()
    error = caught.value
    assert what in error.what and found in error.found, message(error)
    assert remedy in f"{error.required} {error.remedy}" and (error.required or error.remedy), message(error)


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file or folder belong to another user."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def a_groups(path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the mode, and let the group count as one with other members."""
    path.chmod(mode)
    monkeypatch.setattr(cache, "_is_private", lambda group: False)


def invoke(*arguments: object) -> tuple[int, str]:
    """Exit code of `fibration`, and stdout with stderr."""
    result = CliRunner().invoke(importlib.import_module("fibration.cli.main").app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def said_of(name: str) -> str:
    """The words below a shipped loss in its file."""
    found = re.search(rf'^{name} = .*?\n"""(.*?)"""', shipped_file(name).read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{name} has no words"
    return inspect.cleandoc(found[1])
