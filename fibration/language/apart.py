"""Runs code of users, a spec or an audited function, in a process of its own under a time limit.

Such code is Python: it may end its process, print, fork, or never return. So the command line runs it in a fork, which
sends back what it found. The parent process alone writes reports and exits. This is no sandbox: it protects authors
from accidents.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from multiprocessing.connection import Pipe
from multiprocessing.context import ForkProcess
from threading import Thread, get_ident
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
STOPPED = (signal.SIGTERM, signal.SIGHUP)
HELD = (signal.SIGINT, *STOPPED)  # until the process that has been forked can be ended
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
    end, process, here = os._exit, os.getpid(), {(os.getpid(), get_ident())}

    def stay(status: int) -> NoReturn:
        if (os.getpid(), get_ident()) in here:
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
    `seconds` for an item, that item has a `failure`, and another process goes on with the next. Results have to be
    picklable. What the work prints goes to stderr, after `| ` that of a process. `remedy`: for code that does not end.
    """
    left = list(items)
    found: R | FibrationError
    while left and not (runs_code and in_processes):
        try:
            with redirect_stdout(sys.stderr):
                found = work(left.pop(0))
        except FibrationError as error:
            found = error
        yield found
    while left:
        # A signal between the fork and the block that ends the process would leave behind what its code has started.
        waiting, process = signal.pthread_sigmask(signal.SIG_BLOCK, ()), None
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
            process = _Process(work, left, failure)
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
            while left and not process.is_over:
                found = process.result(f"'{left[0]}'", seconds, remedy)
                left.pop(0)
                yield found
        finally:
            if process is not None:
                process.end(0 if left else PATIENCE)
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)


class _Process(ForkProcess):
    """Works on items, and sends each result. It leads a session: all that it starts can be ended."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any], failure: type[FibrationError]) -> None:
        super().__init__()
        self._work, self._items, self._failure = work, items, failure
        self._results, self._sends = Pipe(duplex=False)
        output, self._prints = os.pipe()
        self.is_over = False
        with warnings.catch_warnings():  # of threads, by Python and by JAX: the progress line has one
            warnings.simplefilter("ignore")
            self.start()
        self._sends.close()
        os.close(self._prints)
        self._shows = Thread(target=_show, args=(output,), daemon=True)
        self._shows.start()

    def run(self) -> None:
        """Send the result of every item. Nothing that the caller has begun goes on here."""
        process, prints = os.getpid(), self._prints
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
        for number in (*STOPPED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (prints, 1), (prints, 2)):
            os.dup2(source, target)
        # Streams and exit handlers of its own: the caller's may be locked by a thread, or belong to a progress line.
        for name in ("stdout", "stderr"):
            stream = open(prints, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        atexit._clear()
        try:
            for item in self._items:
                try:
                    found = self._work(item)
                except FibrationError as error:
                    found = error
                except KeyboardInterrupt:  # of the code itself: this session has no terminal
                    found = self._failure(f"'{item}' raises KeyboardInterrupt", required="code that returns")
                result = pickle.dumps(found)
                if os.getpid() != process:
                    return
                self._sends.send_bytes(result)
        finally:
            atexit._run_exitfuncs()

    def result(self, name: str, seconds: float, remedy: str) -> Any:
        """The next result; a failure if it takes more than `seconds`, or if the process ends, and then it is over."""
        until = monotonic() + seconds
        while not self._results.poll(POLL) and self.is_alive():
            if monotonic() > until:
                self.end(0)
                what = f"{name} did not end within {seconds:g} s"
                return self._failure(what, required="code that ends", remedy=remedy)
        try:
            if self._results.poll():
                return pickle.loads(self._results.recv_bytes())
        except (EOFError, OSError):  # of a pipe whose other end is closed
            pass
        except Exception as error:  # a class of the spec's own
            what = f"{type(error).__name__}: {error}"
            return self._failure(f"{name} declares what cannot be read outside its file", found=what)
        self.end(PATIENCE)
        return self._failure(
            f"{name} ended the process that runs it, before there was a result",
            required="code that returns",
            found=_how(self.exitcode or 0),
            remedy="leave out what ends, replaces or kills the process",
        )

    def end(self, patience: float) -> None:
        """End the process, at the latest after `patience` seconds, and all that it started."""
        until = monotonic() + patience
        while self.is_alive() and monotonic() < until:
            self.join(POLL)  # returns late if something that the code forked lives on
        for kill in (os.killpg, os.kill):
            if self.pid and not self.is_over:
                with suppress(OSError):
                    kill(self.pid, signal.SIGKILL)
        self.join()
        self._shows.join(PATIENCE)  # not for ever: a process of another session may still print
        self.is_over = True


def _show(output: int) -> None:
    """Shows what a process prints, line by line, up to a limit."""
    left = SHOWN
    with open(output, encoding="utf-8", errors="backslashreplace", newline="\n") as printed:
        while line := printed.readline(SHOWN):
            if left > 0:
                print("|", line[:left].removesuffix("\n"), file=sys.stderr)
            left -= len(line)
            if left <= 0 < left + len(line):
                print(f"| ... more than {SHOWN} bytes are printed", file=sys.stderr)


def _how(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}, as after os._exit({code})"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    return f"{name}, as when memory runs out" if -code == signal.SIGKILL else name
