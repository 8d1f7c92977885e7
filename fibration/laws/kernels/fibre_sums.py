"""Sums of a kernel's weights over a fibre, in closed form.

Counts and totals are *additive*: summed over a fibre they give the count or total of the element below.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.language.atoms import Attribute, Count, Stratum, Total, read_at
from fibration.language.expressions import Expression
from fibration.language.operators import ANY, Signs
from fibration.language.strata import Fibration
from fibration.language.sympy_bridge import cancelled, from_sympy, symbol
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.populations import Populations
from fibration.laws.subject import Subject


def fibre_sum(weight: Any, source: Stratum, target: Stratum, known: Populations) -> Any | None:
    """`Σ_{a over b} weight(a)`, for a weight that is linear in the additive measures of `a`; None for any other.

    Every element of a finer stratum lies over one `a`, so that its measures over `b` are the sums of those over `a`.
    If the weight reads a stratum between the two, the sum is taken in two steps.
    """
    varying = [s for s in weight.free_symbols if varies(s, target, known)]
    between = {place for s in varying if (place := read_at(from_sympy(s))) != source}
    if between:
        for z in known.shape.coarser(source):
            reads = {source, *known.coarser[z]}
            if target in known.coarser[z] - {z} and between <= reads and known.always(source, z):
                inner = fibre_sum(weight, source, z, known)
                return None if inner is None else fibre_sum(inner, z, target, known)
        return None
    if not varying:
        return weight * symbol(Count(source, target))
    weight = cancelled(sympy.together(weight))
    if not weight.is_polynomial(*varying):
        return None
    polynomial = sympy.Poly(weight, *varying)
    if polynomial.total_degree() > 1:
        return None
    result: Any = 0
    for monomial, coefficient in polynomial.terms():
        additive = next((from_sympy(s) for s, p in zip(varying, monomial, strict=True) if p), None)
        if additive is None or isinstance(additive, Count):
            summed: Expression = Count(source if additive is None else additive.of, target)
        elif isinstance(additive, (Attribute, Total)):
            summed = Total(additive if isinstance(additive, Attribute) else additive.attribute, target)
        else:
            return None
        result += coefficient * symbol(summed)
    return result


def varies(s: Any, target: Stratum, known: Populations) -> bool:
    """Whether an atom, given as a symbol, can differ between elements of one fibre, also one of a crossing stratum."""
    home = read_at(from_sympy(s))
    return home is not None and home not in known.coarser[target]


@dataclass(frozen=True)
class Sums:
    """The sums of the weights of several kernels over one element, per kernel and in total, where these cases hold."""

    cases: tuple[Case, ...]
    terms: tuple[Any, ...]
    total: Any


def kernel_sums(
    kernels: Sequence[Fibration], signs: dict[Any, Signs], subject: Subject, factors: Sequence[int] = ()
) -> Iterator[Sums | None]:
    """The sums over an element of the kernels' one target, for all cases that can hold together under `signs`.

    Yields None for a case whose sums are not found or have no value. The total weighs kernels by `factors`; default 1.
    """
    try:
        branches = [cases(f.weight, subject.at(f.source).with_signs(signs)) for f in kernels]
    except TooManyCases:
        yield None
        return
    for chosen in itertools.product(*branches):
        conditions: dict[Any, Signs] = dict(signs)
        for case in chosen:
            conditions.update({d: conditions.get(d, ANY) & s for d, s in case.signs})
        if not all(conditions.values()):
            continue  # the branches exclude each other
        terms: tuple[Any, ...] = tuple(_term(f, case, signs, subject) for f, case in zip(kernels, chosen, strict=True))
        if any(t is None for t in terms):
            yield None
            continue
        total: Any = sum(n * t for n, t in zip(factors or [1] * len(terms), terms, strict=True))
        known = subject.assume.with_signs(signs)
        measures = {s: a for s in total.free_symbols if isinstance(a := from_sympy(s), (Count, Total))}
        absent = {s: 0 for s, a in measures.items() if known.presence.absent(a.of, a.over)}
        yield Sums(chosen, terms, total.subs(absent))


def _term(f: Fibration, case: Case, signs: dict[Any, Signs], subject: Subject) -> Any | None:
    known = subject.assume.populations
    if any(varies(a, f.target, known) for d, _ in case.signs for a in d.free_symbols):
        return None  # the branch differs within a fibre
    if not case.defined(subject.at(f.source).with_signs(signs)):
        return None  # to sympy 0/0 of equal terms is 1
    return fibre_sum(case.sympy(), f.source, f.target, known)
