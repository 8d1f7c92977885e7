"""The parameters of a hierarchy that take the place of a trainer's clip range `[1 - below, 1 + above]` of ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import Input, Matrix, Mix
from fibration.compiler.lower import lower
from fibration.errors import listed
from fibration.language.atoms import Parameter, residual
from fibration.language.hierarchy import Hierarchy

FAR = (3.0, 4.0)  # log ratios of a token beyond every clip range
TOKENS = (1, 3)
PROBES = (0.1, 0.3)  # values at which a parameter is tried, if it may have them


def clip_parameters(hierarchy: Hierarchy, below: float | None, above: float | None) -> dict[str, float | None]:
    """The parameters that bound ratios on the sides with a number, and their values there.

    A parameter bounds a side if the gated ratio of a single token far beyond that side depends on it, and on no other.
    The value is None if the only gate's parameter has another unit: its value `v` does not make that ratio `1 - v` or
    `1 + v`. Empty if a side has no such parameter.
    """
    found: dict[str, float | None] = {}
    for value, sign in ((below, -1.0), (above, 1.0)):
        if value is None:
            continue
        moved = {
            p: ratios for p in hierarchy.parameters.values() if len(set(ratios := _ratios(hierarchy, p, sign))) > 1
        }
        if len(moved) != 1:
            return {}
        ((parameter, ratios),) = moved.items()
        name = parameter.name
        alike = np.allclose(ratios, [1 + sign * probe for probe in _probes(parameter)], rtol=1e-12, atol=0)
        if not alike and sum(gate.expression != residual for gate in hierarchy.gates.values()) > 1:
            return {}  # another gate may bind first
        if name in found and below != above:  # one parameter bounds both sides
            return {}
        found[name] = value if alike else None
    return found


def in_its_place(
    hierarchy: Hierarchy, below: float | None, above: float | None, write: Callable[[dict[str, float]], str]
) -> str:
    """What to set in place of a trainer's clip range, for errors. `write`: how a trainer takes parameters."""
    found = clip_parameters(hierarchy, below, above)
    values = {name: value for name, value in found.items() if value is not None}
    others = [name for name, value in found.items() if value is None]
    if found:
        units = f"{listed(map(repr, others))}, in the units of the gates that 'fibration show' prints" if others else ""
        return " and ".join(part for part in (write(values) if values else "", units) if part)
    if not hierarchy.parameters:
        return f"leave it out: '{hierarchy.name}' has no parameters"
    return f"choose among the parameters of '{hierarchy.name}': {listed(hierarchy.parameters)}"


def _probes(parameter: Parameter) -> tuple[float, ...]:
    defaults = [value for _, value in parameter.default_items()][:1]
    probes = PROBES if not any(map(parameter.is_outside, PROBES)) else (*defaults, *(1.5 * value for value in defaults))
    return () if any(map(parameter.is_outside, probes)) else probes


def _ratios(hierarchy: Hierarchy, parameter: Parameter, sign: float) -> list[float]:
    """The gated ratio of tokens beyond a side, by the value of a parameter; empty if it is not bounded there.

    One token, or several alike that share all elements, have one advantage of the side's sign. Other parameters have
    their defaults, or else the first probe.
    """
    whole = lower(hierarchy)
    program = replace(whole, outputs={key: node for key, node in whole.outputs.items() if key.word == "gated_ratio"})
    nodes, (leaf, *_) = list(program.nodes()), program.leaves
    alike = {"advantage": sign, "old_log_prob": -1.0, "policy_log_prob": -1.0}
    kinds = {node.kind for node in program.inputs} - {*alike, "log_ratio", "count", "parameter"}
    if kinds or len(program.outputs) > 1 or any(isinstance(node, Mix) for node in nodes):
        return []

    def value(node: Input, far: float, tokens: int, probe: float) -> float:
        if node.kind == "count":
            return float(tokens if node.key[0] == leaf else 1)
        if node.kind != "parameter":
            return {**alike, "log_ratio": sign * far}[node.kind]
        name, channel = node.key
        defaults = dict(hierarchy.parameters[name].default_items())
        return probe if name == parameter.name else defaults.get(channel, defaults.get("", PROBES[0]))

    def ratio(far: float, tokens: int, probe: float) -> float:
        strata = {*(node.stratum for node in nodes), *(stratum for edge in program.edges for stratum in edge)}
        size = {stratum: tokens if stratum == leaf else 1 for stratum in strata}
        parents = {edge: np.zeros(size[edge[0]], np.int64) for edge in program.edges}
        places = {stratum: np.arange(n) for stratum, n in size.items()}
        given: dict[Input | Matrix, float] = {n: value(n, far, tokens, probe) for n in program.inputs}
        (found,) = interpret(program, given, Sizes(parents, size, places)).values()
        return float(found[0])

    found = [[ratio(far, tokens, probe) for far in FAR for tokens in TOKENS] for probe in _probes(parameter)]
    return [ratios[0] for ratios in found] if all(np.ptp(ratios) <= 1e-12 for ratios in found) else []
