"""`fibration.audit`: what a loss function is, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fibration.auditing.batch import Batch
from fibration.auditing.function import Found, Function, name_of
from fibration.auditing.identify import Compared, Likeness, identify
from fibration.auditing.properties import OWED, TELLING, Ask, Finding
from fibration.auditing.reference import Reference, lacks
from fibration.auditing.report import Audit as Audit
from fibration.auditing.report import number
from fibration.errors import AuditError, ParameterError, listed, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.runtime.parameters import in_channel


class _Declared(Function):
    """A declared loss, asked for its properties as a function is."""

    def __init__(self, beside: Function, likeness: Likeness) -> None:
        self.call, self.name = beside.call, likeness.name
        self.arguments, self.per_token = beside.arguments, beside.per_token
        self.structures = beside.structures
        self.likeness, self._found = likeness, {}

    def _evaluated(self, batch: Batch, dtype: Any = None) -> Found:
        found = self.likeness.other(batch)
        if found is None:
            raise AuditError(f"'{self.name}' does not take this batch")
        return found

    def formulas(self, batch: Batch) -> list[Any]:
        return self.likeness.formulas(batch)


def audit(
    function: Callable[..., Any],
    like: str | Hierarchy | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    name: str = "",
) -> Audit:
    """What a loss function is, and what is wrong with it: see `Audit`. It records the function's program, and calls it.

    - `function`: takes tensors by name and returns the loss, a tensor of one number: `log_probs`, `old_log_probs` and
      `mask` `[rows, width]`, and `advantages` `[rows]`, or `[rows, width]` where that is what the function takes.
      Further names: `ref_log_probs`, `rollout_log_probs`, `teacher_log_probs`, `rewards`, `group_ids`; `cu_seqlens` for
      `mask` of packed tokens; `values` for `log_probs`, `old_values` and `returns` of a critic. Usual other names
      are understood. Arguments with defaults keep them.
    - `like`: the loss that it should be, a shipped name, a path or a Hierarchy. None: all shipped losses are tried.
    - `parameters`: of `like`; those that are not given are fitted.
    - `name`: of the function in the report.

    Everything is computed in float64 on the CPU, with the same numbers in every run. Each loss of the result says how
    strong its equality is: proved for all numbers on a small shape, or seen on batches. A difference is a proof, with
    its smallest batch found.

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
        compared = Compared(subject)
        asked, losses = "", identify(compared)
    else:
        h = load(like) if isinstance(like, str) else like
        _check(h, subject, parameters or {})
        compared = Compared(subject)
        search = compared.search(Reference.of(h, subject), parameters or {})
        asked, losses = h.name, [compared.judged(search.run())]
    findings = tuple(f for ask in (*OWED, *TELLING) if (f := _asked(ask, subject)) is not None)
    findings = tuple(_as_declared(f, subject, losses) for f in findings)
    if losses and losses[0].has_same_direction and losses[0].factor != 1:
        findings = (Finding("factor", "fails", scaled(losses[0])), *findings)
    if asked and (other := other_numbers(losses[0], parameters or {})):
        findings = (*findings, Finding("parameters", "note", other))
    differences = tuple(_differences(subject, losses, findings))
    return Audit(subject, asked, tuple(losses), findings, differences, subject.untraced)


def scaled(x: Likeness) -> str:
    """By what the gradient of a loss is multiplied, and what may do so."""
    k = x.factor
    whole = round(1 / k) if abs(k) < 1 else round(k)
    cause = "the loss is −J, or J?" if k == -1 else "is the loss scaled for another purpose, such as a loss scale?"
    if abs(whole) > 1 and min(abs(1 / k - whole), abs(k - whole)) < 1e-6:
        cause = f"divided once more by {whole}, as by the accumulation?" if abs(k) < 1 else f"added up {whole} times?"
    return f"the gradient is that of '{x.name}' × {k:.6g}: {cause}"


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
        if name in given or name in x.unseen or declared is None or _is_close(value, declared):
            continue
        said.append(f"{name} = {number(value)}, where '{x.name}' declares {number(declared)}")
    return "; ".join(said)


def _is_close(value: Any, declared: Any) -> bool:
    if isinstance(value, Mapping):
        of = declared if isinstance(declared, Mapping) else dict.fromkeys(value, declared)
        return all(_is_close(v, of[channel]) for channel, v in value.items())
    return math.isclose(value, declared, rel_tol=1e-6)


def _asked(ask: Ask, function: Function) -> Finding | None:
    try:
        return ask(function)
    except AuditError as error:  # on one of the property's batches
        return Finding(ask.__name__, "fails", error.what)


def _differences(
    function: Function, losses: list[Likeness], findings: tuple[Finding, ...]
) -> list[tuple[Finding, Finding]]:
    """The findings about the function that are others about the nearest loss, with those."""
    if not losses or losses[0].has_same_direction:
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
