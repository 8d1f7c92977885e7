"""`fibration report`: one HTML file about losses, for people who have no `fibration`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from fibration.cli.certificate import certificate, source_of
from fibration.cli.compare import Settings, compare
from fibration.configs.specs import Spec, as_specs
from fibration.errors import AuditError, FibrationError, ParameterError
from fibration.language.apart import each
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import split
from fibration.laws.budget import Budget
from fibration.pipeline import compile as compile_operator
from fibration.pipeline import export
from fibration.plotting import figures, recorded_batch
from fibration.plotting.canvas import inline
from fibration.printing import pages
from fibration.printing.reports import LEAST, LIFTED, Outcome, check, summary
from fibration.rollouts.file import Rollouts, load_rollouts
from fibration.rollouts.replay import build_index, gate

BACKEND = "torch"  # its source is the same on every machine


def page(
    words: Sequence[str],
    rollouts: Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    fail_on: str = "error",
    step: Callable[[str], None] = lambda now: None,
) -> tuple[str, list[Outcome], bool]:
    """Returns the file as text, the outcomes of `verify`, and whether all audits are fine. Equal inputs give equal
    text.

    `rollouts`: a recorded batch, whose elements are drawn on the gates of every loss. `parameters`: for the pictures.
    """
    recorded = load_rollouts(rollouts) if rollouts else None
    outcomes = check(words, lambda name: step(f"laws of {name}"), timeout=timeout, fail_on=fail_on)
    known = {name for o in outcomes if o.report for name in o.report.hierarchy.parameters}  # type: ignore[attr-defined]
    if unknown := sorted({*(parameters or {})} - known):
        raise ParameterError(f"no loss has the parameter '{unknown[0]}'", required=f"one of {', '.join(sorted(known))}")
    parts, is_fine = [], True
    for number, (outcome, spec) in enumerate(zip(outcomes, _specs(words, outcomes), strict=True)):
        step(f"page of {spec}")
        parts += [*_loss(outcome, spec, f"s{number}-", recorded, parameters or {}, timeout)]
        audit, fine = _audit(outcome, spec, timeout)
        parts, is_fine = [*parts, audit], is_fine and fine
    step("comparing")
    parts += _comparisons(words, outcomes, timeout)
    parts.append(f"<p>fibration {metadata.version('fibration')}</p>")
    title = ", ".join(o.report.hierarchy.name if o.report else o.source for o in outcomes)
    return pages.page(title, summary(outcomes), parts), outcomes, is_fine


def _specs(words: Sequence[str], outcomes: Sequence[Outcome]) -> list[Spec]:
    """Returns the SPEC of each outcome: as it was given, or, of a file or folder with several losses, `FILE:NAME`."""
    given = as_specs(words)
    if len(given) == len(outcomes):
        return given
    files, specs = Counter(o.source for o in outcomes), {spec.name: spec for spec in given}
    many = {o.source for o in outcomes if files[o.source] > 1}
    return [
        Spec(f"{o.source}:{o.report.hierarchy.name}") if o.report and o.source in many
        else specs.get(o.source, Spec(o.source))
        for o in outcomes
    ]  # fmt: skip


def _loss(
    outcome: Outcome, spec: Spec, prefix: str, recorded: Rollouts | None, parameters: Mapping[str, Any],
    timeout: float | None,
) -> Iterator[str]:  # fmt: skip
    if outcome.report is None:
        assert outcome.error is not None
        yield pages.refusal(str(spec), outcome.error)
        return
    report, h = outcome.report, outcome.report.hierarchy
    assert isinstance(h, Hierarchy)
    yield from (pages.heading(report), pages.findings(report, outcome.trainer), pages.formulas(h))
    if not report.causes:
        yield _gates(h, prefix, recorded, {k: v for k, v in parameters.items() if k in h.parameters}, timeout)
    yield from (pages.laws(report), pages.facts(report))
    if report.causes:
        yield "<p>No gates are drawn and no code is generated of a loss that breaks a law.</p>"
        return
    artifact = source_of(h, BACKEND)
    exported = export(artifact)
    proof = sha256(certificate(artifact, report, exported).encode()).hexdigest()
    yield pages.folded(f"generated code ({next(iter(exported.files))})", pages.code(artifact.source))
    same = f"fibration compile {shlex.join([spec.name, *spec.overrides])} --backend {BACKEND} --output DIR"
    yield f"<p>SHA-256 of the certificate:</p>{pages.code(proof, wraps=True)}"
    yield f"<p>This writes the code and the certificate:</p>{pages.code(same)}"


def _gates(
    h: Hierarchy, prefix: str, recorded: Rollouts | None, parameters: Mapping[str, Any], timeout: float | None
) -> str:
    op = compile_operator(h, BACKEND, timeout)
    try:
        if recorded is not None:
            gated = gate(op, build_index(op, recorded), recorded, parameters)
            return pages.figure(inline(recorded_batch.regimes(gated), prefix), recorded_batch.TITLES["regimes"])
        return pages.figure(inline(figures.make(op, "gates", parameters), prefix), figures.FIGURES["gates"].shows)
    except ParameterError as error:  # one without a default
        return f"<h3>gates</h3>{pages.code(str(error))}"


def _audit(outcome: Outcome, spec: Spec, timeout: float | None) -> tuple[str, bool]:
    """Returns what `audit` says of a function, also of one without a declaration, and whether it is fine."""
    if not (split(spec.name)[1] and (outcome.error or any(f.sentence == LIFTED for f in outcome.findings))):
        return "", True

    def judge(name: str) -> tuple[str, bool]:
        from fibration.auditing.report import ORDER, identity, shown_batches
        from fibration.cli.audits import audited, expected, load_function

        function, _ = load_function(name)
        found = audited(function, expected([], function, name), name)
        ordered = sorted(found.findings, key=lambda f: ORDER[f.status])
        rows = [(f.status, f.name, f.text, shown_batches(found, f)) for f in ordered]
        return pages.audit(identity(found), found.untraced, rows), found.ok

    seconds = max(Budget(timeout).seconds, LEAST)
    (found,) = each(judge, [spec.name], seconds, AuditError, f"--timeout {10 * seconds:g} if it takes long")
    if isinstance(found, FibrationError):  # no function either: the refusal says so
        return ("", True) if outcome.error else (pages.refusal(f"audit of {spec}", found), False)
    return found


def _comparisons(words: Sequence[str], outcomes: Sequence[Outcome], timeout: float | None) -> Iterator[str]:
    """Yields the first loss beside each other one, if each SPEC names one loss."""
    first, *others = as_specs(words)
    if len(outcomes) != 1 + len(others) or not all(o.report for o in outcomes):
        return
    for other in others:
        words = [w for spec in (first, other) for w in (spec.name, *spec.overrides)]
        (found,) = compare(words, False, Settings(timeout=timeout))
        if found.report:
            yield pages.comparison(found.report, found.options, found.beside)
        elif found.error:
            yield pages.refusal(f"{first} beside {other}", found.error)
