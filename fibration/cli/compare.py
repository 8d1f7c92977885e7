"""`fibration compare`: whether two specs are the same loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fibration.errors import FibrationError
from fibration.laws.equivalent.decide import equivalent
from fibration.printing.reports import Outcome, load_quietly


def compare(
    first: str, second: str, when: Sequence[str], parameters: Mapping[str, Any], timeout: float | None
) -> list[Outcome]:
    """The outcome of a comparison, named after the first spec. An error is named after the spec that causes it."""
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
