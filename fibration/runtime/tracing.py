"""Calls under torch.compile, torch.func transforms, tracers, and tensors without values or with a graph.

torch.compile and `torch.func.grad` call custom torch operators (`compiled.py`). Anything that would record the numbers
of one call as constants, or has no numbers, is refused. So is a tensor that requires grad and gets no gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fibration.errors import BatchError, FibrationError, ParameterError

P = ParamSpec("P")
T = TypeVar("T")
CONSTANTS = "coefficients depend on the batch, and a trace would keep them as constants"
OUTSIDE = "call it outside the trace, on tensors with values; torch.compile and torch.func.grad are supported"
# Unsupported transforms of torch.func, each with the reason and what to do instead.
TRANSFORMS = {
    "Vmap": ("torch.func.vmap", "every call sees one whole batch", "call it once per batch, in a loop"),
    "Jvp": ("torch.func.jvp", "calls have gradients but no tangents", "use torch.func.grad or backward()"),
    "Functionalize": ("torch.func.functionalize", CONSTANTS, OUTSIDE),
}


def is_followed() -> bool:
    """Whether a call uses custom torch operators. Raises BatchError where it cannot."""
    if torch.compiler.is_dynamo_compiling():
        # `is_exporting()` is always true in here with torch 2.11; the flag is there since torch 2.7
        if getattr(torch.compiler, "_is_exporting_flag", False):
            raise NotImplementedError(f"torch.export of a call of an operator: {CONSTANTS}")  # torch prints this text
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    for level in torch._C._functorch.get_interpreter_stack() or ():
        if level.key().name in TRANSFORMS:
            raise _refusal(*TRANSFORMS[level.key().name])
    return True


def refuse_traces() -> None:
    """Refuse tracers, which would record the numbers of a call as constants."""
    if torch._C._get_tracing_state() is not None:
        raise _refusal("torch.jit.trace", CONSTANTS, OUTSIDE)
    if torch._C._len_torch_dispatch_stack():
        for mode in map(type, _get_current_dispatch_mode_stack()):
            if mode.__module__.startswith(("torch._subclasses.", "torch.fx.")):
                raise _refusal(mode.__name__, CONSTANTS, OUTSIDE)


def refuse_kind(name: str, tensor: object) -> None:
    """Refuse tensors without values in contiguous memory, and tensors with a tangent."""
    kind: Any = type(tensor)
    if kind.__module__.startswith("torch.fx."):
        raise _refusal("torch.fx", CONSTANTS, "torch.fx.wrap a function of yours that makes the call")
    if not isinstance(tensor, Tensor):
        return
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or tensor.is_nested or tensor.layout != torch.strided:
        remedy = "pass .to_local(), this rank's part" if hasattr(tensor, "to_local") else "pass it padded or packed"
        raise BatchError(
            f"{name}: {'nested ' * tensor.is_nested}{kind.__name__} of layout {tensor.layout}",
            required="a strided tensor with values in the memory of its device",
            remedy=remedy,
        )
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise _refusal("forward-mode differentiation", *TRANSFORMS["Jvp"][1:])


def skip_dynamo(method: Callable[P, T]) -> Callable[P, T]:
    """A method that torch.compile does not trace: it breaks the graph and calls the method."""
    uncompiled: Callable[P, T] = torch._disable_dynamo(method)

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return (uncompiled if torch.compiler.is_dynamo_compiling() else method)(*arguments, **named)

    return call


def refuse_transforms(method: Callable[P, T]) -> Callable[P, T]:
    """A method that torch.compile does not trace, and that refuses transforms of torch.func."""

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        if torch._C._are_functorch_transforms_active():
            raise _refusal("a transform of torch.func", "its result has no gradient", "call it outside")
        return method(*arguments, **named)

    return skip_dynamo(call)


def _refusal(what: str, why: str, remedy: str) -> BatchError:
    return BatchError(f"a call of an operator under {what}", required="none: " + why, remedy=remedy)


# ---------------------------------------------------------------- numbers that stand for objects


class Handles(Generic[T]):
    """Numbers that stand for objects in torch operators, which take tensors and numbers only. References are weak.

    `what` names the objects in errors.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._known: WeakValueDictionary[int, T] = WeakValueDictionary()
        self._next = itertools.count(1)

    def number(self, thing: T) -> int:
        number = next(self._next)
        self._known[number] = thing
        return number

    def tensor(self, thing: T) -> Tensor:
        """The number as an int64 tensor `[]` on the CPU: torch.compile does not recompile when a tensor changes."""
        with torch.inference_mode(False):
            return torch.full((), self.number(thing), dtype=torch.int64, device="cpu")

    def of(self, number: int) -> T:
        found = self._known.get(number)
        if found is None:
            raise BatchError(
                f"a compiled function uses {self.what} that no longer exists",
                required=f"{self.what} that lives until the end of the backward pass",
                remedy="keep a reference to it",
            )
        return found


INDEXES: Handles[object] = Handles("an index")
OPERATORS: Handles[object] = Handles("an operator")


# ---------------------------------------------------------------- tensors that require grad

# The tensor that gets a gradient, by program.
GRADIENT_INPUTS = {
    **dict.fromkeys(("evaluate", "objective", "micro"), "only log_probs get a gradient"),
    "prologue": "frozen sums are constants, and have no gradient",
    "gate": "only log_ratio gets a gradient",
    "levels": "levels have no gradient",
    "advantages": "advantages from rewards are constants, and have no gradient",
}


def refuse_graphs(program: str, parameters: object, policies: object, **tensors: object) -> None:
    """Refuse tensors that require grad and get no gradient; `tensors` by argument name.

    Only for calls that record gradients: under `torch.no_grad()` nobody expects a gradient.
    """
    dropped = has_graph(parameters, policies, **tensors)
    if dropped:
        raise refused_graph(program, *dropped)


def has_graph(parameters: object, policies: object, **tensors: object) -> tuple[str, bool] | None:
    """The first argument that requires grad and gets none, and whether it is a parameter; None if there is none."""
    named = {name: t for name, t in tensors.items() if name not in ("log_probs", "log_ratio")}
    if isinstance(policies, Mapping):
        named.update({f"policies[{name!r}]": t for name, t in policies.items()})
    for name, tensor in named.items():
        if requires_grad(tensor):
            return name, False
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            if requires_grad(value):
                return name, True
    return None


def refused_graph(program: str, name: str, is_parameter: bool) -> FibrationError:
    if is_parameter:
        return ParameterError(
            f"parameter '{name}' requires grad",
            required=f"values that do not: {GRADIENT_INPUTS[program]}",
            remedy="pass its .detach(), or a number",
        )
    return BatchError(
        f"{name} {'require' if name.endswith('s') else 'requires'} grad",
        required=f"a tensor that does not: {GRADIENT_INPUTS[program]}",
        remedy=f"pass {name}.detach()",
    )


def requires_grad(value: object) -> bool:
    """Whether a value, or a value inside it, is a tensor that requires grad."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(map(requires_grad, value.values()))
    return isinstance(value, (list, tuple)) and any(map(requires_grad, value))


def differentiated_again() -> BatchError:
    return BatchError(
        "a gradient of this operator is differentiated again",
        required="first derivatives: the coefficients are constants of the backward pass",
        remedy="call backward() without create_graph=True, or detach() the operator's gradient first",
    )
