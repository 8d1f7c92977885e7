"""The command line: exit codes, every report format, and messages about unusable inputs."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from support import invoke

import fibration
from fibration import load
from fibration.printing.law_table import KINDS

GOOD = """
from fibration import Hierarchy, clip_gate, log_ratio, strata, token_mean

(token,) = strata("token")
good = Hierarchy(name="good", gates={token: clip_gate(1)}, decomposition=log_ratio(), objective=token_mean())
"""
# Weights that do not sum to 1, and a law given up although it holds, for a reason that no XML may hold.
WRONG = """
from fibration import *

print("a spec may print")
token, trajectory = strata("token trajectory")
wrong = Hierarchy(
    name="wrong",
    fibrations=[Fibration(token, trajectory, kernel=MarkovKernel(1 / (count(token, over=trajectory) + 1)))],
    gates={trajectory: identity_gate(), token: identity_gate()},
    decomposition=signed_log_ratio(),
    objective=trajectory_mean(),
    gives_up={"positivity": "50%, at\\x01 line\\nbreaks"},
)
"""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder with a spec that verifies, one that does not, and one that does not import."""
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "a_good.py").write_text(GOOD)
    (folder / "b_broken.py").write_text("import there_is_no_such_module\n")
    (folder / "c_wrong.py").write_text(WRONG)
    return folder


GIVES_UP = ', gives_up={"first_order": "a score"}'
SLIP = """
from fibration import Objective, count, load, log_prob, policies, strata
token, trajectory, batch = strata("token trajectory batch")
current, reference = policies("current reference")
d = log_prob(current) - log_prob(reference)
mu = Objective(1 / (count(trajectory, over=batch) * (count(token, over=trajectory) + 1))).score()
slip = load("ppo").replace(name="slip", objective=mu, penalties={"kl": d + 0}, gives_up={"first_order": "a score"})
"""


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fibration", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, **options)  # type: ignore[call-overload,no-any-return]


# ---------------------------------------------------------------- verify


def test_with_all_text_shows_every_law_and_every_argument() -> None:
    code, output = invoke("verify", "fiberpo_inward", "--all")
    report = load("fiberpo_inward").verify()
    assert code == 0
    words = " ".join(output.split())
    for v in report.verdicts:
        assert v.law in output
        assert " ".join(v.argument.split()[:3]) in words
    for f in report.facts:
        assert f.name in output
    assert output.splitlines()[0] == f"fiberpo_inward  verified  {len(report.proved_laws)} laws proved, 1 warning"
    assert output.splitlines()[-1] == "1 of 1 hierarchy verified"


def test_text_shows_first_what_to_act_on_and_counts_what_holds() -> None:
    code, output = invoke("verify", "gspo")
    report = load("gspo").verify()
    assert code == 0
    first, *rows, more, empty, last = output.splitlines()
    assert first == f"gspo  verified  {report.proved_in_words}, 2 given up, {len(report.warnings)} warnings"
    assert (more, empty, last) == ("  --all lists every law and every fact", "", "1 of 1 hierarchy verified")
    kinds = [row[2:] for row in rows if row[2] != " "]
    assert [row.split()[:4] for row in kinds[:2]] == [["–", "given", "up", law] for law in ("identity", "first_order")]
    assert "one ratio per trajectory" in " ".join(output.split()) and "as identity" in output
    warned = [["!", "warning", f.name] for f in report.warnings]
    noted = [["·", "fact", f.name] for f in report.facts if f.level == "note"]
    assert warned and [row.split()[:3] for row in kinds[2:]] == warned + noted
    assert {name for *_, name in warned + noted} == {"radius", "weight", "reversal", "amplification", "coupling"}
    assert {v.law for v in report.verdicts if v.status != "proved"} | {*report.proved_laws} == {
        v.law for v in report.verdicts
    }


