"""Custom torch operators (`fibration::coefficients` and others) for calls under torch.compile or torch.func.

Torch sees each call as one operator with known shapes and a known gradient. The operator makes the same call on the
same tensors, so results are equal to the bit. Indexes and operators are passed by number; arguments that are not
tensors are written as text in `words`. torch.compile traces the functions named `of_*`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fibration.errors import ParameterError, an, shown
from fibration.runtime import tracing
from fibration.runtime.index.index import Index
from fibration.runtime.inputs import no_index
from fibration.runtime.metrics import Measured, Metric

# The arguments that all custom operators share.
GIVEN = (
    "Tensor? advantages, Tensor? rewards, Tensor[] policies, Tensor[] numbers, str words, Tensor index, int operator"
)
NONE = torch.zeros((), dtype=torch.int64, device="cpu")
ONE = torch.ones((), dtype=torch.float64, device="cpu")


# ---------------------------------------------------------------- traced by torch.compile


def of_coefficients(
    op: Any, log_probs: Any, old_log_probs: Any, *more: Any
) -> tuple[Tensor, Tensor, Tensor, DeferredMetrics]:
    """A rank's share of the loss, which alone has a gradient; the coefficients, the objective, and its metrics."""
    advantages, index, parameters, rewards, policies, metrics = more  # as `Operator.loss` takes them
    given = _given(op, index, parameters, policies, metrics, advantages, rewards, old_log_probs=old_log_probs)
    capacity = op.metric_capacity if metrics is not False else 0
    share, values, objective, numbers = _coefficients(log_probs, old_log_probs.detach(), capacity, *given)
    return share, values, objective, DeferredMetrics(numbers, index, (op.number, _asked(metrics)))


def of_gate(
    op: Any, log_ratio: Any, index: Any, parameters: Any, advantages: Any, rewards: Any, policies: Any
) -> Tensor:
    return _gate(log_ratio, *_given(op, index, parameters, policies, False, advantages, rewards))


class DeferredMetrics:
    """The metrics of a call under torch.compile. Their names come from the index when they are read."""

    def __init__(self, numbers: Tensor, index: Any, key: tuple[int, str]) -> None:
        self.numbers, self.index, self.key = numbers, index, key

    @tracing.skip_dynamo
    def metrics(self) -> dict[str, Metric]:
        return self._measured().metrics()

    @tracing.skip_dynamo
    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]:
        return self._measured().scalars(prefix, **more)

    def _measured(self) -> Measured:
        table = self.index.told(_table_of(*self.key))
        return Measured(self.numbers, table, self.index)


def _table_of(operator: int, asked: str) -> str:
    """The name under which an index keeps where the metrics of a call lie."""
    return f"metrics of operator {operator}: {asked}"


def _asked(metrics: Any) -> str:
    return repr(metrics) if isinstance(metrics, (bool, str)) else repr(list(metrics))


def _given(
    op: Any, index: Any, parameters: Any, policies: Any, metrics: Any, advantages: Any, rewards: Any, **own: Any
) -> tuple[Any, ...]:
    """The arguments of `GIVEN`. Errors are passed to the operator, because torch.compile would hide an error raised
    here.
    """
    both = {"advantages": advantages, "rewards": rewards}
    dropped = tracing.has_graph(parameters, policies, **own, **both) if torch.is_grad_enabled() else None
    kind, handle = (None, index.handle) if isinstance(index, Index) else (type(index).__name__, NONE)
    numbers: list[Tensor] = []
    named = {} if policies is None else policies
    values = "None" if parameters is None else _spelt(parameters, numbers)
    words = f"({[*named]!r}, {values}, {_asked(metrics)}, {dropped!r}, {kind!r})"
    handed = [None if t is None else t.detach() for t in both.values()]
    return (*handed, [t.detach() for t in named.values()], numbers, words, handle, op.number)


