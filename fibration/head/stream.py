"""One call: goes over the batch chunk by chunk, and computes the loss and its gradients on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fibration.errors import located
from fibration.head import fused, logits
from fibration.head.checks import check_finite
from fibration.head.logits import Shape, Statistics
from fibration.head.parts import Chunk, Part, chosen, cut, is_of_tokens, with_gradient
from fibration.head.products import Products
from fibration.runtime import devices
from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.metrics import Coefficients, Measured, MetricSource
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.group import Group, agreed

CALL = "fibration.head.loss"
Metrics = bool | str | Sequence[str]


@dataclass(frozen=True)
class Given:
    """The arguments of `op.loss` beside the log-probs of the current policy. `per_row`: whether advantages are."""

    old_log_probs: Tensor
    advantages: Tensor | None
    per_row: bool
    parameters: Mapping[str, Any] | None
    policies: Mapping[str, Tensor] | None
    metrics: Metrics

    def of(self, part: Part) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for a part: those after `log_probs`."""
        advantages = None if self.advantages is None else part.of(self.advantages, self.per_row)
        policies = self.policies
        if isinstance(policies, Mapping):
            policies = {name: part.of(t) for name, t in policies.items()}
        return (part.of(self.old_log_probs), advantages, part.index, self.parameters), {"policies": policies}


@dataclass(frozen=True)
class Head:
    """`targets`: int64 [unmasked tokens], -1 where unknown. `bonus`: of each token's entropy. `chunk`: in tokens."""

    targets: Tensor
    dtype: torch.dtype
    softcap: float | None
    temperature: float
    bonus: float
    with_entropy: bool
    chunk: int


