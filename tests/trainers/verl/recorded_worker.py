"""Records verl's own worker of an actor on CPUs: the inputs and results of each of its optimizer steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import on_cpu  # before anything of verl.workers
import torch
import torch.distributed as dist
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
OPTIONS = {
    "model.override_config": {"attn_implementation": "sdpa"},
    "model.enable_gradient_checkpointing": False,
    "model.use_remove_padding": False,
    "rollout.name": "vllm",
    "rollout.log_prob_micro_batch_size_per_gpu": 2,
    "rollout.log_prob_max_token_len_per_gpu": 512,
    "actor.strategy": "fsdp2",
    "actor.ppo_micro_batch_size_per_gpu": 2,
    "actor.fsdp_config.mixed_precision": FP32,
    "actor.fsdp_config.use_torch_compile": False,
    "actor.optim.lr": 0.002,
    "actor.optim.clip_grad": 1e9,  # gradients are looked at before they are clipped
    "actor.optim.total_training_steps": 10,
    "actor.policy_loss._target_": "fibration.trainers.verl.FibrationPolicyLossConfig",
    "actor.policy_loss.loss_mode": "fibration",
    "actor.policy_loss.hierarchy": "fiberpo_domain",
    "actor.policy_loss.backend": "torch",
}


def options(model: Path, changes: dict[str, Any]) -> DictConfig:
    """verl's own config with a user's options: those above and `changes`; None takes one away."""
    with initialize_config_dir(os.path.join(os.path.dirname(verl.__file__), "trainer", "config"), version_base=None):
        config = compose("ppo_trainer").actor_rollout_ref
    with open_dict(config):
        for key, value in ({"model.path": str(model)} | OPTIONS | changes).items():
            if value is None:
                owner, _, name = key.rpartition(".")
                OmegaConf.select(config, owner).pop(name, None)
            else:
                OmegaConf.update(config, key, value, force_add=True)
    return config


def dynamic(tokens: int) -> dict[str, Any]:
    """As many rows in a micro-batch as have so many tokens, in an order of verl's choosing."""
    return {
        "actor.use_dynamic_bsz": True,
        "rollout.log_prob_use_dynamic_bsz": True,
        "actor.ppo_max_token_len_per_gpu": tokens,
    }


@dataclass
class Step:
    """One call of `train_batch`."""

    rows: list[int]  # of every rank
    layout: list[list[int]]  # this rank's micro-batches of the pass that is trained with, rows by number
    passed: list[list[int]]  # the rows of each that the pass took
    before: list[int]  # on every rank, rows that a pass before took
    everywhere: list[list[int]]  # `passed` of every rank
    forwards: int  # over all of this rank's rows, before that pass
    weights: dict[str, Tensor]  # before the update, float64
    gradients: dict[str, Tensor]  # before they are clipped
    metrics: dict[str, float] = field(default_factory=dict)  # the hierarchy's
    kept: bool = False  # whether what was given has its advantages and its fields still


def rank() -> int:
    return dist.get_rank()


def everyone(mine: Any) -> list[Any]:
    given = [None] * dist.get_world_size()
    dist.all_gather_object(given, mine)
    return given


class Watched:
    """An `ActorRolloutRefWorker` of role `actor` after `init_model()`, whose steps are kept."""

    def __init__(self, model: Path, changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        self.config = options(model, changes)
        self.worker = ActorRolloutRefWorker(config=self.config, role="actor")
        with on_cpu.of(dtype):
            self.worker.init_model()
        self.actor, self.engine = self.worker.actor, self.worker.actor.engine
        self.steps: list[Step] = []
        self._rows: list[int] = []
        self._layouts: list[tuple[bool, list[list[int]], list[list[int]]]] = []
        self._wrap(self.actor, "train_batch", self._train_batch)
        self._wrap(self.engine, "optimizer_step", self._optimizer_step)
        self._wrap(self.engine, "forward_backward_batch", self._forward_backward)
        self._wrap(self.engine, "forward_step", self._forward_step)

    @staticmethod
    def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        inside = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: around(inside, *args, **kwargs))

    def _train_batch(self, inside: Callable[..., Any], data: TensorDict) -> Any:
        self._rows = data["row"].tolist()
        self._layouts = []
        advantages, fields = data["advantages"], set(data.keys())
        output = inside(data)
        self.steps[-1].kept = data["advantages"] is advantages and fields - {"fibration_rows"} <= set(data.keys())
        if output is not None:  # of ranks that share rows, the first has it
            said = tu.get(output, "metrics")
            self.steps[-1].metrics = {key: value for key, value in said.items() if key.startswith("fibration/")}
        return output

    def _forward_backward(self, inside: Callable[..., Any], *args: Any, forward_only: bool = False, **more: Any) -> Any:
        layout: list[list[int]] = []

        own = transformer_impl.prepare_micro_batches

        def packed(*given: Any, **named: Any) -> Any:
            micro_batches, order = own(*given, **named)
            layout.extend(one["row"].tolist() for one in micro_batches)
            return micro_batches, order

        self._layouts.append((forward_only, layout, []))
        with patch.object(transformer_impl, "prepare_micro_batches", packed):
            return inside(*args, forward_only=forward_only, **more)

    def _forward_step(self, inside: Callable[..., Any], micro_batch: TensorDict, **more: Any) -> Any:
        self._layouts[-1][2].append(micro_batch["row"].tolist())
        return inside(micro_batch, **more)

    def _optimizer_step(self, inside: Callable[..., Any]) -> Any:
        named = dict(self.engine.module.named_parameters())
        before, (trained, layout, passed) = self._layouts[:-1], self._layouts[-1]
        assert not trained and all(forward_only for forward_only, *_ in before)
        self.steps.append(
            Step(
                rows=[number for numbers in everyone(self._rows) for number in numbers],
                layout=layout,
                passed=passed,
                before=[n for mine in everyone([m for *_, ms in before for m in ms]) for m in mine for n in m],
                everywhere=[m for mine in everyone(passed) for m in mine],
                forwards=len(before),
                weights={name: whole(p).double() for name, p in named.items()},
                gradients={name: whole(p.grad) for name, p in named.items()},
            )
        )
        return inside()

    def train(self, data: TensorDict, **said: Any) -> dict[str, Any]:
        """`update_actor`, with what verl's trainer says beside the data; `mini_batch_size` over all ranks."""
        size = said.setdefault("mini_batch_size", len(data) * dist.get_world_size())
        said = {"temperature": 1.0, "global_batch_size": size, "epochs": 1, "seed": 1, "compute_loss": True} | said
        said = {"calculate_entropy": bool(self.config.actor.entropy_coeff)} | said
        tu.assign_non_tensor(data, dataloader_kwargs={"shuffle": said.pop("shuffle", False)}, **said)
        output = self.worker.update_actor(data)
        return {} if output is None else tu.get(output, "metrics")


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
