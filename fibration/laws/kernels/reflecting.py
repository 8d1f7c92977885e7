"""Markov and reflecting (def:fgh i): weights are defined and never negative, and sum to 1 over every fibre.

Counts and totals are *additive*: summed over a fibre they give the count or total of the element below. They are also
algebraically independent. So if a weight is linear in the additive measures of its element, with coefficients that are
constant on the fibre, it sums to 1 for all sizes exactly when one rational function vanishes. That decides these
weights completely. For any other weight a counterexample is searched.

If several strata lie over a target, as in a tree, their weights sum to 1 jointly, for each cover: a set of them that
has every token over the target once (`Shape.covers`). A branch may be empty: a sum over nothing is 0. If its closed
form gives 0 too, one identity covers all cases; else each set of empty branches is a separate case.

A fibration may be in no cover. Example: images lie over a trajectory together with the text, and also over an expert,
and experts lie over the batch. The kernels of a cover spread the whole batch, and so determine the share of the images.
The weights of experts over the batch must sum to this share. (The law `coherent` checks that each weight is its own
share, `m(a)/m(b)`.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import add, mul
from typing import Any, NamedTuple

import sympy

from fibration.errors import FibrationError, an, listed
from fibration.language.atoms import Count
from fibration.language.expressions import Expression, Number, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import POSITIVE, ZERO, Signs
from fibration.language.report import Cause
from fibration.language.strata import Fibration, MarkovKernel, uniform
from fibration.language.sympy_bridge import cancelled, from_sympy, show, symbol, vanishes
from fibration.language.traversal import rewrite
from fibration.laws import topic
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import find
from fibration.laws.kernels.fibre_sums import Sums, fibre_sum, kernel_sums, varies
from fibration.laws.kernels.kernel_search import Cover, Fibre, weights
from fibration.laws.law import Decision, Law, Proved, Unknown, following, proved, refuted, undecided, unproved
from fibration.laws.remedies import Fix, Offers, Otherwise, bounded, kernels
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.claim import Claim
from fibration.laws.signs.populations import Populations
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import in_full, number, rounded

MARKOV = "every weight K(a|b) is defined and at least 0"
REFLECTING = "the weights over each element sum to 1: π_* K = id"
POSITIVE_MEASURE = "use uniform(), or proportional(m) with a count or the total of a positive attribute"
SHARE = "let it be m(a)/m(b) of the measure m that the other kernels spread"
MEASURE = "write the weight as m(a)/m(b) with a count or the total of an attribute: proportional(m)"
MOST_PARTS = 1000  # the largest denominator of a fraction that a decimal is taken for
MANY = 8  # branches that may be empty; each set of them is a case


# ---------------------------------------------------------------- markov


def decide_markov(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    for f in h.fibrations:
        # the law allows 0, but the normal form divides by the measure
        if Claim(f.weight, subject.at(f.source), POSITIVE).is_shown:
            yield proved(topic.kernel(f), f"{f.weight} ≥ 0, since counts and positive attributes are above 0")
            continue
        witness = negative_weight(h, f)
        found = f"{f.weight}{'' if witness else ', whose sign could not be decided'}"
        yield unproved(topic.kernel(f), found, _positive(h, f), witness)


def _positive(h: Hierarchy, given: Fibration) -> Offers:
    """The remedy: a bound of a parameter or attribute with which weights are positive, or else other kernels."""

    def is_positive(changed: Hierarchy) -> bool:
        (f,) = (f for f in changed.fibrations if f.name == given.name)
        return Claim(f.weight, Subject(changed, []).at(f.source), POSITIVE).is_shown

    return (*bounded(h, [given.weight], is_positive), POSITIVE_MEASURE)


def negative_weight(h: Hierarchy, f: Fibration) -> Witness | None:
    """A witness of a weight that is below 0 or has no value; None if none is found."""
    tolerance = rounding(f.weight)

    def fails(tried: tuple[Concrete, int, Fibre]) -> Witness | None:
        concrete, b, fibre = tried
        for _, a, weight in fibre:
            if weight is None or weight < -tolerance:
                exact = None if weight is None else rounded(weight, tolerance)
                value = "no value" if exact is None else in_full(exact)
                text = f"{concrete.describe(f.target, b)} gives the {_ordinal(fibre, a)} {f.source} {value}"
                return Witness.on(concrete, text, {"element": b, "source": a, "weight": exact})
        return None

    return find(weights(h, (f,)), fails)


def _ordinal(fibre: Fibre, element: int) -> str:
    place = [a for _, a, _ in fibre].index(element) + 1
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


# ---------------------------------------------------------------- reflecting


def decide_reflecting(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    wrong: dict[Cover, Decision] = {}
    for cover in dict.fromkeys(c for f in h.fibrations for c in h.shape.covers(f.target) if f in c):
        proof = sums_to_1(cover, subject)
        if isinstance(proof, Proved):
            yield proved(topic.kernel(*cover), proof.argument)
        else:
            wrong[cover] = _other_sum(cover, subject) or _open_sum(cover, subject, proof)
            yield wrong[cover]
    yield from (decide_share(f, wrong, subject) for f in h.shape.uncovered())


def _other_sum(own: Cover, subject: Subject, way: Way | None = None) -> Decision | None:
    """Refutes with the first fibre found whose weights do not sum to 1, or to the share of a way; None if none is."""
    h, target = subject.hierarchy, own[0].target
    read = own if way is None else tuple(dict.fromkeys((*own, *way.kernels)))
    tolerance = rounding(*(f.weight for f in read))

    def fails(tried: tuple[Concrete, int, Fibre]) -> Decision | None:
        concrete, b, fibre = tried

        def total(these: Cover) -> Fraction | None:
            found = [w for f, _, w in fibre if f in these]
            return None if None in found else sum((w for w in found if w is not None), Fraction(0))

        summed, share = total(own), Fraction(1) if way is None else total(way.kernels)
        if share is None or (summed is not None and abs(summed - share) <= tolerance):
            return None
        summed = None if summed is None else rounded(summed, tolerance)
        text, value = concrete.describe(target, b), "no sum, since a weight has no value"
        value = value if summed is None else in_full(summed)
        values: dict[str, Any] = {"element": b, "sum": summed}
        required, remedy = "", tuple[str | Fix, ...]()
        if way is None:
            of = f" of {_sources(own)}" if len(own) > 1 else ""
            required = f"the weights over each {target}{of} sum to 1"
            remedy = _fractions(own, subject) or _remedy(own, fibre, subject)
        else:
            over = [leaf for leaf in h.leaves if target in h.coarser(leaf)]
            text += f", with {listed(number(len(concrete.over(leaf, target, b)), leaf) for leaf in over)},"
            values["share"] = rounded(share, tolerance)
            value += f", and the share of {way.leaves} is {in_full(values['share'])}"
        witness = Witness.on(concrete, f"{text} gives {value}", values)
        decision = refuted(topic.kernel(*own), _written(own), remedy, witness, required)
        return following(decision, subject.kernel_without_a_value(*(f for f, _, w in fibre if f in own and w is None)))

    return find(weights(h, read), fails)


def _open_sum(cover: Cover, subject: Subject, proof: Unknown) -> Decision:
    remedy = MEASURE
    if len(_unsure(cover, subject)) > MANY:
        remedy = f"{remedy}; or assume=[populated(...)] for branches that are never empty"
    found = f"{_written(cover)}, {proof.reason}; no small hierarchy contradicts it"
    decision = undecided(topic.kernel(*cover), found, remedy)
    return following(decision, subject.kernel_without_a_value(*cover))


def _fractions(cover: Cover, subject: Subject) -> Offers:
    """The remedy for decimals that stand for fractions, if the weights sum to 1 with the fractions; none if not."""
    meant: dict[Fraction, Fraction] = {}

    def exact(e: Expression) -> Expression:
        if not isinstance(e, Number):
            return e
        near = e.value.limit_denominator(MOST_PARTS)
        if near == e.value or float(near) != float(e.value):
            return e
        meant[e.value] = near
        return as_expression(near)

    kernel_of = [Fibration(f.source, f.target, MarkovKernel(rewrite(f.weight, exact))) for f in cover]
    if not meant or isinstance(sums_to_1(tuple(kernel_of), subject), Unknown):
        return ()
    said = [f"Fraction({q.numerator}, {q.denominator}) for {float(value)!r}" for value, q in meant.items()]
    words = f"write {listed(said)}, which is a decimal of sixteen digits"
    made = {f: k.kernel for f, k in zip(cover, kernel_of, strict=True)}
    return (kernels(subject.hierarchy, words, made), "one weight of all counts together")


def _written(cover: Cover) -> str:
    return " and ".join(dict.fromkeys(str(f.weight) for f in cover))


def _sources(cover: Cover) -> str:
    return " and ".join(f.source.name for f in cover)


def _remedy(cover: Cover, fibre: Fibre, subject: Subject) -> Offers:
    h, target = subject.hierarchy, cover[0].target
    if len(cover) == 1:
        made = {f: normalised for f in cover if (normalised := _normalised(f, subject))}
        written = (kernels(h, f"write Fibration({f.source}, {target}, {k})", {f: k}) for f, k in made.items())
        plain = kernels(h, "use uniform()", {cover[0]: uniform()})
        return (plain, *written, Otherwise(MEASURE))
    counts = reduce(add, (Count(f.source, target) for f in cover))
    empty = any(all(f != g for g, *_ in fibre) for f in cover)
    assume = ", ".join(f"populated({f.source}, over={target})" for f in cover)
    shares = "use uniform(share=...) with shares that add up to 1"
    equal = dict.fromkeys(cover, MarkovKernel(1 / counts))
    return (
        f"{shares}{f' and assume=[{assume}]' if empty else ''}",
        kernels(h, f"write the weight 1/({counts}) for all", equal),
    )


def _normalised(f: Fibration, subject: Subject) -> MarkovKernel | None:
    """The kernel with the declared weight divided by its sum over each element; None if no formula says that sum."""
    try:
        (case,) = cases(f.weight, subject.at(f.source))
        total = fibre_sum(case.sympy(), f.source, f.target, subject.assume.populations)
        return None if total is None else MarkovKernel(from_sympy(cancelled(case.sympy() / total)))
    except (FibrationError, TooManyCases, ValueError):
        return None


def sums_to_1(cover: Cover, subject: Subject) -> Proved | Unknown:
    """The sum over a fibre in one line, if it is shown to be 1 in every case."""
    unsure = _unsure(cover, subject)
    found = _sum_at_once(cover, unsure, subject) or [] if unsure else []
    if not found and len(unsure) > MANY:
        return Unknown(f"with more than {MANY} branches that may be empty, in more ways than are looked at")
    for empty, filled, signs in () if found else _by_empty_branches(cover, subject):
        case = _sum(filled, empty, signs, subject)
        if case is None:
            of = an(cover[0].source) if len(cover) == 1 else _sources(cover)
            return Unknown(f"not linear in the measures of {of}")
        found += case
    return Proved("; ".join(dict.fromkeys(found)))


def _unsure(cover: Cover, subject: Subject) -> list[Fibration]:
    """The branches that may be empty."""
    target = cover[0].target
    return [f for f in cover if not subject.at(target).presence.present(f.source, target)]


def _by_empty_branches(cover: Cover, subject: Subject) -> Iterator[tuple[Cover, Cover, dict[Any, Signs]]]:
    """Yields each set of branches that may be empty together, the other branches, and the signs of their counts."""
    unsure, target = _unsure(cover, subject), cover[0].target
    for n in range(min(len(unsure), len(cover) - 1) + 1):
        for empty in itertools.combinations(unsure, n):
            signs = {symbol(Count(f.source, target)): frozenset({0 if f in empty else 1}) for f in unsure}
            yield empty, tuple(f for f in cover if f not in empty), signs


def _sum_at_once(cover: Cover, unsure: Sequence[Fibration], subject: Subject) -> list[str] | None:
    """The sum over a fibre whose branches `unsure` have any number of elements or none; None if that needs cases.

    An identity of rational functions holds wherever all terms are defined. An empty branch sums to 0. So if the term of
    every branch is defined and 0 where the branch is empty, the identity for filled branches holds for all.
    """
    target = cover[0].target
    for f in unsure:
        try:
            (case,) = cases(f.weight, subject.at(f.source))
        except (TooManyCases, ValueError):
            return None
        term = None if case.signs else fibre_sum(case.sympy(), f.source, target, subject.assume.populations)
        without = subject.at(target).with_signs({symbol(Count(f.source, target)): ZERO})
        if term is None:
            return None
        top, bottom = sympy.fraction(sympy.together(term))
        if without.signs(top) != {0} or 0 in without.signs(bottom):
            return None
    lines = _sum(cover, (), {}, subject)
    return lines and [f"{line}, also where a branch is empty: its term is 0" for line in lines]


def _sum(filled: Cover, empty: Cover, signs: dict[Any, Signs], subject: Subject) -> list[str] | None:
    """The sum over a fibre without the branches `empty`, case by case; None if it is not shown to be 1."""
    lines = []
    for found in kernel_sums(filled, signs, subject):
        if found is None or not vanishes(found.total - 1):
            return None
        lines.append(_line(filled, found, empty, subject.assume.populations))
    return lines or None


def _line(filled: Cover, sums: Sums, empty: Cover, known: Populations) -> str:
    if len(filled) == 1 and not empty:
        form = _product_form(sums.cases[0], filled[0], known)
        return f"Σ over {filled[0].source} of {sums.cases[0].value} = {f'{form} = ' * bool(form)}1"
    parts = [f"Σ over {f.source} of {case.value}" for f, case in zip(filled, sums.cases, strict=True)]
    where = f"without {' and '.join(f.source.name for f in empty)}: " if empty else ""
    return f"{where}{' + '.join(parts)} = {' + '.join(show(cancelled(t)) for t in sums.terms)} = 1"


def _product_form(case: Case, f: Fibration, known: Populations) -> str:
    """How the sum comes about, before it is cancelled: `count(token) · 1/count(token)`; '' if it takes steps."""
    weight = cancelled(sympy.together(case.sympy()))
    varying = [s for s in weight.free_symbols if varies(s, f.target, known)]
    if not varying:
        return f"{Count(f.source, f.target)} · {case.value}"
    top, bottom = sympy.fraction(weight)
    summed = fibre_sum(top, f.source, f.target, known)
    if summed is None or any(varies(s, f.target, known) for s in bottom.free_symbols):
        return ""
    return f"({show(summed)})/({show(bottom)})"


# ---------------------------------------------------------------- the share of a fibration in no cover


class Way(NamedTuple):
    """A way along covers from the leaves over a fibration's source to its target, as one kernel from each leaf."""

    kernels: tuple[Fibration, ...]
    steps: frozenset[Fibration]

    @property
    def leaves(self) -> str:
        return listed(k.source for k in self.kernels)

    @property
    def through(self) -> str:
        """The strata on the way, except for leaves."""
        leaves = {k.source for k in self.kernels}
        return listed(sorted({f.source.name for f in self.steps if f.source not in leaves}))


