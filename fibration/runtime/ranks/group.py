"""The ranks that hold one batch together, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fibration.errors import RanksError, an, shown

T = TypeVar("T")


class Group(Protocol):
    """What `op.index(..., group=)` takes beside groups of torch.distributed; every rank makes the same calls in the
    same order.

    `all_gather` gives the tensors of all ranks in their order, which have one shape and dtype; as a sequence, or as one
    tensor with one more dimension in front. Nobody writes to a tensor that was sent or received.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_gather(self, tensor: Tensor, /) -> Sequence[Tensor] | Tensor: ...
    def all_gather_object(self, obj: Any, /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Ranked:
    """A group whose failures are RanksErrors: each names what was gathered when a rank was missing."""

    group: Group
    rank: int
    size: int

    def all_gather(self, tensor: Tensor, what: str) -> Tensor:
        """[size, ...]: the tensors of all ranks, on the device of this rank's."""
        found = self._gathered(what, lambda: self.group.all_gather(tensor))
        parts = [found[rank].to(tensor.device) for rank in range(len(found))]
        if any(part.shape != tensor.shape or part.dtype != tensor.dtype for part in parts):
            raise RanksError(
                f"{what}: ranks sent tensors that differ",
                required=f"{list(tensor.shape)} of {tensor.dtype} from each",
                found=", ".join(f"{list(p.shape)} of {p.dtype} from rank {i}" for i, p in enumerate(parts)),
                remedy="look for a rank that made other calls",
            )
        return torch.stack(parts)

    def all_gather_object(self, obj: Any, what: str) -> list[Any]:
        """What every rank gave, in the order of ranks."""
        return list(self._gathered(what, lambda: self.group.all_gather_object(obj)))

    def _gathered(self, what: str, gather: Callable[[], Any]) -> Any:
        try:
            found = gather()
        except Exception as error:  # of any kind: each transport has its own
            raise RanksError(
                f"{what}: rank {self.rank} could not gather from the {self.size} ranks of its group",
                required="every rank makes the same calls in the same order, and none ends before the others",
                found=f"{type(error).__name__}: {error}",
                remedy="look for a rank that ended, failed elsewhere or left this call out; the group has its own "
                "timeout",
            ) from error
        if len(found) != self.size:
            raise RanksError(
                f"{what}: gathered from {len(found)} ranks",
                required=f"{self.size}, the group's size",
                remedy="return one entry for each rank from the group's all_gather and all_gather_object",
            )
        return found


def as_group(given: Any) -> Ranked:
    """A group of torch.distributed, a device mesh of one dimension, or any object with the members of `Group`."""
    if dist.is_available():
        if isinstance(given, dist.DeviceMesh):
            if given.ndim != 1:
                raise RanksError(
                    f"the group is a device mesh of {given.ndim} dimensions",
                    required="one: the ranks among which the batch is spread",
                    remedy=_dimensions(given.mesh_dim_names),
                )
            given = given.get_group()
        if isinstance(given, dist.ProcessGroup):
            given = _TorchGroup(given)
        elif isinstance(given, int) and given == dist.GroupMember.NON_GROUP_MEMBER:
            raise RanksError(
                "this process is no member of the group", remedy="call op.index on the group's ranks alone"
            )
    if not is_group(given):
        raise RanksError(
            f"the group is {an(type(given).__name__)}",
            required="a group of torch.distributed, or an object with rank, size, all_gather and all_gather_object",
            remedy="pass dist.group.WORLD where every rank has a part of the batch, and labels by their stratum's name",
        )
    if isinstance(given, Ranked):
        return given
    if not (isinstance(given.rank, int) and isinstance(given.size, int) and 0 <= given.rank < given.size):
        raise RanksError(
            f"the group has rank {shown(given.rank)} and size {shown(given.size)}",
            required="two whole numbers, the first below the second",
            remedy="count ranks from 0, and give as size how many there are",
        )
    return Ranked(given, given.rank, given.size)


def _dimensions(names: Sequence[str] | None) -> str:
    """Which part of a mesh is the group; one dimension of several that share out tokens would lose some of them."""
    first, several = (repr(names[0]), ", ".join(map(repr, names[:2]))) if names else ("'dp'", "'dp', 'cp'")
    named = "" if names else "name its dimensions (mesh_dim_names=), and "
    return (
        f"{named}pass the one along which ranks have different tokens, as mesh[{first}]; if there are several, these "
        f"together, as mesh[{several}]._flatten()"
    )


def is_group(given: Any) -> bool:
    """Whether it could be one, rather than the labels of a stratum called `group`."""
    if dist.is_available() and isinstance(given, (dist.ProcessGroup, dist.DeviceMesh)):
        return True
    return all(hasattr(given, name) for name in ("rank", "size", "all_gather", "all_gather_object"))


class _TorchGroup:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
        self.devices = tuple(pair.split(":")[0] for pair in config.split(","))

    def all_gather(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.device.type not in self.devices:
            tensor = tensor.to(self.devices[0])
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor.contiguous(), group=self.group)
        return found

    def all_gather_object(self, obj: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, obj, group=self.group)
        return found


class _Alone:
    """A group of this process, in which rows may come in pieces."""

    rank, size = 0, 1

    def all_gather(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor]

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj]


ALONE = Ranked(_Alone(), 0, 1)
