"""IR → steps: the order in which a backend computes, what each value is called, and when it is no longer needed."""

from __future__ import annotations

from dataclasses import dataclass

from fibration.ir import Const, Detach, Input, Map, Node, Program, Pull, Push

_KIND = {Push: "sum", Pull: "spread", Map: "value", Const: "constant", Detach: "detached"}


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
    results: dict[str, str]
    names: dict[Node, str]

    def __str__(self) -> str:
        lines = [f"schedule of {self.program.name}: {len(self.steps)} steps"]
        lines += [f"  {s.name}: {s.node.stratum}" + (f"   drop {', '.join(s.dead)}" if s.dead else "") for s in self.steps]
        return "\n".join(lines)


def schedule(program: Program) -> Schedule:
    """Depth-first from the outputs, so that a value is used soon after it is made."""
    order = list(program.nodes())
    names = _names(program, order)
    last = {o: i for i, node in enumerate(order) for o in node.operands}
    kept = set(program.outputs.values())
    steps = []
    for i, node in enumerate(order):
        dead = sorted(
            names[o] for o in dict.fromkeys(node.operands) if last[o] == i and o not in kept and o.stratum == program.leaf
        )
        steps.append(Step(names[node], node, tuple(dead)))
    return Schedule(program, tuple(steps), {k: names[v] for k, v in program.outputs.items()}, names)


def _names(program: Program, order: list[Node]) -> dict[Node, str]:
    """The user's words where there are any, else the kind and the stratum; every name once."""
    outputs = {v: k for k, v in reversed(program.outputs.items())}
    taken: dict[str, int] = {n.name: 1 for n in order if isinstance(n, Input)}
    names: dict[Node, str] = {}
    for node in order:
        if isinstance(node, Input):
            names[node] = node.name
            continue
        word = program.names.get(node) or outputs.get(node) or f"{_KIND[type(node)]}_{node.stratum}"
        count = taken[word] = taken.get(word, 0) + 1
        names[node] = word if count == 1 else f"{word}_{count}"
        taken.setdefault(names[node], 1)
    return names
