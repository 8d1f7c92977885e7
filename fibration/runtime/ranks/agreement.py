"""Local work after which either every rank continues, or every rank raises the same error.

A rank that raises alone would leave the others waiting. So each rank first sends a message of fixed size: whether it
failed, and a digest of values that must be equal on all ranks. More is sent only if messages differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b

import torch

from fibration import errors
from fibration.errors import FibrationError, RanksError, listed
from fibration.runtime.ranks.group import ALONE, Group


@contextmanager
def agreed(group: Group | None, what: str) -> Iterator[dict[str, str]]:
    """Run the body, then check that all ranks succeeded: `with agreed(group, "index") as said: ...`.

    `said` takes values that must be equal on every rank: name → value as text. An error on one rank is raised on all:
    a FibrationError in its own class, with the rank's number first; any other error as itself on its rank, and as
    RanksError elsewhere. Different values, and ranks in different calls, raise RanksError. Without a group, only the
    body runs.
    """
    said: dict[str, str] = {}
    try:
        yield said
    except RanksError:  # all ranks raise it, or the group failed: no rank waits
        raise
    except Exception as error:
        if group is not None:
            agree(group, what, said, error)
        raise
    if group is not None:
        agree(group, what, said)


def agree(group: Group, what: str, said: Mapping[str, str], error: Exception | None = None) -> None:
    """Tell the other ranks the call and this rank's error, if any; returns if no rank has one."""
    said = {"the call": what, **said}
    word = torch.tensor([error is not None, 0 if error else digest(said)], dtype=torch.int64)
    words = [tuple(w) for w in group.all_gather(word, what).tolist()]
    if any(failed for failed, _ in words):
        _raise_first(group, what, error)
    if len(set(words)) > 1:
        _refuse_different(group, what, said)


def digest(said: Mapping[str, str]) -> int:
    """A 64-bit digest of names and values, independent of their order."""
    text = repr(sorted(said.items())).encode(errors="backslashreplace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def _raise_first(group: Group, what: str, error: Exception | None) -> None:
    """Raise the error of the first rank that has one; other ranks' errors become notes on it."""
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
    """An error in a form that other processes can rebuild: the name of our class or None, and its fields."""
    if not isinstance(error, FibrationError):
        return None, {"what": f"{type(error).__name__}: {error}"}
    ours = next(c for c in type(error).__mro__ if c.__module__ == errors.__name__)
    fields = {"what": error.what, "required": error.required, "found": error.found, "remedy": error.remedy}
    return ours.__name__, fields


def _refuse_different(group: Group, what: str, said: Mapping[str, str]) -> None:
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
                remedy="look for a call that only some ranks make, or that ranks make in different order"
                if calls
                else "pass the same on all ranks: only tokens and their labels may differ",
            )
    raise RanksError(
        f"{what}: ranks sent different digests of equal values",
        required="a group that returns what each rank sent",
        remedy="look for a group whose all_gather mixes up ranks or calls",
    )
