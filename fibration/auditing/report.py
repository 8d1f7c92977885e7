"""An audit in words: as text, Markdown, JSON, JUnit and annotations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import torch

from fibration.auditing.batch import Batch
from fibration.auditing.function import Function
from fibration.auditing.identify import Likeness
from fibration.auditing.properties import MARK, Finding, Status
from fibration.errors import AuditError, listed
from fibration.escaping import annotation, escaped, json_text, markdown_text

TELLS = ("normaliser", "baseline", "sides", "reference")  # what a function does, where no loss says it
ORDER: dict[Status, int] = {"fails": 0, "note": 1, "holds": 2}
PARTS = 3  # in which a function may differ from a loss that is named as the nearest


@dataclass(frozen=True)
class Audit:
    """What was found about a function. It prints as a report.

    `asked`: the name of the loss that it should be; '' if none was named. `losses`: the declared losses that it is, or
    the nearest one alone. `findings`: its properties. `differences`: those in which it differs from the nearest loss,
    with what holds for that one. `untraced`: why the function has no program, so that all is seen on batches; ''
    if it has one.
    """

    function: Function
    asked: str
    losses: tuple[Likeness, ...]
    findings: tuple[Finding, ...]
    differences: tuple[tuple[Finding, Finding], ...]
    untraced: str = ""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def identified(self) -> bool:
        """Whether it has the gradient of a declared loss."""
        return bool(self.losses) and self.losses[0].has_same_gradient

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == "fails")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == "note")

    @property
    def nearest(self) -> Likeness | None:
        """The loss that the function is or should be; or the nearest one, if few of its parts differ."""
        if not self.losses or self.asked or self.losses[0].has_same_direction:
            return self.losses[0] if self.losses else None
        is_near = not self.losses[0].is_far and self.losses[0].is_usual and len(self.differences) <= PARTS
        return self.losses[0] if is_near else None

    @property
    def ok(self) -> bool:
        """Whether nothing fails, and the function is the loss that it should be, if one was named."""
        return not self.failures and (not self.asked or self.identified)

    def raise_for_status(self) -> None:
        """Raises AuditError if the audit is not ok."""
        if not self.ok:
            raise AuditError(str(self))

    def __str__(self) -> str:
        return as_text(self)

    def table(self) -> str:
        """The report with a line for every property, as `--all` prints it."""
        return as_text(self, full=True)

    def to_dict(self) -> dict[str, Any]:
        return as_dict(self)


def identity(a: Audit) -> str:
    """Which loss the function is, in a sentence or two."""
    if not a.losses:
        return "no shipped loss takes these arguments"
    first, *others = a.losses
    if not first.has_same_direction:
        if a.nearest is None:
            return "no shipped loss, and none is near"
        what = f"not '{first.name}'" if a.asked else f"no shipped loss; the nearest is '{first.name}'"
        return f"{what}{_with(first)}: a gradient differs on {first.differing} of {first.batches} batches"
    if first.factor != 1:
        return f"'{first.name}'{_with(first)} × {first.factor:.6g}: {_strength(first)}"
    value = "" if first.is_same else "; the loss has another value"
    said = f"the same gradient as '{first.name}'{_with(first)}, {_strength(first)}{value}"
    same = [f"'{x.name}'{_with(x)}" for x in others if len(x.unseen) <= len(first.unseen)]
    return said + (f"; so has {listed(same)}" if same else "")


def _strength(x: Likeness) -> str:
    """How strong the equality is."""
    seen = f"seen on {x.batches} batches"
    if not x.shape:
        return f"{seen}, which is no proof"
    return f"proved for all numbers on rows of {listed(map(str, x.shape))} tokens, and {seen}"


def _with(x: Likeness) -> str:
    seen = [f"{name} = {number(v)}" for name, v in x.parameters.items() if name not in x.unseen]
    said = f" with {', '.join(seen)}" if seen else ""
    return said + (f" (no batch here reaches {listed(x.unseen)})" if x.unseen else "")


def number(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{k}": {number(v)}' for k, v in value.items()) + "}"
    return f"{value:.6g}"


def as_text(a: Audit, full: bool = False) -> str:
    """What fails, what is worth knowing, and one line for what holds. `full`: a line for each property that holds."""
    untraced = f" · seen on batches alone: {a.untraced}" if a.untraced else ""
    lines = [f"{a.name}{untraced}", "", f"  {identity(a)}"]
    for own, theirs in a.differences if a.nearest is not None else ():
        lines += [f"    {own.name}: {own.text}", f"      '{a.losses[0].name}': {theirs.text}"]
    lines.append("")
    holds = [f for f in a.findings if f.status == "holds"]
    alone = holds if full else [f for f in holds if f.name in TELLS and not a.identified]
    lines += [f"  {MARK[f.status]} {f.name:<13} {f.text}" for f in (*a.failures, *a.notes, *alone)]
    if rest := [f.name for f in holds if f not in alone]:
        one = len(rest) == 1
        lines.append(f"  {MARK['holds']} {listed(rest)} hold{'s' * one}; --all lists {'it' if one else 'them'}")
    for f in a.failures:
        if f.batch is not None:
            lines += ["", f"  {f.name}, on the smallest batch found:", *_indented(shown_batches(a, f))]
    if (near := a.nearest) is not None and near.batch is not None:
        lines += ["", f"  '{a.losses[0].name}' differs on:", *_indented(as_torch(a, near.batch, near))]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def shown_batches(a: Audit, f: Finding) -> str:
    """The batch on which a property fails as lines of torch, and the one that should have the same loss."""
    if f.batch is None:
        return ""
    return as_torch(a, f.batch) + ("" if f.other is None else f"\n# and beside it\n{as_torch(a, f.other)}")


def as_torch(a: Audit, batch: Batch, beside: Likeness | None = None) -> str:
    """A batch as lines of torch that can be pasted, and what comes of it."""
    given = a.function.given(batch)
    lines = ["import torch", "nan = float('nan')"] if np.isnan(batch.padding.value) else ["import torch"]
    for role, t in given.items():
        grad = ", requires_grad=True" if role == a.function.moves else ""
        kind = f", dtype={t.dtype}" if t.dtype not in (torch.int64, torch.bool) else ""
        lines.append(f"{role} = torch.tensor({_rounded(t.tolist())}{kind}{grad})")
    passed = ", ".join(f"{name}={role}" for name, role in a.function.arguments.items())
    name = getattr(a.function.call, "__name__", "")
    lines.append(f"value = {name if name.isidentifier() else 'loss_function'}({passed})")
    try:
        found = a.function.evaluate(batch)
    except AuditError as error:
        return "\n".join([*lines, f"# {error.what}"])
    lines.append(f"# loss {found.value:.6g}, gradient of the tokens {_rounded((-found.coefficients).tolist(), 6)}")
    if found.outside.any():
        lines.append(f"# gradient at masked places {_rounded((-found.outside).tolist(), 6)}")
    if beside is not None and (other := beside.other(batch)) is not None:
        lines.append(f"# '{beside.name}': {other.value:.6g}, {_rounded((-other.coefficients).tolist(), 6)}")
    return "\n".join(lines)


def _rounded(values: Any, digits: int = 12) -> Any:
    if isinstance(values, list):
        return "[" + ", ".join(str(_rounded(v, digits)) for v in values) + "]"
    return f"{values:.{digits}g}" if isinstance(values, float) else values


def _finite(value: Any) -> Any:
    """Nested lists of numbers, in which null stands for NaN and infinities, which JSON does not have."""
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def as_dict(a: Audit) -> dict[str, Any]:
    def batch(b: Batch | None) -> dict[str, Any] | None:
        return None if b is None else {r: _finite(t.tolist()) for r, t in a.function.given(b).items()}

    return {
        "function": a.name,
        "ok": a.ok,
        "asked": a.asked,
        "identified": a.identified,
        "untraced": a.untraced,
        "losses": [
            {
                "name": x.name, "parameters": dict(x.parameters), "same_gradient": x.has_same_gradient,
                "same_value": x.is_same, "factor": x.factor, "strength": x.strength, "far": x.is_far,
                "unseen": list(x.unseen), "batches": x.batches, "differing": x.differing, "batch": batch(x.batch),
            }
            for x in a.losses
        ],
        "findings": [
            {"name": f.name, "status": f.status, "text": f.text, "batch": batch(f.batch), "beside": batch(f.other)}
            for f in a.findings
        ],
        "differences": [{"name": own.name, "found": own.text, "expected": other.text} for own, other in a.differences],
    }  # fmt: skip


def as_markdown(a: Audit) -> str:
    lines = [f"### {markdown_text(a.name)}", "", markdown_text(identity(a)), "", "| | property | |", "|---|---|---|"]
    ordered = sorted(a.findings, key=lambda f: ORDER[f.status])
    lines += [f"| {MARK[f.status]} | {f.name} | {markdown_text(f.text)} |" for f in ordered]
    blocks = [(f.name, shown_batches(a, f)) for f in a.failures if f.batch is not None]
    if (near := a.nearest) is not None and near.batch is not None:
        blocks.append((f"differs from {near.name}", as_torch(a, near.batch, near)))
    for title, text in blocks:
        lines += ["", f"{title}:", "", "```python", text, "```"]
    return "\n".join(lines)


def as_github(a: Audit, file: str) -> str:
    problems = [f"{f.name}: {f.text}" for f in a.failures]
    problems += [identity(a)] if a.asked and not a.identified else []
    return "\n".join(annotation("error", f"{a.name}: {p}", file=file, title="fibration audit") for p in problems)


def as_junit(a: Audit) -> str:
    wrong = len(a.failures) + bool(a.asked and not a.identified)
    name = escaped(a.name)
    suite = Xml.Element("testsuite", name=name, tests=str(len(a.findings) + 1), failures=str(wrong))
    case = Xml.SubElement(suite, "testcase", classname=name, name="identity")
    if a.asked and not a.identified:
        Xml.SubElement(case, "failure", message=escaped(identity(a))).text = escaped(str(a))
    for f in a.findings:
        case = Xml.SubElement(suite, "testcase", classname=name, name=f.name)
        if f.status == "fails":
            Xml.SubElement(case, "failure", message=escaped(f.text)).text = escaped(shown_batches(a, f))
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True)


def rendered(a: Audit, format: str, file: str = "", full: bool = False) -> str:
    made = {
        "text": lambda a: as_text(a, full),
        "json": lambda a: json_text(as_dict(a)),
        "markdown": as_markdown,
        "github": lambda a: as_github(a, file),
        "junit": as_junit,
    }
    text = made[format](a)
    return text if format == "github" else escaped(text)
