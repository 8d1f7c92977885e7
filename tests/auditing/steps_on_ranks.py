"""`audit_step` under DDP and FSDP2, right and with mistakes. Run it under torchrun: `steps_on_ranks.py FOLDER`."""

from __future__ import annotations

import gc
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group, which it would keep
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training_steps import OPERATOR, Policy, data, policy

from fibration import audit_step


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}

    def audited(name: str, model: Policy, wrapped: Any, by: float, synced: bool = True) -> None:
        d = data(policy())
        mine = torch.arange(len(d.ids)).chunk(ranks)[rank]
        ids, old, advantages, mask = (t[mine] for t in (d.ids, d.old, d.advantages, d.mask))
        index = OPERATOR.index(mask=mask, group=dist.group.WORLD)

        def loss() -> Any:
            return OPERATOR.loss(wrapped(ids), old, advantages, index).loss

        def step() -> None:
            pieces = torch.arange(len(ids)).chunk(2)
            for n, rows in enumerate(pieces):
                waits = hasattr(wrapped, "no_sync") and (not synced or n + 1 < len(pieces))
                with wrapped.no_sync() if waits else nullcontext():
                    part = OPERATOR.loss(wrapped(ids[rows]), old[rows], advantages[rows], index.micro(rows)).loss
                    (part * by).backward()

        audit = audit_step(wrapped, step, loss, group=dist.group.WORLD)
        found[name] = {"ok": audit.ok, "factor": audit.factor, "text": str(audit), "names": list(audit.factors)}

    for name, by, synced in (("right", ranks, True), ("no ranks", 1, True), ("not averaged", ranks, False)):
        model = policy()
        audited(f"ddp, {name}", model, DistributedDataParallel(model), by, synced)
    for name, by in (("right", ranks), ("no ranks", 1)):
        model = policy()
        audited(f"fsdp2, {name}", model, fully_shard(model), by)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    del model
    gc.collect()  # DDP modules are cycles, and have threads of the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
