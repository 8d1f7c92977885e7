"""A gate as a function of its residual alone: its other operands keep one value.

The curves evaluate the compiled operator's own programs, in float64 (`compiler/interpret.py`). Slopes are those of the
adjoint (`compiler/derivative.py`), regimes those of the metrics (`compiler/diagnostics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fibration.compiler.diagnostics import REGIMES, regime_nodes
from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import CONDITIONS, Const, Input, Map, Matrix, Node, Scalar, const, scalar
from fibration.compiler.keys import Key
from fibration.compiler.program import Program
from fibration.language.atoms import Density, advantage
from fibration.language.expressions import Expression
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

Vector = NDArray[np.float64]
RESIDUAL = Input("residual", "grid", "operand")
# The search for breakpoints evaluates these sizes of residuals. No gate of float32 training bends twice between two.
SIZES = np.geomspace(1e-9, 1e6, 2401)
HALVINGS = 64  # of a gap between two sizes, down to neighbouring floats
SAME = 1e-9  # relative difference below which two slopes or values count as equal


class Seen(Protocol):
    """An operator with a batch: `rollouts.replay.Gated`, or a figure's `Sample`."""

    @property
    def op(self) -> Operator: ...

    @property
    def index(self) -> Index: ...

    def inputs(self, program: str) -> Mapping[Input | Matrix, Vector]:
        """The inputs of one of the operator's programs, on this batch."""


@dataclass(frozen=True)
class Section:
    """The gate of one level along its residual, in intensive units. `held` has the values of its other operands."""

    label: str
    program: Program
    held: Mapping[Input | Matrix, float]

    def at(self, residual: Any) -> dict[str, Vector]:
        """`gated`, its `slope`, and every regime as 0 or 1, at these residuals: float64, of their length."""
        grid = np.atleast_1d(np.asarray(residual, np.float64))
        sizes = Sizes({}, {"grid": len(grid)})
        return {str(k): v for k, v in interpret(self.program, {**self.held, RESIDUAL: grid}, sizes).items()}

    def gated(self, residual: Any) -> Vector:
        return self.at(residual)["gated"]

    def regime(self, residual: Any) -> NDArray[np.int64]:
        """Numbers of `fibration.compiler.diagnostics.REGIMES`."""
        return _code(self.at(residual))

    @cached_property
    def sides(self) -> tuple[tuple[float, float], ...]:
        """Neighbouring floats between which the gate bends or jumps, in order."""
        grid = np.concatenate([-SIZES[::-1], [0.0], SIZES])
        if not self._decides.outputs:
            return ()
        holds = self._conditions(grid)
        which, where = np.nonzero(holds[:, 1:] != holds[:, :-1])
        low, high = grid[where], grid[where + 1]
        start = holds[which, where]
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            if ((middle == low) | (middle == high)).all():
                break
            same = self._conditions(middle)[which, np.arange(len(which))] == start
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        pairs = sorted(set(zip(low.tolist(), high.tolist(), strict=True)))
        return tuple(pair for pair in pairs if self._bends(*pair))

    @property
    def breaks(self) -> tuple[float, ...]:
        """The residuals at which the gate bends or jumps, in order."""
        return tuple(dict.fromkeys(0.0 if abs(a) < SIZES[0] else float(f"{a:.12g}") for a, _ in self.sides))

    @cached_property
    def _decides(self) -> Program:
        """The program of the gate's conditions alone."""
        return replace(self.program, outputs={k: v for k, v in self.program.outputs.items() if k.word == "condition"})

    def _conditions(self, residual: Vector) -> Vector:
        found = interpret(self._decides, {**self.held, RESIDUAL: residual}, Sizes({}, {"grid": len(residual)}))
        return np.stack(list(found.values()))

    def _bends(self, low: float, high: float) -> bool:
        seen = self.at([low, high])
        (a, b), (p, q) = seen["gated"], seen["slope"]
        bends = abs(q - p) > SAME * max(1.0, abs(p), abs(q))
        moves = 2 * (1 + abs(p) + abs(q)) * (high - low)  # a continuous gate changes by no more
        return bool(bends or abs(b - a) > SAME * max(abs(a), abs(b)) + moves)


