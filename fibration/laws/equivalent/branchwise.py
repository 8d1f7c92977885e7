"""Compares formulas of two hierarchies branch by branch: where branches of both meet, they must be one function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from fibration.language.atoms import Gated, Reading
from fibration.language.expressions import Expression, as_expression
from fibration.language.operators import ZERO, Signs, where
from fibration.language.sympy_bridge import ATOM_OF, cancelled, vanishes
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, Conditions, TooManyCases, cases, merged
from fibration.laws.signs.feasible import feasible, normal

MOST = 600  # combinations of branches


def same(
    one: Expression, other: Expression, assume: Assumptions, under: Sequence[Conditions], by_value: bool = False
) -> bool:
    """Whether two formulas have the same values and derivatives, branch for branch; `by_value`: values alone."""
    if one == other:
        return True
    for (a, b), known in together([cases(one, assume), cases(other, assume)], assume, under):
        mine, yours = (at_ties(e.sympy(), known) if by_value else e.held() for e in (a, b))
        if not (identical(mine, yours) and alike(a, b, known, assume, by_value)) and can_hold(known, assume):
            return False
    return True


def at_ties(value: Any, known: Conditions) -> Any:
    """Simplifies a value with the known conditions `d = 0`: each that is linear in a variable is solved for it."""
    ties = [d for d, signs in known.items() if signs == ZERO]
    for k, d in enumerate(ties):
        for s in sorted(d.free_symbols, key=str):
            slope = sympy.diff(d, s)
            if slope.is_number and slope != 0:
                solved = s - d / slope
                value, ties[k + 1 :] = value.subs(s, solved), [e.subs(s, solved) for e in ties[k + 1 :]]
                break
    return value


def together(
    many: Sequence[list[Case]], assume: Assumptions, under: Sequence[Conditions]
) -> Iterator[tuple[tuple[Case, ...], Conditions]]:
    """Yields every combination of branches that can hold under one of `under`, with its conditions."""
    if math.prod(map(len, many)) > MOST:
        raise TooManyCases(f"more than {MOST} combinations")
    conditions = {id(case): normal_form(case, assume) for found in many for case in found}

    def extend(known: Conditions, k: int) -> Iterator[tuple[tuple[Case, ...], Conditions]]:
        if k == len(many):
            yield (), known
            return
        for case in many[k]:
            more = conditions[id(case)]
            both = None if more is None else merged(known, more)
            if both is not None and (both == known or feasible(both, assume)):
                yield from (((case, *rest), where) for rest, where in extend(both, k + 1))

    for some in under:
        yield from extend(some, 0)


def outcomes(condition: Expression, assume: Assumptions) -> Iterator[Case]:
    """Yields the cases in which a condition holds."""
    yield from (c for c in cases(where(condition, 1, 0), assume) if c.value == as_expression(1))


def normal_form(case: Case, assume: Assumptions) -> Conditions | None:
    """The conditions of a branch in normal form; None if they exclude each other."""
    found: Conditions | None = {}
    for d, signs in case.signs:
        at_0 = {v: 0 for v in d.free_symbols if assume.signs(v) == ZERO}  # exp(x) is 1 there
        value, allowed = normal(d.subs(at_0), signs, assume)
        if value.is_number:
            found = found if assume.signs(value) <= allowed else None
        elif found is not None:
            found = merged(found, {value: allowed})
    return found


def can_hold(conditions: Conditions, assume: Assumptions) -> bool:
    """Whether every condition is possible given the signs of the others. A second check, after elimination."""
    for d, allowed in conditions.items():
        others = {e: signs for e, signs in conditions.items() if e != d}
        if not assume.with_signs(others).signs(d) & allowed:
            return False
    return True


def alike(one: Case, other: Case, known: Conditions, assume: Assumptions, by_value: bool) -> bool:
    """Whether two branches that meet have values (and slopes, unless `by_value`) at the same places."""
    return _unmet(one, known, assume, by_value) == _unmet(other, known, assume, by_value)


def _unmet(case: Case, known: Conditions, assume: Assumptions, by_value: bool) -> set[tuple[Any, Signs]]:
    needs = case.needs if by_value else case.needs_of_slopes(may_move)
    if all(assume.signs(n.value) <= n.signs for n in needs):
        return set()
    inside = assume.with_signs({**known, **dict(case.signs)})
    return {(sympy.expand(n.value), n.signs) for n in needs if not inside.signs(n.value) <= n.signs}


def may_move(symbol: Any) -> bool:
    """Whether a gradient may flow from a symbol: that of a log ratio, a gated number or a statistic."""
    return isinstance(ATOM_OF[symbol], (Reading, Gated))


def identical(one: Any, other: Any) -> bool:
    """Whether two branch-free formulas are the same function of all their variables."""
    difference = sympy.sympify(one - other)
    if difference == 0 or vanishes(difference):
        return True
    if not difference.has(sympy.exp):
        return False
    plain = difference.replace(sympy.exp, lambda a: sympy.exp(sympy.expand(cancelled(sympy.together(a)))))
    return vanishes(sympy.expand(plain))
