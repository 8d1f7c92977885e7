"""What a hierarchy takes from a trainer: labels, numbers of attributes, log-probs of policies, values of parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fibration.compiler.lower import lower
from fibration.errors import BatchError, TrainerError, an, listed, shown, suggest
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.pipeline import compile
from fibration.runtime.operator import Operator
from fibration.runtime.parameters import (
    given_values,
    in_channel,
    in_order,
    is_channels,
    is_several,
    mixed,
    refuse_lacking,
    without_labels,
)

# The Python arguments that name the source of a stratum's labels, of an attribute, and of a policy's log-probs.
label_option, attribute_option = "labels={{{!r}: COLUMN}}".format, "attributes={{{!r}: COLUMN}}".format
policy_option = "policies={{{!r}: MODEL}}".format
Source = TypeVar("Source")  # how a trainer finds labels or numbers: the name of a column or field


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


def _mapping(argument: str, given: Any, of: str, remedy: str) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TrainerError(f"{argument} are {shown(given)}", required=f"a mapping from {of}", remedy=remedy)
    return given or {}


def check_mapping(argument: str, given: object, example: str) -> None:
    """Raise BatchError for an argument that is neither None nor a mapping. `example`: what to pass."""
    if given is not None and not isinstance(given, Mapping):
        raise BatchError(
            f"{argument}={shown(given)}",
            required="a mapping from names",
            found=an(type(given).__name__),
            remedy=f"{argument}={example}",
        )


def label_sources(
    hierarchy: Hierarchy,
    given: Mapping[str, Source] | None = None,
    known: Mapping[str, Source] | None = None,
    say: Callable[[str], str] = label_option,
) -> dict[str, Source]:
    """The source of every stratum's labels: the user's, or else the one that the trainer knows.

    The rows may have a source too: rows of one key are pieces of one trajectory. Known sources of other strata are
    left out. `say`: the option that gives a stratum its source, for errors. Raises TrainerError for a stratum without
    a source, for a source of another stratum, and for a hierarchy whose strata or orders a trainer cannot tell.
    """
    rows, names, known = hierarchy.rows.name, wanted(hierarchy), known or {}
    remedy = next((say(name) for name in names if name not in known), "leave labels out")
    given = _mapping("labels", given, "a stratum to the field of the data that has its labels", remedy)
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


# ---------------------------------------------------------------- attributes


def is_per_token(hierarchy: Hierarchy, attribute: Attribute) -> bool:
    """Whether an attribute has a number per token."""
    return attribute.on in hierarchy.leaves


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
    names = hierarchy.attributes
    remedy = next(map(say, names), "leave attributes out")
    given = _mapping("attributes", given, "an attribute to the field of the data that has its numbers", remedy)
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


# ---------------------------------------------------------------- policies

# Names of trainers' policies in hierarchies, beside the current and the old one.
ROLLOUT = "rollout"  # the engine that samples
REFERENCE = "reference"  # the frozen model of a KL penalty


def passed(hierarchy: Hierarchy) -> tuple[str, ...]:
    """The policies whose log-probs a call takes beside those that all calls take."""
    return tuple(name for name, policy in hierarchy.policies.items() if policy.is_passed)


def check_policies(
    hierarchy: Hierarchy,
    known: Mapping[str, str],
    given: Mapping[str, Any] | None = None,
    say: Callable[[str], str] = policy_option,
) -> None:
    """Raise TrainerError if a hierarchy reads a policy of which the trainer has no log-probs, and if the user gives a
    policy that the hierarchy does not read, or that the trainer has itself.

    `known`: the trainer's policies, hierarchy name → description. `given`: the user's policies, by name. `say`: the
    option that gives a policy, for errors.
    """
    reads = passed(hierarchy)
    further = [name for name in reads if name not in known]
    remedy = next(map(say, further), "leave policies out")
    given = _mapping("policies", given, "the name of a policy to what gives its log-probs", remedy)
    for name in further:
        if name not in given:
            raise TrainerError(
                f"'{hierarchy.name}' reads log_prob({name}), and the trainer has no log-probs of a policy '{name}'",
                required=f"{listed(f'{own!r}, {what}' for own, what in known.items())}, beside current and old; or "
                "log-probs that you give",
                remedy=f"{say(name)}; or name it {ROLLOUT} if it sampled, {REFERENCE} if it is the trainer's reference "
                "model",
            )
    for name in given:
        if name not in further:
            raise TrainerError(
                f"log-probs of the policy '{name}', which '{hierarchy.name}' does not read"
                if name not in reads
                else f"log-probs of the policy '{name}', which the trainer has: {known[name]}",
                required=f"log-probs of {listed(further)}"
                if further
                else f"none: '{hierarchy.name}' reads no further policy",
                remedy=suggest(str(name), further) or f"leave {name!r} out of policies"
                if name not in reads
                else f"leave it out, or read another name in the hierarchy: log_prob(second_{name})",
            )


TWICE = {
    REFERENCE: "two penalties would keep the policy near it",
    ROLLOUT: "the rollout mismatch would be corrected twice",
}


def read_twice(hierarchy: Hierarchy, policy: str, found: str, remedy: str) -> TrainerError:
    """The error for a term of the trainer that does with a policy what the hierarchy, which reads it, does too."""
    what = f"'{hierarchy.name}' reads log_prob({policy}), and {found}: {TWICE[policy]}"
    return TrainerError(what, required="one of them", remedy=remedy)


# ---------------------------------------------------------------- parameters


def check_parameters(
    hierarchy: Hierarchy, parameters: Mapping[str, Any], labelled: Collection[str] | None = None
) -> None:
    """Raise ParameterError for errors that need no batch: unknown names, missing values, values out of bounds,
    channels, and values by label of strata without labels.

    `labelled`: the strata whose labels the user knows; default: all that take labels.
    """
    labelled = wanted(hierarchy) if labelled is None else labelled
    values = given_values(hierarchy, lower(hierarchy), parameters)
    for node, value in values.items():
        parameter, channel = hierarchy.parameters[node.key[0]], node.key[1]
        each = value.values() if isinstance(value, Mapping) and is_channels(value) else [value]
        if any(map(is_several, each)):
            raise in_order(parameter, node.over, value, "a number, or values by label")
        if _is_by_label(value):
            if {"+", "-"} & set(value):
                raise mixed(parameter, value)
            if node.over not in labelled:
                raise without_labels(parameter, node.over, value)
            for label, one in value.items():
                in_channel(parameter, channel, one, f"the value of {node.over} {label!r}")
        else:
            in_channel(parameter, channel, value, "the value")


def check_labelled(
    hierarchy: Hierarchy, parameters: Mapping[str, Any], stratum: str, labels: Collection[Any], of: str
) -> None:
    """Raise ParameterError if values by label lack one of all `labels` in the data; `of` names the data."""
    for node, value in given_values(hierarchy, lower(hierarchy), parameters).items():
        if node.over == stratum and _is_by_label(value):
            refuse_lacking(hierarchy.parameters[node.key[0]], stratum, value, labels, of, known=True)


def at_ratio_one(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that fit the labels of any batch at a ratio of 1: an element without a value takes another's.

    Gates keep a ratio of 1, whatever their parameters.
    """
    found = dict(parameters)
    for name, value in parameters.items():
        if _is_by_label(value):
            found[name] = {None: next(iter(value.values())), **value}
    return found


def _is_by_label(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and not is_channels(value)


# ---------------------------------------------------------------- rows without a gradient


def readers_by_loss(hierarchy: Hierarchy) -> Iterator[str]:
    """Terms of the loss that rows get without an advantage, and assumptions that a part of the rows could break."""
    for name in hierarchy.penalties:
        yield f"every row gets the penalty '{name}' of '{hierarchy.name}'"
    for assumed in hierarchy.assume:
        yield f"'{hierarchy.name}' assumes {assumed!r} of all rows"
    for of, over in hierarchy.others:
        yield f"'{hierarchy.name}' compares each {of} with the others of its {over}"


def readers_by_model(model: nn.Module) -> Iterator[str]:
    """Layers in which a row changes the outputs of other rows."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"rows share the statistics of the layer '{name}', a {type(module).__name__}"
        for word, value in vars(module).items():
            if "capacity" in word and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield f"rows share the places of an expert in '{name}' ({word}={value})"


def log_readers(reasons: Collection[str]) -> None:
    """Log why all rows are trained on, if there are reasons."""
    if reasons:
        logging.getLogger(__name__).warning("all rows are trained on, dead rows too: %s", "; ".join(reasons))
