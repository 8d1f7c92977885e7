"""A page for every source file of the repository that pages and the reference lead to.

In `docs/` such links are relative paths, which GitHub follows. On the site they lead to `source/PATH.html`, with an
anchor per line.
"""

import inspect
import posixpath
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx.addnodes import download_reference

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".toml", ".h"}
FOLDER = "source"
SHOWN: set[str] = set()  # what pages of this build lead to


def path_in_repository(file: Path) -> str:
    """As seen from its root, through links inside it to where the file lies."""
    return file.resolve().relative_to(ROOT).as_posix()


def lead_to_pages(app: Any, doctree: nodes.document) -> None:
    """Links to source files, which MyST takes for downloads."""
    docname = app.env.docname
    for node in list(doctree.findall(download_reference)):
        file = Path(app.env.relfn2path(node["reftarget"], docname)[1])
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        path = path_in_repository(file)
        SHOWN.add(path)
        uri = posixpath.relpath(f"{FOLDER}/{path}.html", posixpath.dirname(docname) or ".")
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def resolve(domain: str, info: dict[str, str]) -> str | None:
    """Where the reference finds an object's source: called by `sphinx.ext.linkcode`, from pages in `reference/`."""
    found: Any = sys.modules.get(info["module"])
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    found = inspect.unwrap(found.fget if isinstance(found, property) else found)
    try:
        file, (_, start) = Path(inspect.getsourcefile(found) or ""), inspect.getsourcelines(found)
    except TypeError:  # a value, not what a file defines
        return None
    if not file.resolve().is_relative_to(ROOT):
        return None
    path = path_in_repository(file)
    SHOWN.add(path)
    return f"../{FOLDER}/{path}.html#L-{start}"


def pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    shown = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, cssclass="highlight source")
    for path in sorted(SHOWN):
        code = highlight((ROOT / path).read_text(), get_lexer_for_filename(path, stripnl=False), shown)
        yield f"{FOLDER}/{path}", {"title": path, "body": f"<h1><code>{path}</code></h1>\n{code}"}, "page.html"


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", lead_to_pages)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
