"""A digest of a declaration, the same for equal declarations in the same order. Caches use it as a key."""

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
    """Returns a digest of every field of every object in a hierarchy; None if the class of an object is the user's own.

    It reads fields, not the JSON form: JSON names a constructor without its formula, which its author may change. No
    field shows what a user's subclass does.
    """
    try:
        return hashlib.sha256(json.dumps(_plain(hierarchy)).encode()).hexdigest()
    except _NotOurs:
        return None


class _NotOurs(Exception):
    """An object's class is not of `fibration.language`."""


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
