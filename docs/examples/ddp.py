"""The same under DistributedDataParallel: `torchrun --nproc-per-node 2 docs/examples/ddp.py`

Whatever the number of ranks, it prints what `micro_batches.py` does.
"""

import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Piece, Policy, join, rollouts

import fibration


def backward(op, policy, pieces: list[Piece], group, parameters=None):
    """Leave in `policy` the gradient of the loss over the pieces of all ranks together."""
    mine = join(pieces)
    index = op.index(offsets=mine.offsets, prompt_group=mine.prompt_group, domain=mine.domain, group=group)
    with torch.no_grad():
        log_probs = torch.cat([policy(piece) for piece in pieces])
    coef = op.coefficients(log_probs, mine.old_log_probs, mine.advantages, index, parameters)
    sizes = [len(p.token) for p in pieces]
    for number, (piece, c) in enumerate(zip(pieces, coef.values.split(sizes), strict=True), start=1):
        with nullcontext() if number == len(pieces) else policy.no_sync():
            (-(c * policy(piece))).sum().mul(index.gradient_scale).backward()
    return coef


def main():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    op, policy = fibration.compile(fibration.load("fiberpo_domain")), Policy()
    batch = rollouts(policy)
    policy = DistributedDataParallel(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=20)
    for update in range(4):
        coef = backward(op, policy, batch.split(ranks)[rank].split(12 // ranks), dist.group.WORLD)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            share = float(coef.metrics["token/clipped"])
            print(f"update {update}: J = {float(coef.objective):+.6f}, clipped {share:.2%}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    gc.collect()  # a DDP module is a cycle: one that lives on has threads of the group, which may abort as Python ends
    dist.destroy_process_group()
