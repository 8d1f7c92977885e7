"""A budget of seconds for work that cannot be asked to look at a clock, as sympy's cannot.

The work runs in a thread of its own, which the caller waits for. When the time is out, `Stopped` is raised in that
thread, again and again until it has ended. So nothing can arrive in the caller's thread, however close to the end of
the work the time was out, and what is half written when it does is the work's own.
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

AGAIN = 0.05  # seconds until a thread that goes on is told again: what is raised in a finaliser, Python drops
PATIENCE = 1.0  # seconds for which a thread is told; one that a single operation holds for longer is left to it


class Stopped(BaseException):
    """Raised where the time is out; no `except Exception` stops it."""


class Budget:
    """The seconds for all that is decided of one hierarchy, its laws and then its facts; None or infinite: no limit."""

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
        """Do some work; False if the time was out before it ended. Then there is no time left for other work either."""
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
        super().__init__(name="fibration: laws", daemon=True)  # a stuck one does not keep the process
        self._work = work
        self._lock = threading.Lock()
        self._may_be_told = False
        self._has_ended = False
        self._error: BaseException | None = None
        self._inside: list[_Worker] = []  # what its work waits for

    def run(self) -> None:
        with suppress(Stopped):
            try:
                self._may_be_told = True
                self._work()
            except Stopped:
                return
            except BaseException as error:  # for the caller, whatever it is
                self._error = error
            with self._lock:
                self._may_be_told, self._has_ended = False, True
                _raise(self.ident, None)  # what was raised and has not arrived

    def ends_within(self, seconds: float) -> bool:
        """Whether the work ended in time; what it raised is raised here."""
        out = monotonic() + seconds
        caller = threading.current_thread()
        if isinstance(caller, _Worker):
            caller._inside.append(self)
        try:
            self.start()
            # in short waits: a caller that is itself told that its time is out hears it between them
            while self.is_alive() and (left := out - monotonic()) > 0:
                self.join(min(left, AGAIN))
        finally:
            told = self._call_off()
        if self._error is not None and not told:
            raise self._error
        return self._has_ended and self._error is None

    def _call_off(self) -> bool:
        """Whether it has to be told that the time is out."""
        until, told = monotonic() + PATIENCE, False
        while self._is_at_work() and monotonic() < until:
            told |= self._tell()
            self.join(AGAIN)
        if told:
            # sympy infers what it knows of an expression step by step, and writes it down there: one that was left in
            # the middle would be asked in vain ever after
            clear_cache()
        return told

    def _is_at_work(self) -> bool:
        return self.is_alive() or any(w._is_at_work() for w in self._inside)

    def _tell(self) -> bool:
        for worker in self._inside:
            worker._tell()
        with self._lock:
            if self._may_be_told and self.is_alive():
                _raise(self.ident, Stopped)
                return True
        return False


def _raise(thread: int | None, what: type[BaseException] | None) -> None:
    """Raise an exception in a thread, when it next runs Python code; None takes it back."""
    assert thread is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what) if what else None)
