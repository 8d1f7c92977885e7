"""Recorded rollouts: what a policy sampled, how it was scored, and its log-probs before and after some updates.

One file holds one optimisation batch, packed: the tokens of all trajectories one after the other. It is a
safetensors file, and `FORMAT` names its layout. Reading and writing need no torch.

    rollouts = load_rollouts()
    index = op.index(
        offsets=rollouts.offsets, prompt_group=rollouts.prompt_group_labels, domain=rollouts.domain_labels
    )

Trees and quivers need more: `labels` of other strata, and `masks` that say which tokens are which leaf's. Losses of
three policies need `policies`: log-probs of others than the current and the old one, such as the rollout engine's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fibration.errors import RolloutsError, SpecError
from fibration.language.policies import Policy

FORMAT = "fibration.rollouts/1"
SHIPPED, SHIPPED_ENGINE = "data/rollouts.safetensors", "data/rollouts_engine.safetensors"

# Everything is one-dimensional. Name -> dtype, in the file's words and in numpy's.
_COLUMNS = {
    "log_probs": ("F32", "float32"),
    "old_log_probs": ("F32", "float32"),
    "token_ids": ("I32", "int32"),
    "offsets": ("I64", "int64"),
    "advantages": ("F32", "float32"),
    "rewards": ("F32", "float32"),
    "prompt_group": ("I32", "int32"),
    "domain_of_group": ("I32", "int32"),
}
_PER_TOKEN = ("log_probs", "old_log_probs", "token_ids")
_PER_TRAJECTORY = ("advantages", "rewards", "prompt_group")
_LABEL, _MASK, _POLICY = "label/", "mask/", "policy/"  # before the names of what only some files have
_POSITIVE = 1e-6  # float32 arithmetic leaves a probability of 1 within this of log 1 = 0


@dataclass(frozen=True, eq=False)
class Labels:
    """Which element of a stratum each token or each trajectory lies over."""

    of: NDArray[np.int32]  # [N] or [n] positions in names
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A batch of `n` trajectories with `N` tokens in all, in prompt groups, in domains. Arrays are numpy's."""

    log_probs: NDArray[np.float32]  # [N] of the sampled tokens after the updates, in nats
    old_log_probs: NDArray[np.float32]  # [N] the same under the policy that sampled them
    token_ids: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]  # [n + 1] trajectory t has the tokens offsets[t] : offsets[t + 1]
    advantages: NDArray[np.float32]  # [n]
    rewards: NDArray[np.float32]  # [n]
    prompt_group: NDArray[np.int32]  # [n] positions in prompt_groups
    domain_of_group: NDArray[np.int32]  # [groups] positions in domains
    prompt_groups: tuple[str, ...]  # labels, such as "chain_sum/3"
    domains: tuple[str, ...]  # labels, such as "arithmetic"
    provenance: Mapping[str, Any]  # how the batch was made; JSON
    labels: Mapping[str, Labels] = field(default_factory=dict)  # of other strata, such as "modality"
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # leaf -> [N], where there are several leaves
    policies: Mapping[str, NDArray[np.float32]] = field(
        default_factory=dict
    )  # of others, such as "rollout": [N] in nats

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

    @property
    def all_labels(self) -> dict[str, list[str]]:
        """Every stratum that there are labels for, with the label of every token or every trajectory."""
        more = {stratum: [given.names[i] for i in given.of] for stratum, given in self.labels.items()}
        return {"prompt_group": self.prompt_group_labels, "domain": self.domain_labels, **more}


def load_rollouts(path: str | os.PathLike[str] | None = None, *, engine: bool = False) -> Rollouts:
    """Read recorded rollouts; `None` reads the batch that ships with this package: with `engine` the smaller one that a
    copy of the model in bfloat16 sampled, and that has its log-probs as the policy `rollout`.

    Everything that `Rollouts` promises is checked. Raises `RolloutsError`, which names the file, the rule, and the
    key, trajectory or token that breaks it.
    """
    if path is None:
        with as_file(files("fibration").joinpath(SHIPPED_ENGINE if engine else SHIPPED)) as shipped:
            return _load(shipped)
    return _load(Path(path))


