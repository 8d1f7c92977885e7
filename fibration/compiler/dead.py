"""Dead tokens: tokens whose coefficient is 0 because advantages are 0, whatever the log-probs are.

A coefficient is a sum of terms that each have an advantage as a factor, less the slopes of penalties. So the constant 0
replaces the advantages, and a node may become a constant. A node over many elements needs 0 at some of the advantages
alone: those of the tokens over one element of a stratum. A gate above the tokens adds up the advantages over its
element, so the coefficients there need 0 at all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    Scalar,
    Scan,
    arg,
    const,
    with_arguments,
)
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import below


class Advantages(NamedTuple):
    """The advantages of a leaf's tokens that lie over the same element of the stratum `over`."""

    leaf: str
    over: str


Needed = frozenset[Advantages]  # advantages that are 0 together


@dataclass(frozen=True)
class DeadIf:
    """The advantages at whose 0 a coefficient of a leaf is 0 whatever the log-probs are; None: at none."""

    needed: Mapping[str, Needed | None]

    def __str__(self) -> str:
        return "; ".join(f"a {leaf} {_in_words(leaf, needed)}" for leaf, needed in self.needed.items())


def _in_words(leaf: str, needed: Needed | None) -> str:
    if needed is None:
        return "always may have a gradient"
    named = (
        "its advantage" if a == (leaf, leaf) else f"every advantage of the {a.leaf}s of its {a.over}"
        for a in sorted(needed)
    )
    return f"has no gradient if {' and '.join(named)} is 0" if needed else "has no gradient"


def dead_if(program: Program, hierarchy: Hierarchy) -> DeadIf:
    """When the tokens of an optimised program with the output `coefficients` are dead."""
    known = _Analysis(program, hierarchy).of
    outputs = (node for key, node in program.outputs.items() if key.word == "coefficients")
    found = ((node.stratum, known.get(node, (math.nan, None))) for node in outputs)
    return DeadIf({leaf: needed if value == 0.0 else None for leaf, (value, needed) in found})


class _Analysis:
    """`of`: per node that is constant where advantages are 0: the constant, and the advantages that it needs."""

    def __init__(self, program: Program, hierarchy: Hierarchy) -> None:
        self.under, self.leaves = below(hierarchy), program.leaves
        self.of: dict[Node, tuple[float, Needed]] = {}
        for node in program.nodes():
            if (found := self._constant(node)) is not None:
                self.of[node] = found

    def _constant(self, node: Node) -> tuple[float, Needed] | None:
        if isinstance(node, Const):
            return node.value, frozenset()
        if isinstance(node, Input):
            over = (leaf for leaf in self.leaves if node.over in self.under[leaf])
            return (0.0, frozenset(Advantages(leaf, node.over) for leaf in over)) if node.kind == "advantage" else None
        if isinstance(node, Map):
            return self._of_map(node)
        if isinstance(node, Scan) and self.of.get(node.discount, (1.0,))[0] == 0.0:
            return self.of[node.discount]
        read = getattr(node, "values", node.operands)
        if any(o not in self.of for o in read):
            return None
        if isinstance(node, (Pull, Detach)):
            return self.of[read[0]]
        if any(self.of[o][0] != 0.0 for o in read):  # a sum of another constant depends on how many there are
            return None
        target = BATCH if isinstance(node, Mix) else node.target  # type: ignore[attr-defined]
        return 0.0, self._least(self._summed(a, target) for o in read for a in self.of[o][1])

    def _of_map(self, node: Map) -> tuple[float, Needed] | None:
        """A map needs the constant operands alone without which its body is not constant."""
        finite = _finite(node.body)

        def left(constant: list[int]) -> Scalar:
            table = [const(self.of[o][0]) if i in constant else arg(i) for i, o in enumerate(node.inputs)]
            return simplify(with_arguments(finite, table))

        chosen = [i for i, o in enumerate(node.inputs) if o in self.of]
        if left(chosen).op != "const":
            return None
        for i in sorted(
            chosen, key=lambda i: min((len(self.under[a.over]) for a in self.of[node.inputs[i]][1]), default=0)
        ):
            without = [k for k in chosen if k != i]  # first without what the most advantages decide
            chosen = without if left(without).op == "const" else chosen
        return float(left(chosen).value or 0.0), self._least(a for i in chosen for a in self.of[node.inputs[i]][1])

    def _summed(self, a: Advantages, target: str) -> Advantages:
        """What a sum over an element of `target` needs, where one of its terms needs `a`."""
        if a.over in self.under[target]:
            return a
        return Advantages(a.leaf, target if target in self.under[a.over] else BATCH)

    def _least(self, needed: Iterable[Advantages]) -> Needed:
        """Drops advantages that others contain."""
        every = frozenset(needed)
        return frozenset(
            a for a in every if not any(b != a and b.leaf == a.leaf and b.over in self.under[a.over] for b in every)
        )


def _finite(body: Scalar) -> Scalar:
    """A body without its choices of NaN, which mark values that are not finite. Training stops there anyway."""
    args = tuple(map(_finite, body.args))
    numbers = [a for a in args[1:] if not _is_nan(a)]
    return numbers[0] if body.op == "select" and len(numbers) == 1 else Scalar(body.op, args, body.value)


def _is_nan(body: Scalar) -> bool:
    return body.op == "const" and math.isnan(float(body.value or 0.0))
