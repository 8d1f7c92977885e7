"""The compiled operator: loss, coefficients and gated ratios of one hierarchy on concrete batches."""

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
from fibration.runtime.batch import Runs, inputs_of
from fibration.runtime.calls import Backend, Calls
from fibration.runtime.frozen import UNMEASURED
from fibration.runtime.gradients import Gated, Share
from fibration.runtime.handles import OPERATORS
from fibration.runtime.index.build import build_index
from fibration.runtime.index.index import Index
from fibration.runtime.index.keywords import refuse_positional
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.index.spread import build_spread_index, ranks_or_labels
from fibration.runtime.inputs import make_batch, policy_tensors
from fibration.runtime.measured import room_of
from fibration.runtime.results import Coefficients, Levels, Loss
from fibration.runtime.tracing import is_followed, outside


class Operator:
    """A verified hierarchy, compiled. Call `index` once per batch, then `loss`, `coefficients` or `gate`.

    Per-token tensors have the shape that the index was built for: padded `[B, T]` or packed `[N]`; values under the
    mask are never read, so NaN there is harmless. Inputs are float32, bfloat16, float16 or float64.

    Gradients flow into `log_probs`, or `log_ratio`, alone. Anything else that requires grad is refused where gradients
    are recorded, and is data under `torch.no_grad()`.

    On a GPU a call waits for nothing, and after one like it may be recorded in a CUDA graph. What is not finite is then
    no error: the objective is NaN, and the gradient of every token that it comes from.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        report: Report,
        backend: str,
        source: str,
        programs: Mapping[str, Program],
        run: Runs,
        again: Callable[[Hierarchy], Operator] | None = None,
        on_cpu: Callable[[], Backend] | None = None,
    ) -> None:
        self.hierarchy, self.report, self.backend, self.source = hierarchy, report, backend, source
        self.programs = programs
        self.calls = Calls(hierarchy, programs, Backend(backend, run), on_cpu)
        self._again = again
        self.number = OPERATORS.number(self)  # by which operators of torch know it
        self.room = room_of(hierarchy)  # for the numbers of a call's metrics, whatever the batch

    @cached_property
    def coupling(self) -> Coupling:
        """Which rows decide a coefficient together, and so what a micro-batch has to contain."""
        known = self.programs.get("objective")
        return (
            UNCOUPLED if known is None else coupling(known, self.hierarchy)
        )  # without programs it makes indexes alone

    def __reduce__(self) -> tuple[Any, ...]:
        """Generated functions do not pickle; another process compiles the same hierarchy again."""
        if self._again is None:
            raise TypeError(f"{self!r} was made without the compiler, and cannot be pickled")
        return self._again, (self.hierarchy,)

    def __repr__(self) -> str:
        return f"Operator({self.hierarchy.name!r}, backend={self.backend!r})"

    @outside
    def index(
        self,
        /,  # a stratum may be called so
        *positional: Any,
        mask: Any = None,
        offsets: Any = None,
        attributes: Mapping[str, Any] | None = None,
        positions: Any = None,
        device: torch.device | str | None = None,
        group: Any = None,
        **labels: Any,
    ) -> Index:
        """Say who lies over whom in a batch.

        `mask`: bool (or 0/1) `[B, T]`, True on response tokens. For packed tokens `offsets`: cu_seqlens, int `[n + 1]`,
        optionally with a `mask` `[N]`. One keyword per stratum coarser than rows: a label per row, any hashable values
        (a stratum below the rows or beside them takes a label per token). Tokens and rows without an element of a
        stratum need no label for it. Instead of labels, a stratum takes a mapping from those of what lies directly
        over it: `family={"math": "stem"}`, or where several do, one for each: `family={"domain": {"math": "stem"},
        "modality": {"text": "stem"}}`.

        Where there are several leaves, one keyword per leaf: a boolean (or 0/1) mask of its tokens, of their shape;
        one leaf may be left out, and has the unmasked tokens that no other has. `attributes`: `{name: values}` for
        declared attributes.

        `positions`: whole numbers of the batch's shape, from 0, with gaps or without: where each token comes in its
        sequence. They are needed where formulas read an order, and an element has tokens in several rows, or on several
        ranks; along a row they ascend. With them, rows of one name (`trajectory=keys`) are pieces of one trajectory.
        Without them, tokens come as they lie in their row. What is coarser than tokens is ordered by its first token.

        `group`: the ranks that the batch is spread over, each with a part of it, which may be nothing: a group of
        torch.distributed, or an object with `rank`, `size`, `all_gather(tensor)` and `all_gather_object(obj)`. All of
        them make this call, and each that uses the index. Its tokens are then this rank's, and everything coarser is
        the whole batch's, the same on every rank: labels of one element are equal wherever they are given. Names for
        the rows (`trajectory=keys`) say which rows are pieces of one, and number elements by their labels, so that it
        does not matter which rank has which rows. Numbers are given by label and not in the order of elements.

        Raises HierarchyIndexError naming the row, token, label or element that does not fit: labels that lack, or are
        negative integers of tokens, which in most data mean none; an element over two, paths that disagree, a batch
        that breaks what the hierarchy assumes, crossed effects that no projection tells apart. With a group, all ranks
        raise what one of them does; and RanksError where they are in different calls, or one of them is lost.
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
        """`-J` (eq:fgh_objective) over the whole batch, with the gradient `-c_i` towards every log-prob; `J` is less
        the hierarchy's penalties.

        `log_probs`, `old_log_probs`: log π of the sampled tokens now and when sampled, in nats. `advantages`:
        per token, or per row `[B]`; or `rewards=` in their place, of which the hierarchy's formula makes them. `index`
        is needed always. `policies`: log-probs of the further policies that formulas name, by name,
        `{"rollout": log_probs}`. `metrics`: True for all, False for none, or names of strata and of `"ratio"`,
        `"divergences"`, `"weights"`, `"penalties"`; `"levels"` are all but those of single elements. For batches that
        do not fit, use `coefficients`.
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

        Back-propagate `-(coefficients.values * log_probs).sum()`, in as many micro-batches as you like.
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
                measured=UNMEASURED
                if isinstance(index, MicroIndex)
                else collector.collect(program, outputs, index, collector.asked(metrics)),
            )

    @outside
    @torch.no_grad()
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
        self.calls.freeze(old_log_probs, advantages, index, parameters, policies)

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
        """The gated ratios `𝒢(r)`, differentiable in `log_ratio`, shaped like it, and 1 under the mask.

        `log_ratio`: log r = log π_θ - log π_old per token. `advantages`, or `rewards` in their place, and
        `policies` are needed only where a gate reads them; there `old` is one of the policies.
        """
        if is_followed():
            return compiled.of_gate(self, log_ratio, index, parameters, advantages, rewards, policies)
        graph = torch.is_grad_enabled()
        if rewards is not None:
            tokens = {"log_ratio": log_ratio}
            advantages = self.calls.advantages("gate", rewards, index, tokens, advantages, parameters, policies, graph)
        result: Tensor = Gated.apply(log_ratio, self.calls, index, advantages, parameters, policies, graph)
        return result

    @outside
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
        """Residual and gated residual at every element of every stratum, in intensive units. Not differentiable."""
        tokens, graph = {"log_ratio": log_ratio}, torch.is_grad_enabled()
        if rewards is not None:
            advantages = self.calls.advantages(
                "levels", rewards, index, tokens, advantages, parameters, policies, graph
            )
        outputs, _ = self.calls.call("levels", index, tokens, advantages, parameters, policies, torch.float64, graph)

        nothing = torch.where(outputs[Key("nonfinite")] > 0, torch.nan, 0.0)  # where that is not looked at

        def pick(word: str) -> dict[tuple[str, str], Tensor]:
            found = {}
            for stratum, channel in levels(self.hierarchy):
                value = outputs[Key(word, stratum, channel)]
                if stratum in index.leaves:
                    value = value.reshape(-1)[index.positions_of(stratum)]
                found[stratum, channel] = (value - nothing).expand(index.size[stratum])
            return found

        return Levels(pick("residual"), pick("gated"))

    @outside
    def advantages(
        self,
        rewards: Tensor,
        index: Index,
        parameters: Mapping[str, Any] | None = None,
        *,
        policies: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """What the hierarchy's formula makes of rewards: float64, as every call with `rewards=` reads them.

        `rewards`: per token, or per row `[B]`. Advantages are `[B]` then, where nothing in the formula is a token's
        own, and otherwise of the batch's shape; 0 under the mask and of rows without tokens. `policies` has the
        log-probs of those that the formula names, `old` among them.
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
        """What one of the programs reads, as float64 vectors, for the interpreter.

        `log_ratio`, or `log_probs` now and when sampled, where the program reads these, and those of other policies:
        float64 [tokens].
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
    """Results keep float64, and are float32 otherwise: half precision would lose small coefficients."""
    return torch.float64 if isinstance(given, Tensor) and given.dtype == torch.float64 else torch.float32
