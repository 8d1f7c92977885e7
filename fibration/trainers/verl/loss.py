"""The policy loss `fibration`: `-c·log π` added up over all tokens of all ranks, with coefficients for advantages.

Its gradient is that of the whole mini-batch, `-Σ c ∇log π`; its value, which verl logs as `pg_loss`, is `-J`. Entropy
and KL terms stay verl's, with the reduction `loss_agg_mode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from fibration.errors import TrainerError

NAME = "fibration"
HERE = "actor_rollout_ref.actor.policy_loss"
TARGET = "fibration.trainers.verl.FibrationPolicyLossConfig"


class Step:
    """A mini-batch between its coefficients and its backward passes, of one rank.

    `mask`: bool `[B, T]`. `objective`: J of the whole mini-batch. `ranks`: how many have a part of it. `scale`: what
    the engine multiplies every loss by before `backward`, and takes off gradients again; None leaves it unmeasured.
    """

    def __init__(self, mask: Tensor, objective: Tensor, ranks: int, scale: float | None) -> None:
        self.objective, self.ranks, self.scale = objective, ranks, scale
        self.rows: Tensor | None = None  # of the micro-batch at hand, int64 [b]
        self.log_probs = torch.zeros(mask.shape, device=mask.device)  # of pass 2, as far as it has come
        self.seen = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)
        self.measured = False

    def saw(self, log_prob: Tensor) -> float:
        """Keep a micro-batch's log-probs `[b, t]`, t ≤ T; returns its share of the rank's rows."""
        if self.rows is None or len(self.rows) != len(log_prob):
            raise TrainerError(
                f"a micro-batch of {len(log_prob)} rows, of which the worker does not know where they lie",
                required="micro-batches that the worker's own loss function sees first",
                remedy="leave the worker's loss function as verl sets it",
            )
        rows = self.rows.to(self.seen.device)
        if log_prob.dtype == torch.float64:
            self.log_probs = self.log_probs.double()
        self.log_probs[rows, : log_prob.shape[1]] = log_prob.detach().to(self.log_probs)
        self.seen[rows] = True
        return len(rows) / len(self.seen)

    def measure(self, gradient: Tensor) -> None:
        """What backward brings to the loss of a micro-batch: verl multiplied it by that."""
        self.measured, found = True, float(gradient)
        if self.scale is not None and abs(found / self.scale - 1) > 1e-6:
            raise TrainerError(
                f"the engine multiplies the policy loss by {found:g} before its backward pass",
                required=f"{self.scale:g}: a sum over tokens has no factor, or gradients are too large or too small",
                found=f"{found / self.scale:g} times that",
                remedy="actor.strategy=fsdp or fsdp2, with verl's own engine",
            )


_step: ContextVar[Step | None] = ContextVar("a mini-batch of which the coefficients are known", default=None)


@contextmanager
def opened(step: Step) -> Iterator[None]:
    """While its body runs, the policy loss of this thread is that of `step`."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def policy_loss(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """A micro-batch's share of `-J`, with the gradient `-c` towards its log-probs, for engines that average over ranks.

    `log_prob`: `[b, t]`, pass 2's. `advantages`: the coefficients, `[b, t]`. `response_mask`: `[b, t]`. The others are
    what verl calls policy losses with; they have done their work already. Raises TrainerError where advantages are no
    coefficients: in a worker that is not ours, in another engine, in validation.
    """
    step = _step.get()
    if step is None:
        raise TrainerError(
            "the policy loss 'fibration' is called with advantages that are no coefficients",
            required="the worker that computes them, which the config of the policy loss puts in place",
            remedy=f"set {HERE}._target_={TARGET}; trainers with an actor worker of their "
            "own (actor_worker_cls) derive it from fibration.trainers.verl.FibrationTrainingWorker",
        )
    from verl.trainer.ppo.core_algos import agg_loss

    ranks = config.global_batch_info["dp_size"]
    if ranks != step.ranks:
        raise TrainerError(
            f"gradients are averaged over {ranks} ranks, and the mini-batch is spread over {step.ranks}",
            required="a data-parallel group of all ranks with different rows, and of no others",
            remedy="actor.strategy=fsdp or fsdp2, with verl's own engine",
        )
    share = step.saw(log_prob)
    loss: Tensor = agg_loss(-advantages * log_prob, response_mask, "token-sum", dp_size=ranks)
    loss = loss - loss.detach() - share * step.objective.to(loss)
    if loss.requires_grad and step.scale is not None and not step.measured:
        loss.register_hook(step.measure)
    return loss, {}
