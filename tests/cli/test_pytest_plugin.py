"""The pytest plugin: collection, messages, and no cost for projects that do not use it.

Projects are made by pytester. Plugins that are installed are not loaded in them, so that the tests do not depend on how
this package is; `installed` makes an installation from what pyproject.toml declares.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from typer.testing import CliRunner

import fibration.printing.formats
import fibration.printing.reports
from fibration.cli.main import app
from fibration.language.loading import load, load_all

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
from fibration import Hierarchy, clip_gate, log_ratio, strata, token_mean

print("a spec may print")
(token,) = strata("token")
good = Hierarchy(name="good_name", gates={token: clip_gate(1)}, decomposition=log_ratio(), objective=token_mean())
"""
OTHER = GOOD + "\nother = good.replace(name='other_name')\n"
WRONG = """
from fibration import Fibration, Hierarchy, MarkovKernel, count, identity_gate, signed_log_ratio, strata, trajectory_mean

token, trajectory = strata("token trajectory")
wrong = Hierarchy(
    name="wrong",
    fibrations=[Fibration(token, trajectory, kernel=MarkovKernel(1 / (count(token, over=trajectory) + 1)))],
    gates={trajectory: identity_gate(), token: identity_gate()},
    decomposition=signed_log_ratio(),
    objective=trajectory_mean(),
    gives_up={"positivity": "for no reason"},
)
"""
USED = ["-p", "_fibration_pytest", "-p", "no:cacheprovider", "-W", "error"]


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """pytester forgets what is first imported in a run of its own, and sympy must not be there twice."""
    file = tmp_path_factory.mktemp("specs") / "wrong.py"
    file.write_text(WRONG)
    for hierarchy in [*load_all(file), load("ppo"), load("gspo")]:
        fibration.printing.formats.as_json([fibration.printing.reports.Outcome("", hierarchy.verify())])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An ordinary test, and a folder with two specs of which one does not verify."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write(pytester, {"test_ordinary.py": "def test_it(): pass", "specs/a.py": OTHER, "specs/wrong.py": WRONG})
    configure(pytester, "specs")
    return pytester


def write(project: pytest.Pytester, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = project.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def configure(project: pytest.Pytester, *specs: str, more: str = "") -> None:
    listed = f"fibration_specs = {json.dumps(specs)}\n" if specs else ""
    write(project, {"pyproject.toml": f"[tool.pytest.ini_options]\n{listed}{more}\n"})


def ids(project: pytest.Pytester, *arguments: object) -> list[str]:
    """The ids of what is collected."""
    result = project.runpytest(*USED, "--collect-only", "-q", *map(str, arguments))
    assert result.ret in (0, 5), result.stdout.str()
    return sorted(line for line in result.outlines if "::" in line)


ORDINARY = "test_ordinary.py::test_it"
SPECS = ["specs/a.py::good", "specs/a.py::other", "specs/wrong.py::wrong"]

# ---------------------------------------------------------------- what is collected


def test_every_hierarchy_of_the_listed_specs_is_a_test(project: pytest.Pytester) -> None:
    assert ids(project) == sorted([*SPECS, ORDINARY])
    result = project.runpytest(*USED, "-v")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["specs/a.py::other PASSED*", "specs/wrong.py::wrong FAILED*"])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["specs/a.py:other"], ["specs/a.py::other"]),
        (["specs/a.py:other", "specs/a.py:good"], ["specs/a.py::good", "specs/a.py::other"]),
        (["specs/a.py:other", "specs/a.py"], ["specs/a.py::good", "specs/a.py::other"]),
        (["specs/a.py", "specs/a.py:other"], ["specs/a.py::good", "specs/a.py::other"]),
        (["specs/wrong.py", "more/gspo.json"], ["more/gspo.json::gspo", "specs/wrong.py::wrong"]),
    ],
)
def test_specs_may_be_files_names_and_json(project: pytest.Pytester, specs: list[str], expected: list[str]) -> None:
    write(project, {"more/gspo.json": load("gspo").model_dump_json()})
    configure(project, *specs)
    assert ids(project) == sorted([*expected, ORDINARY])


def test_the_option_may_be_repeated(project: pytest.Pytester) -> None:
    configure(project)
    assert ids(project) == [ORDINARY]
    found = ids(
        project, "--fibration", "specs/a.py:good", "--fibration", project.path / "specs/wrong.py", "--fibration=ppo"
    )
    assert len(found) == 4
    assert {"specs/a.py::good", "specs/wrong.py::wrong", ORDINARY} < set(found)
    assert any(i.endswith("::ppo") for i in found)


