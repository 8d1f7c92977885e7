"""Parameters of a hierarchy, looked at before a trainer loads its model and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fibration.errors import ParameterError, listed
from fibration.language.hierarchy import Hierarchy


def check_parameters(hierarchy: Hierarchy, parameters: Mapping[str, Any]) -> None:
    """Raise ParameterError for what needs no batch to be wrong: names, missing values, numbers out of bounds."""
    for name in parameters:
        if name not in hierarchy.parameters:
            raise ParameterError(
                f"'{hierarchy.name}' has no parameter '{name}'",
                required=f"one of {listed(hierarchy.parameters) or 'none'}",
            )
    for name, parameter in hierarchy.parameters.items():
        if name in parameters:
            for number in _numbers(parameters[name]):
                parameter.check(number, "a value")
        elif parameter.default is None:
            raise ParameterError(
                f"parameter '{name}' of '{hierarchy.name}' has no value",
                required="a default or a value",
                remedy=f"parameters={{{name!r}: ...}}",
            )


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, Tensor):
        yield from value.flatten().tolist()
    else:
        yield value
