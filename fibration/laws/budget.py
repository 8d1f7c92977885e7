"""A budget of seconds for work that never checks a clock, such as sympy's.

The work runs in its own thread, and the caller waits for it. When the time is out, `Stopped` is raised in that thread,
again and again until the thread ends. So `Stopped` never arrives in the caller's thread, even if the time runs out just
as the work ends. Only the work's own data can be left half written.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from time import monotonic

from sympy.core.cache import clear_cache

from fibration.errors import ParameterError, shown
from fibration.language.report import BUDGET

AGAIN = 0.05  # seconds between two `Stopped` for one thread: Python drops an exception raised in a finaliser
INSTRUCTIONS = 1000  # within so many, an exception that was raised in a thread arrives
PATIENCE = 1.0  # seconds of such attempts; a thread that one operation holds for longer is left running


class Stopped(BaseException):
    """Raised in a thread whose time is out. Not an `Exception`, so that no `except Exception` catches it."""


class Budget:
    """The seconds for one verification of a hierarchy, laws and facts together. None or infinity: no limit."""

    def __init__(self, timeout: float | None = BUDGET) -> None:
        if timeout is not None and (not isinstance(timeout, Real) or isinstance(timeout, bool) or not timeout > 0):
            raise ParameterError(
                f"the timeout {shown(timeout)} is no time to verify in",
                required="a number of seconds above 0, or None for no limit",
                remedy=f"for example hierarchy.verify(timeout={BUDGET:g}), or --timeout {BUDGET:g}",
            )
        self.seconds = math.inf if timeout is None else float(timeout)
        self.left = self.seconds

    def allows(self, work: Callable[[], None]) -> bool:
        """Run `work`. Returns False if the time ran out before it ended; the budget is then spent."""
        if self.seconds == math.inf:
            work()
            return True
        if self.left <= 0:
            return False
        began = monotonic()
        ended = _Worker(work).ends_within(self.left)
        self.left = self.left - (monotonic() - began) if ended else 0.0
        return ended


class _Worker(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="fibration: laws", daemon=True)  # a stuck thread does not keep the process alive
        self._work = work
        self._lock = threading.Lock()
        self._may_be_told = False
        self._has_ended = False
        self._is_told = False
        self._error: BaseException | None = None
        self._inside: list[_Worker] = []  # workers that its work waits for

    def run(self) -> None:
        with suppress(Stopped), suppress(Stopped):  # a second one may arrive while the first is caught
            try:
                self._may_be_told = True
                self._work()
            except Stopped:
                self._may_be_told = False
            except BaseException as error:  # `ends_within` raises it in the caller
                self._error = error
            with self._lock:
                self._has_ended, self._may_be_told = self._may_be_told, False
        # One that is on its way arrives here. To cancel it, or to end before it, would leave CPython 3.11 looking for
        # it for ever, in every thread: all code is slower then, and a profiler hangs.
        with suppress(Stopped):
            for _ in range(INSTRUCTIONS if self._is_told else 0):
                pass

    def ends_within(self, seconds: float) -> bool:
        """Whether the work ended in time. Raises the exception of work that was not stopped."""
        out = monotonic() + seconds
        caller = threading.current_thread()
        if isinstance(caller, _Worker):
            caller._inside.append(self)
        try:
            self.start()
            # in short waits: a `Stopped` for the calling thread arrives only between them
            while self.is_alive() and (left := out - monotonic()) > 0:
                self.join(min(left, AGAIN))
        finally:
            told = self._call_off()
        if self._error is not None and not told:
            raise self._error
        return self._has_ended and self._error is None

    def _call_off(self) -> bool:
        """Stop the work if it still runs. Returns whether `Stopped` was raised in it."""
        until, told = monotonic() + PATIENCE, False
        while self._is_at_work() and monotonic() < until:
            told |= self._tell()
            self.join(AGAIN)
        if told:
            # sympy caches the steps of an inference about an expression: an interrupted inference would never be
            # completed
            clear_cache()
        return told

    def _is_at_work(self) -> bool:
        return self.is_alive() or any(w._is_at_work() for w in self._inside)

    def _tell(self) -> bool:
        for worker in self._inside:
            worker._tell()
        with self._lock:
            if self._may_be_told and self.is_alive():
                self._is_told = True
                _raise(self.ident, Stopped)
                return True
        return False


def _raise(thread: int | None, what: type[BaseException]) -> None:
    """Raise an exception in a thread when it next runs Python code."""
    assert thread is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))
