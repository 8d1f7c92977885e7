"""The compiled operator: loss, coefficients and gated ratios of one hierarchy on batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.coupling import UNCOUPLED, Coupling, DeadIf, coupling, dead_if
from fibration.compiler.diagnostics import levels
from fibration.compiler.ir import Input, Key, Matrix
from fibration.compiler.program import Program
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report
from fibration.runtime import compiled, devices
from fibration.runtime.batch import Executable, Outputs, inputs_of
from fibration.runtime.calls import Backend, Executor, Given
from fibration.runtime.index.build import refuse_positional
from fibration.runtime.index.index import Index
from fibration.runtime.index.spread import build_index, ranks_or_labels
from fibration.runtime.inputs import make_batch, policy_tensors
from fibration.runtime.metrics import Coefficients, Levels, Loss, Measured, metric_capacity
from fibration.runtime.prepared import again, key_of
from fibration.runtime.tracing import OPERATORS, differentiated_again, is_followed, refuse_transforms


class Operator:
    """A compiled loss. Call `index` once per batch, then `loss`, `coefficients` or `gate`.

    - **Shapes.** Tensors per token have the shape of the index: padded `[B, T]` or packed `[N]`. Values under the mask
      are never read, so NaN there is harmless.
    - **Dtypes.** Inputs are float32, bfloat16, float16 or float64.
    - **Gradients** flow into `log_probs` or `log_ratio` only. Any other input that requires grad is an error. Under
      `torch.no_grad()` it is allowed.
    - **GPUs.** After an operator's first call, no call waits for the device. A CUDA graph can record a call after one
      call of the same kind. Inputs that are not finite raise no error on a GPU. The objective is NaN, and so is the
      gradient of every token that causes it.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        report: Report,
        backend: str,
        source: str,
        programs: Mapping[str, Program],
        run: Executable,
        recompile: Callable[[Hierarchy], Operator] | None = None,
        on_cpu: Callable[[], Backend] | None = None,
    ) -> None:
        self.hierarchy, self.report, self.backend, self.source = hierarchy, report, backend, source
        self.programs = programs
        self.calls = Executor(hierarchy, programs, Backend(backend, run), on_cpu)
        self._recompile = recompile
        self.number = OPERATORS.number(self)  # stands for the operator in custom torch operators
        self.metric_capacity = metric_capacity(hierarchy)

    @cached_property
    def coupling(self) -> Coupling:
        """Which rows decide a coefficient, or a part of `J`, together. A micro-batch must contain all of them."""
        known = self.programs.get("objective")  # without programs an operator makes indexes alone
        return UNCOUPLED if known is None else coupling(known, self.hierarchy)

    @cached_property
    def dead_if(self) -> DeadIf:
        """When a token has the coefficient 0 whatever the log-probs are: `live` reads it."""
        known = self.programs.get("objective")
        return DeadIf({}) if known is None else dead_if(known, self.hierarchy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Generated functions do not pickle, so unpickling compiles the hierarchy again."""
        if self._recompile is None:
            raise TypeError(f"{self!r} was made without the compiler, and cannot be pickled")
        return self._recompile, (self.hierarchy,)

    def __repr__(self) -> str:
        return f"Operator({self.hierarchy.name!r}, backend={self.backend!r})"

    @refuse_transforms
    def index(
        self,
        /,  # a stratum may have the name of an argument
        *positional: Any,
        mask: Any = None,
        offsets: Any = None,
        attributes: Mapping[str, Any] | None = None,
        positions: Any = None,
        device: torch.device | str | None = None,
        group: Any = None,
        **labels: Any,
    ) -> Index:
        """Returns the index of a batch: the element of each stratum that every token belongs to.

        Masked tokens, and rows without an unmasked token, belong to no element. Calls never read their values.

        - `mask`: `[B, T]`, bool or 0/1. True marks response tokens. Pass it for a padded batch.
        - `offsets`: int `[n + 1]`, the cumulative row lengths (cu_seqlens) of a packed batch. It may come with a
          `mask` `[N]`.
        - `labels`: one keyword per stratum above the leaves, such as `prompt_group=uids`. Labels may have any hashable
          type. A stratum coarser than the rows takes one label per row. A stratum between tokens and rows takes one per
          token, never one per row. A stratum beside the rows takes either. Rows and tokens outside a stratum need no
          label.
        - A mapping may replace labels: `family={"math": "stem"}` maps each label of the stratum directly below to a
          label of `family`. With several strata directly below, pass a mapping for each:
          `family={"domain": {"math": "stem"}, "modality": {"text": "stem"}}`.
        - Several leaves: each leaf takes a mask of its tokens, such as `image=mask`. One leaf may be left out. It gets
          the remaining unmasked tokens.
        - `attributes`: `{name: values}`, one number per element, for the attributes that the hierarchy declares.
        - `positions`: integers from 0 in the batch's shape, the position of each token in its sequence. They ascend
          along a row and may have gaps. Default: the order of the tokens in their row. Formulas with `before`, `after`
          or `position` require them if an element has tokens in several rows or on several ranks.
        - `device`: the device of the index. Default: the device of `mask` or `offsets`.
        - `group`: the ranks that share the batch. Pass a group of torch.distributed, or an object with `rank`, `size`,
          `all_gather(tensor)` and `all_gather_object(obj)`. Each rank passes its own tokens, or none. All ranks call
          `index`, and then every function that takes the index. Labels of one element must be equal on all ranks.

        `trajectory=keys` names the rows. With `positions` or `group`, rows of one name are pieces of one trajectory.
        Over ranks, named rows also number all elements by label, independently of the rank that has a row.

        Raises HierarchyIndexError with the row, token, label or element that does not fit. Examples: a missing label, a
        negative integer as the label of a token, an element that lies over two elements, a batch that breaks an
        assumption of the hierarchy. An error on one rank is raised on all ranks. Raises RanksError if ranks make
        different calls, or if a rank is lost.
        """
        refuse_positional(self.hierarchy, positional)
        ranks, labels = ranks_or_labels(self.hierarchy, group, labels, positions is not None)
        index = build_index(self.hierarchy, labels, mask, offsets, attributes, device, positions, ranks)
        index.coupling = self.coupling
        return index

    def loss(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor | None = None,
        index: Index | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        rewards: Tensor | None = None,
        policies: Mapping[str, Tensor] | None = None,
        metrics: bool | str | Sequence[str] = True,
    ) -> Loss:
        """Returns the loss `-J` of the batch (eq:fgh_objective), and metrics. Call `.loss.backward()` on the result.

        `J` is the objective minus the penalties. The gradient of `.loss` for the log-prob of token i is `-c_i`, the
        negated coefficient.

        - `log_probs`, `old_log_probs`: log π of the sampled tokens in nats, under the current and the old policy, in
          the batch's shape.
        - `advantages`: per token, or per row `[B]`.
        - `index`: what `op.index(...)` returned for this batch. Required. For a micro-batch `index.micro(rows)`: the
          losses of a step's micro-batches add up to `-J`.
        - `parameters`: `{name: value}`. Default: the declared defaults.
        - `rewards`: per token, or per row `[B]`, instead of advantages. The hierarchy's formula makes the advantages.
        - `policies`: log-probs of the further policies that formulas name, such as `{"rollout": log_probs}`.
        - `metrics`: True for all, False for none, or names of sets: strata, `"gated_ratio"`, `"divergences"`,
          `"weights"`, `"penalties"`. `"levels"` selects all except metrics per element.

        Raises BatchError with the input or the token that does not fit, and ParameterError with the parameter.
        """
        given = log_probs, old_log_probs, advantages, index, parameters, rewards, policies, metrics
        if is_followed():
            share, _, _, deferred = compiled.of_coefficients(self, *given)
            return Loss(share, deferred)
        outputs, dtype, measured = self._outputs(*given)
        assert index is not None
        return Loss(Share.apply(log_probs, outputs, dtype, index.shares), measured)

    def coefficients(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor | None = None,
        index: Index | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        rewards: Tensor | None = None,
        policies: Mapping[str, Tensor] | None = None,
        metrics: bool | str | Sequence[str] = True,
    ) -> Coefficients:
        """Returns `c_i = ∂J/∂log π(i)` of every token i, without a graph. It takes the arguments of `loss`.

        For any model `∇J = Σ c_i ∇log π(i)` (eq:grad_decomp). So back-propagate `-(c * log_probs).sum()`, with `c` the
        `.values` of the result, in any number of pieces. Values are float64 for float64 log-probs, else float32.
        """
        given = old_log_probs, advantages, index, parameters, rewards, policies, metrics
        if is_followed():  # coefficients have no gradient
            return Coefficients(*compiled.of_coefficients(self, log_probs.detach(), *given)[1:])
        outputs, dtype, measured = self._outputs(log_probs, *given)
        return Coefficients(outputs[COEFFICIENTS], outputs.scalar(OBJECTIVE, dtype), measured)

    def _outputs(
        self, log_probs: Any, old_log_probs: Any, advantages: Any, index: Any, parameters: Any, rewards: Any,
        policies: Any, metrics: Any,
    ) -> tuple[Outputs, torch.dtype, Measured]:  # fmt: skip
        """The outputs of a call, the dtype of its results, and its metrics."""
        tokens = {"log_probs": log_probs, "old_log_probs": old_log_probs}
        graph, collector = torch.is_grad_enabled(), self.calls.collector
        key = None if rewards is not None else key_of(self.calls, index, parameters, policies, metrics)
        if key is not None:
            assert index is not None
            known = again(key, index, tokens, advantages, policies, graph)
            if known is not None:
                call, outputs = known
                return outputs, call.dtype, collector.collect(call.program, outputs, index, call.asked)
        with torch.no_grad():
            dtype = _wide(log_probs)
            program = self.calls.program(index, metrics, rewards)
            given = Given(index, advantages, parameters, policies, rewards, graph)
            outputs, _ = self.calls.call(program, tokens, given, dtype, metrics=metrics, kept=key)
            assert index is not None
            return outputs, dtype, collector.collect(program, outputs, index, collector.asked(metrics))

    @refuse_transforms
    def freeze(
        self,
        old_log_probs: Tensor,
        advantages: Tensor | None = None,
        index: Index | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        policies: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Stores the frozen sums of a step on `index`: sums over several rows that read no current log-prob.

        Micro-batches, `index.micro(rows)`, read them. Call it once per step, with the tensors of all rows and with the
        parameters of the micro-batches. Over ranks, every rank calls it. For a loss without `op.coupling.frozen` it
        does nothing.
        """
        given = Given(index, advantages, parameters, policies, graph=torch.is_grad_enabled())
        with torch.no_grad():
            self.calls.freeze(old_log_probs, given)

    @refuse_transforms
    def live(self, advantages: Tensor, index: Index | None = None) -> Tensor:
        """The rows that can get a gradient: bool `[B]` on the device of the index, False at rows without tokens.

        A row is False only if all its coefficients are 0 whatever the log-probs are. `op.dead_if` says when: in most
        losses where all advantages of the row are 0, never where a penalty is added.

        `advantages`: per token, or per row `[B]`; for rewards `op.advantages(rewards, index)`. Over ranks all of them
        make this call. Raises BatchError for a micro-batch: take the rows of the whole step.
        """
        return self.calls.live(advantages, index, self.dead_if)

    def gate(
        self,
        log_ratio: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        advantages: Tensor | None = None,
        rewards: Tensor | None = None,
        policies: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Returns the gated ratios `𝒢(r)`, in the shape of `log_ratio` and differentiable in it. Masked tokens have 1.

        - `log_ratio`: `log r = log π - log π_old` of every token, in nats.
        - `advantages` or `rewards`, as in `loss`: required only if a gate reads the advantage.
        - `policies`: log-probs of the policies that gates name, `old` included.
        """
        if is_followed():
            return compiled.of_gate(self, log_ratio, index, parameters, advantages, rewards, policies)
        given = Given(index, advantages, parameters, policies, rewards, torch.is_grad_enabled())
        result: Tensor = Gated.apply(log_ratio, self.calls, given)
        return result

    @refuse_transforms
    def levels(
        self,
        log_ratio: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        advantages: Tensor | None = None,
        rewards: Tensor | None = None,
        policies: Mapping[str, Tensor] | None = None,
    ) -> Levels:
        """Returns the residual of every element before and after its gate, as float64 without a gradient.

        The arguments are those of `gate`. Each value is a density divided by the element's mass. With a decomposition
        of log ratios it is a mean log ratio, in nats.
        """
        given = Given(index, advantages, parameters, policies, rewards, torch.is_grad_enabled())
        outputs, _ = self.calls.call("levels", {"log_ratio": log_ratio}, given, torch.float64)

        nothing = torch.where(outputs[Key("nonfinite")] > 0, torch.nan, 0.0)  # on a GPU, where no error is raised

        def pick(word: str) -> dict[tuple[str, str], Tensor]:
            found = {}
            for stratum, channel in levels(self.hierarchy):
                value = outputs[Key(word, stratum, channel)]
                if stratum in index.leaves:
                    value = value.reshape(-1)[index.positions_of(stratum)]
                found[stratum, channel] = (value - nothing).expand(index.size[stratum])
            return found

        return Levels(pick("residual"), pick("gated"))

    @refuse_transforms
    def advantages(
        self,
        rewards: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        policies: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Returns the advantages that the hierarchy's formula makes from rewards, in float64.

        Calls with `rewards=` use the same advantages.

        - `rewards`: per token, or per row `[B]`.
        - `policies`: log-probs of the policies that the formula names, `old` included.

        The result is `[B]` if rewards are per row and the formula has one value per row, else in the batch's shape.
        It is 0 under the mask and at rows without tokens.
        """
        given = Given(index, None, parameters, policies, rewards, torch.is_grad_enabled())
        made = self.calls.advantages("advantages", {}, given)
        assert made is not None
        return made

    def inputs(
        self,
        index: Index,
        log_ratio: Tensor,
        advantages: Tensor | None,
        parameters: Mapping[str, Any] | None,
        program: str,
        log_probs: tuple[Tensor, Tensor] | None = None,
        policies: Mapping[str, Tensor] | None = None,
    ) -> dict[Input | Matrix, Tensor]:
        """Returns the inputs of one program as float64 vectors, for the interpreter.

        `log_ratio`, the two `log_probs` (current and old) and `policies`: float64 [tokens].
        """

        def whole(values: Tensor) -> Tensor:
            spread = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
            spread.view(-1)[index.positions] = values
            return spread

        tokens = {"log_ratio": whole(log_ratio)}
        if log_probs is not None:
            tokens |= dict(zip(("log_probs", "old_log_probs"), map(whole, log_probs), strict=True))
        read, declared = self.programs[program], self.programs["evaluate"]
        given = {name: whole(values) for name, values in (policies or {}).items()}
        tokens |= policy_tensors(self.hierarchy, read, tokens, given)
        batch = make_batch(read, declared, index, tokens, advantages, parameters, torch.float64, 0.0)
        return inputs_of(batch, read)


def _wide(given: Tensor) -> torch.dtype:
    """Returns float64 for float64 inputs, else float32, because half precision loses small coefficients."""
    return torch.float64 if isinstance(given, Tensor) and given.dtype == torch.float64 else torch.float32


# ---------------------------------------------------------------- gradients

COEFFICIENTS, OBJECTIVE = Key("coefficients"), Key("objective")


class Share(torch.autograd.Function):
    """A rank's share of `-J`. Its gradient is precomputed: minus the coefficients of the rank's tokens.

    On the CPU the saved coefficients are negated in place, without a copy. A backward pass with the incoming gradient
    1, as `loss.backward()` has, returns them as they are, or a copy if autograd keeps the graph. On a GPU they are
    multiplied once.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, outputs: Outputs, dtype: torch.dtype, scale: int) -> Tensor:
        coefficients = outputs[COEFFICIENTS]
        ctx.looks = devices.can_sync(coefficients.device)
        ctx.save_for_backward(coefficients.neg_() if ctx.looks else coefficients)
        ctx.source = log_probs
        share = outputs.scalar(OBJECTIVE, dtype, -1)
        return share if scale == 1 else share / scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (known,) = ctx.saved_tensors
        result = scaled(known, gradient if ctx.looks else -gradient, ctx.source.dtype)
        return once(result, ctx.source), None, None, None


def scaled(known: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """A saved gradient times the incoming one, a scalar, in `dtype`: `known` itself if it fits and is not kept."""
    if devices.can_sync(times.device) and times.item() == 1.0:
        return known.to(dtype, copy=_graph_is_kept())
    with torch.no_grad():
        return known * times if known.dtype == dtype else torch.mul(known, times, out=known.new_empty(0, dtype=dtype))


# Whether the running backward pass keeps the graph. True if torch does not tell.
_graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


class Gated(torch.autograd.Function):
    """Gated ratios. The backward pass runs the operator's adjoint program."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, calls: Any, given: Given) -> Tensor:
        dtype = log_ratio.dtype if isinstance(log_ratio, Tensor) else torch.float64
        outputs, batch = calls.call("gate", {"log_ratio": log_ratio}, given, dtype, fill=1.0)
        others = {name: tensor for name, tensor in batch.tokens.items() if name != "log_ratio"}
        ctx.others = tuple(others)
        # with saved tensors, autograd refuses the backward pass if one was changed in place
        ctx.save_for_backward(log_ratio, batch.advantage, *others.values())
        ctx.calls, ctx.ranks = calls, given.index.ranks
        ctx.batch = replace(batch, tokens={}, advantage=None, fill=0.0)
        return outputs[Key("gated_ratio")]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        log_ratio, advantages, *others = ctx.saved_tensors
        with torch.no_grad():
            tokens = {"log_ratio": log_ratio.detach(), "cotangent": gradient}
            tokens |= dict(zip(ctx.others, others, strict=True))
            result = ctx.calls.gate_adjoint(replace(ctx.batch, tokens=tokens, advantage=advantages), ctx.ranks)
        return once(result, log_ratio), None, None


def once(gradient: Tensor, source: Tensor) -> Tensor:
    """The gradient, which depends on `source`. With `create_graph`, differentiating it again raises."""
    return _Once.apply(gradient, source) if torch.is_grad_enabled() else gradient  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated: a constant would make second derivatives silently wrong."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, source: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        raise differentiated_again()
