"""What a caller without this library passes besides tensors over tokens: labels, parameters and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.places import whole_batch


@dataclass(frozen=True)
class Caller:
    """The declarations that a generated signature needs.

    - `over_rows`: strata that rows lie over. Their labels are per row.
    - `in_rows`: strata whose elements have tokens of one row each. Labels of these and of all others are per token.
    - `defaults`: the default of each parameter and channel; None without one. `ranges`: each parameter's, in words.
    - `attributes`: the stratum of each attribute.
    - `adds_up_tokens`: whether rewards are per token alone, because the formula of advantages adds them up.
    """

    name: str
    rows: str
    over_rows: frozenset[str]
    in_rows: frozenset[str]
    defaults: Mapping[tuple[str, ...], float | None]
    ranges: Mapping[str, str]
    attributes: Mapping[str, str]
    adds_up_tokens: bool


def caller(hierarchy: Hierarchy) -> Caller:
    """What the caller of a hierarchy's generated functions passes."""
    shape = whole_batch(hierarchy)
    finer = (s for s in shape.finer(hierarchy.rows) if s not in hierarchy.leaves)
    defaults: dict[tuple[str, ...], float | None] = {}
    for name, parameter in hierarchy.parameters.items():
        default = parameter.default
        for channel in ("", "+", "-"):
            value = default.get(channel) if isinstance(default, Mapping) else default
            defaults[name, channel] = None if value is None else float(value)
    return Caller(
        hierarchy.name,
        hierarchy.rows.name,
        frozenset(s.name for s in shape.coarser(hierarchy.rows) if s.name != BATCH),
        frozenset(s.name for s in finer),
        defaults,
        {name: parameter.range for name, parameter in hierarchy.parameters.items()},
        {name: attribute.on.name for name, attribute in hierarchy.attributes.items()},
        adds_up_tokens(hierarchy),
    )
