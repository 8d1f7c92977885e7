"""Files of recorded rollouts: round trips, atomic writing, and one test per way in which a file can be wrong."""

from __future__ import annotations

import dataclasses
import json
import struct
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
from safetensors.torch import save_file as save_torch

import fibration
from fibration.errors import RolloutsError
from fibration.rollouts.file import FIRST, FORMAT, Labels, Rollouts, load_rollouts, save_rollouts
from fibration.rollouts.replay import build_index


def small(**changes: Any) -> Rollouts:
    """4 trajectories of 3, 1, 2 and 4 tokens in 3 prompt groups of 2 domains."""
    batch = Rollouts(
        log_probs=np.linspace(-2.0, 0.0, 10, dtype=np.float32),
        old_log_probs=np.linspace(-1.0, -0.1, 10, dtype=np.float32),
        token_ids=np.arange(10, dtype=np.int32),
        offsets=np.array([0, 3, 4, 6, 10], dtype=np.int64),
        advantages=np.array([1, -1, 0, 0.5], dtype=np.float32),
        rewards=np.array([1, 0, 0, 1], dtype=np.float32),
        provenance={"seed": 3, "tasks": {"numbers": ["sum"]}},
        labels={
            "prompt_group": Labels(np.array([0, 0, 1, 2], dtype=np.int32), ("sum/0", "sum/1", "rhyme/0")),
            "domain": Labels(np.array([0, 0, 1, 1], dtype=np.int32), ("numbers", "words")),
            "turn": Labels(
                np.array([0, 0, 1, 2, 3, 3, -1, -1, 5, 5], dtype=np.int32), (0, 1.5, True, ("c", 1), "e", -7)
            ),
            "modality": Labels(np.array([0, 1, 0, 1], dtype=np.int32), ("text", "image")),
        },
        masks={"text_token": np.arange(10) % 2 == 0},
        policies={"rollout": np.linspace(-1.1, 0.0, 10)},
        attributes={"value": np.linspace(-1, 1, 10), "length": np.array([3, 1, 2, 4], dtype=np.float32)},
    )
    return dataclasses.replace(batch, **changes)


Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of a file's tensors and metadata


def columns(rollouts: Rollouts) -> dict[str, np.ndarray]:
    """By their keys in a file."""
    fields = {field.name: getattr(rollouts, field.name) for field in dataclasses.fields(rollouts)}
    found = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    found |= {f"label/{stratum}": given.of for stratum, given in rollouts.labels.items()}
    for kind, prefix in (("masks", "mask"), ("policies", "policy"), ("attributes", "attribute")):
        found |= {f"{prefix}/{name}": column for name, column in fields[kind].items()}
    return found


def write(path: Path, change: Change = lambda t, m: None) -> Path:
    """A file like `small()`, changed behind the back of `save_rollouts`."""
    tensors = columns(small())
    names = json.dumps({stratum: given.names for stratum, given in small().labels.items()})
    metadata = {"format": FORMAT, "labels": names, "provenance": "{}"}
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


def write_first(path: Path, change: Change = lambda t, m: None) -> Path:
    """A file of the first format, which had groups and domains in columns of their own, and everything in float32."""
    tensors = {k: v for k, v in columns(small()).items() if "/" not in k or k in ("label/modality", "mask/text_token")}
    tensors["policy/rollout"] = small().policies["rollout"].astype(np.float32)
    tensors |= {"prompt_group": np.array([0, 0, 1, 2], np.int32), "domain_of_group": np.array([1, 0, 0], np.int32)}
    names = {"prompt_groups": ["sum/0", "sum/1", "rhyme/0"], "domains": ["words", "numbers"]}
    metadata = {"labels": {"modality": ["text", "image"]}, **names, "provenance": {"seed": 3}}
    metadata = {"format": FIRST, **{key: json.dumps(value) for key, value in metadata.items()}}
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


def assert_same(a: Rollouts, b: Rollouts) -> None:
    assert columns(a).keys() == columns(b).keys()
    for name, column in columns(a).items():
        np.testing.assert_array_equal(column, columns(b)[name], err_msg=name)
        assert column.dtype == columns(b)[name].dtype
    assert a.provenance == b.provenance and list(a.labels) == list(b.labels)
    assert [repr(given.names) for given in a.labels.values()] == [repr(given.names) for given in b.labels.values()]


def test_a_batch_survives_the_file(tmp_path: Path) -> None:
    small().save(path := tmp_path / "made" / "on the way" / "batch.safetensors")
    assert_same(load_rollouts(path), small())
    save_rollouts(str(path), small())
    assert_same(load_rollouts(str(path)), small())


