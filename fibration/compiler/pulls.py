"""Adds a metric of every level of a tree: its part of the pull on the tokens.

With the mass `m`, the slope `h'` of a gate and the mean pull `Y` on an element, a level `v` over `u` adds

    P_v = h'·Y - E_m[h'·Y | u],    c_i = m_i·Σ_channels F'(x_i)·Σ_v P_v

to a coefficient (the fact `share`, `laws/facts/levels.py`). The metric is `Σ m·P_v²`, over the same sum for all levels
and channels. On policy the parts of two levels are orthogonal in `m`. If there is one channel, the sums of the levels
then add up to that of `Σ_v P_v`.
"""

from __future__ import annotations

from dataclasses import replace

from fibration.compiler import ir
from fibration.compiler.diagnostics import levels, slope_of
from fibration.compiler.formulas import Formulas, added
from fibration.compiler.ir import Const, Map, Node, Push, arg, binary, const, scalar
from fibration.compiler.keys import Key
from fibration.compiler.program import Program
from fibration.language.atoms import BATCH, Stratum
from fibration.language.cancel import cancel
from fibration.language.hierarchy import Hierarchy, adds_up_levels
from fibration.language.places import row_path

RECEIVED = "received"  # the word of a pull on what all levels pass to the tokens of a leaf: an output of the adjoint


def has_pulls(hierarchy: Hierarchy) -> bool:
    """Whether levels have this metric: a coefficient is their sum, and their strata do not cross."""
    return adds_up_levels(hierarchy) and hierarchy.shape.is_tree


def passed(program: Program, hierarchy: Hierarchy) -> dict[Key, tuple[Node, ...]]:
    """What all levels pass to the tokens, by the key of its pull."""
    if not has_pulls(hierarchy):
        return {}
    found = {k: node for k, node in program.outputs.items() if k.word == "down"}
    return {key._replace(word=RECEIVED): (node,) for key, node in found.items()}


def add_pulls(program: Program, levels_of: Program, hierarchy: Hierarchy) -> Program:
    """`program` with `pull` of every level and `pull_sum` of all, in place of its outputs `RECEIVED`.

    `levels_of`: the program with the residuals and gated residuals.
    """
    received = {k: node for k, node in program.outputs.items() if k.word == RECEIVED}
    outputs = {k: node for k, node in program.outputs.items() if k.word != RECEIVED}
    if not received:
        return program
    pulls = _Pulls(hierarchy)
    found = {}
    for stratum, channel in levels(hierarchy):
        residual, gated = (levels_of.outputs[Key(word, stratum, channel)] for word in ("residual", "gated"))
        of_tokens = {leaf: received[Key(RECEIVED, leaf, channel)] for leaf in pulls.leaves}
        found[Key("pull", stratum, channel)] = pulls.square(pulls.strata[stratum], residual, gated, of_tokens)
    outputs |= {**found, Key("pull_sum"): added(list(found.values()))}
    return replace(program, outputs=outputs).validate()


class _Pulls(Formulas):
    def square(self, stratum: Stratum, residual: Node, gated: Node, received: dict[str, Node]) -> Node:
        """`Σ m·P²` of one level, over the batch: that of `h'·Y`, less that of its means over the coarser elements."""
        slope = slope_of(gated, residual)
        if slope is None:
            return Const(0.0, BATCH)
        over = self.shape.leaves_over(stratum)
        pull = added(
            [ir.reduce(received[leaf.name], self.path(leaf, stratum)) for leaf in self.h.leaves if leaf in over]
        )
        read = gated.inputs if isinstance(gated, Map) and gated is not residual else (residual,)
        passed_on = Map(scalar("mul", slope, arg(len(read))), (*read, pull))  # m·h'·Y
        found = self.square_of(passed_on)
        for f in self.shape.below(stratum):
            found = binary("sub", found, self.square_of(ir.reduce(passed_on, self.path(stratum, f.target))))
        rounded = scalar("select", scalar("le", arg(0), const(0)), const(0), arg(0))
        return Map(rounded, (found,))

    def square_of(self, node: Node) -> Node:
        """`Σ m·(node/m)²` over the batch."""
        name = node.stratum
        square, mass = scalar("mul", arg(0), arg(0)), self.h.masses[self.strata[name]]
        if name in self.leaves:  # a product: what rows share leaves the sum
            term = Map(scalar("mul", square, arg(1)), (node, self.map(cancel(1 / mass), name)))
            way = row_path(self.h, name)
        else:
            term, way = Map(scalar("div", square, arg(1)), (node, self.map(mass, name))), [name]
        return term if name == BATCH else Push(way[-1], BATCH, ir.reduce(term, way))

    def path(self, source: Stratum, target: Stratum) -> list[str]:
        return [source.name, *(f.target.name for f in self.shape.path(source, target))]
