"""TRL's log-probs and entropies, for the rows and models that coefficients are computed from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from fibration.trainers.trl.step import Live

# Keys of a slice that are inputs of the model, beside its tokens.
FORWARD = set(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)


class ScoringTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` whose forward passes take chosen rows, and report their log-probs."""

    _fibration_hears: Callable[[Tensor], None] | None = None  # called with the running loss's log-probs
    _fibration_live: Live | None = None  # the rows that the running loss's forward pass takes; None: all

    def _log_probs(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        return self._scores(model, inputs)[0]

    @torch.no_grad()
    def _scores(
        self, model: Any, inputs: Mapping[str, Any], at_once: int | None = None, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies as TRL's loss computes them, with the same tokens and padding; `at_once`: rows per
        forward pass.
        """
        ids, mask = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        found: tuple[Tensor, Tensor, Any] = self._get_per_token_logps_and_entropies(
            model,
            ids,
            mask,
            inputs["completion_ids"].size(1),
            batch_size=at_once,
            compute_entropy=entropy,
            **{name: value for name, value in inputs.items() if name in FORWARD},
        )
        return found[0], found[1]

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
