"""The rules that every batch of recorded rollouts obeys, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fibration.errors import RolloutsError, SpecError, shown
from fibration.language import keywords
from fibration.language.policies import Policy
from fibration.rollouts.labels import NONE, Labels
from fibration.rollouts.layout import POSITIVE

FLOATS = (np.dtype("float32"), np.dtype("float64"))
WRITE = "Rollouts.from_batch(...) makes such rollouts of a trainer's tensors"
_CUMULATE = "'offsets' are the cumulative lengths of the trajectories, after a 0"
_PER_TOKEN, _EITHER = "one per token", "one per trajectory or one per token"


class Columns(Protocol):
    """The columns of a batch of rollouts that `check` reads."""

    @property
    def log_probs(self) -> NDArray[Any]: ...
    @property
    def old_log_probs(self) -> NDArray[Any]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def advantages(self) -> NDArray[Any] | None: ...
    @property
    def rewards(self) -> NDArray[Any] | None: ...
    @property
    def token_ids(self) -> NDArray[np.int32] | None: ...
    @property
    def labels(self) -> Mapping[str, Labels]: ...
    @property
    def masks(self) -> Mapping[str, NDArray[np.bool_]]: ...
    @property
    def policies(self) -> Mapping[str, NDArray[Any]]: ...
    @property
    def attributes(self) -> Mapping[str, NDArray[Any]]: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_trajectories(self) -> int: ...


def check(r: Columns) -> None:
    """Raises RolloutsError for the first broken rule, with the column and its first wrong token or trajectory."""
    _vector("offsets", r.offsets, (np.dtype("int64"),))
    _vector("log_probs", r.log_probs, FLOATS)
    _check_offsets(r)
    each = {"old_log_probs": r.old_log_probs, **{f"policies['{p}']": given for p, given in r.policies.items()}}
    for name in r.policies:
        _check_policy(name)
    for name, column in {"log_probs": r.log_probs, **each}.items():
        _vector(name, column, FLOATS)
        _length(r, name, column, _PER_TOKEN)
        _all(r, name, column, np.isfinite, "of finite values", "find out where it came from")
        _all(r, name, column, lambda x: x <= POSITIVE, "of at most 0", "give natural logs of probabilities")
    numbers = {"advantages": r.advantages, "rewards": r.rewards}
    for name, given in {**numbers, **{f"attributes['{a}']": g for a, g in r.attributes.items()}}.items():
        if given is not None:
            _vector(name, given, FLOATS)
            _length(r, name, given, _EITHER)
            _all(r, name, given, np.isfinite, "of finite values", "find out where it came from")
    if r.token_ids is not None:
        _vector("token_ids", r.token_ids, (np.dtype("int32"),))
        _length(r, "token_ids", r.token_ids, _PER_TOKEN)
        _all(r, "token_ids", r.token_ids, lambda x: x >= 0, "of at least 0", "give the tokenizer's, and no padding")
    for leaf, mask in r.masks.items():
        _vector(f"masks['{leaf}']", mask, (np.dtype("bool"),))
        _length(r, f"masks['{leaf}']", mask, _PER_TOKEN)
    for stratum, labels in r.labels.items():
        _check_labels(r, f"labels['{stratum}']", labels.of, labels.names)


def _check_labels(r: Columns, what: str, of: NDArray[Any], names: tuple[Any, ...]) -> None:
    seen: set[Any] = set()
    for name in names:
        if not _is_name(name):
            _fail(f"names of {what} that are strings, numbers, or tuples of these", shown(name), "name it otherwise")
        if name in seen:
            _fail(f"different names in {what}", f"{name!r} twice", "elements of one name would merge")
        seen.add(name)
    _vector(what, of, (np.dtype("int32"),))
    _length(r, what, of, _EITHER)
    rule = f"in 0 ... {len(names) - 1}, positions in its names, or {NONE} for none"
    _all(r, what, of, lambda x: (x >= NONE) & (x < len(names)), rule, "count from 0")


def _is_name(name: Any) -> bool:
    if isinstance(name, tuple):
        return all(_is_name(part) or part is None for part in name)
    return isinstance(name, (str, int)) or (isinstance(name, float) and np.isfinite(name))


def _check_offsets(r: Columns) -> None:
    offsets = r.offsets
    if len(offsets) < 2:
        _fail("'offsets' of at least one trajectory", f"{len(offsets)} entries", _CUMULATE)
    if offsets[0] != 0:
        _fail("'offsets' that start at 0", f"{offsets[0]}", _CUMULATE)
    for t in np.flatnonzero(np.diff(offsets) < 0)[:1]:
        found = f"{offsets[t]}, then {offsets[t + 1]} at trajectory {t}"
        _fail("'offsets' that never decrease", found, _CUMULATE)
    if offsets[-1] != r.n_tokens:
        _fail(f"'offsets' that end at {r.n_tokens}, the length of 'log_probs'", f"{offsets[-1]}", _CUMULATE)


def _check_policy(name: str) -> None:
    try:
        is_passed = Policy(name).is_passed
    except SpecError as error:
        _fail(f"policies of other names: {error.required}", f"'{name}'", "call the policy otherwise")
    if not is_passed:
        _fail("policies beside current and old", f"'{name}'", "those are 'log_probs' and 'old_log_probs'")


def _vector(name: str, column: Any, dtypes: tuple[np.dtype[Any], ...]) -> None:
    if not isinstance(column, np.ndarray) or column.dtype not in dtypes:
        found = str(column.dtype) if isinstance(column, np.ndarray) else type(column).__name__
        _fail(f"'{name}': an array of {' or '.join(map(str, dtypes))}", found, WRITE)
    if column.ndim != 1:
        _fail(f"'{name}' with one dimension", f"shape {list(column.shape)}", WRITE)


def _length(r: Columns, name: str, column: NDArray[Any], per: str) -> None:
    counts = (r.n_trajectories, r.n_tokens) if per == _EITHER else (r.n_tokens,)
    if len(column) not in counts:
        _fail(f"'{name}' with {' or '.join(map(str, counts))} entries, {per}", f"{len(column)}", WRITE)


def _all(
    r: Columns,
    name: str,
    column: NDArray[Any],
    good: Callable[[NDArray[Any]], NDArray[np.bool_]],
    rule: str,
    remedy: str,
) -> None:
    for k in np.flatnonzero(~good(column))[:1]:
        _fail(f"'{name}' {rule}", f"{column[k]} at {_place(r, column, int(k))}", remedy)


def _place(r: Columns, column: NDArray[Any], k: int) -> str:
    """Returns the place of entry `k` of a column, for messages."""
    if len(column) != r.n_tokens:
        return f"trajectory {k}"
    trajectory = int(np.searchsorted(r.offsets, k, side="right")) - 1
    return f"token {k}, number {k - int(r.offsets[trajectory])} of trajectory {trajectory}"


def _fail(required: str, found: str, remedy: str) -> NoReturn:
    raise RolloutsError("these are no rollouts", required=required, found=found, remedy=remedy)


def check_mapping(name: str, given: object) -> Mapping[str, Any]:
    """Returns `given`, a mapping from names; None becomes an empty one. Raises RolloutsError for another value."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise RolloutsError(f"{name}={shown(given)}", required=f"a mapping from names, {name}={{'...': ...}}")
    return given


