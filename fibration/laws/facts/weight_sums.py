"""The fact `weight`: what `μ` adds up to over a row, over coarser strata and over the batch.

An objective's `μ` is one number per row, so that a row of `T` tokens adds up to `T·μ`. The sum over a coarser element
follows where `T·μ` is linear in what its rows do not share; otherwise that sum is left out.

A sum over an element is usual if it is a product of what the element shares with others and of one of: 1, a count, or a
quotient of two counts of the element. For any other sum the fact is a warning, with two elements whose sums stand in
none of these proportions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import sympy

from fibration.errors import an, listed
from fibration.language.atoms import BATCH, Attribute, Count, Parameter, Stratum, Total, read_at
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.language.outline import whole_batch
from fibration.language.report import NOTE, WARNING, Fact
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import ATOM_OF, cancelled, from_sympy, show, to_sympy, vanishes
from fibration.laws import topic
from fibration.laws.batches.search import parameter_values
from fibration.laws.kernels.fibre_sums import fibre_sum
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.values.numerals import number

WHOLE = Stratum(BATCH)
MOST_SYMBOLS = 12  # counts, totals, attributes and parameters of a `μ` that is summed
MOST_FACTORED = 6  # sympy factors no sum with more of them
SIZES = (1, 2, 3, 4)  # of the elements that a warning compares, beside sizes around the numbers of the formula
MOST_PAIRS = 2000
CLOSE = 1e-6  # relative: a number as small as the ε of trainers' divisions makes no warning
USUAL = "trajectory_mean() gives every row the same sum, token_mean() every token the same weight"


def weight(h: Hierarchy) -> Iterator[Fact]:
    """Yields the fact for the objective, then for each penalty with an objective of its own."""
    yield _fact(h, h.objective, "objective")
    for name, penalty in h.penalties.items():
        if penalty.objective is not None:
            yield _fact(h, penalty.objective, f"objective of the {topic.penalty(name)}")


def _fact(h: Hierarchy, objective: Objective, subject: str) -> Fact:
    sums = Sums(h, objective)
    if len(sums.mu.free_symbols) > MOST_SYMBOLS:
        why = f"μ reads more than {MOST_SYMBOLS} counts, attributes and parameters"
        return Fact("weight", subject, "not stated", why)
    aside = _aside(objective)
    for stratum in sums.strata:
        if (unusual := sums.unusual(stratum)) is not None:
            value = f"{show(sums.over(stratum))} per {stratum}"
            return Fact("weight", subject, value, f"{unusual}; {USUAL}{aside}", WARNING)
    same = sums.same
    shown = [s for s in reversed(sums.strata) if s.name in (BATCH, same, h.rows.name) and sums.over(s) is not None]
    said = ", ".join(f"{show(sums.over(s))} per {s}" for s in shown)
    why = f"every {same} counts the same" if same else "sums of μ over tokens"
    return Fact("weight", subject, ": ".join(filter(None, (sums.name, said))), f"{why}{aside}", NOTE)


def _aside(objective: Objective) -> str:
    """What the sums leave out: weights, and tokens that are dropped."""
    said = []
    if any(k.normaliser == "kept" for k in objective.kept):
        said.append("counts and sums are those of the kept tokens")
    if any(k.normaliser == "all" for k in objective.kept):
        said.append("tokens that keep(...) drops are counted")
    if objective.weighed:
        said.append("weights w come on top")
    return "".join(f"; {text}" for text in said)


@dataclass(frozen=True)
class Sums:
    """The sums of an objective's `μ`, as sympy expressions of counts, totals, attributes and parameters."""

    h: Hierarchy
    objective: Objective

    @cached_property
    def shape(self) -> Shape:
        return whole_batch(self.h)

    @cached_property
    def mu(self) -> Any:
        """`μ`; in the one branch that batches can reach, if there is one."""
        h, written = self.h, self.objective.spelled_out(self.h.leaves, self.h.rows)
        # the kept tokens are a batch of their own, in which a leaf may be empty that has tokens in the whole batch
        assume = () if any(k.normaliser == "kept" for k in self.objective.kept) else h.assume
        try:
            found = [case.sympy() for case in cases(written, Assumptions(self.shape, assume, h.leaves[0]))]
        except TooManyCases:
            found = []
        return found[0] if len(found) == 1 or (found and len(set(found)) == 1) else to_sympy(written)

    @cached_property
    def strata(self) -> tuple[Stratum, ...]:
        """The rows, and all coarser strata; each before those that it lies over."""
        coarser = self.shape.coarser(self.h.rows)
        return (self.h.rows, *(s for s in reversed(self.shape.order) if s in coarser))

    def counted(self, of: Stratum, over: Stratum) -> Any:
        return to_sympy(Count(of, over))

    def tokens(self, over: Stratum) -> Any:
        return sum(self.counted(leaf, over) for leaf in self.h.leaves)

    def shared(self, atom: Expression, over: Stratum) -> bool:
        """Whether an atom has one value at all rows over an element."""
        place = read_at(atom)
        return place is None or place == over or place in self.shape.coarser(over)

    def over(self, stratum: Stratum) -> Any:
        """The sum of `μ` over an element, as read there; None if it has no form without a sum."""
        if stratum not in self._over:
            self._over[stratum] = self._sum(stratum)
        return self._over[stratum]

    @cached_property
    def _over(self) -> dict[Stratum, Any]:
        return {}

    def _sum(self, stratum: Stratum) -> Any:
        if stratum == self.h.rows:
            return simple(self.tokens(stratum) * self.mu)
        known = Assumptions(self.shape, self.h.assume, self.h.rows).populations
        found = fibre_sum(self.over(self.h.rows), self.h.rows, stratum, known)
        return None if found is None else simple(found)

    # ------------------------------------------------------------ words

    @property
    def name(self) -> str:
        """The constructor that makes `μ`; '' if none does."""
        for made in (token_mean(), trajectory_mean()):
            if vanishes(self.mu - to_sympy(made.spelled_out(self.h.leaves, self.h.rows))):
                return made.written
        length = simple(1 / (self.mu * self.counted(self.h.rows, WHOLE))) if self.mu != 0 else sympy.oo
        read = [ATOM_OF[s] for s in length.free_symbols]
        if length.is_finite is not False and all(isinstance(a, Parameter) and a.on is None for a in read):
            return constant_normaliser(from_sympy(length)).written
        return ""

    @property
    def same(self) -> str:
        """The stratum of the finest elements that all have one weight, or one sum; '' if there is none."""
        places = [(self.h.leaves[0].name, self.mu)] if len(self.h.leaves) == 1 else [("token", self.mu)]
        places += [(str(s), self.over(s)) for s in self.strata if s != WHOLE]
        for name, value in places:
            if value is not None and all(self.shared(ATOM_OF[s], WHOLE) for s in value.free_symbols):
                return name
        return ""

    # ------------------------------------------------------------ sums that no usual mean has

    def unusual(self, stratum: Stratum) -> str | None:
        """Two elements whose sums show that the sum is not usual, in words; None if none are found."""
        value = self.over(stratum)
        if value is None or self._is_usual(value, stratum):
            return None
        for one, other in self._pairs(value, stratum):
            a, b = (self._number(value, stratum, mine, (one, other)) for mine in (one, other))
            if a is None or b is None:
                continue
            if all(_apart(a * u, b * v) for v, u in self._proportions(one, other)):
                return self._shown(value, stratum, ((one, a), (other, b)))
        return None

    def _is_usual(self, value: Any, stratum: Stratum) -> bool:
        units = {s for s in value.free_symbols if _counts(ATOM_OF[s], stratum)} | {self.tokens(stratum)}
        powers = []
        for factor in sympy.Mul.make_args(value):
            base, power = factor.as_base_exp()
            if base in units:
                powers.append(power)
            elif any(_counts(ATOM_OF[s], stratum) for s in factor.free_symbols):
                return False
        return sorted(powers) in ([], [1], [-1, 1])

    def _pairs(self, value: Any, stratum: Stratum) -> Iterator[tuple[Sizes, Sizes]]:
        """Yields pairs of elements by the number of what lies over them, those with the fewest elements first."""
        read = [ATOM_OF[s] for s in value.free_symbols]
        named = {a.of if isinstance(a, (Count, Total)) else a.on for a in read if not isinstance(a, Parameter)}  # type: ignore[attr-defined]
        inside = [s for s in self.shape.order if s in named and stratum in self.shape.coarser(s)]
        written = {int(n) for n in value.atoms(sympy.Number) if n.is_Rational and n.q == 1 and 1 < abs(n) < 10**7}
        written |= {int(n.q) for n in value.atoms(sympy.Rational) if n.q < 10**7}
        sizes = sorted({*SIZES, *(s for n in written for s in (abs(n) - 1, abs(n), abs(n) + 1, 2 * abs(n)) if s > 0)})
        each = [dict(zip(inside, chosen, strict=True)) for chosen in itertools.product(sizes, repeat=len(inside))]
        possible = [e for e in each if all(e[a] >= e[b] for a in e for b in e if b in self.shape.coarser(a))]
        possible.sort(key=lambda e: sum(e.values()))
        pairs = itertools.combinations(possible[:MOST_PAIRS], 2)
        yield from itertools.islice(sorted(itertools.islice(pairs, 10 * MOST_PAIRS), key=_size), MOST_PAIRS)

    def _number(self, value: Any, stratum: Stratum, mine: Sizes, both: tuple[Sizes, Sizes]) -> Any:
        """The sum over one of two elements, alone in a batch or an element that both lie over; None if it has none."""
        found = {s: self._value(ATOM_OF[s], stratum, mine, both) for s in value.free_symbols}
        result = value.subs(found)
        return result if result.is_number and result.is_finite and result.is_real else None

    def _value(self, atom: Expression, stratum: Stratum, mine: Sizes, both: tuple[Sizes, Sizes]) -> Any:
        if isinstance(atom, Parameter):
            return _rational(parameter_values(atom)[0])
        if isinstance(atom, Attribute):
            return _rational(Fraction(str(atom.usual)))
        assert isinstance(atom, (Count, Total)) and isinstance(atom.of, Stratum)
        if atom.of == stratum:
            many = len(both)
        elif atom.of in mine:
            many = mine[atom.of] if atom.over == stratum else sum(e[atom.of] for e in both)
        else:
            many = 1
        return many if isinstance(atom, Count) else many * _rational(Fraction(str(atom.attribute.usual)))

    def _proportions(self, one: Sizes, other: Sizes) -> Iterator[tuple[int, int]]:
        """Yields the sizes of two elements that usual sums are proportional to, as a quotient of whole numbers."""
        yield 1, 1
        leaves = [s for s in self.h.leaves if s in one]
        units = [({s}, s) for s in one] + ([({*leaves}, None)] if len(leaves) > 1 else [])
        numbers = [tuple(sum(e[s] for s in unit) for e in (one, other)) for unit, _ in units]
        yield from ((a, b) for a, b in numbers)
        yield from ((a * d, b * c) for (a, b), (c, d) in itertools.permutations(numbers, 2))

    def _shown(self, value: Any, stratum: Stratum, found: tuple[tuple[Sizes, Any], ...]) -> str:
        own = [s for s in value.free_symbols if _counts(ATOM_OF[s], stratum)]
        shared, rest = value.as_independent(*own, as_Add=False)
        alone = all(s in own for s in rest.free_symbols)
        both = (found[0][0], found[1][0])
        if alone:
            found = tuple((e, self._number(rest, stratum, e, both)) for e, _ in found)
        said = [f"{an(str(stratum))}{_of(e)} counts {_text(v)}" for e, v in found]
        least = "" if alone or stratum == WHOLE else ", in a batch of the two"
        times = f", times {show(shared)}" if alone and shared != 1 else ""
        return f"no usual mean: {listed(said)}{times}{least}"


Sizes = dict[Stratum, int]


def simple(value: Any) -> Any:
    """A sum in lowest terms, if it is a quotient of polynomials."""
    if not value.is_rational_function():
        return value
    reduced = cancelled(sympy.together(value))
    return sympy.factor(reduced) if len(reduced.free_symbols) <= MOST_FACTORED else reduced


def _counts(atom: Expression, over: Stratum) -> bool:
    return isinstance(atom, Count) and atom.over == over


def _apart(a: Any, b: Any) -> bool:
    """Whether two numbers differ by more than rounding, or by a small ε."""
    x, y = float(a), float(b)
    return abs(x - y) > CLOSE * max(abs(x), abs(y))


def _rational(value: Fraction) -> Any:
    return sympy.Rational(value.numerator, value.denominator)


def _size(pair: tuple[Sizes, Sizes]) -> int:
    return sum(sum(e.values()) for e in pair)


def _of(sizes: Sizes) -> str:
    return f" of {listed([number(n, s) for s, n in sizes.items()])}" if sizes else ""


def _text(value: Any) -> str:
    return str(value) if value.is_Rational else f"{float(value):.4g}"