def test_files_of_the_first_format_are_read(tmp_path: Path) -> None:
    batch = load_rollouts(write_first(tmp_path / "batch"))
    assert batch.labels["prompt_group"].each == ["sum/0", "sum/0", "sum/1", "rhyme/0"]
    assert batch.labels["domain"].each == ["numbers", "numbers", "words", "words"]
    assert batch.labels["modality"].each == ["text", "image", "text", "image"]
    assert batch.policies["rollout"].tolist() == small().policies["rollout"].astype(np.float32).tolist()
    for name, column in columns(small()).items():
        if "/" not in name:
            np.testing.assert_array_equal(getattr(batch, name), column)
    batch.save(tmp_path / "again")
    assert_same(load_rollouts(tmp_path / "again"), batch)


def test_bfloat16_is_read_without_rounding(tmp_path: Path) -> None:
    numbers = -torch.rand(10, generator=torch.Generator().manual_seed(3)).bfloat16()
    offsets = torch.tensor([0, 3, 10])
    columns = {
        "log_probs": numbers,
        "old_log_probs": -torch.ones(10),
        "offsets": offsets,
        "policy/rollout": numbers / 3,
    }
    metadata = {"format": FORMAT, "labels": "{}", "provenance": "{}"}
    save_torch(columns, tmp_path / "batch", metadata)
    batch = load_rollouts(tmp_path / "batch")
    for found, column in ((batch.log_probs, numbers), (batch.policies["rollout"], numbers / 3)):
        assert found.dtype == np.float32 and found.tolist() == column.tolist()
    columns["log_probs"] = numbers.to(torch.float8_e4m3fn)
    save_torch(columns, tmp_path / "batch", metadata)
    with pytest.raises(RolloutsError, match="'log_probs' of F8_E4M3") as error:
        load_rollouts(tmp_path / "batch")
    assert "convert it to float32" in str(error.value)


def test_labels_are_given_per_trajectory() -> None:
    batch = small()
    assert batch.labels["modality"].each == ["text", "image", "text", "image"]
    assert batch.labels["turn"].each == [0, 0, 1.5, True, ("c", 1), ("c", 1), None, None, -7, -7]
    assert (batch.n_tokens, batch.n_trajectories) == (10, 4)
    assert batch.of_tokens(batch.labels["domain"].of).tolist() == [0] * 4 + [1] * 6
    assert batch.rows.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3, 3]


