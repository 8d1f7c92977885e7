"""A hierarchy as a file of Python that declares it."""

from __future__ import annotations

import re

import fibration
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch

_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*\b(?!=(?!=))")  # no name of an argument


def python(hierarchy: Hierarchy) -> str:
    """Returns Python that declares an equal hierarchy, to be saved as a file, loaded and edited.

    Strata, policies, parameters and attributes are variables of their own names.
    """
    h = hierarchy
    body = repr(h)
    declared = {p.name: p.declaration() for p in h.parameters.values()}
    declared |= {a.name: a.declaration() for a in h.attributes.values()}
    read = _words("\n".join([body, *declared.values()]))
    strata = [word for word in read if word in {s.name for s in _strata(h)}]
    policies = [word for word in read if word in {p.name for p in h.policies.values()}]
    lines = [
        f"{_targets(names)} = {maker}({' '.join(names)!r})"
        for names, maker in ((strata, "strata"), (policies, "policies"))
        if names
    ]
    lines += [f"{name} = {text}" for name, text in declared.items()]
    whole = "\n".join([*lines, "", f"{h.name} = {body}"])
    own = {*strata, *policies, *declared, h.name}
    imports = sorted(word for word in _words(whole) if word in fibration.__all__ and word not in own)
    return f"from fibration import (\n{''.join(f'    {word},{chr(10)}' for word in imports)})\n\n{whole}\n"


def _words(text: str) -> list[str]:
    """Returns the names that Python reads in text, each once."""
    return list(dict.fromkeys(_WORD.findall(_TEXT.sub("''", text))))


def _targets(names: list[str]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def _strata(h: Hierarchy) -> list[Stratum]:
    return [
        *whole_batch(h).strata,
        *h.groups,
        *(p.over for p in h.penalties.values() if p.over),
        h.rows,
        Stratum("batch"),
    ]
