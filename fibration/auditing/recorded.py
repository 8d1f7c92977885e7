"""The gradients of a model while a step runs: what each backward pass adds, and what the optimizer gets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fibration.runtime.noise import silenced

SAMPLE = 256  # elements of a parameter that are kept of every backward pass
COARSE = (torch.bfloat16, torch.float16)


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this rank has; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require grad, each once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Recorded:
    """The gradients of a model's parameters from `with recorded:` on.

    `passes`: of every backward pass, sampled elements of what it adds to each parameter, float64 `[n]`. `found`: the
    gradient of each parameter as the optimizer's step begins, or else at the end; None where it has none. `steps`: how
    often one optimizer began a step. `unstepped`: parameters of which no optimizer began a step, if another began one.
    `dtype`: the coarsest dtype in which a layer computed.

    An optimizer that begins a step finds no gradients left, so that it changes nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.named = model, trained(model)
        self.passes: list[dict[str, Tensor]] = []
        self.found: dict[str, Tensor | None] = {}
        self.steps = 0
        self._begun: dict[int, int] = {}  # by optimizer
        self._held: set[str] = set()  # parameters of optimizers that began a step
        self.unstepped: tuple[str, ...] = ()
        self.dtype = torch.float64
        self._names = {id(p): name for name, p in self.named.items()}
        self._order = {name: i for i, name in enumerate(self.named)}
        self._places: dict[str, Tensor] = {}
        self._arrived: dict[str, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Recorded:
        for name, p in self.named.items():
            self._handles.append(p.register_hook(lambda g, name=name: self._arrive(name, g)))
            self._handles.append(p.register_post_accumulate_grad_hook(lambda _, name=name: self._add(name)))
        for module in self.model.modules():
            if not any(True for _ in module.children()):
                self._handles.append(module.register_forward_hook(self._see))
        self._handles.append(register_optimizer_step_pre_hook(self._begin_step))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def read(self) -> None:
        """Read the gradients that no optimizer has begun a step with."""
        self.unstepped = tuple(name for name in self.named if name not in self._held) if self.steps else ()
        self._read([name for name in self.named if name not in self.found])

    def sample(self, name: str, gradient: Tensor) -> Tensor:
        """The elements of a parameter's gradient that are kept of every backward pass, float64 `[n]`, on the CPU."""
        flat = local(gradient.detach())
        flat = flat.to_dense().reshape(-1) if flat.is_sparse else flat.reshape(-1)
        if name not in self._places:
            draw = torch.Generator().manual_seed(self._order[name])  # the same places in every run
            n = flat.numel()
            places = torch.arange(n) if n <= SAMPLE else torch.randint(n, (SAMPLE,), generator=draw)
            self._places[name] = places.to(flat.device)
        return flat[self._places[name]].double().cpu()

    def _arrive(self, name: str, gradient: Tensor) -> None:
        self._arrived[name] = self.sample(name, gradient)

    def _add(self, name: str) -> None:
        """What arrived is in the parameter's gradient now; what `torch.autograd.grad` returns never is.

        Of a sharded parameter nothing arrives: FSDP puts its gradient there.
        """
        if name not in self._arrived:
            return
        if not self.passes or name in self.passes[-1]:  # a parameter gets its gradient once in a backward pass
            self.passes.append({})
        self.passes[-1][name] = self._arrived.pop(name)

    def _see(self, _: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            self.dtype = max(self.dtype, output.dtype, key=lambda t: torch.finfo(t).eps)

    def _begin_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        given = [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._names]
        self._held |= {self._names[id(p)] for p in given}
        if all(p.grad is None for p in given):
            return
        self._begun[id(optimizer)] = self._begun.get(id(optimizer), 0) + 1
        self.steps = max(self._begun.values())
        self._read([name for p in given if (name := self._names[id(p)]) not in self.found])
        for p in given:
            p.grad = None

    def _read(self, names: list[str]) -> None:
        for name in names:
            gradient = self.named[name].grad
            self.found[name] = None if gradient is None else local(gradient.detach()).clone()


@contextmanager
def as_found(model: nn.Module, move: float = 0.0) -> Iterator[None]:
    """The body begins without gradients, and without dropout. After it, the model's weights, buffers, gradients and
    modes are as before, and so are the generators of random numbers of torch, numpy and Python.

    `move`: by how much every weight is changed at random for the body, relative to the root mean square of its
    parameter; equally on all ranks.
    """
    state = [(t, local(t.detach()).clone()) for t in (*model.parameters(), *model.buffers())]
    gradients = [(p, p.grad, None if p.grad is None else local(p.grad).clone()) for p in model.parameters()]
    modes = [(m, m.training) for m in model.modules()]
    drawn = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    for p in model.parameters():
        p.grad = None
    try:
        with torch.random.fork_rng(devices), silenced(model):
            draw = torch.Generator().manual_seed(0)
            for p in trained(model).values() if move else ():
                mine = local(p.detach())
                size = mine.float().pow(2).mean().sqrt() * move
                mine.add_((torch.randn(mine.shape, generator=draw).to(mine.device) * size).to(mine.dtype))
            yield
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
        with torch.no_grad():
            for t, before in state:
                if not torch.equal(local(t), before):
                    local(t).copy_(before)
            for p, gradient, values in gradients:
                if gradient is not None and values is not None:
                    local(gradient).copy_(values)
                p.grad = gradient
        for module, mode in modes:
            module.training = mode
