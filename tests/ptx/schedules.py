"""Operators whose kernels run on the emulator, under several schedules of their blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oracles.backend_cases import Backend
from support import _operator

from fibration import Hierarchy
from fibration.runtime.operator import Operator
from ptx.device import Device
from ptx.emit import Emitter


@dataclass(frozen=True)
class OnDevice(Backend):
    """The Triton backend on the device in use."""

    name: str = "triton"
    made: dict[Hierarchy, Operator] = field(default_factory=dict)

    def operator(self, hierarchy: Hierarchy) -> Operator:
        if hierarchy not in self.made:
            self.made[hierarchy] = _operator.__wrapped__(hierarchy, "triton", None)
        return self.made[hierarchy]


def scheduled(emitter: Emitter, check: Callable[[Backend], None], seeds: int = 2) -> None:
    """`check` on a device per schedule: all leave the same bits behind, in results and workspaces."""
    devices = []
    for seed in range(seeds):
        devices.append(Device(emitter, seed))
        with devices[-1].used():
            check(OnDevice())
    launches = [[(each.kernel, each.left) for each in device.launches] for device in devices]
    assert launches[0] and all(one == launches[0] for one in launches)