def test_a_failure_stands_before_what_is_given_up_and_before_warnings(tmp_path: Path) -> None:
    file = tmp_path / "slip.py"
    file.write_text(SLIP)
    code, output = invoke("verify", file)
    assert code == 1
    lines = [line[2:].split("  ")[0] for line in output.splitlines() if line[2:3] not in ("", " ")]
    assert lines[1:-1] == ["✗ refuted", "– given up", "! warning", "--all lists every law and every fact"]
    words = " ".join(output.split())
    assert "a trajectory of 1 token counts 1/2 and a trajectory of 2 tokens counts 2/3" in words
    fine = tmp_path / "fine.py"
    fine.write_text(SLIP.replace("d + 0", "d * d / 2").replace(".score()", "").replace(GIVES_UP, ""))
    code, output = invoke("verify", fine, "grpo")
    first, second, *_ = output.splitlines()
    assert code == 0 and first == "slip  verified  10 laws proved, 1 warning"  # a warning refuses nothing
    assert second == "grpo  verified  9 laws proved, 1 warning"
    words = " ".join(output.split())
    assert "! warning weight slip: objective: " in words and "! warning amplification grpo: 1 + eps" in words


@pytest.mark.parametrize(("form", "sign"), [("github", "::warning file="), ("markdown", "! slip: weight of objective")])
def test_formats_for_people_have_warnings(form: str, sign: str, tmp_path: Path) -> None:
    file = tmp_path / "slip.py"
    file.write_text(SLIP)
    code, output = invoke("verify", file, "--format", form)
    assert code == 1 and any(line.startswith(sign) for line in output.splitlines())
    assert any("kl_gradient" in line and line.startswith(("::error", "✗")) for line in output.splitlines())


@pytest.mark.parametrize("form", ["text", "json", "junit", "github"])
def test_a_fix_has_the_names_of_the_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = tmp_path / "named.py"
    file.write_text(NAMED)
    code, output = invoke("verify", file, "--format", form)
    written = (
        "write tok: pessimistic_clip_gate(low, high) in gates; or gives_up={'inward': 'why'}, if the loss means it"
    )
    plain = output.replace("%2C", ",").replace("&#39;", "'")
    plain = " ".join(plain.split()) if form == "text" else plain  # for programs it is one line
    assert code == 1 and any(f"{written} (parameters: low, high)" in line for line in plain.splitlines())


NAMED = """
from fibration import *
(tok,) = strata("token")
low, high = Parameter("epsilon_low", default=0.2, upper=1), Parameter("epsilon_high", default=0.28)
split = where(advantage > 0, maximum(residual, -low), minimum(residual, high))
named = Hierarchy(name="named", gates={tok: Gate(split)}, decomposition=ratio_deviation(), objective=token_mean())
"""


def test_a_refusal_has_required_found_and_fix(specs: Path) -> None:
    code, output = invoke("verify", specs / "c_wrong.py")
    assert code == 1
    failing = next(v for v in _wrong().failures if v.law == "reflecting")
    words = " ".join(output.split())
    assert f"required: {failing.required}" in words
    assert f"found: {failing.found}" in words
    assert f"counterexample: {failing.counterexample}" in words
    assert f"fix: {failing.remedy} ✗ refuted given_up" in words
    assert "so too: orthogonality of residual on token" in words
    assert words.count("orthogonality") == 1
    assert words.startswith("a spec may print wrong refused 10 laws proved, 2 refuted ✗ refuted reflecting kernel")
    assert output.splitlines()[-1] == "0 of 1 hierarchy verified; refused: wrong"


def _wrong():  # type: ignore[no-untyped-def]
    names: dict[str, object] = {}
    exec(WRONG, names)
    return names["wrong"].verify()  # type: ignore[attr-defined]


def test_text_fits_a_pipe_of_80_columns_without_cutting_words(specs: Path) -> None:
    for spec in ("fiberpo_domain", "gspo", specs / "c_wrong.py"):
        _, output = invoke("verify", spec)
        assert all(
            len(line) <= 80 or line.startswith("      fix: ") for line in output.splitlines()
        )  # a fix is to paste
        assert "…" not in output
        assert all(line == line.rstrip() for line in output.splitlines())


def test_one_unusable_file_does_not_stop_the_others(specs: Path) -> None:
    code, output = invoke("verify", specs)
    assert code == 2
    assert "'there_is_no_such_module'" in output
    assert "good   verified" in output
    assert "wrong  refused" in output
    assert "1 of 2 hierarchies verified; refused: wrong; unusable: " in " ".join(output.split())


