"""Optimizer steps of verl's worker with Ulysses sequence parallelism, on CPUs: `sequence_parallel.py FOLDER` in torchrun.

Two ranks share each row, and every two ranks have rows of their own. verl slices the rows, exchanges heads, gathers
log-probs and averages gradients by its own code. Two parts need a GPU and are replaced: FlashAttention by a dense causal
attention within rows, and `all_to_all` by `all_gather`, because gloo has no `all_to_all` of lists.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cases  # before anything of verl.workers
import rollouts
import torch
import torch.distributed as dist
from cases import FIVE, GRPO, GSPO, OF_REWARDS, PACKED, Case, alone, dynamic
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from verl.models.transformers import monkey_patch
from verl.utils import ulysses

NAME, SHARING = "ulysses_on_cpu", 2
OPTIONS = {
    "model.override_config": {"attn_implementation": NAME},
    "actor.fsdp_config.ulysses_sequence_parallel_size": SHARING,
}
CASES = {
    "row-local": alone(GSPO, FIVE, "nested"),
    "row-local, dynamic, equal rewards": alone(GSPO, dynamic(32), "nested", dead=True),
    "row-local, dynamic, KL and entropy": alone(GRPO, dynamic(32), "nested"),
    "coupled": Case(FIVE, "nested"),
    "coupled, dynamic": Case(dynamic(32), "nested"),
    "coupled, rewards and a reference": Case(FIVE | OF_REWARDS, terms=rollouts.Terms(hierarchy=rollouts.REWARDS)),
}
COUPLED = [name for name in CASES if name.startswith("coupled")]


def attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, position_ids: Tensor, **more: Any) -> Tensor:
    """Causal attention of packed rows: `[1, s, heads, d]`. A row begins at position 0."""
    row = (position_ids[0] == 0).cumsum(0)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    sees = (row[:, None] == row).tril()
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=more["softmax_scale"])
    return found.transpose(1, 2)


def in_a_layer(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    """What a layer calls in place of transformers' FlashAttention, into which verl patches the same function."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    length, at = query.shape[2], more["position_ids"]
    found = monkey_patch._ulysses_flash_attention_forward(
        q, k, v, attention_mask, length, position_ids=at, softmax_scale=scaling
    )
    return found, None


def all_to_all(outputs: list[Tensor], inputs: list[Tensor], group: Any = None, async_op: bool = False) -> None:
    mine = torch.stack(inputs)
    parts = [torch.empty_like(mine) for _ in outputs]
    dist.all_gather(parts, mine, group=group)
    for output, part in zip(outputs, parts, strict=True):
        output.copy_(part[dist.get_rank(group)])


@contextmanager
def on_cpu() -> Iterator[None]:
    AttentionInterface.register(NAME, in_a_layer)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    kernel = patch.object(monkey_patch, "_flash_attention_forward", attention)
    with kernel, patch.object(ulysses.dist, "all_to_all", all_to_all):
        yield


def trained(data: cases.Rollouts, case: Case, group: Any = None) -> dict[str, Any]:
    """The first optimizer step, beside what is right. `group`: in place of the engine's data-parallel group."""
    case = replace(case, changes=case.changes | PACKED | OPTIONS)
    found = data.watched(case)
    if group is not None:
        found.engine.get_data_parallel_group = lambda: group
    each, rows = dist.get_world_size() // SHARING, data.carried(case)
    mine = rows[found.engine.get_data_parallel_rank() :: each]
    carried = rollouts.carried(mine, case.layout, case.dtype, case.terms.weighted)
    found.train(carried, mini_batch_size=len(rows))
    (step,) = found.steps
    right = rollouts.wanted(step.weights, data.given(case), data.parameters(case), case.terms)
    return {
        "distance": rollouts.distance(step.gradients, right.gradients),
        "objective": step.metrics.get("fibration/objective"),
        "wanted": right.objective,
        "layout": step.layout,
        "passed": step.passed,
        "forwards": step.forwards,
        "shared": ulysses_was_used(found),
    }


def ulysses_was_used(found: Any) -> bool:
    return bool(found.engine.use_ulysses_sp) and dist.get_world_size(found.engine.ulysses_parallel_group) == SHARING


def refused(data: cases.Rollouts, **more: Any) -> str:
    """The error with every rank in the group of the rows, so that each row counts twice."""
    case = CASES["row-local"]
    try:
        trained(data, replace(case, changes=case.changes | {cases.LOSS + "trajectory": []}), **more)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path) -> None:
    data = cases.Rollouts.of_ranks(folder)
    with on_cpu():
        found: dict[str, Any] = {name: trained(data, case) for name, case in CASES.items()}
        found["every rank"] = refused(data, group=dist.group.WORLD)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found, default=float))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
