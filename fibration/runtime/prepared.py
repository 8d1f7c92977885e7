"""Calls that were checked once on an index: the next call of the same kind looks whether its tensors fit, and launches.

Whatever does not fit takes the checked way (`calls.py`), which has all messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fibration.compiler.arguments import TOKENS
from fibration.compiler.ir import Input, Key
from fibration.runtime import devices
from fibration.runtime.batch import GIVEN_TENSOR, Batch, Launcher, Outputs, given_of, tensors_of
from fibration.runtime.index.index import Index
from fibration.runtime.inputs import at_elements, exchanged, sample_of
from fibration.runtime.metrics import Asked
from fibration.runtime.parameters import plain

NONFINITE = Key("nonfinite")
KEPT = "prepared calls"  # in the cache of an index
POLICY = TOKENS["policy_log_prob"].called
MANY = 16  # kinds of calls that an index keeps; then it forgets them
KINDS = (Tensor, torch.nn.Parameter)  # subclasses may have no values, or other ones


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call on an index. `needs`: the name, dtype and shape of every tensor that it reads."""

    program: str
    asked: Asked
    launch: Launcher
    needs: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    given: tuple[Input, ...]  # vectors of advantages or rewards
    per_row: bool
    dtype: torch.dtype
    looks: bool  # whether the device lets a call read values
    sample: Tensor | None  # places of a few tokens, if advantages may be log-probs in the wrong place

    def fits(self, tensors: Mapping[str, Any], index: Index, graph: bool) -> bool:
        """Whether the call takes these tensors, by name. `graph`: whether gradients are being recorded."""
        device = index.device
        if len(tensors) != len(self.needs):
            return False
        for name, dtype, shape in self.needs:
            tensor: Any = tensors.get(name)
            if type(tensor) not in KINDS or tensor.is_nested or tensor.dtype is not dtype or tensor.shape != shape:
                return False
            if tensor.layout is not torch.strided or tensor.device != device:
                return False
            if graph and tensor.requires_grad and name != "log_probs":  # which alone gets a gradient
                return False
        if self.sample is None or tensors[GIVEN_TENSOR].detach().reshape(-1)[self.sample].amax().item() > 0:
            return True
        return exchanged(tensors, index, tensors[GIVEN_TENSOR]) is None


def key_of(calls: object, index: object, parameters: object, policies: object, metrics: object) -> Hashable | None:
    """What calls of one kind share on an index; None if a call of this kind is not kept."""
    numbers: object = () if parameters is None else plain(parameters)
    if numbers is None or not isinstance(index, Index) or not (policies is None or type(policies) is dict):
        return None
    if type(metrics) is not bool and type(metrics) is not str:
        if type(metrics) not in (list, tuple):
            return None
        metrics = tuple(metrics)  # type: ignore[arg-type]
    return calls, metrics, numbers


def again(
    key: Hashable, index: Index, tokens: Mapping[str, Any], advantages: Any, policies: Any, graph: bool
) -> tuple[Prepared, Outputs] | None:
    """The call that the index keeps under `key`, and its outputs; None if it has to be checked, or to be explained."""
    kept: dict[Hashable, Prepared] = index.kept(KEPT, dict)
    made = kept.get(key)
    if made is None or torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        return None
    if forward_ad._current_level >= 0 or (not made.looks and devices.is_recording()):
        return None
    tensors = dict(tokens) if advantages is None else {**tokens, GIVEN_TENSOR: advantages}
    if policies:
        tensors |= {POLICY.format(name): tensor for name, tensor in policies.items()}
    if not made.fits(tensors, index, graph):
        return None
    given: dict[Input, Tensor] = {}
    if made.given:
        whole = advantages.detach()
        given = {n: at_elements(n.over, index, n.kind, whole, made.per_row) for n in made.given}
    outputs = made.launch(tensors, given)
    return None if made.looks and outputs.number(NONFINITE) > 0 else (made, outputs)


def keep(index: Index, key: Hashable, asked: Asked, program: str, batch: Batch, launch: Launcher) -> None:
    """Keep the call that was checked with this batch."""
    kept: dict[Hashable, Prepared] = index.kept(KEPT, dict)
    if len(kept) >= MANY:
        kept.clear()
    looks = devices.can_sync(index.device)
    needs = tuple((name, t.dtype, tuple(t.shape)) for name, t in tensors_of(batch).items())
    compared = looks and batch.advantage is not None and not batch.per_row and len(index.every)
    sample = sample_of(index) if compared else None
    given = tuple(given_of(batch))
    kept[key] = Prepared(program, asked, launch, needs, given, batch.per_row, batch.dtype, looks, sample)
