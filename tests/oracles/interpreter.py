"""The float64 interpreter on a program as lowered, before any optimisation, fed from a small batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from support import Batch, raw_programs

from fibration import Hierarchy
from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import Input
from fibration.compiler.program import Program
from fibration.language.atoms import Attribute, Component, Stratum
from oracles.definition import WHOLE, World


def interpreted(program: Program, inputs: dict[str, Any], sizes: Sizes) -> dict[str, np.ndarray]:
    """What `interpret` gives, by the names that are printed."""
    values = {i: inputs[name] for i, name in program.given.items() if name in inputs}
    return {program.called[k]: v for k, v in interpret(program, values, sizes).items()}


class Interpreter:
    """The programs of a hierarchy on one batch; log ratios and advantages may be others in each call."""

    def __init__(self, world: World, x: Any = None, advantages: Any = None) -> None:
        self.h, self.world, self.x = world.h, world, x
        self.leaf = world.h.leaves[0]
        self.advantages = np.ones(world.size(self.leaf)) if advantages is None else np.asarray(advantages, float)
        self.programs = dict(raw_programs(world.h))
        self.fixed: dict[str, tuple[dict[str, Any], Sizes, dict[str, list[int]]]] = {}

    @classmethod
    def of(cls, h: Hierarchy, batch: Batch) -> Interpreter:
        return cls(World.of(h, batch), batch.x, batch.advantages)

    def run(self, name: str, x: Any = None, advantages: Any = None, **more: Any) -> dict[str, Any]:
        program = self.programs[name]
        if name not in self.fixed:
            self.fixed[name] = self._fixed(program)
        inputs, sizes, first = self.fixed[name]
        a = self.advantages if advantages is None else np.asarray(advantages, float)
        varying = {word: a[places] for word, places in first.items()}
        log_ratio = np.asarray(self.x if x is None else x, float)
        return interpreted(program, {**inputs, **varying, "log_ratio": log_ratio, **more}, sizes)

    def _fixed(self, program: Program) -> tuple[dict[str, Any], Sizes, dict[str, list[int]]]:
        """What does not change from call to call: what is read, who lies over whom, whose advantage an element has."""
        world, size = self.world, {s.name: n for s, n in self.world.sizes.items()}
        kinds = ("log_ratio", "cotangent", "advantage")
        inputs = {program.given[n]: self._read(n) for n in program.inputs if n.kind not in kinds}
        parents = {}
        for s, t in program.edges:
            below = [world.below(Stratum(s), e, Stratum(t)) for e in range(size[s])]
            parents[s, t] = np.array(below, int)
        reads = [n for n in program.inputs if n.kind == "advantage"]
        first = {
            program.given[n]: [world.over(self.leaf, Stratum(n.over), e)[0] for e in range(size[n.over])] for n in reads
        }
        return inputs, Sizes(parents, size), first

    def _read(self, node: Input) -> Any:
        world = self.world
        if node.kind == "count":
            of, over = (Stratum(n) for n in node.key)
            if over == WHOLE:
                return np.array([world.size(of)])
            return np.array([len(world.over(of, over, e)) for e in range(world.size(over))])
        here = Stratum(node.over)
        if node.kind in ("total", "attribute"):
            a = next(a for a in world.values if isinstance(a, Attribute) and a.name == node.key[0])
            values = [float(v) for v in world.values[a]]
            return np.array([sum(values[i] for i in world.over(a.on, here, e)) for e in range(world.size(here))])
        name, channel = node.key
        p = world.h.parameters[name]
        atom = Component(p, channel) if p.per_channel else p
        return np.array([float(world.atom(atom, here, e)) for e in range(world.size(here))])

    def ratio(self, x: Any = None, advantages: Any = None) -> np.ndarray:
        return self.run("gate", x, advantages)["gated_ratio"]

    def objective(self, x: Any = None) -> float:
        return float(self.run("objective", x)["objective"][0])

    def coefficients(self, x: Any = None) -> np.ndarray:
        return self.run("objective", x)["coefficients"]

    def difference(self, h: float = 1e-6) -> np.ndarray:
        """Central differences of the objective."""
        return central(self.objective, self.x, h)

    def jacobian(self, x: Any, advantages: Any = None) -> np.ndarray:
        """`∂𝒢_i/∂x_j`, one row per token `i`."""
        rows = np.eye(len(x))
        return np.array([self.run("gate_adjoint", x, advantages, cotangent=e)["log_ratio_gradient"] for e in rows])


def central(f: Callable[[np.ndarray], Any], x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """Central differences along every coordinate, the coordinate first."""
    rows = []
    for i in range(len(x)):
        step = np.zeros_like(x)
        step[i] = h
        rows.append((np.asarray(f(x + step)) - np.asarray(f(x - step))) / (2 * h))
    return np.array(rows)
