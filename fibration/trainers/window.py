"""One optimizer step: its rows on one rank, the coefficients of the whole batch, and the check by the second pass.

Pass 2 is the trainer's own, with a graph, one micro-batch after another. Pass 1 computes log-probs without a graph, of
the micro-batches whose log-probs must be known before they are trained on (`micro_batches.py`). Kernels, padding or
dropout may change log-probs from one pass to the other. `Window.compare` reports how far both passes differ, and how
many elements change their regime.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fibration.errors import BatchError, TrainerError, an, listed, shown
from fibration.language.declared import OLD
from fibration.language.expressions import Number
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index
from fibration.runtime.index.spread import GROUP
from fibration.runtime.metrics import Coefficients, Measured, asked_for
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.group import agreed, as_group
from fibration.trainers.intake import ROLLOUT, passed, read_twice

WARN_ABOVE = 0.01  # share of a stratum's elements whose regime changes in pass 2
CHANGED = "pass/changed"


class Window:
    """One rank's part of an optimizer step: the rows of its micro-batches, concatenated, padded to one width.

    `mask`: bool or 0/1 `[B, T]`. `old_log_probs`: `[B, T]`, or None if the current weights sampled all rows and no
    log-probs were kept. `advantages`: `[B]`, `[B, 1]` or `[B, T]`; or None with `rewards`, from which the hierarchy's
    formula makes them over all rows of the step. `labels`, `attributes`, `positions`: as in `op.index`, per row or per
    token of this part. Labels of the rows' own stratum are keys, equal for the rows of one trajectory. `weights`:
    importance weights of the rollout policy against `old_log_probs`, `[B]`, `[B, 1]` or `[B, T]`. They become part of
    the advantages, because after the gates they would change the gradient. `policies`: log-probs `[B, T]` of the
    further policies that the hierarchy reads, `{"rollout": log_probs, "reference": ...}`; with `rollout` there must be
    no `weights`.

    Values under the mask are never read, so NaN there is harmless. Rows, ranks and whole steps may have no unmasked
    token; their coefficients are 0. `group`: the ranks that share the step's rows, as in `op.index`; all of them must
    make every call, and an error on one is raised on all.
    """

    def __init__(
        self,
        op: Operator,
        mask: Tensor,
        old_log_probs: Tensor | None,
        advantages: Tensor | None,
        labels: Mapping[str, Any],
        *,
        rewards: Tensor | None = None,
        weights: Tensor | None = None,
        policies: Mapping[str, Tensor] | None = None,
        group: Any = None,
        parameters: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        positions: Any = None,
    ) -> None:
        self.ranks = None if group is None else as_group(group)
        if self.ranks is None and labels.get(op.hierarchy.rows.name) is not None:
            self.ranks = as_group(Alone())  # without a group, repeated keys are an error
        with agreed(self.ranks, "a window") as said:
            said["old log-probs"] = "none" if old_log_probs is None else "given"
            if not isinstance(mask, Tensor) or mask.ndim != 2:
                found = list(mask.shape) if isinstance(mask, Tensor) else an(type(mask).__name__)
                raise TrainerError("the mask of a window", required="a tensor [B, T], bool or 0/1", found=str(found))
            if self.ranks is not None and GROUP in labels:
                raise TrainerError(
                    f"the stratum '{GROUP}' of '{op.hierarchy.name}' has the name of the ranks' argument",
                    remedy="rename the stratum",
                )
            if weights is not None and ROLLOUT in passed(op.hierarchy):
                raise read_twice(op.hierarchy, ROLLOUT, "weights are given too", "leave weights out")
            self.mask = mask.bool()
            self.policies = {name: given.detach() for name, given in (policies or {}).items()}
            self._rewards = _rewards_of(op.hierarchy, self.mask, advantages, rewards)
            said["advantages"] = "given" if self._rewards is None else "made of rewards"
            weighted = _weighted(self.mask, advantages if self._rewards is None else self._rewards, weights)
        self.advantages = weighted if self._rewards is None else None  # otherwise `coefficients` makes them
        self.op, self.parameters, self.weights = op, parameters, weights
        self._dtype = torch.promote_types(weighted.dtype, torch.float32)
        self._weighs_tokens = weights is not None and weighted.ndim == 2
        self._rows_are_whole = labels.get(op.hierarchy.rows.name) is None
        self.old_log_probs = None if old_log_probs is None else old_log_probs.detach()
        tokens = self.gathered(self.mask.sum().reshape(1).double(), "tokens of a window")
        self.tokens = int(tokens.sum())  # unmasked tokens on all ranks
        spread: dict[str, Any] = {} if self.ranks is None else {GROUP: self.ranks}
        self._indexed = {"attributes": attributes, "positions": positions, **labels, **spread}
        self.index = op.index(mask=mask, **self._indexed) if self.tokens else None
        self.coef: Coefficients | None = None  # the last computed ones
        self._first: Tensor | None = None  # the log-probs that they were computed from

    def made_of_rewards(self, old_log_probs: Tensor | None = None) -> Tensor:
        """The hierarchy's advantages from the rewards of the whole step, times the weights: `[B]` or `[B, T]`,
        float64.

        `old_log_probs`: `[B, T]`, if the window has none and the formula reads them.
        """
        assert self._rewards is not None
        if self.index is None:
            return torch.zeros(len(self.mask), dtype=torch.float64, device=self.mask.device)
        old = self.old_log_probs if old_log_probs is None else old_log_probs
        policies = {**self.policies, **({OLD: old} if OLD in self.op.hierarchy.policies and old is not None else {})}
        made = self.op.advantages(self._rewards, self.index, self.parameters, policies=policies)
        return _weighted(self.mask, made, self.weights)

    def coefficients(self, log_probs: Tensor | None, *, metrics: bool | str | Sequence[str] = True) -> Coefficients:
        """`c_i = ∂J/∂log π(i)` of the whole step, for this rank's tokens `[B, T]`; stored as `coef`.

        `log_probs`: pass 1's, `[B, T]`. None: the current weights sampled all rows, so that the ratio is 1 and no pass
        is needed. The `objective` of a score estimator, which reads log-probs themselves, is then that of
        `old_log_probs`, or of zeros. A hierarchy that compares policies needs `log_probs` or `old_log_probs`.
        `metrics`: as in `op.coefficients`.
        """
        if log_probs is None and self.old_log_probs is None and self.op.hierarchy.policies:
            raise TrainerError(
                f"'{self.op.hierarchy.name}' reads log-probs of {listed(self.op.hierarchy.policies)}, and a fresh step "
                "has none",
                required="old_log_probs, or log-probs of a pass",
                remedy="compute them once: the current weights sampled these rows",
            )
        first = self.old_log_probs if log_probs is None else log_probs.detach()
        self._first = first
        now = torch.zeros(self.mask.shape, dtype=self._dtype, device=self.mask.device) if first is None else first
        old = now if log_probs is None or self.old_log_probs is None else self.old_log_probs
        if self._rewards is not None:
            self.advantages = self.made_of_rewards(old)
        if self.index is None:
            nothing = torch.zeros_like(now, dtype=now.dtype if now.dtype == torch.float64 else torch.float32)
            self.coef = Coefficients(nothing, nothing.new_zeros(()), Measured())
        else:
            self.coef = self._called(now, old, self.advantages, self.index, self.policies, metrics)
        return self.coef

    def _called(
        self, now: Tensor, old: Tensor, advantages: Any, index: Index, policies: Mapping[str, Tensor], metrics: Any
    ) -> Coefficients:
        try:
            return self.op.coefficients(
                now, old, advantages, index, self.parameters, policies=policies, metrics=metrics
            )
        except BatchError as error:
            if self._weighs_tokens:
                error.add_note(
                    "the importance weights are part of the advantages: give one weight per row if a gate above "
                    "the tokens reads advantages"
                )
            raise

    @property
    def has_parts(self) -> bool:
        """Whether `part` has what it reads of the step before the first forward pass, and rows are whole trajectories
        where it reads these.
        """
        coupling = self.op.coupling
        frozen = self.old_log_probs is not None or not coupling.frozen
        return frozen and (self._rows_are_whole or not coupling.within)

    @property
    def is_row_local(self) -> bool:
        """Whether any rows may be a micro-batch: their coefficients need no log-probs of other rows."""
        return self.index is None or (self.op.coupling.is_row_local and self.has_parts)

    def freeze(self) -> None:
        """Compute what micro-batches read of the whole step, before the first of them. All ranks call it."""
        if self._rewards is not None:
            self.advantages = self.made_of_rewards()
        if self.index is not None and self.op.coupling.frozen:
            assert self.old_log_probs is not None
            self.op.freeze(self.old_log_probs, self.advantages, self.index, self.parameters, policies=self.policies)

    def part(self, rows: slice | Sequence[int] | Tensor, log_probs: Tensor) -> Coefficients:
        """The coefficients of a micro-batch of these rows, from its own log-probs `[b, T]`, after `freeze`.

        `objective` is the micro-batch's part of `J`. Without `old_log_probs` they are these log-probs. No ranks meet.
        """
        now = log_probs.detach()
        if self.index is None:
            nothing = torch.zeros_like(now, dtype=torch.promote_types(now.dtype, torch.float32))
            return Coefficients(nothing, nothing.new_zeros(()), Measured())
        assert self.advantages is not None
        old = now if self.old_log_probs is None else self.old_log_probs[rows]
        policies = {name: given[rows] for name, given in self.policies.items()}
        return self._called(now, old, self.advantages[rows], self.index.micro(rows), policies, False)

    def live(self) -> Tensor:
        """The rows that can get a gradient, as `op.live` returns them: bool `[B]`. All ranks call it."""
        if self.index is None:
            return torch.zeros(len(self.mask), dtype=torch.bool, device=self.mask.device)
        assert self.advantages is not None
        return self.op.live(self.advantages, self.index)

    def metrics_of(self, rows: Tensor, log_probs: Tensor, metrics: bool | str | Sequence[str]) -> dict[str, float]:
        """The metrics of some rows, bool `[B]`, as if the step had no others. All ranks call it.

        `log_probs`: `[B, T]`. Empty if no rank has an unmasked token in them.
        """
        mask = self.mask & rows[:, None]
        if not int(self.gathered(mask.sum().reshape(1), "tokens of some rows").sum()):
            return {}
        old = log_probs if self.old_log_probs is None else self.old_log_probs
        index = self.op.index(mask=mask, **self._indexed)
        found = self._called(log_probs, old, self.advantages, index, self.policies, metrics).scalars()
        return {name: value for name, value in found.items() if name != "objective"}

    def compare(self, log_probs: Tensor, rows: Tensor | None = None) -> dict[str, float]:
        """How pass 2's log-probs `[B, T]` differ from those that the coefficients were computed from.

        `rows`: the rows of pass 2, bool `[B]`; all by default. Others keep their log-probs.

        `pass/log_prob_difference` and `pass/log_prob_difference_max`: the mean and the maximum of `abs(Δ log π)` over
        the tokens of these rows on all ranks, in nats. `pass/changed`: the share of elements of the step, over all
        strata and channels, whose gate is in another regime with pass 2's; `pass/changed/{stratum}`: the share within
        one stratum. A gate that removes its level (`zero_gate`) has one regime. Empty if no coefficients were computed,
        or if they were computed without log-probs.

        Each rank sends three numbers; if a log-prob differs, also two per leaf and the data of `op.levels`.
        """
        with agreed(self.ranks, "Window.compare") as said:
            said["log-probs of pass 1"] = "none" if self._first is None else "given"
            if log_probs.shape != self.mask.shape:
                raise TrainerError(
                    f"log-probs of pass 2 have shape {list(log_probs.shape)}", required=f"{list(self.mask.shape)}"
                )
        if self._first is None or self.index is None:
            return {}
        compared = self.mask if rows is None else self.mask & rows[:, None]
        first = self._first.double()
        second = torch.where(compared, log_probs.detach().double(), first)
        differs = torch.where(compared, (second - first).abs(), 0.0)
        most = differs.amax() if differs.numel() else differs.new_zeros(())
        mine = torch.stack([differs.sum(), compared.sum().double(), most])
        parts = self.gathered(mine, "log-probs of both passes")
        total, tokens, greatest = torch.stack([*parts[:, :2].sum(0), parts[:, 2].amax()]).tolist()
        changed = self._changed(first, second) if greatest else dict.fromkeys(self._strata, (0.0, 1.0))
        shares = {f"{CHANGED}/{stratum}": n / size for stratum, (n, size) in changed.items() if size}
        n, size = (sum(ends) for ends in zip((0.0, 0.0), *changed.values(), strict=True))
        return {
            "pass/log_prob_difference": total / max(tokens, 1),
            "pass/log_prob_difference_max": greatest,
            CHANGED: n / max(size, 1),
            **shares,
        }

    @property
    def _strata(self) -> tuple[str, ...]:
        """The strata whose gates have several regimes."""
        h = self.op.hierarchy
        return tuple(s.name for s in h.order if s in h.gates and not isinstance(h.gates[s].expression, Number))

    def _changed(self, first: Tensor, second: Tensor) -> dict[str, tuple[float, float]]:
        """Per stratum, the number of elements in another regime and of all elements, over channels and ranks."""
        assert self.index is not None
        old = first if self.old_log_probs is None else self.old_log_probs.double()
        passes = [self._regimes(self.index, now - old, old) for now in (first, second)]
        counts = torch.zeros(len(self._strata), 2, dtype=torch.float64, device=self.mask.device)
        for (stratum, channel), one in passes[0].items():
            of_stratum = counts[self._strata.index(stratum)]
            of_stratum[0] += (one != passes[1][stratum, channel]).sum()
            of_stratum[1] += len(one)
        leaves = [self._strata.index(leaf) for leaf in self.index.leaves if leaf in self._strata]
        if leaves:  # coarser elements are global
            counts[leaves] = self.gathered(counts[leaves], "regimes of tokens").sum(0)
        return {stratum: (n, size) for stratum, (n, size) in zip(self._strata, counts.tolist(), strict=True)}

    def _regimes(self, index: Index, log_ratio: Tensor, old: Tensor) -> dict[tuple[str, str], Tensor]:
        """The regime of every element: 0 if its gate kept its input, 1 if it returned 0, 2 otherwise."""
        policies = {**self.policies, **({OLD: old} if OLD in self.op.hierarchy.policies else {})}
        levels = self.op.levels(log_ratio, index, self.parameters, advantages=self.advantages, policies=policies)
        pairs = ((key, levels.residual[key], gave) for key, gave in levels.gated.items() if key[0] in self._strata)
        return {key: torch.where(gave == read, 0, torch.where(gave == 0, 1, 2)).byte() for key, read, gave in pairs}

    def gathered(self, values: Tensor, what: str) -> Tensor:
        """The values of every rank: [ranks, ...]."""
        return values[None] if self.ranks is None else self.ranks.all_gather(values, what)


def named(found: Mapping[str, float]) -> dict[str, float]:
    """The numbers under the names that a trainer logs, `fibration/trajectory/+/rolled_back`, infinities and NaN too.

    If any are not finite, `fibration/nonfinite` counts them, and the log says which: a trainer's means may hide a NaN.
    """
    wrong = [name for name, number in found.items() if not math.isfinite(number)]
    if wrong:
        logging.getLogger(__name__).warning("metrics of this step are not finite: %s", ", ".join(wrong))
        found = {**found, "nonfinite": float(len(wrong))}
    return {f"fibration/{name}": number for name, number in found.items()}


def check_metrics(hierarchy: Hierarchy, metrics: object, option: str = "metrics") -> None:
    """Refuse metrics that the hierarchy does not have; `option` is the trainer's name for them."""
    try:
        asked_for(hierarchy, metrics)
    except BatchError as error:
        raise TrainerError(f"{option}={shown(metrics)}", required=error.required, found=error.what) from None


