"""Adds a metric of every level of a tree: how much of the pull on the tokens its elements have in common.

With the mass `m` and the mean pull `Y` on an element of a level (the fact `share`, `laws/facts/levels.py`), the metric
is `Σ m·Y²` over the level's elements, over `Σ m·Y²` of all tokens. Slopes of gates reach coefficients only
through `Y`. So a level at 0 is idle, but for what its gates pass to the ratios, which is of the order of log ratios.
"""

from __future__ import annotations

from dataclasses import replace

from fibration.compiler import ir
from fibration.compiler.formulas import Formulas, added
from fibration.compiler.ir import Map, Node, Push, arg, scalar
from fibration.compiler.keys import Key
from fibration.compiler.program import Program
from fibration.language.atoms import BATCH, Stratum
from fibration.language.cancel import cancel
from fibration.language.hierarchy import Hierarchy, adds_up_levels
from fibration.language.places import row_path

RECEIVED = "received"  # the word of a pull on the sum of what all levels pass to a leaf's tokens


def has_pulls(hierarchy: Hierarchy) -> bool:
    """Whether levels have this metric: a coefficient is their sum, and their strata do not cross."""
    return adds_up_levels(hierarchy) and hierarchy.shape.is_tree


def received_by_tokens(program: Program, hierarchy: Hierarchy) -> dict[Key, tuple[Node, ...]]:
    """What all levels pass to the tokens, by the key of its pull."""
    if not has_pulls(hierarchy):
        return {}
    found = {k: node for k, node in program.outputs.items() if k.word == "down"}
    return {key._replace(word=RECEIVED): (node,) for key, node in found.items()}


def add_pulls(program: Program, hierarchy: Hierarchy) -> Program:
    """`program` with `pull` of every level and `pull_sum` of the tokens, in place of its outputs `RECEIVED`."""
    received = {k: node for k, node in program.outputs.items() if k.word == RECEIVED}
    outputs = {k: node for k, node in program.outputs.items() if k.word != RECEIVED}
    if not received:
        return program
    pulls = _SquaredPulls(hierarchy)
    found = {s: pulls.square(s, received) for s in hierarchy.order}
    outputs |= {Key("pull", s.name): node for s, node in found.items()}
    outputs[Key("pull_sum")] = added([found[leaf] for leaf in hierarchy.leaves])
    return replace(program, outputs=outputs).validate()


class _SquaredPulls(Formulas):
    def square(self, stratum: Stratum, received: dict[Key, Node]) -> Node:
        """`Σ m·Y²` of one level over the batch and all channels."""
        leaves = [leaf for leaf in self.h.leaves if leaf in self.shape.leaves_over(stratum)]

        def pull(channel: str) -> Node:
            """`m·Y`: the sum of what is received over an element."""
            given = [(received[Key(RECEIVED, leaf.name, channel)], self.path(leaf, stratum)) for leaf in leaves]
            return added([ir.reduce(node, path) for node, path in given])

        return added([self.square_of(pull(channel)) for channel in self.h.decomposition.channels])

    def square_of(self, node: Node) -> Node:
        """`Σ m·(node/m)²` over the batch."""
        name = node.stratum
        square, mass = scalar("mul", arg(0), arg(0)), self.h.masses[self.strata[name]]
        if name in self.leaves:  # times 1/m, so that a factor that all tokens of a row have is applied once per row
            term = Map(scalar("mul", square, arg(1)), (node, self.map(cancel(1 / mass), name)))
            way = row_path(self.h, name)
        else:
            term, way = Map(scalar("div", square, arg(1)), (node, self.map(mass, name))), [name]
        return term if name == BATCH else Push(way[-1], BATCH, ir.reduce(term, way))

    def path(self, source: Stratum, target: Stratum) -> list[str]:
        return [source.name, *(f.target.name for f in self.shape.path(source, target))]
