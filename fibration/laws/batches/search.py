"""Candidates for a counterexample, smallest first: shapes with values.

All small shapes come first. Larger shapes are regular, with equally many elements over each, or uneven, with many over
some siblings and few over others. Their sizes lie around the constants of the formulas, and where a condition changes
(`probes.py`). The values of parameters and attributes are chosen in the same way.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Stratum,
    Summary,
    Total,
    at,
    read_at,
    residual,
    token_log_ratio,
)
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression, Number
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, atoms_within, within
from fibration.language.strata import Balanced, Shape
from fibration.language.traversal import atoms, subexpressions
from fibration.laws.batches.caps import ALL, Caps
from fibration.laws.batches.concrete import Concrete, is_balanced, rounding
from fibration.laws.batches.shapes import Candidate, Maps, regular, regular_one, small, uneven
from fibration.laws.values.intervals import enclose, of_its_sign
from fibration.laws.values.probes import between, crossings, turning, whole_crossings

Batch = TypeVar("Batch")  # a batch, alone or with what is tried on it
Found = TypeVar("Found")
MAX_LEAVES = 5  # every chain or tree up to this many leaf elements is tried before larger ones
MAX_CROSSED = 4  # the same for quivers
MAX_SMALL = 3000  # shapes per number of leaf elements, except for chains
MAX_ELEMENTS, MAX_UNEVEN = 100_000, 1_000
BUDGETS = (400_000, 400_000, 40_000)  # leaf elements of all candidates of one kind together
FAR, FAR_ROUNDED = 12, 2  # powers of ten up to which values are searched; the second with exponentials
MOST_VALUES = 8  # of one parameter or attribute, around the places where conditions change

# Values of an attribute by the position of the element; in a range, the nearest allowed value.
POSITIVE_PATTERNS: tuple[Callable[[int], Fraction], ...] = (
    lambda i: Fraction(1),
    lambda i: Fraction(i + 1),
    lambda i: Fraction(2),
    lambda i: Fraction(1, i + 2),
    lambda i: Fraction(1 if i else 1000),
)
OTHER_PATTERNS: tuple[Callable[[int], Fraction], ...] = (
    lambda i: Fraction(-1),
    lambda i: Fraction(0),
    lambda i: Fraction(i) * (-1) ** i,
)
SHARES = (Fraction(1, 2), Fraction(1, 100))  # of a range that has two ends


def find(batches: Iterable[Batch], fails: Callable[[Batch], Found | None]) -> Found | None:
    """What `fails` returns for the first batch on which it returns something; None if there is no such batch."""
    return next((found for batch in batches if (found := fails(batch)) is not None), None)


def concretes(
    hierarchy: Hierarchy, expressions: list[Expression], caps: Caps = ALL, shape: Shape | None = None
) -> Iterator[Concrete]:
    """Candidates for a counterexample to a claim about the expressions.

    The hierarchy's assumptions hold on each candidate, so that no counterexample is a batch that an index refuses.
    `shape` has the strata of the hierarchy, and may have more. By default it is the whole batch if the expressions read
    statistics, or anything over rows, groups or the batch. Tries at most `caps.batches`, at most half of them of small
    shapes, and passes over those of more than `caps.tokens` tokens.
    """
    if shape is None:
        inside = all(_is_inside(hierarchy, a) for e in expressions for a in atoms(e))
        shape = hierarchy.shape if inside else whole_batch(hierarchy)
    place = next(iter(shape.leaves), None)
    found = _Search(hierarchy, tuple(at(inner, place) for e in expressions for inner in within(e)), shape)
    tried, most = 0, caps.batches
    for concrete in itertools.islice(found.small(), None if most is None else (most + 1) // 2):
        tried += 1
        if caps.allow(concrete.tokens):
            yield concrete
    large = itertools.islice(found.large(), None if most is None else most - tried)
    yield from (concrete for concrete in large if caps.allow(concrete.tokens))


def _is_inside(hierarchy: Hierarchy, atom: Expression) -> bool:
    """Whether the strata of a hierarchy, without rows, groups and the batch, give an atom its value."""
    if isinstance(atom, Summary):
        return False
    places: tuple[object, ...] = (atom.of, atom.over) if isinstance(atom, (Count, Total)) else ()
    places = (atom.on,) if isinstance(atom, Attribute) else places
    return all(s in hierarchy.strata for s in places if isinstance(s, Stratum))


def is_of_one_token(formula: Expression) -> bool:
    """Whether a formula reads no other tokens but by counts and totals, so that it is cheap on large batches."""
    return not atoms(formula, Summary)


def is_read_at(shape: Shape, expression: Expression, stratum: Stratum) -> bool:
    """Whether all atoms of an expression have values at the elements of a stratum."""
    there = (stratum, *shape.coarser(stratum))
    places = [read_at(a) for a in atoms(expression) if not isinstance(a, (Component, Parameter))]
    places += [a.of for a in atoms(expression, Aggregate) if a.others]
    return all(s in there for s in places if isinstance(s, Stratum))


def smallest(hierarchy: Hierarchy, shape: Shape, leaves: int) -> Iterator[Concrete]:
    """The batches of `leaves` leaf elements, parameters at their defaults and attributes as near to 1 as allowed."""
    parameters, assumed = usual(hierarchy), [a for a in hierarchy.assume if isinstance(a, Balanced)]
    for maps in small(shape, leaves, hierarchy.assume):
        size = Concrete(shape, maps).size
        attributes = {a: (a.nearest(Fraction(1)),) * size[a.on] for a in hierarchy.attributes.values()}
        concrete = Concrete(shape, maps, attributes, parameters)
        if all(is_balanced(hierarchy, concrete, a.first, a.second) for a in assumed):
            yield concrete


def leaves_one_alone(hierarchy: Hierarchy, concrete: Concrete) -> bool:
    """Whether a formula of tokens compares an element with others, and it has none: an index refuses that batch."""
    return _leaves_one_alone(concrete, (a for e in hierarchy.objective.formulas for a in atoms_within(e)))


def _leaves_one_alone(concrete: Concrete, read: Iterable[Expression]) -> bool:
    compared = dict.fromkeys((a.of, a.over) for a in read if isinstance(a, Aggregate) and a.others)
    return any(min(len(concrete.over(*s, b)) for b in range(concrete.size[s[1]])) < 2 for s in compared)  # type: ignore[arg-type, index]


def usual(hierarchy: Hierarchy) -> dict[Expression, Fraction]:
    """The default of every parameter, or an allowed value if it has no default."""
    found: dict[Expression, Fraction] = {}
    for p in hierarchy.parameters.values():
        defaults = dict(p.default_items())
        for c in ("+", "-") if p.per_channel else ("",):
            value = defaults.get(c, defaults.get(""))
            found[Component(p, c) if c else p] = parameter_values(p)[0] if value is None else Fraction(str(value))
    return found


def ends(parameter: Parameter) -> tuple[Fraction | None, Fraction | None]:
    """The ends of a parameter's range; None for an infinite one."""
    low = None if parameter.lower in (None, -math.inf) else Fraction(str(parameter.lower))
    high = None if parameter.upper in (None, math.inf) else Fraction(str(parameter.upper))
    return low, high