def decide_share(f: Fibration, wrong: Mapping[Cover, Decision], subject: Subject) -> Decision:
    """Whether the weights of a fibration in no cover sum to the share of the leaves over its source.

    `wrong` holds the covers whose kernels do not reflect: they determine no share. If paths disagree, the share is that
    of the first (law `coherent`).
    """
    h = subject.hierarchy
    steps = {s: next(h.shape.covered_ways(s, f.target)) for s in h.leaves if s in h.shape.leaves_over(f.source)}
    kernels = (Fibration(s, f.target, MarkovKernel(reduce(mul, (g.weight for g in way)))) for s, way in steps.items())
    way = Way(tuple(kernels), frozenset(itertools.chain(*steps.values())))
    argument = _sums_to_share(f, way, subject)
    if argument is not None:
        return proved(topic.kernel(f), argument)
    required = f"the weights over each {f.target} sum to the share of {way.leaves} in it, by way of {way.through}"
    remedy, decision = _share_remedy(f, way, subject), _other_sum((f,), subject, way)
    if decision is None:
        found = f"{f.weight}, whose sum could not be compared with that share; no small hierarchy contradicts it"
        decision = following(undecided(topic.kernel(f), found, ""), subject.kernel_without_a_value(f))
    decision = replace(decision, remedy=remedy, required=required)
    failed = next((d for c, d in wrong.items() if way.steps & set(c)), None)
    if failed is not None and decision.cause is None and (failed.status == "refuted" or decision.status == "undecided"):
        return replace(decision, cause=Cause("reflecting", failed.subject))
    return decision


