"""Audits the first steps of trainers, right ones and ones with a planted mistake: `audited.py FOLDER [NAME...]`.

One run has all of them, under torchrun. Each rank writes what it found to `FOLDER/RANK.json`.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from cases import CASES
from planted_mistakes import PLANTS
from recorded_training import dataset, distance, everyone, model, rank, reward, tokenizer
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from worker import RANKS, attempt, make, precise

from fibration.trainers.trl import audit_first_steps

CONFIG = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "steps_per_generation": 3,
    "num_iterations": 2,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 2,
    "learning_rate": 0.01,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0,
    "bf16": False,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "ddp_timeout": 60,
}


def theirs(folder: Path, **config: Any) -> Any:
    """TRL's own trainer, with its own sampling."""
    args = GRPOConfig(str(folder), **{**CONFIG, **config})
    torch.manual_seed(rank())
    return GRPOTrainer(model(torch.float32), reward, args, train_dataset=dataset(24), processing_class=tokenizer())


def audited(trainer: Any, *given: Any, **more: Any) -> dict[str, Any]:
    audits = audit_first_steps(trainer, *given, raises=False, **more)
    try:
        trainer.train()
    except RuntimeError:  # DDP raises one step after a parameter has no gradient
        if not audits.found or audits.found[0].ok:
            raise
    return {
        "ok": [a.ok for a in audits.found],
        "factor": [a.factor for a in audits.found],
        "passes": [a.passes for a in audits.found],
        "text": [str(a) for a in audits.found],
    }


def of_trl(folder: Path, like: str, how: Any = nullcontext, parameters: Any = None, **config: Any) -> dict[str, Any]:
    with how():
        return audited(theirs(folder, **config), like, parameters=parameters)


def ours(folder: Path, case: str, how: Any = nullcontext) -> dict[str, Any]:
    with patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", precise), how():
        return audited(make(CASES[case], folder))


# ------------------------------------------------------------ mistakes in TRL's own trainer


def around(change: Callable[[Callable[..., Tensor], Any, Any, Any], Tensor]) -> Callable[[], Any]:
    """`change(loss, trainer, model, inputs)` in the place of TRL's loss, in training."""

    @contextmanager
    def planted() -> Iterator[None]:
        own = GRPOTrainer._compute_loss

        def spoilt(self: Any, policy: Any, inputs: Any) -> Tensor:
            return change(partial(own, self), self, policy, inputs)

        with patch.object(GRPOTrainer, "_compute_loss", spoilt):
            yield

    return planted


def first_left_out(loss: Any, trainer: Any, policy: Any, inputs: Any) -> Tensor:
    return loss(policy, inputs) * (trainer._step % 3 != 0)


def other_rows(loss: Any, trainer: Any, policy: Any, inputs: Any) -> Tensor:
    return loss(policy, {**inputs, "advantages": inputs["advantages"].roll(1)})


def overwritten(loss: Any, trainer: Any, policy: Any, inputs: Any) -> Tensor:
    policy.zero_grad()
    return loss(policy, inputs)


def headless(loss: Any, trainer: Any, policy: Any, inputs: Any) -> Tensor:
    head = trainer.accelerator.unwrap_model(policy).lm_head.weight
    head.requires_grad_(False)
    value = loss(policy, inputs)
    head.requires_grad_(True)
    return value


@contextmanager
def unsynced() -> Iterator[None]:
    """No backward pass averages over ranks."""
    own = GRPOTrainer.training_step

    def step(self: Any, policy: Any, *given: Any, **more: Any) -> Tensor:
        with policy.no_sync():
            return own(self, policy, *given, **more)

    with patch.object(GRPOTrainer, "training_step", step):
        yield


def weights(folder: Path) -> dict[str, Any]:
    """How far weights of a trainer with audits are from those of one without."""
    found = []
    for audits in (True, False):
        trainer = theirs(folder)
        if audits:
            audit_first_steps(trainer, "dapo", parameters={"epsilon_high": 0.2})
        trainer.train()
        found.append([p.detach() for p in trainer.accelerator.unwrap_model(trainer.model).parameters()])
    return {"apart": distance(*found), "moved": distance(found[0], list(model(torch.float32).parameters()))}


GRPO, DAPO = {"loss_type": "grpo"}, {"loss_type": "dapo"}
RIGHT = {
    "trl dapo": partial(of_trl, like="dapo", **DAPO, parameters={"epsilon_high": 0.2}),
    "trl grpo": partial(of_trl, like="grpo", **GRPO),
    "trl grpo, clipped": partial(of_trl, like="grpo", **GRPO, max_grad_norm=0.05),
    "trl gspo": partial(
        of_trl, like="gspo", **GRPO, importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4
    ),
    "ours": partial(ours, case="two iterations"),
    "ours, weights per token": partial(ours, case="weights per token"),
    "ours, rewards": partial(ours, case="rewards and a reference model"),
    "ours, attributes": partial(ours, case="attributes"),
    "ours, a teacher": partial(ours, case="a teacher"),
}
WRONG = {
    "trl bnpo": partial(of_trl, like="dapo", loss_type="bnpo", parameters={"epsilon_high": 0.2}),
    "trl dr_grpo": partial(of_trl, like="grpo", loss_type="dr_grpo"),
    "a micro-batch left out": partial(of_trl, like="grpo", how=around(first_left_out), **GRPO),
    "advantages of other rows": partial(of_trl, like="grpo", how=around(other_rows), **GRPO),
    "no division": partial(of_trl, like="grpo", how=around(lambda loss, t, p, i: loss(p, i) * 3), **GRPO),
    "a division too many": partial(of_trl, like="grpo", how=around(lambda loss, t, p, i: loss(p, i) / 3), **GRPO),
    "overwritten": partial(of_trl, like="grpo", how=around(overwritten), **GRPO),
    "a parameter without gradient": partial(of_trl, like="grpo", how=around(headless), **GRPO),
}
WRONG |= {
    f"planted: {name}": partial(ours, case=next(c for c, case in CASES.items() if case == plant.into), how=plant.how)
    for name, plant in PLANTS.items()
    if RANKS in plant.ranks and plant.into in CASES.values()
}
if RANKS == 2:
    WRONG |= {"no average over ranks": partial(of_trl, like="grpo", how=unsynced, **GRPO)}
ALONE = {"weights": weights}


def main() -> None:
    torch.set_num_threads(1)
    folder, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    found: dict[str, Any] = {}
    for number, (name, work) in enumerate((RIGHT | WRONG | ALONE).items()):
        if not chosen or name in chosen:
            found[name] = attempt(partial(work, folder / str(number)))
            (folder / f"{rank()}.json").write_text(json.dumps(found))
    everyone(None)
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
