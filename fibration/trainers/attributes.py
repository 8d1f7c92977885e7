"""The numbers that a hierarchy's attributes take from a trainer's data, and the fields that have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fibration.errors import TrainerError, an, listed, shown, suggest
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy

Source = TypeVar("Source")  # how a trainer finds numbers: the name of a column or field


def is_per_token(hierarchy: Hierarchy, attribute: Attribute) -> bool:
    """Whether an attribute has a number per token."""
    return attribute.on in hierarchy.leaves


def attribute_option(name: str) -> str:
    """The Python argument that names the column of an attribute."""
    return f"attributes={{{name!r}: COLUMN}}"


def attribute_sources(
    hierarchy: Hierarchy,
    given: Mapping[str, Source] | None = None,
    of_tokens: Mapping[str, Source] | None = None,
    of_rows: Mapping[str, Source] | None = None,
    say: Callable[[str], str] = attribute_option,
) -> dict[str, Source]:
    """The source of every attribute: the user's, or else the one that the trainer knows.

    `of_tokens`, `of_rows`: what the trainer knows, by the names of attributes of tokens and of other strata. `say`: the
    option that gives an attribute its source, for errors. Raises TrainerError for an attribute without a source, for a
    source of another attribute, and for an attribute of the batch.
    """
    given, names = {} if given is None else given, hierarchy.attributes
    if not isinstance(given, Mapping):
        raise TrainerError(
            f"attributes are {shown(given)}",
            required="a mapping from an attribute to the field of the data that has its numbers",
            remedy=next(map(say, names), "leave attributes out"),
        )
    if unknown := [name for name in given if name not in names]:
        raise TrainerError(
            f"numbers for {listed(map(repr, unknown))}, which '{hierarchy.name}' does not read",
            required=f"numbers for {listed(names)}" if names else f"none: '{hierarchy.name}' has no attributes",
            remedy=suggest(str(unknown[0]), names) or f"leave {listed(map(repr, unknown))} out of attributes",
        )
    found: dict[str, Source] = {}
    for name, attribute in names.items():
        if attribute.on.name == BATCH:
            raise TrainerError(
                f"'{hierarchy.name}' reads the attribute '{name}' of the batch",
                required="attributes of tokens, rows, groups and strata with labels: a trainer's data have none of a "
                "batch",
                remedy=f"declare {name} = Parameter({name!r}, default=...), and set it in parameters",
            )
        known = (of_tokens if is_per_token(hierarchy, attribute) else of_rows) or {}
        if name not in given and name not in known:
            raise TrainerError(
                f"no numbers for the attribute '{name}' of {an(attribute.on.name)}, which '{hierarchy.name}' reads",
                required="a source of numbers for every attribute",
                found=f"sources for {listed({*given, *found} or ('nothing',))}"
                + (f"; the trainer knows {listed(known)} by name" if known else ""),
                remedy=f"name the field of the data that has them: {say(name)}",
            )
        found[name] = {**known, **given}[name]
    return found


def as_number(value: Any) -> float | None:
    """A row's number as a float; None for what is no finite number."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if math.isfinite(found) else None


def numbers_of_rows(attribute: Attribute, given: Sequence[Any], used: Sequence[int], field: str, fix: str) -> Tensor:
    """A number per row, float64 `[B]`; NaN in rows outside `used`, which nothing reads.

    `field`: where the numbers are, and `fix`: what to do where one is missing, for errors. Raises TrainerError with the
    first row in `used` that has none.
    """
    found = torch.full((len(given),), torch.nan, dtype=torch.float64)
    for row in used:
        number = as_number(given[row])
        if number is None:
            raise no_number(attribute, f"row {row} has {shown(given[row])} in {field}", fix)
        found[row] = number
    return found


def numbers_of_tokens(attribute: Attribute, given: Tensor, mask: Tensor, field: str, fix: str) -> Tensor:
    """A number per token, float64 `[B, T]` on the CPU. Raises TrainerError with the first unmasked token that has none.

    `given`: `[B, T]`. `mask`: bool `[B, T]`.
    """
    values, there = given.detach().cpu().double(), mask.cpu().bool()
    wrong = there & ~values.isfinite()
    if wrong.any():
        row, token = wrong.nonzero()[0].tolist()
        what = f"token {token} of row {row} has {float(values[row, token]):g} in {field}"
        raise no_number(attribute, what, fix, "unmasked token")
    return values


def no_number(attribute: Attribute, what: str, fix: str, of: str = "row with an unmasked token") -> TrainerError:
    return TrainerError(
        f"{what}, the source of the attribute '{attribute.name}' of {an(attribute.on.name)}",
        required=f"a finite number for every {of}",
        remedy=fix,
    )


def indexed(
    hierarchy: Hierarchy, numbers: Mapping[str, Tensor], labels: Mapping[str, Sequence[Any]], mask: Tensor
) -> dict[str, Any]:
    """What `op.index(attributes=...)` takes, from numbers per row `[B]` or per token `[B, T]`.

    `labels`: of this rank's rows, by stratum. An attribute of a coarser stratum takes one number per label: rows with
    one label must agree. Raises TrainerError with two rows that do not.
    """
    found: dict[str, Any] = {}
    used = mask.any(1).nonzero()[:, 0].tolist()
    for name, values in numbers.items():
        attribute = hierarchy.attributes[name]
        stratum = attribute.on.name
        if is_per_token(hierarchy, attribute) or attribute.on == hierarchy.rows:
            found[name] = values
            continue
        known: dict[Any, tuple[float, int]] = {}
        for row in used:
            label, number = labels[stratum][row], float(values[row])
            other, first = known.setdefault(label, (number, row))
            if other != number:
                raise TrainerError(
                    f"rows {first} and {row} of {stratum} {label!r} have {other:g} and {number:g} for its attribute "
                    f"'{name}'",
                    required=f"one number for all rows of {an(stratum)}",
                    remedy=f"give them the same number, or declare Attribute({name!r}, on={hierarchy.rows})",
                )
        found[name] = {label: number for label, (number, _) in known.items()}
    return found