def test_json_is_the_list_of_reports(specs: Path) -> None:
    result = run("verify", specs, "--format", "json")
    assert result.returncode == 2
    good, wrong = json.loads(result.stdout)  # what a spec prints goes to stderr
    assert (good["hierarchy"], good["ok"]) == ("good", True)
    assert (wrong["hierarchy"], wrong["ok"]) == ("wrong", False)
    found = {v["law"]: v for v in wrong["verdicts"]}
    assert found["reflecting"]["counterexample"]["text"]
    assert found["orthogonality"]["follows_from"] == {"law": "reflecting", "subject": "kernel token → trajectory"}
    assert [v["law"] for v in wrong["verdicts"] if "follows_from" in v] == ["orthogonality"]
    assert "a spec may print" in result.stderr
    assert "does not import" in result.stderr
    assert "Traceback" not in result.stderr


def test_junit_has_a_case_per_verdict(specs: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report.xml"
    code, output = invoke("verify", specs, "gspo", "--format", "junit", "--output", file)
    assert code == 2
    assert str(file) in output
    root = Xml.parse(file).getroot()
    suites = {s.get("name"): s for s in root}
    wrong, gspo = suites["wrong"], suites["gspo"]
    report = _wrong()
    assert len(wrong.findall("testcase")) == int(wrong.get("tests", "")) == len(report.verdicts)
    assert len(wrong.findall("testcase/failure")) == int(wrong.get("failures", "")) == len(report.causes)
    along = wrong.find("testcase[@classname='wrong.orthogonality']/skipped")
    assert along is not None
    assert along.get("message") == "follows from reflecting of kernel token → trajectory"
    failure = wrong.find("testcase[@classname='wrong.reflecting']/failure")
    assert failure is not None
    assert "reflecting" in failure.get("message", "")
    assert "required" in (failure.text or "")
    assert "  so too:   orthogonality of residual on token\n" in (failure.text or "")
    skipped = gspo.findall("testcase/skipped")
    assert skipped
    assert "one ratio per trajectory" in skipped[0].get("message", "")
    assert [s.get("errors") for s in root] == ["0", "1", "0", "0"]
    assert int(root.get("tests", "")) == sum(int(s.get("tests", "")) for s in root)


def test_github_commands_are_escaped(specs: Path) -> None:
    code, output = invoke("verify", specs, "-f", "github")
    assert code == 2
    commands = [line for line in output.splitlines() if line.startswith("::")]
    assert len(commands) == 1 + len(_wrong().causes)
    assert output.count("%0A  so too:   orthogonality of residual on token%0A") == 1
    for line in commands:
        properties, message = line.removeprefix("::error ").split("::", 1)
        pairs = dict(p.split("=", 1) for p in properties.split(","))
        assert set(pairs) == {"file", "title"}
        assert "%0A  required: " in message
    assert "title=wrong%3A reflecting::" in output
    assert output.splitlines()[-1].startswith("1 of 2 hierarchies verified")


HEAVY = set("matplotlib mpmath networkx numpy pydantic rich sympy torch yaml".split())
PROOFS, CACHED = "mpmath networkx pydantic rich sympy", "pydantic rich"
LOADS = [("--version", ""), ("--help", ""), ("show grpo", CACHED), ("verify grpo", PROOFS), ("verify grpo", CACHED)]


def test_a_command_loads_only_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path))
    for words, heavy in LOADS:
        code = f"import sys; from fibration.cli.main import app\ntry: app({words.split()})\n"
        code += f"finally: print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, f"{heavy}\n"), words


def test_importing_the_library_loads_nothing() -> None:
    code = "import sys, fibration; print([m for m in sys.modules if m.startswith('fibration.')], dir(fibration))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == f"[] {sorted(fibration.__all__)}\n"
    assert sorted(fibration._MODULES) == sorted(fibration.__all__)


