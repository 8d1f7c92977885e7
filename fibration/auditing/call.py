"""`fibration.audit`: what a loss function is, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fibration.auditing import features, soundness
from fibration.auditing.batch import Batch
from fibration.auditing.finding import Finding
from fibration.auditing.function import Found, Function, name_of
from fibration.auditing.identify import Compared, Likeness, identify
from fibration.auditing.reference import Reference, lacks
from fibration.auditing.report import as_dict, as_text, number
from fibration.auditing.result import Result
from fibration.auditing.sharpen import Range
from fibration.errors import AuditError, ParameterError, listed, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.runtime.parameters import in_channel

Ask = Callable[[Function], Finding | None]
SOUND: tuple[Ask, ...] = (
    soundness.mask, soundness.padding, soundness.rows, soundness.detached, soundness.inputs, soundness.sign,
    soundness.finite, soundness.precision, soundness.engine,
)  # fmt: skip
TELLING: tuple[Ask, ...] = (
    features.first_update, features.normaliser, features.baseline, features.sides, features.reference,
    features.causal, features.accumulation,
)  # fmt: skip


class _Declared(Function):
    """A declared loss, asked for its properties as a function is."""

    def __init__(self, beside: Function, likeness: Likeness) -> None:
        self.call, self.name = beside.call, likeness.name
        self.arguments, self.per_token = beside.arguments, beside.per_token
        self.likeness = likeness

    def evaluate(self, batch: Batch, dtype: Any = None) -> Found:
        found = self.likeness.other(batch)
        if found is None:
            raise AuditError(f"'{self.name}' does not take this batch")
        return found


class Audit(Result):
    """What was found about a function: see `Result`. It prints as a report."""

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


def audit(
    function: Callable[..., Any],
    like: str | Hierarchy | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    name: str = "",
) -> Audit:
    """What a loss function is, and what is wrong with it: see `Audit`. It calls the function some thousand times.

    - `function`: takes tensors by name and returns the loss, a tensor of one number: `log_probs`, `old_log_probs` and
      `mask` `[rows, width]`, and `advantages` `[rows]`, or `[rows, width]` where that is what the function takes.
      Further names: `ref_log_probs`, `rollout_log_probs`, `rewards`, `group_ids`, and `cu_seqlens` in the place of
      `mask` for packed tokens. Usual other names are understood. Arguments with defaults keep them.
    - `like`: the loss that it should be, a shipped name, a path or a Hierarchy. None: all shipped losses are tried.
    - `parameters`: of `like`; those that are not given are fitted.
    - `name`: of the function in the report.

    Everything is computed in float64 on the CPU, on the same batches in every run. Equality on these batches is no
    proof; a difference is one, with its smallest batch found.

    Raises AuditError for a function that cannot be called so, raises, gives no finite loss, or is not deterministic;
    ParameterError for a parameter that `like` does not have, or out of its bounds.
    """
    if parameters and like is None:
        raise ParameterError(
            f"parameters {listed(parameters)} are given, and no loss that has them",
            required="like=... beside parameters",
            remedy="name the loss: audit(function, like='grpo', parameters=...), or --as grpo",
        )
    subject = Function(function, name or name_of(function))
    if like is None:
        asked, losses = "", identify(Compared(subject))
    else:
        h = load(like) if isinstance(like, str) else like
        _check(h, subject, parameters or {})
        asked, losses = h.name, Compared(subject).beside([Reference.of(h, subject)], parameters or {})
    findings = tuple(f for ask in (*SOUND, *TELLING) if (f := _asked(ask, subject)) is not None)
    findings = tuple(_as_declared(f, subject, losses) for f in findings)
    if asked and (other := other_numbers(losses[0], parameters or {})):
        findings = (*findings, Finding("parameters", "note", other))
    return Audit(subject, asked, tuple(losses), findings, tuple(_differences(subject, losses, findings, asked)))


def _check(h: Hierarchy, function: Function, parameters: Mapping[str, Any]) -> None:
    """Raises for parameters that a loss does not have or take, and for a loss that reads what no argument gives."""
    for parameter in sorted(set(parameters) - set(h.parameters)):
        raise ParameterError(
            f"'{h.name}' has no parameter '{parameter}'",
            required=f"one of {listed(h.parameters)}" if h.parameters else "none: it has no parameters",
            remedy=suggest(parameter, h.parameters),
        )
    for parameter, value in parameters.items():
        for channel in ("+", "-") if h.parameters[parameter].per_channel else ("",):
            in_channel(h.parameters[parameter], channel, value, "the value")
    if missing := lacks(h, function):
        argument = missing.argument
        raise AuditError(
            f"'{function.name}' cannot be '{h.name}', which reads {missing.what}",
            required=f"the argument {argument}" if argument else f"{missing.what}, which no audit passes",
            found=f"({', '.join(function.arguments)})",
            remedy=f"add {argument} to the arguments of the function" if argument else "name another loss",
        )


def _as_declared(finding: Finding, function: Function, losses: list[Likeness]) -> Finding:
    """A failure that the same loss has with its declared numbers, such as an entropy bonus, is a note."""
    ask = next((ask for ask in TELLING if ask.__name__ == finding.name), None)
    if finding.status != "fails" or ask is None or not losses or not losses[0].has_same_gradient:
        return finding
    if losses[0].reference.lacks_a_number:
        return finding
    theirs = _asked(ask, _Declared(function, replace(losses[0], parameters={})))
    if theirs is None or theirs.status != "fails":
        return finding
    return replace(finding, status="note", text=f"{finding.text}; '{losses[0].name}' declares it so")


def other_numbers(x: Likeness, given: Mapping[str, Any]) -> str:
    """The parameters that were fitted, and are not those that the loss declares: in words."""
    said = []
    for name, value in x.parameters.items() if x.has_same_gradient else ():
        declared = x.reference.hierarchy.parameters[name].default
        if name in given or name in x.unseen or declared is None or _is_close(value, declared, x.between.get(name)):
            continue
        said.append(f"{name} = {number(value)}, where '{x.name}' declares {number(declared)}")
    return "; ".join(said)


def _is_close(value: Any, declared: Any, between: Range | None) -> bool:
    if isinstance(value, Mapping):
        of = declared if isinstance(declared, Mapping) else dict.fromkeys(value, declared)
        return all(_is_close(v, of[channel], between) for channel, v in value.items())
    return math.isclose(value, declared, rel_tol=1e-6) or (
        between is not None and between.low < declared < between.high
    )


def _asked(ask: Ask, function: Function) -> Finding | None:
    try:
        return ask(function)
    except AuditError as error:  # on one of the property's batches
        return Finding(ask.__name__, "fails", error.what)


def _differences(
    function: Function, losses: list[Likeness], findings: tuple[Finding, ...], asked: str
) -> list[tuple[Finding, Finding]]:
    """The findings about the function that are others about the nearest loss, with those."""
    if not losses or losses[0].has_same_gradient or (losses[0].is_far and not asked):
        return []
    declared, mine, found = _Declared(function, losses[0]), {f.name: f for f in findings}, []
    for ask in TELLING:
        own = mine.get(ask.__name__)
        try:
            theirs = ask(declared)
        except AuditError:  # one that the declared loss does not take
            continue
        if own is not None and theirs is not None and (own.status, own.text) != (theirs.status, theirs.text):
            found.append((own, theirs))
    return found
