"""Reflecting (def:fgh i): weights sum to 1 over every fibre.

Counts and totals are *additive*: summed over a fibre they give the count or total of the element below. They are also
algebraically independent. So if a weight is linear in the additive measures of its element, with coefficients that are
constant on the fibre, it sums to 1 for all sizes exactly when one rational function vanishes. That decides these
weights completely. For any other weight a counterexample is searched.

If several strata lie over a target, as in a tree, their weights sum to 1 jointly, for each cover: a set of them that
has every token over the target once (`Shape.covers`). A branch may be empty: a sum over nothing is 0. If its closed
form gives 0 too, one identity covers all cases; else each set of empty branches is a separate case.

A fibration may be in no cover. Example: images lie over a trajectory together with the text, and also over an expert,
and experts lie over the batch. The weights of experts over the batch sum to the share that other ways down give.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import sympy

from fibration.errors import an, listed
from fibration.language.atoms import Count
from fibration.language.expressions import Expression, Number, as_expression
from fibration.language.kernels import Fibration, MarkovKernel
from fibration.language.operators import ZERO, Signs
from fibration.language.sympy_bridge import show, symbol, vanishes
from fibration.language.traversal import rewrite
from fibration.laws.batches.concrete import Witness, in_full, rounded, rounding, settings
from fibration.laws.kernels.fibre_sums import Sums, fibre_sum, kernel_sums, varies
from fibration.laws.kernels.kernel_search import Cover, Fibre, weights
from fibration.laws.kernels.markov import without_a_value
from fibration.laws.kernels.reflecting_share import decide_share
from fibration.laws.law import Decision, Law, following, proved, refuted, undecided
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.populations import Populations
from fibration.laws.subject import Subject

STATEMENT = "the weights over each element sum to 1: π_* K = id"
MOST_PARTS = 1000  # the largest denominator of a fraction that a decimal is taken for
MANY = 8  # branches that may be empty; each set of them is a case


def subject_of(cover: Cover) -> str:
    """The subject of the verdict on kernels that reflect together."""
    if len(cover) == 1:
        return f"kernel {cover[0].name}"
    return f"kernels {', '.join(f.source.name for f in cover)} → {cover[0].target}"


def speaks_of(subject: str, f: Fibration) -> bool:
    """Whether a verdict on this subject is about a kernel, alone or together with others."""
    sources, _, target = subject.partition(" ")[2].partition(" → ")
    return f.target.name == target and f.source.name in sources.split(", ")


def decide_reflecting(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    wrong: dict[Cover, Decision] = {}
    for cover in dict.fromkeys(c for f in h.fibrations for c in h.shape.covers(f.target) if f in c):
        if argument := sums_to_1(cover, subject):
            yield proved(subject_of(cover), argument)
        else:
            wrong[cover] = _other_sum(cover, subject) or _open_sum(cover, subject)
            yield wrong[cover]
    yield from (decide_share(f, wrong, subject) for f in h.shape.uncovered())


def _other_sum(cover: Cover, subject: Subject) -> Decision | None:
    """Refutes with the first fibre found whose weights do not sum to 1; None if none is found."""
    target, of = cover[0].target, f" of {_sources(cover)}" if len(cover) > 1 else ""
    tolerance = rounding(*(f.weight for f in cover))
    for concrete, b, fibre in weights(subject.hierarchy, cover):
        lacking = [f for f, _, w in fibre if w is None]
        summed = sum((w for *_, w in fibre if w is not None), Fraction(0))
        if lacking or abs(summed - 1) > tolerance:
            exact = None if lacking else rounded(summed, tolerance)
            value = "no sum, since a weight has no value" if exact is None else in_full(exact)
            text = f"{concrete.describe(target, b)} gives {value}{settings(concrete)}"
            witness = Witness(text, concrete, {"element": b, "sum": exact})
            required = f"the weights over each {target}{of} sum to 1"
            remedy = _fractions(cover, subject) or _remedy(cover, fibre)
            decision = refuted(subject_of(cover), _written(cover), remedy, witness, required)
            return following(decision, without_a_value(subject, *lacking))
    return None


def _open_sum(cover: Cover, subject: Subject) -> Decision:
    why = f"not linear in the measures of {an(cover[0].source) if len(cover) == 1 else _sources(cover)}"
    remedy = "write the weight as m(a)/m(b) with a count or the total of an attribute: proportional(m)"
    if len(_unsure(cover, subject)) > MANY:
        why = f"with more than {MANY} branches that may be empty, in more ways than are looked at"
        remedy = f"{remedy}; or assume=[populated(...)] for branches that are never empty"
    found = f"{_written(cover)}, {why}; no small hierarchy contradicts it"
    return following(undecided(subject_of(cover), found, remedy), without_a_value(subject, *cover))


def _fractions(cover: Cover, subject: Subject) -> str:
    """The remedy for decimals that stand for fractions, if the weights sum to 1 with the fractions; '' if not."""
    meant: dict[Fraction, Fraction] = {}

    def exact(e: Expression) -> Expression:
        if not isinstance(e, Number):
            return e
        near = e.value.limit_denominator(MOST_PARTS)
        if near == e.value or float(near) != float(e.value):
            return e
        meant[e.value] = near
        return as_expression(near)

    kernels = [Fibration(f.source, f.target, MarkovKernel(rewrite(f.weight, exact))) for f in cover]
    if not meant or not sums_to_1(tuple(kernels), subject):
        return ""
    said = [f"Fraction({q.numerator}, {q.denominator}) for {float(value)!r}" for value, q in meant.items()]
    return f"write {listed(said)}, which is a decimal of sixteen digits; or one weight of all counts together"


def _written(cover: Cover) -> str:
    return " and ".join(dict.fromkeys(str(f.weight) for f in cover))


def _sources(cover: Cover) -> str:
    return " and ".join(f.source.name for f in cover)


def _remedy(cover: Cover, fibre: Fibre) -> str:
    target = cover[0].target
    if len(cover) == 1:
        return f"use uniform(), or divide by count({cover[0].source}, over={target})"
    counts = " + ".join(f"count({f.source}, over={target})" for f in cover)
    empty = any(all(f != g for g, *_ in fibre) for f in cover)
    assume = ", ".join(f"populated({f.source}, over={target})" for f in cover)
    shares = "use uniform(share=...) with shares that add up to 1"
    return f"{shares}{f' and assume=[{assume}]' if empty else ''}, or the weight 1/({counts}) for all"


def sums_to_1(cover: Cover, subject: Subject) -> str:
    """The sum over a fibre in one line, if it is shown to be 1 in every case; '' if not."""
    unsure = _unsure(cover, subject)
    lines = _sum_at_once(cover, unsure, subject) if unsure else []
    if lines:
        return "; ".join(dict.fromkeys(lines))
    if len(unsure) > MANY:
        return ""
    for n in range(len(unsure) + 1):
        for empty in itertools.combinations(unsure, n):
            if len(empty) < len(cover):
                line = _sum(cover, empty, unsure, subject)
                if not line:
                    return ""
                lines += line
    return "; ".join(dict.fromkeys(lines))


def _unsure(cover: Cover, subject: Subject) -> list[Fibration]:
    """The branches that may be empty."""
    target = cover[0].target
    return [f for f in cover if not subject.at(target).presence.present(f.source, target)]


def _sum_at_once(cover: Cover, unsure: Sequence[Fibration], subject: Subject) -> list[str]:
    """The sum over a fibre whose branches `unsure` have any number of elements or none; [] if that needs cases.

    An identity of rational functions holds wherever all terms are defined. An empty branch sums to 0. So if the term of
    every branch is defined and 0 where the branch is empty, the identity for filled branches holds for all.
    """
    target = cover[0].target
    for f in unsure:
        try:
            (case,) = cases(f.weight, subject.at(f.source))
        except (TooManyCases, ValueError):
            return []
        term = None if case.signs else fibre_sum(case.sympy(), f.source, target, subject.assume.populations)
        without = subject.at(target).with_signs({symbol(Count(f.source, target)): ZERO})
        if term is None:
            return []
        top, bottom = sympy.fraction(sympy.together(term))
        if without.signs(top) != {0} or 0 in without.signs(bottom):
            return []
    return [f"{line}, also where a branch is empty: its term is 0" for line in _sum(cover, (), (), subject)]


def _sum(cover: Cover, empty: Cover, unsure: Sequence[Fibration], subject: Subject) -> list[str]:
    """The sum over a fibre, case by case; [] if it is not shown to be 1.

    Of the branches `unsure`, those in `empty` have no element and the others have some.
    """
    target, populations = cover[0].target, subject.assume.populations
    signs: dict[Any, Signs] = {symbol(Count(f.source, target)): frozenset({0 if f in empty else 1}) for f in unsure}
    filled = [f for f in cover if f not in empty]
    lines = []
    for found in kernel_sums(filled, signs, subject):
        if found is None or not vanishes(found.total - 1):
            return []
        lines.append(_line(filled, found, empty, populations))
    return lines


def _line(filled: list[Fibration], sums: Sums, empty: Cover, known: Populations) -> str:
    if len(filled) == 1 and not empty:
        f, case = filled[0], sums.cases[0]
        return f"Σ over {f.source} of {case.value} = {_product_form(case, f, known)} = 1"
    parts = [f"Σ over {f.source} of {case.value}" for f, case in zip(filled, sums.cases, strict=True)]
    where = f"without {' and '.join(f.source.name for f in empty)}: " if empty else ""
    return f"{where}{' + '.join(parts)} = {' + '.join(show(sympy.cancel(t)) for t in sums.terms)} = 1"


def _product_form(case: Case, f: Fibration, known: Populations) -> str:
    """How the sum comes about, before it is cancelled: `count(token) · 1/count(token)`."""
    weight = sympy.cancel(sympy.together(case.sympy()))
    varying = [s for s in weight.free_symbols if varies(s, f.target, known)]
    if not varying:
        return f"{Count(f.source, f.target)} · {case.value}"
    top, bottom = sympy.fraction(weight)
    summed = fibre_sum(top, f.source, f.target, known)
    if summed is None or any(varies(s, f.target, known) for s in bottom.free_symbols):
        return f"Σ over {f.target} in steps" if summed is None else show(weight)
    return f"({show(summed)})/({show(bottom)})"


LAW = Law("reflecting", STATEMENT, decide_reflecting, may_be_given_up=False)
