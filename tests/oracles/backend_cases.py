"""The backends of this machine, the float64 interpreter on the same batch, and a bound on rounding between them.

The interpreter runs programs as lowered, before any optimisation. Its inputs are read from the index here. Every value
has a bound on its rounding error, carried through the program operation by operation. Tolerances are such bounds. A
bound is near 1e-15 for most programs, and a thousand times larger after a rollback with slope 1000. Where rounding may
decide a comparison, the bound is the size of the jump.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from support import Batch, Layout, operator, packed, padded, raw_programs
from torch import Tensor

from fibration import Hierarchy
from fibration.compiler.diagnostics import levels
from fibration.compiler.interpret import MEANING, Sizes, interpret, quantiles, scan
from fibration.compiler.ir import Const, Input, Key, Map, Mix, Node, Pull, Push, Quantile, Scalar, Scan
from fibration.compiler.program import Program
from fibration.language.report import Report
from fibration.pipeline import BACKENDS
from fibration.runtime.batch import Outputs
from fibration.runtime.metrics import ALL_METRICS, Collector, Mean
from fibration.runtime.operator import Operator

# ---------------------------------------------------------------- which backends


@dataclass(frozen=True)
class Backend:
    """A backend on a device. `slow` ones get fewer and smaller cases, always the same."""

    name: str
    device: str = "cpu"
    slow: bool = False

    def __str__(self) -> str:
        return self.name if self.device == "cpu" else f"{self.name}-{self.device}"

    def operator(self, hierarchy: Hierarchy) -> Operator:
        return operator(hierarchy, self.name)

    def unit(self, dtype: torch.dtype) -> float:
        """The roundoff of its arithmetic on tokens, for log-probs of this precision; above the tokens it is float64."""
        return FLOAT64 if self.name == "torch" or dtype == torch.float64 else FLOAT32

    def packed(self, hierarchy: Hierarchy, batch: Batch) -> Layout:
        return packed(self.operator(hierarchy), batch, self.device)

    def padded(self, hierarchy: Hierarchy, batch: Batch, seed: int = 0) -> Layout:
        return padded(self.operator(hierarchy), batch, seed, device=self.device)


F64, F32 = torch.float64, torch.float32
FLOAT64, FLOAT32 = 2.0**-53, 2.0**-24
ROUNDOFF = {torch.float64: FLOAT64, torch.float32: FLOAT32, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def here() -> tuple[Backend, ...]:
    """Every backend of this version that this machine can run."""
    found = [Backend("torch")]
    if "c" in BACKENDS:
        found.append(Backend("c"))
    if "triton" in BACKENDS and triton_interprets():
        found.append(Backend("triton", slow=True))
    if torch.cuda.is_available():
        found += [Backend(name, "cuda") for name in ("torch", "triton") if name in BACKENDS]
    return tuple(found)


def triton_interprets() -> bool:
    """Whether generated Triton kernels run on the CPU in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


BACKENDS_HERE = here()
TORCH = BACKENDS_HERE[0]

# ---------------------------------------------------------------- values, with bounds on what rounding does to them

# A function of a mathematical library may be off by a few units, and an optimiser may associate in another way.
SLACK = 8
# Other sums over tokens may be kept in the tokens' precision for so many terms (times SLACK) before they are widened.
PARTIAL = 16


@dataclass(frozen=True)
class Bounded:
    """What the interpreter gives, and how far from it rounding may lead."""

    value: np.ndarray
    error: np.ndarray

    def check(self, found: Any, dtype: torch.dtype, what: str) -> None:
        """`found` was computed with roundings that the bound allows for, and rounded once more to `dtype`."""
        found = np.asarray(found, np.float64)
        assert found.shape == self.value.shape, f"{what}: shape {found.shape}, not {self.value.shape}"
        nothing = (found == -np.inf) & (self.value == -np.inf)  # the maximum over an empty branch
        assert (np.isfinite(found) | nothing).all(), f"{what}: not finite"
        tiny = 1e-300 if dtype == torch.float64 else 2.0**-24 if dtype == torch.float16 else 1e-37
        allowed = SLACK * self.error + 2 * ROUNDOFF[dtype] * np.abs(self.value) + tiny
        with np.errstate(invalid="ignore"):
            excess = np.where(nothing, 0.0, np.abs(found - self.value) / allowed)
        i = int(np.argmax(excess))
        assert excess[i] <= 1, (
            f"{what}: {found[i]!r} at {i}, expected {self.value[i]!r} ± {allowed[i]:.1e}; {(excess > 1).sum()} such"
        )

    @property
    def uncertainty(self) -> float:
        """The largest bound, relative to the largest value."""
        return float(self.error.max() / max(np.abs(self.value).max(), 1e-30))


