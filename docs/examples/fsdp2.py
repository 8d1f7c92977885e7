"""The same under FSDP2: `torchrun --nproc-per-node 2 docs/examples/fsdp2.py`

Every forward gathers parameters from all ranks, so all run as many: the same number of pieces each, empty ones too.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from toy import Piece, Policy, join, rollouts

import fibration


def shard(policy, mesh):
    """Parameters, gradients and the optimizer's state lie in parts over the ranks, layer by layer."""
    for layer in policy.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(policy, mesh=mesh)


def backward(op, policy, pieces: list[Piece], group, parameters=None):
    """Leave in `policy` the gradient of the loss over the pieces of all ranks together."""
    mine = join(pieces)
    index = op.index(offsets=mine.offsets, prompt_group=mine.prompt_group, domain=mine.domain, group=group)
    with torch.no_grad():
        log_probs = torch.cat([policy(piece) for piece in pieces])
    coef = op.coefficients(log_probs, mine.old_log_probs, mine.advantages, index, parameters)
    sizes = [len(p.token) for p in pieces]
    for number, (piece, c) in enumerate(zip(pieces, coef.values.split(sizes), strict=True), start=1):
        policy.set_requires_gradient_sync(number == len(pieces))
        (-(c * policy(piece))).sum().mul(index.gradient_scale).backward()
    return coef


def main():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    op, policy = fibration.compile(fibration.load("fiberpo_domain")), Policy()
    batch = rollouts(policy)
    policy = shard(policy, init_device_mesh("cpu", (ranks,)))
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
    dist.destroy_process_group()
