"""Processes of their own under torchrun, one for each rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# A thread of Gloo may free what it sent in the last backward when the interpreter has ended already. That holds what Python
# made, so the thread asks for a lock that is no more, and the process aborts with these words, after everything was done
# (docs/ranks.md). It comes from PyTorch, on machines that let such a thread wait: a start that ends so is made once more.
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