def warned(found: Mapping[str, float], before: bool = False) -> bool:
    """Whether the user was warned that pass 2 changes the regime of elements: by a UserWarning, now or `before`.

    `found`: from `Window.compare`. It warns if more than `WARN_ABOVE` of a stratum's elements change.
    """
    shares = {name: share for name, share in found.items() if name.startswith(f"{CHANGED}/") and share > WARN_ABOVE}
    if before or not shares:
        return before
    worst = max(shares, key=shares.__getitem__)
    mean, most = (found[f"pass/log_prob_difference{word}"] for word in ("", "_max"))
    warnings.warn(
        f"{shares[worst]:.1%} of the elements of {worst.removeprefix(f'{CHANGED}/')} are in another regime of their "
        "gate in the trained pass than in the pass that gave the coefficients: log-probs differ "
        f"by {mean:.1e} nats on average, by {most:.1e} at most. "
        "Give both passes the same padding and micro-batches, compute log-probs in float32, and switch dropout off",
        UserWarning,
        stacklevel=2,
    )
    return True


class Alone:
    """A group of one rank."""

    rank, size = 0, 1

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj]


def _by_row(what: str, values: Any, mask: Tensor) -> Tensor:
    """[B, 1] or [B, T]."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        found = str(values.dtype) if isinstance(values, Tensor) else an(type(values).__name__)
        raise TrainerError(f"{what}: {found}", required="a floating-point tensor")
    rows, width = mask.shape
    if tuple(values.shape) not in ((rows,), (rows, 1), (rows, width)):
        raise TrainerError(
            f"{what} have shape {list(values.shape)}",
            required=f"[{rows}] or [{rows}, 1] per row, or [{rows}, {width}] per token, as the mask",
        )
    return values.detach()[:, None] if values.ndim == 1 else values.detach()


def _rewards_of(h: Hierarchy, mask: Tensor, advantages: Tensor | None, rewards: Tensor | None) -> Tensor | None:
    """Per row [B] or per token [B, T]; None where advantages are given instead."""
    if rewards is None:
        return None
    if advantages is not None:
        raise TrainerError(
            "both advantages and rewards are given",
            required="one of them",
            found=f"'{h.name}' makes {'none' if h.advantages is None else h.advantages} of rewards",
            remedy="leave one out",
        )
    if h.advantages is None:
        raise TrainerError(
            f"rewards for '{h.name}', which has no formula of advantages",
            required="a hierarchy with advantages=..., a formula of the reward",
            remedy="pass advantages, or declare advantages=centred(reward, over=prompt_group)",
        )
    given = _by_row("rewards", rewards, mask)
    return given[:, 0] if given.shape[1] == 1 else given


def _weighted(mask: Tensor, advantages: Any, weights: Tensor | None) -> Tensor:
    """Advantages per row [B] or per token [B, T], times the importance weights, in float32 at least."""
    result = _by_row("advantages", advantages, mask)
    if weights is not None:
        times = _by_row("importance weights", weights, mask)
        dtype = torch.promote_types(torch.promote_types(result.dtype, times.dtype), torch.float32)
        result = result.to(dtype) * times.to(dtype)
    return result[:, 0] if result.shape[1] == 1 else result