def test_a_path_on_the_command_line_selects_its_specs_and_tests(project: pytest.Pytester) -> None:
    assert ids(project, "test_ordinary.py") == [ORDINARY]
    assert ids(project, "specs") == SPECS
    assert ids(project, "specs/wrong.py") == ["specs/wrong.py::wrong"]
    assert ids(project, "specs/a.py::other") == ["specs/a.py::other"]
    assert ids(project, ".") == sorted([*SPECS, ORDINARY])
    assert ids(project, "test_ordinary.py", "--fibration", "specs/a.py") == [*SPECS[:2], ORDINARY]
    assert project.runpytest(*USED, "specs/a.py::third").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.thorough
def test_deselected_and_ignored_specs_are_not_collected(project: pytest.Pytester) -> None:
    assert ids(project, "-k", "other") == ["specs/a.py::other"]
    assert ids(project, "-k", "not specs") == [ORDINARY]
    assert ids(project, "--deselect", "specs/wrong.py::wrong") == [*SPECS[:2], ORDINARY]
    for everything in ("--ignore=specs", "--ignore-glob=spec*"):
        assert ids(project, everything) == [ORDINARY]
    for one in ("--ignore=specs/a.py", "--ignore-glob=*/a.py"):
        assert ids(project, one) == ["specs/wrong.py::wrong", ORDINARY]
    assert ids(project, "-o", "fibration_specs=") == [ORDINARY]


@pytest.mark.thorough
def test_last_failed_runs_only_the_failed_specs(project: pytest.Pytester) -> None:
    with_cache = ["-p", "_fibration_pytest", "-W", "error"]
    project.runpytest(*with_cache).assert_outcomes(passed=3, failed=1)
    again = project.runpytest(*with_cache, "--last-failed", "-v")
    assert [line.split()[0] for line in again.outlines if "%]" in line] == ["specs/wrong.py::wrong"]


def test_specs_are_relative_to_the_file_that_names_them_and_options_to_the_folder(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"below/mine.py": GOOD})
    monkeypatch.chdir(project.path / "below")
    assert ids(project) == SPECS
    assert ids(project, "--fibration", "mine.py") == ["below/mine.py::good", *SPECS]


@pytest.mark.thorough
def test_specs_in_a_folder_that_pytest_ignores_are_collected(project: pytest.Pytester) -> None:
    write(project, {"build/kept.py": GOOD})
    configure(project, "build")
    assert ids(project) == ["build/kept.py::good", ORDINARY]


@pytest.mark.thorough
def test_specs_outside_the_project_are_collected(
    project: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("a.py", "b.py"):
        (folder / name).write_text(GOOD)
    configure(project, str(folder))
    project.runpytest(*USED).assert_outcomes(passed=3)


@pytest.mark.thorough
def test_the_folder_of_a_spec_may_be_a_package_that_does_not_import(project: pytest.Pytester) -> None:
    write(project, {"specs/__init__.py": "raise ImportError"})
    project.runpytest(*USED).assert_outcomes(passed=3, failed=1)
    project.runpytest(*USED, "specs").assert_outcomes(passed=2, failed=1)


@pytest.mark.thorough
def test_a_file_may_hold_a_spec_and_its_tests(project: pytest.Pytester) -> None:
    write(project, {"test_mine.py": GOOD + "\ndef test_name(): assert good.name == 'good_name'"})
    configure(project, "test_mine.py")
    assert ids(project) == sorted([ORDINARY, "test_mine.py::good", "test_mine.py::test_name"])
    assert ids(project, "test_mine.py") == ["test_mine.py::good", "test_mine.py::test_name"]


def test_a_spec_is_imported_once_and_is_no_test_module(project: pytest.Pytester) -> None:
    count = "\nfrom pathlib import Path\nwith open(Path(__file__).with_suffix('.count'), 'a') as f: f.write('x')\n"
    write(project, {"specs/a.py": OTHER + count + "def test_not_collected(): assert False\n"})
    project.runpytest(*USED, "specs/a.py::other").assert_outcomes(passed=1)
    assert (project.path / "specs/a.count").read_text() == "x"
    project.runpytest(*USED, "specs/a.py").assert_outcomes(passed=2)
    assert (project.path / "specs/a.count").read_text() == "xx"
    project.runpytest(*USED, "--keep-duplicates", "specs/a.py", "specs/a.py").assert_outcomes(passed=4)
    assert (project.path / "specs/a.count").read_text() == "xxx"


# ---------------------------------------------------------------- what is said


def test_a_refusal_shows_the_report_without_a_traceback(project: pytest.Pytester) -> None:
    result = project.runpytest(*USED, "specs/wrong.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    (wrong,) = load_all(project.path / "specs/wrong.py")
    report = wrong.verify()
    assert {v.law for v in report.causes} == {"reflecting", "given_up"}
    for v in report.causes:
        assert str(report.error(v)) in text
        for part in (v.subject, v.required, v.remedy, str(v.counterexample or "")):
            assert part in text
    assert "wrong  refused" in text
    assert not [word for word in ("Traceback", "runtest", "raise ", "LawError", "pytest_plugin.py") if word in text]


def test_an_unusable_file_is_an_error_that_says_why(project: pytest.Pytester) -> None:
    write(project, {"specs/broken.py": "import there_is_no_such_module", "specs/helper.py": "x = 1"})
    result = project.runpytest(*USED)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=2)
    text = result.stdout.str()
    assert f"'{Path('specs/broken.py')}' does not import" in text
    assert "No module named 'there_is_no_such_module' (line 1)" in text
    assert f"'{Path('specs/helper.py')}' holds no hierarchy" in text
    assert not [
        word for word in ("Traceback", "importlib", "SpecError", "loading.py", "pytest_plugin.py") if word in text
    ]
    go_on = project.runpytest(*USED, "--continue-on-collection-errors")
    go_on.assert_outcomes(passed=3, failed=1, errors=2)


def test_an_unknown_name_in_a_spec_is_an_error(project: pytest.Pytester) -> None:
    configure(project, "specs/a.py:third")
    result = project.runpytest(*USED)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*holds no hierarchy called 'third'", "*one of good (name='good_name'), other (name='other_name')"]
    )


