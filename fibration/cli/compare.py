"""`fibration compare`: whether two specs are the same loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fibration.errors import FibrationError
from fibration.language.declared import NAME
from fibration.laws.equivalent import equivalent
from fibration.printing.reports import Outcome, load_quietly


def compare(
    first: str, second: str, when: Sequence[str], parameters: Mapping[str, Any], timeout: float | None
) -> list[Outcome]:
    """The report on two specs, in the place of the first; an error is of the spec that cannot be used."""
    blamed = first
    try:
        one = load_quietly(first)
        blamed = second
        other = load_quietly(second)
        blamed = first
        report = equivalent(one, other, when, parameters=parameters, timeout=timeout)
        return [Outcome(first, report=report, asked="compare")]
    except FibrationError as error:
        return [Outcome(blamed, error=error, asked="compare")]


def matches(given: Sequence[str], numbers: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    """`NAME=NAME` for parameters that are one, `NAME=VALUE` for those that are fixed."""
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        found |= {name: value} if NAME.match(value) and value not in ("inf", "infinity", "nan") else numbers([text])
    return found
