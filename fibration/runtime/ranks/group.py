"""The ranks that share one batch, their communication, and their agreement.

After local work, either every rank continues, or every rank raises the same error: a rank that raises alone would
leave the others waiting. So each rank first sends a message of fixed size: whether it failed, and a digest of values
that must be equal on all ranks. More is sent only if messages differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fibration import errors
from fibration.errors import FibrationError, RanksError, an, listed, shown


@dataclass(frozen=True)
class Group:
    """A group of processes, the ranks. Its failures are RanksErrors that name what was gathered.

    `gather` and `gather_objects` are `all_gather` and `all_gather_object` of the caller's group. They return what every
    rank passed, in order: tensors of one shape and dtype, as a sequence or as one tensor with an additional first
    dimension. Sent and received tensors are never written to. All ranks make the same calls in one order.
    """

    rank: int
    size: int
    gather: Callable[[Tensor], Sequence[Tensor] | Tensor]
    gather_objects: Callable[[Any], Sequence[Any]]

    def all_gather(self, tensor: Tensor, what: str) -> Tensor:
        """The tensors of all ranks, [size, ...], on the device of `tensor`."""
        found = self._gathered(what, lambda: self.gather(tensor))
        parts = [found[rank].to(tensor.device) for rank in range(len(found))]
        if any(part.shape != tensor.shape or part.dtype != tensor.dtype for part in parts):
            raise RanksError(
                f"{what}: ranks sent different tensors",
                required=f"{list(tensor.shape)} of {tensor.dtype} from each",
                found=", ".join(f"{list(p.shape)} of {p.dtype} from rank {i}" for i, p in enumerate(parts)),
                remedy="look for a rank that made other calls",
            )
        return torch.stack(parts)

    def all_gather_object(self, obj: Any, what: str) -> list[Any]:
        """The objects of all ranks, in order."""
        return list(self._gathered(what, lambda: self.gather_objects(obj)))

    def _gathered(self, what: str, gather: Callable[[], Any]) -> Any:
        try:
            found = gather()
        except Exception as error:  # every transport has its own exceptions
            raise RanksError(
                f"{what}: rank {self.rank} could not gather from the {self.size} ranks of its group",
                required="every rank makes the same calls in the same order, and none ends before the others",
                found=f"{type(error).__name__}: {error}",
                remedy="look for a rank that ended, failed or skipped this call; the group sets the timeout",
            ) from error
        if len(found) != self.size:
            raise RanksError(
                f"{what}: gathered from {len(found)} ranks",
                required=f"{self.size}, the group's size",
                remedy="return one entry for each rank from the group's all_gather and all_gather_object",
            )
        return found


def as_group(given: Any) -> Group:
    """From a group of torch.distributed, a device mesh of one dimension, or any object with `rank`, `size`,
    `all_gather(tensor)` and `all_gather_object(obj)`.
    """
    if isinstance(given, Group):
        return given
    if dist.is_available():
        if isinstance(given, dist.DeviceMesh):
            if given.ndim != 1:
                raise RanksError(
                    f"the group is a device mesh of {given.ndim} dimensions",
                    required="one dimension: the ranks that share the batch",
                    remedy=_dimensions(given.mesh_dim_names),
                )
            given = given.get_group()
        if isinstance(given, dist.ProcessGroup):
            return _of_torch(given)
        if isinstance(given, int) and given == dist.GroupMember.NON_GROUP_MEMBER:
            raise RanksError(
                "this process is not a member of the group", remedy="call op.index only on the group's ranks"
            )
    if not is_group(given):
        raise RanksError(
            f"the group is {an(type(given).__name__)}",
            required="a group of torch.distributed, or an object with rank, size, all_gather and all_gather_object",
            remedy="pass dist.group.WORLD if all ranks share the batch; labels take their stratum's name as keyword",
        )
    if not (isinstance(given.rank, int) and isinstance(given.size, int) and 0 <= given.rank < given.size):
        raise RanksError(
            f"the group has rank {shown(given.rank)} and size {shown(given.size)}",
            required="two whole numbers, the first below the second",
            remedy="number ranks from 0; the size is their number",
        )
    return Group(given.rank, given.size, given.all_gather, given.all_gather_object)


def _dimensions(names: Sequence[str] | None) -> str:
    """Which dimensions of a mesh to pass as the group. Passing one of several that share tokens would lose tokens."""
    first, several = (repr(names[0]), ", ".join(map(repr, names[:2]))) if names else ("'dp'", "'dp', 'cp'")
    named = "" if names else "name its dimensions (mesh_dim_names=), and "
    return (
        f"{named}pass the dimension along which ranks have different tokens, as mesh[{first}]; if there are several, "
        f"flatten them, as mesh[{several}]._flatten()"
    )


def is_group(given: Any) -> bool:
    """Whether the value is a group, not the labels of a stratum called `group`."""
    if dist.is_available() and isinstance(given, (dist.ProcessGroup, dist.DeviceMesh)):
        return True
    return all(hasattr(given, name) for name in ("rank", "size", "all_gather", "all_gather_object"))


def _of_torch(group: dist.ProcessGroup) -> Group:
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    devices = tuple(pair.split(":")[0] for pair in config.split(","))
    size = group.size()

    def gather(tensor: Tensor) -> Sequence[Tensor]:
        if tensor.device.type not in devices:
            tensor = tensor.to(devices[0])
        found = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(found, tensor.contiguous(), group=group)
        return found

    def gather_objects(obj: Any) -> list[Any]:
        found: list[Any] = [None] * size
        dist.all_gather_object(found, obj, group=group)
        return found

    return Group(group.rank(), size, gather, gather_objects)


def _only_mine(mine: Any) -> list[Any]:
    return [mine]


ALONE = Group(0, 1, _only_mine, _only_mine)  # this process alone, whose rows may come in pieces


# ---------------------------------------------------------------- agreement


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