def _sums_to_share(f: Fibration, way: Way, subject: Subject) -> str | None:
    """The sum in one line, if it is shown to be the share in every case; None if not."""
    lines = []
    for empty, filled, signs in _by_empty_branches(way.kernels, subject):
        without = f"without {listed(k.source for k in empty)}: " if empty else ""
        for found in kernel_sums([f, *filled], signs, subject, [1, *(-1 for _ in filled)]):
            if found is None or not vanishes(found.total):
                return None
            summed = f"Σ over {f.source} of {found.cases[0].value} = {show(cancelled(found.terms[0]))}"
            lines.append(f"{without}{summed}, the share of {way.leaves} by way of {way.through}")
    return "; ".join(dict.fromkeys(lines)) or None


def _share_remedy(f: Fibration, way: Way, subject: Subject) -> Offers:
    """The remedy: the share of an element, written out if possible."""
    terms: list[Any] = []
    for k in way.kernels:
        try:
            (case,) = cases(k.weight, subject.at(k.source))
        except (TooManyCases, ValueError):
            break
        known = subject.assume.populations
        terms.append(case.sympy() if k.source == f.source else fibre_sum(case.sympy(), k.source, f.source, known))
    else:
        if None not in terms:
            share = MarkovKernel(from_sympy(cancelled(sum(terms))))
            words = f"write Fibration({f.source}, {f.target}, {share}), the share m(a)/m(b) of what the others spread"
            return (kernels(subject.hierarchy, words, {f: share}), Otherwise(SHARE))
    return (SHARE,)


LAW_OF_SIGNS = Law("markov", MARKOV, decide_markov, may_be_given_up=False)
LAW = Law("reflecting", REFLECTING, decide_reflecting, may_be_given_up=False)
