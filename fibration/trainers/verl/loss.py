"""The policy loss `fibration`: `-c·r` added up over the tokens of all ranks, with coefficients for advantages, r = 1.

Its gradient is that of the whole mini-batch, `-Σ c ∇log π`; its value, which verl logs as `pg_loss`, is `-J`. Entropy
and KL terms stay verl's, with the reduction `loss_agg_mode`.
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
    """A mini-batch between its coefficients and its backward passes, of one rank.

    `objective`: J of the whole mini-batch, of which `ranks` have a part. `log_probs`: `[B, T]`, pass 2's, as far as it
    has come. `watched`: what `Scale.expects` makes of the coefficients of a micro-batch and its mask.
    """

    objective: Tensor
    ranks: int
    log_probs: Tensor
    watched: Callable[[Tensor, Tensor], Tensor]
    rows: Tensor | None = None  # of the micro-batch at hand, int64 [b]
    seen: set[int] = field(default_factory=set)

    def saw(self, log_prob: Tensor) -> float:
        """Keep a micro-batch's log-probs `[b, t]`, t ≤ T; returns its share of the rank's rows."""
        if self.rows is None or len(self.rows) != len(log_prob):
            raise TrainerError(
                f"a micro-batch of {len(log_prob)} rows, of which the worker does not know where they lie",
                required="micro-batches that the worker's own loss function sees first",
                remedy="leave the worker's loss function as verl sets it",
            )
        rows = self.rows.to(self.log_probs.device)
        self.log_probs[rows, : log_prob.shape[1]] = log_prob.detach().to(self.log_probs)
        self.seen.update(self.rows.tolist())
        return len(rows) / len(self.log_probs)


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
    ratio = 1 + log_prob - log_prob.detach()  # and not its exp, whose derivative is NaN where a masked token has -inf
    loss: Tensor = agg_loss(-step.watched(advantages, response_mask) * ratio, response_mask, "token-sum", dp_size=ranks)
    return loss - loss.detach() - share * step.objective.to(loss), {}
