"""Writes the steps of a schedule as Python statements on whole vectors, for the torch and JAX backends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

from fibration.backends.bodies import Language, in_parentheses
from fibration.compiler.ir import BATCH, Detach, Input, Map, Node, Pull, Push
from fibration.compiler.schedule import Schedule, Step


def statement(
    step: Step, schedule: Schedule, language: Language, other: Callable[[Node, list[str]], str], form: str = "{}"
) -> list[str]:
    """The lines that compute the value of a step. `other`: the text of a value that the backends write differently."""
    node, names = step.node, schedule.names
    operands = [names[o] for o in node.operands]
    before: list[tuple[str, str]] = []
    if isinstance(node, Input):
        value = f"inputs[{schedule.program.given[node]!r}]"
    elif isinstance(node, Push):
        reduce = "" if node.reduce == "sum" else f", {node.reduce!r}"
        value = f"push({operands[0]}, over[{node.source!r}, {node.target!r}]{reduce})"
    elif isinstance(node, Pull):
        verb = "spread" if node.target == BATCH else "pull"
        value = f"{verb}({operands[0]}, over[{node.source!r}, {node.target!r}])"
    elif isinstance(node, Map):
        before, value = language.write(node.body, operands, step.name, frozenset(names.values()))
    elif isinstance(node, Detach):
        value = language.operators["stop"].format(operands[0])
    else:
        value = other(node, operands)
    pairs = [*before, (step.name, form.format(value))]
    lines = [textwrap.indent(f"{name} = {text}", "    ") for name, text in pairs]
    return [*lines[:-1], f"{lines[-1]}  # [{node.stratum}]"]


def inputs_and_results(schedule: Schedule) -> tuple[str, str]:
    """The lines of a docstring that list the inputs of a function, and the lines of the dict that it returns."""
    program = schedule.program
    width = max((len(program.given[i]) for i in program.inputs), default=0)
    inputs = "\n".join(f"    {program.given[i]:<{width}}  [{i.stratum}]" for i in program.inputs)
    return inputs, "\n".join(f"        {program.called[k]!r}: {v}," for k, v in schedule.results.items())


def constant(value: float) -> str:
    if math.isfinite(value):
        return in_parentheses(value)
    return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "(-math.inf)")
