"""The policy loss `fibration`: the sum of `-c·r` over the tokens of all ranks, with coefficients as advantages and r =
1.

Its gradient is that of the whole mini-batch, `-Σ c ∇log π`. Its value, which verl logs as `pg_loss`, is `-J`. Entropy
and KL terms are verl's, with the reduction `loss_agg_mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fibration.errors import TrainerError

NAME = "fibration"
HERE = "actor_rollout_ref.actor.policy_loss"
TARGET = "fibration.trainers.verl.FibrationPolicyLossConfig"


@dataclass
class Step:
    """A mini-batch of one rank, between its coefficients and its backward passes.

    `objective`: J of the whole mini-batch, shared by `ranks` ranks. `log_probs`: `[B, T]`, pass 2's so far. `watched`:
    `Scale.expects` for the coefficients and the mask of a micro-batch.
    """

    objective: Tensor
    ranks: int
    log_probs: Tensor
    watched: Callable[[Tensor, Tensor], Tensor]
    rows: Tensor | None = None  # of the current micro-batch, int64 [b]
    seen: set[int] = field(default_factory=set)

    def saw(self, log_prob: Tensor) -> float:
        """Store a micro-batch's log-probs `[b, t]`, t ≤ T; returns its share of the rank's rows."""
        if self.rows is None or len(self.rows) != len(log_prob):
            raise TrainerError(
                f"a micro-batch of {len(log_prob)} rows whose places in the mini-batch are not known",
                required="micro-batches that the worker's own loss function sees first",
                remedy="leave the worker's loss function as verl sets it",
            )
        rows = self.rows.to(self.log_probs.device)
        self.log_probs[rows, : log_prob.shape[1]] = log_prob.detach().to(self.log_probs)
        self.seen.update(self.rows.tolist())
        return len(rows) / len(self.log_probs)


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
    """A micro-batch's share of `-J`, with the gradient `-c` for its log-probs, for engines that average over ranks.

    `log_prob`: `[b, t]`, pass 2's. `advantages`: the coefficients, `[b, t]`. `response_mask`: `[b, t]`. verl passes
    the other arguments, which are not read. Raises TrainerError if advantages are not coefficients: in another worker,
    in another engine, or in validation.
    """
    step = _step.get()
    if step is None:
        raise TrainerError(
            "the policy loss 'fibration' got advantages that are not coefficients",
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
    share = step.saw(log_prob)
    ratio = 1 + log_prob - log_prob.detach()  # exp would have a NaN derivative where a masked token has -inf
    loss: Tensor = agg_loss(-step.watched(advantages, response_mask) * ratio, response_mask, "token-sum", dp_size=ranks)
    return loss - loss.detach() - share * step.objective.to(loss), {}
