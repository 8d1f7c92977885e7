"""The front page of the site is the README, whose links lead from the root of the repository, not from `docs/`."""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
NAMED = re.compile(r"(?<!!)\[`?(?:[\w.-]+/)*[\w.-]*\.md`?\]\((?=[^)#\s]+\.md(?:#[^)\s]*)?\))")
BESIDE = re.compile(r"\[([A-Z]+\.md)\]\(\1\)")  # pages beside the README, which the site does not have
HERE = "<!-- README.md -->"


def of_docs(text: str) -> str:
    """The README, with links as a page in `docs/` has them."""
    text = BESIDE.sub(r"`\1`", text)
    return LINK.sub(lambda m: posixpath.normpath(posixpath.join("..", m[1])).removeprefix("../docs/"), text)


def to_front(text: str, docname: str) -> str:
    """A page whose links to the README lead to the front page."""
    folder = posixpath.dirname(posixpath.join("docs", docname))
    front = posixpath.relpath("docs/index.md", folder)
    return LINK.sub(lambda m: front if posixpath.normpath(posixpath.join(folder, m[1])) == "README.md" else m[1], text)


def titled(text: str) -> str:
    """A page whose links by the name of a file have its title instead, which MyST puts where there is no text."""
    return NAMED.sub("[](", text)


def read(app: Any, docname: str, source: list[str]) -> None:
    text = source[0]
    if HERE in text:
        text = text.replace(HERE, of_docs((ROOT / "README.md").read_text()))
        app.env.note_dependency(os.fspath(ROOT / "README.md"))
    source[0] = titled(to_front(text, docname))


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
