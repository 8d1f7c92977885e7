"""JSON → a hierarchy's document. Errors use the words of the language and the user's own names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from fibration.errors import SpecError, shown, suggest
from fibration.language.declared import NAME_RULE
from fibration.language.document import (
    AttributeDocument,
    FibrationDocument,
    HierarchyDocument,
    ParameterDocument,
    PenaltyDocument,
)

Path = tuple[str | int, ...]
ENTRIES: Mapping[str, type[BaseModel]] = {
    "parameters": ParameterDocument,
    "attributes": AttributeDocument,
    "fibrations": FibrationDocument,
    "penalties": PenaltyDocument,
}
MAX_LEVELS = 20
MOST = 50  # errors of one kind, and keys, that are looked at
SCHEMA = "the schema: fibration show fiberpo --format schema"
ALTERNATIVES = ("[key]", "constrained-str", PenaltyDocument.__name__)  # pydantic's names of union branches and keys
PENALTY = 'a text, or {"formula": ..., "objective": ...}, or {"formula": ..., "over": ...}'
ASSUMPTIONS = '{"balanced": [A, B]}, or {"populated": A, "over": B}'
# `required:` by the type of pydantic's error; pydantic's context fills the `{...}`.
REQUIRED = {
    "string_type": "a text",
    "float_type": "a number, or null",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": "{expected}, or null",
    "string_pattern_mismatch": NAME_RULE,
    "string_too_long": "at most {max_length} characters",
    "too_long": "a list with at most {max_length} in it",
    "too_short": "a list with at least {min_length} in it",
}


class GivenTwice(ValueError):
    """A key that one JSON object has twice. JSON readers keep the last value without an error."""


def source_of(context: object) -> str:
    """Returns the document's name in errors. `load` passes its file as pydantic's context."""
    return str(context.get("source", "the document")) if isinstance(context, Mapping) else "the document"


def given_twice(pairs: Sequence[tuple[str, Any]]) -> str | None:
    """Returns the first key that occurs more than once, or None."""
    return next((key for key, times in Counter(key for key, _ in pairs).items() if times > 1), None)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads(..., object_pairs_hook=once)`: raises GivenTwice."""
    key = given_twice(pairs)
    if key is not None:
        raise GivenTwice(f"the key {shown(key)} is given twice")
    return dict(pairs)


