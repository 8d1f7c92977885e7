"""Runs code of users, a spec or an audited function, in a process of its own under a time limit.

Such code is Python: it may end its process, print, fork, or never return. So the command line runs it in a fork, which
sends back what it found. The parent process alone writes reports and exits. This is no sandbox: it protects authors
from accidents.
"""

from __future__ import annotations

import atexit
import codecs
import ctypes
import os
import pickle
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, NoReturn, TypeVar

from fibration.errors import FibrationError

T = TypeVar("T")
R = TypeVar("R")
POLL = 0.05  # seconds between two looks whether the process has ended; results and output arrive at once
PATIENCE = 2.0  # seconds for exit handlers after the last result
SHOWN = 100_000  # bytes of what it prints that are shown
DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG of Linux
# The command line turns this on. Elsewhere the code runs in the caller's process: threads make a fork unsafe, and a
# notebook's functions print where the notebook shows it.
in_processes = False
STOPPED = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)
_end = os._exit  # `staying` replaces the name


def turn_on() -> None:
    """Run code in processes from now on. A signal that ends this process ends them first, as Ctrl-C does."""
    global in_processes
    in_processes = True
    for number in STOPPED:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


@contextmanager
def staying() -> Iterator[None]:
    """Makes `os._exit` raise SystemExit inside the block, but not in other threads or forked processes.

    A process that the block forked ends where the block ends: what follows is done once.
    """
    end, process, here = os._exit, os.getpid(), {(os.getpid(), threading.get_ident())}

    def stay(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) in here:
            raise SystemExit(f"os._exit({status})")
        end(status)

    os._exit = stay
    try:
        yield
    finally:
        if os.getpid() != process:
            _end(1)
        os._exit = end
        here.clear()  # the block's code may have kept `stay`


def each(
    work: Callable[[T], R],
    items: Sequence[T],
    seconds: float,
    failure: type[FibrationError],
    remedy: str,
    runs_code: bool = True,
) -> Iterator[R | FibrationError]:
    """Yields the result of `work(item)`, or its FibrationError, for each item in order.

    Where `in_processes` is on and the work `runs_code`, one process works on the items. If it ends, or takes more than
    `seconds` for an item, that item has a `failure`, and another process goes on with the next. What it prints goes to
    stderr, each line after `| `. Results have to be picklable. `remedy`: what to do about code that does not end.
    """
    if not (runs_code and in_processes and hasattr(os, "fork")):
        for item in items:
            try:
                yield work(item)
            except FibrationError as error:
                yield error
        return
    left = list(items)
    while left:
        process = _Process(work, left, failure)
        try:
            while left:
                name = f"'{left[0]}'"
                try:
                    found = process.receive(seconds)
                except TimeoutError:
                    found = failure(
                        f"{name} did not end within {seconds:g} s", required="code that ends", remedy=remedy
                    )
                except EOFError:
                    found = failure(
                        f"{name} ended the process that runs it, before there was a result",
                        required="code that returns",
                        found=process.ending(),
                        remedy="leave out what ends, replaces or kills the process",
                    )
                except Exception as error:  # a class of the spec's own
                    what = f"{type(error).__name__}: {error}"
                    found = failure(f"{name} declares what cannot be read outside its file", found=what)
                left.pop(0)
                yield found
                if process.is_over:
                    break
        finally:
            process.close(0 if left or process.is_over else PATIENCE)


class _Process:
    """A fork that works on items, and sends each result. It leads a session: all that it starts can be ended."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T], failure: type[FibrationError]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._results, sends = os.pipe()
        self._output, prints = os.pipe()
        self._received, self._line, self._room = b"", "", SHOWN
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._open = [self._results, self._output]
        self._status: int | None = None
        self.is_over = False
        with warnings.catch_warnings():  # of threads, by Python and by JAX: the progress line has one
            warnings.simplefilter("ignore")
            self._pid = os.fork()
        if self._pid == 0:
            _work(work, items, failure, sends, prints)
        os.close(sends)
        os.close(prints)

    def receive(self, seconds: float) -> Any:
        """The next result. Raises TimeoutError, or EOFError if the process ended, and then `is_over`."""
        until = monotonic() + seconds
        while (found := self._whole()) is None:
            self._read(min(until - monotonic(), POLL))
            if self._has_ended() and self._results not in self._ready(0):
                self.is_over = True
                raise EOFError
            if monotonic() > until:
                self.is_over = True
                raise TimeoutError
        return pickle.loads(found)

    def ending(self) -> str:
        """How the process ended, in words."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        if code >= 0:
            return f"exit code {code}, as after os._exit({code})"
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        return f"{name}, as when memory runs out" if -code == signal.SIGKILL else name

    def close(self, patience: float) -> None:
        """End the process, at the latest after `patience` seconds, and all that it started."""
        until = monotonic() + patience
        while not self._has_ended() and (left := until - monotonic()) > 0:
            self._read(min(left, POLL))
        for end in (os.killpg, os.kill):
            with suppress(OSError):
                end(self._pid, signal.SIGKILL)
        while not self._has_ended():
            self._read(POLL)
        for _ in range(16):  # what a pipe holds, and no more: a process of another session may still print
            if self._output in self._ready(0):
                self._read(0)
        self._show("\n" if self._line else "")
        os.close(self._results)
        os.close(self._output)

    def _whole(self) -> bytes | None:
        """The next result's bytes: their number comes first, in 8."""
        size = 8 + int.from_bytes(self._received[:8], "big")
        if len(self._received) < max(size, 9):
            return None
        found, self._received = self._received[8:size], self._received[size:]
        return found

    def _ready(self, seconds: float) -> list[int]:
        return select.select(self._open, [], [], max(seconds, 0))[0]

    def _read(self, seconds: float) -> None:
        """Read what has come within some seconds. A pipe whose other ends are closed is read no more."""
        for pipe in self._ready(seconds):
            data = os.read(pipe, 1 << 16)
            if not data:
                self._open.remove(pipe)
            elif pipe == self._results:
                self._received += data
            elif self._room > 0:
                self._show(self._decode(data[: self._room]))
                self._room -= len(data)
                if self._room <= 0:
                    self._show(f"\n... more than {SHOWN} bytes are printed\n")

    def _show(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            print(f"| {line}", file=sys.stderr)

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None


def _work(
    work: Callable[[T], R], items: Sequence[T], failure: type[FibrationError], sends: int, prints: int
) -> NoReturn:
    """Send the result of every item, and end. Nothing that the caller has begun goes on here."""
    code, process = 1, os.getpid()
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
        for number in (*STOPPED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (prints, 1), (prints, 2)):
            os.dup2(source, target)
        # Streams and exit handlers of its own: the caller's may be locked by a thread, or belong to a progress line.
        for name in ("stdout", "stderr"):
            stream = open(prints, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        atexit._clear()
        for item in items:
            found: R | FibrationError
            try:
                found = work(item)
            except FibrationError as error:
                found = error
            except KeyboardInterrupt:  # of the code itself: this session has no terminal
                found = failure(f"'{item}' raises KeyboardInterrupt", required="code that returns")
            result = pickle.dumps(found)
            if os.getpid() != process:
                break
            _send(sends, len(result).to_bytes(8, "big") + result)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            sys.stdout.flush()
        _end(code)


def _send(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
