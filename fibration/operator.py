"""The compiled operator: loss, coefficients and gated ratios of one hierarchy on concrete batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fibration import metrics as diagnostics
from fibration.bind import bind_parameters
from fibration.errors import BatchError
from fibration.index import Index, build_index
from fibration.ir import Program
from fibration.report import Report
from fibration.spec import Hierarchy

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Run = Callable[[str, Mapping[str, Tensor], Index], dict[str, Tensor]]


@dataclass(frozen=True)
class Loss:
    """`loss` is `-J`, a differentiable scalar; `metrics` as in `fibration.metrics.collect`."""

    loss: Tensor
    metrics: dict[str, diagnostics.Metric]


@dataclass(frozen=True)
class Coefficients:
    """`values` is `∂J/∂log π` per token, shaped like the log-probs and 0 under the mask; `objective` is `J`."""

    values: Tensor
    objective: Tensor
    metrics: dict[str, diagnostics.Metric]


@dataclass(frozen=True)
class Levels:
    """What every gate read and gave, per element: float64, by (stratum, channel). For pictures and tables."""

    residual: dict[tuple[str, str], Tensor]
    gated: dict[tuple[str, str], Tensor]


class Operator:
    """A verified hierarchy, compiled. Call `index` once per batch, then `loss`, `coefficients` or `gate`.

    Per-token tensors have the shape that the index was built for: padded `[B, T]` or packed `[N]`; values under the
    mask are never read, so NaN there is harmless. Inputs are float32, bfloat16, float16 or float64.
    """

    def __init__(
        self, hierarchy: Hierarchy, report: Report, backend: str, source: str, programs: Mapping[str, Program], run: Run
    ) -> None:
        self.hierarchy, self.report, self.backend, self.source = hierarchy, report, backend, source
        self.programs = programs
        self._run = run

    def __reduce__(self) -> tuple[Any, ...]:
        """Generated functions do not pickle; another process compiles the same hierarchy again."""
        return _compile_again, (self.hierarchy, self.backend)

    def __repr__(self) -> str:
        return f"Operator({self.hierarchy.name!r}, backend={self.backend!r})"

    def index(
        self,
        *,
        mask: Any = None,
        offsets: Any = None,
        attributes: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        **labels: Any,
    ) -> Index:
        """Say who lies over whom in a batch.

        `mask`: bool (or 0/1) `[B, T]`, True on response tokens. For packed tokens `offsets`: cu_seqlens, int `[n + 1]`,
        optionally with a `mask` `[N]`. One keyword per stratum above the rows: a label per row, any hashable values
        (a stratum below the rows takes a label per token). `attributes`: `{name: values}` for declared attributes.
        Raises HierarchyIndexError naming the row, label or element that does not fit.
        """
        return build_index(
            self.hierarchy, mask=mask, offsets=offsets, attributes=attributes, device=device, labels=labels
        )

    def loss(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        metrics: bool = True,
    ) -> Loss:
        """`-J` (eq:fgh_objective) over the whole batch, with the gradient `-c_i` towards every log-prob.

        `log_probs`, `old_log_probs`: log π of the sampled tokens now and when sampled, in nats. `advantages`:
        per token, or per row `[B]`. The gradient flows into `log_probs` alone. For batches that do not fit, use
        `coefficients`.
        """
        result = self.coefficients(log_probs, old_log_probs, advantages, index, parameters, metrics=metrics)
        objective = _Objective.apply(log_probs, result.values, result.objective)
        return Loss(-objective, result.metrics)

    def coefficients(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        metrics: bool = True,
    ) -> Coefficients:
        """`c_i = ∂J/∂log π_θ(i)` for the whole batch, without a graph: `∇J = Σ c_i ∇log π_θ(i)` (eq:grad_decomp).

        Back-propagate `-(coefficients.values * log_probs).sum()`, in as many micro-batches as you like.
        """
        self._check_tokens(index, log_probs=log_probs, old_log_probs=old_log_probs)
        with torch.no_grad():
            now, old = (t.detach().reshape(-1)[index.positions].double() for t in (log_probs, old_log_probs))
            x = now - old
            self._check_finite(index, x, log_probs=now, old_log_probs=old)
            inputs = self.inputs(index, x, advantages, parameters, "evaluate" if metrics else "objective")
            outputs = self._run("evaluate" if metrics else "objective", inputs, index)
            return Coefficients(
                values=_scatter(outputs["coefficients"], index, _wide(log_probs.dtype), 0.0),
                objective=outputs["objective"].reshape(()).to(_wide(log_probs.dtype)),
                metrics=diagnostics.collect(self.hierarchy, outputs, index) if metrics else {},
            )

    def gate(
        self,
        log_ratio: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        advantages: Tensor | None = None,
    ) -> Tensor:
        """The gated ratios `𝒢(r)`, differentiable in `log_ratio`, shaped like it, and 1 under the mask.

        `log_ratio`: log r = log π_θ - log π_old per token. `advantages` are needed only where a gate reads them.
        """
        self._check_tokens(index, log_ratio=log_ratio)
        x = log_ratio.detach().reshape(-1)[index.positions].double()
        self._check_finite(index, x, log_ratio=x)
        inputs = self.inputs(index, x, advantages, parameters, "gate")
        result: Tensor = _Gate.apply(log_ratio, self, index, inputs)
        return result

    def levels(
        self,
        log_ratio: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        advantages: Tensor | None = None,
    ) -> Levels:
        """Residual and gated residual at every element of every stratum, in intensive units. Not differentiable."""
        self._check_tokens(index, log_ratio=log_ratio)
        x = log_ratio.detach().reshape(-1)[index.positions].double()
        self._check_finite(index, x, log_ratio=x)
        outputs = self._run("levels", self.inputs(index, x, advantages, parameters, "levels"), index)

        def pick(word: str) -> dict[tuple[str, str], Tensor]:
            found = {}
            for stratum, channel in diagnostics.levels(self.hierarchy):
                value = outputs[f"{word}_{stratum}{diagnostics.CHANNEL_WORD[channel]}"]
                found[stratum, channel] = value.to(index.device).expand(index.size[stratum])
            return found

        return Levels(pick("residual"), pick("gated"))

    # ------------------------------------------------------------ inputs

    def _check_tokens(self, index: Index, **tensors: Tensor) -> None:
        if not isinstance(index, Index):
            raise BatchError(f"the index is a {type(index).__name__}", required="what operator.index(...) returned")
        if index.hierarchy is not self.hierarchy and index.hierarchy != self.hierarchy:
            raise BatchError(
                f"the index was built for '{index.hierarchy.name}'",
                required=f"an index of '{self.hierarchy.name}'",
                remedy="build it with this operator's index(...)",
            )
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
                found = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise BatchError(f"{name}: {found}", required="a tensor of float32, bfloat16, float16 or float64")
            if tuple(tensor.shape) != index.shape:
                raise BatchError(
                    f"{name} has shape {list(tensor.shape)}",
                    required=f"{list(index.shape)}, as the index was built for",
                )
            if tensor.device != index.device:
                raise BatchError(
                    f"{name} is on {tensor.device}",
                    required=f"{index.device}, where the index lies",
                    remedy="pass device= to operator.index(...), or move the tensor",
                )

    def _check_finite(self, index: Index, x: Tensor, **tensors: Tensor) -> None:
        if bool(torch.isfinite(x).all()):
            return
        for name, values in tensors.items():
            bad = ~torch.isfinite(values)
            if bool(bad.any()):
                token = int(bad.nonzero()[0])
                raise BatchError(
                    f"{name} of {index.describe_token(token)} is {float(values[token]):g}",
                    required="finite values on every unmasked token",
                    remedy="mask the token, or look for an overflow in the model's log-probs",
                )
        token = int((~torch.isfinite(x)).nonzero()[0])
        raise BatchError(
            f"the log ratio of {index.describe_token(token)} is {float(x[token]):g}", required="finite values"
        )

    def inputs(
        self, index: Index, x: Tensor, advantages: Tensor | None, parameters: Mapping[str, Any] | None, program: str
    ) -> dict[str, Tensor]:
        """A float64 vector for every input of a program; parameters are checked even where a program needs none."""
        result: dict[str, Tensor] = {"log_ratio": x}
        values = bind_parameters(
            self.hierarchy, self.programs["evaluate"], index, {} if parameters is None else parameters
        )
        token_advantages: Tensor | None = None
        for node in self.programs[program].inputs:
            if node.kind == "advantage":
                if token_advantages is None:
                    token_advantages = self._advantages(index, advantages)
                result[node.name] = self._advantage_at(node.over, index, token_advantages)
            elif node.kind == "count":
                result[node.name] = index.count(*node.key)
            elif node.kind == "total":
                result[node.name] = index.total(self.hierarchy.attributes[node.key[0]], node.key[1])
            elif node.kind == "attribute":
                result[node.name] = index.values[node.key[0]]
            elif node.kind == "parameter":
                result[node.name] = values[node.name]
        return result

    def _advantages(self, index: Index, advantages: Tensor | None) -> Tensor:
        if advantages is None:
            raise BatchError(
                f"a gate of '{self.hierarchy.name}' reads the advantage, and none is given",
                required="advantages per token or per row",
                remedy="pass advantages=...",
            )
        if not isinstance(advantages, Tensor) or advantages.dtype not in FLOATS:
            raise BatchError(
                f"advantages: {getattr(advantages, 'dtype', type(advantages).__name__)}",
                required="a floating-point tensor",
            )
        if advantages.device != index.device:
            raise BatchError(f"advantages are on {advantages.device}", required=f"{index.device}, where the index lies")
        flat = advantages.detach()
        readings = []
        if tuple(flat.shape) == index.shape:
            readings.append(flat.reshape(-1)[index.positions].double())
        if tuple(flat.shape) == (index.n_rows,):
            rows = torch.from_numpy(index.row_numbers).to(index.device)
            readings.append(flat[rows].double()[index.row_of_token])
        if len(readings) == 2 and not torch.equal(*readings):
            raise BatchError(
                f"advantages of shape {list(flat.shape)} may be per token or per row: there are as many of each",
                required="a shape that tells which",
                remedy="leave the rows without tokens out of the offsets",
            )
        if not readings:
            raise BatchError(
                f"advantages have shape {list(flat.shape)}",
                required=f"{list(index.shape)} per token, or [{index.n_rows}] per row",
            )
        values = readings[0]
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            token = int((~finite).nonzero()[0])
            raise BatchError(
                f"the advantage of {index.describe_token(token)} is {float(values[token]):g}",
                required="finite values on every unmasked token",
            )
        return values

    def _advantage_at(self, stratum: str, index: Index, values: Tensor) -> Tensor:
        """The advantage of coarser elements, which must be one number per element."""
        if stratum == self.hierarchy.leaf.name:
            return values
        parent = index.parent(self.hierarchy.leaf.name, stratum)
        result = torch.empty(index.size[stratum], dtype=torch.float64, device=index.device)
        result[parent] = values
        differs = result[parent] != values
        if bool(differs.any()):
            token = int(differs.nonzero()[0])
            raise BatchError(
                f"the gate on {stratum} reads its advantage, and the advantages vary within a {stratum}",
                required=f"one advantage per {stratum}",
                found=f"{float(values[token]):g} and {float(result[parent[token]]):g} at {index.describe_token(token)}",
                remedy="pass advantages per row, or gate tokens instead",
            )
        return result


def _compile_again(hierarchy: Hierarchy, backend: str) -> Any:
    return import_module("fibration.compiler").compile(hierarchy, backend)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Results keep float64, and are float32 otherwise: half precision would lose small coefficients."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scatter(values: Tensor, index: Index, dtype: torch.dtype, fill: float) -> Tensor:
    result = torch.full(index.shape, fill, dtype=dtype, device=index.device)
    values = values.to(device=index.device, dtype=dtype)
    result.view(-1)[index.positions] = values.expand(len(index.positions))
    return result


class _Objective(torch.autograd.Function):
    """A scalar whose gradient is already known."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, coefficients: Tensor, objective: Tensor) -> Tensor:
        ctx.save_for_backward(coefficients)
        ctx.source = log_probs
        return objective.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (coefficients,) = ctx.saved_tensors
        return _once((gradient * coefficients).to(ctx.source.dtype), ctx.source), None, None


