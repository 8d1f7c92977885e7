"""Reads HTML as a browser would, and checks that it is well formed, loads nothing and has no script."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br"}
REFERS = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "background"}


class Page(HTMLParser):
    """`text`: all words. `texts`: the words of each element, by its tag. `open`: the elements that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.open, self.ids = "", list[str](), list[str]()
        self.texts: dict[str, list[str]] = {}
        self._starts = list[int]()
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "embed", "img", "base", "form"), tag
        for name, value in attrs:
            assert not name.startswith("on"), (tag, attrs)
            assert name not in REFERS or str(value).startswith(("#", "data:image/png;base64,")), (tag, attrs)
            assert not re.search(r"url\((?!#)|@import|expression\(", str(value)), (tag, attrs)
            if name == "id":
                self.ids.append(str(value))
        if tag not in VOID:
            self.open.append(tag)
            self._starts.append(len(self.text))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)
        self.texts.setdefault(tag, []).append(self.text[self._starts.pop() :])

    def handle_data(self, data: str) -> None:
        self.text += data

    def rows(self) -> list[str]:
        """The words of each row of a table, without those of formulas."""
        return self.texts.get("tr", [])


def read(html: str) -> Page:
    """The page; also checks that the style loads nothing, and that each id is there once."""
    page = Page(html)
    assert all("url(" not in style and "@import" not in style for style in page.texts.get("style", []))
    assert len(page.ids) == len(set(page.ids)), [i for i in page.ids if page.ids.count(i) > 1]
    missing = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) - set(page.ids)
    assert not missing, missing
    return page
