"""Starts torchrun with one process per rank, and is what each of these processes runs: it runs the script given.

A Gloo thread may free a buffer of the last backward after the interpreter has ended. The buffer holds Python objects, so
the thread needs a lock that no longer exists, and the process aborts after all work is done (docs/ranks.md). The cause
lies in PyTorch. A process started here ends as soon as its script has, and the interpreter is never taken down.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def torchrun(ranks: int, *command: Any, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, __file__]
    return subprocess.run(
        [*map(str, start), *map(str, command)], env=dict(env), capture_output=True, text=True, timeout=timeout
    )


def run_once(factory: Any, name: str, start: Callable[[Path], subprocess.CompletedProcess[str]]) -> Path:
    """The folder that `start` fills, once for all processes of the tests; its file `done` holds what was printed."""
    from filelock import FileLock  # not in the processes of the ranks

    base = factory.getbasetemp()
    folder: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            done = start(folder)
            (folder / "done").write_text(done.stdout + done.stderr)
    return folder


def environment(*path: str) -> dict[str, str]:
    """That of a process which imports this checkout, and what `path` names."""
    root = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([root, *path])}


def rank_results(factory: Any, ranks: int, script: Path) -> list[dict[str, Any]]:
    """What `script` wrote on each rank. It has to succeed."""

    def start(folder: Path) -> subprocess.CompletedProcess[str]:
        done = torchrun(ranks, script, folder, env=environment(), timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    folder = run_once(factory, f"{script.stem}_{ranks}", start)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
