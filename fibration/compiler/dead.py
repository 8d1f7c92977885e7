"""Dead tokens: tokens whose coefficient is 0 because advantages are 0, whatever the log-probs are.

A coefficient is a sum of terms that each have an advantage as a factor, less the slopes of penalties. So the constant 0
replaces the advantages, and a node may become a constant. A node over many elements needs 0 at some of the advantages
alone: those of the tokens over one element of a stratum. A gate above the tokens adds up the advantages over its
element, so the coefficients there need 0 at all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from fibration.compiler.ir import (
    BATCH,
    Const,
    Detach,
    Input,
    Map,
    Mix,
    Node,
    Pull,
    Quantile,
    Scalar,
    Scan,
    arg,
    const,
    with_arguments,
)
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch

FEW = 6  # with more constant operands, a map is simplified with all of them alone: 2^6 subsets are quick


class Advantages(NamedTuple):
    """The advantages of a leaf's tokens that lie over the same element of the stratum `over`."""

    leaf: str
    over: str


Needed = frozenset[Advantages]  # advantages that are 0 together
Ways = frozenset[Needed]  # each is enough. One that is empty: always; without one: never
ALWAYS: Ways = frozenset([frozenset()])


@dataclass(frozen=True)
class DeadIf:
    """When coefficients are 0 whatever the log-probs are. `ways`: by leaf, of the coefficient of one of its tokens."""

    ways: Mapping[str, Ways]

    def __str__(self) -> str:
        return "; ".join(f"a {leaf} {_in_words(leaf, ways)}" for leaf, ways in self.ways.items())


def _in_words(leaf: str, ways: Ways) -> str:
    if not ways:
        return "always may have a gradient"
    if ways == ALWAYS:
        return "has no gradient"
    found = (" and ".join(_named(leaf, a) for a in sorted(way)) for way in ways)
    return f"has no gradient if {', or '.join(sorted(found))} is 0"


def _named(leaf: str, a: Advantages) -> str:
    own = a == Advantages(leaf, leaf)
    return "its advantage" if own else f"every advantage of the {a.leaf}s of its {a.over}"


def dead_if(program: Program, hierarchy: Hierarchy) -> DeadIf:
    """When the tokens of an optimised program with the output `coefficients` are dead."""
    analysis = _Analysis(program, hierarchy)
    found: dict[str, Ways] = {}
    for key, node in program.outputs.items():
        if key.word == "coefficients":
            value, ways = analysis.of.get(node, (None, frozenset()))
            found[node.stratum] = ways if value == 0.0 else frozenset()
    return DeadIf(found)


class _Analysis:
    """`of`: per node that is constant where advantages are 0: the constant, and the advantages that it needs."""

    def __init__(self, program: Program, hierarchy: Hierarchy) -> None:
        shape = whole_batch(hierarchy)
        self.under = {s.name: {BATCH, s.name, *map(str, shape.coarser(s))} for s in shape.strata}
        self.under[BATCH] = {BATCH}
        self.leaves = program.leaves
        self.of: dict[Node, tuple[float, Ways]] = {}
        for node in program.nodes():
            if (found := self._constant(node)) is not None:
                self.of[node] = found

    def _constant(self, node: Node) -> tuple[float, Ways] | None:
        if isinstance(node, Const):
            return node.value, ALWAYS
        if isinstance(node, Input):
            if node.kind != "advantage":
                return None
            over = (leaf for leaf in self.leaves if node.over in self.under[leaf])
            return 0.0, frozenset([frozenset(Advantages(leaf, node.over) for leaf in over)])
        if isinstance(node, Map):
            return self._of_map(node)
        if isinstance(node, Scan) and self.of.get(node.discount, (1.0,))[0] == 0.0:
            return self.of[node.discount]
        read = node.values if isinstance(node, (Scan, Quantile)) else node.operands
        if any(o not in self.of for o in read):
            return None
        value, ways = self.of[read[0]][0], [self.of[o][1] for o in read]
        if isinstance(node, (Pull, Detach)):
            return value, ways[0]
        if any(self.of[o][0] != 0.0 for o in read):  # a sum of another constant depends on how many there are
            return None
        target = BATCH if isinstance(node, Mix) else node.target  # type: ignore[attr-defined]
        return 0.0, self._all([_each(w, lambda a: self._summed(a, target)) for w in ways])

    def _of_map(self, node: Map) -> tuple[float, Ways] | None:
        """A map needs the constant operands alone without which its body is not constant."""
        places = [i for i, o in enumerate(node.inputs) if o in self.of]
        sizes: Iterable[int] = range(len(places) + 1) if len(places) <= FEW else [len(places)]
        finite = _finite(node.body)
        result: list[tuple[float, Ways]] = []
        enough: list[set[int]] = []
        for size in sizes:
            for chosen in itertools.combinations(places, size):
                if any(known <= set(chosen) for known in enough):
                    continue
                table = [const(self.of[o][0]) if i in chosen else arg(i) for i, o in enumerate(node.inputs)]
                body = simplify(with_arguments(finite, table))
                if body.op == "const":
                    enough.append(set(chosen))
                    result.append((float(body.value or 0.0), self._all([self.of[node.inputs[i]][1] for i in chosen])))
        if not result:
            return None
        return result[0][0], self._fewest(way for _, ways in result for way in ways)

    def _summed(self, a: Advantages, target: str) -> Advantages:
        """What a sum over an element of `target` needs, where one of its terms needs `a`."""
        if a.over in self.under[target]:
            return a
        return Advantages(a.leaf, target if target in self.under[a.over] else BATCH)

    def _all(self, every: list[Ways]) -> Ways:
        """All of several nodes are constant."""
        joined = reduce(lambda one, other: frozenset(a | b for a in one for b in other), every, ALWAYS)
        return self._fewest(joined)

    def _fewest(self, ways: Iterable[Needed]) -> Ways:
        """Drops advantages that others contain, and ways that another one makes unnecessary."""
        short = {frozenset(a for a in w if not any(a != b and self._implies(b, a) for b in w)) for w in ways}
        return frozenset(
            w for w in short if not any(v != w and all(any(self._implies(b, a) for b in w) for a in v) for v in short)
        )

    def _implies(self, one: Advantages, other: Advantages) -> bool:
        return one.leaf == other.leaf and one.over in self.under[other.over]


def _finite(body: Scalar) -> Scalar:
    """A body without its choices of NaN, which mark values that are not finite. Training stops there anyway."""
    args = tuple(map(_finite, body.args))
    numbers = [a for a in args[1:] if not _is_nan(a)]
    return numbers[0] if body.op == "select" and len(numbers) == 1 else Scalar(body.op, args, body.value)


def _is_nan(body: Scalar) -> bool:
    return body.op == "const" and math.isnan(float(body.value or 0.0))


def _each(ways: Ways, change: Callable[[Advantages], Advantages]) -> Ways:
    return frozenset(frozenset(map(change, way)) for way in ways)
