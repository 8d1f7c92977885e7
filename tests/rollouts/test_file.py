"""Files of recorded rollouts: round trips, atomic writing, and one test per way in which a file can be wrong."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import fibration
from fibration.errors import RolloutsError
from fibration.rollouts import file as module
from fibration.rollouts.file import FORMAT, Labels, Rollouts, load_rollouts, save_rollouts


def small(**changes: Any) -> Rollouts:
    """4 trajectories of 3, 1, 2 and 4 tokens in 3 prompt groups of 2 domains."""
    batch = Rollouts(
        log_probs=np.linspace(-2.0, 0.0, 10, dtype=np.float32),
        old_log_probs=np.linspace(-1.0, -0.1, 10, dtype=np.float32),
        token_ids=np.arange(10, dtype=np.int32),
        offsets=np.array([0, 3, 4, 6, 10], dtype=np.int64),
        advantages=np.array([1, -1, 0, 0.5], dtype=np.float32),
        rewards=np.array([1, 0, 0, 1], dtype=np.float32),
        prompt_group=np.array([0, 0, 1, 2], dtype=np.int32),
        domain_of_group=np.array([1, 0, 0], dtype=np.int32),
        prompt_groups=("sum/0", "sum/1", "rhyme/0"),
        domains=("words", "numbers"),
        provenance={"seed": 3, "tasks": {"numbers": ["sum"]}},
        labels={
            "turn": Labels(np.array([0, 0, 1, 2, 3, 3, 4, 4, 5, 5], dtype=np.int32), tuple("abcdef")),
            "modality": Labels(np.array([0, 1, 0, 1], dtype=np.int32), ("text", "image")),
        },
        masks={"text_token": np.arange(10) % 2 == 0},
        policies={"rollout": np.linspace(-1.1, 0.0, 10, dtype=np.float32)},
    )
    return dataclasses.replace(batch, **changes)


def columns(rollouts: Rollouts) -> dict[str, np.ndarray]:
    fields = {field.name: getattr(rollouts, field.name) for field in dataclasses.fields(rollouts)}
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}


def write(path: Path, change: Callable[[dict[str, Any], dict[str, str]], object]) -> Path:
    """A file like `small()`, changed behind the back of `save_rollouts`."""
    tensors: dict[str, Any] = columns(small())
    tensors |= {f"label/{stratum}": given.of for stratum, given in small().labels.items()}
    tensors |= {f"mask/{leaf}": mask for leaf, mask in small().masks.items()}
    tensors |= {f"policy/{name}": given for name, given in small().policies.items()}
    metadata = {
        "format": FORMAT,
        "labels": json.dumps({stratum: given.names for stratum, given in small().labels.items()}),
        "domains": json.dumps(small().domains),
        "prompt_groups": json.dumps(small().prompt_groups),
        "provenance": "{}",
    }
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


def assert_same(a: Rollouts, b: Rollouts) -> None:
    for name, column in columns(a).items():
        np.testing.assert_array_equal(column, getattr(b, name), err_msg=name)
        assert column.dtype == getattr(b, name).dtype
    assert (a.domains, a.prompt_groups, a.provenance) == (b.domains, b.prompt_groups, b.provenance)
    assert a.all_labels == b.all_labels
    assert {s: given.names for s, given in a.labels.items()} == {s: given.names for s, given in b.labels.items()}
    assert {leaf: mask.tolist() for leaf, mask in a.masks.items()} == {k: m.tolist() for k, m in b.masks.items()}
    assert {k: p.tolist() for k, p in a.policies.items()} == {k: p.tolist() for k, p in b.policies.items()}
    assert all(given.dtype == np.float32 for given in b.policies.values())


def test_a_batch_survives_the_file(tmp_path: Path) -> None:
    save_rollouts(tmp_path / "batch.safetensors", small())
    assert_same(load_rollouts(tmp_path / "batch.safetensors"), small())
    assert_same(load_rollouts(str(tmp_path / "batch.safetensors")), small())


def test_a_file_without_labels_of_other_strata_is_whole(tmp_path: Path) -> None:
    """What files held before there were any."""
    batch = load_rollouts(write(tmp_path / "batch", bare))
    assert not batch.all_labels.keys() - {"prompt_group", "domain"} and not batch.masks and not batch.policies


def bare(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    del metadata["labels"], tensors["label/turn"], tensors["label/modality"]
    del tensors["mask/text_token"], tensors["policy/rollout"]


def test_labels_are_given_per_trajectory() -> None:
    batch = small()
    assert batch.all_labels["modality"] == ["text", "image", "text", "image"]
    assert batch.all_labels["turn"] == list("aabcddeeff")
    assert (batch.n_tokens, batch.n_trajectories) == (10, 4)
    assert batch.prompt_group_labels == ["sum/0", "sum/0", "sum/1", "rhyme/0"]
    assert batch.domain_labels == ["numbers", "numbers", "words", "words"]


@st.composite
def batches(draw: st.DrawFn) -> Rollouts:
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    n, total = len(lengths), sum(lengths)
    domains = tuple(draw(st.lists(st.text(max_size=5), min_size=1, max_size=3, unique=True)))
    groups = tuple(draw(st.lists(st.text(max_size=5), min_size=1, max_size=5, unique=True)))

    def reals(size: int, upper: float) -> np.ndarray:
        numbers = st.floats(-(2.0**100), upper, width=32)
        return np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=np.float32)

    def integers(size: int, below: int, dtype: type = np.int32) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, below - 1), min_size=size, max_size=size)), dtype=dtype)

    return Rollouts(
        log_probs=reals(total, 0.0),
        old_log_probs=reals(total, 0.0),
        token_ids=integers(total, 49152),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        advantages=reals(n, 2.0),
        rewards=reals(n, 2.0),
        prompt_group=integers(n, len(groups)),
        domain_of_group=integers(len(groups), len(domains)),
        prompt_groups=groups,
        domains=domains,
        provenance=draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none())),
        labels={
            stratum: Labels(integers(draw(st.sampled_from((n, total))), 3), ("x", "y", "z"))
            for stratum in draw(st.sets(st.text(max_size=5).filter(lambda s: s not in ("domain", "prompt_group"))))
        },
        masks={leaf: integers(total, 2) > 0 for leaf in draw(st.sets(st.text(max_size=5), max_size=2))},
        policies={name: reals(total, 0.0) for name in draw(st.sets(st.sampled_from(("rollout", "reference"))))},
    )


@given(batches())
def test_every_batch_survives_the_file(batch: Rollouts) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_rollouts(Path(folder) / "batch", batch)
        assert_same(load_rollouts(Path(folder) / "batch"), batch)


def test_the_batch_of_an_engine_comes_with_fibration() -> None:
    """What sampled it is near the old policy, and is not it; both are another than the current one."""
    batch = load_rollouts(engine=True)
    mismatch = np.abs(batch.policies["rollout"] - batch.old_log_probs)
    assert 0.005 < mismatch.mean() < 0.05 and mismatch.max() > 0.1
    assert np.abs(batch.log_probs - batch.old_log_probs).mean() > 0.1
    assert batch.provenance["mean_abs_log_prob_difference_of_rollout"] == pytest.approx(mismatch.mean(), abs=1e-5)
    assert not load_rollouts().policies


@given(st.data())
def test_a_truncated_file_is_never_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch"
        save_rollouts(path, small())
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(RolloutsError, match="a whole safetensors file"):
            load_rollouts(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RolloutsError, match="nothing of this name") as error:
        load_rollouts(tmp_path / "missing")
    assert str(tmp_path / "missing") in str(error.value)
    with pytest.raises(RolloutsError, match="a folder"):
        load_rollouts(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04" + bytes(100), struct.pack("<Q", 2**40) + b"{}"])
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(RolloutsError, match="a whole safetensors file"):
        load_rollouts(tmp_path / "batch")


def put(where: int, name: str, key: object, value: object) -> Callable[[dict[str, Any], dict[str, str]], object]:
    """Set an entry of a column (`key` an index), or a whole column or metadata entry (`key` None)."""

    def change(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
        target: Any = (tensors, metadata)[where]
        if key is None:
            target[name] = value
        else:
            target[name] = target[name].copy()
            target[name][key] = value

    return change


def column(name: str, value: object, at: int | None = None) -> Callable[[dict[str, Any], dict[str, str]], object]:
    return put(0, name, at, value)


def metadatum(name: str, value: str) -> Callable[[dict[str, Any], dict[str, str]], object]:
    return put(1, name, None, value)


WRONG: dict[str, tuple[Callable[[dict[str, Any], dict[str, str]], object], str, str]] = {
    "no format": (lambda t, m: m.pop("format"), FORMAT, "no format at all"),
    "format of another release": (metadatum("format", "fibration.rollouts/9"), FORMAT, "fibration.rollouts/9"),
    "missing column": (lambda t, m: t.pop("advantages"), "the keys log_probs, ", "no 'advantages'"),
    "dtype": (column("log_probs", np.zeros(10)), "'log_probs' of dtype F32", "F64"),
    "dtype of integers": (column("offsets", np.array([0, 3, 4, 6, 10], np.int32)), "'offsets' of dtype I64", "I32"),
    "padded tokens": (column("token_ids", np.zeros((4, 4), np.int32)), "with one dimension", "shape [4, 4]"),
    "no trajectory": (column("offsets", np.zeros(1, np.int64)), "at least one trajectory", "1 entries"),
    "offsets that start late": (column("offsets", 1, at=0), "start at 0", "1"),
    "decreasing offsets": (column("offsets", 2, at=2), "never decrease", "3, then 2 at trajectory 1"),
    "offsets that end early": (column("offsets", 9, at=4), "end at 10", "9"),
    "too few tokens": (column("old_log_probs", np.zeros(9, np.float32)), "10 entries, one per token", "9"),
    "too many rewards": (column("rewards", np.zeros(5, np.float32)), "4 entries, one per trajectory", "5"),
    "too few domains": (column("domain_of_group", np.zeros(2, np.int32)), "3 entries, one per prompt group", "2"),
    "group out of range": (column("prompt_group", 3, at=2), "'prompt_group' in 0 ... 2", "3 at trajectory 2"),
    "negative group": (column("prompt_group", -1, at=1), "'prompt_group' in 0 ... 2", "-1 at trajectory 1"),
    "domain out of range": (column("domain_of_group", 2, at=1), "in 0 ... 1", "2 at prompt group 1 (sum/1)"),
    "NaN": (column("log_probs", np.nan, at=4), "finite", "nan at token 4, number 0 of trajectory 2 (sum/1)"),
    "infinity": (column("old_log_probs", -np.inf, at=9), "finite", "-inf at token 9, number 3 of trajectory 3"),
    "infinite advantage": (column("advantages", np.inf, at=3), "finite", "inf at trajectory 3"),
    "NaN reward": (column("rewards", np.nan, at=0), "finite", "nan at trajectory 0"),
    "probability above 1": (column("log_probs", 2e-6, at=3), "at most 0", "token 3, number 0 of trajectory 1 (sum/0)"),
    "negative token": (column("token_ids", -100, at=1), "at least 0", "-100 at token 1, number 1 of trajectory 0"),
    "no labels": (lambda t, m: m.pop("domains"), "'domains' in the metadata", "only format, labels, prompt_groups, prov"),
    "labels that are no JSON": (metadatum("domains", "words, numbers"), "JSON in the metadata 'domains'", "line 1"),
    "labels that are no list": (metadatum("domains", '"words"'), "JSON list", "'words'"),
    "labels that are no strings": (metadatum("domains", '["words", 2]'), "strings in 'domains'", "2"),
    "labels given twice": (metadatum("domains", '["words", "words"]'), "different labels", "'words' twice"),
    "no provenance": (metadatum("provenance", "[]"), "JSON dict", "[]"),
    "label out of range": (
        column("label/turn", 6, at=3), "labels of 'turn' in 0 ... 5, positions in its names", "6 at token 3"),
    "negative label": (column("label/modality", -1, at=2), "labels of 'modality' in 0 ... 1", "-1 at trajectory 2"),
    "labels of neither": (column("label/modality", np.zeros(9, np.int32)), "10 labels of 'modality', one per token, or 4, one",
                          "shape [9]"),
    "padded labels": (column("label/turn", np.zeros((4, 4), np.int32)), "one per token", "shape [4, 4]"),
    "floating labels": (column("label/turn", np.zeros(10)), "labels of 'turn' of dtype I32", "float64"),
    "names of labels twice": (metadatum("labels", '{"turn": ["a", "a"], "modality": []}'), "different labels", "'a' twice"),
    "no names of labels": (metadatum("labels", '{"modality": ["a", "b"]}'), "list of names for 'turn'", "none"),
    "names that are no list": (metadatum("labels", '{"modality": ["a", "b"], "turn": 3}'), "list of names for 'turn'", "3"),
    "labels that are no object": (metadatum("labels", "[]"), "JSON dict in the metadata 'labels'", "[]"),
    "domains twice": (lambda t, m: (t.update({"label/domain": np.zeros(4, np.int32)}), m.update(labels='{"domain": ["a"], '
                      '"turn": ["a", "b", "c", "d", "e", "f"], "modality": ["a", "b"]}')), "other strata than", "'domain'"),
    "mask of numbers": (column("mask/text_token", np.ones(10, np.int32)), "a bool for each of the 10 tokens", "int32 of"),
    "mask of rows": (column("mask/text_token", np.ones(4, bool)), "mask of 'text_token'", "bool of shape [4]"),
    "policy of numbers in float64": (column("policy/rollout", np.zeros(10)), "float32 log-probs of the policy 'rollout'", "float64"),
    "policy of rows": (column("policy/rollout", np.zeros(4, np.float32)), "one for each of the 10 tokens", "of shape [4]"),
    "NaN of a policy": (column("policy/rollout", np.nan, at=4), "finite log-probs of the policy 'rollout'", "nan at token 4, number 0"),
    "infinity of a policy": (column("policy/rollout", -np.inf, at=0), "finite", "-inf at token 0"),
    "policy above 1": (column("policy/rollout", 2e-6, at=3), "of at most 0", "token 3, number 0 of trajectory 1 (sum/0)"),
    "old policy twice": (column("policy/old", np.zeros(10, np.float32)), "beside current and old", "'old'"),
    "policy of no name": (column("policy/roll out", np.zeros(10, np.float32)), "a letter, then letters", "'roll out'"),
    "provenance that is no JSON": (metadatum("provenance", "{"), "JSON in the metadata 'provenance'", "line 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    change, required, found = WRONG[name]
    path = write(tmp_path / "batch.safetensors", change)
    with pytest.raises(RolloutsError) as error:
        load_rollouts(path)
    assert str(path) in error.value.what
    assert required in error.value.required
    assert found in error.value.found
    assert error.value.remedy


def test_a_probability_of_1_may_carry_rounding(tmp_path: Path) -> None:
    assert load_rollouts(write(tmp_path / "batch", lambda t, m: None)).n_tokens == 10  # what WRONG starts from
    assert load_rollouts(write(tmp_path / "batch", column("log_probs", 5e-7, at=3))).n_tokens == 10


@pytest.mark.parametrize(
    "batch",
    [
        small(log_probs=np.full(10, np.nan, dtype=np.float32)),
        small(rewards=np.zeros(4)),
        small(token_ids=np.zeros((2, 5), dtype=np.int32)),
        small(domains=("words", "words")),
        small(provenance={"when": object()}),
        small(labels={"turn": Labels(np.zeros(3, dtype=np.int32), ("a",))}),
        small(masks={"text_token": np.ones(10)}),
        small(policies={"rollout": np.zeros(10)}),
    ],
)
def test_a_wrong_batch_is_not_written(tmp_path: Path, batch: Rollouts) -> None:
    save_rollouts(tmp_path / "batch", small())
    with pytest.raises((RolloutsError, TypeError)):
        save_rollouts(tmp_path / "batch", batch)
    assert_same(load_rollouts(tmp_path / "batch"), small())
    assert [path.name for path in tmp_path.iterdir()] == ["batch"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_rollouts(tmp_path / "batch", small())

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        save_rollouts(tmp_path / "batch", small(domains=("a", "b")))
    assert_same(load_rollouts(tmp_path / "batch"), small())
    assert [path.name for path in tmp_path.iterdir()] == ["batch"]


def test_torch_is_not_needed() -> None:
    program = "import sys, fibration.rollouts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_shipped_batch() -> None:
    """What is said of it: several domains, most groups with right and wrong answers, real drift."""
    batch = load_rollouts()
    assert batch.n_trajectories >= 256
    assert len(set(batch.domain_labels)) >= 4
    lengths = np.diff(batch.offsets)
    assert lengths.min() >= 1
    assert len(set(lengths.tolist())) > 10
    rewards = batch.rewards.reshape(len(batch.prompt_groups), -1)
    assert (np.ptp(rewards, axis=1) > 0).mean() > 0.5
    for domain in range(len(batch.domains)):
        assert 0.05 <= rewards[batch.domain_of_group == domain].mean() <= 0.6
    assert 0.05 <= np.abs(batch.log_probs - batch.old_log_probs).mean() <= 0.3
    assert batch.provenance["success"].keys() == set(batch.domains)


def test_the_shipped_batch_leaves_the_trust_region_on_every_level() -> None:
    batch = load_rollouts()
    operator = fibration.compile(fibration.load("fiberpo_domain"), backend="torch")
    index = operator.index(offsets=batch.offsets, prompt_group=batch.prompt_group_labels, domain=batch.domain_labels)
    log_probs, old_log_probs, advantages = map(
        torch.from_numpy, (batch.log_probs, batch.old_log_probs, batch.advantages)
    )
    metrics = operator.coefficients(log_probs, old_log_probs, advantages, index).metrics
    for stratum in ("domain", "prompt_group", "trajectory"):
        assert 0.5 < float(metrics[f"{stratum}/-/passed"]) < 1
        assert float(metrics[f"{stratum}/-/zeroed"]) > 0
    assert float(metrics["trajectory/-/rolled_back"]) > 0
    assert 0.1 < float(metrics["token/clipped"]) < 0.9
