"""Triton's driver for a GPU that is not there: kernels are compiled to PTX, and launches are noted and not run.

A process that uses it must not interpret kernels, so `test_launches.py` starts one (`kept_launches.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

STREAM = 1000  # device n has the stream 1000·n at first


@dataclass(frozen=True)
class Launched:
    """A launch: the compiled kernel, its grid, device and stream, and the arguments that are no constants, by name."""

    kernel: str
    compiled: int
    grid: tuple[int, ...]
    device: int
    stream: int
    arguments: dict[str, int]


@dataclass
class StandIn:
    """Launches are noted per thread."""

    device: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    notes: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.launcher_cls = lambda src, metadata: Launcher(self, src)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
            load_binary=lambda name, kernel, shared, device: (object(), object(), 32, 0, 1024),
        )

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return self.streams.get(device, STREAM * device)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    @contextmanager
    def noted(self) -> Iterator[list[Launched]]:
        """The launches of this thread meanwhile."""
        before, self.notes.found = getattr(self.notes, "found", None), []
        yield self.notes.found
        self.notes.found = before


@dataclass(frozen=True)
class Launcher:
    """Takes what the launcher of triton 3.3 and later takes: a value for each name of the signature, constants too."""

    driver: StandIn
    src: Any

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: object,
        packed: object,
        metadata: object,
        enter: Any,
        leave: Any,
        *values: Any,
    ) -> None:
        enter(metadata)
        names = list(self.src.signature)
        assert len(values) == len(names), (values, names)
        given = dict(zip(names, values, strict=True))
        for (place,), constant in self.src.constants.items():
            assert values[place] == constant, f"{names[place]} is {values[place]}, and was compiled as {constant}"
        arguments = {
            name: _address(given[name]) if kind[0] == "*" else given[name]
            for name, kind in self.src.signature.items()
            if kind != "constexpr"
        }
        for (place,), attributes in self.src.attrs.items():
            for name, number in attributes:
                assert name == "tt.divisibility" and arguments[names[place]] % number == 0, names[place]
        found = getattr(self.driver.notes, "found", None)
        if found is not None:
            here = self.driver.device
            found.append(Launched(self.src.name, id(self.src), (x, y, z), here, stream, arguments))
        leave(metadata)


def _address(value: Any) -> int:
    """Like Triton's launchers, which take integers, and tensors by their `data_ptr`."""
    return value if isinstance(value, int) else int(value.data_ptr())


def installed() -> StandIn:
    """The driver that Triton uses from now on. `ptxas` is left out, because nothing runs machine code."""

    def without_machine_code(*asked: Any) -> Any:
        if not asked:
            return "ptx", "ptx"
        asked[1]["cubin"] = lambda source, metadata: b""
        return None

    knobs.runtime.add_stages_inspection_hook = without_machine_code
    found = StandIn()
    driver.set_active(found)
    return found
