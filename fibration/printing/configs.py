"""What a report on a trainer's config says beside its laws: what is off in the config, and what surrounds its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fibration.configs.findings import NOTE, ConfigReport, Finding, Severity
from fibration.configs.options import TrainerLoss
from fibration.language.report import Report, Verdict

OFF = "what is off in this config"
BESIDE = "what is done around these losses"  # in a comparison


def title(trainer: str) -> str:
    """Returns the heading above what a trainer does around a loss, or what is said of one without a trainer."""
    return f"what {trainer} does around this loss" if trainer else "how this loss was read"


def off(report: Report) -> tuple[Finding, ...]:
    """Returns what is off in a config, the gravest first; nothing for a loss that no config declares."""
    return report.off if isinstance(report, ConfigReport) else ()


def severity(report: Report, verdict: Verdict) -> Severity | None:
    """Returns how grave a law is that the loss of a config breaks; None for any other verdict."""
    if verdict.accepted and verdict.status != "proved":
        return next((f.severity for f in off(report) if f.laws and f.sentence == verdict.given_up), None)
    return None


def without_law_notes(loss: TrainerLoss) -> tuple[Finding, ...]:
    """Returns the findings for a command that proves nothing: all but notes on laws, which the hierarchy has."""
    return tuple(finding for finding in loss.findings if finding.severity != NOTE or not finding.laws)


def lines(heading: str, findings: Sequence[Finding], of: str = "", say_off: bool = True) -> Iterator[str]:
    """Yields headings, and findings that begin with blanks, the gravest first.

    `of`: the config, which headings name if there are several. `say_off`: False where a table has what is off.
    """
    of = f"{of}: " if of else ""
    if said := [str(finding) for finding in findings if finding.is_off and say_off]:
        yield f"{of}{OFF}"
        yield from (f"  {sentence}" for sentence in said)
    if said := [finding.sentence for finding in findings if not finding.is_off]:
        yield f"{of}{heading}"
        yield from (f"  {sentence}" for sentence in said)
