"""Coupling: the strata over which rows decide a coefficient or a part of `J` together, and sums known before an update.

A coefficient is `c_i = ∂J/∂log π_i`. A node *moves* if it depends on the log-probs of the current policy. Values count,
not only gradients, so the search passes through `Detach`. Tokens meet at the targets of `Push`, `Scan`, `Quantile` and
`Mix`. If all targets of moving nodes are the rows' stratum or finer, the loss is *row-local*: the coefficients of a row
need that row alone, so a micro-batch of whole rows needs no second pass.

A sum over several rows that does not move is *frozen*: a mean of old log-probs, or the number of tokens that a
condition on frozen policies keeps. A program of its own, the *prologue*, computes it once per step. Then it is an
input.

The loss of a micro-batch is its part of `-J`, and the parts add up to `-J`. A summand of `J` may read rows that no
coefficient reads: the mean of a group whose level is removed, or a statistic that a gate adds. Then these rows are
coupled too, although their gradients are row-local.

Dead tokens have the coefficient 0 because advantages are 0, whatever the log-probs are. A coefficient is a sum of terms
that each have an advantage as a factor, less the slopes of penalties. So the constant 0 replaces the advantages, and a
node may become a constant. A node over many elements needs 0 at some of the advantages alone: those of the tokens over
one element of a stratum. A gate above the tokens adds up the advantages over its element, so the coefficients there
need 0 at all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from fibration.compiler import ir
from fibration.compiler.adjoint import adjoint
from fibration.compiler.ir import BATCH, Const, Detach, Input, Key, Map, Mix, Node, Pull, Push, Quantile, Scalar, Scan
from fibration.compiler.lower import from_log_probs, lower
from fibration.compiler.optimise import map_of, optimise
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.compiler.scalars import ZERO
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import below, is_beyond_rows, whole_batch

CURRENT = ("log_prob", "log_ratio")  # the kinds of inputs that are the current policy's
LINEAR = ("add", "sub", "neg", "const", "arg")
FROZEN = "frozen"  # the kind of an input that the prologue computes


@dataclass(frozen=True)
class Coupling:
    """Where the tokens of a loss meet. Strata are in the hierarchy's order, coarsest first.

    An element of `strata` has to lie in one micro-batch, and with it all that lies over it.

    `strata`: beyond a row, where log-probs of the current policy meet, in a coefficient or in a summand of `J`.
    `within`: at the rows or finer, where any tokens meet. `frozen`: beyond a row, the strata of sums that are known
    before the update.
    """

    strata: tuple[str, ...]
    within: tuple[str, ...]
    frozen: tuple[str, ...]

    @property
    def is_row_local(self) -> bool:
        return not self.strata

    def __str__(self) -> str:
        text = f"couples all rows of a {' and of a '.join(self.strata)}" if self.strata else "row-local"
        if self.frozen:
            text += f"; sums over {' and '.join(self.frozen)} are known before the update"
        return text


UNCOUPLED = Coupling((), (), ())


def coupling(program: Program, hierarchy: Hierarchy) -> Coupling:
    """The coupling of an optimised program with the outputs `coefficients` and `objective`."""
    return _Analysis(program, hierarchy).coupling


def coupling_of(hierarchy: Hierarchy) -> Coupling:
    """The coupling of a hierarchy, without an operator: `op.coupling`."""
    base = lower(hierarchy)
    base = replace(base, outputs={Key("objective"): base.outputs[Key("objective")]})
    inputs = {base.part("coefficients", s): tuple(base.token_input(k, s) for k in CURRENT) for s in base.leaves}
    return coupling(optimise(from_log_probs(adjoint(base, {Key("objective"): Const(1.0, BATCH)}, inputs))), hierarchy)


def micro_batch(program: Program, hierarchy: Hierarchy) -> dict[str, Program]:
    """The programs `micro` and `prologue` of micro-batches; none if `program` has no frozen sums, and serves itself.

    An output of the prologue is an input of `micro`: of kind `FROZEN`, with the output's word as its key.
    """
    frozen = _Analysis(program, hierarchy).frontier()
    if not frozen:
        return {}
    inputs = {n: Input(f"frozen_{i}", n.stratum, FROZEN, (f"frozen_{i}",)) for i, n in enumerate(frozen, 1)}
    prologue = replace(program, outputs={Key(i.word): n for n, i in inputs.items()})
    micro = program.mapped(lambda n: n, before=lambda n: inputs.get(n, n))
    return {"micro": micro.validate(), "prologue": prologue.validate()}


@dataclass(frozen=True)
class Sum:
    """What a value adds up, the factors of its terms, and the sums that it is made of."""

    added: tuple[Node, ...]
    factors: tuple[Node, ...] = ()
    sums: frozenset[Node] = frozenset()


class _Analysis:
    def __init__(self, program: Program, hierarchy: Hierarchy) -> None:
        self.program, shape = program, whole_batch(hierarchy)
        self.order = [BATCH, *(s.name for s in shape.order if s.name != BATCH)]
        self.under = below(hierarchy)
        self.wide = {s for s in self.order if is_beyond_rows(hierarchy, Stratum(s))}
        self.nodes = list(program.nodes())
        self.moving = ir.depending(self.nodes, {n for n in self.nodes if isinstance(n, Input) and n.kind in CURRENT})

    @cached_property
    def coupling(self) -> Coupling:
        j = self.summands
        outputs = {k: v for k, v in self.program.outputs.items() if k.word == "coefficients"}
        read = {*replace(self.program, outputs=outputs).nodes(), *self._behind([*j.added, *j.factors])}
        still = {s for n in read if n not in self.moving for s in _meets(n)}
        met = {s for n in read if n in self.moving for s in _meets(n)}
        # each part of an element would add its number, and a sum of `J` that is read is that of the step
        met |= {n.stratum for n in (*j.added, *j.sums.intersection(read)) if n.stratum not in self.program.leaves}
        # a frozen sum along an order has a value per token, and is computed where the tokens are
        met |= {n.target for n in read if isinstance(n, Scan) and n.target in self.wide}
        whole = {s for s in self.order if not self.under[s].isdisjoint(met & self.wide)}
        return Coupling(
            strata=tuple(s for s in self.order if s in met & self.wide),
            within=tuple(s for s in self.order if s in (met | still) - self.wide),
            frozen=tuple(s for s in self.order if s in (still - whole) & self.wide),
        )

    def frontier(self) -> list[Node]:
        """The frozen sums over several rows that other nodes read, and what is made of these sums alone: a sum that one
        level adds and the next one subtracts is of the part in both.
        """
        frozen, of_part, known = set[Node](), set[Node](), set(self.coupling.frozen)
        for n in (n for n in self.nodes if n not in self.summands.sums):
            met = {*_meets(n)} & self.wide if isinstance(n, (Push, Quantile, Mix)) else set[str]()
            made = not frozen.isdisjoint(n.operands) and of_part.isdisjoint(n.operands)
            if n.stratum in self.wide and n not in self.moving and (met & known or made):
                frozen.add(n)
            elif met or not of_part.isdisjoint(n.operands):
                of_part.add(n)
        read = {o for n in self.nodes if n not in frozen for o in n.operands} | set(self.program.outputs.values())
        return [n for n in self.nodes if n in frozen and n in read]

    @cached_property
    def summands(self) -> Sum:
        """`J`: the sums that it is made of, from the last one on; what they add up, and what they multiply that by.

        A micro-batch adds up what it has, and multiplies by numbers of the whole step.
        """
        sums, added, factors = list[Node](), list[Node](), list[Node]()
        left = [self.program.outputs[Key("objective")]]
        for n in left:
            if (found := self._summed(n)) is None:
                added.append(n)
            else:
                sums.append(n)
                left += (o for o in found.added if o not in left)
                factors += found.factors
        return Sum(tuple(added), tuple(factors), frozenset(sums))

    def _summed(self, n: Node) -> Sum | None:
        """What a node adds up, and what it multiplies that by; None if it is no sum over elements."""
        if isinstance(n, Push) and n.reduce == "sum":
            return Sum((n.operand,))
        return self._sum_of(n.body, n) if isinstance(n, Map) and n.stratum not in self.program.leaves else None

    def _sum_of(self, s: Scalar, n: Map) -> Sum | None:
        if s.op == "arg":
            operand = n.inputs[int(s.value or 0)]
            return Sum((operand,)) if self._summed(operand) else None
        if s is ZERO:
            return Sum(())
        if s.op == "select" and s.args[2].op == "const" and math.isnan(s.args[2].value or 0.0):
            return self._sum_of(s.args[1], n)  # NaN if an input is not finite: a part is, if one of its own is not
        found = [self._sum_of(a, n) for a in s.args]
        terms = {"add": [0, 1], "sub": [0, 1], "neg": [0], "div": [0], "select": [1, 2]}.get(s.op, [])
        if s.op == "mul":  # of two sums, the one that moves
            moves = [one is not None and not self.moving.isdisjoint(one.added) for one in found]
            terms = [moves.index(True) if any(moves) else next((k for k in (0, 1) if found[k]), 0)]
        chosen = [one for k in terms if (one := found[k]) is not None]
        if not terms or len(chosen) < len(terms):
            return None
        others = {i for k, a in enumerate(s.args) if k not in terms for i in ir.arguments(a)}
        factors = (*(o for one in chosen for o in one.factors), *(n.inputs[i] for i in sorted(others)))
        return Sum(tuple(o for one in chosen for o in one.added), factors)

    def _behind(self, left: list[Node]) -> set[Node]:
        """What values depend on. A mean that one level adds and the next one subtracts is left out."""
        found = set[Node]()
        while left:
            n = left.pop()
            if n not in found:
                found.add(n)
                if isinstance(n, Map):
                    left += [o for s in ((n.body,) if n.body.op in LINEAR else n.body.args) for o in _linear(s, n)]
                else:
                    left += n.operands
        return found


def _linear(s: Scalar, n: Map) -> dict[Node, int]:
    """The nodes whose sum a part of a map is, each with the number of times that it is added."""
    if s.op == "arg":
        o = n.inputs[int(s.value or 0)]
        while isinstance(o, Pull):
            o = o.operand
        return _linear(o.body, o) if isinstance(o, Map) else {o: 1}
    if s.op not in LINEAR:
        return {map_of(s, n.inputs): 1}
    found = Counter[Node]()
    for i, a in enumerate(s.args):
        sign = -1 if s.op == "neg" or (s.op == "sub" and i == 1) else 1
        found.update({o: sign * times for o, times in _linear(a, n).items()})
    return {o: times for o, times in found.items() if times}


def _meets(node: Node) -> tuple[str, ...]:
    """The strata over whose elements a node joins tokens. A projection joins all elements of what crosses."""
    if isinstance(node, Mix):
        return (BATCH,)
    return (node.target,) if isinstance(node, (Push, Scan, Quantile)) else ()


# ---------------------------------------------------------------- dead tokens


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
    known = _Dead(program, hierarchy).of
    outputs = (node for key, node in program.outputs.items() if key.word == "coefficients")
    found = ((node.stratum, known.get(node, (math.nan, None))) for node in outputs)
    return DeadIf({leaf: needed if value == 0.0 else None for leaf, (value, needed) in found})


class _Dead:
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
            table = [ir.const(self.of[o][0]) if i in constant else ir.arg(i) for i, o in enumerate(node.inputs)]
            return simplify(ir.with_arguments(finite, table))

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
    numbers = [a for a in args[1:] if a.op != "const" or not math.isnan(float(a.value or 0.0))]
    return numbers[0] if body.op == "select" and len(numbers) == 1 else Scalar(body.op, args, body.value)
