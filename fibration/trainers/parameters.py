"""Parameters of a hierarchy: looked at before a trainer loads its model, and filled up where gates read none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fibration.compiler.lower import lower
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.parameters import (
    floats,
    given_values,
    in_channel,
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
    """Raise ParameterError for what needs no batch to be wrong: names, missing values, numbers out of bounds, channels,
    and values by label of what has no labels.

    `labelled`: the strata whose labels a user knows; by itself, all that take any.
    """
    labelled = wanted(hierarchy) if labelled is None else labelled
    for node, value in given_values(hierarchy, lower(hierarchy), parameters).items():
        parameter, channel = hierarchy.parameters[node.key[0]], node.key[1]
        if is_several(value):
            for one in value if isinstance(value, (list, tuple)) else floats(parameter, value, "a value").flatten():
                in_channel(parameter, channel, one, "a value")
        elif _is_by_label(value):
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
    """Raise ParameterError where values by label lack one of all `labels` that the data have, of `of` in words."""
    for node, value in given_values(hierarchy, lower(hierarchy), parameters).items():
        if node.over == stratum and _is_by_label(value):
            refuse_lacking(hierarchy.parameters[node.key[0]], stratum, value, labels, of, known=True)


def at_ratio_one(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the labels of any batch, where ratios are 1: an element without a value takes one of the others'.

    Gates leave a ratio of 1 as it is, whatever their parameters are.
    """
    found = dict(parameters)
    for name, value in parameters.items():
        if _is_by_label(value):
            found[name] = {None: next(iter(value.values())), **value}
        while is_several(found[name]) and len(found[name]):
            found[name] = found[name][0]
    return found


def _is_by_label(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and not is_channels(value)
