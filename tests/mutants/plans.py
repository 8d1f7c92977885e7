"""Mistakes in plans and schedules, by rule: work left out, done in another order or in another precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fibration.compiler.ir import Node, Pull
from fibration.compiler.plan import Coarse, Collective, Group, Pass, Plan, Scalars, Sweep
from fibration.compiler.schedule import Schedule, Step


def of_plan(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The rules that apply to a plan, with what it becomes."""
    for rule, stages in _of_parts("stage", plan.stages):
        yield rule, replace(plan, stages=stages)
    for i, stage in enumerate(plan.stages):
        for rule, new in _of_stage(stage):
            yield rule, replace(plan, stages=_put(plan.stages, i, new))
    if plan.precise:
        narrow = replace(plan)
        narrow.__dict__.update(precise=frozenset(), _compared=set(), _reading=set())
        yield "float64 values made narrow", narrow


def of_schedule(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    for rule, steps in _of_parts("step", schedule.steps):
        yield rule, replace(schedule, steps=steps)
    for i, step in enumerate(schedule.steps):
        if isinstance(step, Step) and step.dead:
            before = replace(schedule.steps[i - 1], dead=step.dead)
            yield "value dropped too early", replace(schedule, steps=_put(schedule.steps, i - 1, before))


def _of_stage(stage: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(stage, Collective):
        for field in ("whole", "parts", "quantiles", "scans"):
            yield from _without(stage, field, "value of other ranks left out")
        for push in stage.parts:
            parts, units = (p for p in stage.parts if p != push), {p: u for p, u in stage.units.items() if p != push}
            whole = (*stage.whole, push)
            yield "part taken for the whole", replace(stage, parts=tuple(parts), units=units, whole=whole)
        return
    yield from _without(stage, "saved", "value not saved")
    field, word = ("groups", "group") if isinstance(stage, Coarse) else ("steps", "step")
    inside = getattr(stage, field)
    for rule, made in _of_parts(word, inside):
        yield rule, replace(stage, **{field: made})
    for k, step in enumerate(inside):
        if isinstance(step, Pass):
            for rule, new in _of_pass(step):
                yield rule, replace(stage, steps=_put(inside, k, new))


def _of_pass(step: Pass) -> Iterator[tuple[str, Pass]]:
    yield from _without(step, "pushes", "sum left out")
    yield from _without(step, "stores", "result not written")
    yield from _without(step, "aside", "value not set aside")
    yield from _without(step, "scans", "sum in order left out")
    if step.wide:
        yield "pass made narrow", replace(step, wide=False)


def _of_parts(word: str, parts: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """One part left out; or two exchanged, of which the second reads the first."""
    for i, part in enumerate(parts):
        yield f"{word} left out", (*parts[:i], *parts[i + 1 :])
        if i and not _made(parts[i - 1]).isdisjoint(_read(part)):
            yield f"{word}s exchanged", (*parts[: i - 1], part, parts[i - 1], *parts[i + 1 :])


def _without(whole: Any, field: str, rule: str) -> Iterator[tuple[str, Any]]:
    given = getattr(whole, field)
    for i in range(len(given)):
        yield rule, replace(whole, **{field: (*given[:i], *given[i + 1 :])})


def _put(parts: Sequence[Any], i: int, new: Any) -> tuple[Any, ...]:
    return (*parts[:i], new, *parts[i + 1 :])


def _made(part: Any) -> set[Node]:
    """The values of a part of a plan that other parts read."""
    match part:
        case Pass():
            return {*part.pushes, *part.scans, *part.aside}
        case Scalars() | Group() | Collective():
            return set(part.values)
        case Step():
            return {part.node}
    return set(part.saved)


def _read(part: Any) -> set[Node]:
    match part:
        case Sweep():
            return set().union(*map(_read, part.steps))
        case Coarse():
            return set().union(*map(_read, part.groups))
        case Collective():
            return set(part.reads)
        case Step():
            return set(part.node.operands)
    pulled = {o for v in part.values if isinstance(v, Pull) for o in v.operands}
    return pulled | {o for v in part.values for o in v.operands} | set(part.values)


def is_unread(plan: Plan, mutant: Plan) -> bool:
    """Whether no later stage reads what the mutant does not save: another pass has left it elsewhere."""
    for i, (stage, other) in enumerate(zip(plan.stages, mutant.stages, strict=False)):
        if isinstance(stage, Collective) or isinstance(other, Collective):
            continue
        lost = {*stage.saved} - {*other.saved} - {*plan.program.outputs.values()}
        if lost:
            return not any(lost & _read(later) for later in plan.stages[i + 1 :])
    return False
