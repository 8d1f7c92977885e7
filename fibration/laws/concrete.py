"""Small concrete hierarchies in exact rationals: where a law that fails is seen to fail.

Nothing here uses sympy. A law is refuted only by a `Witness` found on a `Concrete`, so a refutation never rests on the
symbolic engine, and a reader can check it by hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.expressions import Apply, Expression, Number, atoms, evaluate
from fibration.spec import Hierarchy
from fibration.symbols import Attribute, Component, Count, Parameter, Stratum, Total

MAX_LEAVES = 5  # every hierarchy up to this many leaves is tried before larger, regular ones
MAX_ELEMENTS = 100_000
ROUNDED = frozenset({"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "sqrt"})
BUDGET = 400_000  # elements of all regular hierarchies together


@dataclass(frozen=True)
class Concrete:
    """Who lies over whom, root stratum first, with attribute and parameter values."""

    chain: tuple[Stratum, ...]
    parents: Mapping[Stratum, tuple[int, ...]]  # of every stratum but the root
    attributes: Mapping[Attribute, tuple[Fraction, ...]] = field(default_factory=dict)
    parameters: Mapping[Expression, Fraction] = field(default_factory=dict)

    @cached_property
    def size(self) -> dict[Stratum, int]:
        sizes = {self.chain[0]: 1}
        sizes.update({s: len(p) for s, p in self.parents.items()})
        return sizes

    def below(self, stratum: Stratum, element: int, target: Stratum) -> int:
        """The `target` element that an element lies over."""
        i = self.chain.index(stratum)
        while self.chain[i] != target:
            element = self.parents[self.chain[i]][element]
            i -= 1
        return element

    def over(self, source: Stratum, target: Stratum, element: int) -> list[int]:
        """The `source` elements over a `target` element."""
        if (source, target) not in self._over:
            lists: list[list[int]] = [[] for _ in range(self.size[target])]
            for a in range(self.size[source]):
                lists[self.below(source, a, target)].append(a)
            self._over[source, target] = lists
        return self._over[source, target][element]

    @cached_property
    def _over(self) -> dict[tuple[Stratum, Stratum], list[list[int]]]:
        return {}

    def atom(self, atom: Expression, stratum: Stratum, element: int) -> Fraction:
        """The value of a count, total, attribute or parameter at an element."""
        if isinstance(atom, Count):
            assert isinstance(atom.of, Stratum) and isinstance(atom.over, Stratum)
            return Fraction(len(self.over(atom.of, atom.over, self.below(stratum, element, atom.over))))
        if isinstance(atom, Total):
            assert isinstance(atom.over, Stratum)
            on = atom.attribute.on
            b = self.below(stratum, element, atom.over)
            return sum((self.attributes[atom.attribute][a] for a in self.over(on, atom.over, b)), Fraction(0))
        if isinstance(atom, Attribute):
            return self.attributes[atom][self.below(stratum, element, atom.on)]
        return self.parameters[atom]

    def value(
        self, expression: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Fraction] | None = None
    ) -> Fraction:
        """An expression at an element, exactly. `bound` gives residuals, advantages, densities."""
        extra = bound or {}
        return evaluate(expression, lambda a: extra[a] if a in extra else self.atom(a, stratum, element))  # type: ignore[no-any-return]

    def describe(self, stratum: Stratum, element: int = 0) -> str:
        """`a trajectory of 3 tokens`, or `a domain of 2 prompt_groups with 1 and 2 trajectories`."""
        i = self.chain.index(stratum)
        if i + 1 == len(self.chain):
            return f"a {stratum}"
        source = self.chain[i + 1]
        inside = self.over(source, stratum, element)
        text = f"a {stratum} of {len(inside)} {source.name if len(inside) == 1 else plural(source.name)}"
        if i + 2 < len(self.chain):
            sizes = [len(self.over(self.chain[i + 2], source, a)) for a in inside]
            if len(sizes) <= 6:
                finer = self.chain[i + 2].name
                text += f" with {' and '.join(map(str, sizes))} {plural(finer) if sum(sizes) > 1 else finer}"
        return text

    def to_dict(self) -> dict[str, Any]:
        small = sum(self.size.values()) <= 64
        return {
            "sizes": {s.name: n for s, n in self.size.items()},
            **({"parents": {s.name: list(p) for s, p in self.parents.items()}} if small else {}),
            "attributes": {a.name: [str(v) for v in values[:64]] for a, values in self.attributes.items()},
            "parameters": {str(p): str(v) for p, v in self.parameters.items()},
        }


def plural(name: str) -> str:
    """`trajectories` for `trajectory`."""
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


@dataclass(frozen=True)
class Witness:
    """Where a law fails: a sentence, and everything needed to check it without this library."""

    text: str
    concrete: Concrete | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        hierarchy = {} if self.concrete is None else {"hierarchy": self.concrete.to_dict()}
        return {"text": self.text, **hierarchy, "values": {k: str(v) for k, v in self.values.items()}}


def rounding(*expressions: Expression) -> Fraction:
    """How far an exact result may be off: rational arithmetic is exact, exp, log and roots have fifty digits."""
    return Fraction(1, 10**30) if any(_rounds(e) for e in expressions) else Fraction(0)


def _rounds(e: Expression) -> bool:
    return isinstance(e, Apply) and (e.operator in ROUNDED or any(_rounds(a) for a in e.arguments))


def shapes(strata: int, leaves: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every tree with this many strata and leaves: per stratum above the root, the parent of each element."""
    if strata == 1:
        if leaves == 1:
            yield ()
        return
    if strata == 2:
        yield ((0,) * leaves,)
        return
    for below in range(1, leaves + 1):
        for lower in shapes(strata - 1, below):
            for cuts in itertools.combinations(range(1, leaves), below - 1):
                bounds = [0, *cuts, leaves]
                yield (*lower, tuple(i for i in range(below) for _ in range(bounds[i + 1] - bounds[i])))


