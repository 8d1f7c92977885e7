"""Where gradients of the current policy flow, and checks of `stop` and of penalties.

A `stop` with no gradient to stop is refused, because it misleads.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.errors import SpecError, suggest
from fibration.language.atoms import Density, Gated, Summary, residual, token_log_ratio
from fibration.language.expressions import Apply, Expression
from fibration.language.operators import stop
from fibration.language.order import AFTER, BEFORE
from fibration.language.outline import Outline
from fibration.language.policies import CURRENT, LogProb
from fibration.language.statistics import atoms_within
from fibration.language.token_formulas import called, roots, short
from fibration.language.traversal import desugar

STOP = "stop"
# Kinds of statistics and order that carry gradients: none; in densities; in penalties.
NO_KINDS: frozenset[str] = frozenset()
ORDER = frozenset({BEFORE, AFTER})
SUMS = ORDER | {"total", "mean"}
HELD = "no gradient flows through weights, conditions, advantages and statistics, but for sums and means in penalties"


def carries_gradient(formula: Expression, through: frozenset[str] = NO_KINDS) -> bool:
    """Whether a gradient of the current policy flows through a formula without sugar.

    `through`: the kinds of statistics and order that carry gradients.
    """
    if isinstance(formula, Apply):
        if formula.operator == STOP or formula.is_condition:
            return False
        return any(carries_gradient(a, through) for a in formula.arguments)
    if isinstance(formula, Summary):
        return formula.word in through and carries_gradient(desugar(formula.formula), through)
    current = isinstance(formula, LogProb) and not formula.policy.is_frozen
    return current or isinstance(formula, (Density, Gated)) or formula in (residual, token_log_ratio)


def check_stops(h: Outline, here: str) -> None:
    """Raises SpecError for a `stop` of a formula without a gradient, and for a `stop` where no gradient flows."""
    for root in roots(h):
        through = {"penalty": SUMS, "density": ORDER}.get(root.role, NO_KINDS)
        for what, stopped, flows in _stops(root.what, root.formula, through, root.role not in ("token", "advantages")):
            if flows and carries_gradient(desugar(stopped), through):
                continue
            raise SpecError(
                f"{here}: {what} says {short(stop(stopped))}",
                required="stop(...) of what moves with the policy: residual, density, token_log_ratio, gated"
                if flows
                else "stop(...) where a gradient flows: in gates, decompositions, recoveries and penalties",
                found=f"{short(stopped)} has no gradient to stop" if flows else HELD,
                remedy=f"write {short(stopped)}",
            )


def _stops(
    what: str, formula: Expression, through: frozenset[str], flows: bool
) -> Iterator[tuple[str, Expression, bool]]:
    """Yields every stopped formula, outermost first, with its description and whether gradients flow there.

    Formulas in statistics and order are searched too.
    """
    if isinstance(formula, Apply):
        if formula.operator == STOP:
            yield what, formula.arguments[0], flows
        for argument in formula.arguments:
            yield from _stops(what, argument, through, flows and not formula.is_condition)
    elif isinstance(formula, Summary):
        yield from _stops(called(formula), formula.formula, through, flows and formula.word in through)


def check_gradients(h: Outline, here: str) -> None:
    """Raises SpecError for a penalty without a gradient."""
    for name, penalty in h.penalties.items():
        if not carries_gradient(desugar(penalty.formula), SUMS):
            read = set(atoms_within(penalty.formula))
            misspelt = (
                suggest(p.name, [CURRENT]) for a in read if isinstance(a, LogProb) and (p := a.policy).is_passed
            )
            raise SpecError(
                f"{here}: no gradient flows through the penalty '{name}', {short(penalty.formula)}",
                required="a formula of token_log_ratio or log_prob(current), or of their totals, means and order",
                found="largest, some, quantile, deviation, conditions and stop pass no gradient"
                if any(carries_gradient(a) for a in read)
                else "it reads nothing of the current policy, so no update would change by it",
                remedy=next(
                    filter(None, misspelt), "read log_prob(current); what rewards are less by is for advantages="
                ),
            )
