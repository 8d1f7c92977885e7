"""Runs a command in a fork, so that a spec cannot fake the exit code.

A spec is Python code, and it may end its process: by `os._exit(0)`, by an `exec`, in a thread, in an exit handler. CI
would read exit code 0 as "verified". So a command runs in a forked process, which sends its exit code through a pipe
once its output is written. The parent exits with the code that it received. This is no sandbox: it protects the spec's
author from accidents.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

UNUSABLE = 2
FORWARDED = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)
DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def to_its_end(command: Callable[[], None]) -> None:
    """Run a command that ends by SystemExit, as typer's commands do, and exit with its code.

    If the process ends before the command does, exit with the process's code, or with 2 if that is 0. On a platform
    without fork (Windows), the command runs in this process.
    """
    if not hasattr(os, "fork"):
        return command()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if SIGCHLD is ignored, waitpid fails
    heard, said = os.pipe()  # a program that replaces this one by `exec` does not inherit the pipe
    with warnings.catch_warnings():  # numpy may have threads, and handles forks itself
        warnings.simplefilter("ignore", DeprecationWarning)
        worker = os.fork()
    if worker == 0:
        os.close(heard)
        _work(command, said)
    os.close(said)
    sys.exit(_wait(worker, heard))


def _work(command: Callable[[], None], said: int) -> None:
    """Run the command, send its exit code, and end as the command does, so that exit handlers run."""
    if sys.platform == "linux":  # without this the worker would outlive a killed parent
        ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
    try:
        command()
        end = SystemExit(0)
    except SystemExit as error:
        end = error
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        end = SystemExit(UNUSABLE)
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    os.write(said, str(code).encode())
    raise end


def _wait(worker: int, heard: int) -> int:
    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends SIGINT to both processes
    for number in FORWARDED:
        signal.signal(number, forward)
    left = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with open(heard, "rb") as pipe:
        # Do not wait for the end of file: it comes only when every process that the spec started has ended.
        os.set_blocking(pipe.fileno(), False)
        said = pipe.read()
    if said:
        return int(said) or (left if left >= 0 else 128 - left)
    if left < 0:
        if -left not in FORWARDED:
            name = signal.Signals(-left).name if -left in {*signal.Signals} else f"signal {-left}"
            print(f"error: ended by {name} before there was a result", file=sys.stderr)
        return 128 - left
    if left == 0:
        print(
            "error: the process ended before there was a result\n"
            "  required: specs that do not end the process that reads them\n"
            "  found:    exit code 0, as after os._exit(0)",
            file=sys.stderr,
        )
    return left or UNUSABLE