def save_rollouts(path: str | os.PathLike[str], rollouts: Rollouts) -> None:
    """Check `rollouts` like `load_rollouts`, then write them. A crash leaves the old file or the new one, whole."""
    target = Path(path)
    arrays = {name: np.ascontiguousarray(getattr(rollouts, name)) for name in _COLUMNS}
    codes = {dtype: code for code, dtype in _COLUMNS.values()}
    for name, array in arrays.items():
        _check_column(target, name, codes.get(array.dtype.name, array.dtype.name), array.shape)
    _check(target, rollouts)
    arrays |= {_LABEL + stratum: np.ascontiguousarray(given.of) for stratum, given in rollouts.labels.items()}
    arrays |= {_MASK + leaf: np.ascontiguousarray(mask) for leaf, mask in rollouts.masks.items()}
    arrays |= {_POLICY + name: np.ascontiguousarray(given) for name, given in rollouts.policies.items()}
    metadata = {
        "format": FORMAT,
        "labels": json.dumps({stratum: given.names for stratum, given in rollouts.labels.items()}),
        "domains": json.dumps(rollouts.domains),
        "prompt_groups": json.dumps(rollouts.prompt_groups),
        "provenance": json.dumps(rollouts.provenance),
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


_REWRITE = "write such files with fibration.rollouts.save_rollouts"
_CUMULATE = "'offsets' are the cumulative lengths of the trajectories, after a 0"


def _load(path: Path) -> Rollouts:
    if not path.is_file():
        _fail(path, "a file", "a folder" if path.is_dir() else "nothing of this name", "check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = repr(metadata.get("format", "no format at all"))
                _fail(path, f"the format '{FORMAT}' in the metadata", found, "record it anew with this release")
            arrays = {name: _column(path, file, name) for name in _COLUMNS}
            names = _json(path, metadata, "labels", dict) if "labels" in metadata else {}
            some = [name for name in list(file.keys()) if name.startswith((_LABEL, _MASK, _POLICY))]
            optional = {name: file.get_tensor(name) for name in some}
    except SafetensorError as error:
        _fail(path, "a whole safetensors file", str(error), "it is truncated or of another kind: copy it anew")
    rollouts = Rollouts(
        **arrays,
        prompt_groups=tuple(_json(path, metadata, "prompt_groups", list)),
        domains=tuple(_json(path, metadata, "domains", list)),
        provenance=_json(path, metadata, "provenance", dict),
        labels={n: Labels(a, _names(path, names, n)) for n, a in _under(_LABEL, optional).items()},
        masks=_under(_MASK, optional),
        policies=_under(_POLICY, optional),
    )
    _check(path, rollouts)
    return rollouts


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _names(path: Path, names: Mapping[str, Any], stratum: str) -> tuple[str, ...]:
    if not isinstance(found := names.get(stratum), list):
        what = f"{found!r:.60}" if stratum in names else "none"
        _fail(path, f"a list of names for '{stratum}' in the metadata 'labels'", what, _REWRITE)
    return tuple(found)


def _column(path: Path, file: Any, name: str) -> NDArray[Any]:
    if name not in list(file.keys()):
        _fail(path, f"the keys {', '.join(_COLUMNS)}", f"no '{name}'", _REWRITE)
    header = file.get_slice(name)
    _check_column(path, name, header.get_dtype(), tuple(header.get_shape()))
    column: NDArray[Any] = file.get_tensor(name)
    return column


def _json(path: Path, metadata: Mapping[str, str], key: str, kind: type) -> Any:
    if key not in metadata:
        _fail(path, f"'{key}' in the metadata", f"only {', '.join(sorted(metadata))}", _REWRITE)
    try:
        value = json.loads(metadata[key])
    except json.JSONDecodeError as error:
        _fail(path, f"JSON in the metadata '{key}'", str(error), _REWRITE)
    if not isinstance(value, kind):
        _fail(path, f"a JSON {kind.__name__} in the metadata '{key}'", f"{value!r:.60}", _REWRITE)
    return value


def _check_column(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    code, numpy_name = _COLUMNS[name]
    if dtype != code:
        _fail(path, f"'{name}' of dtype {code}", dtype, f"convert it to {numpy_name}")
    if len(shape) != 1:
        remedy = "pack it: the trajectories one after the other, without padding"
        _fail(path, f"'{name}' with one dimension", f"shape {list(shape)}", remedy)


def _check(path: Path, rollouts: Rollouts) -> None:
    """Every rule that relates columns to each other and to the labels, and every rule on values."""
    named = {"domains": rollouts.domains, "prompt_groups": rollouts.prompt_groups}
    for key, labels in {**named, **{f"labels of {s}": given.names for s, given in rollouts.labels.items()}}.items():
        seen: set[str] = set()
        for label in labels:
            if not isinstance(label, str):
                _fail(path, f"strings in '{key}'", f"{label!r:.60}", "name every element by a string")
            if label in seen:
                _fail(path, f"different labels in '{key}'", f"{label!r} twice", "elements of one name would merge")
            seen.add(label)

    offsets, n_tokens = rollouts.offsets, rollouts.n_tokens
    if len(offsets) < 2:
        _fail(path, "'offsets' of at least one trajectory", f"{len(offsets)} entries", _CUMULATE)
    if offsets[0] != 0:
        _fail(path, "'offsets' that start at 0", f"{offsets[0]}", _CUMULATE)
    for t in np.flatnonzero(np.diff(offsets) < 0)[:1]:
        found = f"{offsets[t]}, then {offsets[t + 1]} at trajectory {t}"
        _fail(path, "'offsets' that never decrease", found, _CUMULATE)
    if offsets[-1] != n_tokens:
        _fail(path, f"'offsets' that end at {n_tokens}, the length of 'log_probs'", f"{offsets[-1]}", _CUMULATE)

    def one_per(unit: str, count: int, *names: str) -> None:
        for name in names:
            if len(getattr(rollouts, name)) != count:
                found = f"{len(getattr(rollouts, name))}"
                _fail(path, f"'{name}' with {count} entries, one per {unit}", found, f"add or drop a {unit}'s entry")

    one_per("token", n_tokens, *_PER_TOKEN)
    one_per("trajectory", rollouts.n_trajectories, *_PER_TRAJECTORY)
    one_per("prompt group", len(rollouts.prompt_groups), "domain_of_group")

    def all_of(name: str, good: Callable[[NDArray[Any]], NDArray[np.bool_]], rule: str, remedy: str) -> None:
        column = getattr(rollouts, name)
        for k in np.flatnonzero(~good(column))[:1]:
            _fail(path, f"'{name}' {rule}", f"{column[k]} at {_place(rollouts, name, int(k))}", remedy)

    def positions(name: str, key: str, count: int) -> None:
        all_of(name, lambda x: (x >= 0) & (x < count), f"in 0 ... {count - 1}, positions in '{key}'", "count from 0")

    positions("prompt_group", "prompt_groups", len(rollouts.prompt_groups))
    positions("domain_of_group", "domains", len(rollouts.domains))
    _check_more(path, rollouts)
    _check_policies(path, rollouts)
    for name in ("log_probs", "old_log_probs", "advantages", "rewards"):
        all_of(name, np.isfinite, "of finite values", "find out where it came from, and record anew")
    for name in ("log_probs", "old_log_probs"):
        all_of(name, lambda x: x <= _POSITIVE, "of at most 0", "store natural logs of probabilities")
    all_of("token_ids", lambda x: x >= 0, "of at least 0", "store the tokenizer's ids, and no padding")


def _check_more(path: Path, rollouts: Rollouts) -> None:
    """The rules on what only some files have."""
    n_tokens, n_trajectories = rollouts.n_tokens, rollouts.n_trajectories
    for stratum, given in rollouts.labels.items():
        what, of = f"labels of '{stratum}'", given.of
        if stratum in ("prompt_group", "domain"):
            _fail(path, "labels of other strata than prompt_group and domain", f"'{stratum}'", "drop one of the two")
        if of.dtype != np.int32:
            _fail(path, f"{what} of dtype I32", str(of.dtype), "convert them to int32")
        if of.shape not in ((n_tokens,), (n_trajectories,)):
            rule = f"{n_tokens} {what}, one per token, or {n_trajectories}, one per trajectory"
            _fail(path, rule, f"shape {list(of.shape)}", "give one for each, without padding")
        for k in np.flatnonzero((of < 0) | (of >= len(given.names)))[:1]:
            unit = "token" if len(of) == n_tokens else "trajectory"
            found = f"{of[k]} at {unit} {k}"
            _fail(path, f"{what} in 0 ... {len(given.names) - 1}, positions in its names", found, "count from 0")
    for leaf, mask in rollouts.masks.items():
        if mask.dtype != np.bool_ or mask.shape != (n_tokens,):
            found = f"{mask.dtype} of shape {list(mask.shape)}"
            _fail(path, f"a bool for each of the {n_tokens} tokens in the mask of '{leaf}'", found, _REWRITE)


def _check_policies(path: Path, rollouts: Rollouts) -> None:
    """The rules on log-probs of further policies: those of every token."""
    for name, given in rollouts.policies.items():
        what = f"log-probs of the policy '{name}'"
        try:
            is_passed = Policy(name).is_passed
        except SpecError as error:
            _fail(path, f"policies of other names: {error.required}", f"'{name}'", "call the policy otherwise")
        if not is_passed:
            _fail(path, "policies beside current and old", f"'{name}'", "those are 'log_probs' and 'old_log_probs'")
        if given.dtype != np.float32 or given.shape != (rollouts.n_tokens,):
            found = f"{given.dtype} of shape {list(given.shape)}"
            _fail(path, f"float32 {what}, one for each of the {rollouts.n_tokens} tokens", found, _REWRITE)
        for k in np.flatnonzero(~np.isfinite(given) | (given > _POSITIVE))[:1]:
            found = f"{given[k]} at {_place(rollouts, _PER_TOKEN[0], int(k))}"
            _fail(path, f"finite {what}, of at most 0", found, "store natural logs of probabilities")


def _place(rollouts: Rollouts, name: str, k: int) -> str:
    """Where entry `k` of a column lies, in the words of the hierarchy."""
    if name in _PER_TRAJECTORY:
        return f"trajectory {k}"
    if name not in _PER_TOKEN:
        return f"prompt group {k} ({rollouts.prompt_groups[k]})"
    trajectory = int(np.searchsorted(rollouts.offsets, k, side="right")) - 1
    group = rollouts.prompt_groups[rollouts.prompt_group[trajectory]]
    return f"token {k}, number {k - int(rollouts.offsets[trajectory])} of trajectory {trajectory} ({group})"


def _fail(path: Path, required: str, found: str, remedy: str) -> NoReturn:
    raise RolloutsError(f"'{path}' holds no rollouts", required=required, found=found, remedy=remedy)
