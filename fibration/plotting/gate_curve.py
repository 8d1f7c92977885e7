"""A gate as a function of its residual alone: its other operands keep one value.

The curves evaluate the compiled operator's own programs, in float64 (`compiler/interpret.py`). Slopes are those of the
adjoint (`compiler/scalars.py`), regimes those of the metrics (`compiler/diagnostics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.compiler.diagnostics import REGIMES, UNCHANGED, regime_nodes
from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import CONDITIONS, Const, Input, Key, Map, Node, Scalar, const, scalar
from fibration.compiler.program import Program
from fibration.language.atoms import Density, advantage
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms
from fibration.plotting.canvas import Vector
from fibration.rollouts.replay import Replay
from fibration.runtime.operator import Operator

RESIDUAL = Input("residual", "grid", "operand")
# The search for breakpoints evaluates these sizes of residuals. No gate of float32 training bends twice between two.
SIZES = np.geomspace(1e-9, 1e6, 2401)
HALVINGS = 64  # of a gap between two sizes, down to neighbouring floats
SAME = 1e-9  # relative difference below which two slopes or values count as equal


@dataclass(frozen=True)
class Section:
    """The gate of one level along its residual, in intensive units. `held` has the values of its other operands."""

    label: str
    program: Program
    held: Mapping[Input, float]

    def at(self, residual: Any) -> dict[str, Vector]:
        """`gated`, its `slope`, and every regime as 0 or 1, at these residuals: float64, of their length."""
        return _along(self.program, self.held, np.atleast_1d(np.asarray(residual, np.float64)))

    def gated(self, residual: Any) -> Vector:
        return self.at(residual)["gated"]

    def regime(self, residual: Any) -> list[str]:
        return [REGIMES[i] for i in _code(self.at(residual))]

    @cached_property
    def sides(self) -> tuple[tuple[float, float], ...]:
        """Neighbouring floats between which the gate bends or jumps, in order."""
        decides = {k: v for k, v in self.program.outputs.items() if k.word == "condition"}
        if not decides:
            return ()

        def conditions(residual: Vector) -> Vector:
            return np.stack(list(_along(replace(self.program, outputs=decides), self.held, residual).values()))

        grid = np.concatenate([-SIZES[::-1], [0.0], SIZES])
        holds = conditions(grid)
        which, where = np.nonzero(holds[:, 1:] != holds[:, :-1])
        each, start = np.arange(len(which)), holds[which, where]
        low, high = bisect(grid[where], grid[where + 1], lambda middle: conditions(middle)[which, each] == start)
        pairs = sorted(set(zip(low.tolist(), high.tolist(), strict=True)))
        return tuple(pair for pair in pairs if self._bends(*pair))

    @property
    def breaks(self) -> tuple[float, ...]:
        """The residuals at which the gate bends or jumps, in order."""
        return tuple(dict.fromkeys(0.0 if abs(a) < SIZES[0] else float(f"{a:.12g}") for a, _ in self.sides))

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """The breakpoints at which the gate leaves its budget: it passes just before, seen from 0, and not beyond."""
        found = []
        for b in self.breaks:
            step = math.copysign(10 * UNCHANGED * max(abs(b), SIZES[0]), b)
            near, beyond = self.regime([b - step, b + step])
            found += [b] if near == "passed" != beyond else []
        return tuple(found)

    def _bends(self, low: float, high: float) -> bool:
        seen = self.at([low, high])
        (a, b), (p, q) = seen["gated"], seen["slope"]
        bends = abs(q - p) > SAME * max(1.0, abs(p), abs(q))
        moves = 2 * (1 + abs(p) + abs(q)) * (high - low)  # a continuous gate changes by no more
        return bool(bends or abs(b - a) > SAME * max(abs(a), abs(b)) + moves)


def bisect(low: Vector, high: Vector, is_low: Callable[[Vector], NDArray[np.bool_]]) -> tuple[Vector, Vector]:
    """Narrows intervals, all at once, to neighbouring floats. `is_low`: whether each middle belongs to the low end."""
    for _ in range(HALVINGS if len(low) else 0):
        middle = low + (high - low) / 2
        if ((middle == low) | (middle == high)).all():
            break
        same = is_low(middle)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return low, high


@dataclass(frozen=True)
class Curve:
    """A section on a grid of residuals that has both sides of every breakpoint, with the regime of every cell."""

    label: str
    residual: Vector
    gated: Vector
    slope: Vector
    regimes: list[str]  # between each residual and the next: that of the middle


def curves(found: Sequence[Section], low: float, high: float, points: int) -> list[Curve]:
    """Sections on one grid."""
    sides = [x for s in found for pair in s.sides for x in pair if low < x < high]
    grid = np.unique(np.concatenate([np.linspace(low, high, points), sides]))
    middles, values = grid[:-1] + np.diff(grid) / 2, [s.at(grid) for s in found]
    lines = zip(found, values, strict=True)
    return [Curve(s.label, grid, v["gated"], v["slope"], s.regime(middles)) for s, v in lines]


def sections(
    seen: Replay, stratum: str, channel: str, advantages: Sequence[float] = (), drifts: Sequence[float] = ()
) -> list[Section]:
    """The gate of a level: one section, or one per sign if it reads the advantage.

    - Counts, parameters and attributes are medians over the batch.
    - The advantage, or a statistic of advantages, is the median over the elements with that sign, or one of
      `advantages`.
    - Densities of coarser strata and other statistics are medians. If `drifts` are given, there is one section per
      drift, and they all have its value.
    """
    gate = LevelGate(seen.op, stratum, channel)
    values, pushed = gate.values(seen), gate.pulls
    moving = [o for o in gate.operands if o not in pushed and _reads(o, "log_ratio")]
    pull = "A" if all(isinstance(o, Input) for o in pushed) else "Σ μ·A·r"
    drift_of = "coarser drift" if any(isinstance(a, Density) for a in gate.atoms) else "statistic"
    result = []
    for sign, chosen, size in _signs([values[o] for o in pushed], advantages, pull):
        held = {o: float(np.median(v[chosen] if pushed else v)) for o, v in values.items()}
        held |= dict.fromkeys(pushed, size) if advantages else {}
        for drift in drifts if moving and drifts else (None,):
            held |= {} if drift is None else dict.fromkeys(moving, drift)
            label = ", ".join(filter(None, (sign, "" if drift is None else f"{drift_of} {drift:.3g}")))
            result.append(Section(label, gate.program, {gate.places[o]: value for o, value in held.items()}))
    return result


def _signs(
    pushed: Sequence[Vector], advantages: Sequence[float], pull: str
) -> Iterator[tuple[str, NDArray[np.bool_] | slice, float]]:
    if not pushed:
        yield "", slice(None), 0.0
    elif advantages:
        for a in advantages:
            yield f"{pull} {'>' if a > 0 else '<'} 0", slice(None), float(a)
    else:
        for label, chosen in ((f"{pull} > 0", pushed[0] > 0), (f"{pull} < 0", pushed[0] < 0)):
            if chosen.any():
                yield label, chosen, 0.0


def regimes(batches: Sequence[Replay], stratum: str, channel: str, residual: Vector) -> NDArray[np.int64]:
    """The regimes of a level's elements, as numbers of `diagnostics.REGIMES`, in worlds that follow one another.

    `residual`: `[worlds, elements]`. The batches differ in their policies alone. So one of them has all other operands
    of the gate, unless an operand depends on the policy too.
    """
    if not residual.size:  # a leaf without a token
        return np.zeros(residual.shape, np.int64)
    gate = LevelGate(batches[0].op, stratum, channel)
    differ = any(_reads(o, "log_ratio") for o in gate.operands)
    values = [gate.values(b) for b in (batches if differ else batches[:1])]
    held = {}
    for o, place in gate.places.items():
        rows = [v[o].reshape(-1, min(v[o].size, residual.shape[1])) for v in values]
        held[place] = np.broadcast_to(np.concatenate(rows), residual.shape).ravel()
    return _code(_along(gate.program, held, residual.ravel())).reshape(residual.shape)


@dataclass(frozen=True)
class LevelGate:
    """The gate of a level, as nodes of the operator's program of levels, and as a program over a grid of residuals."""

    op: Operator
    stratum: str
    channel: str

    def _output(self, word: str) -> Node:
        return self.op.programs["levels"].outputs[Key(word, self.stratum, self.channel)]

    @cached_property
    def removes(self) -> bool:
        """Whether the gate is a constant."""
        return isinstance(self._output("gated"), Const)

    @cached_property
    def atoms(self) -> list[Any]:
        """The atoms of the gate as declared."""
        h = self.op.hierarchy
        return list(atoms(h.gate(next(s for s in h.order if s.name == self.stratum))))

    @cached_property
    def operands(self) -> list[Node]:
        """The operands of the gate besides its residual."""
        node, residual = self._output("gated"), self._output("residual")
        if node is residual or self.removes:
            return []
        return [o for o in node.inputs if o is not residual] if isinstance(node, Map) else [node]

    @cached_property
    def pulls(self) -> list[Node]:
        """The operands that are an advantage, or a statistic of advantages."""
        of_tokens = any(isinstance(a, Aggregate) and advantage in atoms(a.formula) for a in self.atoms)

        def is_pull(o: Node) -> bool:
            return o.kind == "advantage" if isinstance(o, Input) else of_tokens and _reads(o, "advantage")

        return [o for o in self.operands if is_pull(o)]

    @cached_property
    def places(self) -> dict[Node, Input]:
        """An input over the grid of residuals in place of each operand."""
        return {o: Input(f"operand_{i}", "grid", "operand") for i, o in enumerate(self.operands)}

    def values(self, seen: Replay) -> dict[Node, Vector]:
        """The values of the operands on a batch."""
        read = replace(self.op.programs["levels"], outputs={Key(p.word): o for o, p in self.places.items()})
        found = interpret(read, seen.inputs("levels"), seen.index.sizes(read.edges)) if self.operands else {}
        return {o: found[Key(p.word)] for o, p in self.places.items()}

    @cached_property
    def program(self) -> Program:
        """The gate over a grid of residuals, with its slope, its regimes and its conditions."""
        node, residual = self._output("gated"), self._output("residual")
        gate: Node
        if node is residual:
            gate = RESIDUAL
        elif isinstance(node, Const):
            gate = Const(node.value, "grid")
        elif isinstance(node, Map):
            gate = Map(node.body, tuple(RESIDUAL if o is residual else self.places[o] for o in node.inputs))
        else:  # the gate returns another vector unchanged and ignores the residual
            gate = self.places[node]
        outputs: dict[Key, Node] = {Key("gated"): gate, **{Key(w): n for w, n in regime_nodes(RESIDUAL, gate).items()}}
        if isinstance(gate, Map):
            for i, condition in enumerate(dict.fromkeys(_conditions(gate.body))):
                outputs[Key("condition", str(i))] = Map(
                    scalar("select", condition, const(1.0), const(0.0)), gate.inputs
                )
        return Program("section", ("grid",), outputs, {})


