"""Markov and reflecting (def:fgh i): weights are never negative, and sum to 1 over every fibre.

Counts and totals are *additive*: summed over a fibre they give the count or total of what lies below. They are also
algebraically independent, so a weight that is linear in the additive measures of its element, with coefficients that
are constant on the fibre, sums to 1 for all sizes exactly when one rational function vanishes. That decides it
completely; any other weight is searched for a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy

from fibration.expressions import Expression, atoms
from fibration.laws.algebra import show, symbol, vanishes
from fibration.laws.cases import Case, TooManyCases, cases
from fibration.laws.concrete import Concrete, Witness, concretes, rounding
from fibration.laws.law import Law, Subject
from fibration.report import Verdict
from fibration.spec import Fibration, Hierarchy
from fibration.symbols import Attribute, Count, Total

MARKOV = "every weight K(a|b) is defined and at least 0"
REFLECTING = "the weights over each element sum to 1: π_* K = id"


def weights(h: Hierarchy, f: Fibration) -> Iterator[tuple[Concrete, int, list[tuple[int, Fraction | None]]]]:
    """On candidate hierarchies, for every target element: its fibre with the weights (None where undefined)."""
    read = list(atoms(f.weight))
    known: dict[tuple[Fraction, ...], Fraction | None] = {}  # most elements of a regular hierarchy read the same
    for concrete in concretes(h, [f.weight]):
        for b in range(concrete.size[f.target]):
            fibre: list[tuple[int, Fraction | None]] = []
            for a in concrete.over(f.source, f.target, b):
                key = tuple(concrete.atom(e, f.source, a) for e in read)
                if key not in known:
                    try:
                        known[key] = concrete.value(f.weight, f.source, a)
                    except (ZeroDivisionError, ArithmeticError, TypeError):
                        known[key] = None
                fibre.append((a, known[key]))
            yield concrete, b, fibre


def decide_markov(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    for f in h.fibrations:
        what = f"kernel {f.name}"
        try:
            branches = cases(f.weight, subject.assume)
            safe = all(_is_positive(case, subject) for case in branches)
        except TooManyCases:
            safe = False
        if safe:
            yield Verdict("markov", what, "proved", f"{f.weight} ≥ 0, since counts and positive attributes are above 0")
            continue
        for concrete, b, fibre in weights(h, f):
            bad = next(((a, w) for a, w in fibre if w is None or w < -rounding(f.weight)), None)
            if bad:
                value = "no value" if bad[1] is None else str(bad[1])
                text = f"{concrete.describe(f.target, b)} gives the {_ordinal(fibre, bad[0])} {f.source} {value}"
                yield Verdict(
                    "markov",
                    what,
                    "refuted",
                    "",
                    required=MARKOV,
                    found=str(f.weight),
                    remedy="use uniform(), or proportional(m) with a count or the total of a positive attribute",
                    counterexample=Witness(
                        text + _settings(concrete), concrete, {"element": b, "source": bad[0], "weight": value}
                    ),
                )
                break
        else:
            yield Verdict(
                "markov",
                what,
                "undecided",
                "",
                required=MARKOV,
                found=f"{f.weight}, whose sign could not be decided",
                remedy="write it as a quotient of sums of positive terms, or declare attributes positive",
            )


def _is_positive(case: Case, subject: Subject) -> bool:
    assume = subject.assume.with_signs(dict(case.signs))
    # 0 would be allowed; the normal form divides by the measure, so it is not
    return case.defined(subject.assume) and assume.signs(case.sympy()) == {1}


def decide_reflecting(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    for f in h.fibrations:
        what = f"kernel {f.name}"
        argument = _proof(f, subject)
        if argument:
            yield Verdict("reflecting", what, "proved", argument)
            continue
        for concrete, b, fibre in weights(h, f):
            total = (
                None if any(w is None for _, w in fibre) else sum((w for _, w in fibre if w is not None), Fraction(0))
            )
            if total is None or abs(total - 1) > rounding(f.weight):
                value = "no sum, since a weight has no value" if total is None else str(total)
                yield Verdict(
                    "reflecting",
                    what,
                    "refuted",
                    "",
                    required="the weights over each " + f"{f.target} sum to 1",
                    found=_short(f.weight, f),
                    remedy=f"use uniform(), or divide by count({f.source}, over={f.target})",
                    counterexample=Witness(
                        f"{concrete.describe(f.target, b)} gives {value}{_settings(concrete)}",
                        concrete,
                        {"element": b, "sum": value},
                    ),
                )
                break
        else:
            yield Verdict(
                "reflecting",
                what,
                "undecided",
                "",
                required=REFLECTING,
                found=f"{f.weight}, not linear in the measures of a {f.source}; no small hierarchy contradicts it",
                remedy="write the weight as m(a)/m(b) with a count or the total of an attribute: proportional(m)",
            )


def _proof(f: Fibration, subject: Subject) -> str:
    """The sum over a fibre in one line, if it is 1 in every case; '' if this procedure cannot say so."""
    lines = []
    try:
        branches = cases(f.weight, subject.assume)
    except TooManyCases:
        return ""
    for case in branches:
        if any(_varies(a, f) for d, _ in case.signs for a in _atoms_of(d)):
            return ""  # the branch differs within a fibre
        if not case.defined(subject.assume):
            return ""  # to sympy 0/0 of equal terms is 1
        summed = fibre_sum(case.sympy(), f)
        if summed is None or not vanishes(summed - 1):
            return ""
        lines.append(f"Σ over {f.source} of {_short(case.value, f)} = {_product_form(case, f)} = 1")
    return "; ".join(dict.fromkeys(lines))


def fibre_sum(weight: Any, f: Fibration) -> Any | None:
    """`Σ_{a over b} weight(a)`, for a weight that is linear in the additive measures of `a`; None for any other."""
    varying = [s for s in weight.free_symbols if _varies(_atom(s), f)]
    if not varying:
        return weight * symbol(Count(f.source, f.target))
    weight = sympy.cancel(sympy.together(weight))
    if not weight.is_polynomial(*varying):
        return None
    polynomial = sympy.Poly(weight, *varying)
    if polynomial.total_degree() > 1:
        return None
    result: Any = 0
    for monomial, coefficient in polynomial.terms():
        measure = next((s for s, p in zip(varying, monomial, strict=True) if p), None)
        result += coefficient * (
            symbol(Count(f.source, f.target)) if measure is None else symbol(_summed(_atom(measure), f))
        )
    return result


def _summed(measure: Expression, f: Fibration) -> Expression:
    """An additive measure of `a`, summed over the fibre."""
    if isinstance(measure, Count):
        return Count(measure.of, f.target)
    if isinstance(measure, Total):
        return Total(measure.attribute, f.target)
    assert isinstance(measure, Attribute)
    return Total(measure, f.target)


def _varies(atom: Expression, f: Fibration) -> bool:
    """Whether an atom can differ between elements of one fibre."""
    if isinstance(atom, (Count, Total)):
        return atom.over == f.source
    return isinstance(atom, Attribute) and atom.on == f.source


def _atom(s: Any) -> Expression:
    from fibration.laws.algebra import from_sympy

    return from_sympy(s)


def _atoms_of(value: Any) -> list[Expression]:
    return [_atom(s) for s in value.free_symbols]


def _short(e: Expression, f: Fibration) -> str:
    return str(e)


def _product_form(case: Case, f: Fibration) -> str:
    """How the sum comes about, before it is cancelled: `count(token) · 1/count(token)`."""
    weight = sympy.cancel(sympy.together(case.sympy()))
    varying = [s for s in weight.free_symbols if _varies(_atom(s), f)]
    if not varying:
        return f"{Count(f.source, f.target)} · {case.value}"
    top, bottom = sympy.fraction(weight)
    summed = fibre_sum(top, f)
    return show(weight) if summed is None else f"({show(summed)})/({show(bottom)})"


def _settings(concrete: Concrete) -> str:
    parts = [f"{p} = {v}" for p, v in concrete.parameters.items()]
    parts += [f"{a.name} = {', '.join(map(str, v[:6]))}" for a, v in concrete.attributes.items()]
    return f" ({'; '.join(parts)})" if parts else ""


def _ordinal(fibre: list[tuple[int, Fraction | None]], element: int) -> str:
    place = [a for a, _ in fibre].index(element) + 1
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


LAWS = (
    Law("markov", MARKOV, decide_markov, may_be_given_up=False),
    Law("reflecting", REFLECTING, decide_reflecting, may_be_given_up=False),
)
