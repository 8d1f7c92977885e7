"""Runs all cases in one process of a group: `worker.py FOLDER`, with RANK, WORLD_SIZE and the like set.

One run has all cases, because verl takes seconds to start. Each rank writes its results to `FOLDER/RANK.json`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import refusals
import torch.distributed as dist
from token_baselines import token_baselines


def tried(what: Callable[[], Any]) -> Any:
    """What it returns, or what it raised: another case shall not fail for it."""
    try:
        return what()
    except Exception:
        return {"raised": traceback.format_exc()}


def main(folder: Path, chosen: list[str]) -> None:
    data = cases.Rollouts.of_ranks(folder)
    found: dict[str, Any] = {"cases": {}, "mistakes": {}, "beside": {}, "refusals": {}}
    for name, case in cases.CASES.items():
        if not chosen or name in chosen:
            found["cases"][name] = tried(lambda case=case: data.results(case))  # type: ignore[misc]
    for name, (_, _, ranks) in cases.MISTAKES.items():
        if dist.get_world_size() >= ranks and (not chosen or name in chosen):
            found["mistakes"][name] = tried(lambda name=name: cases.mistaken(data, name))  # type: ignore[misc]
    several = (
        cases.two_passes,
        cases.sampled_now,
        cases.sampled_otherwise,
        cases.other_losses,
        cases.bypassed,
        cases.in_verls_log,
        cases.dropping,
        token_baselines,
    )
    for beside in several:
        if not chosen or beside.__name__ in chosen:
            found["beside"][beside.__name__] = tried(lambda beside=beside: beside(data))  # type: ignore[misc]
    for name in refusals.REFUSALS if dist.get_world_size() == 1 else refusals.TOGETHER:
        if not chosen or name in chosen:
            found["refusals"][name] = refusals.refused(data, name)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found, default=float))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
