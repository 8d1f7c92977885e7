"""Tests of the functions in `docs/_ext/`, without Sphinx; `make docs` builds the site."""

import ast
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fibration
from fibration.cli.main import app
from fibration.language.loading import shipped, shipped_file

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


def test_links_by_the_name_of_a_file_take_its_title(extension):
    front = extension("front_page")
    text = (
        "[laws.md](laws.md#facts) [docs/a-b.md](a-b.md) [`x.md`](y/x.md) [why](laws.md) [x.py](../x.py) ![a.md](b.png)"
    )
    said = "[](laws.md#facts) [](a-b.md) [](y/x.md) [why](laws.md) [x.py](../x.py) ![a.md](b.png)"
    assert front.titled(text) == said


def test_every_loss_has_a_page_whose_code_runs(extension):
    gallery = extension("gallery")
    found = gallery.losses(gallery.pages())
    assert list(found) == [n for folder in dict.fromkeys(f.family for f in found.values()) for n in shipped()
                           if shipped_file(n).stem == folder]  # fmt: skip
    assert all(loss.summary and loss.said for loss in found.values())
    site = gallery.on_site(gallery.pages()["sequences"], "sequences", found)
    assert "[gspo](../gallery/gspo.myst)" in site and "/gallery/gspo\n" in site and "](#gspo)" not in site
    assert "\n## " not in site and "/gallery/ppo\n" not in site
    front = gallery.on_site((ROOT / "docs" / "losses.md").read_text(), "", found)
    assert "[gspo](gallery/gspo.myst)" in front
    assert "Which laws they give up" in front
    for name in ("fiberpo_modal", "ppo_gae"):
        h = fibration.load(name)
        gallery.run(h, fibration.compile(h, "torch"))
    assert "mask=mask, turn=turn_of_tokens, prompt_group=prompt_group_of_rows)" in gallery.use(
        fibration.load("fiberpo_turns")
    )
    assert gallery.use(h).splitlines()[1:] == [
        'index = op.index(mask=mask, attributes={"value": value})',
        "op.loss(log_probs, old_log_probs, rewards=rewards_of_tokens, index=index).loss.backward()",
    ]


def test_every_page_is_reached_from_the_front_page():
    """Every page is in a toctree, as `make docs` requires."""
    pages = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    lines = [
        (index.parent / line).relative_to(ROOT / "docs").as_posix()
        for index in (ROOT / "docs").rglob("index.md")
        for line in index.read_text().splitlines()
        if not line.startswith("/")
    ]
    assert pages - set(lines) == {"index"}


@pytest.mark.parametrize(
    "module",
    [
        "fibration",
        "fibration.rollouts",
        "fibration.head",
        "fibration.trust_region",
        "fibration.trainers.trl",
        "fibration.trainers.verl",
    ],
)
def test_every_public_name_is_in_the_reference_once(module):
    pages = "".join(p.read_text() for p in (ROOT / "docs" / "reference").glob("*.md"))
    said = re.findall(r"^\.\. auto\w+:: (fibration[\w.]*)", pages, re.MULTILINE)
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text())
    (names,) = [
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    ]
    of_others = {"Rollouts", "load_rollouts"} if module == "fibration.rollouts" else set()
    assert {n: said.count(f"{module}.{n}") for n in names} == {n: int(n not in of_others) for n in names}


def test_docstrings_become_restructured_text(extension):
    docstrings = extension("docstrings")
    said = """A gate `g(x)` in `residual` or `Operator.loss(...)`s, |x| * 2 of *all*, **bold words** a_ and `[B,
    T]`; `Operator.none` is none.

    ```python
    x = "`*`"
    ```
    - Then `a|b`."""
    assert list(docstrings.restructured(said.split("\n"), language=True)) == [
        r"A gate \ ``g(x)``\  in \ :py:obj:`residual <fibration.residual>`\  or "
        r"\ :py:obj:`Operator.loss(...) <fibration.Operator.loss>`\ s, \|x\| \* 2 of \*all\*, **bold words** a\_ and \ ``[B, T]``\ ; "
        r"\ ``Operator.none``\  is none.",
        "",
        "",
        "    .. code-block:: python",
        "",
        '        x = "`*`"',
        "",
        r"    - Then \ ``a|b``\ .",
    ]
    runs = (
        "`residual`, `clip(...)`, `Operator.loss(x, y)`, `fibration.load(name)`, `Hierarchy`, `Operator.none()`, `Loss`"
    )
    links = re.findall(r"<(.*?)>", "".join(docstrings.restructured([runs])))
    assert links == ["fibration.clip", "fibration.Operator.loss", "fibration.load", "fibration.Hierarchy"]


def test_a_flowchart_has_every_box_above_its_targets(extension):
    flowchart = extension("flowchart")
    drawn = flowchart.svg("flowchart TD\n  a --> b\n  a --> c\n  b --> d\n  c --> e\n  e --> d\n")
    where = {n: float(y) for y, n in re.findall(r'y="(\d+)">(\w)<', drawn)}
    assert drawn.count("<rect") == 5 and drawn.count('<path d="M') == 6  # and the head of arrows
    assert where["a"] < where["c"] < where["e"] < where["d"] and where["b"] == where["e"]
    with pytest.raises(Exception, match="an arrow"):
        flowchart.svg("flowchart LR\n  a --> b")
    with pytest.raises(Exception, match="an arrow"):
        flowchart.svg("flowchart TD\n  a -.-> b")


def test_the_page_of_commands_equals_their_help(extension, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, said in extension("commands").helps().items():
        printed = CliRunner().invoke(app, [*name.split()[1:], "--help"], prog_name="fibration").output
        assert said.split() == printed.split()