def _spelt(value: Any, numbers: list[Tensor]) -> str:
    """A parameter value as text; numbers and tensors move to `numbers`, and their places remain in the text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join([f"{_literal(label)!r}: {_spelt(v, numbers)}" for label, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_spelt(v, numbers) for v in value]) + "]"
    if value is None or isinstance(value, (str, bool)):
        return f"({value!r},)"
    if isinstance(value, (int, float)):
        numbers.append(ONE * value)  # a tensor, because torch.compile recompiles for each new constant
        return str(-len(numbers))
    numbers.append(torch.as_tensor(value).detach())
    return str(len(numbers))


def _literal(label: Any) -> Any:
    """A label as a Python literal, for example `str` for numpy's text."""
    if label is None or isinstance(label, bool):
        return label
    if isinstance(label, tuple):
        return tuple([_literal(part) for part in label])
    for kind in (str, int):
        if isinstance(label, kind):
            return kind(label)
    if isinstance(label, float) and math.isfinite(label):
        return float(label)
    raise ParameterError(
        f"parameters have the label {shown(label)}, in a call under torch.compile or torch.func",
        required="labels that are text, finite numbers, None or tuples of them",
        found=an(type(label).__name__),
        remedy="use text or numbers as labels of the index and of parameters",
    )


# ---------------------------------------------------------------- run by the operators


@lru_cache(64)
def _read(words: str) -> Any:
    return ast.literal_eval(words)


def _filled(value: Any, numbers: Sequence[Tensor]) -> Any:
    if isinstance(value, dict):
        return {label: _filled(v, numbers) for label, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, numbers) for v in value]
    if isinstance(value, int):
        return numbers[value - 1] if value > 0 else float(numbers[-value - 1])
    return value[0] if isinstance(value, tuple) else value


