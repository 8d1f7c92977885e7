"""Ranks as threads of this process. Traffic is counted. A hang is an error with the stacks of all ranks."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Hang(BaseException):
    """Ranks wait for a rank that has ended, or call different collectives."""


@dataclass
class Traffic:
    """The collectives in their order, as (kind, bytes that one rank sent)."""

    sent: list[tuple[str, int]] = field(default_factory=list)

    @property
    def tensors(self) -> list[int]:
        return [size for kind, size in self.sent if kind == "all_gather"]

    @property
    def objects(self) -> int:
        return sum(kind == "all_gather_object" for kind, _ in self.sent)


class _Meeting:
    """The meeting point of the threads. It records who waits, so a hang is found at once, without a timeout."""

    def __init__(self, size: int, lost: Exception | None) -> None:
        self.size, self.lost = size, lost
        self.changed = threading.Condition()
        self.given: dict[int, tuple[str, Any]] = {}
        self.handed: list[Any] = []
        self.rounds = 0
        self.ended: set[int] = set()
        self.hang: str | None = None
        self.traffic = Traffic()
        self.copies: list[tuple[Tensor, Tensor]] = []

    def exchange(self, rank: int, kind: str, value: Any) -> list[Any]:
        with self.changed:
            turn = self.rounds
            self.given[rank] = kind, value
            self._look()
            while self.rounds == turn and self.hang is None:
                self.changed.wait()
            if self.hang is not None:
                if self.lost is not None:
                    raise self.lost
                raise Hang(self.hang)
            return list(self.handed)

    def end(self, rank: int) -> None:
        with self.changed:
            self.ended.add(rank)
            self._look()

    def _look(self) -> None:
        """Hand out the values if all ranks are here. Otherwise report a hang if every missing rank has ended."""
        if self.hang is not None:
            pass
        elif len(self.given) == self.size:
            kinds = {
                kind if kind == "all_gather_object" else f"{kind} {self._form(v)}" for kind, v in self.given.values()
            }
            if len(kinds) > 1:
                self.hang = f"ranks did different things: {', '.join(sorted(kinds))}\n{stacks()}"
            else:
                self.handed = [self.given[rank][1] for rank in range(self.size)]
                ((kind, value),) = [self.given[0]]
                self.traffic.sent.append((kind, value.nbytes if kind == "all_gather" else 0))
                self.copies += [(t, t.clone()) for t in self.handed if kind == "all_gather"]
                self.given, self.rounds = {}, self.rounds + 1
        elif self.given and self.ended and len(self.ended | set(self.given)) == self.size:
            here, gone = (", ".join(map(str, sorted(r))) for r in (self.given, self.ended))
            self.hang = f"ranks {here} wait, and ranks {gone} have ended\n{stacks()}"
        self.changed.notify_all()

    @staticmethod
    def _form(tensor: Tensor) -> str:
        return f"{list(tensor.shape)} of {tensor.dtype}"


class ThreadGroup:
    """One thread's view of the group: exactly the four members that `op.index(..., group=)` requires."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        assert isinstance(tensor, Tensor)
        return self._meeting.exchange(self.rank, "all_gather", tensor)

    def all_gather_object(self, obj: Any) -> list[Any]:
        return self._meeting.exchange(self.rank, "all_gather_object", obj)


@dataclass(frozen=True)
class Ran:
    """The outcome of `try_on_ranks`: per rank the result of the work, or None, and its exception, or None."""

    results: list[Any]
    errors: list[BaseException | None]
    traffic: Traffic


def try_on_ranks(size: int, work: Callable[[ThreadGroup], Any], lost: Exception | None = None) -> Ran:
    """Run `work(group)` on every rank at once, each in a thread. A hang raises Hang here, with all stacks.

    With `lost`, waiting ranks raise `lost` instead, as a process group does after its timeout.
    """
    meeting = _Meeting(size, lost)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size
    grad = torch.is_grad_enabled()

    def run(rank: int) -> None:
        try:
            with torch.set_grad_enabled(grad):
                results[rank] = work(ThreadGroup(meeting, rank))
        except BaseException as error:
            errors[rank] = error
        finally:
            meeting.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if isinstance(error, Hang):
            causes = "\n".join(f"rank {i} raised {e!r}" for i, e in enumerate(errors) if e and not isinstance(e, Hang))
            raise Hang(f"{error}\n{causes}")
    for sent, copy in meeting.copies:
        same = sent.numpy(force=True).tobytes() == copy.numpy(force=True).tobytes()
        assert same, "a tensor that was sent has been written to"
    return Ran(results, errors, meeting.traffic)


def on_ranks(size: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """The result of `work(group)` on every rank. Raises the first rank's exception."""
    ran = try_on_ranks(size, work)
    for error in ran.errors:
        if error is not None:
            raise error
    return ran.results


def stacks() -> str:
    """The stack of every rank, for the message of a hang."""
    frames = sys._current_frames()
    ranks = [t for t in threading.enumerate() if t.name.startswith("rank ") and t.ident in frames]
    return "\n".join(f"{t.name}:\n{''.join(traceback.format_stack(frames[t.ident])[-8:])}" for t in ranks)
