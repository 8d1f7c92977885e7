"""Coupling: the strata over which rows decide one coefficient together, and the sums known before an update.

A coefficient is `c_i = ∂J/∂log π_i`. A node *moves* if it depends on the log-probs of the current policy. Values count,
not only gradients, so the search passes through `Detach`. Tokens meet at the targets of `Push`, `Scan`, `Quantile` and
`Mix`. If all targets of moving nodes are the rows' stratum or finer, the loss is *row-local*: the coefficients of a row
need that row alone, so a micro-batch of whole rows needs no second pass.

A sum over several rows that does not move is *frozen*: a mean of old log-probs, or the number of tokens that a
condition on frozen policies keeps. A program of its own, the *prologue*, computes it once per step. Then it is an
input.

The parts of a step add up to `J` because `J` is a sum over tokens, less penalties. A penalty is such a sum too, or a
mean over a stratum. A coefficient reads that mean, to be NaN where it is, so that rows over its elements are coupled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fibration.compiler.adjoint import adjoint
from fibration.compiler.ir import BATCH, Const, Input, Mix, Node, Push, Quantile, Scan
from fibration.compiler.keys import Key
from fibration.compiler.lower import from_log_probs, lower
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import is_beyond_rows, whole_batch

CURRENT = ("log_prob", "log_ratio")  # the kinds of inputs that are the current policy's
FROZEN = "frozen"  # the kind of an input that the prologue computes


@dataclass(frozen=True)
class Coupling:
    """Where the tokens of a loss meet. Strata are in the hierarchy's order, coarsest first.

    An element of `strata` has to lie in one micro-batch, and with it all that lies over it.

    `strata`: beyond a row, where log-probs of the current policy meet. `within`: at the rows or finer, where any tokens
    meet. `frozen`: beyond a row, the strata of sums that are known before the update.
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


class _Analysis:
    def __init__(self, program: Program, hierarchy: Hierarchy) -> None:
        self.program, shape = program, whole_batch(hierarchy)
        self.order = [BATCH, *(s.name for s in shape.order if s.name != BATCH)]
        self.under = {s.name: {BATCH, s.name, *map(str, shape.coarser(s))} for s in shape.strata}
        self.under[BATCH] = {BATCH}
        self.wide = {s for s in self.order if is_beyond_rows(hierarchy, Stratum(s))}
        self.nodes = list(program.nodes())
        self.moving: set[Node] = set()
        for n in self.nodes:
            if (isinstance(n, Input) and n.kind in CURRENT) or not self.moving.isdisjoint(n.operands):
                self.moving.add(n)

    @cached_property
    def coupling(self) -> Coupling:
        outputs = {k: v for k, v in self.program.outputs.items() if k.word == "coefficients"}
        read = list(replace(self.program, outputs=outputs).nodes())
        still = {s for n in read if n not in self.moving for s in _meets(n)}
        met = {s for n in read if n in self.moving for s in _meets(n)}
        # a frozen sum along an order has a value per token, and is computed where the tokens are
        met |= {n.target for n in read if isinstance(n, Scan) and n.target in self.wide}
        whole = {s for s in self.order if not self.under[s].isdisjoint(met & self.wide)}
        return Coupling(
            strata=tuple(s for s in self.order if s in met & self.wide),
            within=tuple(s for s in self.order if s in (met | still) - self.wide),
            frozen=tuple(s for s in self.order if s in (still - whole) & self.wide),
        )

    def frontier(self) -> list[Node]:
        """The frozen sums over several rows that other nodes read, and what is made of these sums alone."""
        frozen, known = set[Node](), set(self.coupling.frozen)
        for n in self.nodes:
            summed = isinstance(n, (Push, Quantile, Mix)) and not known.isdisjoint(_meets(n))
            if n.stratum in self.wide and n not in self.moving and (summed or not frozen.isdisjoint(n.operands)):
                frozen.add(n)
        read = {o for n in self.nodes if n not in frozen for o in n.operands} | set(self.program.outputs.values())
        return [n for n in self.nodes if n in frozen and n in read]


def _meets(node: Node) -> tuple[str, ...]:
    """The strata over whose elements a node joins tokens. A projection joins all elements of what crosses."""
    if isinstance(node, Mix):
        return (BATCH,)
    return (node.target,) if isinstance(node, (Push, Scan, Quantile)) else ()
