"""IR → steps: the order in which a backend computes, what each value is called, and when it is no longer needed."""

from __future__ import annotations

from dataclasses import dataclass

from fibration.compiler.ir import Const, Detach, Input, Map, Mix, Node, Program, Pull, Push
from fibration.compiler.keys import Key, Names

_KIND = {Map: "value", Const: "constant", Detach: "detached", Mix: "mixed"}


@dataclass(frozen=True)
class Step:
    """Compute `node` under `name`; the names in `dead` are not read afterwards."""

    name: str
    node: Node
    dead: tuple[str, ...]


@dataclass(frozen=True)
class Schedule:
    """A program in a fixed order: coarse values stay, token vectors are dropped after their last use."""

    program: Program
    steps: tuple[Step, ...]
    results: dict[Key, str]
    names: dict[Node, str]

    def __str__(self) -> str:
        lines = [f"schedule of {self.program.name}: {len(self.steps)} steps"]
        lines += [
            f"  {s.name}: {s.node.stratum}" + (f"   drop {', '.join(s.dead)}" if s.dead else "") for s in self.steps
        ]
        return "\n".join(lines)


def schedule(program: Program, reserved: frozenset[str] = frozenset()) -> Schedule:
    """Depth-first from the outputs, so that a value is used soon after it is made.

    `reserved` are the words of the backend's language and skeleton, which no value may take.
    """
    order = list(program.nodes())
    names = value_names(program, order, reserved)
    last = {o: i for i, node in enumerate(order) for o in node.operands}
    kept = set(program.outputs.values())
    steps = []
    for i, node in enumerate(order):
        dead = sorted(
            names[o]
            for o in dict.fromkeys(node.operands)
            if last[o] == i and o not in kept and o.stratum in program.leaves
        )
        steps.append(Step(names[node], node, tuple(dead)))
    return Schedule(program, tuple(steps), {k: names[v] for k, v in program.outputs.items()}, names)


def value_names(program: Program, order: list[Node], reserved: frozenset[str]) -> dict[Node, str]:
    """The user's words where there are any, else the kind and the stratum; every name once, inputs first."""
    outputs = {v: program.called[k] for k, v in reversed(list(program.outputs.items()))}
    free = Names(reserved).free
    names: dict[Node, str] = {}
    for node in sorted(order, key=lambda n: not isinstance(n, Input)):  # stable: the order of computation otherwise
        if isinstance(node, Input):
            word = program.given[node]
        else:
            word = str(program.names[node]) if node in program.names else outputs.get(node) or _described(node, names)
        names[node] = free(word)
    return names


def _described(node: Node, names: dict[Node, str]) -> str:
    """A word for a value that the user never named: what it is made of, or its stratum."""
    if isinstance(node, Pull):
        return f"{names[node.operand]}_at_{node.source}"
    if isinstance(node, Push):
        return f"{node.reduce}_of_{names[node.operand]}"
    return f"{_KIND[type(node)]}_{node.stratum}"
