"""Parameter values of one call: checked against the declared bounds, one number per element where they vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.ir import Input, Program
from fibration.errors import ParameterError
from fibration.language.atoms import Parameter
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index


def parameter_vectors(
    hierarchy: Hierarchy, program: Program, index: Index, given: Mapping[str, Any]
) -> dict[Input, Tensor]:
    """One float64 vector `[elements of its stratum]` per parameter input.

    A value is a number, one per channel (`{"+": 0.2, "-": 0.1}`), or one of these per element of the parameter's
    stratum, by label (`{"math": {"+": 0.3, "-": 0.2}, "code": 0.1}`) or as a tensor in element order.
    """
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"parameters are {given!r}", required="a mapping from name to value", remedy="{'epsilon': 0.05}"
        )
    for name in given:
        if name not in hierarchy.parameters:
            known = ", ".join(hierarchy.parameters) or "none"
            raise ParameterError(f"'{hierarchy.name}' has no parameter '{name}'", required=f"one of {known}")
    result: dict[Input, Tensor] = {}
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
            result[node] = _vector(parameter, node, value, index)
    return result


def _vector(parameter: Parameter, node: Input, value: Any, index: Index) -> Tensor:
    stratum, channel, size = node.over, node.key[1], index.size[node.over]
    if isinstance(value, Tensor) and value.ndim:
        if tuple(value.shape) != (size,):
            raise ParameterError(
                f"parameter '{parameter.name}' has shape {list(value.shape)}",
                required=f"a number, or one per {stratum}: [{size}]",
            )
        numbers = [parameter.check(v, f"the value of {stratum} {i}") for i, v in enumerate(value.tolist())]
    elif isinstance(value, Mapping) and not _is_channels(value):
        numbers = _per_element(parameter, stratum, channel, value, index)
    else:
        number = _in_channel(parameter, channel, value, "the value")
        return torch.tensor([number], dtype=torch.float64, device=index.device).expand(size)
    return torch.tensor(numbers, dtype=torch.float64, device=index.device)


def _is_channels(value: Mapping[Any, Any]) -> bool:
    return set(value) <= {"+", "-"} and bool(value)


def _in_channel(parameter: Parameter, channel: str, value: Any, what: str) -> float:
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
        return parameter.check(value[channel], f"{what} of channel '{channel}'")
    return parameter.check(value, what)


def _per_element(
    parameter: Parameter, stratum: str, channel: str, value: Mapping[Any, Any], index: Index
) -> list[float]:
    numbers = index.element_numbers.get(stratum)
    if numbers is None:
        raise ParameterError(
            f"parameter '{parameter.name}' is given per element: {', '.join(map(repr, list(value)[:3]))}",
            required="one number",
            found=f"it is read on '{stratum}', whose elements have no labels",
            remedy=f"declare Parameter('{parameter.name}', on=...) with the stratum over which it varies",
        )
    # A value for an element that this batch lacks is fine: domains come and go from batch to batch.
    lacking = [k for k in numbers if k not in value]
    if lacking:
        raise ParameterError(
            f"parameter '{parameter.name}' has no value for the {stratum} {lacking[0]!r}",
            required=f"one value for each {stratum} of this batch: {', '.join(map(repr, list(numbers)[:8]))}",
            found=f"values for {', '.join(map(repr, list(value)[:8]))}",
        )
    return [_in_channel(parameter, channel, value[label], f"the value of {stratum} {label!r}") for label in numbers]
