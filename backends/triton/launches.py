"""Launches compiled kernels again, without the dispatch of Triton's just-in-time compiler.

For every launch, the dispatch binds the arguments, finds out how they specialise the kernel, and looks up the compiled
kernel. For calls of one kind on one index, the result is the same each time. So the second call keeps the compiled
kernels with their grids and arguments, and a later call fills in the addresses of its tensors. Many indexes see one
call of a kind, and keep nothing.

Triton's tutorial on fused softmax launches compiled kernels in the same way: `compiled[grid](*values)`. Launch hooks
(profilers) see such launches too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

ALIGNED = 32  # bytes of 4 numbers; what is left of an address decides which kernel Triton compiles, and `is_vector`
Noted = tuple[Any, tuple[int, ...], Mapping[str, object], Any]  # a kernel, its grid and arguments, the compiled kernel
Holes = Sequence[tuple[int, Tensor]]  # the numbers of arguments of the function, and the tensors of one call


# Launches a compiled kernel on its grid; the arguments; and which of them are tensors of a call, with their numbers.
Launch = tuple[Callable[..., object], tuple[object, ...], tuple[tuple[int, int], ...]]


class Launches:
    """One generated function, in calls of one kind on one index.

    `values`: all its arguments by name. `holes`: the names of those that change from call to call, tensors of fixed
    dtypes.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Noted] | None],
        values: Mapping[str, object],
        holes: Sequence[str],
    ) -> None:
        self.function, self.values, self.holes = function, values, tuple(holes)
        self.is_kept = torch.version.hip is None
        # by how the tensors of the call are aligned; None after the first call
        self.kept: dict[tuple[int, ...], list[Launch] | None] = {}
        self.parts = 0  # the numbers that the programs of a launch share
        self.shared: dict[int, tuple[Tensor, Tensor]] = {}  # by stream

    def __call__(self, holes: Holes) -> None:
        if not self.is_kept:
            self.function(**self.arguments(holes))
            return
        addresses = [tensor.data_ptr() for _, tensor in holes]
        aligned = tuple([address % ALIGNED for address in addresses])
        known = self.kept.get(aligned)
        if not known:
            self.first(aligned, holes)
            return
        driver, work = _driver(), holes[-1][1]
        if work.is_cuda and work.get_device() != driver.get_current_device():
            with torch.cuda.device_of(work):
                self.again(known, addresses, driver, work)
        else:
            self.again(known, addresses, driver, work)

    def arguments(self, holes: Holes) -> dict[str, object]:
        return {**self.values, **{name: t for name, (_, t) in zip(self.holes, holes, strict=True)}}

    def first(self, aligned: tuple[int, ...], holes: Holes) -> None:
        """Calls the function. The second time, keeps what it launches."""
        if aligned not in self.kept:
            self.kept[aligned] = None
            self.function(**self.arguments(holes))
            return
        noted = self.function(**self.arguments(holes))
        filled = all(tensor.numel() for _, tensor in holes[:-1])  # `Call` replaces empty tensors, but for the workspace
        self.is_kept = noted is not None and filled and all(map(is_launchable, noted))
        if noted is not None and self.is_kept:
            sizes = (parts.numel() for *_, given, _ in noted if isinstance(parts := given.get("parts"), Tensor))
            self.parts = max(self.parts, *sizes, 0)
            # a launcher takes an integer in place of a tensor, which spares it a call of `data_ptr`
            fixed = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in self.values.items()}
            self.kept[aligned] = [self.launch(n, fixed) for n in noted]

    def launch(self, noted: Noted, fixed: Mapping[str, object]) -> Launch:
        _, grid, arguments, compiled = noted
        number = {name: i for i, name in enumerate((*self.holes, "counter", "parts"))}
        if arguments.get("counter") is None:  # of one program
            del number["counter"]
        given, names = {**arguments, **fixed}, list(compiled.src.signature)
        values = tuple([None if name in number else given[name] for name in names])
        holes = tuple([(place, number[name]) for place, name in enumerate(names) if name in number])
        return compiled[(*grid, 1, 1)[:3]], values, holes

    def again(self, known: list[Launch], addresses: list[int], driver: Any, work: Tensor) -> None:
        """Launches compiled kernels on the current device and stream."""
        stream = driver.get_current_stream(driver.get_current_device())
        addresses += [tensor.data_ptr() for tensor in self.memory(stream, work.device)]
        for run, values, holes in known:
            given = list(values)
            for place, number in holes:
                given[place] = addresses[number]
            run(*given, stream=stream)

    def memory(self, stream: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """What the programs of a launch share: the number of those that have arrived, int32 [1], and parts of sums.

        Every launch leaves 0 in the first. Launches on one stream follow one another, so there is one pair per stream.
        """
        found = self.shared.get(stream)
        if found is None:
            counter = torch.zeros(1, dtype=torch.int32, device=device)
            parts = torch.empty(self.parts, dtype=torch.float64, device=device)
            found = self.shared[stream] = counter, parts
        return found


def is_launchable(noted: Noted) -> bool:
    """Whether the installed Triton launches the compiled kernel as this module does.

    Triton 3.2, 3.3, 3.6, 3.7 and 3.9 do: `kernel[grid](...)` returns the compiled kernel, and `compiled[grid]` takes a
    value for each name of `src.signature`. Constants are among these names since 3.3.
    """
    _, _, arguments, compiled = noted
    kind: type = type(compiled)
    if not _is_compiled(kind):
        return False
    signature = getattr(compiled.src, "signature", None)
    return isinstance(signature, dict) and signature.keys() <= arguments.keys()


def _driver() -> Any:
    """Triton's driver, which knows the current device and its current stream."""
    from triton.runtime import driver  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return driver.active


@cache
def _is_compiled(kind: type) -> bool:
    from triton.compiler import CompiledKernel  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return issubclass(kind, CompiledKernel) and hasattr(kind, "__getitem__")
