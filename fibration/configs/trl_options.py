"""The options of TRL 1.16's GRPOTrainer, from `trl.toml`, and those of other trainers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fibration.configs.options import Option, Table, Unfit, read_table


def _mapping(value: Any, option: Option) -> Mapping[str, Any]:
    """A mapping, perhaps written as JSON; an empty one for None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Unfit("a mapping, or one in JSON") from None
    if not isinstance(value, Mapping | None):
        raise Unfit("a mapping")
    return value or {}


def _weights(value: Any, option: Option) -> list[float] | None:
    """The weights of the reward functions, or None if all are 1."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise Unfit("a list of numbers, one for each reward function")
    try:
        weights = [float(w) for w in value]
    except (TypeError, ValueError):
        weights = [math.nan]
    if not all(map(math.isfinite, weights)):
        raise Unfit("a list of finite numbers, one for each reward function")
    return weights


def _scale(value: Any, option: Option) -> str:
    found = {True: "group", False: "none"}[value] if isinstance(value, bool) else value
    if found not in ("group", "batch", "none"):
        raise Unfit("group, batch or none; or true or false")
    return str(found)


TABLE = Table(read_table("trl"), {"mapping": _mapping, "weights": _weights, "scale": _scale})
OF_MODEL = frozenset(TABLE.data["of_model"].split())
OTHERS, LOSSES = (
    {trainer: frozenset(names.split()) for trainer, names in TABLE.data[key].items()} for key in ("others", "losses")
)
