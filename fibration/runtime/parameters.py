"""Parameter values of one call: checked against the declared bounds, one number per element where they vary."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fibration.cache import Recent
from fibration.compiler.ir import Input
from fibration.compiler.program import Program
from fibration.errors import ParameterError
from fibration.language.atoms import Parameter
from fibration.language.hierarchy import Hierarchy
from fibration.runtime import devices
from fibration.runtime.index.index import Index

Values = Mapping[Input, Sequence[float]]  # one number, or one per element


def parameter_values(hierarchy: Hierarchy, program: Program, index: Index, given: Mapping[str, Any]) -> Values:
    """The numbers of every parameter input, checked.

    A value is a number, one per channel (`{"+": 0.2, "-": 0.1}`), or one of these per element of the parameter's
    stratum, by label (`{"math": {"+": 0.3, "-": 0.2}, "code": 0.1}`) or as a tensor in element order.
    """
    values = given_values(hierarchy, program, given)
    return {node: _numbers(hierarchy.parameters[node.key[0]], node, value, index) for node, value in values.items()}


def given_values(hierarchy: Hierarchy, program: Program, given: Mapping[str, Any]) -> dict[Input, Any]:
    """What is given for every parameter input, or else its default; raises ParameterError where that is nothing."""
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"parameters are {given!r}", required="a mapping from name to value", remedy="{'epsilon': 0.05}"
        )
    for name in given:
        if name not in hierarchy.parameters:
            known = ", ".join(hierarchy.parameters) or "none"
            raise ParameterError(f"'{hierarchy.name}' has no parameter '{name}'", required=f"one of {known}")
    result: dict[Input, Any] = {}
    for node in program.inputs:
        if node.kind == "parameter":
            parameter = hierarchy.parameters[node.key[0]]
            value = given.get(parameter.name, parameter.default)
            if parameter.name in given and value is None:
                raise ParameterError(
                    f"parameter '{parameter.name}' of '{hierarchy.name}' is None",
                    required="a number",
                    remedy="leave it out to use the default",
                )
            if value is None:
                raise ParameterError(
                    f"parameter '{parameter.name}' of '{hierarchy.name}' has no value",
                    required="a default or a value",
                    remedy=f"pass parameters={{'{parameter.name}': ...}}",
                )
            result[node] = value
    return result


_MADE: Recent[tuple[Tensor, ...]] = Recent(32)


def parameter_vectors(values: Values, index: Index) -> dict[Input, Tensor]:
    """Each as a float64 vector `[elements of its stratum]`, on the device of the index.

    All of them are one copy from the host, which is kept for the next call with these numbers.
    """
    numbers = array("d", (x for given in values.values() for x in given))
    shapes = [(len(given), index.size[node.over]) for node, given in values.items()]

    def make() -> tuple[Tensor, ...]:
        if devices.is_recording():
            raise ParameterError(
                "parameters have values that no call had before this CUDA graph",
                required="values that lie on the device already: nothing is copied while a graph is recorded",
                remedy="make one call with these parameters before the recording",
            )
        with torch.inference_mode(False):
            whole = torch.tensor(numbers, dtype=torch.float64, device=index.device)
            parts = whole.split([given for given, _ in shapes])
            return tuple(part.expand(size) for part, (_, size) in zip(parts, shapes, strict=True))

    key = f"{index.device} {shapes} {hashlib.blake2b(numbers.tobytes()).hexdigest()}"
    made = _MADE.get(key, make)
    if devices.is_recording():
        index.keep(key, made)  # the graph reads them whenever it is replayed
    return dict(zip(values, made, strict=True))


def _numbers(parameter: Parameter, node: Input, value: Any, index: Index) -> Sequence[float]:
    stratum, channel, size = node.over, node.key[1], index.size[node.over]
    if isinstance(value, Tensor) and value.ndim:
        if index.ranks is not None:
            raise ParameterError(
                f"parameter '{parameter.name}' is a tensor in the order of elements",
                required=f"a number, or one for each {stratum} by label: ranks have elements in an order of their own",
                remedy=f"pass {{label: value}} for each {stratum} of the whole batch",
            )
        if tuple(value.shape) != (size,):
            raise ParameterError(
                f"parameter '{parameter.name}' has shape {list(value.shape)}",
                required=f"a number, or one per {stratum}: [{size}]",
            )
        return [parameter.check(v, f"the value of {stratum} {i}") for i, v in enumerate(_on_host(value).tolist())]
    if isinstance(value, Mapping) and not is_channels(value):
        return _per_element(parameter, stratum, channel, value, index)
    return [in_channel(parameter, channel, value, "the value")]


_READ = WeakTensorKeyDictionary()


def _on_host(value: Any) -> Any:
    """A tensor of a device is read back once, and again when it has been changed in place."""
    if not isinstance(value, Tensor) or devices.may_look(value.device):
        return value
    version = None if value.is_inference() else value._version  # inference tensors count no changes
    known, numbers = _READ.get(value, (None, None))
    if version is None or version != known:
        numbers = value.detach().to("cpu", copy=True)
        _READ[value] = (version, numbers)
    return numbers


def is_channels(value: Mapping[Any, Any]) -> bool:
    return set(value) <= {"+", "-"} and bool(value)


def in_channel(parameter: Parameter, channel: str, value: Any, what: str) -> float:
    if isinstance(value, Mapping):
        if not channel:
            raise ParameterError(
                f"parameter '{parameter.name}': {what} is one number per channel",
                required="one number: it is not declared per channel",
            )
        unknown = [c for c in value if c not in ("+", "-")]
        if channel not in value or unknown:
            found = f"channels {', '.join(map(repr, value)) or 'none'}"
            raise ParameterError(
                f"parameter '{parameter.name}': {what} lacks a channel", required="both '+' and '-'", found=found
            )
        return parameter.check(_on_host(value[channel]), f"{what} of channel '{channel}'")
    return parameter.check(_on_host(value), what)


def _per_element(
    parameter: Parameter, stratum: str, channel: str, value: Mapping[Any, Any], index: Index
) -> list[float]:
    numbers = index.element_numbers.get(stratum)
    if numbers is None:
        raise without_labels(parameter, stratum, value)
    refuse_lacking(parameter, stratum, value, numbers, "this batch")
    return [in_channel(parameter, channel, value[label], f"the value of {stratum} {label!r}") for label in numbers]


def without_labels(parameter: Parameter, stratum: str, value: Mapping[Any, Any]) -> ParameterError:
    return ParameterError(
        f"parameter '{parameter.name}' is given per element: {', '.join(map(repr, list(value)[:3]))}",
        required="one number",
        found=f"it is read on '{stratum}', whose elements have no labels",
        remedy=f"declare Parameter('{parameter.name}', on=...) with the stratum over which it varies",
    )


def refuse_lacking(
    parameter: Parameter, stratum: str, value: Mapping[Any, Any], labels: Collection[Any], of: str
) -> None:
    """A value for an element that is not there is fine: domains come and go from batch to batch."""
    lacking = [label for label in labels if label not in value]
    if lacking:
        raise ParameterError(
            f"parameter '{parameter.name}' has no value for the {stratum} {lacking[0]!r}",
            required=f"one value for each {stratum} of {of}: {', '.join(map(repr, list(labels)[:8]))}",
            found=f"values for {', '.join(map(repr, list(value)[:8])) or 'none'}",
        )
