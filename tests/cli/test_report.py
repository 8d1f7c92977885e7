"""`fibration report`: one file, with what `verify`, `compare` and `compile` say, whatever the SPECs are called."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
from hierarchies import wrong_specs
from html_pages import Page, read
from matplotlib.figure import Figure
from support import invoke

import fibration
from fibration.cli.project import FILES
from fibration.language.loading import load
from fibration.plotting.canvas import inline
from fibration.printing import pages

ROLLOUTS = Path(fibration.__file__).parent / "data" / "rollouts.safetensors"
FUNCTION = """
import torch

def sorts(log_probs, old_log_probs, advantages, mask):
    return -(torch.sort(log_probs).values * mask).sum()

def means(log_probs, old_log_probs, advantages, mask):
    ratio = torch.exp((log_probs - old_log_probs) * mask)
    gated = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -((gated * mask).sum(1) / mask.sum(1)).mean()
"""
CONFIG = "beta: 0.04\nepsilon_high: 0.28\nloss_type: cispo\nnum_generations: 8\n"


def reported(folder: Path, *words: object, code: int = 0) -> tuple[Page, str, str]:
    """The page, its text as a file, and what the command prints."""
    found, output = invoke("report", *words, "-o", folder / "page.html")
    assert found == code, output
    html = (folder / "page.html").read_text()
    return read(html), html, output


def test_two_losses_have_everything_and_are_compared(tmp_path: Path) -> None:
    page, html, output = reported(tmp_path, "grpo", "dapo")
    assert output == f"2 of 2 hierarchies verified; report in {tmp_path / 'page.html'}\n"
    assert page.texts["h1"] == ["2 of 2 hierarchies verified"]
    assert page.texts["h2"] == ["grpo: verified", "dapo: verified", "grpo is not the same loss as 'dapo'"]
    assert len(page.texts["math"]) == len(page.texts["svg"]) == 2
    assert page.texts["details"].count("generated code (grpo_torch.py)") == 0  # the code follows its title
    assert any("def objective(" in code or "def evaluate(" in code for code in page.texts["pre"])
    for law in dict.fromkeys(v.law for v in load("grpo").verify().verdicts):
        assert any(law in row for row in page.rows())
    assert re.findall("https?://[^\"' ]+", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)) == []


def test_the_hash_is_that_of_the_certificate_that_compile_writes(tmp_path: Path) -> None:
    page, html, _ = reported(tmp_path, "ppo")
    assert html == reported(tmp_path, "ppo")[1], "equal inputs give equal bytes"
    command = next(text for text in page.texts["pre"] if text.startswith("fibration compile"))
    assert invoke(*command.replace("DIR", str(tmp_path)).split()[1:])[0] == 0
    certificate = (tmp_path / "ppo_certificate.json").read_bytes()
    assert sha256(certificate).hexdigest() in page.texts["pre"]
    source = json.loads(certificate)["source_sha256"]
    assert source in [sha256(code.encode()).hexdigest() for code in page.texts["pre"]]


def test_a_batch_is_drawn_on_the_gates(tmp_path: Path) -> None:
    page, html, _ = reported(tmp_path, "grpo", "--rollouts", ROLLOUTS)
    assert "every gate as a curve, with the elements of the batch on it" in page.texts["h3"]
    assert "data:image/png;base64," in html, "many dots are one picture"


def test_a_refused_spec_has_its_witness_and_no_code(tmp_path: Path) -> None:
    wrong = wrong_specs.wrong()["padded length"].hierarchy
    (tmp_path / "wrong.json").write_text(wrong.model_dump_json())
    page, html, output = reported(tmp_path, tmp_path / "wrong.json", "grpo", code=1)
    assert "1 of 2 hierarchies verified; refused" in output
    (cause, *_) = wrong.verify().causes
    assert str(cause.counterexample) in page.text
    assert "No gates are drawn and no code is generated of a loss that breaks a law." in page.text
    assert html.count("<svg") == 1


def test_a_config_has_its_findings_and_their_severities(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(CONFIG)
    page, _, output = reported(tmp_path, f"trl:{tmp_path / 'grpo.yaml'}", code=1)
    assert "1 error" in output and page.texts["h2"] == ["trl_cispo: 1 error"]
    first = page.rows()[0]
    assert first.startswith("✗\N{NO-BREAK SPACE}errorconfigepsilon_high=0.28") and "write: epsilon_high=1.28" in first
    assert "what TRL does around this loss" in page.text and len(page.texts["svg"]) == 1
    fixed, *_ = reported(tmp_path, f"trl:{tmp_path / 'grpo.yaml'}", "epsilon_high=1.28", code=0)
    command = f"fibration compile trl:{tmp_path / 'grpo.yaml'} epsilon_high=1.28 --backend torch --output DIR"
    assert command in fixed.texts["pre"]


def test_what_cannot_be_used_has_its_reason_and_the_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(FUNCTION)
    odd = tmp_path / "<img src=x onerror=y>.json"
    odd.write_text("{")
    page, _, output = reported(tmp_path, f"{tmp_path / 'loss.py'}:sorts", odd, "grpo", code=2)
    assert "'sorts' has no declaration for all sizes" in output
    assert [title.rpartition(": ")[2] for title in page.texts["h2"]] == ["unusable", "unusable", "verified"]
    assert "no rule says what aten.sort" in page.texts["pre"][0]
    assert page.texts["h3"][0] == "audit of the function" and "Seen on batches alone: no rule says what" in page.text
    assert "✗\N{NO-BREAK SPACE}wrongmaska masked place gets a gradient, or NaN " in page.rows()
    assert "mask, on the smallest batch found" in page.text and "value = sorts(" in page.texts["pre"][1]
    assert str(odd) in page.texts["h2"][1]


def test_a_wrong_function_counts_though_its_declaration_is_proved(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(FUNCTION)
    page, _, output = reported(tmp_path, f"{tmp_path / 'loss.py'}:means", code=1)
    assert page.texts["h2"] == ["means: verified"], output
    assert any("a row without tokens makes the loss or a gradient NaN" in row for row in page.rows())


def test_a_folder_has_every_loss_of_its_files(tmp_path: Path) -> None:
    text = "from fibration import load\nfirst = load('grpo')\nsecond = load('ppo').replace(name='second')\n"
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "two.py").write_text(text)
    page, *_ = reported(tmp_path, tmp_path / "specs")
    assert page.texts["h2"] == ["grpo: verified", "second: verified"]
    assert f"fibration compile {tmp_path / 'specs' / 'two.py'}:second --backend torch --output DIR" in page.texts["pre"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("grpo", "-o", "page.txt"), "a file that ends in .html"),
        (("grpo", "--param", "nothing=1"), "no loss has the parameter 'nothing'"),
        (("grpo", "--rollouts", "none.safetensors"), "none.safetensors"),
    ],
)
def test_wrong_options_are_errors(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = invoke("report", *words)
    assert code == 2 and said in output
    assert list(tmp_path.iterdir()) == []


def test_the_workflow_keeps_the_report() -> None:
    workflow = FILES[".github/workflows/laws.yml"][0]
    assert "fibration report specs/" in workflow and "path: report.html" in workflow
    assert workflow.index("fibration report") < workflow.index("upload-artifact")


def test_words_in_a_picture_are_no_markup() -> None:
    figure = Figure()
    figure.text(0.1, 0.1, "--><script>alert(1)</script> </svg><img src=x onerror=y> ]]> &lt;")
    shown = read(pages.page("x", "y", [pages.figure(inline(figure, prefix), "picture") for prefix in ("a-", "b-")]))
    assert len(shown.texts["svg"]) == 2 and shown.ids