@pytest.mark.thorough
def test_a_terminal_without_unicode_gets_words() -> None:
    result = run("verify", "ppo", env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert result.returncode == 0
    assert " laws proved" in result.stdout


@pytest.mark.thorough
def test_a_closed_pipe_raises_no_error() -> None:
    command = f"{sys.executable} -m fibration verify ppo | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("ppo  verified")
    assert "Traceback" not in result.stderr


def test_signs_and_words_are_all_different() -> None:
    assert len({k.sign for k in KINDS.values()}) == len({k.word for k in KINDS.values()}) == len(KINDS)


# ---------------------------------------------------------------- inputs that cannot be used

TWO = GOOD + "\nother = good.replace(name='other')\n"
EVIL = {**load("ppo").model_dump(mode="json"), "gates": {"token": "__import__('os').system('touch pwned')"}}
UNUSABLE = {
    "broken.py": ("1 +\n", "SyntaxError"),
    "raises.py": ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
    "exits.py": ("import sys; sys.exit(0)\n", "does not import"),
    "empty.py": ("", "no hierarchy"),
    "bytes.py": ("\0", "does not import"),
    "declared.py": ("from fibration import Stratum\nStratum('a b')\n", "'a b'"),
    "garbage.json": ("{", "is no hierarchy"),
    "list.json": ("[]", "is no hierarchy"),
    "evil.json": (json.dumps(EVIL), "gate on token"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("command", [["verify"], ["show"], ["compile"]])
def test_unusable_input_exits_with_2(
    name: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, expected = UNUSABLE[name]
    Path(name).write_text(content)
    code, output = invoke(*command, name)
    assert code == 2
    assert output.startswith("error: ")
    assert expected in output
    assert "Traceback" not in output
    assert not Path("pwned").exists()


def test_a_file_with_several_needs_a_name(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO)
    code, output = invoke("show", file)
    assert code == 2
    assert f"name one: {file}:good" in output
    assert invoke("show", f"{file}:other", "-f", "json")[0] == 0
    assert invoke("show", f"{file}:third")[0] == 2
    code, output = invoke("verify", file)
    assert code == 0
    assert "2 of 2 hierarchies verified" in output


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("pp0", "did you mean 'ppo'?"),
        ("GSPO", "did you mean 'gspo'?"),
        ("fiberpo-domain", "did you mean 'fiberpo_domain'?"),
        ("myloss", "did you mean 'my_loss.py'?"),
        ("my_los.py", "there is no such file"),
        ("my_los.py", "did you mean 'my_loss.py'?"),
        ("specs/mylos.json", "did you mean 'specs/my_loss.json'?"),
        ("xyzzy", "shipped:\n    aipo, "),
        ("no/such/path", "there is no such file"),
        ("note.txt", "it is a file, and no .py or .json"),
    ],
)
def test_an_unknown_spec_gets_a_suggestion(
    asked: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    for name in ("my_loss.py", "specs/my_loss.json", "note.txt"):
        Path(name).write_text("")
    code, output = invoke("show", asked)
    assert code == 2
    assert said in output
    assert max(map(len, output.splitlines())) <= 110


def test_show_refuses_a_folder(specs: Path) -> None:
    code, output = invoke("show", specs)
    assert code == 2
    assert "it is a folder, and one hierarchy is asked for\n  required: path.py" in output
    assert f"name a file in it: {specs / 'a_good.py'}, {specs / 'b_broken.py'}" in output


@pytest.mark.parametrize("word", ["ppo", "my_loss.py", "my_loss.py:name"])
def test_a_spec_without_a_command_is_an_error_that_names_verify(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_loss.py").write_text("")
    code, output = invoke(word)
    assert code == 2
    assert f"fibration verify {word}" in " ".join(output.split())
    assert "fibration verify" not in invoke("vverify")[1]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "command",
    [["verify", "ppo", "-f", "json", "-o"], ["compare", "ppo", "gspo", "-o"], ["compile", "ppo", "-b", "torch", "-o"]],
)
def test_a_folder_that_is_not_writable_fails_before_the_work(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fibration.Hierarchy, "verify", None)
    (tmp_path / "file").write_text("mine")
    code, output = invoke(*command, tmp_path / "file" / "below")
    assert code == 2
    assert f"'{tmp_path / 'file'}' is a file" in output
    if command[0] != "compile":
        assert f"'{tmp_path}' is a folder" in invoke(*command, tmp_path)[1]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_format_may_be_written_in_capitals() -> None:
    assert invoke("verify", "ppo", "-f", "JSON") == invoke("verify", "ppo", "-f", "json")


def test_missing_rollouts_fail_before_the_work(tmp_path: Path) -> None:
    code, output = invoke("run", "ppo", "--rollouts", tmp_path / "missing.safetensors", "--out", tmp_path)
    assert code == 2
    assert output.startswith("error: ") and "holds no rollouts" in output


@pytest.mark.parametrize("command", ["show", "verify", "compare", "audit"])
def test_an_unknown_format_is_named_without_words_of_pydantic(command: str) -> None:
    code, output = invoke(command, "ppo", "--format", "yaml")
    assert code == 2
    assert "'yaml' is not one of 'text'" in output and "Value error" not in output


@pytest.mark.parametrize("command", ["verify", "compare", "audit", "compile", "run", "plot"])
def test_every_command_that_writes_has_one_spelling_of_its_output(command: str) -> None:
    assert {"--output", "--out", "-o"} <= set(re.findall(r"--?\w+", invoke(command, "--help")[1]))


def test_wrong_usage_exits_with_2() -> None:
    assert invoke("verify")[0] == 2
    assert invoke("verify", "ppo", "--format", "yaml")[0] == 2
    assert invoke("frobnicate")[0] == 2


def test_version_and_help_are_printed() -> None:
    for word in ("--version", "-V"):
        assert invoke(word) == (0, f"fibration {metadata.version('fibration')}\n")
    assert fibration.__version__ == metadata.version("fibration")
    assert all(invoke(c, "-h")[0] == 0 for c in ("verify", "compile", "bench", "run"))
    assert invoke("-h") == invoke("--help")
    code, output = invoke("--help")
    assert code == 0
    assert all(command in output for command in ("verify", "show", "compile", "run"))
    assert "..." not in output.replace("[ARGS]...", "")


# ---------------------------------------------------------------- compile


def test_compile_prints_the_source() -> None:
    code, output = invoke("compile", "ppo", "--backend", "torch")
    assert code == 0
    assert output.startswith("# ppo: generated by fibration")
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(output))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported - set(sys.stdlib_module_names) == {"torch"}


def test_compile_writes_a_module_and_a_certificate(tmp_path: Path) -> None:
    code, output = invoke("compile", "fiberpo", "-b", "torch", "-o", tmp_path / "a")
    assert code == 0
    assert invoke("compile", "fiberpo", "-b", "torch", "-o", tmp_path / "b")[0] == 0
    names = ["fiberpo_certificate.json", "fiberpo_torch.py"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert str(tmp_path / "a" / name) in output
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert str(tmp_path) not in (tmp_path / "a" / name).read_text()
    source = (tmp_path / "a" / names[1]).read_text()
    found = json.loads((tmp_path / "a" / names[0]).read_text())
    assert found["source_sha256"] == hashlib.sha256(source.encode()).hexdigest()
    assert found["spec"] == json.loads(load("fiberpo").model_dump_json())
    assert found["report"] == json.loads(json.dumps(load("fiberpo").verify().to_dict()))
    assert found["module"] == names[1]
    assert set(found["versions"]) == {"fibration", "sympy", "torch"}
    assert found["spec_sha256"][:16] in source


def test_compile_refuses_a_spec_that_does_not_verify(specs: Path, tmp_path: Path) -> None:
    code, output = invoke("compile", specs / "c_wrong.py", "-o", tmp_path / "out")
    assert code == 1
    assert "error: " in output
    assert "reflecting" in output
    assert not (tmp_path / "out").exists()


def test_an_unknown_backend_exits_with_2() -> None:
    code, output = invoke("compile", "ppo", "--backend", "metal")
    assert code == 2
    assert output.startswith("error: no backend 'metal'")


def test_a_failed_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fibration.files.unwritable", lambda path, file=False: "")
    (tmp_path / "report").mkdir()
    code, output = invoke("verify", "ppo", "-f", "json", "-o", tmp_path / "report")
    assert code == 2
    assert output == f"error: cannot read or write '{tmp_path / 'report'}': Is a directory\n"


# ---------------------------------------------------------------- compare


LENGTHS = "equal(count(token, over=trajectory))"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["grpo", "dapo", "--when", LENGTHS], 0, f"'grpo' is the same loss as 'dapo' when {LENGTHS}"),
        (["grpo", "dapo"], 1, "'grpo' is not the same loss as 'dapo'"),
        (["ppo", "dapo", "--param", "ceiling=inf"], 0, "'ppo' is the same loss as 'dapo' with ceiling = inf"),
        (["grpo", "truly_ppo", "--param", "epsilon_low=epsilon"], 1, "with epsilon_high ↔ alpha"),
        (["ppo", "truly_ppo"], 2, "alpha only in 'truly_ppo'"),
        (
            ["ppo", "truly_ppo", "--match", "epsilon_low=epsilon", "--match", "ceiling=alpha"],
            1,
            "epsilon_low ↔ epsilon",
        ),
        (["grpo", "dapo", "--match", "epsilon_low"], 2, "--match 'epsilon_low' cannot be read"),
        (["grpo", "dapo", "--match", "a=b"], 2, "the names 'a' and 'b' cannot be matched"),
        (["ppo", "dapo", "--at-defaults"], 1, "with all parameters at their defaults"),
        (["grpo_rewards", "grpo", "--ignore-advantages"], 0, "with advantages given to both"),
        (["dapo"], 2, "'dapo' is compared with nothing"),
        (["dapo", "grpo", "--with-all"], 2, "leave one of them out"),
        (["dapo", "--with-all", "--at-defaults"], 2, "--with-all takes no --at-defaults"),
        (["dapo", "--with-all"], 0, "'dapo' is the same loss as 'dapo'"),
        (["grpo", "dapo", "--when", LENGTHS, "--param", "epsilon_low=0.1 + epsilon_low"], 1, "is not the same loss"),
        (["grpo", "gone.py"], 2, "there is no such file"),
        (["grpo", "dapo", "--when", "advantage="], 2, "cannot be read"),
    ],
)
def test_two_losses_are_compared(arguments, code, said):
    found, output = invoke("compare", *arguments)
    assert found == code
    assert said in output


