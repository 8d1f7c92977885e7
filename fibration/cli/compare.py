"""`fibration compare`: whether two specs are the same loss, or which shipped loss a spec is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fibration.errors import FibrationError, ParameterError, SpecError, listed
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report
from fibration.laws.budget import Budget
from fibration.laws.equivalent.decide import STATEMENT, Comparison, Comparisons, equivalent
from fibration.laws.equivalent.neighbours import Neighbour, nearest
from fibration.laws.verify import OUT_OF_TIME
from fibration.printing.reports import Outcome, load_quietly

MOST = 3  # nearest losses that are listed


@dataclass(frozen=True)
class Settings:
    """The options of a comparison."""

    when: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    at_defaults: bool = False
    ignore_advantages: bool = False
    timeout: float | None = None


def compare(first: str, second: str | None, with_all: bool, settings: Settings) -> list[Outcome]:
    """The outcome of a comparison, named after the first spec. An error is named after the spec that causes it."""
    _check(first, second, with_all, settings)
    blamed = first
    try:
        one = load_quietly(first)
        if second is None:
            return [Outcome(first, report=_with_all(one, settings), asked="compare")]
        blamed = second
        other = load_quietly(second)
        blamed = first
        report = equivalent(
            one, other, settings.when, parameters=settings.parameters, match=settings.match,
            at_defaults=settings.at_defaults, ignore_advantages=settings.ignore_advantages, timeout=settings.timeout,
        )  # fmt: skip
        return [Outcome(first, report=report, asked="compare")]
    except FibrationError as error:
        return [Outcome(blamed, error=error, asked="compare")]


def _check(first: str, second: str | None, with_all: bool, settings: Settings) -> None:
    if second is None and not with_all:
        raise SpecError(
            f"'{first}' is compared with nothing",
            required="a second SPEC, or --with-all for the shipped losses",
            remedy=f"fibration compare {first} --with-all; or fibration compare {first} SPEC",
        )
    if second is not None and with_all:
        raise SpecError(
            f"--with-all compares '{first}' with every shipped loss, and '{second}' is one SPEC",
            required="a second SPEC or --with-all",
            remedy="leave one of them out",
        )
    given = {"--when": settings.when, "--param": settings.parameters, "--match": settings.match}
    found = [name for name, value in {**given, "--at-defaults": settings.at_defaults}.items() if value]
    if with_all and found:
        raise SpecError(
            f"--with-all takes no {found[0]}",
            required="--ignore-advantages or --timeout, since shipped losses have different names",
            found=", ".join(found),
            remedy="compare with one shipped loss: name it in the place of --with-all",
        )


def _with_all(h: Hierarchy, settings: Settings) -> Report:
    """The report on a loss beside all shipped losses: proved if it is one of them, else with the nearest ones."""
    budget, found = Budget(settings.timeout), list[Neighbour]()
    given = " with advantages given to both" if settings.ignore_advantages else ""
    subject = f"any shipped loss{given}"
    if not budget.allows(lambda: found.extend(nearest(h, ignore_advantages=settings.ignore_advantages))):
        late = f"{OUT_OF_TIME} after {budget.seconds:g} s"
        more = f"give it more: --timeout {10 * budget.seconds:g}"
        return Comparisons(
            h, (Comparison("equivalent", subject, "undecided", "", STATEMENT, late, more, out_of_time=True),)
        )
    same = [n for n in found if n.is_same]
    if same:
        names = listed(str(n).replace("`", "'") for n in same)
        return Comparisons(h, (Comparison("equivalent", f"{names}{given}", "proved", "part by part"),))
    told = "\n".join(map(str, found[:MOST]))
    remedy = "a batch that tells them apart: fibration compare SPEC " + (found[0].name if found else "grpo")
    near = f"nearest: {told}" if found else "no shipped loss is near: each differs in more than three parts"
    return Comparisons(h, (Comparison("equivalent", subject, "undecided", "", STATEMENT, near, remedy),))


def matches(given: Sequence[str], numbers: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    """Reads `NAME=NAME` (equal parameters), `NAME=VALUE` (a fixed one) and `NAME=FORMULA` (in the other's)."""
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        found |= {name: value} if value and not value.startswith("{") and not _is_number(value) else numbers([text])
    return found


def names(given: Sequence[str]) -> dict[str, str]:
    """Reads `NAME=NAME` of `--match`. Raises ParameterError for anything else."""
    found: dict[str, str] = {}
    for text in given:
        name, _, other = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and other.isidentifier()):
            raise ParameterError(
                f"--match {text!r} cannot be read",
                required="NAME=NAME: a name of the first loss, and one of the second",
                remedy="for example --match epsilon_low=eps_lo; numbers and formulas are for --param",
            )
        if name in found:
            raise ParameterError(
                f"--match gives '{name}' twice",
                required="one partner for each name",
                found=f"{found[name]} and {other}",
            )
        found[name] = other
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