def gates(op: Operator, stratum: str) -> list[LevelGate]:
    """The gates on a stratum: one per channel."""
    return [LevelGate(op, stratum, c) for c in op.hierarchy.decomposition.channels]


def reads_advantage(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum depends on the sign or size of its elements' one advantage."""
    return any(isinstance(o, Input) for gate in gates(op, stratum) for o in gate.pulls)


def reads_pull(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum depends on advantages: on its elements' own, or on a statistic of its tokens'."""
    return any(gate.pulls for gate in gates(op, stratum))


def removes(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum is a constant."""
    return all(gate.removes for gate in gates(op, stratum))


def _conditions(body: Scalar) -> Iterator[Scalar]:
    if body.op in CONDITIONS:
        yield body
    for a in body.args:
        yield from _conditions(a)


def _reads(node: Node, kind: str) -> bool:
    read = Program("read", (node.stratum,), {Key("node"): node}, {}).inputs
    return any(i.kind == kind for i in read)


def _along(program: Program, held: Mapping[Input, Any], residual: Vector) -> dict[str, Vector]:
    inputs: dict[Any, Vector] = {**held, RESIDUAL: residual}
    found = interpret(program, inputs, Sizes({}, {"grid": len(residual)}))
    return {str(k): v for k, v in found.items()}


def _code(seen: Mapping[str, Vector]) -> NDArray[np.int64]:
    tests = [seen["passed"] > 0, seen["rolled_back"] > 0, seen["zeroed"] > 0, seen["flat"] > 0]
    return np.select(tests, range(4), len(REGIMES) - 1).astype(np.int64)