def test_a_loss_is_compared_with_all_shipped_ones(tmp_path: Path) -> None:
    odd = fibration.load("grpo").replace(name="odd", objective=fibration.Objective(0.001))
    (tmp_path / "odd.json").write_text(odd.model_dump_json())
    code, output = invoke("compare", tmp_path / "odd.json", "--with-all", "-f", "json")
    assert code == 1
    assert json.loads(output)[0]["verdicts"][0]["subject"] == "any shipped loss"
    assert "`grpo` but for μ: 0.001 in place of" in output


def test_comparisons_have_the_formats_of_reports(tmp_path: Path):
    (told,) = json.loads(invoke("compare", "grpo", "dapo", "-f", "json")[1])
    assert told["verdicts"][0]["status"] == "refuted"
    junit = tmp_path / "same.xml"
    assert invoke("compare", "grpo", "grpo", "-f", "junit", "-o", junit)[0] == 0
    root = Xml.parse(junit).getroot()
    assert (root.get("failures"), root.get("name")) == ("0", "fibration compare")
    code, output = invoke("compare", "grpo", "dapo", "-f", "github")
    assert output.startswith("::error title=grpo%3A equivalent::'grpo' is not the same loss as 'dapo'")
    assert code == 1
    code, output = invoke("compare", "grpo", "dapo", "-f", "markdown")
    assert output.startswith("✗ 'grpo' is not the same loss as 'dapo': on a batch of 2 trajectories")


def test_a_comparison_names_the_unusable_spec(tmp_path: Path):
    here = tmp_path / "broken.json"
    here.write_text("[")
    assert f"file={here}" in invoke("compare", "grpo", here, "-f", "github")[1].replace("%3A", ":")