def parameter_values(parameter: Parameter) -> list[Fraction]:
    """Values to try: the defaults, then some spread over the allowed interval."""
    low, high = ends(parameter)
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


def in_step(choices: Mapping[Expression, Sequence[Fraction]]) -> list[dict[Expression, Fraction]]:
    """Choices of all values: the same place in each list, then one place further per list."""
    longest = max((len(c) for c in choices.values()), default=1)
    return [
        {a: c[(k + turn * i) % len(c)] for i, (a, c) in enumerate(choices.items())}
        for turn in ((0, 1) if len(choices) > 1 else (0,))
        for k in range(longest)
    ]


@dataclass(frozen=True)
class _Search:
    hierarchy: Hierarchy
    expressions: tuple[Expression, ...]
    shape: Shape

    def small(self) -> Iterator[Concrete]:
        shape = self.shape
        for leaves in range(1, (MAX_LEAVES if shape.is_tree else MAX_CROSSED) + 1):
            found = small(shape, leaves, self.hierarchy.assume)
            for maps in itertools.islice(found, None if shape.is_chain else MAX_SMALL):
                yield from self.valued(maps)

    def large(self) -> Iterator[Concrete]:
        """Larger candidates. Each kind has its own budget, so that no kind crowds out another."""
        kinds = self.changing(), regular(self.shape, self.fans, MAX_LEAVES, MAX_ELEMENTS), self.uneven()
        left = list(BUDGETS)
        tagged = ((c, k) for k, kind in enumerate(kinds) for c in kind)
        for candidate, kind in sorted(tagged, key=lambda found: (found[0].elements, found[1])):
            if left[kind] <= 0:
                continue
            for concrete in self.valued(candidate.make()):
                left[kind] -= candidate.leaves
                if left[kind] < 0:
                    break
                yield concrete

    # ------------------------------------------------------------ sizes

    @cached_property
    def counted(self) -> Callable[[Count | Total], frozenset[Stratum]]:
        """The strata whose sizes multiply to a count. Cached, since every number that is tried needs them."""
        return functools.cache(functools.partial(counted, self.shape))

    @cached_property
    def fans(self) -> list[int]:
        """Sizes around the constants of the expressions."""
        numbers = {n for e in self.expressions for n in _constants(e)}
        return sorted({1, 2, 3, *(n + d for n in numbers for d in (-1, 0, 1, 2) if n + d > 0)})

    def changing(self) -> list[Candidate]:
        """Regular shapes on both sides of the sizes at which a condition changes."""
        found: dict[tuple[int, ...], Candidate] = {}
        free = [s for s in self.shape.order if s not in self.shape.roots]
        for difference in self.deciding:
            met = _met(difference)
            sized = [a for a in met if isinstance(a, (Count, Total))]
            chosen = [{a: v for a, v in values.items() if a in met} for values in self.settings[:MOST_VALUES]]
            distinct = [values for i, values in enumerate(chosen) if values not in chosen[:i]]
            read = [a for a in atoms(difference) if isinstance(a, (Count, Total))]
            for values, s, others in itertools.product(distinct, free if read else (), (1, 2)):
                if not any(s in self.counted(a) for a in read):
                    continue
                fan = {u: others if u in free else 1 for u in self.shape.order}

                def at(n: Fraction, s: Stratum = s, fan: dict[Stratum, int] = fan) -> Fraction | None:
                    return _on_regular(difference, self.sizes(sized, {**fan, s: int(n)}), values)  # noqa: B023

                for n in whole_crossings(at, MAX_ELEMENTS):
                    for m in (n - 1, n, n + 1):
                        sizes = {**fan, s: m}
                        found[tuple(sizes.values())] = regular_one(self.shape, sizes)
        return [c for c in found.values() if c.elements <= MAX_ELEMENTS]

    def uneven(self) -> Iterator[Candidate]:
        if any(isinstance(a, (Count, Total)) for a in self.used):
            yield from uneven(self.shape, self.fans, MAX_LEAVES, MAX_UNEVEN)

    def sizes(self, counted: Iterable[Count | Total], fan: Mapping[Stratum, int]) -> dict[Expression, int]:
        """How many elements are counted on the regular shape of `fan`."""
        return {a: math.prod(fan[u] for u in self.counted(a)) for a in counted if isinstance(a.over, Stratum)}

    # ------------------------------------------------------------ values

    @cached_property
    def balanced(self) -> list[Balanced]:
        return [a for a in self.hierarchy.assume if isinstance(a, Balanced)]

    @cached_property
    def used(self) -> list[Expression]:
        masses = (self.hierarchy.masses[leaf] for leaf in self.shape.leaves if self.balanced)
        return list(dict.fromkeys(a for e in (*self.expressions, *masses) for a in atoms(e)))

    @cached_property
    def deciding(self) -> list[Expression]:
        """Expressions whose sign matters: it decides a branch or whether there is a value, or must be positive."""
        numbers = (e for e in self.expressions if not e.is_condition)
        return list(dict.fromkeys([*turning(self.expressions), *numbers]))

    @cached_property
    def attributes(self) -> list[Attribute]:
        read = (a for a in self.used if isinstance(a, (Attribute, Total)))
        return list(dict.fromkeys(a.attribute if isinstance(a, Total) else a for a in read))

    @cached_property
    def settings(self) -> list[dict[Expression, Fraction]]:
        """Choices of all parameters, `in_step`."""
        declared: dict[Expression, Parameter] = {
            a: a.parameter if isinstance(a, Component) else a
            for a in self.used
            if isinstance(a, (Parameter, Component))
        }
        choices = {a: parameter_values(p) for a, p in declared.items()}
        first = {a: values[0] for a, values in choices.items()}
        for a, p in declared.items():
            choices[a] = list(dict.fromkeys([*choices[a], *self.changes(a, first, *ends(p))]))
        return in_step(choices)

    def changes(
        self, atom: Expression, others: Mapping[Expression, Fraction], low: Fraction | None, high: Fraction | None
    ) -> list[Fraction]:
        """Values of a parameter or attribute around those at which a condition changes, on small regular shapes."""
        points: set[Fraction] = set()
        for e in self.deciding:
            read = set(atoms(e))
            if not read & {atom, *(a for a in read if isinstance(a, Total) and a.attribute == atom)}:
                continue
            met = _met(e)
            sized = [a for a in met if isinstance(a, (Count, Total))]
            known = tuple((a, others[a]) for a in met if a in others and a != atom)
            for n in (1, 2) if sized else (1,):
                fan = {s: 1 if s in self.shape.roots else n for s in self.shape.order}
                points |= set(_changes(e, atom, known, tuple(self.sizes(sized, fan).items()), low, high))
        return [v for v in between(sorted(points)) if (low is None or low < v) and (high is None or v < high)][
            :MOST_VALUES
        ]

    @cached_property
    def patterns(self) -> list[dict[Attribute, Callable[[int], tuple[Fraction, ...]]]]:
        """Choices of all attributes: from the number of elements, the values in the attribute's range nearest to it."""
        plain = list(zip(POSITIVE_PATTERNS, POSITIVE_PATTERNS, strict=True))
        if not all(a.positive for a in self.attributes):
            plain += [(POSITIVE_PATTERNS[0], other) for other in OTHER_PATTERNS]
        found = [{a: positive if a.positive else other for a in self.attributes} for positive, other in plain]
        for a in self.attributes:
            low, high = a.ends
            within = [] if low is None or high is None else [low + (high - low) * t for t in SHARES]
            bounds = [Fraction(str(b)) for b in (a.lower, a.upper) if b is not None]
            for value in dict.fromkeys([*bounds, *within, *self.changes(a, self.settings[0], low, high)]):
                same, first_alone = (lambda i, v=value: v), (lambda i, v=value: Fraction(1) if i else v)
                found += [{**found[0], a: pattern} for pattern in (same, first_alone)]

        def first(a: Attribute, pattern: Callable[[int], Fraction]) -> Callable[[int], tuple[Fraction, ...]]:
            return functools.cache(lambda n: tuple(a.nearest(pattern(i)) for i in range(n)))

        chosen = [{a: first(a, pattern) for a, pattern in p.items()} for p in found]
        return chosen if self.attributes else [{}]

    def valued(self, maps: Maps) -> Iterator[Concrete]:
        """A shape with several choices of attribute and parameter values, on which the assumptions hold."""
        plain = Concrete(self.shape, maps)
        if _leaves_one_alone(plain, self.used):
            return
        size = plain.size
        legal: dict[tuple[object, ...], bool] = {}  # by the values that the masses read, often not all
        for pattern in self.patterns:
            attributes = {a: values(size[a.on]) for a, values in pattern.items()}
            for values in self.settings:
                concrete = Concrete(self.shape, maps, attributes, values)
                read = tuple(attributes[a] if isinstance(a, Attribute) else values[a] for a in self.weighed)
                if read not in legal:
                    legal[read] = all(is_balanced(self.hierarchy, concrete, a.first, a.second) for a in self.balanced)
                if legal[read]:
                    yield concrete

    @cached_property
    def weighed(self) -> list[Expression]:
        """The attributes and parameters in the masses, if balance is assumed."""
        masses = (self.hierarchy.masses[leaf] for leaf in self.hierarchy.leaves) if self.balanced else ()
        read = (a.attribute if isinstance(a, Total) else a for m in masses for a in atoms(m))
        return [a for a in dict.fromkeys(read) if not isinstance(a, Count)]


