"""Audits the first steps of verl's actor, right ones and ones with a planted mistake: `audited.py FOLDER [NAME...]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cases
import recorded_worker  # before anything of verl.workers
import torch.distributed as dist
from cases import CASES, FIVE, MISTAKES, Case
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.engine_workers import ActorRolloutRefWorker
from worker import tried

from fibration.trainers.verl import audited_worker

PLAIN: dict[str, Any] = {
    "actor.policy_loss._target_": "verl.workers.config.PolicyLossConfig",
    "actor.policy_loss.loss_mode": "vanilla",
    **dict.fromkeys(f"actor.policy_loss.{key}" for key in ("hierarchy", "backend", "parameters")),
    "actor.clip_ratio_c": 1e9,
    "actor.clip_ratio_low": 0.1,
    "actor.clip_ratio_high": 0.2,
}
BOUNDS = {"epsilon_low": 0.1, "epsilon_high": 0.2}


def train(data: Any, case: Case, worker: type, how: Callable[..., Any] | None = None) -> dict[str, Any]:
    recorded_worker.options(data.model, {})
    with patch.object(ActorRolloutRefWorker, "actor_worker_cls", worker):
        found = data.watched(case)
        planted = nullcontext() if how is None else contextmanager(partial(how, found, data, case.terms))()
        with planted:
            data.train(found, case)
    audits = found.actor.audits
    return {"ok": [a.ok for a in audits], "factor": [a.factor for a in audits], "text": [str(a) for a in audits]}


def theirs(data: Any, like: str, how: Any = None, **changes: Any) -> dict[str, Any]:
    """verl's own loss, in two mini-batches."""
    case = Case(FIVE | PLAIN | changes, said={"mini_batch_size": 10})
    return train(data, case, audited_worker(like, parameters=BOUNDS, raises=False), how)


def ours(data: Any, case: Case, how: Any = None) -> dict[str, Any]:
    if how is None:
        return train(data, case, audited_worker(raises=False))
    like = case.changes.get("actor.policy_loss.hierarchy", "fiberpo_domain")
    sources = {name: case.changes.get(f"actor.policy_loss.{name}") for name in ("attributes", "policies")}
    return train(data, case, audited_worker(like, parameters=data.parameters(case), raises=False, **sources), how)


def in_verls_loss(change: Callable[..., Any]) -> Any:
    """`change(loss, given)` in the place of verl's policy loss."""

    def planted(found: Any, data: Any, terms: Any) -> Any:
        own = POLICY_LOSS_REGISTRY["vanilla"]

        def loss(**given: Any) -> Any:
            return change(own, given)

        with patch.dict(POLICY_LOSS_REGISTRY, {"vanilla": loss}):
            yield

    return planted


def scaled(by: float) -> Any:
    def change(loss: Any, given: Any) -> Any:
        value, metrics = loss(**given)
        return value * by, metrics

    return in_verls_loss(change)


def other_rows(loss: Any, given: Any) -> Any:
    return loss(**{**given, "advantages": given["advantages"].roll(1, 0)})


# Mistakes in what the audit takes from our worker: how it lays out a mini-batch, and the advantages that it makes.
SHARED = (
    "weights behind the loss", "labels of other rows", "attributes of other rows", "advantages of verl's",
    "advantages of a mini-batch", "a teacher's log-probs of other tokens",
)  # fmt: skip
MEAN = {"actor.loss_agg_mode": "seq-mean-token-mean"}
RIGHT: dict[str, Any] = {
    "verl token-mean": lambda data: theirs(data, "dapo"),
    "ours": lambda data: ours(data, CASES["fixed, padded"]),
    "ours, nested": lambda data: ours(data, CASES["weights, dynamic, nested"]),
    "ours, a teacher": lambda data: ours(data, CASES["a teacher and an attribute, dynamic, nested, padding rows"]),
}
WRONG: dict[str, Any] = {
    "another normaliser": lambda data: theirs(data, "grpo"),
    "a row without tokens counts": lambda data: theirs(data, "grpo", **MEAN),
    "scaled": lambda data: theirs(data, "dapo", scaled(5.0)),
    "advantages of other rows": lambda data: theirs(data, "dapo", in_verls_loss(other_rows)),
}
WRONG |= {
    f"planted: {name}": (lambda data, how=how, case=case: ours(data, case, how))
    for name, (how, case, ranks) in MISTAKES.items()
    if ranks <= 1 and name not in SHARED
}


def main(folder: Path, chosen: list[str]) -> None:
    data = cases.Rollouts.of_ranks(folder)
    found = {n: tried(partial(work, data)) for n, work in (RIGHT | WRONG).items() if not chosen or n in chosen}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
