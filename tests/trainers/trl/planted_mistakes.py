"""Mistakes that are easy to make, put into the trainer. The comparison of gradients must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from cases import CASES, PER_DEVICE, Case
from recorded_training import everyone, rank
from torch import Tensor
from trl import GRPOTrainer

from fibration.trainers.trl import trainer
from fibration.trainers.window import Window


@contextmanager
def window(made: type[Window]) -> Iterator[None]:
    with patch.object(trainer, "Window", made):
        yield


class Pieces(Window):
    """Every micro-batch has aggregates of its own, and so has every rank."""

    rows: int | None = PER_DEVICE

    def __init__(self, op: Any, mask: Tensor, old: Any, advantages: Tensor, labels: Any, **more: Any) -> None:
        super().__init__(op, mask, old, advantages, labels, **more)
        rows = self.rows or len(mask)
        cuts = [slice(a, a + rows) for a in range(0, len(mask), rows)]
        more |= {"group": None}
        self.cuts, self.pieces = (
            cuts,
            [
                Window(
                    op,
                    mask[c],
                    None if old is None else old[c],
                    advantages[c],
                    {k: v[c] for k, v in labels.items()},
                    **more,
                )
                for c in cuts
            ],
        )

    def coefficients(self, log_probs: Tensor | None, **more: Any) -> Any:
        whole = super().coefficients(log_probs, **more)
        each = [
            piece.coefficients(None if log_probs is None else log_probs[cut]).values
            for piece, cut in zip(self.pieces, self.cuts, strict=True)
        ]
        self.coef = replace(whole, values=torch.cat(each) / len(each) / len(everyone(0)))
        return self.coef


class Ranks(Pieces):
    """Every rank has aggregates of its own."""

    rows = None


class WeightsBehind(Window):
    """Importance weights come behind the gates."""

    def __init__(self, *given: Any, weights: Tensor | None = None, **more: Any) -> None:
        super().__init__(*given, **more)
        self.behind = 1.0 if weights is None else weights

    def coefficients(self, log_probs: Tensor | None, **more: Any) -> Any:
        whole = super().coefficients(log_probs, **more)
        self.coef = replace(whole, values=whole.values * self.behind)
        return self.coef


class Accumulated(Window):
    """Coefficients are divided by the number of micro-batches."""

    def coefficients(self, log_probs: Tensor | None, **more: Any) -> Any:
        whole = super().coefficients(log_probs, **more)
        self.coef = replace(whole, values=whole.values / (len(self.mask) // PER_DEVICE))
        return self.coef


class GroupsOfRanks(Window):
    """A prompt group that lies on two ranks is two."""

    def __init__(self, op: Any, mask: Tensor, old: Any, advantages: Tensor, labels: Any, **more: Any) -> None:
        own = {**labels, "prompt_group": [(rank(), label) for label in labels["prompt_group"]]}
        super().__init__(op, mask, old, advantages, own, **more)


class NumbersOfOthers(Window):
    """Rows have the attributes of the rows before them."""

    def __init__(self, *given: Any, attributes: Any = None, **more: Any) -> None:
        turned = {k: v.roll(1, 0) if isinstance(v, Tensor) and v.ndim == 1 else v for k, v in attributes.items()}
        super().__init__(*given, attributes=turned, **more)


class TeacherOfOthers(Window):
    """Rows have the teacher's log-probs of the rows before them."""

    def __init__(self, *given: Any, policies: Any = None, **more: Any) -> None:
        turned = {**policies, "teacher": policies["teacher"].roll(1, 0)}
        super().__init__(*given, policies=turned, **more)


def stale() -> type[Window]:
    """Coefficients of the first iteration serve the second one."""
    kept: dict[bytes, Any] = {}

    class Stale(Window):
        def coefficients(self, log_probs: Tensor | None, **more: Any) -> Any:
            whole = super().coefficients(log_probs, **more)
            first = kept.setdefault(self.advantages.numpy().tobytes(), whole)
            self.coef = replace(whole, values=first.values)
            return self.coef

    return Stale


@contextmanager
def overwritten() -> Iterator[None]:
    """What TRL gets as advantages is written where they are read from, which later iterations do again."""

    def spoil(self: Any, model: Any, inputs: Any) -> None:
        if model.training:
            self._buffered_inputs[self._step % len(self._buffered_inputs)]["advantages"] = inputs["advantages"].detach()

    with _once_they_are_set(spoil):
        yield