# Trainers' names for the arguments of `from_batch`; never names of strata.
MEANT = {
    **dict.fromkeys((*keywords.MASKS, *keywords.WHOLE_MASKS), "mask=, 1 on response tokens alone"),
    **dict.fromkeys(keywords.OFFSETS, "offsets="),
    **dict.fromkeys(keywords.LENGTHS, "offsets=[0, *itertools.accumulate(lengths)]"),
    **dict.fromkeys(("old_log_prob", "old_logprobs", "old_per_token_logps"), "old_log_probs="),
    **dict.fromkeys(("advantage", "adv"), "advantages="),
    **dict.fromkeys(("reward", "scores", "token_level_rewards"), "rewards="),
    **dict.fromkeys(("input_ids", "responses", "completion_ids", "tokens"), "token_ids="),
    **dict.fromkeys(("ref_log_probs", "ref_log_prob", "ref_per_token_logps"), "policies={'reference': ...}"),
    **dict.fromkeys(("rollout_log_probs", "sampling_per_token_logps"), "policies={'rollout': ...}"),
}


def refuse_slips(labels: Mapping[str, Any]) -> None:
    """Raises RolloutsError for a keyword that would become a stratum but is a trainer's name of an argument."""
    for name in labels:
        if name in MEANT:
            raise RolloutsError(
                f"from_batch(..., {name}=...) would be the labels of a stratum '{name}'",
                required="mask=, offsets=, advantages=, rewards=, policies=, token_ids=, and a keyword per stratum",
                remedy=f"write {MEANT[name]}",
            )
