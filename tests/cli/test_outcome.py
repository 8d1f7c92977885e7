"""The exit code is that of a command that ended. No spec that ends the process makes it 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fibration.cli import outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
ROOT = Path(__file__).resolve().parents[2]
# The module needs nothing of the package, which would take a second to import.
AROUND = """
import atexit, importlib.util, os, posix, signal, sys, threading, time
found = importlib.util.spec_from_file_location("outcome", {path!r})
outcome = importlib.util.module_from_spec(found)
found.loader.exec_module(outcome)

def command():
{body}

outcome.to_its_end(command)
"""


def start(body: str, **options: object) -> subprocess.Popen[str]:
    code = AROUND.format(path=outcome.__file__, body=textwrap.indent(textwrap.dedent(body), "    "))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", code], **pipes)  # type: ignore[call-overload,no-any-return]


def ended(body: str, **options: object) -> tuple[int, str, str]:
    process = start(body, **options)
    printed, said = process.communicate(timeout=60)
    return process.returncode, printed, said


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("print('all')", 0),
        ("print('all'); sys.exit()", 0),
        ("print('all'); sys.exit(1)", 1),
        ("print('all'); sys.exit(2)", 2),
        ("print('all'); sys.exit('words')", 1),
    ],
)
def test_a_command_that_ends_has_its_own_code_and_its_whole_output(body: str, code: int) -> None:
    assert ended(body)[:2] == (code, "all\n")


@pytest.mark.parametrize(
    "body",
    [
        "posix._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "threading.Timer(0, posix._exit, (0,)).start(); time.sleep(60)",
    ],
)
def test_a_command_that_a_spec_ends_early_is_unusable(body: str) -> None:
    code, printed, said = ended(f"print('half', end=''); {body}; sys.exit(0)")
    assert (code, printed) == (2, "")
    assert said.startswith("error: the process ended before there was a result") and "os._exit(0)" in said


def test_exit_handlers_change_no_exit_code() -> None:
    assert ended("atexit.register(posix._exit, 0); print('refused'); sys.exit(1)")[:2] == (1, "refused\n")
    assert ended("atexit.register(posix._exit, 3); print('verified')")[0] == 3


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("os.kill(os.getpid(), 35)", 128 + 35, "error: ended by signal 35 before"),
        ("os.abort()", 128 + signal.SIGABRT, "error: ended by SIGABRT before"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, "error: ended by SIGKILL before"),
        ("posix._exit(5)", 5, ""),
        ("raise ValueError('a defect')", 1, "ValueError: a defect"),
    ],
)
def test_crashes_and_signals_keep_their_exit_code(body: str, code: int, words: str) -> None:
    left, _, said = ended(body)
    assert left == code
    assert words in said


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        code, _, said = ended("print('all'); sys.exit(0)", stdout=full)
    assert code == 2
    assert said == "error: cannot write the output: No space left on device\n"


def test_a_process_that_a_spec_forks_does_not_delay_the_command(tmp_path: Path) -> None:
    """The pipe stays open in what it has forked."""
    note = tmp_path / "forked"
    body = f"""
        forked = os.fork()
        if not forked:
            time.sleep(60)
        open({str(note)!r}, "w").write(str(forked))
    """
    assert ended(body, stdout=None, stderr=None)[0] == 0
    os.kill(int(note.read_text()), signal.SIGKILL)  # which is there


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_command_ends_its_worker(number: signal.Signals) -> None:
    with start("print('begun', flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) in (128 + number, -number)  # as it is handed on, or comes before that
        assert process.stdout.read() == ""  # which ends when nobody can write any more


ENDS = "import posix, sys\nprint('read')\nposix._exit(0)\n"


def test_no_spec_makes_verify_exit_with_0(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    command = [sys.executable, "-W", "error", "-m", "fibration", "verify", "ppo", "ends.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 2
    assert "ended before there was a result" in made.stderr


STAYS = """
import os
from fibration import load
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
fine = load("ppo")
"""


@pytest.mark.thorough
def test_specs_that_end_the_process_are_errors_of_collection(tmp_path: Path) -> None:
    specs = {
        "ends.py": "import os\n\nos._exit(0)\n",
        "skips.py": "import pytest\npytest.skip('no reason', allow_module_level=True)\n",
        "stays.py": STAYS,
    }
    for name, text in specs.items():
        (tmp_path / name).write_text(text)
    plugins = ["-p", "_fibration_pytest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *(f"--fibration={name}" for name in specs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == pytest.ExitCode.INTERRUPTED, made.stdout
    assert "SystemExit: os._exit(0) (line 3)" in made.stdout
    assert "Skipped: no reason (line 2)" in made.stdout
    assert "2 errors" in made.stdout
    assert os._exit.__module__ == "posix"
