"""The scripts under `docs/benchmarks/scripts` measure the right calls. Nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import spec

from fibration.bench.batches import Shape, make_batch

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "scripts"
SHAPE = Shape(2**12, 64)


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.mark.parametrize("size", [1, 3])
def test_the_parts_of_all_ranks_are_the_batch(size: int) -> None:
    from rank_process import part

    whole = make_batch(spec("fiberpo_modal"), SHAPE)
    parts = [part(whole, rank, size) for rank in range(size)]
    assert torch.equal(torch.cat([p.log_probs for p in parts]), whole.log_probs)
    for k, labels in whole.labels.items():
        assert np.array_equal(np.concatenate([p.labels[k] for p in parts]), labels)
    assert all(int(p.offsets[0]) == 0 and int(p.offsets[-1]) == len(p.log_probs) for p in parts)


@pytest.mark.thorough
def test_every_variant_of_a_loss_verifies_and_has_its_feature() -> None:
    from words import PLAIN, variants

    h = spec("grpo")
    found = variants(h)
    assert found[PLAIN] == h
    assert all(v.verify().ok and v.gates == h.gates for v in found.values())
    assert {word for word, v in found.items() if "rollout" in v.policies} == {"third policy", "penalty"}


@pytest.mark.thorough
def test_the_smallest_of_each_family_of_laws_is_decided() -> None:
    from law_cases import FAMILIES
    from law_process import decide

    refused = {"one slip", "shares above 1", "not balanced", "summed where", "quotients"}
    for family in FAMILIES:
        found = decide(family.make(family.sizes[0]), 1e6)
        assert found["outcome"] == ("refused" if family.name in refused else "verified"), family.name


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "given"),
    [
        ("words.py", ["grpo", "--backend", "torch", "--tokens", "512", "--length", "16", "--repeats", "1"]),
        ("small.py", ["ppo", "--backend", "torch", "--tokens", "256", "--length", "16", "--repeats", "1"]),
        ("laws.py", ["ppo", "--quick"]),
        ("ranks.py", ["ppo", "--backend", "torch", "--tokens", "4Ki", "--length", "64", "--repeats", "1"]),
    ],
)
def test_a_script_writes_what_it_measured(script: str, given: list[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = subprocess.run([sys.executable, SCRIPTS / script, *given, "--json", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(file.read_text())["results"]
    assert given[0] in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_jax_losses_by_hand_are_the_generated_ones(name: str, packed: bool) -> None:
    import jax
    from jax_losses import batch, by_hand
    from oracles.jax_calls import shipped_module

    given, m = batch(name, 8, 4, packed), shipped_module(name)
    named = {"segments": given[3], "n_trajectory": 8} if packed else {"mask": given[3]}
    value, gradient = jax.jit(jax.value_and_grad(by_hand(name, 8, packed)))(*given)
    wanted, slope = jax.jit(jax.value_and_grad(lambda now: m.loss(now, *given[1:3], **named)))(given[0])
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    assert np.allclose(gradient, slope, rtol=1e-4, atol=1e-8) and 0 < (gradient != 0).mean() < 1
