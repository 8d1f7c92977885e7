"""A hierarchy for reading: as a tree, as a mermaid flowchart, as LaTeX. And how regimes are named and coloured.

Strata and fibrations are read from a graph, so trees and quivers show as well as chains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx

from fibration.cancel import cancel
from fibration.expressions import Apply, Expression, Number, transform, write_number
from fibration.spec import Fibration, Hierarchy
from fibration.symbols import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Place,
    Reading,
    Stratum,
    Total,
    residual,
)


@dataclass(frozen=True)
class Regime:
    """How tables and pictures show what a gate did to an element. The colours are safe for the colour-blind."""

    title: str
    meaning: str
    colour: str
    style: str  # in a terminal


REGIMES: Mapping[str, Regime] = {
    "passed": Regime("passed", "unchanged, within the budget", "#009E73", "green"),
    "rolled_back": Regime("rolled back", "past the budget, pulled back towards 0", "#E69F00", "yellow"),
    "zeroed": Regime("zeroed", "removed", "#D55E00", "red"),
    "limited": Regime("limited", "held at the bound", "#0072B2", "blue"),
    "attenuated": Regime("attenuated", "shrunk", "#CC79A7", "magenta"),
}
CHANNELS = {"": "", "+": "+", "-": "−"}


def unit(hierarchy: Hierarchy) -> str:
    """What the drift of a verified hierarchy is measured in.

    Residuals are means of the coordinate itself only where the decomposition's scale is the measure that the kernels
    spread; elsewhere they are densities.
    """
    d = hierarchy.decomposition
    if hierarchy.masses[hierarchy.leaf] != cancel(hierarchy.with_mass(d.scale, hierarchy.leaf)):
        return "units of F"
    kind = d.written.partition("(")[0]
    return {"signed_log_ratio": "nats", "log_ratio": "nats", "ratio_deviation": "r − 1"}.get(kind, "units of F")


def graph(hierarchy: Hierarchy) -> nx.MultiDiGraph:
    """Strata as nodes, fibrations as edges from the coarser stratum to the finer; each edge carries its `fibration`."""
    g = nx.MultiDiGraph()
    g.add_nodes_from(hierarchy.strata)
    for f in hierarchy.fibrations:
        g.add_edge(f.target, f.source, fibration=f)
    return g


def layers(g: nx.MultiDiGraph) -> list[list[Stratum]]:
    """Coarsest strata first; one stratum per layer where a cycle leaves no such order."""
    if nx.is_directed_acyclic_graph(g):
        return [list(layer) for layer in nx.topological_generations(g)]
    return [[s] for s in g]


# ---------------------------------------------------------------- text


def text(hierarchy: Hierarchy) -> str:
    """The hierarchy as it is written, then its strata from the coarsest down, with kernels, gates and parameters."""
    parameters = [f"  {p.declaration()}" for p in hierarchy.parameters.values()]
    attributes = [f"  Attribute({a.name!r}, on={a.on}, positive={a.positive})" for a in hierarchy.attributes.values()]
    parts = [repr(hierarchy), "\n".join(tree(hierarchy))]
    parts += ["\n".join(["parameters", *parameters])] if parameters else []
    parts += ["\n".join(["attributes", *attributes])] if attributes else []
    return "\n\n".join(parts)


def tree(hierarchy: Hierarchy) -> Iterator[str]:
    """Lines of a tree, each stratum with its gate and the kernel of the fibration that leads down to its parent."""
    g, seen = graph(hierarchy), set()

    def branch(stratum: Stratum, fibration: Fibration | None, first: str, rest: str) -> Iterator[str]:
        if stratum in seen:
            yield f"{first}{stratum} (see above)" + (f", kernel {fibration.kernel}" if fibration else "")
            return
        seen.add(stratum)
        finer = [(s, data["fibration"]) for _, s, data in g.out_edges(stratum, data=True)]
        bar = f"{rest}{'│' if finer else ' '}  "
        yield f"{first}{stratum}"
        if fibration is not None:
            yield f"{bar}kernel  {fibration.kernel}"
        yield f"{bar}gate    {hierarchy.gates[stratum]}"
        for i, (source, down) in enumerate(finer):
            last = i + 1 == len(finer)
            yield from branch(source, down, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")

    for stratum in [*hierarchy.roots, *hierarchy.strata]:
        if stratum not in seen:
            yield from branch(stratum, None, "", "")


# ---------------------------------------------------------------- mermaid


def mermaid(hierarchy: Hierarchy) -> str:
    """A flowchart: strata with their gates, fibrations as arrows to the coarser stratum, labelled by their kernels."""
    lines = [f"---\ntitle: {hierarchy.name}\n---", "flowchart BT"]
    # Numbered nodes, since words such as `end` or `graph` mean something to mermaid.
    number = {s: f"s{i}" for i, s in enumerate(hierarchy.strata)}
    for s, key in number.items():
        lines.append(f'    {key}["<b>{s}</b><br/>{_mermaid(str(hierarchy.gates[s]))}"]')
    for f in hierarchy.fibrations:
        lines.append(f'    {number[f.source]} -->|"{_mermaid(str(f.kernel))}"| {number[f.target]}')
    return "\n".join(lines)


def _mermaid(label: str) -> str:
    return label.translate(_ENTITIES)


_ENTITIES = str.maketrans({c: f"#{ord(c)};" for c in '#&"<>`'})


# ---------------------------------------------------------------- LaTeX

_GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega".split()
)
_FUNCTIONS = {"minimum": r"\min", "maximum": r"\max", "log": r"\log", "exp": r"\exp", "tanh": r"\tanh"}
_SIGNS = {"<": "<", "<=": r"\le", ">": ">", ">=": r"\ge", "and": r"\land", "or": r"\lor"}


def latex(hierarchy: Hierarchy) -> str:
    """An `align*` environment (amsmath): strata, kernels, decomposition, gates, recovery, objective."""
    h = hierarchy
    two = len(h.decomposition.channels) > 1
    rows = [f"&{_strata(h)}"]
    rows += [rf"K({_name(f.source)} \mid {_name(f.target)}) &= {tex(f.weight)}" for f in h.fibrations]
    for channel, density in h.decomposition.densities:
        rows.append(rf"F{f'_{{{channel}}}' if two else ''}(x) &= {tex(cancel(density))}")
    rows[-1] += r",\qquad x = \log r"
    for s in (s for layer in layers(graph(h)) for s in layer):
        body, *where = _gate(h.gate(s))
        rows += [rf"g_{{{_name(s)}}}(\rho) &= {body}", *(rf"&\qquad\text{{with }} {w}" for w in where)]
    rows.append(rf"R(\hat\sigma) &= {tex(cancel(h.decomposition.recovery))}")
    places = {"leaf": h.leaf if h.leaves else None, "rows": h.rows, BATCH: Stratum(BATCH)}
    weight = tex(_resolve(h.objective.weight, places))
    rows.append(rf"J &= \sum_i \mu_i\, \mathcal{{G}}(r)_i\, A_i,\qquad \mu_i = {weight}")
    lines = " \\\\\n".join(rows)
    return f"\\begin{{align*}}\n% {h.name}\n{lines}\n\\end{{align*}}"


def _strata(h: Hierarchy) -> str:
    g = graph(h)
    if g.number_of_nodes() == 1:
        return _name(h.strata[0])
    if nx.is_directed_acyclic_graph(g) and max(d for _, d in [*g.in_degree(), *g.out_degree()]) == 1:
        return r" \to ".join(_name(s) for s in reversed(list(nx.topological_sort(g))))
    return r",\quad ".join(rf"{_name(f.source)} \to {_name(f.target)}" for f in h.fibrations)


def _resolve(expression: Expression, places: Mapping[str, Stratum | None]) -> Expression:
    def put(atom: Expression) -> Expression:
        if isinstance(atom, Count):
            of, over = (places[p.name] if isinstance(p, Place) else p for p in (atom.of, atom.over))
            return Count(of, over) if of is not None else atom
        return atom

    return transform(expression, put)


def _gate(expression: Expression) -> tuple[str, ...]:
    """A gate; `gate.per(scale)` is written as the scale times the gate of s = ρ/scale, and s beside it."""
    if isinstance(expression, Apply) and expression.operator == "*":
        scale, inner = expression.arguments
        s = Reading("s")
        scaled = _replace(inner, residual / scale, s)
        if scaled != inner and residual not in set(_leaves(scaled)):
            text, strength = _tex(scale)
            factor = text if strength > 1 else rf"\left({text}\right)"
            return rf"{factor} \cdot {tex(scaled)}", f"s = {tex(cancel(residual / scale))}"
    return (tex(expression),)


def _replace(e: Expression, old: Expression, new: Expression) -> Expression:
    if e == old:
        return new
    return Apply(e.operator, tuple(_replace(a, old, new) for a in e.arguments)) if isinstance(e, Apply) else e


def _leaves(e: Expression) -> Iterator[Expression]:
    if isinstance(e, Apply):
        for a in e.arguments:
            yield from _leaves(a)
    else:
        yield e


def tex(expression: Expression) -> str:
    """An expression as LaTeX mathematics, for amsmath."""
    return _tex(expression)[0]


class _Written(NamedTuple):
    text: str
    strength: int  # 0 cases and conditions, 1 sums, 2 products, 3 powers, 4 whatever needs no parentheses


def _tex(e: Expression) -> _Written:
    if isinstance(e, Number):
        return _Written(write_number(e.value), 4 if e.value >= 0 else 1)
    if not isinstance(e, Apply):
        return _Written(_atom(e), 4)
    op, args = e.operator, e.arguments

    def operand(i: int, at_least: int) -> str:
        text, strength = _tex(args[i])
        negative_inside = i > 0 and strength == 1 and text.startswith("-")
        return text if strength >= at_least and not negative_inside else rf"\left({text}\right)"

    if op == "/":
        return _Written(rf"\frac{{{tex(args[0])}}}{{{tex(args[1])}}}", 2)
    if op == "*":
        dot = r" \cdot " if isinstance(args[1], Number) else r"\, "
        return _Written(f"{operand(0, 2)}{dot}{operand(1, 2)}", 2)
    if op in "+-":
        return _Written(f"{operand(0, 1)} {op} {operand(1, 1 if op == '+' else 2)}", 1)
    if op == "neg":
        return _Written(f"-{operand(0, 2)}", 1)
    if op == "**":
        return _Written(f"{operand(0, 4)}^{{{tex(args[1])}}}", 3)
    if op in _SIGNS:
        least = 2 if op in ("and", "or") else 1
        return _Written(f"{operand(0, least)} {_SIGNS[op]} {operand(1, least)}", 0)
    if op == "where":
        return _Written(_cases(e), 0)
    inside = [tex(a) for a in args]
    if op == "abs":
        return _Written(rf"\left\lvert {inside[0]} \right\rvert", 4)
    if op == "sqrt":
        return _Written(rf"\sqrt{{{inside[0]}}}", 4)
    if op == "not":
        return _Written(rf"\lnot\left({inside[0]}\right)", 0)
    if op == "expm1":
        return _Written(rf"\exp\left({inside[0]}\right) - 1", 1)
    if op == "log1p":
        inner = args[0]
        negated = inner.arguments[0] if isinstance(inner, Apply) and inner.operator == "neg" else None
        return _Written(rf"\log\left({tex(1 + inner if negated is None else 1 - negated)}\right)", 4)
    head = _FUNCTIONS.get(op, rf"\operatorname{{{op}}}")
    return _Written(rf"{head}\left({', '.join(inside)}\right)", 4)


def _cases(e: Expression) -> str:
    rows = []
    while isinstance(e, Apply) and e.operator == "where":
        condition, value, e = e.arguments
        rows.append(rf"{tex(value)} & \text{{if }} {tex(condition)}")
    rows.append(rf"{tex(e)} & \text{{otherwise}}")
    lines = r" \\ ".join(rows)
    return rf"\begin{{cases}} {lines} \end{{cases}}"


def _atom(atom: Expression) -> str:
    if isinstance(atom, Count):
        return rf"\lvert {_name(atom.of)}({_name(atom.over)}) \rvert"
    if isinstance(atom, Total):
        return rf"\Sigma_{{{_symbol(atom.attribute.name)}}}({_name(atom.over)})"
    if isinstance(atom, Attribute):
        return rf"{_symbol(atom.name)}({_name(atom.on)})"
    if isinstance(atom, (Parameter, Component)):
        parameter = atom.parameter if isinstance(atom, Component) else atom
        channel = atom.channel if isinstance(atom, Component) else r"\pm" if parameter.per_channel else ""
        return _symbol(parameter.name) + (f"^{{{channel}}}" if channel else "")
    if isinstance(atom, Density):
        return rf"\sigma_{{{_name(atom.stratum)}}}" + (f"^{{{atom.channel}}}" if atom.channel else "")
    if isinstance(atom, Gated):
        return r"\hat\sigma" + (f"_{{{atom.channel}}}" if atom.channel else "")
    return {"residual": r"\rho", "advantage": "A", "token_log_ratio": "x"}.get(getattr(atom, "name", ""), "s")


def _name(stratum: object) -> str:
    """A stratum; one without a name yet is the element at hand."""
    return rf"\mathrm{{{_escape(stratum.name)}}}" if isinstance(stratum, (Stratum, Place)) else r"\cdot"


def _symbol(name: str) -> str:
    """`C_prompt_group` as C with the subscript prompt_group; Greek letters by their names."""
    head, _, tail = name.partition("_")
    word = rf"\{head}" if head in _GREEK else head if len(head) == 1 else rf"\mathrm{{{head}}}"
    return word + (rf"_{{\mathrm{{{_escape(tail)}}}}}" if tail else "")


def _escape(name: str) -> str:
    return name.replace("_", r"\_")
