"""One optimizer step of TRL: the order of a generation's rows, forward passes over chosen rows, and coefficients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from fibration.errors import TrainerError
from fibration.language.hierarchy import Hierarchy
from fibration.trainers.intake import REFERENCE, ROLLOUT
from fibration.trainers.micro_batches import MicroBatches
from fibration.trainers.trl.numbers import RowNumbers

OLD, REFERRED = "old_per_token_logps", "ref_per_token_logps"  # TRL's names
SAMPLED = "sampling_per_token_logps"  # from vLLM or a rollout function
# Keys of a slice that are inputs of the model, beside its tokens.
FORWARD = set(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)


class Row(NamedTuple):
    """Data of a row: the number of steps begun when it was sampled, and its label of every stratum."""

    steps: int
    labels: dict[str, Any]


@dataclass
class Step:
    """One optimizer step of a rank."""

    batches: MicroBatches
    places: list[int]  # the slice of the window in each micro-batch
    scale: float  # of coefficients
    forwards: int  # forward passes before the first micro-batch

    def live(self) -> Live | None:
        """The rows of the next micro-batch that its forward pass takes; None: all."""
        live = self.batches.live()
        return None if live.all() else Live(live)

    def coefficients(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients `[b, T]` of the next micro-batch, which has these log-probs, and its part of the objective.

        After `live`, both are of the live rows. The parts of all micro-batches add up to `J` on average over ranks.
        """
        values, objective = self.batches.coefficients(log_probs)
        return values * self.scale, objective * (1.0 if self.batches.is_whole else self.scale)


class Live:
    """Some rows of a slice. `mask`: bool `[b]`, on the CPU."""

    def __init__(self, mask: Tensor) -> None:
        self.mask, self.rows = mask, mask.nonzero()[:, 0]

    def of(self, values: Tensor) -> Tensor:
        """The values of these rows: `[n, ...]` from `[b, ...]`."""
        return values[self.rows.to(values.device)]

    def placed(self, values: Tensor) -> Tensor:
        """`[b, ...]` with the values `[n, ...]` of these rows, and 0 elsewhere."""
        empty = values.new_zeros(len(self.mask), *values.shape[1:])
        return torch.index_copy(empty, 0, self.rows.to(values.device), values)


def unmasked(inputs: Mapping[str, Any]) -> Tensor:
    """The tokens of a slice on which TRL trains: no padding, no cut-off completions, no tool output."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def window_given(
    hierarchy: Hierarchy,
    pieces: Sequence[Mapping[str, Any]],
    labels: Mapping[str, Sequence[Any]],
    numbers: RowNumbers,
    *,
    computed: Tensor | None = None,
    rewards: Tensor | None = None,
    scored: Tensor | None = None,
    lacking: TrainerError | None = None,
    **more: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `Window` for the rows of some slices, after the operator. `more`: further ones.

    `computed`: current log-probs, used as old ones if TRL kept none. `rewards`: in place of advantages, for the rows
    that are `scored`. `lacking`: raised if the loss reads the sampling policy, and TRL has no log-probs of it.
    """

    def joined(name: str) -> Any:
        return torch.cat([piece[name] for piece in pieces]) if pieces[0].get(name) is not None else None

    old, sampled = (joined(name) for name in (OLD, SAMPLED))
    old = computed if old is None else old
    policies = numbers.further(joined)
    if ROLLOUT in hierarchy.policies:
        if sampled is None and lacking is not None:
            raise lacking
        if sampled is not None:  # where vLLM's log-prob of a token is missing, TRL corrects nothing
            policies[ROLLOUT] = sampled if old is None else torch.where(sampled.isnan(), old, sampled)
    if REFERENCE in hierarchy.policies:
        policies[REFERENCE] = joined(REFERRED)
    mask = torch.cat([unmasked(piece) for piece in pieces])
    mask = mask if scored is None else mask * scored[:, None]
    weighs = rewards is None and (lacking is not None or ROLLOUT not in policies)
    given = {
        "rewards": rewards,
        "weights": joined("importance_sampling_ratio") if weighs else None,
        "policies": policies,
        "attributes": numbers.attributes(joined, labels, mask),
    }
    return (mask, old, joined("advantages") if rewards is None else None, labels), {**given, **more}


# ------------------------------------------------------------ forward passes


def scores(
    trainer: GRPOTrainer, model: Any, inputs: Mapping[str, Any], at_once: int | None = None, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies as TRL's loss computes them, with the same tokens and padding; `at_once`: rows per
    forward pass.
    """
    ids, mask = (torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask"))
    found: tuple[Tensor, Tensor, Any] = trainer._get_per_token_logps_and_entropies(
        model,
        ids,
        mask,
        inputs["completion_ids"].size(1),
        batch_size=at_once,
        compute_entropy=entropy,
        **{name: value for name, value in inputs.items() if name in FORWARD},
    )
    return found[0], found[1]


class ScoringTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` whose forward passes take chosen rows, and report their log-probs."""

    _fibration_hears: Callable[[Tensor], None] | None = None  # called with the running loss's log-probs
    _fibration_live: Live | None = None  # the rows that the running loss's forward pass takes; None: all

    @torch.no_grad()
    def _scores(
        self, model: Any, inputs: Mapping[str, Any], at_once: int | None = None, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies without a graph."""
        return scores(self, model, inputs, at_once, entropy)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        live = self._fibration_live
        if live is not None:
            input_ids, attention_mask = live.of(input_ids), live.of(attention_mask)
        found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, *args, **kwargs)
        if self._fibration_hears is not None:
            self._fibration_hears(found[0].detach())
        return found if live is None else (live.placed(found[0]), live.placed(found[1]), *found[2:])


# ------------------------------------------------------------ the order of rows


@contextmanager
def shuffled(element: Callable[[Mapping[str, Any]], Sequence[Hashable]] | None) -> Iterator[None]:
    """While the body runs, TRL's `shuffle_sequence_dict` keeps the rows of an element next to each other.

    `element`: returns the element of every row of a generation. None: TRL shuffles rows.
    """
    if element is None:
        yield
        return
    own = grpo_trainer.shuffle_sequence_dict
    grpo_trainer.shuffle_sequence_dict = lambda given: permuted(given, in_elements(element(given)))
    try:
        yield
    finally:
        grpo_trainer.shuffle_sequence_dict = own


def in_elements(elements: Sequence[Hashable]) -> list[int]:
    """The rows, one element after another. The elements are in random order, and the rows of each in theirs."""
    found: dict[Hashable, list[int]] = {}
    for row, element in enumerate(elements):
        found.setdefault(element, []).append(row)
    each = list(found.values())
    return [row for place in torch.randperm(len(each)).tolist() for row in each[place]]


def permuted(given: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Tensors `[B, ...]` and sequences of `B` values in another order; other values are kept."""

    def taken(value: Any) -> Any:
        if value is None or (isinstance(value, Tensor) and value.ndim == 0):
            return value
        return value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]

    return {name: taken(value) for name, value in given.items()}