def sections(
    seen: Seen, stratum: str, channel: str, advantages: Sequence[float] = (), drifts: Sequence[float] = ()
) -> list[Section]:
    """The gate of a level: one section, or one per sign if it reads the advantage.

    - Counts, parameters and attributes are medians over the batch.
    - The advantage, or a statistic of advantages, is the median over the elements with that sign, or one of
      `advantages`.
    - Densities of coarser strata and other statistics are medians. If `drifts` are given, there is one section per
      drift, and they all have its value.
    """
    program = seen.op.programs["levels"]
    residual, node = (program.outputs[Key(word, stratum, channel)] for word in ("residual", "gated"))
    operands = _operands(node, residual)
    places = _places(operands)
    values = _values(seen, places)
    pushed = [o for o in operands if _is_pull(seen.op, stratum, o)]
    moving = [o for o in operands if o not in pushed and _reads(o, "log_ratio")]
    pull = "A" if all(isinstance(o, Input) for o in pushed) else "Σ μ·A·r"
    drift_of = "coarser drift" if any(isinstance(a, Density) for a in _atoms(seen.op, stratum)) else "statistic"
    body = _program(node, residual, places)
    result = []
    for sign, chosen, size in _signs([values[places[o]] for o in pushed], advantages, pull):
        here = {p: v[chosen] if pushed else v for p, v in values.items()}
        medians = {p: float(np.median(v)) for p, v in here.items()}
        medians |= {places[o]: size for o in pushed if advantages}
        for drift in drifts if moving and drifts else (None,):
            held = medians | ({} if drift is None else {places[o]: drift for o in moving})
            where = "" if drift is None else f"{drift_of} {drift:.3g}"
            result.append(Section(", ".join(filter(None, (sign, where))), body, held))
    return result


