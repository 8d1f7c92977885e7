"""The example that trains a language model, with a small model: its log, and that it resumes."""

import json
import string
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))

import held_out  # noqa: E402
import reward_curves  # noqa: E402
import trainer_overhead  # noqa: E402
import trl_reasoning  # noqa: E402
from reasoning_tasks import Question  # noqa: E402

APART = ("step_time", "epoch")  # seconds, and of how many questions


@pytest.fixture
def small(monkeypatch):
    """A model of random weights that says single characters, and rewards that it can get."""
    words = {character: number for number, character in enumerate(["<end>", *string.printable])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")

    def load():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes))
        model.lm_head.weight.data.mul_(10)  # so that an update takes ratios past their bounds
        return model, tokenizer

    for script in (trl_reasoning, held_out):
        monkeypatch.setattr(script, "load_model", load)
    monkeypatch.setitem(trl_reasoning.CONFIG, "learning_rate", 0.02)
    monkeypatch.setattr(Question, "reward", lambda self, completion: float(len(completion) % 2))


def run(monkeypatch, out, loss, steps, *more):
    said = ["trl_reasoning.py", "--loss", loss, "--steps", str(steps), "--out", str(out), "--layers", "1", *more]
    monkeypatch.setattr(sys, "argv", said)
    trl_reasoning.main()
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in APART} for line in lines if "loss" in line]


def test_a_resumed_run_equals_an_uninterrupted_one(small, monkeypatch, tmp_path, capsys):
    whole = run(monkeypatch, tmp_path / "whole", "fiberpo_domain", 4)
    assert [line["step"] for line in whole] == [1, 2, 3, 4]
    assert [line["fibration/extra_forwards"] for line in whole] == [0, 3, 0, 3]
    assert [line["fibration/gated_ratio/max"] > 1 for line in whole] == [False, True, False, True]
    run(monkeypatch, tmp_path / "parts", "fiberpo_domain", 2)
    assert run(monkeypatch, tmp_path / "parts", "fiberpo_domain", 4, "--resume") == whole
    monkeypatch.setattr(sys, "argv", ["reward_curves.py", *map(str, tmp_path.glob("*/log.jsonl"))])
    reward_curves.main()
    checkpoint = str(tmp_path / "whole" / "checkpoint-4")
    monkeypatch.setattr(sys, "argv", ["held_out.py", checkpoint, "--steps", "4", "--questions", "2"])
    held_out.main()
    printed = capsys.readouterr().out
    assert [line.count("|") for line in printed.splitlines() if line.startswith(("| before", "| whole"))] == [7, 7, 7]
    for domain in trl_reasoning.TASKS:
        assert f" {domain} " in printed


def test_trls_own_loss_and_the_hierarchy_of_that_name_learn_the_same(small, monkeypatch, tmp_path):
    own, ours = (run(monkeypatch, tmp_path / loss, loss, 4) for loss in ("trl", "grpo"))
    assert [line["clip_ratio/region_mean"] > 0.05 for line in own] == [False, True, False, True]
    for one, other in zip(own, ours, strict=True):
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert one.get("reward") == other.get("reward")


def test_the_overhead_is_printed_beside_trls_own_loss(small, monkeypatch, tmp_path, capsys):
    said = ["--losses", "trl", "grpo", "--rounds", "2", "--layers", "1", "--json", str(tmp_path / "samples.json")]
    monkeypatch.setattr(sys, "argv", ["trainer_overhead.py", *said])
    trainer_overhead.main()
    samples = json.loads((tmp_path / "samples.json").read_text())["samples"]
    assert [sample["loss"] for sample in samples] == ["grpo", "trl", "trl", "grpo"]
    assert all(sample[part] > 0 for sample in samples for part in ("fresh", "off policy", "sampling"))
    assert [line.split(" | ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("| trl")] == [
        "1.000"
    ]
