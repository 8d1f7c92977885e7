"""Formulas that are read at tokens: weights, conditions of `keep`, and what statistics are of. No gradient flows there.

And `stop`, which is an error where none would flow without it: it says something that is not so.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.errors import SpecError, listed
from fibration.language.atoms import (
    Attribute,
    Count,
    Density,
    Gated,
    Parameter,
    Reading,
    Stratum,
    Total,
    channel_sign,
    mass,
    pull,
    residual,
    token_log_ratio,
)
from fibration.language.expressions import Apply, Expression
from fibration.language.operators import stop
from fibration.language.outline import Outline
from fibration.language.places import whole_batch
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate, within
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, desugar

REQUIRED = (
    "what every token has: log_prob(policy), token_log_ratio, advantage; attributes, counts and totals of it or of "
    "what it lies over; parameters; statistics of these"
)
# What a token has not, and what to write instead.
_OF_A_LEVEL = {
    residual: ("a residual is a level's, and gradients flow through it", "read token_log_ratio, or put it into a gate"),
    mass: ("the mass is what kernels spread", "write the count or total that it stands for"),
    channel_sign: ("a token is on every channel", "read the sign of token_log_ratio"),
    pull: ("what pulls an element is for its gate", "read advantage"),
}
STOP = "stop"
WIDEST = 80  # of a formula in a message


def check_token_formulas(h: Outline, here: str) -> None:
    """Everything that weights, conditions and statistics read is one number of every token."""
    for what, formula in _token_formulas(h):
        for atom in atoms(formula):
            if (problem := _problem(h, atom)) is not None:
                why, remedy = problem
                raise SpecError(f"{here}: {what} reads {atom}", required=REQUIRED, found=why, remedy=remedy)


def _token_formulas(h: Outline) -> Iterator[tuple[str, Expression]]:
    """All of them, each with what it is of; those that statistics of statistics are of too."""
    own = [(f"the weight {_short(w)}", w) for w in h.objective.weighed]
    own += [(f"keep({_short(k.condition)})", k.condition) for k in h.objective.kept]
    for name, weighed in ((n, p.objective) for n, p in h.penalties.items()):
        formulas = () if weighed is None else weighed.formulas
        own += [(f"the objective of the penalty '{name}'", formula) for formula in formulas]
    own += [] if h.advantages is None else [("the formula of advantages", h.advantages)]
    yield from own
    for _, read in (*_formulas(h), *own):
        for statistic in (a for e in within(read) for a in atoms(e)):
            if isinstance(statistic, Aggregate):
                yield f"the statistic {_short(statistic)}", statistic.formula


def _formulas(h: Outline) -> Iterator[tuple[str, Expression]]:
    """Every formula through which gradients may flow, and what it is."""
    yield from ((f"kernel {f.name}", f.weight) for f in h.fibrations)
    yield from ((f"the gate on {s}", g.expression) for s, g in h.gates.items())
    yield from ((f"density '{c}' of the decomposition", e) for c, e in h.decomposition.densities)
    yield "the recovery", h.decomposition.recovery
    yield "the scale of the decomposition", h.decomposition.scale
    yield "the objective", h.objective.weight
    yield from ((f"the penalty '{name}'", p.formula) for name, p in h.penalties.items())


def _short(formula: Expression) -> str:
    text = str(formula)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _problem(h: Outline, atom: Expression) -> tuple[str, str] | None:
    """Why a token has no single such number, and what to do about it; None if it has one."""
    if isinstance(atom, (Density, Gated)):
        return "densities are a level's, and gradients flow through them", "read token_log_ratio, or a statistic of it"
    if isinstance(atom, Reading):
        return _OF_A_LEVEL.get(atom)
    if isinstance(atom, Parameter) and atom.per_channel:
        return "a token is on every channel", "declare it with per_channel=False, or a parameter for each"
    if not h.leaves:  # a cycle, for the laws to refuse
        return None
    shape = whole_batch(h)
    tokens = [(leaf, *shape.coarser(leaf)) for leaf in h.leaves]
    places = [s for s in tokens[0] if all(s in other for other in tokens)]
    if isinstance(atom, (Attribute, Parameter)):
        return None if atom.on is None or atom.on in places else _elsewhere(h, shape, atom.on, places)
    if isinstance(atom, (Count, Total)):
        return _sum(h, shape, atom, places)
    return _statistic(h, shape, atom, places) if isinstance(atom, Aggregate) else None


def _elsewhere(h: Outline, shape: Shape, place: object, places: list[Stratum]) -> tuple[str, str]:
    if place in h.leaves:
        why = f"tokens are elements of {listed(h.leaves)}, not of {place} alone"
    elif place in shape.strata:
        why = f"not every token lies over a '{place}'"
    else:
        why = f"no token lies over a '{place}'"
    return why, f"name one of {', '.join(s.name for s in places)}" if places else "name what tokens lie over"


def _sum(h: Outline, shape: Shape, atom: Count | Total, places: list[Stratum]) -> tuple[str, str] | None:
    of, over = atom.of, atom.over
    if not isinstance(of, Stratum):
        return f"'{of}' is a stratum of kernels alone", "name a stratum"
    if over is None and of not in h.leaves:
        return f"no '{of}' lies over a token", f"say over what: over= one of {', '.join(map(str, places))}"
    if over is None and len(h.leaves) == 1:
        return None
    if over not in places:
        return _elsewhere(h, shape, over or of, places)
    if of != over and over not in shape.coarser(of):
        return f"no '{of}' lies over a '{over}'", f"the strata are {', '.join(s.name for s in h.strata)}"
    return None


def _statistic(h: Outline, shape: Shape, atom: Aggregate, places: list[Stratum]) -> tuple[str, str] | None:
    over, level = atom.over, atom.level
    if over is None:
        return "over one token it is that token's own", f"say over what: over= one of {', '.join(map(str, places))}"
    if not isinstance(over, Stratum) or over not in places:
        return _elsewhere(h, shape, over, places)
    if isinstance(level, Parameter) and level.on not in (None, over, *shape.coarser(over)):
        return f"the level '{level.name}' varies over {level.on}", f"let it vary over {over} or what is coarser"
    return None


# ---------------------------------------------------------------- stop


def check_stops(h: Outline, here: str) -> None:
    """No `stop` of what does not move with the current policy, and none where no gradient flows anyway."""
    for what, formula in _token_formulas(h):
        for stopped in _stops(formula):
            raise SpecError(
                f"{here}: {what} says {_short(stop(stopped))}",
                required="stop(...) where a gradient flows: in gates, decompositions and recoveries",
                found="no gradient flows through weights, conditions of keep and statistics",
                remedy=f"write {_short(stopped)}",
            )
    for what, formula in _formulas(h):
        for stopped in _stops(formula):
            if not moves(desugar(stopped)):
                raise SpecError(
                    f"{here}: {what} says {_short(stop(stopped))}",
                    required="stop(...) of what moves with the policy: residual, density, token_log_ratio, gated",
                    found=f"{_short(stopped)} has no gradient to stop",
                    remedy=f"write {_short(stopped)}",
                )


def _stops(formula: Expression) -> Iterator[Expression]:
    """What the formula stops, outermost first."""
    if isinstance(formula, Apply):
        if formula.operator == STOP:
            yield formula.arguments[0]
        for argument in formula.arguments:
            yield from _stops(argument)


def moves(formula: Expression) -> bool:
    """Whether a gradient of the current policy flows through a formula without sugar."""
    if not isinstance(formula, Apply):
        current = isinstance(formula, LogProb) and not formula.policy.is_frozen
        return current or isinstance(formula, (Density, Gated)) or formula in (residual, token_log_ratio)
    if formula.operator == STOP or formula.is_condition:
        return False
    return any(moves(a) for a in formula.arguments)
