"""Docstrings as autodoc reads them: reStructuredText, made of the Markdown that they are written in.

Of Markdown they have code between backticks, fences of code, lists and **words in bold**. Code that is a public name
leads to it.
"""

import re
from collections.abc import Iterator
from typing import Any

import fibration

CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)", re.DOTALL)
BOLD = re.compile(r"(\*\*(?=\S).+?(?<=\S)\*\*)", re.DOTALL)
SPECIAL = re.compile(r"[\\*|`]|_(?!\w)")
FENCE = re.compile(r"^( *)```(\w*)$")
NAME = re.compile(r"(\w+)((?:\.\w+)*)(?:\(\.\.\.\))?")


def restructured(lines: list[str]) -> Iterator[str]:
    """Lines of reStructuredText for those of a docstring."""
    text: list[str] = []
    rest = iter(lines)
    for line in rest:
        fence = FENCE.match(line)
        if fence is None:
            text.append(line)
            continue
        yield from _prose(text)
        text = []
        yield from ("", f"{fence[1]}.. code-block:: {fence[2] or 'text'}", "")
        for code in rest:
            if code.strip() == "```":
                break
            yield f"    {code}"
        yield ""
    yield from _prose(text)


def _prose(lines: list[str]) -> list[str]:
    """Code may go on over lines."""
    text, parts, end = "\n".join(lines), [], 0
    for found in CODE.finditer(text):
        parts += [_escaped(text[end : found.start()]), _code(" ".join(found[2].split()), found[2].count("\n"))]
        end = found.end()
    return "".join([*parts, _escaped(text[end:])]).split("\n")


def _escaped(text: str) -> str:
    return "".join(t if BOLD.fullmatch(t) else SPECIAL.sub(r"\\\g<0>", t) for t in BOLD.split(text))


def _code(code: str, lines: int) -> str:
    name = NAME.fullmatch(code)
    public = name is not None and name[1] in fibration.__all__ and _is_there(name[1] + name[2])
    written = f":py:obj:`{code} <fibration.{name[1]}{name[2]}>`" if public and name else f"``{code}``"
    return rf"\ {written}\ "


def _is_there(name: str) -> bool:
    found: Any = fibration
    for word in name.split("."):
        found = getattr(found, word, None)
    return found is not None


def of_value(name: str, value: Any) -> list[str]:
    """What stands above the definition of a value, where its class is defined too."""
    from sphinx.pycode import ModuleAnalyzer

    said = ModuleAnalyzer.for_module(type(value).__module__).find_attr_docs()
    return said.get(("", name.rpartition(".")[2]), [])


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "data":
        lines[:] = of_value(name, obj)
    lines[:] = list(restructured(lines))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
