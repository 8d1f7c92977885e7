"""The strata that take labels from a trainer's data, and the fields that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from fibration.errors import BatchError, TrainerError, an, listed, shown, suggest
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.pipeline import compile
from fibration.runtime.operator import Operator

Source = TypeVar("Source")  # how a trainer finds labels: the name of a column or field


def wanted(hierarchy: Hierarchy) -> tuple[str, ...]:
    """The strata that take a label per row, finest first, then the groups: all but tokens, rows and the batch."""
    rows, leaves = hierarchy.rows, hierarchy.leaves
    strata = (*reversed(hierarchy.order), *hierarchy.groups)
    return tuple(s.name for s in strata if s not in (*leaves, rows) and s.name != BATCH)


def as_label(value: Any) -> Any:
    """A row's label as a Python value; None for None, NaN, a list or a mapping."""
    if isinstance(value, Tensor) and not value.ndim:
        value = value.item()
    try:
        hash(value)
    except TypeError:
        return None
    return None if isinstance(value, Tensor) or value != value else value


def option(stratum: str) -> str:
    """The Python argument that names the column of a stratum's labels."""
    return f"labels={{{stratum!r}: COLUMN}}"


def check_mapping(argument: str, given: object, example: str) -> None:
    """Raise BatchError for an argument that is neither None nor a mapping. `example`: what to pass."""
    if given is not None and not isinstance(given, Mapping):
        raise BatchError(
            f"{argument}={shown(given)}",
            required="a mapping from names",
            found=an(type(given).__name__),
            remedy=f"{argument}={example}",
        )


def sources(
    hierarchy: Hierarchy,
    given: Mapping[str, Source] | None = None,
    known: Mapping[str, Source] | None = None,
    say: Callable[[str], str] = option,
) -> dict[str, Source]:
    """The source of every stratum's labels: the user's, or else the one that the trainer knows.

    The rows may have a source too: rows of one key are pieces of one trajectory. Known sources of other strata are
    left out. `say`: the option that gives a stratum its source, for errors. Raises TrainerError for a stratum without
    a source, for a source of another stratum, and for a hierarchy whose strata or orders a trainer cannot tell.
    """
    given, known = {} if given is None else given, known or {}
    if not isinstance(given, Mapping):
        raise TrainerError(
            f"labels are {shown(given)}",
            required="a mapping from a stratum to the field of the data that has its labels",
            remedy=next((say(name) for name in wanted(hierarchy) if name not in known), "leave labels out"),
        )
    rows, names = hierarchy.rows.name, wanted(hierarchy)
    refuse_finer(hierarchy)
    if unknown := [name for name in given if name not in (*names, rows)]:
        said = "are not strata" if len(unknown) > 1 else "is not a stratum"
        free = [name for name in names if name not in given]
        raise TrainerError(
            f"labels for {listed(map(repr, unknown))}, which {said} of '{hierarchy.name}' with labels",
            required=f"labels for {listed(names)}" if names else f"none: '{hierarchy.name}' takes no labels",
            found=", ".join(f"{name}={shown(given[name])}" for name in unknown),
            remedy=suggest(str(unknown[0]), free) or f"leave {listed(map(repr, unknown))} out of labels",
        )
    found = {name: given[name] if name in given else known[name] for name in (*names, rows) if name in {*given, *known}}
    for name in names:
        if name not in found:
            raise TrainerError(
                f"no labels for '{name}' of '{hierarchy.name}'",
                required="a source of labels for every stratum coarser than rows",
                found=f"sources for {listed(found or ('nothing',))}",
                remedy=f"name the field of the data that has them: {say(name)}",
            )
    return found


def refuse_finer(hierarchy: Hierarchy) -> None:
    """Raise TrainerError for a hierarchy with strata or orders that a label per row does not tell."""
    where = "call the operator in a loop of your own, as docs/ranks.md shows, with op.index(...)"
    if len(hierarchy.leaves) > 1:
        raise TrainerError(
            f"'{hierarchy.name}' has tokens of several kinds, {listed(leaf.name for leaf in hierarchy.leaves)}",
            required="one kind of tokens: trainers only tell whether a token is masked",
            remedy=where,
        )
    for stratum in hierarchy.order:
        if stratum not in hierarchy.leaves and hierarchy.rows in hierarchy.coarser(stratum):
            raise TrainerError(
                f"'{stratum.name}' of '{hierarchy.name}' lies over '{hierarchy.rows.name}', the rows",
                required="strata coarser than rows: a trainer's data have one label per row, none per token",
                remedy=where,
            )
    for read in hierarchy.ordered:
        if str(read.over) != hierarchy.rows.name:
            raise TrainerError(
                f"{read} of '{hierarchy.name}' is an order over {an(str(read.over))}",
                required=f"orders over '{hierarchy.rows.name}', the rows: a trainer does not tell the position of a "
                f"token in {read.over}",
                remedy="call the operator in a loop of your own, with op.index(positions=...)",
            )


def as_operator(hierarchy: Hierarchy | Operator | str, backend: str | None = None) -> Operator:
    """A compiled operator, from an operator, a hierarchy, or a name (`path.py:NAME`, a JSON file, a shipped name).

    `backend`: as in `fibration.compile`. Raises TrainerError for anything else, and for an operator that was compiled
    for another backend.
    """
    if isinstance(hierarchy, Operator):
        if backend not in (None, "auto", hierarchy.backend):
            raise TrainerError(
                f"backend={backend!r} for an operator that is already compiled",
                required=f"{hierarchy.backend!r}, its backend; or its hierarchy",
                remedy="leave backend out",
            )
        return hierarchy
    if isinstance(hierarchy, str):
        hierarchy = load(hierarchy)
    if not isinstance(hierarchy, Hierarchy):
        raise TrainerError(
            f"the hierarchy is {an(type(hierarchy).__name__)}",
            required="a Hierarchy, a compiled operator, or a name: path.py:NAME, path.json, a shipped one",
        )
    return compile(hierarchy, backend or "auto")
