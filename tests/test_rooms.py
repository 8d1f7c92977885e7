"""The packages' imports are those of the drawing and of the docstrings. `lint-imports` checks their order."""

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import networkx as nx
import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "fibration"
PAGE = (PACKAGE.parent / "docs" / "how-it-works.md").read_text()
MOST = 8  # most modules outside the packages


def room(module):
    return module.split(".")[1]


@cache
def files():
    """The graph of imports between files, those inside functions and for types alone included."""
    found = grimp.build_graph("fibration", cache_dir=None)
    return nx.DiGraph((a, b) for a in found.modules for b in found.find_modules_directly_imported_by(a))


@cache
def imports():
    """The graph of imports between packages."""
    rooms = ((room(a), room(b)) for a, b in files().edges if "fibration" not in (a, b))
    return nx.DiGraph((a, b) for a, b in rooms if a != b)


ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py") if p.parent.name != "specs")


def test_the_drawing_of_rooms_equals_the_imports():
    (drawing,) = re.findall(r"```mermaid\nflowchart TD\n(.*?)```", PAGE, re.DOTALL)
    drawn = re.findall(r"^    (\w+) --> (\w+)$", drawing, re.MULTILINE)
    assert len(drawn) == len(drawing.splitlines())
    assert set(drawn) == set(nx.transitive_reduction(imports()).edges)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_states_what_it_imports(name):
    said = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text()))
    may = re.findall(r"`(\w+)`", said[said.index("May import:") :])
    assert may, f"{name} says nothing"
    assert set(imports().successors(name)) <= set(may)


def test_no_import_leads_back():
    assert [sorted(circle) for circle in nx.strongly_connected_components(files()) if len(circle) > 1] == []
    assert {room(module) for module in files().predecessors("fibration")} == {"specs"}, "rooms import no public name"


def test_few_modules_lie_outside_rooms():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST
    assert [name for name in ROOMS if f"[`{name}/`]" not in PAGE] == []


def test_verdicts_rest_on_the_meaning_of_programs_alone():
    """And on no module that the contract in pyproject.toml does not know: all others are passes and plans."""
    meaning = set("adjoint derivative formulas interpret ir keys lower penalties program scalars terms".split())
    laws, compiler = ({m for m in files() if m.startswith(f"fibration.{name}.")} for name in ("laws", "compiler"))
    read = {m for a, m in files().edges if a in laws - {"fibration.laws.facts.coupling"}} & compiler
    below = set().union(*(nx.descendants(files(), m) | {m} for m in read)) & compiler
    assert {m.rpartition(".")[2] for m in below} <= meaning