@pytest.mark.sampled
@pytest.mark.parametrize("spec", ["nothing.py", "no/such/folder", "nothing.json", "nothing.py:name", "empty"])
def test_a_missing_spec_stops_pytest(project: pytest.Pytester, spec: str) -> None:
    (project.path / "empty").mkdir()
    for arguments in ([f"--fibration={spec}"], ["-o", f"fibration_specs={spec}"]):
        result = project.runpytest(*USED, *arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        text = result.stderr.str()
        assert text.startswith("ERROR: ")
        assert spec.partition(":")[0] in text
        assert "Traceback" not in text


def test_a_defect_of_the_library_keeps_its_traceback(project: pytest.Pytester) -> None:
    write(
        project,
        {"conftest.py": "import fibration.laws.verify\nfibration.Hierarchy.verify = lambda self, timeout: 1 / 0\n"},
    )
    kept = fibration.Hierarchy.verify
    try:
        result = project.runpytest(*USED, "specs/a.py::good")
    finally:
        fibration.Hierarchy.verify = kept  # type: ignore[method-assign]
    result.assert_outcomes(failed=1)
    assert "ZeroDivisionError" in result.stdout.str()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ((), 60.0),
        (("--fibration-timeout=7",), 7.0),
        (("-o", "fibration_timeout=8"), 8.0),
        (("-o", "fibration_timeout=inf"), inf),
    ],
)
def test_the_timeout_is_passed_to_verify(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], seconds: float
) -> None:
    asked: list[float] = []
    verify = fibration.Hierarchy.verify

    def record(self: fibration.Hierarchy, timeout: float) -> object:
        asked.append(timeout)
        return verify(self, None)  # type: ignore[call-arg,arg-type]

    monkeypatch.setattr(fibration.Hierarchy, "verify", record)
    project.runpytest(*USED, *given, "specs/a.py::good").assert_outcomes(passed=1)
    assert asked == [seconds]