@dataclass
class Gradients:
    """Of the loss: `hidden` `[tokens, H]`, `weight` `[V, H]`, `bias` `[V]`; None if not wanted."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @property
    def wanted(self) -> bool:
        return any(g is not None for g in (self.hidden, self.weight, self.bias))


class Stream:
    """The loss of one call over its parts, and the gradients of the tensors that want one.

    A part in one chunk needs 3 products: its coefficients are known while its logits are there. So does a part of
    several chunks of a loss of tokens alone. Else pass 1 keeps two numbers per token, and pass 2 computes the logits
    again of tokens whose coefficient is not 0: at most 4 products.
    """

    def __init__(
        self,
        op: Operator,
        index: Index,
        given: Given,
        head: Head,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Sequence[bool],
    ) -> None:
        self.op, self.index, self.given, self.head = op, index, given, head
        self.hidden, self.places = hidden.reshape(-1, hidden.shape[-1]), index.positions
        n = len(self.places)
        self.products = Products(weight, head.dtype, min(head.chunk, n))
        wide = self.products.wide
        made = (
            torch.zeros(size, dtype=wide, device=index.device) if want else None
            for want, size in zip(wanted, ((n, hidden.shape[-1]), weight.shape, (len(weight),)), strict=True)
        )
        self.gradients = Gradients(*made)
        self.shape = Shape(None if bias is None else bias.to(wide), head.softcap, head.temperature)
        old = given.old_log_probs.detach().reshape(-1)[self.places].to(wide)
        entropy = torch.zeros_like(old) if head.with_entropy else None
        # where log-probs are not known yet, those of the old policy stand for them
        self.found = Statistics(torch.zeros_like(old), torch.zeros_like(old), old, entropy)
        self.objective = torch.zeros((), dtype=torch.float64, device=index.device)
        self.measured: MetricSource = Measured()

    def run(self) -> Tensor:
        """This rank's share of the loss."""
        index, given = self.index, self.given
        of_step = not isinstance(index, MicroIndex)
        parts = cut(self.op, index, self.head.chunk)
        if len(parts) == 1 and parts[0].index is index:
            self.measured = self._part(parts[0], given.metrics, index.group if of_step else None)
        else:
            if of_step and self.op.coupling.frozen:
                self.op.freeze(given.old_log_probs, given.advantages, index, given.parameters, policies=given.policies)
            with agreed(index.group if of_step else None, CALL):
                for part in parts:
                    with located(str(part)):
                        self.measured = self._part(part, False if of_step else given.metrics)
            if of_step:
                self.measured = self._measured_of_step()
        entropy = self.found.entropy
        bonus = 0.0 if entropy is None else self.head.bonus * entropy.double().sum()
        return -(self.objective + bonus).to(self.products.wide)

    def _measured_of_step(self) -> MetricSource:
        if self.given.metrics is False:
            return Measured()
        every = Part(self.index, slice(0, len(self.places)))
        return self._coefficients(every, self.given.metrics).measured

    def _part(self, part: Part, metrics: Metrics, group: Group | None = None) -> MetricSource:
        """Adds a part's objective and gradients. `group`: the ranks that meet in its coefficients."""
        chunks = part.chunks(self.head.chunk)
        if self.gradients.wanted and len(chunks) > 1 and is_of_tokens(self.op):
            for chunk in chunks:
                z = self._measure(chunk)
                self._differentiate(part, chunk, self._coefficients(part, metrics), z)
                del z  # before the next chunk's logits are made
            result = self._coefficients(part, metrics)
        else:
            kept = None
            with agreed(group, CALL):
                for chunk in chunks:
                    kept = None
                    kept = self._measure(chunk)
            result = self._coefficients(part, metrics)
            if len(chunks) > 1:
                kept = None
            for chunk in chunks if self.gradients.wanted else ():
                self._differentiate(part, chunk, result, kept)
        self.objective += result.objective.double() / part.index.shares
        return result.measured

    def _measure(self, chunk: Chunk) -> Tensor:
        """Fills `found` at a chunk's tokens. Returns what `_differentiate` needs of their logits: `[n, V]`."""
        hidden, found = self.hidden[self.places[chunk]], self.found.of(chunk)
        z, targets = self.products.logits(hidden), self.head.targets[chunk]
        measure = fused.measure if fused.fits(z, self.shape) else logits.measure
        measure(z, targets.clamp_min(0), self.shape, found)
        if devices.can_sync(z.device):
            check_finite(self.index, found.log_probs, chunk.start, hidden)
        else:
            found.log_probs.masked_fill_(targets < 0, torch.nan)
        return z

    def _coefficients(self, part: Part, metrics: Metrics) -> Coefficients:
        """The coefficients of a part, from the log-probs that are known so far."""
        log_probs = torch.zeros(part.index.shape, dtype=self.products.wide, device=self.index.device)
        log_probs.view(-1)[part.local(part.tokens)] = self.found.log_probs[part.tokens]
        positional, named = self.given.of(part)
        return self.op.coefficients(log_probs, *positional, **named, metrics=metrics)

    def _differentiate(self, part: Part, chunk: Chunk, result: Coefficients, z: Tensor | None) -> None:
        """Adds a chunk's gradients. `z`: what `_measure` returned; None computes the logits again."""
        coefficients = result.values.reshape(-1)[part.local(chunk)]
        which = None if self.head.bonus else with_gradient(coefficients)
        if which is not None and not len(which):
            return
        tokens = chosen(torch.arange(chunk.start, chunk.stop, device=self.places.device), which)
        hidden = self.hidden[self.places[tokens]]
        is_measured = z is not None
        if z is None:
            z = self.products.logits(hidden)
        targets = self.head.targets[tokens].clamp_min(0)
        given = (which if is_measured else None, targets, chosen(coefficients, which), self.head.bonus, self.shape)
        known, into = self.found.at(tokens), self.products.room_for_gradient(z, len(tokens))
        if fused.fits(z, self.shape):
            gradient = fused.differentiate(z, *given, known, into)
        else:
            gradient = logits.differentiate(z, is_measured, *given, known, into, self.gradients.bias)
        if self.gradients.hidden is not None:
            self.gradients.hidden[tokens] = self.products.gradient_of_hidden(gradient)
        if self.gradients.weight is not None:
            self.products.add_gradient_of_weight(self.gradients.weight, gradient, hidden)
