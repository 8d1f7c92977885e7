"""Starts torchrun, with one process per rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# A Gloo thread may free a buffer of the last backward after the interpreter has ended. The buffer holds Python objects,
# so the thread needs a lock that no longer exists, and the process aborts with this message after all work is done
# (docs/ranks.md). The cause lies in PyTorch, on machines where this thread can be delayed. Such a run is repeated once.
AT_EXIT = "terminate called without an active exception"


def torchrun(ranks: int, *command: Any, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    for attempt in range(2):
        done = subprocess.run(
            [*start, *map(str, command)], env=dict(env), capture_output=True, text=True, timeout=timeout
        )
        if not done.returncode or attempt or AT_EXIT not in done.stderr:
            break
    return done
