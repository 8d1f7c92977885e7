"""An exit code that the end of a command decides, whatever a spec does to the process that reads it.

A spec in Python is run, and what is run may end its process: by `os._exit(0)`, by an `exec`, in a thread, in a handler
at exit. CI would read that as "verified". So a command runs in a fork, which says its exit code once its output is
written, and the process that was started says what it heard. That is no sandbox: whom it protects is a spec's author.
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
    """Run a command, which ends by SystemExit as typer's do, and exit with its code.

    Where it went before it came to its end, exit with what it left, and with 2 if that is 0. Where there is no fork
    (Windows), the command is run as it is.
    """
    if not hasattr(os, "fork"):
        return command()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, nobody could wait for a process
    heard, said = os.pipe()  # which no program that replaces this one inherits
    with warnings.catch_warnings():  # of threads that numpy may have begun, and sees to itself
        warnings.simplefilter("ignore", DeprecationWarning)
        worker = os.fork()
    if worker == 0:
        os.close(heard)
        _work(command, said)
    os.close(said)
    sys.exit(_wait(worker, heard))


def _work(command: Callable[[], None], said: int) -> None:
    """Ends as the command does, so that handlers at exit run."""
    if sys.platform == "linux":  # else it would outlive a parent that is killed
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

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the terminal sends to both
    for number in FORWARDED:
        signal.signal(number, forward)
    left = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with open(heard, "rb") as pipe:
        # Not to the end of the file, which comes when all that a spec has started is gone.
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
