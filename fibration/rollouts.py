"""Recorded rollouts: what a policy sampled, how it was scored, and its log-probs before and after some updates.

One file holds one optimisation batch, packed: the tokens of all trajectories one after the other, as a trainer has them
when it calls the operator. It is a safetensors file; `FORMAT` names its layout. Reading and writing need no torch.

    rollouts = load_rollouts()
    index = op.index(offsets=rollouts.offsets, prompt_group=rollouts.prompt_group_labels, domain=rollouts.domain_labels)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fibration.errors import RolloutsError

FORMAT = "fibration.rollouts/1"
SHIPPED = "data/rollouts.safetensors"

# Name in the file -> dtype in numpy's words and in the file's. Everything is one-dimensional.
_COLUMNS: Mapping[str, tuple[type[np.generic], str]] = {
    "log_probs": (np.float32, "F32"),
    "old_log_probs": (np.float32, "F32"),
    "token_ids": (np.int32, "I32"),
    "offsets": (np.int64, "I64"),
    "advantages": (np.float32, "F32"),
    "rewards": (np.float32, "F32"),
    "prompt_group": (np.int32, "I32"),
    "domain_of_group": (np.int32, "I32"),
}
_PER_TOKEN = ("log_probs", "old_log_probs", "token_ids")
_PER_TRAJECTORY = ("advantages", "rewards", "prompt_group")
# exp(1e-6) - 1 is what float32 arithmetic can leave above a probability of 1.
_LOG_PROB_SLACK = 1e-6


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A batch of `n` trajectories with `N` tokens in all, in prompt groups, in domains. Arrays are numpy's."""

    log_probs: NDArray[np.float32]  # [N] natural log of the probability of each token, after the updates
    old_log_probs: NDArray[np.float32]  # [N] the same under the policy that sampled them
    token_ids: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]  # [n + 1] trajectory t has the tokens offsets[t] : offsets[t + 1]
    advantages: NDArray[np.float32]  # [n]
    rewards: NDArray[np.float32]  # [n]
    prompt_group: NDArray[np.int32]  # [n] a position in prompt_groups
    domain_of_group: NDArray[np.int32]  # [groups] a position in domains
    prompt_groups: tuple[str, ...]  # labels, such as "chain_sum/3"
    domains: tuple[str, ...]  # labels, such as "arithmetic"
    provenance: Mapping[str, Any]  # how the batch was made; JSON

    @property
    def n_tokens(self) -> int:
        return len(self.log_probs)

    @property
    def n_trajectories(self) -> int:
        return len(self.offsets) - 1

    @property
    def prompt_group_labels(self) -> list[str]:
        """The label of the prompt group of every trajectory."""
        return [self.prompt_groups[group] for group in self.prompt_group]

    @property
    def domain_labels(self) -> list[str]:
        """The label of the domain of every trajectory."""
        return [self.domains[self.domain_of_group[group]] for group in self.prompt_group]


def load_rollouts(path: str | os.PathLike[str] | None = None) -> Rollouts:
    """Read recorded rollouts; `None` reads the batch that ships with this package.

    Everything that `Rollouts` promises is checked. Raises `RolloutsError`, which names the file, the rule, and the key,
    trajectory or token that breaks it.
    """
    if path is None:
        with as_file(files("fibration") / SHIPPED) as shipped:
            return _load(shipped)
    return _load(Path(path))


