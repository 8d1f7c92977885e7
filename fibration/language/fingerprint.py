"""One short text for all that a declaration says: equal for what is declared equally, in the same order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pydantic import BaseModel

from fibration.language.hierarchy import Hierarchy

HERE = __name__.rpartition(".")[0] + "."


def fingerprint(hierarchy: Hierarchy) -> str | None:
    """A digest of every field of every object in a hierarchy; None if one of them is of a class of the user's own.

    Fields, and not the JSON form: that names a constructor and not its formula, which whoever wrote it may change. What
    a subclass does is in no field.
    """
    try:
        return hashlib.sha256(json.dumps(_plain(hierarchy)).encode()).hexdigest()
    except _NotOurs:
        return None


class _NotOurs(Exception):
    """A class that this library does not know."""


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Fraction):
        return ["Fraction", str(value)]
    if isinstance(value, Mapping):
        return ["Mapping", *([_plain(k), _plain(v)] for k, v in value.items())]
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    kind = type(value)
    if not kind.__module__.startswith(HERE):
        raise _NotOurs
    if isinstance(value, BaseModel):
        names = list(type(value).model_fields)
    else:
        names = [f.name for f in dataclasses.fields(value) if f.init]  # type: ignore[arg-type]
    return [f"{kind.__module__}.{kind.__qualname__}", *(_plain(getattr(value, name)) for name in names)]