def _call(program: str, *given: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The operator, the metrics asked for, and the keyword arguments of all calls. `given`: those of `GIVEN`."""
    advantages, rewards, policies, numbers, words, index, operator = given
    names, values, asked, dropped, kind = _read(words)
    if dropped is not None:
        raise tracing.refused_graph(program, *dropped)
    if kind is not None:
        raise no_index(kind)
    more = {
        "parameters": _filled(values, numbers),
        "advantages": advantages,
        "rewards": rewards,
        "policies": dict(zip(names, policies, strict=True)),
        "index": tracing.INDEXES.of(int(index)),
    }
    return tracing.OPERATORS.of(operator), asked, more


def _run_coefficients(
    log_probs: Tensor, old_log_probs: Tensor, capacity: int, *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op, asked, more = _call("evaluate", *given)
    result = op.coefficients(log_probs.detach(), old_log_probs, metrics=asked, **more)
    measured, at = result.measured, more["index"]
    numbers = torch.zeros(capacity, dtype=torch.float64, device=log_probs.device)
    if measured.numbers is not None:
        at.keep(_table_of(op.number, _asked(asked)), measured.table)
        numbers[: len(measured.numbers)] = measured.numbers
    objective = result.objective.clone()
    return objective / -at.shares, result.values, objective, numbers


def _run_gate(log_ratio: Tensor, *given: Any) -> Tensor:
    op, _, more = _call("gate", *given)
    made: Tensor = op.gate(log_ratio, **more)
    return made


def _run_gate_backward(gradient: Tensor, log_ratio: Tensor, *given: Any) -> Tensor:
    op, _, more = _call("gate", *given)
    with torch.enable_grad():
        x = log_ratio.detach().requires_grad_()
        gated = op.gate(x, **more)
    return torch.autograd.grad(gated, x, gradient)[0]


def _run_coefficients_backward(gradient: Tensor, values: Tensor, log_probs: Tensor) -> Tensor:
    return (-gradient * values).to(log_probs.dtype)


# ---------------------------------------------------------------- registered with torch


def _wide(log_probs: Tensor) -> torch.dtype:
    return torch.float64 if log_probs.dtype == torch.float64 else torch.float32


def _operator(name: str, run: Any, schema: str, fake: Any) -> Any:
    made = torch.library.custom_op(f"fibration::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(fake)
    return made


class _Step:
    """A custom operator with a gradient, also as a `Function`, which torch.func transforms require."""

    def __init__(self, name: str, run: Any, schema: str, fake: Any, keep: Any, gradient: Any) -> None:
        self.operator = _operator(name, run, schema, fake)
        self.operator.register_autograd(gradient, setup_context=keep)

        def backward(ctx: Any, *gradients: Any) -> Any:
            """The gradients of a `Function`, in which a list of tensors has one, None."""
            found = gradient(ctx, *gradients)
            return tuple(None if isinstance(g, list) else g for g in found)

        methods = {"forward": run, "setup_context": keep, "backward": backward}
        made = type(name, (torch.autograd.Function,), {k: staticmethod(v) for k, v in methods.items()})
        self.function: Any = made.apply  # type: ignore[attr-defined]

    def __call__(self, *given: Any) -> Any:
        through = torch.compiler.is_dynamo_compiling() or not tracing.is_followed()
        return self.operator(*given) if through else self.function(*given)


def _refuse_again(ctx: Any, gradient: Tensor) -> Any:
    raise tracing.differentiated_again()


def _keep_coefficients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, values, objective, numbers = output
    ctx.mark_non_differentiable(values, objective, numbers)
    ctx.save_for_backward(inputs[0], values)
    ctx.counts = [len(tensors) for tensors in inputs[5:7]]


def _coefficients_gradient(ctx: Any, gradient: Tensor, *others: Any) -> tuple[Any, ...]:
    log_probs, values = ctx.saved_tensors
    made = _coefficients_backward(gradient, values, log_probs)
    n, m = ctx.counts
    return made, None, None, None, None, [None] * n, [None] * m, None, None, None


def _keep_gate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    log_ratio, advantages, rewards, policies, numbers, words, index, operator = inputs
    ctx.save_for_backward(log_ratio, advantages, rewards, *policies, *numbers, index)
    ctx.counts, ctx.words, ctx.operator = (len(policies), len(numbers)), words, operator


def _gate_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    log_ratio, advantages, rewards, *others, index = ctx.saved_tensors
    n, m = ctx.counts
    given = advantages, rewards, others[:n], others[n:], ctx.words, index, ctx.operator
    return _gate_backward(gradient, log_ratio, *given), None, None, [None] * n, [None] * m, None, None, None


_coefficients = _Step(
    "coefficients",
    _run_coefficients,
    f"(Tensor log_probs, Tensor old_log_probs, int capacity, {GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)",
    lambda log_probs, old_log_probs, capacity, *given: (
        log_probs.new_empty((), dtype=_wide(log_probs)),
        log_probs.new_empty(log_probs.shape, dtype=_wide(log_probs)),
        log_probs.new_empty((), dtype=_wide(log_probs)),
        log_probs.new_empty((capacity,), dtype=torch.float64),
    ),
    _keep_coefficients,
    _coefficients_gradient,
)
_coefficients_backward = _Step(
    "coefficients_backward",
    _run_coefficients_backward,
    "(Tensor gradient, Tensor values, Tensor log_probs) -> Tensor",
    lambda gradient, values, log_probs: values.new_empty(values.shape, dtype=log_probs.dtype),
    lambda ctx, inputs, output: None,
    _refuse_again,
)
_gate = _Step(
    "gate",
    _run_gate,
    f"(Tensor log_ratio, {GIVEN}) -> Tensor",
    lambda log_ratio, *given: log_ratio.new_empty(log_ratio.shape),
    _keep_gate,
    _gate_gradient,
)
_gate_backward = _Step(
    "gate_backward",
    _run_gate_backward,
    f"(Tensor gradient, Tensor log_ratio, {GIVEN}) -> Tensor",
    lambda gradient, log_ratio, *given: log_ratio.new_empty(log_ratio.shape),
    lambda ctx, inputs, output: None,
    _refuse_again,
)
