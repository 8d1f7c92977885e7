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
        began, worker = monotonic(), _Worker(work)
        try:
            worker.start()
            while worker.is_alive() and (left := self.left - (monotonic() - began)) > 0:
                worker.join(min(left, AGAIN))
        finally:
            until = monotonic() + PATIENCE
            while worker.is_alive() and monotonic() < until:
                worker.tell()
                worker.join(AGAIN)
            if worker.is_told:  # sympy caches the steps of an inference: an interrupted one would never be completed
                from sympy.core.cache import clear_cache

                clear_cache()
        self.left = self.left - (monotonic() - began) if worker.has_ended else 0.0
        if worker.error is not None and not worker.is_told:
            raise worker.error
        return worker.has_ended


class _Worker(threading.Thread):
    """Runs a work, and catches its exceptions: `Stopped`, and the `error` that `allows` raises in the caller."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="fibration: laws", daemon=True)  # a stuck thread does not keep the process alive
        self._work, self._lock, self._may_be_told = work, threading.Lock(), False
        self.has_ended = self.is_told = False
        self.error: BaseException | None = None

    def run(self) -> None:
        with suppress(Stopped), suppress(Stopped):  # a second one may arrive while the first is caught
            try:
                self._may_be_told = True
                self._work()
            except Stopped:
                self._may_be_told = False
            except BaseException as error:
                self.error = error
            with self._lock:
                self.has_ended, self._may_be_told = self._may_be_told and self.error is None, False
        # One that is on its way arrives here. To cancel it, or to end before it, would leave CPython 3.11 looking for
        # it for ever, in every thread: all code is slower then, and a profiler hangs.
        with suppress(Stopped):
            for _ in range(INSTRUCTIONS if self.is_told else 0):
                pass

    def tell(self) -> None:
        """Raise `Stopped` in the thread when it next runs Python code."""
        with self._lock:
            if self._may_be_told and self.is_alive() and self.ident is not None:
                self.is_told = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Stopped))