@st.composite
def batches(draw: st.DrawFn) -> Rollouts:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    n, total = len(lengths), sum(lengths)
    names = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.text(max_size=3), st.none() | st.integers()))

    def reals(size: int, upper: float) -> np.ndarray:
        numbers = st.floats(-(2.0**100), upper, width=32)
        dtype = draw(st.sampled_from((np.float32, np.float64)))
        return np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=dtype)

    def integers(size: int, low: int, below: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(low, below - 1), min_size=size, max_size=size)), dtype=np.int32)

    def labels() -> Labels:
        of = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
        return Labels(integers(draw(st.sampled_from((n, total))), -1, len(of)), of)

    def perhaps(column: Callable[[], np.ndarray]) -> np.ndarray | None:
        return column() if draw(st.booleans()) else None

    return Rollouts(
        log_probs=reals(total, 0.0),
        old_log_probs=reals(total, 0.0),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        advantages=perhaps(lambda: reals(draw(st.sampled_from((n, total))), 2.0)),
        rewards=perhaps(lambda: reals(n, 2.0)),
        token_ids=perhaps(lambda: integers(total, 0, 49152)),
        provenance=draw(st.none() | st.text() | st.dictionaries(st.text(max_size=5), st.integers() | st.none())),
        labels={stratum: labels() for stratum in draw(st.sets(st.text(max_size=5), max_size=3))},
        masks={leaf: integers(total, 0, 2) > 0 for leaf in draw(st.sets(st.text(max_size=5), max_size=2))},
        policies={name: reals(total, 0.0) for name in draw(st.sets(st.sampled_from(("rollout", "reference"))))},
        attributes={name: reals(total, 2.0) for name in draw(st.sets(st.text(max_size=5), max_size=1))},
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


def test_a_path_without_a_readable_file_raises(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "missing", "nothing of this name"), (tmp_path, "a folder")):
        with pytest.raises(RolloutsError, match=found) as error:
            load_rollouts(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04" + bytes(100), struct.pack("<Q", 2**40) + b"{}"])
def test_a_file_that_is_not_safetensors_raises(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(RolloutsError, match="a whole safetensors file"):
        load_rollouts(tmp_path / "batch")


def column(name: str, value: object, at: int | None = None) -> Change:
    """Sets a column, or its entry `at` a place."""

    def change(tensors: dict[str, Any], _: object) -> None:
        tensors[name] = value if at is None else np.array(tensors[name])
        if at is not None:
            tensors[name][at] = value

    return change


def metadatum(name: str, value: str) -> Change:
    return lambda t, m: m.update({name: value})


def names(**changes: object) -> Change:
    given = {stratum: labels.names for stratum, labels in small().labels.items()}
    return metadatum("labels", json.dumps({**given, **changes}))


WRONG: dict[str, tuple[Change, str, str]] = {
    "no format": (lambda t, m: m.pop("format"), FORMAT, "no format at all"),
    "format of another release": (metadatum("format", "fibration.rollouts/9"), FORMAT, "fibration.rollouts/9"),
    "key of no meaning": (lambda t, m: t.update({"polcy/rollout": np.zeros(10)}), "keys of", "'polcy/rollout'"),
    "metadata of no meaning": (metadatum("domains", "[]"), "keys of", "'domains'"),
    "missing column": (lambda t, m: t.pop("old_log_probs"), "the keys log_probs, ", "no 'old_log_probs'"),
    "dtype": (column("log_probs", np.zeros(10, np.float16)), "'log_probs': an array of float32 or float64", "float16"),
    "dtype of integers": (column("offsets", np.array([0, 3, 4, 6, 10], np.int32)), "array of int64", "int32"),
    "padded tokens": (column("token_ids", np.zeros((4, 4), np.int32)), "with one dimension", "shape [4, 4]"),
    "no trajectory": (column("offsets", np.zeros(1, np.int64)), "at least one trajectory", "1 entries"),
    "offsets that start late": (column("offsets", 1, at=0), "start at 0", "1"),
    "decreasing offsets": (column("offsets", 2, at=2), "never decrease", "3, then 2 at trajectory 1"),
    "offsets that end early": (column("offsets", 9, at=4), "end at 10", "9"),
    "too few tokens": (column("old_log_probs", np.zeros(9, np.float32)), "10 entries, one per token", "9"),
    "too many rewards": (column("rewards", np.zeros(5, np.float32)), "4 or 10 entries, one per trajectory or", "5"),
    "NaN": (column("log_probs", np.nan, at=4), "finite", "nan at token 4, number 0 of trajectory 2"),
    "infinity": (column("old_log_probs", -np.inf, at=9), "finite", "-inf at token 9, number 3 of trajectory 3"),
    "infinite advantage": (column("advantages", np.inf, at=3), "finite", "inf at trajectory 3"),
    "NaN reward": (column("rewards", np.nan, at=0), "finite", "nan at trajectory 0"),
    "infinite attribute": (column("attribute/value", np.inf, at=7), "attributes['value']' of finite", "inf at token 7"),
    "attributes of whole numbers": (column("attribute/value", np.zeros(10, int)), "float32 or float64", "int64"),
    "probability above 1": (column("log_probs", 2e-6, at=3), "at most 0", "token 3, number 0 of trajectory 1"),
    "negative token": (column("token_ids", -100, at=1), "at least 0", "-100 at token 1, number 1 of trajectory 0"),
    "no names": (lambda t, m: m.pop("labels"), "'labels' in the metadata", "only format, provenance"),
    "no provenance": (lambda t, m: m.pop("provenance"), "'provenance' in the metadata", "only format, labels"),
    "label out of range": (
        column("label/turn", 6, at=3), "labels['turn']' in 0 ... 5, positions in its names", "6 at token 3"),
    "negative label": (column("label/modality", -2, at=2), "labels['modality']' in 0 ... 1", "-2 at trajectory 2"),
    "labels of neither": (column("label/modality", np.zeros(9, np.int32)), "4 or 10 entries, one per", "9"),
    "padded labels": (column("label/turn", np.zeros((4, 4), np.int32)), "one dimension", "shape [4, 4]"),
    "floating labels": (column("label/turn", np.zeros(10)), "labels['turn']': an array of int32", "float64"),
    "names of labels twice": (names(turn=["a", "a"]), "different names in labels['turn']", "'a' twice"),
    "no names of labels": (names(turn=None), "list of names for 'turn'", "None"),
    "names that are no names": (names(turn=[{"a": 1}]), "names of labels['turn'] that are strings", "{'a': 1}"),
    "names that are no list": (names(turn=3), "list of names for 'turn'", "3"),
    "labels that are no object": (metadatum("labels", "[]"), "JSON dict in the metadata 'labels'", "[]"),
    "mask of numbers": (column("mask/text_token", np.ones(10, np.int32)), "masks['text_token']': an array of bool", "int32"),
    "mask of rows": (column("mask/text_token", np.ones(4, bool)), "masks['text_token']' with 10 entries", "4"),
    "policy of numbers in float16": (column("policy/rollout", np.zeros(10, np.float16)), "policies['rollout']'", "float16"),
    "policy of rows": (column("policy/rollout", np.zeros(4, np.float32)), "10 entries, one per token", "4"),
    "NaN of a policy": (column("policy/rollout", np.nan, at=4), "policies['rollout']' of finite", "nan at token 4, number 0"),
    "infinity of a policy": (column("policy/rollout", -np.inf, at=0), "finite", "-inf at token 0"),
    "policy above 1": (column("policy/rollout", 2e-6, at=3), "of at most 0", "token 3, number 0 of trajectory 1"),
    "old policy twice": (column("policy/old", np.zeros(10, np.float32)), "beside current and old", "'old'"),
    "policy of no name": (column("policy/roll out", np.zeros(10, np.float32)), "a letter, then letters", "'roll out'"),
    "provenance that is no JSON": (metadatum("provenance", "{"), "JSON in the metadata 'provenance'", "line 1"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_column_is_named(tmp_path: Path, name: str) -> None:
    change, required, found = WRONG[name]
    path = write(tmp_path / "batch.safetensors", change)
    with pytest.raises(RolloutsError) as error:
        load_rollouts(path)
    assert str(path) in error.value.what
    assert required in error.value.required
    assert found in error.value.found
    assert error.value.remedy


def test_a_probability_of_1_may_carry_rounding(tmp_path: Path) -> None:
    assert load_rollouts(write(tmp_path / "batch")).n_tokens == 10  # what WRONG starts from
    assert load_rollouts(write(tmp_path / "batch", column("log_probs", 5e-7, at=3))).n_tokens == 10


def test_a_group_out_of_range_in_the_first_format_is_refused(tmp_path: Path) -> None:
    for name, at, wrong in (("prompt_group", 2, 3), ("prompt_group", 1, -1), ("domain_of_group", 1, 2)):
        with pytest.raises(RolloutsError, match=r"prompt_group|domain"):
            load_rollouts(write_first(tmp_path / "batch", column(name, wrong, at=at)))


def test_columns_that_do_not_fit_together_raise() -> None:
    """Of Python's too, which WRONG cannot have."""
    for change, words in (({"log_probs": np.full(10, np.nan)}, "'log_probs' of"), ({"rewards": [0.0] * 4}, "an array")):
        with pytest.raises(RolloutsError) as error:
            small(**change)
        assert words in error.value.required


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error says what was to be written, and where."""
    save_rollouts(tmp_path / "batch", small())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def refused(path: Path, batch: Rollouts, words: str) -> None:
        with pytest.raises(RolloutsError, match=r"4 trajectories with 10 tokens cannot be saved to '.*'") as error:
            batch.save(path)
        assert str(path) in error.value.what and words in str(error.value)
        assert_same(load_rollouts(tmp_path / "batch"), small())
        assert [p.name for p in tmp_path.iterdir()] == ["batch"]

    refused(tmp_path / "batch", small(provenance={"when": object()}), "a provenance that is JSON")
    refused(tmp_path / "batch", small(provenance=float("nan")), "a provenance that is JSON")
    refused(tmp_path / "batch" / "in a file", small(), "is a file")
    refused(tmp_path, small(), "is a folder")
    changed = small(rewards=small().rewards.copy())
    assert changed.rewards is not None
    changed.rewards[1] = np.inf
    refused(tmp_path / "batch", changed, "'rewards' of finite values")
    monkeypatch.setattr("fibration.files.os.fsync", fail)
    refused(tmp_path / "batch", small(labels={}), "No space left on device")


def test_the_shipped_batch_is_as_documented() -> None:
    """What is said of it: several domains, most groups with right and wrong answers, real drift."""
    batch, lengths = load_rollouts(), np.diff(load_rollouts().offsets)
    domain, groups = batch.labels["domain"], len(batch.labels["prompt_group"].names)
    assert batch.n_trajectories >= 256 and len(domain.names) >= 4
    assert lengths.min() >= 1 and len(set(lengths.tolist())) > 10
    assert batch.rewards is not None
    assert (np.ptp(batch.rewards.reshape(groups, -1), axis=1) > 0).mean() > 0.5
    for i in range(len(domain.names)):
        assert 0.05 <= batch.rewards[domain.of == i].mean() <= 0.6
    assert 0.05 <= np.abs(batch.log_probs - batch.old_log_probs).mean() <= 0.3
    assert batch.provenance["success"].keys() == set(domain.names)


def test_the_shipped_batch_leaves_the_trust_region_on_every_level() -> None:
    r = load_rollouts()
    operator = fibration.compile(fibration.load("fiberpo_domain"), backend="torch")
    columns = map(torch.from_numpy, (r.log_probs, r.old_log_probs, r.advantages))
    metrics = operator.coefficients(*columns, build_index(operator, r)).metrics
    for stratum in ("domain", "prompt_group", "trajectory"):
        assert 0.5 < float(metrics[f"{stratum}/-/passed"]) < 1
        assert float(metrics[f"{stratum}/-/zeroed"]) > 0
    assert float(metrics["trajectory/-/rolled_back"]) > 0
    assert 0.1 < float(metrics["token/clipped"]) < 0.9
