"""Calls of the library through the emulator: the launchers of generated modules, with kernels that run as PTX."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, UntypedStorage

from fibration.backends.triton import load
from ptx.emit import Emitter
from ptx.launch import launch
from ptx.memory import Bytes, Memory
from ptx.parse import parse

APART = 256  # bytes between allocations
GARBAGE = 0xFF  # in fresh memory: a NaN, or -1
Edit = Callable[[str], str]


@dataclass
class Fresh:
    """Memory from `torch.empty` or `new_empty`: what was in it when it was last looked at, and which of that somebody wrote."""

    tensor: Tensor  # held, so that no other memory gets its address
    content: Bytes
    written: np.ndarray


class Launch(NamedTuple):
    """A kernel of the module in a file; how often it executed each opcode, and a digest of what it left in fresh memory."""

    path: str
    kernel: str
    executed: Counter[str]
    left: str


@dataclass
class Device:
    """Where the kernels of a test run, each after an `edit` of its PTX."""

    emitter: Emitter
    seed: int = 0
    edit: Edit = str
    launches: list[Launch] = field(default_factory=list)
    fresh: dict[int, Fresh] = field(default_factory=dict)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Operators that are made meanwhile run here, meanwhile."""
        load.interpreted()  # says what lacks, where Triton does
        made, empty = load.import_from_cache, torch.empty

        def module(name: str, source: str) -> ModuleType:
            from triton.runtime.jit import KernelInterface

            found = made(name, source)
            for word, value in vars(found).items():
                if isinstance(value, KernelInterface):
                    setattr(found, word, _Emulated(self, str(found.__file__), value))
                elif word in ("scan", "quantile"):  # functions with launches of their own
                    own = {
                        k: _Emulated(self, value.__code__.co_filename, value.__globals__[k])
                        for k in ("along", "digits")
                    }
                    setattr(found, word, FunctionType(value.__code__, value.__globals__ | own))
            return found

        def nobody_wrote(*size: Any, **options: Any) -> Tensor:
            tensor = empty(*size, **options)
            content = _bytes(tensor.untyped_storage())
            content[:] = GARBAGE
            if len(content):
                self.fresh[tensor.data_ptr()] = Fresh(tensor, content.copy(), np.zeros(len(content), bool))
            return tensor

        def nobody_wrote_like(like: Tensor, *size: Any, **options: Any) -> Tensor:
            if size == (0,):  # grows later, which memory that is looked at cannot
                return empty(0, **{"dtype": like.dtype, **options})
            return nobody_wrote(*size, **{"dtype": like.dtype, "device": like.device, **options})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(load, "interpreted", lambda: True)
            patch.setattr(load, "import_from_cache", module)
            patch.setattr(torch, "empty", nobody_wrote)
            patch.setattr(Tensor, "new_empty", nobody_wrote_like)
            yield

    def launch(
        self, path: str, kernel: Any, blocks: int, arguments: Sequence[Any], warps: int, constants: dict[str, object]
    ) -> None:
        text, shared = self.emitter.ptx(path, kernel, arguments, constants, warps)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in tensors)}
        memory = Memory(sum(s.nbytes() + 2 * APART for s in storages.values()) + APART, "global")
        base, end = {}, 0
        for address, storage in storages.items():
            base[address] = end = (end // APART + 1) * APART + address % APART
            content = _bytes(storage)
            memory.bytes[end : end + len(content)] = content
            memory.written[end : end + len(content)] = self._written(address, content)
            end += len(content)
        for t in tensors:
            start = base[t.untyped_storage().data_ptr()] + t.storage_offset() * t.element_size()
            long = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
            stop = start + long * t.element_size()
            memory.allocated[start:stop] = True
            vector = 4 * t.element_size()
            memory.beside[stop : -(-stop // vector) * vector] = long > 0
        memory.beside &= ~memory.allocated
        given = [
            base[a.untyped_storage().data_ptr()] + a.storage_offset() * a.element_size() if isinstance(a, Tensor) else a
            for a in arguments
            if a is not None
        ]
        executed = launch(parse(self.edit(text)), blocks, given, memory, shared, self.seed)
        left = hashlib.sha256()
        for address, storage in storages.items():
            content = _bytes(storage)
            here = slice(base[address], base[address] + len(content))
            content[:] = memory.bytes[here]
            if address in self.fresh:
                self.fresh[address].content, self.fresh[address].written = content.copy(), memory.written[here].copy()
                left.update(content)
        self.launches.append(Launch(path, kernel.__name__, executed, left.hexdigest()))

    def _written(self, address: int, content: Bytes) -> np.ndarray:
        """Which bytes somebody has written: kernels, or torch, which leaves what it has not changed."""
        if address not in self.fresh:
            return np.ones(len(content), bool)
        fresh = self.fresh[address]
        return np.asarray(fresh.written | (content != fresh.content))


@dataclass
class _Emulated:
    """A kernel of a generated module, launched as `kernel[grid](...)`."""

    device: Device
    path: str
    kernel: Any

    arg_names = property(lambda self: self.kernel.arg_names)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def run(*arguments: Any, num_warps: int, **constants: Any) -> None:
            self.device.launch(self.path, self.kernel, grid[0], arguments, num_warps, constants)

        return run


def _bytes(storage: UntypedStorage) -> Bytes:
    """A view of it."""
    found: Bytes = torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
    return found
