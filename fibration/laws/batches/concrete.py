"""Small concrete hierarchies in exact rationals, on which a law is shown to fail, and the words for that.

Nothing here uses sympy. A law is refuted only by a `Witness` found on a `Concrete`, so a refutation never rests on the
symbolic engine, and a reader can check it by hand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.errors import an
from fibration.language.atoms import BATCH, Attribute, Count, Stratum, Summary, Total, read_at
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import OPERATORS, Primitive
from fibration.language.strata import Shape
from fibration.language.traversal import applications, atoms, evaluate
from fibration.laws.batches.shapes import Maps
from fibration.laws.values.numerals import in_brief, number, plural, written

ROUNDED = frozenset(name for name, row in OPERATORS.items() if isinstance(row, Primitive) and row.rounded)


@dataclass(frozen=True)
class Concrete:
    """Who lies over whom, with attribute and parameter values. A parameter has one value, or one per element of `on`.

    `maps[source, target]` gives the target element below every source element of a fibration. `alike` gives how
    many elements of a stratum each one stands for; they have the same values and the same number of elements over them.
    """

    shape: Shape
    maps: Maps
    attributes: Mapping[Attribute, tuple[Fraction, ...]] = field(default_factory=dict)
    parameters: Mapping[Expression, Fraction | tuple[Fraction, ...]] = field(default_factory=dict)
    alike: Mapping[Stratum, tuple[int, ...]] = field(default_factory=dict)

    @property
    def chain(self) -> tuple[Stratum, ...]:
        """The strata, each after those that it lies over."""
        return self.shape.order

    @cached_property
    def strata(self) -> dict[str, Stratum]:
        return {s.name: s for s in self.shape.order}

    @cached_property
    def size(self) -> dict[Stratum, int]:
        found: dict[Stratum, int] = {}
        for s in self.shape.order:
            below = self.shape.below(s)
            if below:
                found[s] = len(self.maps[s, below[0].target])
            else:
                found[s] = max((max(self.maps[f.source, s], default=0) for f in self.shape.above(s)), default=0) + 1
        return found

    @cached_property
    def tokens(self) -> int:
        """How many tokens the batch has."""
        return sum(self.size[leaf] for leaf in self.shape.leaves)

    def below(self, stratum: Stratum, element: int, target: Stratum) -> int:
        """The `target` element that an element lies over."""
        for edge in self.shape.way(stratum, target):
            element = self.maps[edge][element]
        return element

    def all_below(self, stratum: Stratum, target: Stratum) -> Sequence[int]:
        """The `target` element of every element of a stratum."""
        found: Sequence[int] = range(self.size[stratum])
        for edge in self.shape.way(stratum, target):
            found = [self.maps[edge][e] for e in found]
        return found

    def over(self, source: Stratum, target: Stratum, element: int) -> list[int]:
        """The `source` elements over a `target` element."""
        if (source, target) not in self._over:
            lists: list[list[int]] = [[] for _ in range(self.size[target])]
            for a, b in enumerate(self.all_below(source, target)):
                lists[b].append(a)
            self._over[source, target] = lists
        return self._over[source, target][element]

    @cached_property
    def _over(self) -> dict[tuple[Stratum, Stratum], list[list[int]]]:
        return {}

    @cached_property
    def _totals(self) -> dict[tuple[Total, int], Fraction]:
        return {}

    def stands_for(self, stratum: Stratum, element: int) -> int:
        """How many elements an element stands for."""
        return self.alike[stratum][element] if stratum in self.alike else 1

    def atom(self, atom: Expression, stratum: Stratum, element: int) -> Fraction:
        """The value of a count, total, attribute or parameter at an element."""
        if isinstance(atom, Count):
            assert isinstance(atom.of, Stratum) and isinstance(atom.over, Stratum)
            b = self.below(stratum, element, atom.over)
            inside = self.over(atom.of, atom.over, b)
            if not self.alike:
                return Fraction(len(inside))
            return Fraction(sum(self.stands_for(atom.of, a) for a in inside), self.stands_for(atom.over, b))
        if isinstance(atom, Total):
            assert isinstance(atom.over, Stratum)
            key = atom, self.below(stratum, element, atom.over)
            if key not in self._totals:
                values = self.attributes[atom.attribute]
                inside = self.over(atom.of, atom.over, key[1])
                total = sum((self.stands_for(atom.of, a) * values[a] for a in inside), Fraction(0))
                self._totals[key] = total / self.stands_for(atom.over, key[1])
            return self._totals[key]
        if isinstance(atom, Attribute):
            return self.attributes[atom][self.below(stratum, element, atom.on)]
        given = self.parameters[atom]
        return given if isinstance(given, Fraction) else given[self.below(stratum, element, read_at(atom))]  # type: ignore[arg-type]

    def value(
        self, expression: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Fraction] | None = None
    ) -> Fraction:
        """An expression at an element, exactly. `bound` gives residuals, advantages, densities."""
        extra = bound or {}
        return evaluate(expression, lambda a: extra[a] if a in extra else self.atom(a, stratum, element))  # type: ignore[no-any-return]

    def attempt(
        self, expression: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Fraction] | None = None
    ) -> Fraction | None:
        """As `value`; None where the expression has no value."""
        try:
            return self.value(expression, stratum, element, bound)
        except NoValue:
            return None

    def describe(self, stratum: Stratum, element: int = 0) -> str:
        """`a trajectory of 3 tokens`, or `a domain of 2 prompt_groups with 1 and 2 trajectories`."""
        sources = [f.source for f in self.shape.above(stratum)]
        if not sources:
            return an(stratum)
        inside = {s: self.over(s, stratum, element) for s in sources}
        text = f"{an(stratum)} of {' and '.join(number(len(found), s) for s, found in inside.items())}"
        finer = [f.source for f in self.shape.above(sources[0])]
        if len(sources) == len(finer) == 1:
            sizes = [len(self.over(finer[0], sources[0], a)) for a in inside[sources[0]]]
            if len(sizes) <= 6:
                what = plural(finer[0].name) if sum(sizes) > 1 else finer[0].name
                text += f" with {' and '.join(map(str, sizes))} {what}"
        return text

    @property
    def chosen(self) -> str:
        """The values of parameters, each after a comma."""
        return "".join(f", {setting}" for setting in self.settings)

    @property
    def settings(self) -> list[str]:
        """The values of parameters, each with its name."""
        return [f"{p} = {_listed(p, v)}" for p, v in self.parameters.items()]

    def to_dict(self) -> dict[str, Any]:
        parents = {
            s.name: {f.target.name: list(self.maps[s, f.target]) for f in below}
            for s in self.chain
            if (below := self.shape.below(s))
        }
        return {
            "sizes": {s.name: n for s, n in self.size.items()},
            "parents": parents,
            "attributes": {a.name: written(values) for a, values in self.attributes.items()},
            "parameters": {
                str(p): written(v)
                for p, v in sorted(self.parameters.items(), key=lambda item: isinstance(item[1], tuple))
            },
        }


def _listed(parameter: Expression, value: Fraction | tuple[Fraction, ...]) -> str:
    """One value; or several, with the stratum whose elements they belong to."""
    each = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{each} per {read_at(parameter)}" if isinstance(value, tuple) else each


def rounding(*expressions: Expression) -> Fraction:
    """How far a result may be off: rational arithmetic is exact, exp, log and roots have fifty digits."""
    return Fraction(1, 10**30) if any(_rounds(e) for e in expressions) else Fraction(0)


def _rounds(e: Expression) -> bool:
    statistics = atoms(e, Summary)
    return bool(applications(e, *ROUNDED)) or any(s.word == "deviation" or _rounds(s.formula) for s in statistics)


def token_masses(h: Hierarchy, concrete: Concrete) -> dict[Stratum, list[Fraction]]:
    """`m` of every element: on leaves from the kernels, on other strata the sum of the leaf elements over it.

    Raises `NoValue` where the kernels have no value.
    """
    found = {s: [Fraction(0)] * concrete.size[s] for s in concrete.shape.order}
    for leaf in concrete.shape.leaves:
        known: dict[tuple[Fraction, ...], Fraction] = {}
        read = list(atoms(h.masses[leaf]))
        for i in range(concrete.size[leaf]):
            key = tuple(concrete.atom(a, leaf, i) for a in read)
            if key not in known:
                known[key] = concrete.value(h.masses[leaf], leaf, i)
            found[leaf][i] = known[key]
        for s in concrete.shape.coarser(leaf):
            for element, value in zip(concrete.all_below(leaf, s), found[leaf], strict=True):
                found[s][element] += value
    return found


def is_balanced(h: Hierarchy, concrete: Concrete, first: Stratum, second: Stratum) -> bool:
    """Whether `m(a∩b)·m(c) = m(a)·m(b)` for all cells over each `c` of the strata that both lie over."""
    shape, cells = concrete.shape, Counter[tuple[int, int]]()
    try:
        masses = token_masses(h, concrete)
    except NoValue:
        return True  # without masses there is no balance to check; another law refuses the kernel
    one = math.lcm(*(value.denominator for values in masses.values() for value in values))  # whole numbers are quicker
    m = {s: [int(value * one) for value in values] for s, values in masses.items()}
    for s in shape.leaves_over(first) & shape.leaves_over(second):
        for a, b, value in zip(concrete.all_below(s, first), concrete.all_below(s, second), m[s], strict=True):
            cells[a, b] += value
    tolerance = rounding(*(h.masses[leaf] for leaf in shape.leaves)) * one**2
    return all(
        abs(cells[a, b] * m[meet][c] - m[first][a] * m[second][b]) <= tolerance
        for meet in shape.meets(first, second)
        for c in range(concrete.size[meet])
        for a in concrete.over(first, meet, c)
        for b in concrete.over(second, meet, c)
    )


# ---------------------------------------------------------------- words


def lies(concrete: Concrete, stratum: Stratum) -> str:
    """`trajectories 1 to 3 lie over domains 1, 1, 2 and modalities 1, 2, 1`; '' for one, or for many."""
    n = concrete.size[stratum]
    if not 1 < n <= 8:
        return ""
    over = [
        f"{plural(f.target.name)} {', '.join(str(b + 1) for b in concrete.maps[stratum, f.target])}"
        for f in concrete.shape.below(stratum)
    ]
    return f"{plural(stratum.name)} 1 to {n} lie over {' and '.join(over)}"


def in_batch(h: Hierarchy, concrete: Concrete) -> str:
    """`in a trajectory of 3 tokens`; of several rows, `in a batch of 2 trajectories with 1 and 2 tokens`."""
    return f"in {concrete.describe(h.rows if concrete.size[h.rows] == 1 else Stratum(BATCH))}"


def coefficients_are(*values: Fraction) -> str:
    """`the coefficient ∂J/∂log π is 1`, `the coefficients ∂J/∂log π are 1, 0`."""
    many, verb = ("s", "are") if len(values) > 1 else ("", "is")
    return f"the coefficient{many} ∂J/∂log π {verb} {in_brief(*values)}"


@dataclass(frozen=True)
class Witness:
    """A counterexample: a sentence, and everything needed to check it without this library.

    `has_no_value`: a formula has no value there, where others have a wrong one.
    """

    text: str
    concrete: Concrete | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    has_no_value: bool = False

    @classmethod
    def on(cls, concrete: Concrete, text: str, values: Mapping[str, Any]) -> Witness:
        """A witness whose sentence ends with the values of parameters and attributes, in parentheses."""
        parts = [f"{a.name} = {', '.join(map(str, v[:6]))}" for a, v in concrete.attributes.items()]
        settings = "; ".join((*concrete.settings, *parts))
        return cls(f"{text} ({settings})" if settings else text, concrete, values)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        hierarchy = {} if self.concrete is None else {"hierarchy": self.concrete.to_dict()}
        return {"text": self.text, **hierarchy, "values": {k: written(v) for k, v in self.values.items()}}
