"""Counts the operations that a call issues to a device other than the CPU, without such a device.

The device is torch's `meta`, which has shapes and no numbers. Reading a value raises there, and so does an operation
on tensors of two devices. An index is built and used once on the CPU, and then moved with all that it has cached.
Kernels are counted and not run.
"""

from __future__ import annotations

import copy
import math
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fibration import Hierarchy
from fibration import pipeline as compiling
from fibration.language.report import Report
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator
from fibration.runtime.prepared import KEPT

ELSEWHERE = torch.device("meta")


@dataclass
class Issued:
    """`work`: operations that run on the device, by name; `copies`: what came from the host or went there."""

    work: Counter[str] = field(default_factory=Counter)
    copies: list[str] = field(default_factory=list)


class _Counting(TorchDispatchMode):
    def __init__(self, found: Issued, device: str) -> None:
        super().__init__()
        self.found, self.device = found, device

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        devices = {t.device.type for t in tensors_in((args, kwargs, result))}
        name = operation.overloadpacket.__name__
        if len(devices) > 1:
            self.found.copies.append(name)
        if not operation.is_view and name not in ("empty", "empty_like", "detach") and self.device in devices:
            self.found.work[name] += 1
        return result


@contextmanager
def counted(patch: pytest.MonkeyPatch, device: str = "meta") -> Iterator[Issued]:
    """Count what is issued meanwhile on a device. Tensors that are made of the host's numbers are copies, which no mode sees."""
    found = Issued()

    def noted(name: str, make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            result = make(*args, **kwargs)
            found.copies += [f"torch.{name}"] if result.device == ELSEWHERE else []
            return result

        return made

    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        patch.setattr(torch, name, noted(name, getattr(torch, name)))
    with _Counting(found, device):
        yield found
    patch.undo()


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from tensors_in(v)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def elsewhere(value: Any, done: dict[int, Any] | None = None) -> Any:
    """`value` with everything that lies on the CPU taken to the device, and nothing more worked out."""
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        return value.to(ELSEWHERE)
    if isinstance(value, torch.device):
        return ELSEWHERE
    if isinstance(value, dict):
        # functions of kept calls have tensors on the CPU; a call that is counted is checked anew in any case
        return type(value)({k: elsewhere(v, done) for k, v in value.items() if k != KEPT})
    if isinstance(value, tuple):
        parts = [elsewhere(v, done) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value).__module__.startswith("fibration.runtime"):
        moved = done[id(value)] = copy.copy(value)  # known before its parts are: they may have it as one of theirs
        for name, v in vars(value).items():
            object.__setattr__(moved, name, elsewhere(v, done))
        return moved
    return value


# ---------------------------------------------------------------- operators whose kernels are counted


@dataclass
class _Kernel:
    """In a kernel's place: `kernel[grid](...)` notes the launch."""

    name: str
    launches: list[str]
    arg_names: Sequence[str] = ()

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            assert all(a is None or isinstance(a, (int, Tensor)) for a in args), f"{self.name}: {args}"
            assert len({a.device for a in tensors_in(args)}) == 1, f"{self.name}: arguments on several devices"
            self.launches.append(self.name)

        return launch


def counting_operator(
    hierarchy: Hierarchy, backend: str, patch: pytest.MonkeyPatch, *cut: bool
) -> tuple[Operator, list[str]]:
    """An operator of its own, and the kernels that it has launched; also for batches on ranks whose rows are `cut`."""
    launches: list[str] = []
    if backend == "triton":
        from fibration.backends.triton import load

        def imported(name: str, source: str, whole: Any = load.import_from_cache) -> types.ModuleType:
            module = whole(name, source)
            for word, value in vars(module).items():
                if "_sweep_" in word or "_coarse_" in word:
                    vars(module)[word] = _Kernel(word, launches, value.arg_names)
                    assert not isinstance(value, types.FunctionType)
                elif word in ("scan", "quantile"):  # functions with launches of their own
                    own = {k: _Kernel(k, launches) for k in ("along", "digits")}
                    vars(module)[word] = types.FunctionType(value.__code__, value.__globals__ | own)
            return module

        patch.setattr(load, "import_from_cache", imported)
    made = compiling.emit(hierarchy, backend, programs(hierarchy))
    op = Operator(hierarchy, Report(hierarchy, ()), backend, made.source, made.programs, compiling.load(made), None)
    for rows in cut:
        op.calls.on(torch.device("cpu")).run.collectives("gate", rows)
    patch.undo()
    return op, launches


def called(op: Operator, index: Index, shape: tuple[int, ...], parameters: Any = None) -> dict[str, Callable[[], Any]]:
    """Every call of an operator on one batch, with tensors on the device of the index."""
    numbers = torch.linspace(-0.5, 0.25, math.prod(shape)).reshape(shape)
    x, old, advantages = (t.to(index.device) for t in (numbers, numbers / 2, torch.ones(shape)))
    per_row = torch.ones(index.n_rows).to(index.device)

    def loss() -> None:
        now = x.clone().requires_grad_()
        op.loss(now, old, advantages, index, parameters).loss.backward()

    def gate() -> None:
        now = x.clone().requires_grad_()
        op.gate(now, index, parameters, advantages=advantages).sum().backward()

    return {
        "loss": loss,
        "coefficients": lambda: op.coefficients(x, old, advantages, index, parameters, metrics=False),
        "advantages per row": lambda: op.coefficients(x, old, per_row, index, parameters, metrics=False),
        "gate": gate,
        "levels": lambda: op.levels(x, index, parameters, advantages=advantages),
    }
