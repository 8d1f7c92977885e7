"""JSON → a hierarchy's document. Pydantic finds what is wrong; errors say it in the words of the language."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from pydantic import ValidationError

from fibration.errors import NoHierarchy, SpecError, shown, suggest
from fibration.language.document import HierarchyDocument

NEEDED = [name for name, field in HierarchyDocument.model_fields.items() if field.is_required()]
TELLING = {*NEEDED} - {"name"}  # no hierarchy lacks them all, and many other documents have a name
# By the type of pydantic's error: unknown fields come first, since they explain missing ones.
RANKS = {"extra_forbidden": 0, "missing": 2}
TYPES = {
    "string_type": "a text", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "float_type": "a number, or null", "bool_type": "true or false",
}  # fmt: skip
SCHEMA = "the schema: fibration show fiberpo --format schema"


@dataclass(frozen=True)
class GivenTwice:
    """A JSON object with a key that it has twice, and the values of the key. JSON readers keep the last one."""

    key: str
    values: list[Any]
    object: dict[str, Any]


def marked(pairs: list[tuple[str, Any]]) -> dict[str, Any] | GivenTwice:
    """For `object_pairs_hook`: an object, or GivenTwice in its place, which no field accepts: pydantic says where."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    key = next(k for k, times in Counter(k for k, _ in pairs).items() if times > 1)
    return GivenTwice(key, [v for k, v in pairs if k == key], found)


def read_json(text: str | bytes | bytearray) -> Any:
    """Returns the value of a JSON text. Raises SpecError for invalid JSON."""
    try:
        return json.loads(text, object_pairs_hook=marked, parse_constant=int)  # int("NaN") raises ValueError
    except (ValueError, RecursionError) as error:
        found = "objects or lists that are nested too deep" if isinstance(error, RecursionError) else str(error)
    raise SpecError(
        "the document is no hierarchy: it is no JSON", required="one JSON object", found=found, remedy=SCHEMA
    )


def read_document(value: Any) -> HierarchyDocument:
    """Returns the document of a JSON value. Raises SpecError, or NoHierarchy for a document of another kind."""
    try:
        few = dict(islice(value.items(), 1_000)) if isinstance(value, Mapping) else value  # more are wrong as well
        return HierarchyDocument.model_validate(few)
    except ValidationError as invalid:
        errors: list[Any] = sorted(invalid.errors(include_url=False), key=lambda e: RANKS.get(e["type"], 1))
    if errors[0]["type"] == "extra_forbidden":
        errors = [e for e in errors if e["type"] != "missing"]
    required, found, remedy = _parts(errors[0])
    others = f"; and then: {', '.join(_what(e, value) for e in errors[1:4])}" if errors[1:] else ""
    keys = value.object if isinstance(value, GivenTwice) else value
    is_hierarchy = isinstance(keys, Mapping) and not TELLING.isdisjoint(keys)
    raise (SpecError if is_hierarchy else NoHierarchy)(
        f"the document is no hierarchy: {_what(errors[0], value)}",
        required=required,
        found=found,
        remedy=(remedy or SCHEMA) + others,
    )


def _parts(error: Any) -> tuple[str, str, str]:
    """Returns what one of pydantic's errors requires, what it found, and a fix, which may be ""."""
    kind, value, loc = error["type"], error["input"], error["loc"]
    if isinstance(value, GivenTwice):
        values = " and ".join(map(shown, value.values[:3]))
        return "every key once", values, "leave all but one out, or give the others their own names"
    keys = [str(k) for k in islice(value, 50)] if isinstance(value, Mapping) else []
    if kind in RANKS:
        fields = HierarchyDocument.model_fields
        if loc[1:]:  # of an entry of a list of documents
            fields = get_args(fields[loc[0]].annotation)[0].model_fields
        if kind == "missing":
            needed = ", ".join(name for name, field in fields.items() if field.is_required())
            return f"all of {needed}", ", ".join(keys) or "nothing", ""
        return f"one of {', '.join(fields)}", shown(value), suggest(str(loc[-1]), fields)
    rule = TYPES.get(kind, error["msg"].removeprefix("Input should be "))
    rule = rule if loc else f"an object with {', '.join(NEEDED)}"
    words = re.findall(r'"(\w+)"', rule)  # the fields that a rule names
    return rule, shown(value), next((s for k in keys if k not in words and (s := suggest(k, words))), "")


def _what(error: Any, document: Any) -> str:
    """Returns what is wrong, and its place: `parameters.epsilon.lower`. Entries of lists go by name, or by number."""
    words = []
    for part in error["loc"]:
        entries = dict(enumerate(document)) if isinstance(document, list) else document
        document = entries.get(part) if isinstance(entries, Mapping) else None
        name = document.get("name") if isinstance(part, int) and isinstance(document, Mapping) else None
        words.append(name if isinstance(name, str) else str(part))
    place = shown(".".join(words))
    if isinstance(error["input"], GivenTwice):
        return f"{shown(error['input'].key)} is given twice{f' in {place}' if words else ''}"
    if not words:
        return f"it is {shown(error['input'])}"
    return {"extra_forbidden": "unknown field ", "missing": "no "}.get(error["type"], "") + place
