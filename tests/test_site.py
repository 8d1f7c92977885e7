"""What `docs/_ext/` does to pages, without Sphinx: `make docs` builds them."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return load


def test_links_that_lead_nowhere_are_found(extension, tmp_path):
    check = extension("check_links")
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="here"><a href="a/b.html#there">b</a> <a href="https://x.org/#y">x</a>'
    )
    (tmp_path / "a" / "b.html").write_text('<p id="there"><a href="../#here">home</a> <a href="#there">up</a>')
    assert check.main(str(tmp_path)) == 0
    (tmp_path / "a" / "b.html").write_text(
        '<a href="../#gone"></a> <a href="c.html"></a> <img src="d.png"> <a href="#there"></a> <a href="../../"></a>'
        '<script src="https://x.org/y.js"></script>'
    )
    assert check.broken(tmp_path) == [
        "a/b.html: #there has no such anchor",
        "a/b.html: ../#gone has no such anchor",
        "a/b.html: ../../ is not there",
        "a/b.html: c.html is not there",
        "a/b.html: d.png is not there",
        "a/b.html: loads https://x.org/y.js from elsewhere",
        "index.html: a/b.html#there has no such anchor",
    ]
    assert check.main(str(tmp_path)) == 1
    assert check.main(str(tmp_path / "a" / "empty")) == 1


def test_the_readme_is_the_front_page(extension):
    front = extension("front_page")
    readme = "[a](docs/laws.md#facts) ![b](docs/images/b.png) [c](specs/x.py) [d](#below) [e](https://f.org/docs/a.md)"
    assert front.of_docs(readme) == (
        "[a](laws.md#facts) ![b](images/b.png) [c](../specs/x.py) [d](#below) [e](https://f.org/docs/a.md)"
    )
    assert front.to_front("[a](../README.md#x) [b](README.md)", "ci") == "[a](index.md#x) [b](README.md)"
    assert (
        front.to_front("[a](../../README.md) [b](../README.md)", "trainers/trl") == "[a](../index.md) [b](../README.md)"
    )


def test_every_page_is_reached_from_the_front_page():
    """As `make docs` asks, by its toctrees."""
    pages = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    lines = (ROOT / "docs" / "index.md").read_text().splitlines()
    assert pages - set(lines) == {"index"}
