"""The policy loss `fibration`: the sum of `-c·r` over the tokens of all ranks, with coefficients as advantages and
r = 1.

Its gradient is that of the whole mini-batch, `-Σ c ∇log π`. Its value, which verl logs as `pg_loss`, is `-J`. Entropy
and KL terms are verl's, with the reduction `loss_agg_mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fibration.errors import TrainerError
from fibration.trainers.micro_batches import MicroBatches

NAME = "fibration"
HERE = "actor_rollout_ref.actor.policy_loss"
TARGET = "fibration.trainers.verl.FibrationPolicyLossConfig"


@dataclass
class Step:
    """A mini-batch of one rank, while it is trained on.

    `ranks`: how many share the mini-batch. `watched`: `Scale.expects` for the coefficients and the mask of a
    micro-batch. `finish`: called once all micro-batches have their coefficients, before the last backward pass.
    """

    batches: MicroBatches
    ranks: int
    watched: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[], None]
    rows: Tensor | None = None  # of the current micro-batch, int64 [b]

    def coefficients(self, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients `[b, t]` of a micro-batch with these log-probs, t ≤ T, and its part of J."""
        if self.rows is None or len(self.rows) != len(log_prob):
            raise TrainerError(
                f"a micro-batch of {len(log_prob)} rows whose places in the mini-batch are not known",
                required="micro-batches that the worker's own loss function sees first",
                remedy="leave the worker's loss function as verl sets it",
            )
        return self.batches.coefficients(log_prob, self.rows)


_step: ContextVar[Step | None] = ContextVar("the mini-batch that is trained on", default=None)


@contextmanager
def opened(step: Step) -> Iterator[None]:
    """While the body runs, the policy loss of this thread belongs to `step`."""
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
    """A micro-batch's part of `-J`, with the gradient `-c` for its log-probs, for engines that average over ranks.

    `log_prob`: `[b, t]`, with a graph. `response_mask`: `[b, t]`. verl passes the other arguments, which are not read:
    the worker has those of the whole mini-batch. Raises TrainerError in another worker, in another engine, or in
    validation.
    """
    step = _step.get()
    if step is None:
        raise TrainerError(
            "the policy loss 'fibration' has no mini-batch whose coefficients it could take",
            required="the worker that computes them, which the config of the policy loss installs",
            remedy=f"set {HERE}._target_={TARGET}; trainers with their own actor worker "
            "(actor_worker_cls) derive it from fibration.trainers.verl.FibrationTrainingWorker",
        )
    from verl.trainer.ppo.core_algos import agg_loss

    ranks = config.global_batch_info["dp_size"]
    if ranks != step.ranks:
        raise TrainerError(
            f"gradients are averaged over {ranks} ranks, and the mini-batch is on {step.ranks}",
            required="a data-parallel group of exactly the ranks with different rows",
            remedy="actor.strategy=fsdp or fsdp2, with verl's own engine",
        )
    coefficients, objective = step.coefficients(log_prob)
    if step.batches.done:
        step.finish()
    ratio = 1 + log_prob - log_prob.detach()  # exp would have a NaN derivative where a masked token has -inf
    watched = step.watched(coefficients, response_mask)
    loss: Tensor = agg_loss(-watched * ratio, response_mask, "token-sum", dp_size=ranks)
    return loss - loss.detach() - objective.to(loss), {}
