"""One process beside a group of them, over 20 updates: `torchrun --nproc-per-node 2 docs/examples/twins.py`

The same batches in 12 micro-batches, and on two ranks in 3 of twice the size: how far their weights come apart, and how
many elements are in another regime of their gate, after an update and in one of the two.
"""

import gc
from dataclasses import dataclass

import ddp
import micro_batches
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Policy, rollouts

import fibration

LEVELS = ("domain", "prompt_group", "trajectory")
BUDGETS = {f"C_{level}": 0.01 for level in LEVELS}  # small: elements of every level pass, are rolled back and zeroed


@dataclass
class Twins:
    """What came of them: `apart` is the largest difference of their weights, relative to a layer's largest one."""

    apart: float = 0.0
    elements: int = 0  # looked at after each update
    changed: int = 0  # of these, in another regime than before it
    differ: int = 0  # and in another regime with the one than with the other
    met: tuple[int, ...] = (0, 0, 0)  # how many in each regime


@torch.no_grad()
def regimes(op, policy, piece, index):
    """0 where a gate returned what it read, 1 where it returned 0, 2 between; of all coarser elements of the batch."""
    levels = op.levels(policy(piece) - piece.old_log_probs, index, BUDGETS)
    pairs = [(levels.residual[key], levels.gated[key]) for key in levels.gated if key[0] in LEVELS]
    return torch.cat([torch.where(gave == read, 0, torch.where(gave == 0, 1, 2)) for read, gave in pairs])


def train(updates=20, dtype=torch.float64):
    """Both, on the same batches, each sampled for four updates."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    op = fibration.compile(fibration.load("fiberpo_domain"))
    one, many = Policy().to(dtype), DistributedDataParallel(Policy().to(dtype))
    optimizers = [torch.optim.SGD(policy.parameters(), lr=4) for policy in (one, many)]
    found = Twins()
    for update in range(updates):
        if update % 4 == 0:
            batch = rollouts(one, seed=update)
            mine = batch.split(ranks)[rank]
            whole = op.index(offsets=batch.offsets, prompt_group=batch.prompt_group, domain=batch.domain)
            spread = op.index(offsets=mine.offsets, prompt_group=mine.prompt_group, domain=mine.domain, group=group)
        before = regimes(op, one, batch, whole)
        micro_batches.backward(op, one, batch.split(12), BUDGETS)
        ddp.backward(op, many, mine.split(6 // ranks), group, BUDGETS)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weights = zip(one.state_dict().values(), many.module.state_dict().values(), strict=True)
        found.apart = max(found.apart, *(float((p - q).abs().max() / p.abs().max()) for p, q in weights))
        now, theirs = regimes(op, one, batch, whole), regimes(op, many, mine, spread)
        found.elements += len(now)
        found.changed += int((now != before).sum())
        found.differ += int((now != theirs).sum())
        found.met = tuple(n + int((now == k).sum()) for k, n in enumerate(found.met))
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = train()
    if dist.get_rank() == 0:
        print(f"weights come apart by {found.apart:.1e} at most, in 20 updates")
        print(f"of {found.elements} elements {found.changed} change their regime, {found.differ} differ in it")
    gc.collect()  # a DDP module is a cycle: one that lives on has threads of the group, which may abort as Python ends
    dist.destroy_process_group()
