"""The ranks that share one batch, and their communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fibration.errors import RanksError, an, shown


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
