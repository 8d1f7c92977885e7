"""What a report on a trainer's config says beside its laws: what is off in the config, and what surrounds its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fibration.language.report import Report

OFF = "what is off in this config"
BESIDE = "what is done around these losses"  # in a comparison


def title(trainer: str) -> str:
    """Returns the heading above what a trainer does around a loss."""
    return f"what {trainer} does around this loss"


# A loss that breaks one of these trains something else from the first update on.
FIRST = ("gradient", "agreement", "mask_open", "kl_gradient")


def findings(report: Report) -> dict[str, list[str]]:
    """Returns the reasons of a config for the laws that its loss breaks, each with these laws; the worst come first."""
    found: dict[str, list[str]] = {}
    for verdict in sorted(report.verdicts, key=lambda v: v.law not in FIRST):
        if verdict.given_up and verdict.status != "proved":
            laws = found.setdefault(verdict.given_up, [])
            laws += [] if verdict.law in laws else [verdict.law]
    return found


def lines(heading: str, around: Sequence[str], report: Report | None = None, of: str = "") -> Iterator[str]:
    """Yields headings, and sentences that begin with blanks. Without a report: what surrounds the loss alone.

    `of`: the config, which headings name if there are several.
    """
    of = f"{of}: " if of else ""
    if report is not None and (found := findings(report)):
        yield f"{of}{OFF}"
        yield from (f"  {reason} ({', '.join(laws)})" for reason, laws in found.items())
    if around:
        yield f"{of}{heading}"
        yield from (f"  {sentence}" for sentence in around)


def as_dict(around: Sequence[str], report: Report, is_config: bool) -> dict[str, Any]:
    """Returns the same for JSON; nothing for a loss that no trainer's config declares."""
    off = [{"reason": reason, "laws": laws} for reason, laws in findings(report).items()] if is_config else []
    return ({"off": off} if is_config else {}) | ({"around": list(around)} if around or is_config else {})
