"""Code of users in a process of its own: whatever it does, its caller gets a result or an error, and goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fibration.errors import AuditError, NoHierarchy, SpecError
from fibration.language import apart

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "in_processes", True)


def attempt(*codes: str, seconds: float = 60.0) -> list[object]:
    """What each code leaves in `found`, or its error."""

    def work(code: str) -> object:
        names: dict[str, object] = {}
        exec("import atexit, os, posix, signal, subprocess, sys, threading, time", names)
        exec(code, names)
        return names.get("found")

    return list(apart.each(work, codes, seconds, AuditError, "end it"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("posix._exit(0)", "exit code 0, as after os._exit(0)"),
        ("posix._exit(1)", "exit code 1"),
        ("os.execv('/bin/true', ['true'])", "exit code 0"),
        ("threading.Timer(0, posix._exit, (0,)).start(); time.sleep(60)", "exit code 0"),
        ("os.kill(os.getpid(), 35)", "signal 35"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, as when memory runs out"),
        ("os.closerange(0, 256)", "ended the process"),
        ("raise SystemExit(0)", "ended the process"),
        ("raise KeyboardInterrupt", "raises KeyboardInterrupt"),
        ("class C: pass\nfound = C()", "ended the process"),  # a class that its caller does not know
    ],
)
def test_code_that_ends_its_process_is_an_error_and_stops_no_other(code: str, said: str) -> None:
    before, error, after = attempt("found = 1", code, "found = 2")
    assert (before, after) == (1, 2)
    assert isinstance(error, AuditError) and said in str(error)


@pytest.mark.parametrize("code", ["while True: pass", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_code_that_does_not_end_is_an_error(code: str) -> None:
    error, after = attempt(code, "found = 2", seconds=0.5)
    assert "did not end within 0.5 s" in str(error) and after == 2


@pytest.mark.parametrize(
    "code",
    [
        "me, forked = os.getpid(), os.fork(); found = int(os.getpid() == me); forked and os.waitpid(forked, 0)",
        "atexit.register(posix._exit, 3)",
        "threading.Thread(target=time.sleep, args=(60,)).start()",
        "threading.Timer(0, sys.exit, (3,)).start()",
        "sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)",
    ],
)
def test_code_that_leaves_something_behind_has_its_result_once(code: str) -> None:
    assert attempt(f"found = 1; {code}", "found = 2") == [1, 2]


def test_what_a_block_forks_ends_with_it() -> None:
    here = os.getpid()
    with apart.staying():
        forked = os.fork()
    if os.getpid() != here:
        os._exit(9)
    assert os.waitpid(forked, 0)[1] == 1 << 8


def test_what_the_code_prints_is_on_stderr_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    attempt("print('::error::a'); os.write(1, b'b\\xff\\n'); os.write(2, b'c'); atexit.register(print, 'd')")
    assert capfd.readouterr() == ("", "| ::error::a\n| b\\xff\n| cd\n")
    attempt("os.write(1, b'x' * 500_000)")
    assert len(capfd.readouterr().err) < apart.SHOWN + 100


def test_processes_that_the_code_started_end_with_it() -> None:
    (pid,) = attempt("found = subprocess.Popen(['sleep', '600']).pid")
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(pid, 0)
            time.sleep(0.01)


def test_errors_keep_their_class_and_parts() -> None:
    def work(item: int) -> None:
        raise NoHierarchy("none", required="one", found="x" * 5_000, remedy="write it")

    (error,) = apart.each(work, [1], 60, SpecError, "")
    assert type(error) is NoHierarchy and (error.what, error.required, error.remedy) == ("none", "one", "write it")
    assert error.found == f"{'x' * 950}... and 4050 more characters"


STARTS = "subprocess.Popen(['sleep', '600'], pass_fds=[{0}]); "


@pytest.mark.parametrize(
    ("number", "starts"), [(signal.SIGINT, STARTS), (signal.SIGTERM, STARTS), (signal.SIGKILL, "")]
)
def test_a_signal_to_the_caller_ends_the_process(number: signal.Signals, starts: str) -> None:
    heard, said = os.pipe()
    caller = os.fork()
    if caller == 0:
        os.close(heard)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            apart.turn_on()
            attempt(f"{starts}os.write({{0}}, b'.'); time.sleep(600)".format(said))
        finally:
            os._exit(0)
    os.close(said)
    os.read(heard, 1)
    os.kill(caller, number)
    os.waitpid(caller, 0)
    assert select.select([heard], [], [], 30)[0] and os.read(heard, 1) == b""  # the end: nobody can write any more
    os.close(heard)


def test_no_spec_makes_verify_exit_with_0(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import posix\nprint('read')\nposix._exit(0)\n")
    command = [sys.executable, "-W", "error", "-m", "fibration", "verify", "ppo", "ends.py", "gspo", "-f", "markdown"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 2
    assert made.stderr.startswith("| read\nerror: 'ends.py' ended the process that runs it")
    assert "ppo" in made.stdout and "gspo" in made.stdout  # the others are verified


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fibration", "--version"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (made.returncode, made.stderr) == (2, "error: cannot write the output: No space left on device\n")


AUDITED = """
import atexit, os, torch
atexit.register(print, "::error::at the end")

class Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        raise SystemExit(0)

def ends(log_probs, advantages, mask):
    return Ends.apply(log_probs)

forked = []

def right(log_probs, advantages, mask):
    os.write(1, b"::error::in the call\\n")
    if not forked:
        forked.append(os.fork())
    return -(log_probs * advantages[:, None] * mask).sum() / mask.sum()
"""


@pytest.mark.parametrize(("name", "code"), [("ends", 2), pytest.param("right", 0, marks=pytest.mark.thorough)])
def test_an_audited_function_writes_into_no_report(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(AUDITED)
    command = [sys.executable, "-m", "fibration", "audit", f"my.py:{name}", "--as", "reinforce", "-f", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == code, made.stderr
    assert json.loads(made.stdout)["ok"] if code == 0 else made.stdout == ""
    assert "| ::error::at the end\n" in made.stderr
    assert not any(line.startswith("::") for line in made.stderr.splitlines())


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