@pytest.mark.sampled
@pytest.mark.parametrize("given", ["0", "-1", "nan", "soon"])
def test_a_timeout_that_is_no_number_is_a_usage_error(project: pytest.Pytester, given: str) -> None:
    for option in (f"--fibration-timeout={given}", f"--override-ini=fibration_timeout={given}"):
        result = project.runpytest(*USED, option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert given in result.stderr.str()


# ---------------------------------------------------------------- with other tools


def test_junit_xml_has_a_case_per_hierarchy(project: pytest.Pytester) -> None:
    project.runpytest(*USED, "--junitxml=report.xml")
    cases = {c.get("name"): c for c in Xml.parse(project.path / "report.xml").iter("testcase")}
    assert set(cases) == {"good", "other", "wrong", "test_it"}
    assert cases["wrong"].get("classname") == "specs.wrong"
    failure = cases["wrong"].find("failure")
    assert failure is not None
    assert "breaks the law 'reflecting'" in (failure.text or "")
    assert cases["good"].find("failure") is None


@pytest.mark.thorough
def test_the_plugin_works_with_xdist(project: pytest.Pytester) -> None:
    write(project, {"specs/b.py": GOOD})
    result = project.runpytest_subprocess(*USED, "-p", "xdist", "-n", "2", "--fibration", "ppo", "-v")
    result.assert_outcomes(passed=5, failed=1)
    text = result.stdout.str()
    assert "breaks the law 'reflecting'" in text
    assert "Traceback" not in text


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a.py": GOOD, "_not_a_spec.py": "1 +", "notes.txt": ""}, 0),
        ({"a.py": GOOD, "b.py": WRONG}, 1),
        ({"a.py": GOOD, "b.py": "1 +"}, 2),
        ({"a.py": GOOD, "b.py": ""}, 2),
        ({"a.json": "{}"}, 2),
    ],
)
def test_pytest_and_the_command_line_agree(project: pytest.Pytester, files: dict[str, str], code: int) -> None:
    write(project, {f"mine/{name}": text for name, text in files.items()})
    configure(project, "mine")
    assert CliRunner().invoke(app, ["verify", "mine"]).exit_code == code
    assert project.runpytest(*USED).ret == code


# ---------------------------------------------------------------- where it is not used, and installed

REPORT = "import sys, pytest; code = pytest.main(sys.argv[1:]); print(code, *[m for m in {names} if m in sys.modules])"
HEAVY = ("fibration", "fibration.cli.pytest_plugin", "sympy", "torch", "rich")


@pytest.fixture
def installed(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """With the entry points that this package declares, loaded as pytest loads those of an installed one."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    points = "\n".join(f"{name} = {value}" for name, value in declared.items())
    folder = "site/fibration_of_the_test-1.dist-info"
    metadata = "Metadata-Version: 2.1\nName: fibration-of-the-test\nVersion: 1\n"
    write(project, {f"{folder}/entry_points.txt": f"[pytest11]\n{points}\n", f"{folder}/METADATA": metadata})
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    others = [point.name for point in entry_points(group="pytest11") if point.name not in declared]
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in others))  # one may import anything
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.path / "site"), str(ROOT)]))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:polgrad")  # a peer in our tests, whose own plugin imports torch
    return project


def imported(project: pytest.Pytester, *arguments: str) -> list[str]:
    """Runs pytest in a process of its own: the exit code, then which heavy modules were imported."""
    code = REPORT.format(names=HEAVY)
    made = project.run(sys.executable, "-c", code, "-q", *arguments)
    return made.outlines[-1].replace("ExitCode.", "").split()


def test_an_unused_plugin_imports_nothing(installed: pytest.Pytester) -> None:
    configure(installed)
    assert imported(installed) == ["0"]
    assert imported(installed, "--fibration", "specs/a.py")[:2] == ["0", "fibration"]


def test_the_plugin_imports_no_torch(installed: pytest.Pytester) -> None:
    assert {*imported(installed)} - {"sympy"} == {"1", "fibration", "fibration.cli.pytest_plugin", "rich"}


@pytest.mark.thorough
def test_the_installed_plugin_needs_no_option_and_can_be_disabled(installed: pytest.Pytester) -> None:
    installed.runpytest_subprocess("-W", "error").assert_outcomes(passed=3, failed=1)
    configure(installed)
    without = installed.runpytest_subprocess("-p", "no:fibration", "-W", "error")
    without.assert_outcomes(passed=1)
    refused = installed.runpytest_subprocess("-p", "no:fibration", "--fibration", "specs")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.thorough
def test_the_installed_plugin_may_be_named_with_p(installed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["-p", "fibration", "-W", "error", "--collect-only", "-q"]
    for _ in range(2):
        found = installed.runpytest_subprocess(*named)
        assert found.ret == 0, found.stdout.str()
        assert sorted(line for line in found.outlines if "::" in line) == sorted([*SPECS, ORDINARY])
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_a_trainers_config_is_a_test_that_fails_on_its_errors(project: pytest.Pytester) -> None:
    write(project, {"grpo.yaml": "loss_type: cispo\nepsilon: 0.2\n"})
    configure(project, "trl:grpo.yaml", "trl:grpo.yaml epsilon_high=5")
    result = project.runpytest_inprocess(*USED, "-q", "grpo.yaml", "-rA")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*trl_cispo  1 error*", "*error: epsilon=0.2 in the place*Write epsilon_high=1.2*"])
    configure(project, "trl:none.yaml")
    project.runpytest_inprocess(*USED).assert_outcomes(errors=1)
