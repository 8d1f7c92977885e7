"""Starts torchrun with one process per rank, and is what each of these processes runs: it runs the script given.

A Gloo thread may free a buffer of the last backward after the interpreter has ended. The buffer holds Python objects, so
the thread needs a lock that no longer exists, and the process aborts after all work is done (docs/ranks.md). The cause
lies in PyTorch. A process started here ends as soon as its script has, and the interpreter is never taken down.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def torchrun(ranks: int, *command: Any, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, __file__]
    return subprocess.run(
        [*map(str, start), *map(str, command)], env=dict(env), capture_output=True, text=True, timeout=timeout
    )


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
