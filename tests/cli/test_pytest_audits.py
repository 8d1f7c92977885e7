"""Audits of loss functions as pytest items: `fibration_audits` in a project's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
LOSSES = """
import posix

def right(log_probs, advantages, mask):
    return -(log_probs * advantages[:, None] * mask).sum() / mask.sum()

def wrong(log_probs, advantages, mask):
    return -right(log_probs, advantages, mask)

def bad(log_probs, advantages, mask):
    print("::error::printed")
    posix._exit(0)
"""
SPEC = """
from fibration import load

mine = load("reinforce").replace(name="mine")
"""
CISPO = """
def loss(log_probs, old_log_probs, advantages, mask):
    weight = (log_probs - old_log_probs).exp().clamp(max=4).detach()
    return -(weight * advantages[:, None] * log_probs * mask).sum() / mask.sum()
"""
USED = ["-p", "_fibration_pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_ordinary="def test_it(): pass")
    (pytester.path / "losses").mkdir()
    (pytester.path / "losses" / "my.py").write_text(LOSSES)
    (pytester.path / "losses" / "spec.py").write_text(SPEC)
    return pytester


def configure(project: pytest.Pytester, audits: str, file: str = "pyproject.toml") -> None:
    head = "[tool.pytest.ini_options]" if file == "pyproject.toml" else "[pytest]"
    (project.path / file).write_text(f"{head}\nfibration_audits = {audits}\n")


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest(*USED, *arguments)


@pytest.mark.parametrize(
    ("file", "audits"),
    [
        ("pyproject.toml", '{"losses/my.py:right" = "reinforce", "losses/my.py:wrong" = "losses/spec.py:mine"}'),
        pytest.param(
            "pytest.ini",
            '{"losses/my.py:right": "reinforce", "losses/my.py:wrong": "losses/spec.py:mine"}',
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_each_function_is_a_test_whose_failure_is_the_report(project: pytest.Pytester, file: str, audits: str) -> None:
    configure(project, audits, file)
    result = run(project, "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["losses/my.py::right PASSED*", "losses/my.py::wrong FAILED*"])
    text = result.stdout.str()
    assert "at ratio 1 a token is pushed against its advantage" in text and "'mine' × -1: proved" in text
    assert "Traceback" not in text and "raise_for_status" not in text


@pytest.mark.thorough
def test_a_function_is_compared_with_a_trainers_config(project: pytest.Pytester) -> None:
    (project.path / "losses" / "trl.yaml").write_text("loss_type: cispo\nepsilon_high: 5\n")
    (project.path / "losses" / "my.py").write_text(CISPO)
    configure(project, '{"losses/my.py:loss" = "trl:losses/trl.yaml epsilon_high=4"}')
    run(project, "losses").assert_outcomes(passed=1)
    configure(project, '{"losses/my.py:loss" = "trl:losses/other.yaml"}')
    assert "cannot read 'trl:" in run(project).stderr.str()


@pytest.mark.thorough
def test_a_path_may_have_blanks(project: pytest.Pytester) -> None:
    (project.path / "losses" / "my spec.py").write_text(SPEC)
    configure(project, '{"losses/my.py:right" = "losses/my spec.py:mine"}')
    run(project, "losses").assert_outcomes(passed=1)


@pytest.mark.thorough
def test_a_function_that_cannot_be_audited_fails_in_words(project: pytest.Pytester) -> None:
    configure(project, '{"losses/my.py:bad" = ""}')
    result = run(project, "losses")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "'losses/my.py:bad' ended the process that runs it" in text and "| ::error::printed" in text
    assert "Traceback" not in text


@pytest.mark.thorough
def test_numbers_after_a_loss_are_its_parameters(project: pytest.Pytester) -> None:
    configure(project, '{"losses/my.py:right" = "grpo epsilon_lo=0.3"}')
    result = run(project, "losses")
    result.assert_outcomes(failed=1)
    assert "'grpo' has no parameter 'epsilon_lo'" in result.stdout.str()


def test_paths_and_names_select_audits(project: pytest.Pytester) -> None:
    configure(project, '{"losses/my.py:right" = "", "losses/my.py:wrong" = ""}')

    def ids(*arguments: str) -> list[str]:
        result = run(project, "--collect-only", "-q", *arguments)
        return sorted(line for line in result.outlines if "::" in line)

    both = ["losses/my.py::right", "losses/my.py::wrong"]
    assert ids() == [*both, "test_ordinary.py::test_it"]
    assert ids("losses/my.py::wrong") == both[1:]
    assert ids("test_ordinary.py") == ["test_ordinary.py::test_it"]


@pytest.mark.parametrize(
    ("audits", "words"),
    [
        ('{"losses/none.py:right" = "grpo"}', "'losses/none.py:right', no such file"),
        ('{"losses/my.py" = "grpo"}', "'losses/my.py', no FILE.py:FUNCTION"),
        ('{"losses/my.py:right" = "gpro"}', "'grpo'"),
        ('"losses/my.py:right"', "which names no functions and losses"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_a_usage_error(
    project: pytest.Pytester, audits: str, words: str
) -> None:
    configure(project, audits)
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str() and "Traceback" not in result.stderr.str()
