"""`fibration bench --laws`: the cases, the process that decides one, and what is said of it. Nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fibration.bench import law_report, laws
from fibration.bench.law_cases import FAMILIES
from fibration.bench.law_process import decide
from fibration.cli.main import app
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import shipped
from fibration.laws import budget

LATE = "nested tanh"  # the family that is out of time here, from its second member on


def answer(hierarchy: Hierarchy, timeout: float) -> dict[str, Any]:
    late = "tanh(tanh" in str(next(iter(hierarchy.gates.values())))
    if late:
        return {"verify": timeout, "facts": 0.0, "outcome": "out of time", "out_of_time": "identity"}
    return {"verify": 0.25, "facts": 0.5, "outcome": "verified", "out_of_time": ""}


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "--laws", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def test_every_case_can_be_read_in_another_process() -> None:
    found = list(laws.cases((), quick=False))
    assert {c.hierarchy.name for c in found} >= set(shipped())
    for c in found:
        assert Hierarchy.model_validate_json(c.hierarchy.model_dump_json()) == c.hierarchy
    sizes = {f.name: [c.size for c in found if c.family == f.name] for f in FAMILIES}
    assert sizes == {f.name: list(f.sizes) for f in FAMILIES}


def test_the_smallest_of_each_family_is_decided() -> None:
    """As it is meant: what is wrong is refused, the rest is verified."""
    refused = {"one slip", "shares above 1", "not balanced", "summed where", "quotients"}
    for family in FAMILIES:
        found = decide(family.make(family.sizes[0]), 1e6)
        assert found["outcome"] == ("refused" if family.name in refused else "verified"), family.name
        assert found["out_of_time"] == ""
        assert min(found["verify"], found["facts"]) >= 0


def test_a_process_says_what_was_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.Budget, "allows", lambda self, work: False)
    found = decide(FAMILIES[0].make(3), 60)
    assert (found["outcome"], found["out_of_time"]) == ("out of time", "structure")


def test_a_case_in_a_fresh_process() -> None:
    (case,) = laws.cases(("ppo",), quick=False)
    found = laws.ask(case.hierarchy, 1e6)
    assert (found["outcome"], found["out_of_time"]) == ("verified", "")


def test_rounds_and_what_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(laws, "ask", lambda h, timeout: asked.append(h.name) or answer(h, timeout))
    code, output = bench("--quick", "--repeats", 3, "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert code == 0
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["timeout_s"] == 60
    late = [r for r in document["results"] if r["out_of_time"]]
    assert [(r["family"], r["size"]) for r in late] == [(LATE, 2)]
    assert len(late[0]["total"]["samples_s"]) == 1  # once is enough
    others = [r for r in document["results"] if not r["out_of_time"]]
    assert {tuple(r["total"]["samples_s"]) for r in others} == {(0.75,) * 3}
    assert len(asked) == 3 * len(others) + 1
    assert "out of time: identity" in output
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_the_budget_and_who_exceeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "ask", answer)
    results = laws.measure(list(laws.cases((), quick=False)), 1, 60)
    page = law_report.figure(results, {"processor": "one"}, 60)
    panels = {a.get_xlabel(): a for a in page.axes}
    for family in FAMILIES:
        panel = panels[family.axis]
        words = [t.get_text() for t in panel.texts]
        assert "budget 60 s" in words and family.name in words
        crosses = [line for line in panel.lines if line.get_marker() == "X"]
        assert len(crosses) == (len(FAMILIES[7].sizes) - 1 if family.axis == FAMILIES[7].axis else 0)
        assert all(line.get_ydata()[0] == 60 for line in crosses)
    names = [t.get_text() for t in page.axes[-1].get_yticklabels()]
    assert sorted(names) == sorted(shipped())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens", "64Ki"], "measures no batches"),
        (["--sweep"], "measures no batches"),
        (["--timeout", "0"], "no time to verify in"),
        (["--timeout", "inf"], "cannot be measured"),
        (["--json", "a.txt"], "ends in .json"),
        (["no_such_spec"], "no_such_spec"),
    ],
)
def test_what_cannot_be_used(arguments: list[str], said: str) -> None:
    code, output = bench(*arguments)
    assert code == 2
    assert said in output
