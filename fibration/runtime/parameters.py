"""The parameter values of one call, checked against their bounds: one number, or one per element."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fibration.cache import Recent
from fibration.compiler.ir import Input
from fibration.compiler.program import Program
from fibration.errors import ParameterError, listed, looks_like, shown
from fibration.language.atoms import BATCH, Parameter
from fibration.language.hierarchy import Hierarchy
from fibration.runtime import devices
from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex

Numbers = NDArray[np.float64]
Values = Mapping[Input, Numbers]  # [1], or [elements]
CHANNELS = ("+", "-")


def parameter_values(hierarchy: Hierarchy, program: Program, index: Index, given: Mapping[str, Any]) -> Values:
    """The numbers of every parameter input, checked; docs/operator.md lists the accepted forms."""
    if isinstance(index, MicroIndex):  # labels of the whole step decide which label of a mapping is a typo
        whole = parameter_values(hierarchy, program, index.whole, given)
        return {n: v if len(v) == 1 else v[index.elements[n.over]] for n, v in whole.items()}

    def make() -> tuple[Program, Values]:
        values = given_values(hierarchy, program, given)
        return program, {
            node: input_numbers(hierarchy.parameters[node.key[0]], node.key[1], node.over, index, value)
            for node, value in values.items()
        }

    if type(given) is dict and all(type(v) is float or (type(v) is int and abs(v) < LARGE) for v in given.values()):
        # one number for all elements means the same on every index; the program is kept, so that no other gets its id
        return _CHECKED.get(f"{id(program)} {plain(given)!r}", make)[1]
    return make()[1]


def given_values(hierarchy: Hierarchy, program: Program, given: Mapping[str, Any]) -> dict[Input, Any]:
    """The value, or else the default, of every parameter input. Raises ParameterError if an input has neither."""
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"parameters are {shown(given)}", required="a mapping from name to value", remedy="{'epsilon': 0.05}"
        )
    for name in given:
        if name not in hierarchy.parameters:
            known = ", ".join(hierarchy.parameters) or "none"
            raise ParameterError(f"'{hierarchy.name}' has no parameter '{name}'", required=f"one of {known}")
    result: dict[Input, Any] = {}
    for node in program.inputs:
        if node.kind == "parameter":
            parameter = hierarchy.parameters[node.key[0]]
            value = given.get(parameter.name, parameter.default)
            if parameter.name in given and value is None:
                raise ParameterError(
                    f"parameter '{parameter.name}' of '{hierarchy.name}' is None",
                    required="a number",
                    remedy="leave it out to use the default",
                )
            if value is None:
                raise ParameterError(
                    f"parameter '{parameter.name}' of '{hierarchy.name}' has no value",
                    required="a default or a value",
                    remedy=f"pass parameters={{'{parameter.name}': ...}}",
                )
            result[node] = value
    return result


Vectors = tuple[Mapping[Input, Tensor], Mapping[Input, float]]  # of every parameter input, and the largest of each


def parameter_vectors_of(hierarchy: Hierarchy, program: Program, index: Index, given: Mapping[str, Any]) -> Vectors:
    """The vectors of every parameter input, checked. Plain numbers that equal the last call's are not checked again.

    The largest number of each is that of the whole step.
    """

    def make() -> Vectors:
        values = parameter_values(hierarchy, program, index, given)
        step = index.whole if isinstance(index, MicroIndex) else None
        whole = values if step is None else parameter_values(hierarchy, program, step, given)
        largest = {n: max(0.0, float(v[0])) if len(v) == 1 else float(v.max(initial=0.0)) for n, v in whole.items()}
        return parameter_vectors(values, index), largest

    numbers = None if devices.is_recording() else plain(given)
    if numbers is None:
        return make()
    last: dict[object, tuple[Program, Vectors]]
    last = index.kept(("parameters", id(program)), dict)  # keeps the program, so that no other gets its id
    if numbers not in last:
        found = make()
        last.clear()
        last[numbers] = program, found
    return last[numbers][1]


def plain(given: object) -> object:
    """A cache key for plain numbers and mappings of them; None for any other value."""
    if type(given) in (float, int):
        return type(given), given or repr(given)  # 0.0 and -0.0 differ
    if type(given) is not dict:
        return None
    found = tuple((key, plain(value)) for key, value in given.items())
    return None if any(value is None for _, value in found) else found


_MADE: Recent[tuple[Tensor, ...]] = Recent(32)
LARGE = 2**53  # Python refuses to write whole numbers of some thousand digits
_CHECKED: Recent[tuple[Program, Values]] = Recent(32)


def parameter_vectors(values: Values, index: Index) -> dict[Input, Tensor]:
    """Each input as a float64 vector `[elements of its stratum]`, on the device of the index.

    One copy from the host moves all of them. It is cached for later calls with these numbers.
    """
    numbers = np.concatenate([*values.values(), np.empty(0)])
    shapes = [(len(given), index.size[node.over]) for node, given in values.items()]

    def make() -> tuple[Tensor, ...]:
        if devices.is_recording():
            raise ParameterError(
                "parameters have values that no call before this CUDA graph had",
                required="values that are on the device already: a recorded graph copies nothing from the host",
                remedy="make one call with these parameters before the recording",
            )
        with torch.inference_mode(False):
            whole = torch.from_numpy(numbers).to(index.device)
            parts = whole.split([given for given, _ in shapes])
            return tuple(part.expand(size) for part, (_, size) in zip(parts, shapes, strict=True))

    key = f"{index.device} {shapes} {hashlib.blake2b(numbers.tobytes()).hexdigest()}"
    made = _MADE.get(key, make)
    if devices.is_recording():
        index.keep(key, made)  # a replayed graph reads them
    return dict(zip(values, made, strict=True))


def input_numbers(parameter: Parameter, channel: str, stratum: str, index: Index, value: Any) -> Numbers:
    """The numbers of one parameter input, one channel of a parameter for a stratum: `[1]`, for all elements, or one per
    element.
    """
    what, accepted = "the value", "a number" + " or {'+': ..., '-': ...}" * bool(channel)
    accepted += f"; that of each {stratum} by label, {{label: ...}}" * (stratum in index.labels)
    if isinstance(value, Mapping) and is_channels(value):
        value, what = _of_channel(parameter, channel, value, what), f"the value of channel '{channel}'"
    if isinstance(value, Mapping):
        return _by_label(parameter, channel, stratum, index, value)
    if is_several(value):
        raise in_order(parameter, stratum, value, accepted)
    if not hasattr(value, "__float__"):
        raise ParameterError(f"parameter '{parameter.name}': {what} is {shown(value)}", required=accepted)
    return np.array([in_channel(parameter, channel, value, what)])


def _by_label(parameter: Parameter, channel: str, stratum: str, index: Index, value: Mapping[Any, Any]) -> Numbers:
    numbers = index.element_numbers.get(stratum)
    if numbers is None:
        raise without_labels(parameter, stratum, value)
    tensors = [label for label in value if isinstance(label, Tensor)]  # a tensor equals no label
    if tensors:
        raise ParameterError(
            f"parameter '{parameter.name}' has a tensor for a label: {shown(tensors[0])}",
            required=f"labels of {stratum} as they were given to the index",
            remedy="write label.item(), or iterate over labels.unique().tolist()",
        )
    if set(CHANNELS) & (set(value) - set(numbers)):
        raise mixed(parameter, value)
    lacking = refuse_lacking(parameter, stratum, value, numbers, "this batch")
    value = {**dict.fromkeys(lacking, value.get(None, parameter.default)), **value}
    found = [value[label] for label in numbers]
    if set(map(type, found)) == {float} and not parameter.is_outside(np.array(found)).any():
        return np.array(found)
    what = f"the value of {stratum}"
    each = zip(numbers, found, strict=True)
    return np.array([in_channel(parameter, channel, v, f"{what} {label!r}") for label, v in each])


def in_order(parameter: Parameter, stratum: str, value: Any, accepted: str) -> ParameterError:
    """The error for a value in the order of elements, which changes with every batch and differs between ranks."""
    found = "an order that changes with every batch"
    if stratum == BATCH:
        found = ""
        remedy = f"declare Parameter('{parameter.name}', on=...) with the stratum over which it varies"
    elif parameter.per_channel and len(value) == 2:
        remedy = f"pass {{'+': ..., '-': ...}} for channels, {{label: ...}} for the labels of {stratum}"
    else:
        remedy = f"pass dict(zip(labels, values)), with the {stratum} label of each value"
    return ParameterError(
        f"parameter '{parameter.name}' is given in the order of elements: {shown(value)}",
        required=accepted,
        found=found,
        remedy=remedy,
    )


def is_several(value: Any) -> bool:
    """Whether a value lists several numbers, or one in a list."""
    if _is_array(value):
        return bool(value.ndim)
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, np.generic))


def floats(parameter: Parameter, value: Any, what: str) -> NDArray[np.float64]:
    """The numbers of a tensor or an array, as float64 on the host."""
    if isinstance(value, Tensor):
        value = _on_host(value)
        if value.dtype.is_complex or value.dtype == torch.bool:
            raise _no_numbers(parameter, what, value.dtype)
        return value.detach().double().numpy()  # type: ignore[no-any-return]
    if value.dtype.kind not in "iuf":
        raise _no_numbers(parameter, what, value.dtype)
    return np.asarray(value, np.float64)


def _no_numbers(parameter: Parameter, what: str, dtype: object) -> ParameterError:
    return ParameterError(
        f"parameter '{parameter.name}': {what} has dtype {dtype}", required="real numbers, which convert to float64"
    )


_READ = WeakTensorKeyDictionary()


def _on_host(value: Tensor) -> Tensor:
    """A tensor on the CPU. A tensor of a GPU is copied once, and again after a change in place."""
    if devices.can_sync(value.device):
        return value
    version = None if value.is_inference() else value._version  # inference tensors have no version counter
    known, numbers = _READ.get(value, (None, None))
    if version is None or version != known:
        numbers = value.detach().to("cpu", copy=True)
        _READ[value] = (version, numbers)
    return numbers  # type: ignore[no-any-return]


def is_channels(value: Mapping[Any, Any]) -> bool:
    return set(value) <= set(CHANNELS) and bool(value)


def in_channel(parameter: Parameter, channel: str, value: Any, what: str) -> float:
    """A number, or one channel of `{"+": ..., "-": ...}` or of a pair. Raises ParameterError naming `what`."""
    if isinstance(value, Mapping):
        value, what = _of_channel(parameter, channel, value, what), f"{what} of channel '{channel}'"
    elif channel and is_several(value) and len(value) == 2:
        value = floats(parameter, value, what) if _is_array(value) else value
        value, what = value[CHANNELS.index(channel)], f"{what} of channel '{channel}'"
    if _is_array(value) and not value.ndim:
        value = float(floats(parameter, value, what))
    if hasattr(value, "to_dict"):
        raise ParameterError(
            f"parameter '{parameter.name}': {what} is a {type(value).__name__}",
            required="numbers by label",
            remedy="pass .to_dict() for a mapping by label",
        )
    return parameter.check(value, what)


def _of_channel(parameter: Parameter, channel: str, value: Mapping[Any, Any], what: str) -> Any:
    if not channel:
        raise ParameterError(
            f"parameter '{parameter.name}': {what} is one number per channel",
            required="one number: it is not declared per channel",
        )
    if set(value) != set(CHANNELS):
        found = f"channels {', '.join(map(repr, value)) or 'none'}"
        raise ParameterError(
            f"parameter '{parameter.name}': {what} lacks a channel", required="both '+' and '-'", found=found
        )
    return value[channel]


def mixed(parameter: Parameter, value: Mapping[Any, Any]) -> ParameterError:
    return ParameterError(
        f"parameter '{parameter.name}' mixes channels and labels: {listed(map(repr, value))}",
        required="'+' and '-' alone, or labels alone, each with one number or both channels",
    )


def without_labels(parameter: Parameter, stratum: str, value: Mapping[Any, Any]) -> ParameterError:
    return ParameterError(
        f"parameter '{parameter.name}' is given per element: {', '.join(map(repr, list(value)[:3])) or 'none'}",
        required="one number",
        found=f"it is read on '{stratum}', whose elements have no labels",
        remedy=f"declare Parameter('{parameter.name}', on=...) with the stratum over which it varies",
    )


def refuse_lacking(
    parameter: Parameter, stratum: str, value: Mapping[Any, Any], labels: Collection[Any], of: str, known: bool = False
) -> list[Any]:
    """The `labels` without a value of their own; they take the value under None, or else the declared default.

    Raises ParameterError if a label has no value at all. A probable typo (`mth` for `math`) is an error too. With
    `known` labels, which are final, every unknown label counts as a typo; in a batch, domains may come and go.
    """
    lacking = [label for label in labels if label not in value]
    if not lacking or None in value:
        return lacking
    strange = [label for label in value if label not in labels]
    slips = [(label, one) for label in lacking for one in strange if known or looks_like(str(one), str(label))]
    if slips or parameter.default is None:
        label = slips[0][0] if slips else lacking[0]
        raise ParameterError(
            f"parameter '{parameter.name}' has no value for the {stratum} {label!r}",
            required=f"one value for each {stratum} of {of}: {', '.join(map(repr, list(labels)[:8]))}",
            found=f"values for {', '.join(map(repr, list(value)[:8])) or 'none'}"
            + (f", and there is no {stratum} {slips[0][1]!r}" if slips else ""),
            remedy="correct the label, or give all labels without a value one under None: "
            f"{{{', '.join(f'{k!r}: ...' for k in [*list(value)[:2], None])}}}",
        )
    return lacking
