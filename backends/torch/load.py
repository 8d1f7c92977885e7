"""Calls a generated torch module: gathers the unmasked tokens in float64, computes, and scatters the results."""

from __future__ import annotations

import builtins
import hashlib
import linecache
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.ir import Input
from fibration.compiler.schedule import Schedule
from fibration.runtime.batch import GIVEN_TENSOR, Batch, Launcher, Outputs, Run, given_of, inputs_of


def load(name: str, source: str, schedules: Mapping[str, Schedule]) -> Run:
    """The function that runs batches through a generated module. Debuggers and tracebacks show the module's source."""
    path = f"<fibration {name} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module: dict[str, Any] = {"__name__": f"fibration_generated_{name}"}
    exec(builtins.compile(source, path, "exec"), module)  # our own output, over validated names
    return _Module(module, schedules)


class _Module:
    """Runs the functions of a generated module."""

    def __init__(self, module: Mapping[str, Any], schedules: Mapping[str, Schedule]) -> None:
        self.module, self.schedules = module, schedules

    def prepare(self, program: str, batch: Batch) -> Launcher:
        index, computed = weakref.ref(batch.index), given_of(batch)
        kept = {n: v for n, v in batch.vectors.items() if n not in computed}
        per_row, dtype, fill = batch.per_row, batch.dtype, batch.fill

        @torch.no_grad()
        def launch(tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor]) -> Outputs:
            at = index()
            assert at is not None
            vectors = dict(kept)
            vectors.update(given.items())
            return self(program, Batch(at, tensors, tensors.get(GIVEN_TENSOR), per_row, vectors, dtype, fill))

        return launch

    def __call__(self, function: str, batch: Batch) -> Outputs:
        program, fibre, ordered = self.schedules[function].program, self.module["fibre"], self.module.get("ordered")
        edges = {e: batch.index.fibre(*e, fibre) for e in program.edges}
        inputs = {program.given[i]: value for i, value in inputs_of(batch, program).items()}
        orders = {o: batch.index.order(o, ordered) for o in program.orders}
        meetings = _meetings(self.schedules[function], batch)
        named = self.module[function](inputs, edges, *([orders] if orders else []), *meetings)
        outputs = {key: named[program.called[key]] for key in program.outputs}
        results = {k: v for k, v in outputs.items() if program.outputs[k].stratum not in program.leaves}
        for key, parts in program.results().items():
            whole = torch.full(batch.index.shape, batch.fill, dtype=batch.dtype, device=batch.index.device)
            for leaf, output in parts.items():
                positions = batch.index.positions_of(leaf)
                whole.view(-1)[positions] = outputs[output].to(batch.dtype).expand(len(positions))
            results[key] = whole
        return Outputs(results)


def _meetings(schedule: Schedule, batch: Batch) -> list[Callable[[int, list[Tensor]], list[Tensor]]]:
    """The extra argument for a spread batch, if any: a function that combines vectors that ranks know in part."""
    stages, ranks = schedule.collectives, batch.index.ranks
    if ranks is None or not stages:
        return []

    def collect(number: int, given: list[Tensor]) -> list[Tensor]:
        stage = stages[number]
        vectors = {n: v.expand(batch.index.size[n.stratum]) for n, v in zip(stage.reads, given, strict=True)}
        found = ranks.collect(stage, vectors, batch.index)
        return [found[node] for node in stage.values]

    return [collect]
