"""`fibration compare`: whether two specs are the same loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fibration.configs.options import TrainerLoss
from fibration.configs.specs import as_specs
from fibration.errors import FibrationError, SpecError
from fibration.language.hierarchy import Hierarchy
from fibration.language.pairs import with_numbers
from fibration.laws.equivalent.decide import equivalent
from fibration.printing.reports import Outcome, loss_quietly

FROM_ADVANTAGES = "Compared are losses of advantages: '{}' makes them of rewards, {}, and '{}' is given them."


def compare(
    words: Sequence[str], when: Sequence[str], parameters: Mapping[str, Any], timeout: float | None
) -> list[Outcome]:
    """The outcome of a comparison, named after the first spec. An error is named after the spec that causes it.

    `words`: two SPECs. The parameters of a trainer's config have the config's numbers, unless `parameters` says more.
    If only one of the two makes its advantages of rewards, and is a config, then what they do with advantages is
    compared.
    """
    specs = as_specs(words)
    if len(specs) != 2:
        found = ", ".join(f"'{spec.name}'" for spec in specs)
        raise SpecError("two losses are compared", required="two SPECs", found=found)
    blamed = first = specs[0].name
    try:
        one = loss_quietly(specs[0])
        blamed = specs[1].name
        other = loss_quietly(specs[1])
        blamed = first
        a, b, note = _of_advantages(one.hierarchy, other.hierarchy, [bool(spec.trainer) for spec in specs])
        around = [
            sentence for loss, spec in zip((one, other), specs, strict=True) for sentence in _around(loss, spec.trainer)
        ]
        if all(spec.trainer for spec in specs):
            a, b = (with_numbers(h, _numbers(h, parameters)) for h in (a, b))
            b = b.replace(name=f"{b.name}_2") if a.name == b.name else b
        else:
            for h, spec in zip((a, b), specs, strict=True):
                parameters = {**(_numbers(h, parameters) if spec.trainer else {}), **parameters}
        report = equivalent(a, b, when, parameters=parameters, timeout=timeout)
        return [Outcome(first, report=report, asked="compare", around=(*note, *around))]
    except FibrationError as error:
        return [Outcome(blamed, error=error, asked="compare")]


def _numbers(h: Hierarchy, given: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a config's parameters, without those that the user matches or fixes."""
    matched = {*given, *(value for value in given.values() if isinstance(value, str))}
    return {
        name: p.default
        for name, p in h.parameters.items()
        if name not in matched and isinstance(p.default, float | int)
    }


def _of_advantages(
    one: Hierarchy, other: Hierarchy, configs: Sequence[bool]
) -> tuple[Hierarchy, Hierarchy, tuple[str, ...]]:
    """Two hierarchies that both make advantages of rewards, or both do not, and a sentence if one was changed."""
    pair = [one, other]
    for k in (0, 1):
        h, beside = pair[k], pair[1 - k]
        if configs[k] and h.advantages is not None and beside.advantages is None:
            pair[k] = h.replace(advantages=None, gives_up={})
            return pair[0], pair[1], (FROM_ADVANTAGES.format(h.name, h.advantages, beside.name),)
    return one, other, ()


def _around(loss: TrainerLoss, trainer: str) -> list[str]:
    return [f"{trainer}: {sentence}" for sentence in loss.around]


def matches(given: Sequence[str], numbers: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    """Reads `NAME=NAME` (equal parameters), `NAME=VALUE` (a fixed one) and `NAME=FORMULA` (in the other's)."""
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        found |= {name: value} if value and not value.startswith("{") and not _is_number(value) else numbers([text])
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
