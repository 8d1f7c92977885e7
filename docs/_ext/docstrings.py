"""Docstrings as autodoc reads them: reStructuredText, made of the Markdown that they are written in.

Of Markdown they have code between backticks, fences of code, lists and **words in bold**. Code that is a public name
leads to it, in docstrings and on pages: a class, a call, and where the language is spoken of, any word of it.
"""

import re
from collections.abc import Iterator
from typing import Any

import fibration

CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)", re.DOTALL)
BOLD = re.compile(r"(\*\*(?=\S).+?(?<=\S)\*\*)", re.DOTALL)
SPECIAL = re.compile(r"[\\*|`]|_(?!\w)")
FENCE = re.compile(r"^( *)```(\w*)$")
NAME = re.compile(r"(?:fibration\.)?(\w+(?:\.\w+)*)(\(.*\))?", re.DOTALL)
LANGUAGE = ("fibration.language", "fibration.laws")


def restructured(lines: list[str], language: bool = False) -> Iterator[str]:
    """Lines of reStructuredText for those of a docstring; of one of the `language`, or of what runs."""
    text: list[str] = []
    rest = iter(lines)
    for line in rest:
        fence = FENCE.match(line)
        if fence is None:
            text.append(line)
            continue
        yield from _prose(text, language)
        text = []
        yield from ("", f"{fence[1]}.. code-block:: {fence[2] or 'text'}", "")
        for code in rest:
            if code.strip() == "```":
                break
            yield f"    {code}"
        yield ""
    yield from _prose(text, language)


def _prose(lines: list[str], language: bool) -> list[str]:
    """Code may go on over lines."""
    text, parts, end = "\n".join(lines), [], 0
    for found in CODE.finditer(text):
        parts += [_escaped(text[end : found.start()]), _code(" ".join(found[2].split()), language)]
        end = found.end()
    return "".join([*parts, _escaped(text[end:])]).split("\n")


def _escaped(text: str) -> str:
    return "".join(t if BOLD.fullmatch(t) else SPECIAL.sub(r"\\\g<0>", t) for t in BOLD.split(text))


def _code(code: str, language: bool) -> str:
    name = public(code, language)
    return rf"\ :py:obj:`{code} <{name}>`\ " if name else rf"\ ``{code}``\ "


def public(code: str, language: bool) -> str:
    """The public name that code speaks of, or ''."""
    found = NAME.fullmatch(code)
    if found is None or found[1].partition(".")[0] not in fibration.__all__ or not _is_there(found[1]):
        return ""
    return f"fibration.{found[1]}" if language or found[2] or found[1][0].isupper() else ""


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
    module = type(obj).__module__ if what == "data" else getattr(obj, "__module__", None) or ""
    lines[:] = list(restructured(lines, module.startswith(LANGUAGE)))


def lead_to_reference(app: Any, doctree: Any) -> None:
    """Code on pages, which is not of the reference, in a heading or a link already."""
    from docutils import nodes
    from sphinx.addnodes import pending_xref

    docname = app.env.docname
    for code in list(doctree.findall(nodes.literal)):
        name = public(code.astext(), docname == "language")
        if name and isinstance(code.parent, (nodes.paragraph, nodes.entry)) and not docname.startswith("reference/"):
            link = pending_xref("", refdomain="py", reftype="obj", reftarget=name, refdoc=docname, refexplicit=True)
            code.replace_self(link)
            link += code


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("doctree-read", lead_to_reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
