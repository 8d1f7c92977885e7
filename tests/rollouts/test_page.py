"""docs/rollouts.md: what it shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fibration.cli.main import app
from fibration.rollouts.file import load_rollouts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rollouts.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("quick_c")
def test_the_first_block_leads_to_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[0], {})
    pictures = {p.name: p.read_bytes() for p in (tmp_path / "pictures").iterdir()}
    batch = load_rollouts("batch.safetensors")
    assert len(set(batch.labels["prompt_group"].each)) == 8 and batch.labels["domain"].names == ("math", "code", "chat")
    (command,) = re.findall(r"# fibration (run .*)$", BLOCKS[0], re.MULTILINE)
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert "✓ at most 1e-09" in " ".join(result.output.split())
    assert set(pictures) == {"hierarchy.png", "regimes.png", "ratios.png"}
    assert all((tmp_path / "pictures" / name).read_bytes() == page for name, page in pictures.items())
