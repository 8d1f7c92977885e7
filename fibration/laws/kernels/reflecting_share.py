"""Reflecting for the kernels of fibrations that are in no cover of their target.

Example: images lie over a trajectory together with the text, and also over an expert; experts lie over the batch. The
kernels of a cover spread the whole batch, and so determine the share of the images. The weights of experts over the
batch must sum to this share. (The law `coherent` checks that each weight is its own share, `m(a)/m(b)`.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from operator import mul
from typing import Any

import sympy

from fibration.errors import listed
from fibration.language.atoms import Count
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, MarkovKernel
from fibration.language.report import Cause
from fibration.language.sympy_bridge import show, symbol, vanishes
from fibration.laws import topic
from fibration.laws.batches.concrete import Concrete, rounding
from fibration.laws.batches.search import find
from fibration.laws.batches.words import Witness, in_full, number, rounded
from fibration.laws.kernels.fibre_sums import fibre_sum, kernel_sums
from fibration.laws.kernels.kernel_search import Cover, Fibre, weights
from fibration.laws.kernels.markov import without_a_value
from fibration.laws.law import Decision, following, proved, refuted, undecided
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.subject import Subject

MOST_WAYS = 8  # if the paths agree, any one of them is enough


@dataclass(frozen=True)
class Way:
    """A way along covers from the leaves over a fibration's source to its target, as one kernel from each leaf."""

    kernels: tuple[Fibration, ...]
    steps: frozenset[Fibration]

    @property
    def through(self) -> str:
        """The strata on the way, except for leaves."""
        leaves = {k.source for k in self.kernels}
        return listed(sorted({f.source.name for f in self.steps if f.source not in leaves}))


def decide_share(f: Fibration, wrong: Mapping[Cover, Decision], subject: Subject) -> Decision:
    """Whether the weights of a fibration in no cover sum to the share of the leaves over its source.

    `wrong` holds the covers whose kernels do not reflect: they determine no share.
    """
    ways = list(itertools.islice(_ways(subject.hierarchy, f), MOST_WAYS))
    for way in ways:
        if argument := _sums_to_share(f, way, subject):
            return proved(topic.kernel(f), argument)
    decision = _other_share(f, ways, subject) or _open_share(f, ways[0], subject)
    failed = next((d for c, d in wrong.items() if any(way.steps & set(c) for way in ways)), None)
    if failed is not None and decision.cause is None and (failed.status == "refuted" or decision.status == "undecided"):
        return replace(decision, cause=Cause("reflecting", failed.subject))
    return decision


def _ways(h: Hierarchy, f: Fibration) -> Iterator[Way]:
    leaves = [s for s in h.leaves if s in h.shape.leaves_over(f.source)]
    for chosen in itertools.product(*(h.shape.covered_ways(leaf, f.target) for leaf in leaves)):
        products = (MarkovKernel(reduce(mul, (step.weight for step in way))) for way in chosen)
        kernels = (Fibration(leaf, f.target, k) for leaf, k in zip(leaves, products, strict=True))
        yield Way(tuple(kernels), frozenset(itertools.chain(*chosen)))


def _sums_to_share(f: Fibration, way: Way, subject: Subject) -> str:
    """The sum in one line, if it is shown to be the share in every case; '' if not."""
    unsure = [k for k in way.kernels if not subject.at(f.target).presence.present(k.source, f.target)]
    lines = []
    for n in range(min(len(unsure), len(way.kernels) - 1) + 1):
        for empty in itertools.combinations(unsure, n):
            filled = [k for k in way.kernels if k not in empty]
            signs = {symbol(Count(k.source, f.target)): frozenset({0 if k in empty else 1}) for k in unsure}
            without = f"without {listed(k.source for k in empty)}: " if empty else ""
            for found in kernel_sums([f, *filled], signs, subject, [1, *(-1 for _ in filled)]):
                if found is None or not vanishes(found.total):
                    return ""
                summed = f"Σ over {f.source} of {found.cases[0].value} = {show(sympy.cancel(found.terms[0]))}"
                lines.append(f"{without}{summed}, the share of {_leaves(way)} by way of {way.through}")
    return "; ".join(dict.fromkeys(lines))


def _other_share(f: Fibration, ways: Sequence[Way], subject: Subject) -> Decision | None:
    """Refutes with the first fibre found whose weights sum to another share than every way gives; None if none is."""
    h = subject.hierarchy
    kernels = tuple(dict.fromkeys((f, *(k for way in ways for k in way.kernels))))
    tolerance = rounding(*(k.weight for k in kernels))

    def fails(tried: tuple[Concrete, int, Fibre]) -> Decision | None:
        concrete, b, fibre = tried

        def total(kernels: Sequence[Fibration]) -> Fraction | None:
            read = [w for k, _, w in fibre if k in kernels]
            return None if None in read else rounded(sum((w for w in read if w is not None), Fraction(0)), tolerance)

        own, shares = total([f]), [s for way in ways if (s := total(way.kernels)) is not None]
        if not shares or (own is not None and any(abs(own - share) <= tolerance for share in shares)):
            return None
        value = "no sum, since a weight has no value" if own is None else in_full(own)
        over = [leaf for leaf in h.leaves if f.target in h.coarser(leaf)]
        tokens = listed(number(len(concrete.over(leaf, f.target, b)), leaf) for leaf in over)
        text = (
            f"{concrete.describe(f.target, b)}, with {tokens}, gives {value}, and the share of {_leaves(ways[0])} is "
            f"{in_full(shares[0])}"
        )
        witness = Witness.on(concrete, text, {"element": b, "sum": own, "share": shares[0]})
        decision = refuted(topic.kernel(f), str(f.weight), _remedy(f, ways[0], subject), witness, _required(f, ways[0]))
        return following(decision, without_a_value(subject, f) if own is None else None)

    return find(weights(h, kernels), fails)


def _open_share(f: Fibration, way: Way, subject: Subject) -> Decision:
    found = f"{f.weight}, whose sum could not be compared with that share; no small hierarchy contradicts it"
    decision = undecided(topic.kernel(f), found, _remedy(f, way, subject), _required(f, way))
    return following(decision, without_a_value(subject, f))


def _required(f: Fibration, way: Way) -> str:
    return f"the weights over each {f.target} sum to the share of {_leaves(way)} in it, by way of {way.through}"


def _remedy(f: Fibration, way: Way, subject: Subject) -> str:
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
            return f"let it be m(a)/m(b) of the measure that the other kernels spread: {show(sympy.cancel(sum(terms)))}"
    return "let it be m(a)/m(b) of the measure m that the other kernels spread"


def _leaves(way: Way) -> str:
    return listed(k.source for k in way.kernels)