def reads_advantage(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum depends on the sign or size of its elements' one advantage."""
    return any(isinstance(o, Input) and o.kind == "advantage" for o in _gate_operands(op, stratum))


def reads_pull(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum depends on advantages: on its elements' own, or on a statistic of its tokens'."""
    return any(_is_pull(op, stratum, o) for o in _gate_operands(op, stratum))


def _atoms(op: Operator, stratum: str) -> list[Expression]:
    """The atoms of the gate on a stratum, as declared."""
    h = op.hierarchy
    return list(atoms(h.gate(next(s for s in h.order if s.name == stratum))))


def _is_pull(op: Operator, stratum: str, operand: Node) -> bool:
    """Whether a gate's operand is an advantage, or a statistic of advantages."""
    if isinstance(operand, Input):
        return operand.kind == "advantage"
    of_tokens = any(isinstance(a, Aggregate) and advantage in atoms(a.formula) for a in _atoms(op, stratum))
    return of_tokens and _reads(operand, "advantage")


def _gate_operands(op: Operator, stratum: str) -> list[Node]:
    """The operands of the gate on a stratum besides its residual, on all channels."""
    outputs = op.programs["levels"].outputs
    levels = [(stratum, c) for c in op.hierarchy.decomposition.channels]
    pairs = ((outputs[Key("gated", *level)], outputs[Key("residual", *level)]) for level in levels)
    return [o for node, residual in pairs for o in _operands(node, residual)]


def removes(op: Operator, stratum: str) -> bool:
    """Whether the gate on a stratum is a constant."""
    outputs = op.programs["levels"].outputs
    return all(isinstance(outputs[Key("gated", stratum, c)], Const) for c in op.hierarchy.decomposition.channels)


def element_regimes(seen: Seen) -> dict[tuple[str, str], NDArray[np.int64]]:
    """The regime of every element at every gate, by (stratum, channel): numbers of `diagnostics.REGIMES`."""
    wanted = _regime_program(seen.op)
    found: dict[tuple[str, str], dict[str, Vector]] = {}
    for key, value in interpret(wanted, seen.inputs("levels"), seen.index.sizes(wanted.edges)).items():
        found.setdefault((key.stratum, key.channel), {})[key.word] = value
    return {level: _code(kinds) for level, kinds in found.items()}


def regimes_along(seen: Seen, stratum: str, channel: str, residual: Vector) -> NDArray[np.int64] | None:
    """The regimes of a level at other residuals of its elements, `[cases, elements]`: regime numbers.

    None if the gate also reads an operand that depends on the policy, because the residual does not determine it.
    """
    program = seen.op.programs["levels"]
    own, node = (program.outputs[Key(word, stratum, channel)] for word in ("residual", "gated"))
    operands = _operands(node, own)
    if any(_reads(o, "log_ratio") for o in operands):
        return None
    places = _places(operands)
    values = _values(seen, places) if operands else {}
    cases, elements = residual.shape
    held: dict[Input | Matrix, Vector] = {p: np.tile(np.broadcast_to(v, (elements,)), cases) for p, v in values.items()}
    sizes = Sizes({}, {"grid": residual.size})
    along = interpret(_program(node, own, places), {**held, RESIDUAL: residual.ravel()}, sizes)
    return _code({k.word: v for k, v in along.items()}).reshape(cases, -1)


@lru_cache(maxsize=4)
def _regime_program(op: Operator) -> Program:
    program = op.programs["levels"]
    outputs: dict[Key, Node] = {}
    for stratum in op.hierarchy.strata:
        for channel in op.hierarchy.decomposition.channels:
            level = (stratum.name, channel)
            nodes = regime_nodes(program.outputs[Key("residual", *level)], program.outputs[Key("gated", *level)])
            outputs |= {Key(word, *level): node for word, node in nodes.items()}
    return Program(program.name, program.leaves, outputs, {})


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


def _operands(node: Node, residual: Node) -> list[Node]:
    """The operands of a gate besides its residual."""
    if node is residual or isinstance(node, Const):
        return []
    return [o for o in node.inputs if o is not residual] if isinstance(node, Map) else [node]


def _places(operands: Sequence[Node]) -> dict[Node, Input]:
    """An input over the grid of residuals in place of each operand."""
    return {o: Input(f"operand_{i}", "grid", "operand") for i, o in enumerate(operands)}


def _values(seen: Seen, places: Mapping[Node, Input]) -> dict[Input | Matrix, Vector]:
    """The values of the operands on a batch."""
    program = seen.op.programs["levels"]
    read = Program(program.name, program.leaves, {Key(p.word): o for o, p in places.items()}, {})
    found = interpret(read, seen.inputs("levels"), seen.index.sizes(read.edges))
    return {p: found[Key(p.word)] for p in places.values()}


def _program(node: Node, residual: Node, places: Mapping[Node, Input]) -> Program:
    """The program of a gate over a grid of residuals, with its slope, its regimes and its conditions."""
    place = RESIDUAL
    gate: Node
    if node is residual:
        gate = place
    elif isinstance(node, Const):
        gate = Const(node.value, "grid")
    elif isinstance(node, Map):
        gate = Map(node.body, tuple(place if o is residual else places[o] for o in node.inputs))
    else:  # the gate returns another vector unchanged and ignores the residual
        gate = places[node]
    outputs: dict[Key, Node] = {Key("gated"): gate, **{Key(w): n for w, n in regime_nodes(place, gate).items()}}
    if isinstance(gate, Map):
        for i, condition in enumerate(dict.fromkeys(_conditions(gate.body))):
            outputs[Key("condition", str(i))] = Map(scalar("select", condition, const(1.0), const(0.0)), gate.inputs)
    return Program("section", ("grid",), outputs, {})


def _conditions(body: Scalar) -> Iterator[Scalar]:
    if body.op in CONDITIONS:
        yield body
    for a in body.args:
        yield from _conditions(a)


def _reads(node: Node, kind: str) -> bool:
    read = Program("read", (node.stratum,), {Key("node"): node}, {}).inputs
    return any(i.kind == kind for i in read)


def _code(seen: Mapping[str, Vector]) -> NDArray[np.int64]:
    tests = [seen["passed"] > 0, seen["rolled_back"] > 0, seen["zeroed"] > 0, seen["flat"] > 0]
    return np.select(tests, range(4), len(REGIMES) - 1).astype(np.int64)
