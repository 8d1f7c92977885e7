"""A hierarchy as text and as a mermaid flowchart, and the regimes of gates, as tables and pictures show them.

The laws need not hold: a refused hierarchy can be shown, even one with a cycle.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fibration.errors import listed
from fibration.language.atoms import Stratum, pull
from fibration.language.expressions import Expression
from fibration.language.gates import Decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, Penalty
from fibration.language.strata import Assumption, Balanced, Fibration
from fibration.language.traversal import atoms, cancel

# ---------------------------------------------------------------- text


def text(hierarchy: Hierarchy) -> str:
    """Returns all formulas of a hierarchy, its strata coarsest first, and all inputs of its loss."""
    h = hierarchy
    sections = {
        "": [*_objective(h)],
        "gated ratio": [*_gated_ratio(h)],
        "levels": [*(tree(h) if h.shape.is_tree else quiver(h))],
        "groups": [f"{s}: {s}=labels, one of every {h.rows}, in every index" for s in h.groups],
        "assumes of every batch": [_assumed(a) for a in h.assume],
        "residuals": _residuals(h),
        "pulls": [f"on {s}: {h.pull(s)}" for s, g in h.gates.items() if pull in atoms(g.expression)],
        "parameters": [p.declaration() for p in h.parameters.values()],
        "attributes": [a.declaration() for a in h.attributes.values()],
        "policies": [f"{p}: policies={{'{p}': log_probs}} in every call" for p in h.policies.values() if p.is_passed],
        "gives up": [f"{law}: {reason}" for law, reason in h.gives_up.items()],
    }
    shown = ([name or h.name, *(f"  {line}" for line in lines)] for name, lines in sections.items() if lines)
    return "\n\n".join(map("\n".join, shown))


def _gated_ratio(h: Hierarchy) -> Iterator[str]:
    """Yields the density of a token, the formulas of named gates, and `𝒢(r)` of what the gates pass."""
    for channel, density in h.decomposition.densities:
        yield f"density of a token{f' in channel {channel}' if channel else ''} = {cancel(density)}"
    for gate in dict.fromkeys(h.gates.values()):
        if not gate.written.startswith("Gate("):
            yield f"{gate} = {cancel(gate.expression)}"
    yield f"𝒢(r) = {cancel(h.decomposition.recovery)}, where gated(...) is what the gates of all levels pass to a token"


def _objective(h: Hierarchy) -> Iterator[str]:
    """Yields `J`, `μ`, the weights and `keep` conditions of tokens, the advantages, and the penalties."""
    o = h.objective
    gated = f"{'w_i·' if o.weighed else ''}𝒢(r)_i"
    product = f"stop({gated})·A_i·log π_i" if o.estimator == "score" else f"{gated}·A_i"
    yield f"J = Σ_i μ_i·{product}" + "".join(f" - {_penalised(k, p)}" for k, p in h.penalties.items())
    yield from _weights(h, o)
    if h.advantages is not None:
        yield f"A_i = {h.advantages}, of rewards=, or advantages= in their place"
    for name, penalty in h.penalties.items():
        at = "_i" if penalty.over is None else ""
        yield f"{name}{at} = {penalty.formula}"
        if penalty.objective is not None:
            yield from _weights(h, penalty.objective, f"[{name}]")


def _penalised(name: str, penalty: Penalty) -> str:
    """Returns the term that is subtracted from `J`."""
    if penalty.over is not None:
        return f"mean[{penalty.over}]({name})"
    own = "" if penalty.objective is None else f"[{name}]"
    return f"Σ_i μ{own}_i·{f'w{own}_i·' if penalty.objective and penalty.objective.weighed else ''}{name}_i"


def _weights(h: Hierarchy, o: Objective, of: str = "") -> Iterator[str]:
    yield f"μ{of}_i = {o.spelled_out(h.leaves, h.rows)}"
    if o.weighed:
        yield f"w{of}_i = {functools.reduce(operator.mul, o.weighed)}"
    for k in o.kept:
        counted = f", which alone μ{of} counts" if k.normaliser == "kept" else ""
        apart = ", but in penalties" if not of and h.penalties and not counted else ""
        yield f"over i{f' of {of[1:-1]}' if of else ''} with {k.condition}{counted}{apart}"


def _assumed(assumption: Assumption) -> str:
    if isinstance(assumption, Balanced):
        return f"{assumption}: they cross in proportional frequencies"
    return f"{assumption}: at least one {assumption.stratum} over every {assumption.over}"


def _residuals(h: Hierarchy) -> list[str]:
    """Returns how residuals are computed where strata cross; elsewhere a residual is a density less the one below."""
    if not has_crossings(h):
        return []
    if h.orthogonalise and h.shape.crossed():
        crossed = h.shape.crossed()
        over = [s for s in h.order if s not in crossed and any(u in crossed for u in h.shape.moebius(s))]
        below = {s: [u for u in h.order if u in h.coarser(s)] for s in over}
        return [
            f"of {listed(crossed)} by least squares in the mass (orthogonalise={h.orthogonalise!r})",
            *(f"of {s}: its mean less the residuals of {listed(below[s])}" for s in over),
        ]
    lines = []
    for stratum, coarser in moebius(h).items():
        signs = "".join(
            f" {'+' if c < 0 else '-'} {'' if abs(c) == 1 else f'{abs(c)} '}{u}" for u, c in coarser.items()
        )
        lines.append(f"of {stratum}, in means: {stratum}{signs}")
    return lines


def has_crossings(h: Hierarchy) -> bool:
    """Whether some stratum lies directly over several strata, and no cycle exists."""
    return not h.shape.is_tree and h.shape.is_acyclic


def moebius(h: Hierarchy) -> dict[Stratum, dict[Stratum, int]]:
    """Returns, for every crossing, the coarser strata whose densities are subtracted, and how often."""
    return {s: h.shape.moebius(s) for s in h.shape.crossings()}


def joint(h: Hierarchy, target: Stratum) -> list[tuple[Fibration, ...]]:
    """Returns the sets of several fibrations into a stratum whose kernels reflect together: their joint sum is 1."""
    return [cover for cover in h.shape.covers(target) if len(cover) > 1]


def tree(hierarchy: Hierarchy) -> Iterator[str]:
    """Yields the lines of a tree: each stratum with its gate and the kernel of the fibration to its parent.

    Kernels that reflect together are named below their target's gate.
    """
    seen = set()

    def branch(stratum: Stratum, fibration: Fibration | None, first: str, rest: str) -> Iterator[str]:
        if stratum in seen:
            yield f"{first}{stratum} (see above)" + (f", kernel {fibration.kernel}" if fibration else "")
            return
        seen.add(stratum)
        finer = hierarchy.shape.above(stratum)
        bar = f"{rest}{'│' if finer else ' '}  "
        yield f"{first}{stratum}"
        if fibration is not None:
            yield f"{bar}kernel  {fibration.kernel}"
        yield f"{bar}gate    {hierarchy.gates[stratum]}"
        for cover in joint(hierarchy, stratum):
            yield f"{bar}jointly {listed([f.source for f in cover])} share one reflecting kernel"
        for i, down in enumerate(finer):
            mark, beside = ("└─ ", "   ") if i + 1 == len(finer) else ("├─ ", "│  ")
            yield from branch(down.source, down, rest + mark, rest + beside)

    for stratum in [*hierarchy.roots, *hierarchy.strata]:
        if stratum not in seen:
            yield from branch(stratum, None, "", "")


def quiver(hierarchy: Hierarchy) -> Iterator[str]:
    """Yields the lines of a quiver: every stratum once, coarsest first, with the kernel of each of its fibrations."""
    for depth, strata in enumerate(hierarchy.shape.layers()):
        if depth:
            yield "─" * 8
        for stratum in strata:
            yield str(stratum)
            below = hierarchy.shape.below(stratum)
            width = max((len(f"over {f.target}") for f in below), default=0)
            for f in below:
                yield f"   {f'over {f.target}':<{width}}  kernel {f.kernel}"
            yield f"   {'gate':<{width}}  {hierarchy.gates[stratum]}"
            for cover in joint(hierarchy, stratum):
                yield f"   jointly  {listed([f.source for f in cover])} share one reflecting kernel"


# ---------------------------------------------------------------- mermaid


def mermaid(hierarchy: Hierarchy) -> str:
    """Returns a flowchart: strata with their gates, fibrations as arrows to the coarser stratum, with their kernels.

    Dotted arrows lead to groups.
    """
    lines = [f"---\ntitle: {hierarchy.name}\n---", "flowchart BT"]
    # Nodes are numbered, because `end` and `graph` are keywords of mermaid.
    number = {s: f"s{i}" for i, s in enumerate(hierarchy.strata)}
    for s, key in number.items():
        lines.append(f'    {key}["<b>{s}</b><br/>{str(hierarchy.gates[s]).translate(_ENTITIES)}"]')
    for f in hierarchy.fibrations:
        lines.append(f'    {number[f.source]} -->|"{str(f.kernel).translate(_ENTITIES)}"| {number[f.target]}')
    for i, group in enumerate(hierarchy.groups):
        lines.append(f'    g{i}["<b>{group}</b><br/>labels of {hierarchy.rows}"]')
        over = [hierarchy.rows] if hierarchy.rows in number else hierarchy.leaves
        lines += [f"    {number[s]} -.-> g{i}" for s in over]
    return "\n".join(lines)


_ENTITIES = str.maketrans({c: f"#{ord(c)};" for c in '#&"<>`'})


def shortened(name: str, most: int) -> str:
    """Returns a name in at most `most` characters. Many names begin alike, so the middle is left out."""
    end = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}"


@dataclass(frozen=True)
class Regime:
    """The look of a regime in tables and pictures. The colours are safe for colour-blind readers."""

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

UNITS = (("nats", signed_log_ratio), ("nats", log_ratio), ("r − 1", ratio_deviation))


def unit(hierarchy: Hierarchy) -> str:
    """Returns the unit of the drift of a verified hierarchy.

    Residuals are means of the coordinate only if the decomposition's scale is the measure that the kernels spread.
    Otherwise they are densities, in "units of F".
    """
    d = hierarchy.decomposition
    if any(hierarchy.masses[s] != cancel(hierarchy.with_mass(d.scale, s)) for s in hierarchy.leaves):
        return "units of F"
    densities = _densities(d)
    return next((name for name, make in UNITS if _densities(make(d.scale)) == densities), "units of F")


def _densities(decomposition: Decomposition) -> list[tuple[str, Expression]]:
    return [(channel, cancel(density)) for channel, density in decomposition.densities]
