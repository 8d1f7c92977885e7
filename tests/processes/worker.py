"""Runs all cases of `test_processes.py` in one process of a group, under torchrun: `worker.py FOLDER`.

One run has all cases, because a process takes seconds to start. Each rank writes its results to `FOLDER/RANK.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import example_loops
import support
import torch
import torch.distributed as dist
from example_loops import budgets, distance, every_regime, example, gradients, off_policy, operator, policy, wanted
from thorough import ALL
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

import fibration
from fibration import FibrationError, token_mean

DTYPES = (torch.float64, torch.float32) if ALL else (torch.float64,)


def ddp(model: Any) -> Any:
    return DistributedDataParallel(model)


def fsdp2(model: Any) -> Any:
    return example("fsdp2").shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def distances() -> dict[str, float]:
    """How far the gradients are that the examples leave, in all their micro-batches together, before any clipping."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for dtype in DTYPES:
        batch = off_policy(dtype)[1]
        shares = {"": batch.split(ranks), ", rank 0 has nothing": [batch.take([]), *batch.split(max(ranks - 1, 1))]}
        if ranks == 1:
            del shares[", rank 0 has nothing"]
        for wrap in (ddp, fsdp2):
            for how, parts in shares.items():
                model = wrap(policy(dtype))
                pieces = parts[rank].split(12 // ranks)
                coef = example(wrap.__name__).backward(operator(), model, pieces, dist.group.WORLD, budgets(dtype))
                every_regime(coef.metrics)
                name = f"{wrap.__name__}, {str(dtype).removeprefix('torch.')}{how}"
                found[name] = distance(gradients(model), wanted(dtype))
    return found


class LanguageModel(nn.Module):
    """Returns hidden states `[b, t, 4]`; a head of 17 words, whose weight may be that of the embedding."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.mix, self.head = nn.Embedding(17, 4), nn.Linear(4, 4), nn.Linear(4, 17, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.double()

    def forward(self, text: Tensor) -> Tensor:
        return torch.tanh(self.mix(self.embedding(text)))


def whole(weight: Any) -> Tensor:
    """The head's weight, as `docs/how-to/head.md` passes it."""
    return weight.full_tensor(grad_placements=[Partial("avg")]) if isinstance(weight, DTensor) else weight


def heads() -> dict[str, float]:
    """How far the gradients of `fibration.head.loss` are from those of one process on the whole batch."""
    rank, ranks, rows, found = dist.get_rank(), dist.get_world_size(), 12, {}
    draw = torch.Generator().manual_seed(5)
    text, mask = torch.randint(17, (rows, 6), generator=draw), torch.rand(rows, 5, generator=draw) > 0.3
    advantages = torch.randn(rows, generator=draw, dtype=torch.float64)
    old = -1 - 4 * torch.rand(rows, 5, generator=draw, dtype=torch.float64)
    mine = list(range(rank, rows, ranks))
    mesh = init_device_mesh("cpu", (ranks,))

    def backward(op: Any, model: Any, at: list[int], group: Any = None, first: bool = False) -> Any:
        """`first`: the weight is taken before the trunk has run, which gathers the root's parameters."""
        labels = {"prompt_group": [row // 2 % 6 for row in at], "domain": [row // 2 % 2 for row in at]}
        labels = labels if op.hierarchy.name == "fiberpo_domain" else {}
        index = op.index(mask=mask[at], **labels, **({} if group is None else {"group": group}))
        weight = whole(getattr(model, "module", model).head.weight) if first else None
        hidden = model(text[at, :-1])
        weight = whole(getattr(model, "module", model).head.weight) if weight is None else weight
        result = fibration.head.loss(op, hidden, weight, text[at, 1:], old[at], advantages[at], index)
        (result.loss * index.gradient_scale).backward()
        return result

    for name in ("gspo", "fiberpo_domain"):  # row-local, and one that couples rows of several ranks
        op = support.operator(support.spec(name), "torch")
        for tied in (False, True):
            one = LanguageModel(tied)
            metrics = backward(op, one, list(range(rows))).metrics
            assert 0 < float(metrics["trajectory/limited" if name == "gspo" else "token/+/limited"]) < 1
            for wrap in ("ddp", "root", "root, before", "head alone"):
                if tied and wrap == "head alone":  # FSDP2 shards a shared weight in one place
                    continue
                model: Any = LanguageModel(tied)
                if wrap == "head alone":
                    fully_shard(model.head, mesh=mesh)
                model = ddp(model) if wrap == "ddp" else fully_shard(model, mesh=mesh)
                backward(op, model, mine, dist.group.WORLD, first="before" in wrap)
                found[f"{name}, {wrap}{', tied' * tied}"] = distance(gradients(model), gradients(one))
    return found


def printed() -> dict[str, str]:
    """What the examples print as they stand; one of them on every rank for itself."""
    found = {}
    for name in ("micro_batches", "ddp", "fsdp2"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            example(name).main()
        found[name] = out.getvalue()
    return found


def page() -> dict[str, Any]:
    """What the loop of `docs/how-to/ddp.md` leaves, beside the same loop on the whole batch in one process."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = (Path(example_loops.EXAMPLES).parent / "how-to" / "ddp.md").read_text()
    scope: dict[str, Any] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), scope)
        scope["train"]()
    torch.manual_seed(1)
    model = scope["Policy"]()
    batch = scope["rollouts"](model)
    mine = {name: column[24 * rank // ranks : 24 * (rank + 1) // ranks] for name, column in batch.items()}
    with torch.no_grad():
        model.net[1].weight.mul_(3)
    found = []
    for wrapped, rows, part, group in ((model, 24, batch, None), (ddp(model), 3, mine, dist.group.WORLD)):
        model.zero_grad()
        coef = scope["backward"](wrapped, part, rows, group)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert float(coef.metrics["token/clipped"]) > 0
    return {"printed": out.getvalue(), "distance": float((found[1] - found[0]).norm() / found[0].norm())}


def twins() -> dict[str, Any]:
    """Twenty updates of one process beside the same on all ranks."""
    return {str(dtype): vars(example("twins").train(dtype=dtype)) for dtype in DTYPES}


def errors() -> dict[str, str]:
    """What this rank raises where another one goes wrong: the class, and the message; '' where it raises nothing."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    other = rank == last
    mine = off_policy(torch.float64)[1].split(dist.get_world_size())[rank]
    now = policy(torch.float64)(mine).detach()
    op, group = operator(), dist.group.WORLD

    def index(of: Any = None, **changed: Any) -> Any:
        labels = {"prompt_group": mine.prompt_group, "domain": mine.domain, **changed}
        return (of or op).index(offsets=mine.offsets, group=group, **labels)

    def coefficients(**changed: Any) -> Any:
        given = {"now": now, "parameters": budgets(torch.float64), "at": index(), **changed}
        return op.coefficients(given["now"], mine.old_log_probs, mine.advantages, given["at"], given["parameters"])

    changed = op.hierarchy.replace(objective=token_mean())
    nan = now.clone()
    nan[1] = float("nan")
    calls: dict[str, Callable[[], Any]] = {
        "a label that is None": lambda: index(domain=[None, *mine.domain[1:]] if other else mine.domain),
        "a label too few": lambda: index(domain=mine.domain[1:] if other else mine.domain),
        "a label without a stable hash": lambda: index(domain=[object()] * len(mine.domain) if other else mine.domain),
        "a group over two domains": lambda: index(domain=["elsewhere"] * len(mine.domain) if other else mine.domain),
        "another hierarchy": lambda: index(support.operator(changed, "c") if other else None),
        "NaN": lambda: coefficients(now=nan if other else now),
        "other parameters": lambda: coefficients(parameters={"epsilon": 0.01 * (1 + other)}),
        "a parameter out of bounds": lambda: coefficients(parameters={"epsilon": -1.0} if other else {}),
        "too few log-probs": lambda: coefficients(now=now[1:] if other else now),
        "no metrics": lambda: op.coefficients(now, mine.old_log_probs, mine.advantages, index(), metrics=not other),
        "another call": lambda: op.levels(now, index()) if other else coefficients(),
    }
    said = {name: raised(call) for name, call in calls.items()}
    said["after all of these"] = raised(lambda: every_regime(coefficients().metrics))
    return said


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except FibrationError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def left_alone() -> dict[str, str]:
    """Where the last rank takes no part in a call, and where it is no more."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batch = off_policy(torch.float64)[1].split(ranks)[rank]
    now, op = policy(torch.float64)(batch).detach(), operator()
    said = {}
    for case, group in (("silent", dist.new_group(timeout=timedelta(seconds=2))), ("ended", dist.group.WORLD)):
        index = example_loops.index(op, batch, group=group)
        if rank < ranks - 1:
            said[case] = raised(lambda index=index: op.coefficients(now, batch.old_log_probs, batch.advantages, index))
        elif case == "ended":
            os._exit(0)  # and says goodbye to nobody
        dist.barrier() if case == "silent" else None
    return said


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    path, found = Path(sys.argv[1]) / f"{dist.get_rank()}.json", {}
    for part in (distances, heads, printed, page, twins, errors, left_alone):
        path.write_text(json.dumps(found))  # the last rank does not come back from the last one
        found[part.__name__] = part()
    path.write_text(json.dumps(found))
    os._exit(0)  # the group is broken


if __name__ == "__main__":
    main()
