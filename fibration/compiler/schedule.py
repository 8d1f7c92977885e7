"""Orders a program into steps: the order of computation, the name of each value, and the step of its last use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fibration.compiler import ir
from fibration.compiler.ir import (
    Const,
    Detach,
    Input,
    Key,
    Map,
    Mix,
    Names,
    Node,
    Pull,
    Push,
    Quantile,
    Scan,
    without_macros,
)
from fibration.compiler.plan import Coarse, Collective, Pass, Plan
from fibration.compiler.program import Program

_OF_ONE = {
    "minus": ir.scalar("neg", ir.arg(0)),
    "square_of": ir.scalar("mul", ir.arg(0), ir.arg(0)),
    "size_of": ir.scalar("select", ir.scalar("le", ir.const(0.0), ir.arg(0)), ir.arg(0), ir.scalar("neg", ir.arg(0))),
}
_KIND = {Map: "value", Const: "constant", Detach: "detached", Mix: "mixed", Quantile: "quantile"}


@dataclass(frozen=True)
class Step:
    """Compute `node` under `name`; the names in `dead` are not read afterwards."""

    name: str
    node: Node
    dead: tuple[str, ...]


@dataclass(frozen=True)
class Schedule:
    """A program in a fixed order. Coarse values stay; token vectors are dropped after their last use.

    If the batch is spread over ranks, collectives stand between the steps.
    """

    program: Program
    steps: tuple[Step | Collective, ...]
    results: dict[Key, str]
    names: dict[Node, str]

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(s for s in self.steps if isinstance(s, Collective))

    def __str__(self) -> str:
        lines = [f"schedule of {self.program.name}: {len(self.steps)} steps"]
        for s in self.steps:
            if isinstance(s, Collective):
                lines.append(f"  put together {', '.join(self.names[n] for n in s.values)}")
            else:
                lines.append(f"  {s.name}: {s.node.stratum}" + (f"   drop {', '.join(s.dead)}" if s.dead else ""))
        return "\n".join(lines)


def schedule(program: Program, reserved: frozenset[str] = frozenset()) -> Schedule:
    """The schedule of a program, depth-first from the outputs, so that a value is used soon after it is computed.

    `reserved` are the words of the backend's language and skeleton, which no value may take.
    """
    order = list(program.nodes())
    return _scheduled(program, order, value_names(program, order, reserved))


def schedule_spread(plan: Plan) -> Schedule:
    """The schedule of a fused plan: one vector after the other in its order, with its collectives between them."""
    order: dict[Node | Collective, None] = {}
    together = {n for stage in plan.collectives for n in stage.of_tokens}  # collectives compute these

    def add(node: Node) -> None:
        if node not in order and node not in together:
            for o in node.operands:
                add(o)
            order[node] = None

    for stage in plan.stages:
        if isinstance(stage, Collective):
            for node in stage.reads:  # an input is read, but no stage computes it
                add(node)
            order[stage] = None
        elif isinstance(stage, Coarse):
            for group in stage.groups:
                for node in group.values:
                    add(node)
        else:
            for step in stage.steps:
                for node in (*step.values, *(step.pushes if isinstance(step, Pass) else ())):
                    add(node)
    for node in plan.program.outputs.values():  # outputs that no stage computes
        add(node)
    return _scheduled(plan.program, list(order), dict(plan.names))


def _scheduled(program: Program, order: Sequence[Node | Collective], names: dict[Node, str]) -> Schedule:
    last = {o: i for i, n in enumerate(order) for o in (n.operands if isinstance(n, Node) else n.reads)}
    kept = set(program.outputs.values())
    steps: list[Step | Collective] = []
    for i, node in enumerate(order):
        if isinstance(node, Collective):
            steps.append(node)
            continue
        dead = sorted(
            names[o]
            for o in dict.fromkeys(node.operands)
            if last[o] == i and o not in kept and o.stratum in program.leaves
        )
        steps.append(Step(names[node], node, tuple(dead)))
    return Schedule(program, tuple(steps), {k: names[v] for k, v in program.outputs.items()}, names)


def value_names(program: Program, order: list[Node], reserved: frozenset[str]) -> dict[Node, str]:
    """A unique name for every node: the user's word or the output's, else one from its operand or its use. Inputs come
    first. What the objective is made of is not named after a derivative that it equals.
    """
    objective = {k: v for k, v in program.outputs.items() if k.word == "objective"}
    summed = set(replace(program, outputs=objective).nodes())
    outputs = {v: program.called[k] for k, v in reversed(list(program.outputs.items()))}
    named = {n: key for n, key in program.names.items() if n not in summed or not is_derivative(key)}
    given = outputs | {node: str(key) for node, key in named.items()}
    uses: dict[Node, Key] = {}  # of values without a name, the first value with a name that needs them
    keys = {v: k for k, v in reversed(list(program.outputs.items()))} | named
    for node in reversed(order):
        if node in keys or node in uses:
            read = (o for o in node.operands if node in summed or o not in summed)
            uses |= dict.fromkeys(read, keys.get(node) or uses[node])
    free = Names(reserved).free
    names: dict[Node, str] = {}
    for node in sorted(order, key=lambda n: not isinstance(n, Input)):  # stable: the order of computation otherwise
        word = (
            program.given[node] if isinstance(node, Input) else given.get(node) or _described(node, names, given, uses)
        )
        names[node] = free(without_macros(word))
    return names


def is_derivative(key: Key) -> bool:
    """Whether a value's key is that of a derivative of J, which `adjoint` gives."""
    return key.word.startswith("d_")


def _described(node: Node, names: Mapping[Node, str], given: Mapping[Node, str], uses: Mapping[Node, Key]) -> str:
    """A word for a value that the user never named, from its operand, or from the value that needs it."""
    if isinstance(node, Pull):
        return f"{names[node.operand]}_at_{node.source}"
    if isinstance(node, Push):
        summed = node.operand
        while isinstance(summed, Push) and summed.reduce == node.reduce and summed not in given:
            summed = summed.operand
        over = "" if summed is node.operand else f"_over_{node.target}"  # a sum of sums is a sum
        return f"{node.reduce}_of_{names[summed]}{over}"
    if isinstance(node, Scan):
        way, value = "before" if node.forward else "after", node.values[node.sources.index(node.into)]
        return f"{way}_{node.into}" if isinstance(value, Const) else f"{names[value]}_{way}"
    if isinstance(node, Map):
        for word, body in _OF_ONE.items():
            if node.body is body:
                return f"{word}_{names[node.inputs[0]]}"
        if _counts(node):
            return f"share_{node.stratum}"
        if node in uses:
            use = uses[node]._replace(over="")
            return f"part_of_{use}" if node.stratum in (use.stratum, uses[node].over) else f"{use}_of_{node.stratum}"
    return f"{_KIND[type(node)]}_{node.stratum}"


def _counts(node: Node) -> bool:
    """Whether a value is computed from numbers of elements alone."""
    counts = isinstance(node, Input) and node.kind == "count"
    return counts or isinstance(node, Const) or (bool(node.operands) and all(map(_counts, node.operands)))