@contextmanager
def _once_they_are_set(then: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """`then(trainer, model, inputs)` between the log-probs of a micro-batch, when advantages are set, and TRL's loss."""
    loss = GRPOTrainer._compute_loss

    def spoilt(self: Any, model: Any, inputs: Any) -> Tensor:
        own = self._fibration_hears

        def hear(log_probs: Tensor) -> None:
            own(log_probs)
            then(self, model, inputs)

        self._fibration_hears = hear
        return loss(self, model, inputs)

    with patch.object(GRPOTrainer, "_compute_loss", spoilt):
        yield


@contextmanager
def scaled() -> Iterator[None]:
    """TRL divides its loss by accumulation steps once more."""
    loss = GRPOTrainer._compute_loss

    def divided(self: Any, model: Any, inputs: Any) -> Tensor:
        return loss(self, model, inputs) / self.current_gradient_accumulation_steps

    with patch.object(GRPOTrainer, "_compute_loss", divided):
        yield


@contextmanager
def unused() -> Iterator[None]:
    """TRL's loss is of something else than the advantages that it gets."""

    def without(self: Any, model: Any, inputs: Any) -> None:
        inputs["advantages"] = inputs["advantages"].detach()

    with _once_they_are_set(without):
        yield


@contextmanager
def unlabelled() -> Iterator[None]:
    """The last rank's rows lose their column of domains."""
    labels = trainer.FibrationGRPOTrainer._labels

    def without(self: Any, row: Any, group: int) -> Any:
        last = rank() == self.accelerator.num_processes - 1
        return labels(self, {k: v for k, v in row.items() if k != "domain"} if last else row, group)

    with patch.object(trainer.FibrationGRPOTrainer, "_labels", without):
        yield


@contextmanager
def apart() -> Iterator[None]:
    """Pass 1 has other log-probs than pass 2, by up to 0.05 nats."""
    compute = GRPOTrainer._get_per_token_logps_and_entropies

    def moved(self: Any, *given: Any, **more: Any) -> Any:
        found = compute(self, *given, **more)
        if torch.is_grad_enabled() or not self.counting:
            return found
        return found[0] + 0.05 * torch.sin(100 * found[0]), *found[1:]

    with patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", moved):
        yield


@contextmanager
def theirs() -> Iterator[None]:
    """TRL's advantages stay where the hierarchy makes its own."""
    with patch.object(trainer.FibrationGRPOTrainer, "_advantages", lambda self, output: output["advantages"]):
        yield


@contextmanager
def twice_near() -> Iterator[None]:
    """TRL adds its divergence from the reference model too."""
    loss = trainer.FibrationGRPOTrainer._loss

    def kept(self: Any, *given: Any) -> Any:
        type(self).beta = property(lambda self: 1.0, lambda self, value: None)
        return loss(self, *given)

    with patch.object(trainer.FibrationGRPOTrainer, "_loss", kept):
        yield


@dataclass(frozen=True)
class Plant:
    """A mistake, and the training that it goes into."""

    into: Case
    how: Callable[[], Any]
    ranks: tuple[int, ...] = (1, 2)


OFF, REWARDED = CASES["two iterations"], CASES["rewards and a reference model"]
PLANTS = {
    "aggregates per micro-batch": Plant(OFF, lambda: window(Pieces)),
    "aggregates per rank": Plant(OFF, lambda: window(Ranks), (2,)),
    "weights behind the loss": Plant(CASES["weights per token"], lambda: window(WeightsBehind)),
    "coefficients divided by accumulation": Plant(OFF, lambda: window(Accumulated)),
    "advantages overwritten": Plant(OFF, overwritten),
    "coefficients of an earlier iteration": Plant(OFF, lambda: window(stale())),
    "groups of a rank": Plant(OFF, lambda: window(GroupsOfRanks), (2,)),
    "advantages of TRL's": Plant(REWARDED, theirs),
    "two divergences": Plant(REWARDED, twice_near),
    "numbers of other rows": Plant(CASES["attributes"], lambda: window(NumbersOfOthers)),
    "a teacher of other rows": Plant(CASES["rows alone, a teacher"], lambda: window(TeacherOfOthers)),
    "a loss that is scaled otherwise": Plant(OFF, scaled),
    "advantages that are not used": Plant(OFF, unused),
    "a column that one rank lacks": Plant(OFF, unlabelled),
    "two passes that differ": Plant(replace(OFF, exact=False), apart),
}
