"""Bytes, and the thread that touched each last. An access that races with another is a fault.

A device may keep plain stores back and show old copies until threads have synchronised. PTX's model allows that only
for accesses of one byte without an order between them. So an unordered access is a fault here, in whatever order the
emulator runs the threads. A barrier of the block orders accesses, and so does an acquire that reads from a release. A
barrier passes an acquire of one thread to its whole block.

Threads are numbered over all blocks of a launch. A clock holds for every thread how many of its accesses are ordered
before the next access of the clock's owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx.fault import Fault

Bytes = NDArray[np.uint8]
Clock = NDArray[np.int64]
Places = NDArray[np.integer[Any]]  # [lanes, bytes]


@dataclass
class View:
    """What the threads `first`, `first + 1`, ... of a block are ordered after. `own` is of those that have acquired since."""

    first: int
    clock: Clock
    now: int = 1
    own: dict[int, Clock] = field(default_factory=dict)

    def barrier(self, threads: int) -> None:
        """Every thread of the block is ordered after all of it, and after what any of it has acquired."""
        for clock in self.own.values():
            np.maximum(self.clock, clock, out=self.clock)
        self.own.clear()
        self.clock[self.first : self.first + threads] = self.now
        self.now += 1

    def of(self, thread: int) -> Clock:
        return self.own.get(thread, self.clock)

    def ordered(
        self, threads: Places, by: Places, at: Places, alone: NDArray[np.bool_] | bool = True
    ) -> NDArray[np.bool_]:
        """Whether accesses of `by` at the times `at`, `alone` or with others, are ordered before what `threads` do now."""
        found = (at <= self.clock[by]) | ((by == threads) & alone)
        for thread, clock in self.own.items():
            found |= (threads == thread) & (at <= clock[by])
        return found


class Memory:
    """Allocations lie apart from each other, and what lies between them belongs to nobody.

    Of the loads of a byte since its last store, those of the latest block are known: another order shows others.
    """

    def __init__(self, size: int, what: str) -> None:
        self.what = what
        self.bytes = np.full(size, 0xFF, np.uint8)  # a NaN
        self.allocated = np.zeros(size, bool)
        self.written = np.zeros(size, bool)
        self.beside = np.zeros(size, bool)  # of the last 4 numbers of an allocation, which a vector has
        self.released: dict[int, Clock] = {}  # by an atomic's place, what was released to it
        self.forget()

    def forget(self) -> None:
        """A launch is ordered after those before it."""
        size = len(self.bytes)
        self.stored_by, self.stored_at = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.loaded_by, self.loaded_at = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.atomic, self.alone = np.zeros(size, bool), np.ones(size, bool)  # of the store; of the loads
        self.released.clear()

    def places(self, addresses: NDArray[np.uint64], size: int, whole: int, load: bool = False) -> Places:
        """The bytes at each address, which is a multiple of `whole`."""
        if (addresses % np.uint64(whole)).any():
            raise Fault(f"misaligned: not every address is a multiple of {whole}")
        end = np.uint64(len(self.bytes) - size)
        outside = addresses > end
        found: Places = np.minimum(addresses, end).astype(np.int64)[:, None] + np.arange(size)
        if outside.any() or not (self.allocated[found] | (load & self.beside[found])).all():
            raise Fault(f"out of the bounds of {self.what} memory")
        return found

    def load(self, view: View, threads: Places, at: Places) -> Bytes:
        if not (self.written[at] | self.beside[at]).all():
            raise Fault(f"loads {self.what} memory that nobody has written")
        who = threads[:, None]
        if not view.ordered(who, self.stored_by[at], self.stored_at[at]).all():
            raise Fault(f"race: loads {self.what} memory that another thread stores, and nothing orders them")
        already = (self.loaded_at[at] == view.now) & (~self.alone[at] | (self.loaded_by[at] != who))
        self.loaded_by[at], self.loaded_at[at], self.alone[at] = who, view.now, ~already
        self.alone[at[self.loaded_by[at] != who]] = False
        return self.bytes[at]

    def store(self, view: View, threads: Places, at: Places, given: Bytes, atomic: bool = False) -> None:
        who = threads[:, None]
        after_stores = view.ordered(who, self.stored_by[at], self.stored_at[at]) | (self.atomic[at] & atomic)
        if not after_stores.all():
            raise Fault(f"race: stores to {self.what} memory that another thread stores to, and nothing orders them")
        if not view.ordered(who, self.loaded_by[at], self.loaded_at[at], self.alone[at]).all():
            raise Fault(f"race: stores to {self.what} memory that another thread loads, and nothing orders them")
        self.bytes[at] = given
        if (self.bytes[at] != given).any():
            raise Fault(f"two threads store different values at one place of {self.what} memory")
        self.written[at] = True
        self.stored_by[at], self.stored_at[at] = who, view.now
        self.atomic[at] = atomic

    def add(self, view: View, thread: int, at: Places, term: np.uint32, release: bool, acquire: bool) -> np.uint32:
        """One thread's atomic addition; what was there. Atomics are no race of each other."""
        place, who = int(at[0, 0]), np.array([thread])
        if not self.written[at].all():
            raise Fault(f"adds to {self.what} memory that nobody has written")
        before: np.uint32 = self.bytes[at].view(np.uint32)[0, 0]
        after = np.array([[before + term]], np.uint32).view(np.uint8)
        self.store(view, who, at, after, atomic=True)
        seen = self.released.get(place)
        if release:
            mine = view.of(thread).copy()
            mine[thread] = view.now
            view.now += 1
            self.released[place] = mine if seen is None else np.maximum(seen, mine)
        if acquire and seen is not None:
            view.own[thread] = np.maximum(view.of(thread), seen)
        return before
