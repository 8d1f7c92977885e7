"""Local work after which either every rank of a group goes on, or every rank raises the same error.

A rank that raised while the others wait for it would leave them waiting. So each sends a word of fixed size first,
whatever it is about to do: whether it failed, and a digest of what has to be equal everywhere. More is sent only where
that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b

import torch

from fibration import errors
from fibration.errors import FibrationError, RanksError, listed
from fibration.runtime.ranks.group import ALONE, Ranked


@contextmanager
def agreed(group: Ranked | None, what: str) -> Iterator[dict[str, str]]:
    """Do the body, then find out whether all ranks did it: `with agreed(group, "index") as said: ...`.

    `said` takes what must be equal on every rank: a name, and the value in words. Whatever one rank raises, all raise:
    an error of this library in its own class with the rank's number first; anything else as itself where it came from
    and as RanksError elsewhere. Values that differ, and ranks that are in another call, are RanksErrors. Without a
    group nothing is done.
    """
    said: dict[str, str] = {}
    try:
        yield said
    except RanksError:  # of a group that failed, or of what all ranks have seen: nobody waits
        raise
    except Exception as error:
        if group is not None:
            agree(group, what, said, error)
        raise
    if group is not None:
        agree(group, what, said)


def agree(group: Ranked, what: str, said: Mapping[str, str], error: Exception | None = None) -> None:
    """Tell the others that this rank is at `what`, with an error or none; returns where no rank has one."""
    said = {"the call": what, **said}
    word = torch.tensor([error is not None, 0 if error else digest(said)], dtype=torch.int64)
    words = [tuple(w) for w in group.all_gather(word, what).tolist()]
    if any(failed for failed, _ in words):
        _raise_first(group, what, error)
    if len(set(words)) > 1:
        _refuse_different(group, what, said)


def digest(said: Mapping[str, str]) -> int:
    """64 bits of the names and words, in any order."""
    text = repr(sorted(said.items())).encode(errors="backslashreplace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def _raise_first(group: Ranked, what: str, error: Exception | None) -> None:
    """Every rank raises the error of the first that has one; the others' are notes on it."""
    told = group.all_gather_object(None if error is None else _told(error), f"errors of {what}")
    (rank, (name, first)), *others = [(i, t) for i, t in enumerate(told) if t is not None]
    if name is None and rank == group.rank and error is not None:
        raised = error
    elif name is None:
        raised = RanksError(f"rank {rank}: {what} failed with {first['what']}", remedy="see the traceback on that rank")
    else:
        whose = "" if group is ALONE else f"rank {rank}: "
        raised = getattr(errors, name)(**{**first, "what": whose + first["what"]})
    for other, (_, fields) in others:
        raised.add_note(f"rank {other}: {fields['what']}")
    if raised is error:
        raise raised
    raise raised from error


def _told(error: Exception) -> tuple[str | None, dict[str, str]]:
    """What another process can make of an error: the name of our class, if it is one, and its fields."""
    if not isinstance(error, FibrationError):
        return None, {"what": f"{type(error).__name__}: {error}"}
    ours = next(c for c in type(error).__mro__ if c.__module__ == errors.__name__)
    fields = {"what": error.what, "required": error.required, "found": error.found, "remedy": error.remedy}
    return ours.__name__, fields


def _refuse_different(group: Ranked, what: str, said: Mapping[str, str]) -> None:
    told = group.all_gather_object(dict(said), f"what differs in {what}")
    for name in dict.fromkeys(name for one in told for name in one):
        values = [one.get(name, "nothing") for one in told]
        if len(set(values)) > 1:
            ranks = {value: [str(i) for i, v in enumerate(values) if v == value] for value in dict.fromkeys(values)}
            calls = name == "the call"
            raise RanksError(
                "ranks are in different calls" if calls else f"ranks differ in {name}",
                required="the same on every rank of the group",
                found="; ".join(
                    f"{value} on rank{'s' if len(where) > 1 else ''} {listed(where)}" for value, where in ranks.items()
                ),
                remedy="look for a call that only some ranks make, or that they make in another order"
                if calls
                else "give all ranks the same: they may differ in their tokens and in what lies over these",
            )
    raise RanksError(
        f"{what}: ranks have sent digests that differ, of words that agree",
        required="that the group hands on what was sent",
        remedy="look for a group whose all_gather mixes up ranks or calls",
    )
