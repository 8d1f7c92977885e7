"""Text from outside in every output: it controls no terminal, begins no command of a CI system, and breaks no format."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from typer.testing import CliRunner

import fibration
from fibration.cli.main import app
from fibration.escaping import Guard, escaped

LINES = "x\n::stop-commands::y\r\n \t::error file=a::b\n##[error]c ##vso[task]d\n| e | `f` <b> ```"
CODES = "\x1b[2J\x1b]0;t\x07\x9b31m\x7f\u202e\u2066\u200f\u2028\x85\x0b"
NASTY = LINES + CODES
OURS = re.compile(r"::(error|warning|notice) (file=[^:,]*,)?title=[^:,]+::.*")
FORMATS = ["text", "json", "junit", "github", "markdown"]

SPEC = f"""
from fibration import *
import sys
print({NASTY!r})
print({NASTY!r}, file=sys.stderr)
sys.stdout.buffer.write({NASTY!r}.encode())
loss = load("ppo").replace(name="loss", objective=token_mean().score(), gives_up={{"first_order": {NASTY!r}}})
"""
FUNCTION = f"""
def broken(log_probs, old_log_probs, advantages, mask):
    raise ValueError({NASTY!r})
"""
TRACEBACK = f"""
from fibration.cli import main
main.app = lambda: [].index({NASTY!r})
main.main()
"""


def check(text: str, where: object = "", github: bool = False) -> None:
    """Every character can be shown, and every command of a CI system is one of our annotations."""
    wrong = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"}
    assert not wrong, (where, wrong, text)
    for line in text.splitlines():
        assert not re.search(r"##(vso)?\[", line), (where, line)
        assert not line.lstrip().startswith("::") or (github and OURS.fullmatch(line)), (where, line)


def said(*words: object, github: bool = False) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    check(done.stdout, words, github)
    check(done.stderr, words)
    return done.stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    h = json.loads(fibration.load("grpo").model_dump_json())
    names = ("spec", "reason", "key", "name", "formula", "kind")
    reason, key, name, formula, kind = ({**h} for _ in names[1:])
    reason["gives_up"] = {"positivity": NASTY}
    key["gives_up"] = {NASTY: "why"}
    name["name"] = NASTY
    formula["penalties"] = {"kl": NASTY}
    kind[NASTY] = 1
    for which, content in zip(names[1:], (reason, key, name, formula, kind), strict=True):
        (tmp_path / f"{which}.json").write_text(json.dumps(content))
    (tmp_path / "spec.py").write_text(SPEC)
    (tmp_path / "raises.py").write_text(f"raise ValueError({NASTY!r})")
    (tmp_path / "syntax.py").write_text(f"x = '{NASTY}'")
    (tmp_path / "function.py").write_text(FUNCTION)
    odd = NASTY.replace("/", "")[:200].replace("\x00", "")
    (tmp_path / f"{odd}.json").write_text("{")
    (tmp_path / "value.yaml").write_text("loss_type: " + json.dumps(NASTY))
    (tmp_path / "option.yaml").write_text(json.dumps(NASTY) + ": 1\nloss_type: grpo\n")
    (tmp_path / "broken.yaml").write_text(f"loss_type: [{LINES}")
    return tmp_path


@pytest.mark.parametrize("form", FORMATS)
def test_no_text_from_outside_gets_out_of_a_report(form: str, files: Path) -> None:
    specs = sorted(p for p in files.iterdir() if p.suffix in (".py", ".json") and p.name != "function.py")
    configs = [f"trl:{p}" for p in sorted(files.glob("*.yaml"))]
    out = said("verify", *specs, *configs, "-f", form, "--timeout", 9, github=form == "github")
    said("verify", files, "-f", form, "-o", files / "report", github=form == "github")
    said("compare", files / "reason.json", files / "spec.py", "-f", form, github=form == "github")
    assert form == "text" or "stop-commands" in out
    if form == "json":
        assert NASTY in {v.get("given_up") for report in json.loads(out) for v in report["verdicts"]}
    if form == "junit":
        Xml.fromstring(out)


@pytest.mark.parametrize(
    "words",
    [
        [NASTY],
        ["--" + NASTY],
        ["verify", "grpo", "--format", NASTY],
        ["verify", NASTY],
        ["compare", "grpo", NASTY],
        ["compare", "grpo", "dapo", "--when", NASTY],
        ["compare", "grpo", "dapo", "--param", NASTY],
        ["compare", "grpo", "dapo", "--match", NASTY],
        ["compile", "grpo", "--backend", NASTY],
        ["plot", "grpo", "--figure", NASTY],
        ["run", "grpo", "--rollouts", NASTY],
        ["bench", "grpo", "--tokens", NASTY],
        ["audit", f"{NASTY}.py:loss"],
        *(["show", "reason.json", "-f", form] for form in ("text", "python", "mermaid", "latex", "json")),
        ["compile", "reason.json", "-b", "torch"],
        ["report", "reason.json", "option.yaml", f"{NASTY}.py", "-o", "-"],
        ["show", "spec.py"],
        ["audit", "function.py:broken"],
        ["audit", f"function.py:{NASTY}"],
        ["audit", "function.py:loss", "--as", NASTY],
        ["init", NASTY.replace("/", "").replace("\n", "")],
    ],
    ids=lambda words: " ".join(words)[:30].encode("unicode_escape").decode(),
)
def test_no_argument_gets_out_of_a_message(words: list[str], files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    out = said(*words)
    if words[-1] == "json":
        assert json.loads(out)["gives_up"] == {"positivity": NASTY}
    if words[-1] == "python":
        (files / "printed.py").write_text(out)
        assert fibration.load(files / "printed.py") == fibration.load(files / "reason.json")


def test_tracebacks_are_escaped() -> None:
    done = subprocess.run([sys.executable, "-c", TRACEBACK], capture_output=True, text=True, timeout=60)
    assert "ValueError" in done.stderr
    check(done.stderr)


def test_a_guard_sees_commands_that_are_written_in_pieces() -> None:
    class Stream(list):
        def write(self, text: str) -> None:
            self.append(text)

        def isatty(self) -> bool:
            return False

    stream = Stream()
    guard = Guard(stream)
    for piece in [
        "a::b\n",
        " ",
        ":",
        ":error::x\n",
        "##",
        "[group]\n",
        *"\n\t::warning::y\n",
        " " * 500,
        "::z\n",
        "#" * 500,
        "#[w\n",
    ]:
        guard.write(piece)
    check("".join(stream))
    guard.styled.write("\x1b[1m::error\x1b[0m::c\x1b]8;;d\n")
    assert "".join(stream).endswith("\x1b[1m:\\:error\x1b[0m::c\\x1b]8;;d\n")
    assert escaped(escaped(NASTY)) == escaped(NASTY)
