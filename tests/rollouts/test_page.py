"""The examples of docs/rollouts.md, and docs/examples/load_batches.py, give the results that the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import example_loops
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fibration import Rollouts
from fibration.cli.main import app
from fibration.rollouts.file import load_rollouts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rollouts.md").read_text()
(FIRST,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.thorough
@pytest.mark.usefixtures("quick_c")
def test_the_first_block_leads_to_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(FIRST, {})
    pictures = {p.name: p.read_bytes() for p in (tmp_path / "pictures").iterdir()}
    batch = load_rollouts("batch.safetensors")
    assert len(set(batch.labels["prompt_group"].each)) == 8 and batch.labels["domain"].names == ("math", "code", "chat")
    (command,) = re.findall(r"# fibration (run .*)$", FIRST, re.MULTILINE)
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert "✓ at most 1e-09" in " ".join(result.output.split())
    assert set(pictures) == {"hierarchy.png", "regimes.png", "ratios.png"}
    assert all((tmp_path / "pictures" / name).read_bytes() == page for name, page in pictures.items())


# ---------------------------------------------------------------- recipes, of stand-ins with the same access

LENGTHS, WIDTH = (3, 2, 0, 4), 4
MASK = np.arange(WIDTH) < np.array(LENGTHS)[:, None]
rng = np.random.default_rng(3)
OLD, NEW, SAMPLED = (torch.from_numpy(-rng.exponential(1, MASK.shape)).float() for _ in range(3))
ADVANTAGES = torch.tensor([1.0, -1.0, 9.0, 0.5])
LABELS = {"prompt_group": ["p", "p", "q", "q"], "domain": ["math", "math", "code", "code"]}


def recipe(name: str) -> Any:
    assert f"`{name}`" in PAGE
    return getattr(example_loops.example("load_batches"), name)


def is_the_batch(found: Rollouts, **more: Any) -> None:
    assert found.offsets.tolist() == [0, 3, 5, 9]
    for name, expected in {"log_probs": NEW, "old_log_probs": OLD}.items():
        np.testing.assert_array_equal(getattr(found, name), expected.numpy()[MASK])
    advantages = found.of_tokens(found.advantages)
    np.testing.assert_array_equal(advantages, np.repeat(ADVANTAGES.numpy(), LENGTHS))
    assert {s: given.each for s, given in found.labels.items() if s in LABELS} == {
        s: [given[i] for i in (0, 1, 3)] for s, given in LABELS.items()
    }
    for name, expected in more.items():
        np.testing.assert_array_equal(found.policies[name], expected.numpy()[MASK])


@pytest.mark.parametrize("keeps", [False, True])
def test_the_recipe_for_trl_gives_the_batch(keeps: bool) -> None:
    """Two micro-batches of one step, the second in a narrower padding, with log-probs that vLLM does not know."""
    unknown = SAMPLED.clone()
    unknown[0, 1] = torch.nan
    steps = []
    for rows, width in ((slice(0, 2), 3), (slice(2, 4), 4)):
        steps.append(
            (
                {
                    "completion_ids": torch.arange(8).reshape(2, 4)[:, :width],
                    "completion_mask": torch.from_numpy(MASK[rows, :width]).long(),
                    "old_per_token_logps": OLD[rows, :width],
                    "sampling_per_token_logps": unknown[rows, :width],
                    "advantages": ADVANTAGES[rows],
                },
                NEW[rows, :width].clone().requires_grad_(),
            )
        )
        if keeps:  # as FibrationGRPOTrainer does
            each = [{s: given[i] for s, given in LABELS.items()} for i in range(4)][rows]
            steps[-1][0]["fibration_rows"] = [SimpleNamespace(labels=labels) for labels in each]  # type: ignore[assignment]
    expected = SAMPLED.clone()
    expected[0, 1] = OLD[0, 1]
    is_the_batch(recipe("from_trl")(steps, **({} if keeps else LABELS)), rollout=expected)


def test_the_recipe_for_verl_gives_the_batch() -> None:
    class Batch(dict):  # type: ignore[type-arg]
        """As a TensorDict: tensors by key, and whether one is there is asked of `keys()`."""

        def __contains__(self, key: object) -> bool:
            raise NotImplementedError("TensorDict does not support membership checks with the `in` keyword")

    fields = {"old_log_probs": OLD, "rollout_log_probs": SAMPLED, "response_mask": torch.from_numpy(MASK).long()}
    fields |= {
        "advantages": ADVANTAGES[:, None] * torch.ones(WIDTH),
        "responses": torch.zeros(4, WIDTH, dtype=torch.long),
    }
    objects = {"uid": np.array(LABELS["prompt_group"], object), "data_source": np.array(LABELS["domain"], object)}
    found = recipe("from_verl")(SimpleNamespace(batch=Batch(fields), non_tensor_batch=objects), NEW.bfloat16().float())
    np.testing.assert_array_equal(found.log_probs, NEW.bfloat16().float().numpy()[MASK])
    is_the_batch(
        recipe("from_verl")(SimpleNamespace(batch=Batch(fields), non_tensor_batch=objects), NEW), rollout=SAMPLED
    )
    assert found.rewards is None and "reference" not in found.policies


def lines() -> list[dict[str, Any]]:
    return [
        {
            "log_probs": NEW[i, :n].tolist(),
            "old_log_probs": OLD[i, :n].tolist(),
            "advantage": float(ADVANTAGES[i]),
            "prompt": LABELS["prompt_group"][i],
            "source": LABELS["domain"][i],
            "turns": [f"{i}/{k // 2}" for k in range(n)],
        }
        for i, n in enumerate(LENGTHS)
    ]


def test_the_recipe_for_json_lines_gives_the_batch(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()))
    found = recipe("from_jsonl")(tmp_path / "rows.jsonl")
    is_the_batch(found)
    assert found.labels["turn"].each == ["0/0", "0/0", "0/1", "1/0", "1/0", "3/0", "3/0", "3/1", "3/1"]
    assert found.provenance == {"file": str(tmp_path / "rows.jsonl")} and found.rewards is None
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "rows.jsonl").write_text(example)
    assert recipe("from_jsonl")(tmp_path / "rows.jsonl").rewards.tolist() == [1]


class Column:
    """As a column of a data frame: an array when asked for one, and no sequence."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if not isinstance(self.values[0], list):
            return np.asarray(self.values, object if isinstance(self.values[0], str) else dtype)
        array = np.empty(len(self.values), object)
        for i, row in enumerate(self.values):
            array[i] = np.asarray(row)
        return array


def test_the_recipe_for_a_table_gives_the_batch() -> None:
    is_the_batch(recipe("from_table")({name: Column([line[name] for line in lines()]) for name in lines()[0]}))


def test_the_recipe_for_parquet_gives_the_batch(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(lines()).to_parquet(tmp_path / "rows.parquet")
    is_the_batch(recipe("from_parquet")(tmp_path / "rows.parquet"))