def read_json(text: str | bytes | bytearray, source: str) -> Any:
    """Returns the value of a JSON text. Raises SpecError for invalid JSON, and for a key that is given twice."""
    doubled: list[tuple[dict[str, Any], str, list[Any]]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found, key = dict(pairs), given_twice(pairs)
        if key is not None:
            doubled.append((found, key, [v for k, v in pairs if k == key]))
        return found

    try:
        document = json.loads(text, object_pairs_hook=collect, parse_constant=_no_number)
        paths = _paths(document, {id(place) for place, _, _ in doubled})
    except RecursionError:
        raise SpecError(
            f"{source} is no hierarchy: it is nested more than {MAX_LEVELS} deep",
            required="objects and lists as in the schema, which has 4 levels",
            remedy=SCHEMA,
        ) from None
    except ValueError as error:
        raise SpecError(
            f"{source} is no hierarchy: it is no JSON", required="one JSON object", found=str(error), remedy=SCHEMA
        ) from None
    for place, key, values in doubled:
        if id(place) in paths:  # else a later value of another doubled key has replaced this object
            raise SpecError(
                f"{source} is no hierarchy: {_of(f'{shown(key)} is given twice', paths[id(place)], document, 'in')}",
                required="every key once",
                found=" and ".join(map(shown, values[:3])),
                remedy="leave all but one out, or give the others their own names",
            )
    return document


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _paths(document: Any, wanted: set[int]) -> dict[int, Path]:
    """The paths of some objects, by id. Raises RecursionError for a deep document, ValueError for half a character."""
    found: dict[int, Path] = {}
    stack: list[tuple[Any, Path]] = [(document, ())]
    while stack:
        value, path = stack.pop()
        if len(path) > MAX_LEVELS:
            raise RecursionError
        for text in (value, *path[-1:]):
            if isinstance(text, str):
                text.encode()
        if id(value) in wanted:
            found[id(value)] = path
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        stack += [(child, (*path, key)) for key, child in children]
    return found


def read_document(value: Any, source: str) -> HierarchyDocument:
    """Returns the document of a JSON value. Raises a SpecError that begins with `source` if the value is invalid."""
    if not isinstance(value, Mapping):
        needed = ", ".join(name for name, field in HierarchyDocument.model_fields.items() if field.is_required())
        raise SpecError(
            f"{source} is no hierarchy: it is {shown(value)}", required=f"an object with {needed}", remedy=SCHEMA
        )
    try:
        return HierarchyDocument.model_validate(value)
    except ValidationError as error:
        problems = _problems(error, value)
    first, others = problems[0], [p.what for p in problems[1:4]]
    raise SpecError(
        f"{source} is no hierarchy: {first.what}",
        required=first.required,
        found=first.found,
        remedy=(first.remedy or SCHEMA) + (f"; and then: {', '.join(others)}" if others else ""),
    )


# ---------------------------------------------------------------- problems


@dataclass(frozen=True)
class _Problem:
    rank: int  # unknown fields first: they explain the missing ones
    what: str
    required: str
    found: str
    remedy: str = ""


def _problems(error: ValidationError, document: Any) -> list[_Problem]:
    """Returns the problems that pydantic found, each once, sorted by rank."""
    found: dict[str, _Problem] = {}
    kinds: Counter[str] = Counter()
    errors = []
    for e in error.errors(include_url=False):
        kinds[e["type"]] += 1
        if kinds[e["type"]] <= MOST:  # a document may have a hundred thousand unknown fields
            errors.append((e, _resolve(e["loc"], document)))
    meant = set()  # fields that are missing because they are misspelt
    for e, path in errors:
        if e["type"] == "extra_forbidden" and not _is_assumption(path):
            lacking = [str(p[-1]) for other, p in errors if other["type"] == "missing" and p[:-1] == path[:-1]]
            meant |= {(*path[:-1], name) for name in lacking if suggest(str(path[-1]), [name])}
    for e, path in errors:
        if e["type"] == "string_type" and _is_penalty(path) and isinstance(e["input"], Mapping):
            continue  # the penalty is an object, so pydantic's failed attempt to read a text does not count
        if e["type"] != "missing" or path not in meant:
            problem = _problem(e, path, document)
            found.setdefault(problem.what, problem)
    return sorted(found.values(), key=lambda p: p.rank)


def _problem(error: Any, path: Path, document: Any) -> _Problem:
    kind, value, inside = error["type"], error["input"], path[:-1]
    if _is_assumption(path):
        entry = document["assume"][path[1]]
        unknown = [k for k in entry if k not in ("balanced", "populated", "over")] if isinstance(entry, Mapping) else []
        remedy = next((s for k in unknown if (s := suggest(str(k), ("balanced", "populated", "over")))), "")
        return _Problem(1, _where(path[:2], document), ASSUMPTIONS, shown(entry), remedy)
    if path[:1] == ("parameters",) and path[2:3] == ("default",):
        default = document["parameters"][path[1]]["default"]
        rule = "a number, one each for '+' and '-', or null"
        return _Problem(1, _where(path[:3], document), rule, shown(default))
    if path[:1] == ("gates",) and len(path) > 1 and not isinstance(document["gates"].get(path[1], ""), str):
        rule = "a text, or one text each for '+' and '-'"
        return _Problem(1, _where(path[:2], document), rule, shown(document["gates"][path[1]]))
    if _is_penalty(path) and not isinstance(value, (str, Mapping)) and kind != "string_pattern_mismatch":
        return _Problem(1, _where(path, document), PENALTY, shown(value))
    if kind == "extra_forbidden":
        known = _fields(inside)
        what = _of(f"unknown field {shown(path[-1])}", inside, document, "of")
        return _Problem(0, what, f"one of {', '.join(known)}", shown(value), suggest(str(path[-1]), known))
    if kind == "missing":
        given = ", ".join(map(str, islice(value, MOST))) if isinstance(value, Mapping) else shown(value)
        needed = ", ".join(name for name, needed in _fields(inside).items() if needed)
        return _Problem(2, _of(f"no {path[-1]!r}", inside, document, "in"), f"all of {needed}", given or "nothing")
    rule = REQUIRED[kind].format(**error.get("ctx", {})) if kind in REQUIRED else str(error["msg"])
    return _Problem(1, _where(path, document), rule, shown(value))


def _is_penalty(path: Path) -> bool:
    return path[:1] == ("penalties",) and len(path) == 2


def _is_assumption(path: Path) -> bool:
    return path[:1] == ("assume",) and len(path) > 1


def _resolve(loc: Path, document: Any) -> Path:
    """Returns pydantic's location as a path in the document, without pydantic's names of union branches."""
    path: list[str | int] = []
    for part in loc:
        entries = len(document) if isinstance(document, (list, tuple)) else 0
        if (isinstance(document, Mapping) and part in document) or (isinstance(part, int) and part < entries):
            document = document[part]
        elif part in ALTERNATIVES or not isinstance(document, Mapping):
            continue
        path.append(part)
    return tuple(path)


def _fields(path: Path) -> dict[str, bool]:
    """Returns the fields of the object at `path`, and whether each is required."""
    model = ENTRIES[str(path[0])] if path else HierarchyDocument
    return {name: field.is_required() for name, field in model.model_fields.items()}


def _of(what: str, path: Path, document: Any, word: str) -> str:
    return f"{what} {word} {_where(path, document)}" if path else what


def _where(path: Path, document: Any) -> str:
    """Returns a path in the user's names: `'default' of parameter 'epsilon'`, `the gate on 'token'`."""
    if not path:
        return "the document"
    head, rest = str(path[0]), path[1:]
    word = shown(head)
    if rest and isinstance(rest[0], int):
        word, rest = _entry(head, rest[0], document[head][rest[0]]), rest[1:]
    elif rest and head == "gates":
        word, rest = f"the gate on {shown(rest[0])}", rest[1:]
    elif rest and head == "penalties":
        word, rest = f"the penalty {shown(rest[0])}", rest[1:]
    return " of ".join([*(shown(p) for p in reversed(rest)), word])


def _entry(head: str, number: int, entry: Any) -> str:
    if head in ENTRIES and isinstance(entry, Mapping):
        name, ends = entry.get("name"), (entry.get("source"), entry.get("target"))
        if isinstance(name, str):
            return f"{head[:-1]} {shown(name)}"
        if all(isinstance(end, str) for end in ends):
            return f"the fibration {' → '.join(shown(end)[1:-1] for end in ends)}"
    return f"entry {number + 1} of '{head}'"