class _Gate(torch.autograd.Function):
    """Gated ratios; the backward is the operator's own adjoint program."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, operator: Operator, index: Index, inputs: dict[str, Tensor]) -> Tensor:
        ctx.operator, ctx.index, ctx.inputs, ctx.source = operator, index, inputs, log_ratio
        return _scatter(operator._run("gate", inputs, index)["gated_ratio"], index, log_ratio.dtype, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        with torch.no_grad():
            cotangent = gradient.reshape(-1)[ctx.index.positions].double()
            outputs = ctx.operator._run("gate_adjoint", {**ctx.inputs, "cotangent": cotangent}, ctx.index)
            result = _scatter(outputs["log_ratio_gradient"], ctx.index, ctx.source.dtype, 0.0)
        return _once(result, ctx.source), None, None, None


def _once(gradient: Tensor, source: Tensor) -> Tensor:
    """`gradient`, which depends on `source`; where a graph is asked for, differentiating it again raises."""
    return _Once.apply(gradient, source) if torch.is_grad_enabled() else gradient  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    """A gradient without a derivative of its own: a constant here would be silently wrong in a second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, source: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        raise BatchError(
            "a gradient of this operator is differentiated again",
            required="first derivatives: the coefficients are constants of the backward pass",
            remedy="call backward() without create_graph=True, or detach() the operator's gradient first",
        )
