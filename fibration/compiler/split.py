"""Splits the exponentials of gated ratios: `exp(pull(x) + y)` is `pull(exp(x))·exp(y)`.

This saves a sweep over the tokens where `x` is known only after a sum over coarser strata, and `y` before it: the
factor leaves the sums over the fibre (`hoist`), which the first sweep can then take.

Alone it could overflow, because `x` and `y` may be large where their sum is small. A `Licence` says when they are not.
It comes from the verifier: every level adds a number to `log 𝒢` whose range is certified, and contains 0. So whatever
levels `x` and `y` stand for, neither is further from 0 than the ranges' widths together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Node, Pull, Scalar, arg, binary, scalar
from fibration.compiler.optimise import BOUNDED, map_of
from fibration.compiler.program import Program
from fibration.language.report import Fact, Width

LIMIT = 16.0  # exp(±16) times a number from 1e-30 to 1e30 is a normal float32
RATIO = "ratio"  # the word of gated ratios
DOWN = "down"  # the word of sums of levels
SUFFIX = "_bounded"  # of programs with split exponentials


@dataclass(frozen=True)
class Licence:
    """How wide the certified range of `log 𝒢` is on each leaf: a sum of parameters, each times a factor."""

    widths: tuple[Width, ...]

    @classmethod
    def of(cls, facts: Iterable[Fact], leaves: int) -> Licence | None:
        """The licence that a hierarchy's facts give; None if the range on some leaf is unbounded, or no such sum."""
        widths = tuple(f.width for f in facts if f.width)
        return cls(widths) if len(widths) == leaves else None

    def holds(self, largest: Mapping[Input, float]) -> bool:
        """Whether exponentials may be split, where `largest` has the largest value of every parameter input."""
        of = {i.key: value for i, value in largest.items()}
        return all(sum(f * of.get((name, channel), math.inf) for name, channel, f in w) <= LIMIT for w in self.widths)


def split(program: Program) -> Program:
    """`program` with the exponentials of gated ratios split, for all strata that tokens read."""
    ratios = {node for node, key in program.names.items() if key.word == RATIO}
    names: dict[Node, Key] = {}
    # a level's contribution is a named node, and stays whole: its parts have no bounds
    levels = frozenset(node for node, key in program.names.items() if key.word != DOWN)
    made = program.mapped(lambda n: _split(n, names, levels), unchanged={*program.nodes()} - ratios)
    return replace(made, names={**names, **made.names})


def _split(node: Node, names: dict[Node, Key], levels: Collection[Node]) -> Node:
    """The product that `node` is, if it is an exponential. `names` gets words for its factors."""
    if not (isinstance(node, Map) and node.body.op == "exp"):
        return node
    terms = list(_terms(node.body.args[0], node, 1, levels))
    pulled: dict[str, list[Term]] = {}
    for term in terms:
        if isinstance(term[0], Pull) and term[0].target != BATCH:
            pulled.setdefault(term[0].target, []).append(term)
    rest = [t for t in terms if not any(t in of for of in pulled.values())]
    if not pulled or not rest:
        return node
    product: Node = _exp(_sum(rest))
    names[product] = Key(f"{RATIO}_within", node.stratum)
    for target, of in pulled.items():
        factor = _exp(_sum([(n.operand, sign) for n, sign in of if isinstance(n, Pull)]))
        names[factor] = Key(BOUNDED, target)
        product = binary("mul", Pull(node.stratum, target, factor), product)
    return product


Term = tuple[Node, int]  # a summand, and its sign


def _terms(s: Scalar, node: Map, sign: int, levels: Collection[Node]) -> Iterable[Term]:
    """The summands of a part of a map's body. The contribution of a level is one of them."""
    if s.op == "arg":
        found = node.inputs[int(s.value or 0)]
        if isinstance(found, Map) and found not in levels and _adds(found.body):
            yield from _terms(found.body, found, sign, levels)
        else:
            yield found, sign
    elif _adds(s):
        for i, a in enumerate(s.args):
            yield from _terms(a, node, -sign if s.op == "neg" or (s.op == "sub" and i == 1) else sign, levels)
    elif s.op == "const":
        yield Const(float(s.value or 0.0), node.stratum), sign
    else:
        yield map_of(s, node.inputs), sign


def _adds(s: Scalar) -> bool:
    return s.op in ("add", "sub", "neg")


def _sum(terms: Sequence[Term]) -> Node:
    terms = sorted(terms, key=lambda t: -t[1])  # stable: what is added comes first
    (node, sign), *more = terms
    if sign < 0:
        node = map_of(scalar("neg", arg(0)), (node,))
    for term, sign in more:
        node = binary("add" if sign > 0 else "sub", node, term)
    return node


def _exp(node: Node) -> Node:
    return map_of(scalar("exp", arg(0)), (node,))
