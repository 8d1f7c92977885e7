"""The ranks that share one batch, and their communication."""

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
    """The interface of `op.index(..., group=)`, beside groups of torch.distributed. All ranks make the same calls in
    one order.

    `all_gather` returns the tensors of all ranks in order; they have one shape and dtype. The result is a sequence, or
    one tensor with an additional first dimension. Sent and received tensors are never written to.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_gather(self, tensor: Tensor, /) -> Sequence[Tensor] | Tensor: ...
    def all_gather_object(self, obj: Any, /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Communicator:
    """A group whose failures are RanksErrors that name what was gathered."""

    group: Group
    rank: int
    size: int

    def all_gather(self, tensor: Tensor, what: str) -> Tensor:
        """The tensors of all ranks, [size, ...], on the device of `tensor`."""
        found = self._gathered(what, lambda: self.group.all_gather(tensor))
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
        return list(self._gathered(what, lambda: self.group.all_gather_object(obj)))

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


def as_group(given: Any) -> Communicator:
    """A group of torch.distributed, a device mesh of one dimension, or any object with the members of `Group`."""
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
            given = _TorchGroup(given)
        elif isinstance(given, int) and given == dist.GroupMember.NON_GROUP_MEMBER:
            raise RanksError(
                "this process is not a member of the group", remedy="call op.index only on the group's ranks"
            )
    if not is_group(given):
        raise RanksError(
            f"the group is {an(type(given).__name__)}",
            required="a group of torch.distributed, or an object with rank, size, all_gather and all_gather_object",
            remedy="pass dist.group.WORLD if all ranks share the batch; labels take their stratum's name as keyword",
        )
    if isinstance(given, Communicator):
        return given
    if not (isinstance(given.rank, int) and isinstance(given.size, int) and 0 <= given.rank < given.size):
        raise RanksError(
            f"the group has rank {shown(given.rank)} and size {shown(given.size)}",
            required="two whole numbers, the first below the second",
            remedy="number ranks from 0; the size is their number",
        )
    return Communicator(given, given.rank, given.size)


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
    """The group of this process alone, whose rows may come in pieces."""

    rank, size = 0, 1

    def all_gather(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor]

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj]


ALONE = Communicator(_Alone(), 0, 1)
