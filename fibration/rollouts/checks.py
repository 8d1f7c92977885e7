"""The rules that every batch of recorded rollouts obeys, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fibration.errors import RolloutsError, SpecError, shown
from fibration.language import keywords
from fibration.language.declared import Policy
from fibration.rollouts.labels import NONE
from fibration.rollouts.layout import POSITIVE

Test = tuple[Callable[[Any], Any], str, str]  # of the values of a column: whether each is right, the rule, the remedy
FLOATS = ("float32", "float64")
WRITE = "Rollouts.from_batch(...) makes such rollouts of a trainer's tensors"
_CUMULATE = "'offsets' are the cumulative lengths of the trajectories, after a 0"
_PER_TOKEN, _EITHER = "one per token", "one per trajectory or one per token"


class Column(NamedTuple):
    """The rule of a column: its dtypes, how many entries it has, and what its values are."""

    dtypes: tuple[str, ...]
    per: str
    tests: tuple[Test, ...] = ()


_FINITE: Test = (np.isfinite, "of finite values", "find out where it came from")
_AT_MOST_0: Test = (lambda x: x <= POSITIVE, "of at most 0", "give natural logs of probabilities")
_IDS: Test = (lambda x: x >= 0, "of at least 0", "give the tokenizer's, and no padding")
_LOG_PROBS, _NUMBERS = Column(FLOATS, _PER_TOKEN, (_FINITE, _AT_MOST_0)), Column(FLOATS, _EITHER, (_FINITE,))
COLUMNS = {  # in the order in which they are checked
    "log_probs": _LOG_PROBS,
    "old_log_probs": _LOG_PROBS,
    "policies": _LOG_PROBS,
    "advantages": _NUMBERS,
    "rewards": _NUMBERS,
    "attributes": _NUMBERS,
    "token_ids": Column(("int32",), _PER_TOKEN, (_IDS,)),
    "masks": Column(("bool",), _PER_TOKEN),
    "labels": Column(("int32",), _EITHER),
}


def check(r: Any) -> None:
    """Raises RolloutsError for the first broken rule, with the column and its first wrong token or trajectory.

    `r`: `Rollouts`, or what has its columns.
    """
    _vector("offsets", r.offsets, ("int64",))
    _vector("log_probs", r.log_probs, FLOATS)
    _check_offsets(r)
    for name in r.policies:
        _check_policy(name)
    for name, column, rule in _columns(r):
        _vector(name, column, rule.dtypes)
        counts = (r.n_trajectories, r.n_tokens) if rule.per == _EITHER else (r.n_tokens,)
        if len(column) not in counts:
            _fail(f"'{name}' with {' or '.join(map(str, counts))} entries, {rule.per}", f"{len(column)}", WRITE)
        for good, words, remedy in rule.tests:
            for k in np.flatnonzero(~good(column))[:1]:
                _fail(f"'{name}' {words}", f"{column[k]} at {_place(r, column, int(k))}", remedy)


def _columns(r: Any) -> Iterator[tuple[str, Any, Column]]:
    """The columns that were recorded, with their names in messages and their rules."""
    for field, rule in COLUMNS.items():
        given = getattr(r, field)
        if not isinstance(given, Mapping):
            given = {None: given}
        for key, column in given.items():
            name = field if key is None else f"{field}['{key}']"
            if field == "labels":
                yield name, column.of, rule._replace(tests=(_of_names(name, column.names),))
            elif column is not None:
                yield name, column, rule


def _of_names(what: str, names: tuple[Any, ...]) -> Test:
    """The rule of labels with these names. Raises RolloutsError for names that are none, or equal."""
    seen: set[Any] = set()
    for name in names:
        if not _is_name(name):
            _fail(f"names of {what} that are strings, numbers, or tuples of these", shown(name), "name it otherwise")
        if name in seen:
            _fail(f"different names in {what}", f"{name!r} twice", "elements of one name would merge")
        seen.add(name)
    rule = f"in 0 ... {len(names) - 1}, positions in its names, or {NONE} for none"
    return (lambda x: (x >= NONE) & (x < len(names)), rule, "count from 0")


def _is_name(name: Any) -> bool:
    if isinstance(name, tuple):
        return all(_is_name(part) or part is None for part in name)
    return isinstance(name, (str, int)) or (isinstance(name, float) and np.isfinite(name))


def _check_offsets(r: Any) -> None:
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


def _vector(name: str, column: Any, dtypes: tuple[str, ...]) -> None:
    if not isinstance(column, np.ndarray) or column.dtype not in dtypes:
        found = str(column.dtype) if isinstance(column, np.ndarray) else type(column).__name__
        _fail(f"'{name}': an array of {' or '.join(dtypes)}", found, WRITE)
    if column.ndim != 1:
        _fail(f"'{name}' with one dimension", f"shape {list(column.shape)}", WRITE)


def _place(r: Any, column: NDArray[Any], k: int) -> str:
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
