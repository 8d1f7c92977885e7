"""Recorded rollouts: sampled tokens, their rewards, and their log-probs before and after some updates.

One file holds one optimisation batch, packed: the tokens of all trajectories one after the other. It is a
safetensors file; `FORMAT` names its layout. Reading and writing need no torch.

    rollouts = Rollouts.from_batch(log_probs, old_log_probs, advantages, mask=mask, prompt_group=uids, domain=sources)
    rollouts.save("batch.safetensors")

Only log-probs are required.
- `labels`: of any strata of a hierarchy.
- `masks`: the tokens of each leaf, for hierarchies with several leaves.
- `policies`: log-probs of policies other than current and old, such as the rollout engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fibration.errors import RolloutsError, located
from fibration.files import unwritable, write_file
from fibration.rollouts.checks import WRITE, check, check_mapping, refuse_slips
from fibration.rollouts.labels import Labels
from fibration.rollouts.layout import Layout

FORMAT, FIRST = "fibration.rollouts/2", "fibration.rollouts/1"  # written and read; only read
SHIPPED, SHIPPED_ENGINE = "data/rollouts.safetensors", "data/rollouts_engine.safetensors"
Floats = NDArray[np.float32] | NDArray[np.float64]

_NEEDED = ("log_probs", "old_log_probs", "offsets")
_OPTIONAL = ("advantages", "rewards", "token_ids")
_OF_FIRST = ("prompt_group", "domain_of_group")  # columns of the first format, now labels
_LABEL, _PREFIXES = "label/", {"masks": "mask/", "policies": "policy/", "attributes": "attribute/"}


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A recorded batch: `n` trajectories with `N` tokens in all, one after the other.

    Arrays are of numpy; floats are float32 or float64. A column that was not recorded is None, and functions that need
    it raise RolloutsError. Raises RolloutsError for columns that do not fit together.
    """

    log_probs: Floats  # [N] of the sampled tokens after the updates, in nats
    old_log_probs: Floats  # [N] of the same tokens under the old policy, in nats
    offsets: NDArray[np.int64]  # [n + 1] trajectory t has the tokens offsets[t] : offsets[t + 1]
    advantages: Floats | None = None  # [n] or [N]
    rewards: Floats | None = None  # [n] or [N]
    token_ids: NDArray[np.int32] | None = None  # [N]
    labels: Mapping[str, Labels] = field(default_factory=dict)  # of strata, such as "domain": per trajectory or token
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # leaf -> [N], for several leaves
    policies: Mapping[str, Floats] = field(default_factory=dict)  # log-probs of others, such as "rollout": [N] in nats
    attributes: Mapping[str, Floats] = field(default_factory=dict)  # of elements, such as "value": [n] or [N]
    provenance: Any = field(default_factory=dict)  # how the batch was made; JSON

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def from_batch(
        log_probs: Any,
        old_log_probs: Any,
        advantages: Any = None,
        *,
        mask: Any = None,
        offsets: Any = None,
        rewards: Any = None,
        policies: Mapping[str, Any] | None = None,
        token_ids: Any = None,
        provenance: Any = None,
        masks: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **labels: Any,
    ) -> Rollouts:
        """Returns rollouts from a trainer's batch: torch tensors, numpy arrays or lists.

        - `log_probs`, `old_log_probs`: log π of the sampled tokens in nats, under the current and the old policy. Any
          float dtype, any device, with or without a graph. Float64 stays; other dtypes become float32.
        - Layouts: padded `[B, T]` with a `mask` of 0 and 1; packed `[N]` with `offsets` (cu_seqlens `[n + 1]`); or a
          list of rows. Masked values are never read. Rows without an unmasked token are left out.
        - `advantages`, `rewards`, `attributes`: numbers per row or per token.
        - `policies`: log-probs of other policies, such as `{"rollout": log_probs}`.
        - `masks`: the tokens of each leaf, for hierarchies with several leaves, such as `{"image_token": is_image}`.
        - `labels`: one keyword per stratum, such as `domain=sources`. A label per row or per token, of any hashable
          type, or `None`.
        - `provenance`: any JSON. Default: the layout, the dtypes and the number of rows.

        An argument that is `None` is not recorded. Raises RolloutsError with the argument, the rule, and the place of
        the wrong value in your arrays.
        """
        refuse_slips(labels)
        what = Layout(log_probs, mask, offsets)
        columns: dict[str, Any] = {
            name: read(given, name)
            for name, given, read in (
                ("log_probs", log_probs, what.log_probs),
                ("old_log_probs", old_log_probs, what.log_probs),
                ("advantages", advantages, what.numbers),
                ("rewards", rewards, what.numbers),
                ("token_ids", token_ids, what.ids),
            )
            if given is not None or name in _NEEDED
        }
        columns["labels"] = {s: what.labels(given, s) for s, given in labels.items() if given is not None}
        for kind, mapping, read in (
            ("masks", masks, what.of_leaf),
            ("policies", policies, what.log_probs),
            ("attributes", attributes, what.numbers),
        ):
            each = check_mapping(kind, mapping).items()
            columns[kind] = {k: read(given, f"{kind}[{k!r}]") for k, given in each if given is not None}
        made = what.provenance(log_probs=log_probs, old_log_probs=old_log_probs)
        return Rollouts(offsets=what.offsets, provenance=made if provenance is None else provenance, **columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the rollouts, for `fibration run SPEC --rollouts PATH`. See `save_rollouts`."""
        save_rollouts(path, self)

    @property
    def n_tokens(self) -> int:
        return len(self.log_probs)

    @property
    def n_trajectories(self) -> int:
        return len(self.offsets) - 1

    @property
    def rows(self) -> NDArray[np.int64]:
        """The trajectory of every token: [N]."""
        return np.repeat(np.arange(self.n_trajectories), np.diff(self.offsets))

    def of_tokens(self, column: NDArray[Any]) -> NDArray[Any]:
        """Returns a column with one entry per token [N], from one per trajectory or per token."""
        return column[self.rows] if len(column) == self.n_trajectories else column


def load_rollouts(path: str | os.PathLike[str] | None = None, *, engine: bool = False) -> Rollouts:
    """Returns recorded rollouts; `None` reads a batch that ships with this package.

    `engine=True` reads a smaller shipped batch that has log-probs of the policy `rollout`: of a copy of the model in
    bfloat16, which sampled it.

    Raises `RolloutsError` for a file that breaks a rule of `Rollouts`, with the file, the rule, and the wrong key,
    trajectory or token.
    """
    if path is None:
        with as_file(files("fibration").joinpath(SHIPPED_ENGINE if engine else SHIPPED)) as shipped:
            return _load(shipped)
    return _load(Path(path))


def save_rollouts(path: str | os.PathLike[str], rollouts: Rollouts) -> None:
    """Writes rollouts to `path` and creates missing folders. A crash leaves the old file or the new one, complete.

    Raises `RolloutsError` with the batch, the path and the reason.
    """
    target = Path(path)
    what = f"{rollouts.n_trajectories} trajectories with {rollouts.n_tokens} tokens cannot be saved to '{target}'"
    with located(what):
        check(rollouts)  # arrays may have changed since they were made
    columns = {name: getattr(rollouts, name) for name in (*_NEEDED, *_OPTIONAL)}
    columns |= {_LABEL + stratum: given.of for stratum, given in rollouts.labels.items()}
    for kind, prefix in _PREFIXES.items():
        columns |= {prefix + name: given for name, given in getattr(rollouts, kind).items()}
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items() if column is not None}
    try:
        provenance = json.dumps(rollouts.provenance, allow_nan=False)
    except (TypeError, ValueError) as error:
        remedy = "give strings, numbers, lists and dicts"
        raise RolloutsError(what, required="a provenance that is JSON", found=str(error), remedy=remedy) from None
    names = json.dumps({stratum: given.names for stratum, given in rollouts.labels.items()})
    contents = save(arrays, {"format": FORMAT, "labels": names, "provenance": provenance})
    try:
        write_file(target, contents)
    except OSError as error:
        raise RolloutsError(
            what,
            required="a file that can be written",
            found=unwritable(target, file=True) or f"{error.strerror or error}, {len(contents)} bytes to write",
            remedy="name another path, or free some space; the old file is unchanged",
        ) from error


def _load(path: Path) -> Rollouts:
    if not path.is_file():
        other = "a device, a pipe or a socket" if path.exists() else "nothing of this name"
        _fail(path, "a file", "a folder" if path.is_dir() else other, "check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if (format := metadata.get("format")) not in (FORMAT, FIRST):
                found = "no format at all" if format is None else repr(format)
                remedy = f"{WRITE}, and their .save(path) writes such files"
                _fail(path, f"the format '{FORMAT}', or '{FIRST}', in the metadata", found, remedy)
            arrays = {name: _column(path, file, name) for name in list(file.keys())}
    except SafetensorError as error:
        _fail(path, "a whole safetensors file", str(error), "it is truncated or of another kind: copy it anew")
    needed = (*_NEEDED, *(_OF_FIRST if format == FIRST else ()))
    for name in needed:
        if name not in arrays:
            _fail(path, f"the keys {', '.join(needed)}", f"no '{name}'", _REWRITE)
    known = ("format", "labels", "provenance", *(("domains", "prompt_groups") if format == FIRST else ()))
    prefixes = (_LABEL, *_PREFIXES.values())
    others = [k for k in arrays if k not in (*needed, *_OPTIONAL) and not k.startswith(prefixes)]
    for key in (*others, *(k for k in metadata if k not in known)):
        every = ", ".join((*needed, *_OPTIONAL, *prefixes))
        _fail(path, f"keys of '{format}': {every}, metadata", f"'{key}'", _REWRITE)
    names = _json(path, metadata, "labels", dict) if format == FORMAT or "labels" in metadata else {}
    of_each = _under(_LABEL, arrays)
    in_order = [*(n for n in names if n in of_each), *(n for n in of_each if n not in names)]  # safetensors sorts keys
    labels = {n: Labels(of_each[n], _names(path, names, n)) for n in in_order}
    if format == FIRST:
        labels = _of_first(path, arrays, metadata) | labels
    try:
        return Rollouts(
            **{name: arrays.get(name) for name in (*_NEEDED, *_OPTIONAL)},  # type: ignore[arg-type]
            labels=labels,
            **{kind: _under(prefix, arrays) for kind, prefix in _PREFIXES.items()},  # type: ignore[arg-type]
            provenance=_json(path, metadata, "provenance"),
        )
    except RolloutsError as error:
        _fail(path, error.required, error.found, error.remedy)


_REWRITE = "write such files with Rollouts.save"
MAX_LEVELS = 20
_OF_NUMPY = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64")


def _column(path: Path, file: Any, name: str) -> NDArray[Any]:
    """Returns a column of an open file. Bfloat16, which numpy lacks, becomes float32 without rounding."""
    dtype = file.get_slice(name).get_dtype()
    if dtype in _OF_NUMPY:
        return np.asarray(file.get_tensor(name))
    if dtype != "BF16":
        rule = "columns of float32, float64 or bfloat16, and of whole numbers"
        _fail(path, rule, f"{name!r} of {dtype}", "convert it to float32")
    with path.open("rb") as raw:
        header = int.from_bytes(raw.read(8), "little")
        entry = json.loads(raw.read(header))[name]  # which `file` has checked
        first, last = entry["data_offsets"]
        raw.seek(8 + header + first)
        high = np.frombuffer(raw.read(last - first), "<u2")
    return (high.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def _of_first(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> dict[str, Labels]:
    """Returns the labels of a file of the first format, which stores them as columns."""
    group, domain = (arrays[name] for name in _OF_FIRST)
    groups, domains = (tuple(_json(path, metadata, key, list)) for key in ("prompt_groups", "domains"))
    if group.size and domain.shape == (len(groups),) and 0 <= group.min() <= group.max() < len(groups):
        return {"prompt_group": Labels(group, groups), "domain": Labels(domain[group], domains)}
    _fail(path, f"'prompt_group' in 0 ... {len(groups) - 1}, and as many domains", f"{group}, {domain}", _REWRITE)


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _names(path: Path, names: Mapping[str, Any], stratum: str) -> tuple[Any, ...]:
    if not isinstance(found := names.get(stratum), list):
        what = f"{found!r:.60}" if stratum in names else "none"
        _fail(path, f"a list of names for '{stratum}' in the metadata 'labels'", what, _REWRITE)
    return tuple(_as_name(path, stratum, name) for name in found)


def _as_name(path: Path, stratum: str, name: Any, level: int = 0) -> Any:
    if level > MAX_LEVELS:
        _fail(path, f"names for '{stratum}' nested at most {MAX_LEVELS} deep", "a deeper one", _REWRITE)
    return tuple(_as_name(path, stratum, n, level + 1) for n in name) if isinstance(name, list) else name


def _json(path: Path, metadata: Mapping[str, str], key: str, kind: type = object) -> Any:
    if key not in metadata:
        _fail(path, f"'{key}' in the metadata", f"only {', '.join(sorted(metadata))}", _REWRITE)
    try:
        value = json.loads(metadata[key])
    except RecursionError:
        _fail(path, f"JSON in the metadata '{key}'", "lists nested thousands deep", _REWRITE)
    except ValueError as error:
        _fail(path, f"JSON in the metadata '{key}'", str(error), _REWRITE)
    if not isinstance(value, kind):
        _fail(path, f"a JSON {kind.__name__} in the metadata '{key}'", f"{value!r:.60}", _REWRITE)
    return value


def _fail(path: Path, required: str, found: str, remedy: str) -> NoReturn:
    raise RolloutsError(f"'{path}' holds no rollouts", required=required, found=found, remedy=remedy)
