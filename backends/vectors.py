"""Writes the steps of a schedule as Python statements on whole vectors, for the torch and JAX backends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable

from fibration.backends.bodies import Language, in_parentheses
from fibration.compiler.ir import BATCH, Detach, Input, Map, Node, Pull, Push
from fibration.compiler.schedule import Schedule, Step

FUNCTION = '''
def {name}({arguments}) -> {returns}:
    """{title}

{about}
    """
{body}
'''


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


def function(name: str, title: str, schedule: Schedule, lines: Iterable[str], tensor: str, more: str = "") -> str:
    """A function from vectors by name to results by name. `lines` compute them, and `tensor` is their type."""
    program = schedule.program
    width = max((len(program.given[i]) for i in program.inputs), default=0)
    inputs = [f"    {program.given[i]:<{width}}  [{i.stratum}]" for i in program.inputs]
    inputs += [f"    {program.given[m]}  [{m.into}, {m.of}]" for m in program.matrices]
    results = [f"        {program.called[k]!r}: {v}," for k, v in schedule.results.items()]
    return FUNCTION.format(
        name=name,
        title=title,
        about="\n".join(inputs),
        arguments=f"inputs: dict[str, {tensor}], over: dict[tuple[str, str], Fibre]{more}",
        returns=f"dict[str, {tensor}]",
        body="\n".join([*lines, "    return {", *results, "    }"]),
    )


def constant(value: float) -> str:
    if math.isfinite(value):
        return in_parentheses(value)
    return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "(-math.inf)")