class Truth:
    """The interpreter on one batch, fed from an index: any program, any output."""

    def __init__(
        self,
        layout: Layout,
        x: np.ndarray,
        advantages: np.ndarray,
        parameters: Mapping[str, Any],
        unit: float,
        log_probs: np.ndarray | None = None,
        policies: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.index, self.x, self.advantages, self.parameters = layout.index, x, advantages, parameters
        self.log_probs, self.policies = log_probs, policies or {}
        self.h: Hierarchy = layout.index.hierarchy
        self.unit = unit

    def run(self, name: str, **more: np.ndarray) -> dict[str, Bounded]:
        program = raw_programs(self.h)[name]
        inputs, sizes = given = self.given(program, more)
        values = interpret(program, *given)
        with np.errstate(all="ignore"):
            errors = _Rounding(program, inputs, sizes, self.unit).outputs()
        spread = {k: np.broadcast_to(errors[k], v.shape) for k, v in values.items()}
        found, bounds = self.joined(program, values), self.joined(program, spread)
        return {word: Bounded(value, bounds[word]) for word, value in found.items()}

    def interpreted(self, program: Program) -> dict[str, np.ndarray]:
        """What the interpreter gives of another program of the hierarchy."""
        return self.joined(program, interpret(program, *self.given(program, {})))

    def given(self, program: Program, more: Mapping[str, np.ndarray]) -> tuple[dict[Any, Any], Sizes]:
        inputs: dict[Any, Any] = {i: self.input(i, more) for i in program.inputs}
        inputs |= {m: self.index.matrix(m.into, m.of).cpu().numpy() for m in program.matrices}
        return inputs, self.index.sizes(program.edges)

    def joined(self, program: Program, values: Mapping[Key, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by their names, with what all leaves fill together."""
        found = dict(values)
        for key, parts in program.results().items():
            if len(parts) > 1:
                found[key] = np.empty(len(self.x))
                for leaf, part in parts.items():
                    found[key][self.tokens(leaf)] = values[part]
        return {program.called[key]: value for key, value in found.items()}

    def tokens(self, leaf: str) -> Any:
        """Which tokens are its elements."""
        tokens = self.index.tokens_of(leaf)
        return slice(None) if tokens is None else tokens.cpu().numpy()

    def input(self, node: Input, more: Mapping[str, np.ndarray]) -> Any:
        index = self.index
        if node.kind in ("log_ratio", "log_prob", "cotangent"):
            per_token = {"log_ratio": self.x, "log_prob": self.log_probs, **more}[node.kind]
            return per_token[self.tokens(node.over)]
        if node.kind in ("old_log_prob", "policy_log_prob"):
            return self.policies[node.key[0] if node.key else "old"][self.tokens(node.over)]
        if node.kind == "count":
            return index.count(*node.key).cpu().numpy()
        if node.kind == "total":
            return index.total(self.h.attributes[node.key[0]], node.key[1]).cpu().numpy()
        if node.kind == "attribute":
            return index.values[node.key[0]].cpu().numpy()
        if node.kind == "parameter":
            return self.parameter(node)
        assert node.kind in ("advantage", "reward")
        if node.over in index.leaves:
            return self.advantages[self.tokens(node.over)]
        result = np.empty(index.size[node.over])
        for leaf in index.leaves_over(node.over):
            result[index.parent(leaf, node.over).cpu().numpy()] = self.advantages[self.tokens(leaf)]
        return result

    def parameter(self, node: Input) -> Any:
        """One number, or one per element of its stratum."""
        name, channel = node.key
        value = self.parameters.get(name, self.h.parameters[name].default)

        def of(v: Any) -> float:
            return float(v[channel] if isinstance(v, Mapping) else v)

        if isinstance(value, Mapping) and not set(value) <= {"+", "-"}:
            return np.array([of(value[label]) for label in self.index.labels[node.over]])
        return of(value)


def compared(program: Program) -> set[Node]:
    """The nodes on which a comparison, other than one with 0, depends: sums among them are float64 everywhere."""
    found: set[Node] = set()

    def arguments(body: Scalar, inside: bool) -> set[int]:
        if body.op == "arg":
            return {int(body.value or 0)} if inside else set()
        if body.op in ("lt", "le"):
            inside = not any(a.op == "const" and a.value == 0 for a in body.args)
        return set().union(*(arguments(a, inside) for a in body.args))

    todo = [n.inputs[i] for n in program.nodes() if isinstance(n, Map) for i in arguments(n.body, False)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend(node.operands)
    return found


class _Rounding:
    """A bound on the error of every value of a program, when tokens are computed with the roundoff `unit`."""

    def __init__(self, program: Program, inputs: Mapping[Any, Any], sizes: Any, unit: float) -> None:
        self.program, self.inputs, self.sizes, self.fine = program, inputs, sizes, unit
        self.wide = compared(program) | {n for n in program.nodes() if isinstance(n, Push) and n.wide}
        self.results: dict[Node, tuple[Any, Any]] = {}
        for node in program.nodes():
            self.unit = unit if node.stratum in program.leaves else FLOAT64
            self.results[node] = self.node(node)

    def outputs(self) -> dict[str, Any]:
        found = {k: self.results[v][1] for k, v in self.program.outputs.items()}
        return {k: np.where(np.isnan(e), np.inf, e) for k, e in found.items()}

    def stored(self, value: Any, error: Any) -> tuple[Any, Any]:
        """A value that is brought to the precision of where it is used."""
        return value, error + (np.abs(value - np.float32(value)) if self.unit == FLOAT32 else 0.0)

    def node(self, node: Node) -> tuple[Any, Any]:
        size = self.sizes.size[node.stratum]
        if isinstance(node, Input):
            return self.stored(np.broadcast_to(np.asarray(self.inputs[node], np.float64), (size,)), np.zeros(size))
        if isinstance(node, Const):
            return self.stored(np.full(size, float(node.value)), np.zeros(size))
        if isinstance(node, Map):
            return self.scalar(node.body, [self.results[o] for o in node.inputs], {})
        if isinstance(node, Quantile):
            return self.quantile(node, size)
        if isinstance(node, Scan):
            return self.scan(node)
        value, error = self.results[node.operands[0]]
        if isinstance(node, Mix):  # sums of as many terms, with a matrix that is the solution of as many equations
            matrix = np.asarray(self.inputs[node.matrix])
            matrix = matrix.T if node.transposed else matrix
            terms = sum(self.inputs[node.matrix].shape)
            return matrix @ value, np.abs(matrix) @ error + 4 * FLOAT64 * terms * (np.abs(matrix) @ np.abs(value))
        if not isinstance(node, (Push, Pull)):
            return value, error
        parent = self.sizes.parents[node.source, node.target]
        if isinstance(node, Pull):
            return self.stored(value[parent], error[parent])
        if node.reduce == "max":
            top, bound = np.full(size, -np.inf), np.zeros(size)
            np.maximum.at(top, parent, value)
            np.maximum.at(bound, parent, error)
            return top, bound
        total, mass = (np.bincount(parent, weights=w, minlength=size) for w in (value, np.abs(value)))
        terms = np.bincount(parent, minlength=size)
        bound = np.bincount(parent, weights=error, minlength=size) + FLOAT64 * (terms > 1) * terms * mass
        if node.source in self.program.leaves and self.fine == FLOAT32 and node not in self.wide:
            bound = bound + FLOAT32 * np.minimum(terms - 1, PARTIAL) * mass
        return total, bound

    def scan(self, node: Scan) -> tuple[Any, Any]:
        """What is off at each token, and two roundings for every token that may lie between."""
        size, share = self.sizes.size, {node.discount: self.results[node.discount][0]}
        tokens = sum(size[s] for s in node.sources)
        values = {v: np.broadcast_to(self.results[v][0], size[v.stratum]) for v in node.values}
        errors = {v: self.results[v][1] + 2 * tokens * FLOAT64 * np.abs(value) for v, value in values.items()}
        value, error = (scan(node, {**given, **share}, self.sizes) for given in (values, errors))
        return self.stored(value, error)

    def quantile(self, node: Quantile, size: int) -> tuple[Any, Any]:
        """Values in order move no further than the value that moves furthest, and so do those between them."""
        parents = [self.sizes.parents[source, node.target] for source in node.sources]
        pairs = [np.broadcast_arrays(*self.results[v], p) for v, p in zip(node.values, parents, strict=True)]
        values, errors, parent = map(np.concatenate, zip(*pairs, strict=True))
        value, bound = quantiles(values, parent.astype(int), self.results[node.level][0]), np.zeros(size)
        np.maximum.at(bound, parent.astype(int), errors)
        return value, bound + 4 * FLOAT64 * np.abs(value)

    def scalar(self, body: Scalar, args: list[Any], done: dict[Scalar, Any]) -> tuple[Any, Any]:
        if body.op == "arg":
            return args[int(body.value or 0)]
        if body not in done:
            if body.op == "const":
                value, error = self.stored(np.float64(body.value), np.float64(0))
            elif body.op == "sub" and body.args[0] is body.args[1]:  # x - x, whatever x was rounded to
                value = self.scalar(body.args[0], args, done)[0] * 0.0
                error = np.zeros_like(value)
            else:
                value, error = self.apply(body.op, *(self.scalar(a, args, done) for a in body.args))
            done[body] = value, error
        return done[body]

    def apply(self, op: str, *args: tuple[Any, Any]) -> tuple[Any, Any]:
        """The error of a condition is whether it may fall either way."""
        v, e = [a[0] for a in args], [a[1] for a in args]
        value = MEANING[op](*v)
        if op in ("lt", "le"):
            return value, np.abs(v[0] - v[1]) <= np.where((e[0] == 0) & (e[1] == 0), -1.0, e[0] + e[1])
        if op in ("and", "or"):  # certain where one side decides by itself
            decides = op == "or"
            sure = [(x == decides) & ~u for x, u in zip(v, e, strict=True)]
            return value, (e[0] | e[1]) & ~(sure[0] | sure[1])
        if op == "not":
            return value, e[0]
        if op == "select":
            jump = np.abs(v[1] - v[2]) + np.maximum(e[1], e[2])
            return value, np.where(e[0], np.where(np.isnan(jump), np.inf, jump), np.where(v[0], e[1], e[2]))
        exact = functools.reduce(np.logical_and, [x == 0 for x in e]) & (value == np.float32(value))
        return value, self.passed_on(op, value, v, e) + np.where(exact, 0.0, self.unit * np.abs(value))

    def passed_on(self, op: str, value: Any, v: list[Any], e: list[Any]) -> Any:
        """What errors of the arguments do to a value."""
        if op in ("add", "sub"):
            return e[0] + e[1]
        if op == "mul":
            return np.abs(v[0]) * e[1] + np.abs(v[1]) * e[0] + e[0] * e[1]
        if op == "div":
            rest = np.abs(v[1]) - e[1]
            return np.where(rest > 0, (e[0] + np.abs(value) * e[1]) / rest, np.inf)
        if op == "exp":
            return value * np.expm1(e[0])
        if op == "expm1":
            return (value + 1) * np.expm1(e[0])
        if op in ("log", "log1p"):
            rest = v[0] + (op == "log1p") - e[0]
            return np.where(rest > 0, e[0] / rest, np.inf)
        if op == "sqrt":
            return np.where(e[0] == 0, 0.0, np.where(value > 0, e[0] / value, np.sqrt(e[0])))
        assert op in ("neg", "stop", "tanh", "sigmoid", "softplus", "atan")  # none of them is steeper than 1
        return e[0]


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A batch whose log-probs and advantages are numbers of one precision, away from where a comparison may tip."""

    hierarchy: Hierarchy
    batch: Batch  # x = now - old, exactly
    old: np.ndarray
    dtype: torch.dtype
    layout_seed: int

    @property
    def now(self) -> np.ndarray:
        return self.old + self.batch.x

    def layout(self, backend: Backend, kind: str) -> Layout:
        if kind == "packed":
            return backend.packed(self.hierarchy, self.batch)
        return backend.padded(self.hierarchy, self.batch, self.layout_seed)

    def tensors(self, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """log-probs, old log-probs and advantages; NaN or infinite where there is no token."""
        garbage = [float("nan"), float("inf"), -float("inf")][self.layout_seed % 3]
        now, old = (layout.tensor(v, self.dtype, garbage) for v in (self.now, self.old))
        return now, old, self.advantages(layout, garbage)

    def advantages(self, layout: Layout, garbage: float = float("nan")) -> Tensor:
        """Per row where they are constant there, and the layout's seed is even."""
        a, row = self.batch.advantages, self.batch.row
        per_row = np.full(len(self.batch.lengths), garbage)
        per_row[row] = a
        if self.layout_seed % 2 == 0 and (per_row[row] == a).all() and layout.shape != per_row.shape:
            return torch.from_numpy(per_row).to(self.dtype).to(layout.index.device)
        return layout.tensor(a, self.dtype, garbage)

    def policies(self, layout: Layout, *names: str) -> dict[str, Tensor]:
        """Log-probs of further policies, and of those that are named; likewise."""
        garbage = [float("inf"), float("nan"), -float("inf")][self.layout_seed % 3]
        known = {**self.batch.policies, "old": self.old}
        chosen = [name for name in self.hierarchy.policies if name in (*self.batch.policies, *names)]
        return {name: layout.tensor(known[name], self.dtype, garbage) for name in chosen}

    def truth(self, layout: Layout, backend: Backend) -> Truth:
        return self.bounds(layout, backend.unit(self.dtype))

    def bounds(self, layout: Layout, unit: float) -> Truth:
        """The interpreter, with the errors of arithmetic of this roundoff."""
        return Truth(*self.given(layout, unit))

    def given(self, layout: Layout, unit: float) -> tuple[Any, ...]:
        batch, others = self.batch, {**self.batch.policies, "old": self.old}
        return layout, batch.x, batch.advantages, batch.parameters, unit, self.now, others


def indexed(hierarchy: Hierarchy, batch: Batch) -> Layout:
    """Packed, for the interpreter alone: nothing is verified or generated."""
    return packed(Operator(hierarchy, Report(hierarchy, ()), "none", "", {}, _refuse), batch)


def _refuse(*_: Any) -> Any:
    raise AssertionError("an operator without code was called")


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.as_tensor(values).to(dtype).double().numpy()


def case(hierarchy: Hierarchy, batch: Batch, dtype: torch.dtype, seed: int = 0, direct: bool = False) -> Case:
    """The batch in this precision, its x moved a little until float32 and float64 agree on the side of every branch.

    `direct`: the log ratios themselves are numbers of this precision, and `old` is 0.
    """
    generator = np.random.default_rng([seed, 11])
    old = rounded(generator.uniform(-3, -0.01, size=batch.tokens) * (not direct), dtype)
    others = {name: rounded(values, dtype) for name, values in batch.policies.items()}
    batch = replace(batch, advantages=rounded(batch.advantages, dtype), policies=others)
    wanted = batch.x.copy()
    layout = indexed(hierarchy, batch)
    for attempt in range(60):
        result = Case(hierarchy, batch.with_x(rounded(old + wanted, dtype) - old), old, dtype, seed)
        truth = result.bounds(layout, FLOAT32)
        if not np.abs(truth.run("gate")["gated_ratio"].value).max() < LARGE:  # nothing limits the drift of such a chain
            wanted = wanted / 4
            continue
        coefficients = truth.run("objective")["coefficients"]
        scale = max(np.abs(coefficients.value).max(), np.abs(batch.advantages).max() / batch.tokens)
        unsure = coefficients.error > CLEAR * scale
        if not unsure.any():
            return result
        step = min(0.01 * (1 + attempt) * (1 if dtype in (torch.float64, torch.float32) else 5), 0.5)
        wanted = np.where(unsure, wanted * (1 + step * generator.uniform(-1, 1, size=batch.tokens)), wanted)
        for name, values in others.items():
            others[name] = rounded(
                np.where(unsure, values - step * generator.uniform(size=batch.tokens), values), dtype
            )
    raise AssertionError(f"'{hierarchy.name}': no batch away from its breakpoints")


LARGE = 1e4
CLEAR = 1e-2  # a bound below this part of the largest coefficient, or weight: no branch of any weight is in doubt


# ---------------------------------------------------------------- a backend against the interpreter


def under_mask(layout: Layout, tensor: torch.Tensor) -> torch.Tensor:
    """What lies where there is no token."""
    covered = torch.ones(layout.shape, dtype=torch.bool).reshape(-1)
    covered[torch.from_numpy(layout.slots)] = False
    return tensor.detach().cpu().reshape(-1)[covered]


def holds_training(backend: Backend, c: Case, kind: str, metrics: bool = True) -> None:
    """Objective, coefficients and metrics, as `loss` and `coefficients` give them."""
    op, layout = backend.operator(c.hierarchy), c.layout(backend, kind)
    now, old, advantages = c.tensors(layout)
    more: dict[str, Any] = {"policies": c.policies(layout), "metrics": metrics}
    expected = c.truth(layout, backend).run("evaluate")
    result = op.coefficients(now, old, advantages, layout.index, c.batch.parameters, **more)
    wide = result.values.dtype
    assert wide == result.objective.dtype == (F64 if c.dtype == F64 else F32)
    expected["coefficients"].check(layout.read(result.values), wide, "coefficients")
    expected["objective"].check([float(result.objective)], wide, "objective")
    assert (under_mask(layout, result.values) == 0).all()

    def gathered(what: str) -> dict[str, float]:
        called = raw_programs(c.hierarchy)["evaluate"].called
        outputs = Outputs({k: torch.tensor(getattr(expected[name], what)) for k, name in called.items()})
        index = layout.index if backend.device == "cpu" else c.layout(TORCH, kind).index
        found = Collector(c.hierarchy, {}).collect("evaluate", outputs, index, ALL_METRICS).metrics()
        return {k: float(v) for k, v in found.items()}

    values, errors = (gathered("value"), gathered("error")) if metrics else ({}, {})
    assert result.metrics.keys() == values.keys()
    for name, metric in result.metrics.items():
        if isinstance(metric, Mean) and not float(metric.count):  # of an empty branch
            assert math.isnan(values[name])
            continue
        Bounded(np.array([values[name]]), np.abs([errors[name]])).check([float(metric)], F32, name)

    now = now.requires_grad_()
    loss = op.loss(now, old, advantages, layout.index, c.batch.parameters, **more)
    assert torch.equal(loss.loss.detach(), -result.objective)
    (loss.loss * 3).backward()
    assert torch.equal(now.grad, (-3 * result.values).to(c.dtype))


def holds_gate(backend: Backend, c: Case, kind: str) -> None:
    """Gated ratios, their backward, and what every level read and gave; log ratios are given directly."""
    op, layout = backend.operator(c.hierarchy), c.layout(backend, kind)
    x, _, advantages = c.tensors(layout)
    x = x.requires_grad_()
    truth = c.truth(layout, backend)
    more: dict[str, Any] = {"advantages": advantages, "policies": c.policies(layout, "old")}
    gated = op.gate(x, layout.index, c.batch.parameters, **more)
    assert gated.dtype == c.dtype
    truth.run("gate")["gated_ratio"].check(layout.read(gated), c.dtype, "gated ratio")
    cotangent = layout.tensor(np.cos(1 + np.arange(c.batch.tokens)), c.dtype)
    gated.backward(cotangent)
    expected = truth.run("gate_adjoint", cotangent=layout.read(cotangent))["log_ratio_gradient"]
    expected.check(layout.read(x.grad), c.dtype, "gradient of the gated ratio")
    assert (under_mask(layout, gated) == 1).all()
    assert (under_mask(layout, x.grad) == 0).all()

    seen, wanted = op.levels(x, layout.index, c.batch.parameters, **more), truth.run("levels")
    leaves = {s.name for s in c.hierarchy.leaves}
    for stratum, channel in levels(c.hierarchy):
        for word, found in (("residual", seen.residual), ("gated", seen.gated)):
            vector = found[stratum, channel]
            assert vector.dtype == F64
            name = raw_programs(c.hierarchy)["levels"].called[Key(word, stratum, channel)]
            wanted[name].check(vector.cpu().numpy(), F64 if stratum not in leaves else _narrow(backend, c), name)


def holds_random(backend: Backend, random_case: Callable[[bool, bool], Case], seed: int) -> None:
    """Value and coefficients of each; metrics and gates of each on torch, and of every third where building takes time."""
    kinds = ("packed", "padded") if seed % 4 < 2 else ("padded", "packed")
    free = backend.name == "torch"
    holds_training(backend, random_case(False, backend.slow), kinds[0], metrics=free or seed % 3 == 0)
    if free or seed % 3 == 1:
        holds_gate(backend, random_case(True, backend.slow), kinds[1])


def _narrow(backend: Backend, c: Case) -> torch.dtype:
    return F64 if backend.name == "torch" or c.dtype == F64 else F32