def save_rollouts(path: str | os.PathLike[str], rollouts: Rollouts) -> None:
    """Check `rollouts` as `load_rollouts` does, then write them; a crash leaves the old file or the new one, whole."""
    target = Path(path)
    arrays = {name: np.ascontiguousarray(getattr(rollouts, name)) for name in _COLUMNS}
    types = {np.dtype(dtype): code for dtype, code in _COLUMNS.values()}
    for name, array in arrays.items():
        _check_column(target, name, types.get(array.dtype, str(array.dtype)), array.shape)
    _check(target, rollouts)
    metadata = {
        "format": FORMAT,
        "domains": json.dumps(rollouts.domains),
        "prompt_groups": json.dumps(rollouts.prompt_groups),
        "provenance": json.dumps(rollouts.provenance, allow_nan=False),
    }
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(save(arrays, metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _load(path: Path) -> Rollouts:
    if not path.is_file():
        _fail(path, "a file that exists", "a folder" if path.is_dir() else "nothing", "check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = f"format {metadata['format']!r}" if "format" in metadata else "no format in the metadata"
                _fail(path, f"metadata with format {FORMAT!r}", found, "read it with the release that wrote it, or record it anew")
            arrays = {}
            for name in _COLUMNS:
                if name not in file.keys():  # noqa: SIM118 (the file is no dict)
                    _fail(path, f"the keys {', '.join(_COLUMNS)}", f"no {name!r}", _REWRITE)
                header = file.get_slice(name)
                _check_column(path, name, header.get_dtype(), tuple(header.get_shape()))
                arrays[name] = file.get_tensor(name)
    except SafetensorError as error:
        _fail(path, "a complete safetensors file", str(error), "the file is truncated or of another kind: copy or record it anew")
    rollouts = Rollouts(
        **arrays,
        prompt_groups=_labels(path, metadata, "prompt_groups"),
        domains=_labels(path, metadata, "domains"),
        provenance=_json(path, metadata, "provenance", dict),
    )
    _check(path, rollouts)
    return rollouts


_REWRITE = "write such files with fibration.rollouts.save_rollouts"


def _fail(path: Path, required: str, found: str, remedy: str) -> NoReturn:
    raise RolloutsError(f"'{path}' holds no usable rollouts", required=required, found=found, remedy=remedy)


def _json(path: Path, metadata: Mapping[str, str], key: str, kind: type) -> Any:
    if key not in metadata:
        _fail(path, f"metadata with {key!r}", f"only {', '.join(sorted(metadata))}", _REWRITE)
    try:
        value = json.loads(metadata[key])
    except json.JSONDecodeError as error:
        _fail(path, f"JSON in the metadata {key!r}", str(error), _REWRITE)
    if not isinstance(value, kind):
        _fail(path, f"a JSON {kind.__name__} in the metadata {key!r}", f"{value!r:.60}", _REWRITE)
    return value


def _labels(path: Path, metadata: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(_json(path, metadata, key, list))


def _check_column(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    wanted = _COLUMNS[name][1]
    if dtype != wanted:
        _fail(path, f"{name!r} of dtype {wanted}", dtype, f"convert it to {np.dtype(_COLUMNS[name][0])}")
    if len(shape) != 1:
        _fail(path, f"{name!r} with one dimension", f"shape {list(shape)}", "pack the tokens: concatenate the trajectories, without padding")


def _check(path: Path, rollouts: Rollouts) -> None:
    """Every rule that relates columns to each other and to the labels, and every rule on values."""
    offsets, n_tokens = rollouts.offsets, rollouts.n_tokens
    for key, labels in (("domains", rollouts.domains), ("prompt_groups", rollouts.prompt_groups)):
        odd = next((label for label in labels if not isinstance(label, str)), None)
        if odd is not None:
            _fail(path, f"strings in {key!r}", f"{odd!r:.60}", "name the elements with strings")
        twice = next((label for k, label in enumerate(labels) if label in labels[:k]), None)
        if twice is not None:
            _fail(path, f"different labels in {key!r}", f"{twice!r} twice", "two elements of one name would become one: rename one of them")

    if len(offsets) < 2:
        _fail(path, "at least one trajectory, so 'offsets' of 2 entries", f"{len(offsets)}", "record at least one trajectory")
    if offsets[0] != 0:
        _fail(path, "'offsets' that start at 0", f"{offsets[0]}", _CUMULATE)
    drops = np.flatnonzero(np.diff(offsets) < 0)
    if len(drops):
        t = int(drops[0])
        _fail(path, "'offsets' that never decrease", f"{offsets[t]} then {offsets[t + 1]} at trajectory {t}", _CUMULATE)
    if offsets[-1] != n_tokens:
        _fail(path, "'offsets' that end at the number of tokens", f"{offsets[-1]} for {n_tokens} log_probs", _CUMULATE)

    def length(names: tuple[str, ...], wanted: int, unit: str) -> None:
        for name in names:
            if len(getattr(rollouts, name)) != wanted:
                _fail(path, f"{name!r} with one entry per {unit}, {wanted}", f"{len(getattr(rollouts, name))}", f"write one entry per {unit}")

    length(_PER_TOKEN, n_tokens, "token")
    length(_PER_TRAJECTORY, rollouts.n_trajectories, "trajectory")
    length(("domain_of_group",), len(rollouts.prompt_groups), "prompt group")

    def values(name: str, bad: Callable[[NDArray[Any]], NDArray[np.bool_]], rule: str, remedy: str) -> None:
        column = getattr(rollouts, name)
        where = np.flatnonzero(bad(column))
        if len(where):
            _fail(path, f"{name!r} {rule}", f"{column[where[0]]} at {_place(rollouts, name, int(where[0]))}", remedy)

    def out_of(labels: tuple[str, ...]) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
        return lambda column: (column < 0) | (column >= len(labels))

    values("prompt_group", out_of(rollouts.prompt_groups), f"in 0 ... {len(rollouts.prompt_groups) - 1}", "number the prompt groups as in the metadata")
    values("domain_of_group", out_of(rollouts.domains), f"in 0 ... {len(rollouts.domains) - 1}", "number the domains as in the metadata")
    for name in ("log_probs", "old_log_probs", "advantages", "rewards"):
        values(name, lambda column: ~np.isfinite(column), "with finite values", "record it anew; a policy that gives NaN has diverged")
    for name in ("log_probs", "old_log_probs"):
        values(name, lambda column: column > _LOG_PROB_SLACK, "with values of at most 0", "store natural logs of probabilities")
    values("token_ids", lambda column: column < 0, "with values of at least 0", "store the tokenizer's ids, without padding")


_CUMULATE = "'offsets' are the cumulative lengths of the trajectories, with a 0 in front"


def _place(rollouts: Rollouts, name: str, k: int) -> str:
    """Where entry `k` of a column lies, in the words of the hierarchy."""
    if name in _PER_TRAJECTORY:
        return f"trajectory {k}"
    if name not in _PER_TOKEN:
        return f"prompt group {k} ({rollouts.prompt_groups[k]})"
    trajectory = int(np.searchsorted(rollouts.offsets, k, side="right")) - 1
    group = rollouts.prompt_groups[rollouts.prompt_group[trajectory]]
    return f"token {k}, which is number {k - int(rollouts.offsets[trajectory])} of trajectory {trajectory} ({group})"
