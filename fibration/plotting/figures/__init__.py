"""The paper's figures, of any hierarchy: its gates, its regimes on the simplex, its objective under drift.

`FIGURES` is the registry. Every number comes from the compiled operator, in float64 on the torch backend; the figures
contain no formula of any loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from fibration.errors import FigureError, listed, suggest
from fibration.files import check_writable, write_file
from fibration.language.hierarchy import Hierarchy
from fibration.pipeline import compile as compile_operator
from fibration.plotting.canvas import page
from fibration.plotting.figures import gates, objective, regimes
from fibration.runtime.operator import Operator

FORMATS = ("png", "svg")


@dataclass(frozen=True)
class Kind:
    """One figure: what it shows, the module that draws it, and the parameters of the paper's caption."""

    shows: str
    module: ModuleType
    paper: Mapping[str, Any]


FIGURES: Mapping[str, Kind] = {
    "gates": Kind(
        "every gate along its residual, and what both sign channels add together",
        gates,
        {"C_trajectory": {"+": 0.20, "-": 0.10}, "k": 2.0},
    ),
    "regimes": Kind(
        "regimes over all ratios of a trajectory of 3 tokens",
        regimes,
        {"C_trajectory": {"+": 0.15, "-": 0.09}, "epsilon": 0.025, "k": 3.0},
    ),
    "objective": Kind(
        "per-token and total objective while the policy drifts",
        objective,
        {"C_trajectory": {"+": 0.12, "-": 0.05}, "epsilon": 0.04, "k": 32.0},
    ),
}


def draw(
    hierarchy: Hierarchy,
    out: Path,
    figures: Sequence[str] = tuple(FIGURES),
    parameters: Mapping[str, Any] | None = None,
    formats: Sequence[str] = ("png",),
    paper: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> list[tuple[Path, str]]:
    """Writes figures of a hierarchy to the folder `out` as `NAME_FIGURE.FORMAT`. Returns paths and descriptions.

    `parameters` as in `Operator.loss`. `paper=True` takes the values in the paper's captions for `epsilon`,
    `C_trajectory` and `k`, if the hierarchy has them. All figures are drawn before the first is written. Raises
    FigureError for unknown figures and formats, ParameterError, LawError for a hierarchy that does not verify, and
    BackendError if `out` cannot be written.
    """
    given = dict(parameters or {})
    for what, names, known in (("figure", figures, FIGURES), ("format", formats, FORMATS)):
        for name in names:
            if name not in known:
                raise FigureError(
                    f"no {what} '{name}'", required=f"one of {', '.join(known)}", remedy=suggest(name, known)
                )
    check_writable(out, "--output")
    op = compile_operator(hierarchy, "torch")
    files: dict[Path, tuple[bytes, str]] = {}
    for name in dict.fromkeys(figures):
        step(name)
        picture = make(op, name, given, paper)
        for form in dict.fromkeys(formats):
            files[out / f"{hierarchy.name}_{name}.{form}"] = page(picture, form), FIGURES[name].shows
    for path, (contents, _) in files.items():
        write_file(path, contents)
    return [(path, shows) for path, (_, shows) in files.items()]


def make(op: Operator, name: str, parameters: Mapping[str, Any], paper: bool = False) -> Figure:
    """Returns one figure of a compiled hierarchy."""
    kind = FIGURES[name]
    values = {**(caption(op.hierarchy, name) if paper else {}), **parameters}
    below = [note(op.hierarchy, values)]
    if kind.module is not objective and op.hierarchy.objective.formulas:
        below.append(undrawn(op.hierarchy))
    return kind.module.figure(op, values, "\n".join(below))  # type: ignore[no-any-return]


def caption(hierarchy: Hierarchy, name: str) -> dict[str, Any]:
    """The parameters of the paper's caption that a hierarchy has."""
    return {k: v for k, v in FIGURES[name].paper.items() if k in hierarchy.parameters}


def note(hierarchy: Hierarchy, values: Mapping[str, Any]) -> str:
    """The parameters, attributes and frozen policies of a figure, for its caption."""
    used = [name + ", ".join(_entries(values.get(name, p.default))) for name, p in hierarchy.parameters.items()]
    given = dict.fromkeys(a.usual for a in hierarchy.attributes.values())
    if given:
        used.append("every attribute " + " or ".join(f"{v:g}" for v in given))
    frozen = [name for name, policy in hierarchy.policies.items() if policy.is_frozen]
    if frozen:
        used.append(f"every token ½ under {listed(frozen)}")
    return ";  ".join(used)


def undrawn(hierarchy: Hierarchy) -> str:
    """The parts of the objective that a figure of gates cannot show, in words."""
    o = hierarchy.objective
    words = [f"{len(o.weighed)} weigh(...)"] * bool(o.weighed) + [f"{len(o.kept)} keep(...)"] * bool(o.kept)
    return f"not drawn: {' and '.join(words)} of the objective, which no gate reads" if words else ""


def _entries(value: Any, at: str = "") -> Iterator[str]:
    """A parameter's value as text: ` = 0.1`, or one entry per element and channel: `[+] = 0.2`, `[−] = 0.1`."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _entries(one, f"{at}[{'−' if key == '-' else key}]")
    else:
        yield f"{at} = {f'{value:g}' if isinstance(value, (int, float)) else value}"
