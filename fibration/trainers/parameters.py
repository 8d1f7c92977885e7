"""Checks a hierarchy's parameters before a trainer loads its model, and fills them up for batches at a ratio of 1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fibration.compiler.lower import lower
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.parameters import (
    given_values,
    in_channel,
    in_order,
    is_channels,
    is_several,
    mixed,
    refuse_lacking,
    without_labels,
)
from fibration.trainers.labels import wanted


def check_parameters(
    hierarchy: Hierarchy, parameters: Mapping[str, Any], labelled: Collection[str] | None = None
) -> None:
    """Raise ParameterError for errors that need no batch: unknown names, missing values, values out of bounds,
    channels, and values by label of strata without labels.

    `labelled`: the strata whose labels the user knows; default: all that take labels.
    """
    labelled = wanted(hierarchy) if labelled is None else labelled
    values = given_values(hierarchy, lower(hierarchy), parameters)
    for node, value in values.items():
        parameter, channel = hierarchy.parameters[node.key[0]], node.key[1]
        each = value.values() if isinstance(value, Mapping) and is_channels(value) else [value]
        if any(map(is_several, each)):
            raise in_order(parameter, node.over, value, "a number, or values by label")
        if _is_by_label(value):
            if {"+", "-"} & set(value):
                raise mixed(parameter, value)
            if node.over not in labelled:
                raise without_labels(parameter, node.over, value)
            for label, one in value.items():
                in_channel(parameter, channel, one, f"the value of {node.over} {label!r}")
        else:
            in_channel(parameter, channel, value, "the value")


def check_labelled(
    hierarchy: Hierarchy, parameters: Mapping[str, Any], stratum: str, labels: Collection[Any], of: str
) -> None:
    """Raise ParameterError if values by label lack one of all `labels` in the data; `of` names the data."""
    for node, value in given_values(hierarchy, lower(hierarchy), parameters).items():
        if node.over == stratum and _is_by_label(value):
            refuse_lacking(hierarchy.parameters[node.key[0]], stratum, value, labels, of, known=True)


def at_ratio_one(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that fit the labels of any batch at a ratio of 1: an element without a value takes another's.

    Gates keep a ratio of 1, whatever their parameters.
    """
    found = dict(parameters)
    for name, value in parameters.items():
        if _is_by_label(value):
            found[name] = {None: next(iter(value.values())), **value}
    return found


def _is_by_label(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and not is_channels(value)