def counted(shape: Shape, a: Count | Total) -> frozenset[Stratum]:
    """The strata whose sizes multiply to a count, where every element has equally many over it."""
    assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
    return frozenset((a.of, *shape.coarser(a.of))) - {a.over, *shape.coarser(a.over)}


def _met(e: Expression) -> list[Expression]:
    """The atoms of an expression, also inside statistics and orders, with the attributes of totals."""
    found = dict.fromkeys(atoms_within(e))
    return list(found | dict.fromkeys(a.attribute for a in found if isinstance(a, Total)))


def _on_regular(
    e: Expression, sizes: Mapping[Expression, int], values: Mapping[Expression, Fraction]
) -> Fraction | None:
    """A number with the sign of an expression, on policy, where counts have these sizes.

    An atom that `values` does not name is 1; a residual, log ratio or density 0, a log-prob -1.
    """

    def atom(a: Expression) -> Any:
        if a in sizes:
            return values.get(a.attribute, Fraction(1)) * sizes[a] if isinstance(a, Total) else Fraction(sizes[a])
        if isinstance(a, LogProb):
            return Fraction(-1)
        if isinstance(a, Summary):  # its formula is the same at all tokens
            return Fraction(0) if a.word == "deviation" else enclose(a.formula, atom)
        return values.get(a, Fraction(a not in (residual, token_log_ratio) and not isinstance(a, (Density, Gated))))

    return of_its_sign(e, atom)


@functools.lru_cache(4096)  # all searches need the changes of the same conditions
def _changes(
    e: Expression,
    atom: Expression,
    known: tuple[tuple[Expression, Fraction], ...],
    sizes: tuple[tuple[Expression, int], ...],
    low: Fraction | None,
    high: Fraction | None,
) -> tuple[Fraction, ...]:
    given, counts = dict(known), dict(sizes)
    far = FAR_ROUNDED if rounding(e) else FAR
    return tuple(crossings(lambda v: _on_regular(e, counts, {**given, atom: v}), low, high, far=far))


def _constants(expression: Expression) -> Iterator[int]:
    for e in subexpressions(expression):
        if isinstance(e, Number) and abs(e.value) < MAX_ELEMENTS:
            yield from (abs(int(e.value)), abs(int(e.value)) + 1)
