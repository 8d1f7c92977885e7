"""Each input that no command can use has exit code 2, and a short message without a traceback."""

from pathlib import Path

import pytest
from bad_inputs import KINDS
from thorough import LEVEL
from typer.testing import CliRunner

from fibration.cli.main import app

LONGEST = 4_500  # characters of stdout and stderr together


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_input_is_refused_in_words(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, wrong = list(KINDS[kind]()), []
    for number in range(0, len(inputs), 20 if LEVEL == "few" else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        inputs[number].prepare(folder)
        found = CliRunner().invoke(app, inputs[number].words)
        words = "error" in found.output.casefold() and "Traceback" not in found.output and len(found.output) < LONGEST
        if found.exit_code != 2 or not words or not isinstance(found.exception, SystemExit):
            wrong.append(
                (
                    number,
                    [w[:60] for w in inputs[number].words],
                    found.exit_code,
                    repr(found.exception)[:200],
                    found.output[:300],
                )
            )
    assert not wrong
