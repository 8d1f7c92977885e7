"""`python docs/_ext/check_links.py build/site`: whether every link inside a built site leads somewhere.

Pages, anchors, images, scripts and styles. Scripts, styles and images of other sites are refused: the site is read
offline too. Links to other sites are left alone.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[key] or "" for key in ("id", "name") if key in found}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        if found.get(LOADED.get(tag, "")):
            self.loaded.append(found[LOADED[tag]] or "")


def broken(site: Path) -> list[str]:
    """What leads nowhere, a line each: the page, the link, what is missing."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        here = file.relative_to(site)
        found += [f"{here}: loads {url} from elsewhere" for url in page.loaded if urlsplit(url).netloc]
        for url in [*page.links, *page.loaded]:
            if urlsplit(url).scheme or urlsplit(url).netloc:
                continue
            path, anchor = map(unquote, urldefrag(url))
            target = (file.parent / path.partition("?")[0]).resolve() if path else file.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or not target.is_relative_to(site.resolve()):
                found.append(f"{here}: {url} is not there")
            elif target.suffix == ".html" and anchor not in pages[site / target.relative_to(site.resolve())].anchors:
                found.append(f"{here}: {url} has no such anchor")
    return sorted(set(found))


def main(site: str) -> int:
    pages = len(list(Path(site).rglob("*.html")))
    if not pages:
        print(f"no page in {site}")
        return 1
    found = broken(Path(site))
    print("\n".join([*found, f"{pages} pages, {len(found)} broken links"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