def concretes(hierarchy: Hierarchy, expressions: list[Expression]) -> Iterator[Concrete]:
    """Candidates for a counterexample, smallest first: all small trees, then regular ones around the constants met."""
    chain = hierarchy.chain
    used = list(dict.fromkeys(a for e in expressions for a in atoms(e)))
    for leaves in range(1, MAX_LEAVES + 1):
        for shape in shapes(len(chain), leaves):
            yield from _valued(chain, dict(zip(chain[1:], shape, strict=True)), used)
    numbers = sorted({n for e in expressions for n in _constants(e)})
    fans = sorted({1, 2, 3, *(n + d for n in numbers for d in (-1, 0, 1, 2) if n + d > 0)})
    budget = BUDGET
    for fan in sorted(_fans(fans, len(chain) - 1), key=lambda f: (_elements(f), f)):
        if MAX_LEAVES < _elements(fan) <= MAX_ELEMENTS:
            parents, width = {}, 1
            for stratum, factor in zip(chain[1:], fan, strict=True):
                parents[stratum] = tuple(i for i in range(width) for _ in range(factor))
                width *= factor
            for concrete in _valued(chain, parents, used):
                budget -= width
                if budget < 0:
                    return
                yield concrete


def _fans(fans: list[int], levels: int) -> Iterator[tuple[int, ...]]:
    """How many elements lie over each, level by level: at most one level is large where there are several."""
    small = [f for f in fans if f <= 3]
    if levels <= 2:
        yield from itertools.product(fans, repeat=levels)
        return
    yield from itertools.product(small, repeat=levels)
    for place in range(levels):
        for large in (f for f in fans if f > 3):
            for others in itertools.product(small[:2], repeat=levels - 1):
                yield (*others[:place], large, *others[place:])


def _elements(fan: tuple[int, ...]) -> int:
    total = product = 1
    for f in fan:
        product *= f
        total += product
    return total


def _constants(e: Expression) -> Iterator[int]:
    if isinstance(e, Number):
        yield from {abs(int(e.value)), abs(int(e.value)) + 1} if abs(e.value) < MAX_ELEMENTS else ()
    elif isinstance(e, Apply):
        for a in e.arguments:
            yield from _constants(a)


def _valued(
    chain: tuple[Stratum, ...], parents: dict[Stratum, tuple[int, ...]], used: list[Expression]
) -> Iterator[Concrete]:
    """A tree with several choices of attribute and parameter values."""
    size = {chain[0]: 1, **{s: len(p) for s, p in parents.items()}}
    attributes = list(
        dict.fromkeys(a.attribute if isinstance(a, Total) else a for a in used if isinstance(a, (Attribute, Total)))
    )
    parameters = [a for a in used if isinstance(a, (Parameter, Component))]
    choices = [parameter_values(p.parameter if isinstance(p, Component) else p) for p in parameters]
    patterns: list[Mapping[Attribute, tuple[Fraction, ...]]] = [{}]
    if attributes:
        kinds = [
            lambda i: Fraction(1),
            lambda i: Fraction(i + 1),
            lambda i: Fraction(2),
            lambda i: Fraction(1, i + 2),
            lambda i: Fraction(1 if i else 1000),
        ]
        signed = [lambda i: Fraction(-1), lambda i: Fraction(0), lambda i: Fraction(i) * (-1) ** i]
        patterns = []
        for kind in [*kinds, *signed]:
            if kind in signed and all(a.positive for a in attributes):
                continue
            plain = kinds[0] if kind in signed else kind
            patterns.append(
                {a: tuple((plain if a.positive else kind)(i) for i in range(size[a.on])) for a in attributes}
            )
    longest = max((len(c) for c in choices), default=1)
    for pattern in patterns:
        for k in range(longest):
            yield Concrete(
                chain, parents, pattern, {p: c[k % len(c)] for p, c in zip(parameters, choices, strict=True)}
            )


def parameter_values(parameter: Parameter) -> list[Fraction]:
    """Values to try: the defaults, then some spread over the allowed interval."""
    low = None if parameter.lower in (None, -math.inf) else Fraction(str(parameter.lower))
    high = None if parameter.upper in (None, math.inf) else Fraction(str(parameter.upper))
    defaults = [Fraction(str(v)) for _, v in parameter.default_items()]
    if low is not None and high is not None:
        spread = [low + (high - low) * t for t in (Fraction(1, 2), Fraction(1, 100), Fraction(99, 100))]
    elif low is not None:
        spread = [low + t for t in (Fraction(1), Fraction(1, 100), Fraction(10), Fraction(3, 4))]
    elif high is not None:
        spread = [high - t for t in (Fraction(1), Fraction(1, 100), Fraction(10))]
    else:
        spread = [Fraction(1), Fraction(-1), Fraction(1, 100)]
    if (low is None or low < 0) and (high is None or high > 0):
        spread.append(Fraction(0))
    return list(dict.fromkeys([*defaults, *spread]))
