"""Renames what a hierarchy declares: strata, parameters, attributes and policies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fibration.language.hierarchy import Hierarchy

# A name in a formula of a document: not in quotes, no keyword of an argument (`over=`), no function (`mean(`).
_NAME = re.compile(r'"[^"]*"|(?<![\w.])[A-Za-z]\w*\b(?!\s*(?:=(?!=)|\())')
_KEPT = ("name", "orthogonalise")  # entries of a document that name none of these


def renamed(h: Hierarchy, names: Mapping[str, str]) -> Hierarchy:
    """Returns a hierarchy in which everything called `old` is called `names[old]`, all at once.

    Two names may be exchanged. Gates and objectives keep the form in which they were written. Raises SpecError if a new
    name is taken, or is no name.
    """
    if all(old == new for old, new in names.items()):
        return h

    def text(value: str) -> str:
        return _NAME.sub(lambda m: names.get(m[0], m[0]), value)

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [put(v) for v in value]
        return {k: put(v) for k, v in value.items()} if isinstance(value, dict) else value

    document = h.model_dump(mode="json")
    made = {k: v if k in _KEPT else put(v) for k, v in document.items()}
    made["gates"] = {text(stratum): gate for stratum, gate in made["gates"].items()}
    made["gives_up"] = {text(key): why for key, why in document["gives_up"].items()}
    return Hierarchy.model_validate(made)
