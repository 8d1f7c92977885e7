"""Ranks that are threads of this process: what one of them sends is counted, and a hang is a failure that says where."""

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
    """Ranks wait for one that will not come, or do different things: what no transport could put right."""


@dataclass
class Traffic:
    """What each rank sent: every collective in its order, as (kind, bytes of one rank)."""

    sent: list[tuple[str, int]] = field(default_factory=list)

    @property
    def tensors(self) -> list[int]:
        return [size for kind, size in self.sent if kind == "all_gather"]

    @property
    def objects(self) -> int:
        return sum(kind == "all_gather_object" for kind, _ in self.sent)


class _Meeting:
    """Where threads meet. Who waits is known, so that a hang is found at once and never by a clock."""

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
        """Hand out what was given if all are here; otherwise see whether those who lack can still come."""
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
    """One thread's view of the group: the four members that `op.index(..., group=)` asks for, and no more."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        assert isinstance(tensor, Tensor)
        return self._meeting.exchange(self.rank, "all_gather", tensor)

    def all_gather_object(self, obj: Any) -> list[Any]:
        return self._meeting.exchange(self.rank, "all_gather_object", obj)


@dataclass(frozen=True)
class Ran:
    """What `on_ranks` found: per rank what the work returned, or None, and what it raised, or None."""

    results: list[Any]
    errors: list[BaseException | None]
    traffic: Traffic


def try_on_ranks(size: int, work: Callable[[ThreadGroup], Any], lost: Exception | None = None) -> Ran:
    """Run `work(group)` on every rank at once, each a thread. A hang raises Hang here, with all stacks; with `lost`,
    it is what the transport raises in ranks that wait for one that has ended, as a group of processes does after its
    timeout."""
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
    """What `work(group)` returns on every rank; whatever one raises is raised."""
    ran = try_on_ranks(size, work)
    for error in ran.errors:
        if error is not None:
            raise error
    return ran.results


def stacks() -> str:
    """Where every rank is, for a message about a hang."""
    frames = sys._current_frames()
    ranks = [t for t in threading.enumerate() if t.name.startswith("rank ") and t.ident in frames]
    return "\n".join(f"{t.name}:\n{''.join(traceback.format_stack(frames[t.ident])[-8:])}" for t in ranks)
