"""The compiled operator: loss, coefficients and gated ratios of one hierarchy on batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.coupling import UNCOUPLED, Coupling, coupling
from fibration.compiler.diagnostics import levels
from fibration.compiler.ir import Input, Matrix
from fibration.compiler.keys import Key
from fibration.compiler.program import Program
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report
from fibration.runtime import compiled
from fibration.runtime.batch import Executable, inputs_of
from fibration.runtime.calls import Backend, Executor
from fibration.runtime.frozen import Unmeasured
from fibration.runtime.gradients import Gated, Share
from fibration.runtime.handles import OPERATORS
from fibration.runtime.index.build import build_index
from fibration.runtime.index.index import Index
from fibration.runtime.index.keywords import refuse_positional
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.index.spread import build_spread_index, ranks_or_labels
from fibration.runtime.inputs import make_batch, policy_tensors
from fibration.runtime.measured import metric_capacity
from fibration.runtime.results import Coefficients, Levels, Loss
from fibration.runtime.tracing import is_followed, refuse_transforms


class Operator:
    """A verified hierarchy, compiled. Call `index` once per batch, then `loss`, `coefficients` or `gate`.

    Per-token tensors have the shape of the index: padded `[B, T]` or packed `[N]`. Values under the mask are never
    read, so NaN there is harmless. Inputs are float32, bfloat16, float16 or float64.

    Gradients flow into `log_probs` or `log_ratio` only. Where gradients are recorded, any other input that requires
    grad is an error; under `torch.no_grad()` it is data.

    On a GPU a call does not wait for the device. A CUDA graph can record it after one call of the same kind. Inputs
    that are not finite are then no error: the objective is NaN, and so is the gradient of every token that causes it.
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
        """Which rows decide a coefficient together, and so what a micro-batch has to contain."""
        known = self.programs.get("objective")  # without programs an operator makes indexes alone
        return UNCOUPLED if known is None else coupling(known, self.hierarchy)

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
        """Build the index of a batch: for every token and element, its element of each coarser stratum.

        `mask`: bool (or 0/1) `[B, T]`, True on response tokens. For packed tokens `offsets`: cu_seqlens, int `[n +
        1]`, optionally with a `mask` `[N]`. Every stratum coarser than rows has a keyword: one label per row, any
        hashable values. A stratum below or beside the rows takes one label per token. Tokens and rows without an
        element of a stratum need no label for it. Instead of labels, a stratum accepts a mapping from the labels of
        the stratum directly over it: `family={"math": "stem"}`. If several strata lie directly over it, it takes one
        mapping for each: `family={"domain": {"math": "stem"}, "modality": {"text": "stem"}}`.

        With several leaves, every leaf has a keyword: a boolean (or 0/1) mask of its tokens, in their shape. One leaf
        may be left out; it has the remaining unmasked tokens. `attributes`: `{name: values}` for declared attributes.

        `positions`: whole numbers from 0 in the batch's shape, gaps allowed: the position of each token in its
        sequence. They must ascend along a row. Formulas that read an order need them if an element has tokens in
        several rows or on several ranks. With them, rows of one name (`trajectory=keys`) are pieces of one trajectory.
        Without them, tokens are in the order of their row. Elements coarser than tokens are ordered by their first
        token.

        `group`: the ranks that share the batch; the part of a rank may be empty. It is a group of torch.distributed,
        or an object with `rank`, `size`, `all_gather(tensor)` and `all_gather_object(obj)`. All ranks must make this
        call, and every call that uses the index. Tokens are then this rank's tokens. Coarser elements are the whole
        batch's and equal on all ranks, so labels of one element must be equal on all ranks. Names for the rows
        (`trajectory=keys`) tell which rows are pieces of one. They also number elements by label, independently of
        which rank has which rows. Parameters per element are then given by label, not in the order of elements.

        Raises HierarchyIndexError naming the row, token, label or element that does not fit. Examples: missing labels;
        negative integer labels of tokens, which in most data mean none; an element over two elements; paths that
        disagree; a batch that breaks an assumption of the hierarchy; crossed effects that no projection separates.
        With a group, an error on one rank is raised on all ranks. Ranks in different calls, and a lost rank, raise
        RanksError.
        """
        refuse_positional(self.hierarchy, positional)
        ranks, labels = ranks_or_labels(self.hierarchy, group, labels, positions is not None)
        if ranks is None:
            index = build_index(self.hierarchy, labels, mask, offsets, attributes, device, positions)
        else:
            index = build_spread_index(self.hierarchy, ranks, labels, mask, offsets, attributes, device, positions)
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
        """`-J` (eq:fgh_objective) over the whole batch, with the gradient `-c_i` for every log-prob. Penalties are
        subtracted from `J`.

        `log_probs`, `old_log_probs`: log π of the sampled tokens, now and at sampling, in nats. `advantages`: per
        token, or per row `[B]`. `rewards=` may replace them: the hierarchy's formula then makes the advantages.
        `index` is always required. `policies`: log-probs of the further policies that formulas name, `{"rollout":
        log_probs}`. `metrics`: True for all, False for none, or names of strata and of `"ratio"`, `"divergences"`,
        `"weights"`, `"penalties"`; `"levels"` means all except metrics per element. For batches that do not fit in
        memory, use `coefficients`.
        """
        if is_followed():
            given = log_probs, old_log_probs, advantages, index, parameters, rewards, policies, metrics
            values, objective, measured = compiled.of_coefficients(self, *given)
            return Loss(compiled.of_share(log_probs, values, objective, index), measured)
        result = self.coefficients(
            log_probs, old_log_probs, advantages, index, parameters, rewards=rewards, policies=policies, metrics=metrics
        )
        assert index is not None
        share = Share.apply(log_probs, result.values, result.objective, index.shares)
        return Loss(share, result.measured)

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
        """`c_i = ∂J/∂log π_θ(i)` for the whole batch, without a graph: `∇J = Σ c_i ∇log π_θ(i)` (eq:grad_decomp).

        Back-propagate `-(coefficients.values * log_probs).sum()`, in any number of micro-batches.
        """
        if is_followed():
            given = log_probs, old_log_probs, advantages, index, parameters, rewards, policies, metrics
            return Coefficients(*compiled.of_coefficients(self, *given))
        dtype, collector = _wide(log_probs), self.calls.collector
        tokens = {"log_probs": log_probs, "old_log_probs": old_log_probs}
        graph = torch.is_grad_enabled()
        with torch.no_grad():
            program = (
                self.calls.of_micro(metrics, rewards) if isinstance(index, MicroIndex) else collector.program(metrics)
            )
            if rewards is not None:
                advantages = self.calls.advantages(
                    program, rewards, index, tokens, advantages, parameters, policies, graph
                )
            outputs, _ = self.calls.call(
                program, index, tokens, advantages, parameters, policies, dtype, graph, metrics=metrics
            )
            assert index is not None
            return Coefficients(
                values=outputs[Key("coefficients")],
                objective=outputs[Key("objective")].reshape(()).to(dtype),
                measured=Unmeasured(hierarchy=self.hierarchy)
                if isinstance(index, MicroIndex)
                else collector.collect(program, outputs, index, collector.asked(metrics)),
            )

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
        """Compute the sums over several rows that the current policy does not move, and keep them on `index`.

        Micro-batches of the index, `index.micro(rows)`, read them. Call it once per step, with the tensors of all rows
        and the parameters of the micro-batches; over ranks all of them call it. It does nothing for a loss without
        `op.coupling.frozen`.
        """
        graph = torch.is_grad_enabled()
        with torch.no_grad():
            self.calls.freeze(old_log_probs, advantages, index, parameters, policies, graph)

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
        """The gated ratios `𝒢(r)`: differentiable in `log_ratio`, in its shape, 1 under the mask.

        `log_ratio`: log r = log π_θ - log π_old per token. `advantages` (or `rewards`) and `policies` are required
        only if a gate reads them; `old` is then one of the policies.
        """
        if is_followed():
            return compiled.of_gate(self, log_ratio, index, parameters, advantages, rewards, policies)
        graph = torch.is_grad_enabled()
        if rewards is not None:
            tokens = {"log_ratio": log_ratio}
            advantages = self.calls.advantages("gate", rewards, index, tokens, advantages, parameters, policies, graph)
        result: Tensor = Gated.apply(log_ratio, self.calls, index, advantages, parameters, policies, graph)
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
        """The residual and the gated residual of every element of every stratum, in intensive units. Not
        differentiable.
        """
        tokens, graph = {"log_ratio": log_ratio}, torch.is_grad_enabled()
        if rewards is not None:
            advantages = self.calls.advantages(
                "levels", rewards, index, tokens, advantages, parameters, policies, graph
            )
        outputs, _ = self.calls.call("levels", index, tokens, advantages, parameters, policies, torch.float64, graph)

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
        """The advantages that the hierarchy's formula makes from rewards: float64, the same as in calls with
        `rewards=`.

        `rewards`: per token, or per row `[B]`. For rewards per row, advantages are `[B]` if no part of the formula
        varies within a row. Otherwise they have the batch's shape. They are 0 under the mask and at rows without
        tokens. `policies`: log-probs of the policies that the formula names, including `old`.
        """
        made = self.calls.advantages(
            "advantages", rewards, index, {}, None, parameters, policies, torch.is_grad_enabled()
        )
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
        """The inputs of one program as float64 vectors, for the interpreter.

        `log_ratio`, or `log_probs` now and at sampling, and `policies`: float64 [tokens].
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
        batch = make_batch(self.hierarchy, read, declared, index, tokens, advantages, parameters, torch.float64, 0.0)
        return inputs_of(batch, read)


def _wide(given: Tensor) -> torch.dtype:
    """float64 for float64 inputs, otherwise float32, because half precision would lose small coefficients."""
    return torch.float64 if isinstance(given, Tensor) and given.dtype == torch.float64 else torch.float32
