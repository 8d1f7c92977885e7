"""How large a weight can be, and its second moment under the policy that tokens are sampled from.

A bound comes from the values that a weight takes in each of its branches. A condition that compares the weight, or its
logarithm, with a number bounds it by that number.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Component, Parameter, Stratum, advantage, at
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import NOT_NEGATIVE, exp, where
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, atoms_within, total
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import ATOM_OF, BOUNDS, from_sympy, to_sympy
from fibration.language.traversal import atoms, desugar
from fibration.laws.gates.pieces import extremes
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.claim import Claim, known_at
from fibration.laws.signs.populations import formulas

BETWEEN = ("mean", "largest", "quantile")  # statistics that lie between the values of their formula


def supremum(h: Hierarchy, weight: Expression) -> Any:
    """The upper bound of a weight on kept tokens, in numbers and parameters; `oo` if no bound is known.

    In each branch the bound follows from the parts of the value. Or it is a number in the weight or in a condition, if
    the branch implies that the weight, or its logarithm, is not above it. A root or a quotient by a positive number is
    bounded by its argument too; the lower of the two bounds is returned.
    """
    found = list(dict.fromkeys(_at_leaf(h, weight, leaf) for leaf in h.leaves))
    return oo if oo in found else _largest(found, known_at(h, h.leaves[0]).anywhere)


def _largest(ends: list[Any], assume: Assumptions) -> Any:
    return sympy.Max(*extremes(ends, assume, 1))


def _at_leaf(h: Hierarchy, weight: Expression, leaf: Stratum) -> Any:
    found = [e for e in (_of_whole(h, weight, leaf), _of_argument(h, weight, leaf)) if e != oo]
    return extremes(found, known_at(h, leaf).anywhere, -1)[0] if found else oo


def _of_argument(h: Hierarchy, weight: Expression, leaf: Stratum) -> Any:
    if not isinstance(weight, Apply):
        return oo
    first, *others = weight.arguments
    if weight.operator == "sqrt":
        return sympy.sqrt(_at_leaf(h, first, leaf))
    if weight.operator == "/" and isinstance(others[0], Number) and others[0].value > 0:
        return _at_leaf(h, first, leaf) / to_sympy(others[0])
    return oo


def _of_whole(h: Hierarchy, weight: Expression, leaf: Stratum) -> Any:
    read, assume = _on_kept(h, weight, leaf), known_at(h, leaf)
    bounds = [to_sympy(e) for e in dict.fromkeys(_written(desugar(read)))]
    try:
        ends = [_of_case(case, bounds, assume) for case in cases(read, assume)]
    except TooManyCases:
        return oo
    return oo if oo in ends else _largest(list(dict.fromkeys(ends)), assume)


def _on_kept(h: Hierarchy, weight: Expression, leaf: Stratum) -> Expression:
    """A weight at the tokens of a leaf; 0 at tokens that a condition drops."""
    conditions = [at(k.condition, leaf) for k in h.objective.kept]
    kept = [c for condition in conditions for c in (condition, *_implied(condition, leaf, whole_batch(h)))]
    read = at(weight, leaf)
    return where(functools.reduce(operator.and_, kept), read, 0) if kept else read


def _implied(condition: Expression, leaf: Stratum, shape: Shape) -> Iterator[Expression]:
    """Yields what `~some(...)` in a condition implies at a kept token: no token of the same element breaks it.

    For a statistic of elements, it holds at the element that the token lies over; a token of another branch lies over
    none. Formulas of elements that read the advantage are left out: tokens of one row may have different advantages.
    """
    if isinstance(condition, Apply) and condition.operator == "and":
        for part in condition.arguments:
            yield from _implied(part, leaf, shape)
    elif isinstance(condition, Apply) and condition.operator == "not":
        (inner,) = condition.arguments
        if isinstance(inner, Aggregate) and inner.kind == "some":
            for place, read in formulas(inner, shape):
                if place == leaf or (place in shape.coarser(leaf) and advantage not in atoms(read)):
                    yield ~read


def _written(e: Expression) -> Iterator[Expression]:
    """Yields the largest parts of a formula that read only parameters and numbers."""
    if not e.is_condition and all(isinstance(a, Parameter) for a in atoms(e)):
        yield e
    elif isinstance(e, Apply):
        for a in e.arguments:
            yield from _written(a)


def _of_case(case: Case, bounds: list[Any], assume: Assumptions) -> Any:
    inside = assume.with_signs(dict(case.signs))
    value = case.sympy()
    found = [e for e in (_top(value, inside),) if e != oo]
    found += [b for b in bounds if -1 not in inside.signs(b - value)]
    if isinstance(value, sympy.exp):
        found += [sympy.exp(b) for b in bounds if -1 not in inside.signs(b - value.args[0])]
    found = [e for e in found if Claim(from_sympy(e), assume.anywhere).is_shown]  # it has a value beyond its branch
    return extremes(found, assume, -1)[0] if found else oo


def _top(value: Any, assume: Assumptions) -> Any:
    """The upper bound of a value, from its parts; `oo` if it is not known."""
    if not _varies(value):
        return value
    if 1 not in assume.signs(value):
        return sympy.Integer(0)
    atom = ATOM_OF.get(value)
    if isinstance(atom, Aggregate) and atom.kind in BETWEEN:
        return _top_of_values(atom, assume)
    if isinstance(value, sympy.exp):
        return sympy.exp(_top(value.args[0], assume))
    if value.func in BOUNDS:
        return BOUNDS[value.func]
    if value.is_Add or (value.is_Mul and all(-1 not in assume.signs(f) for f in value.args)):
        ends = [_top(t, assume) for t in value.args]
        return oo if oo in ends else value.func(*ends)
    return oo


def _top_of_values(atom: Aggregate, assume: Assumptions) -> Any:
    """The upper bound of a statistic's formula, wherever it is read; `oo` if a parameter has a value per element."""
    ends = []
    for place, formula in formulas(atom, assume.populations.shape):
        value = to_sympy(formula)
        if any(isinstance(a, Parameter) and a.on is not None for a in atoms(formula)):
            return oo
        ends.append(oo if value.has(sympy.Piecewise) else _top(value, assume.elsewhere(place)))
    return oo if oo in ends else _largest(ends, assume.anywhere)


def _varies(value: Any) -> bool:
    """Whether a value reads more than numbers and parameters."""
    read = (ATOM_OF.get(s) for s in sympy.sympify(value).free_symbols)
    return not all(isinstance(a, (Parameter, Component)) for a in read)


def sampled_from(h: Hierarchy, weight: Expression) -> str:
    """A policy such that the ratio of another policy to it is nowhere below the weight; '' if there is none.

    The mean of that ratio under the returned policy is 1, for a token or a sampled sequence. So the weight's mean is at
    most 1.
    """
    read = (a.policy.name for a in atoms_within(weight, LogProb))
    named = list(dict.fromkeys((*read, OLD, CURRENT)))
    for below, other in itertools.product((p for p in named if p != CURRENT), named):
        log_ratio = LogProb(Policy(other)) - LogProb(Policy(below))
        for ratio in (exp(log_ratio), exp(total(log_ratio, over=h.rows))) if other != below else ():
            if all(_is_above(h, ratio, weight, leaf) for leaf in h.leaves):
                return below
    return ""


def _is_above(h: Hierarchy, ratio: Expression, weight: Expression, leaf: Stratum) -> bool:
    return Claim(_on_kept(h, ratio - weight, leaf), known_at(h, leaf), NOT_NEGATIVE).is_shown
