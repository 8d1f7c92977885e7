"""Measuring one hierarchy on one shape: a row per candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from fibration.bench import fresh
from fibration.bench.baselines import prepare
from fibration.bench.candidates import FLOOR, Candidate, Ready, disagreement, make_ready, reference, start
from fibration.bench.measure import Clock, Failed, Timing, clock, copy_call, interleave, median_of, reason
from fibration.bench.shapes import DTYPES, Problem, Shape, make_problem
from fibration.errors import BatchError
from fibration.language.hierarchy import Hierarchy

BUILDS = 3  # builds of an index, to time one


@dataclass(frozen=True)
class Plan:
    """How to measure, whatever the shape."""

    repeats: int
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0


@dataclass
class Row:
    """The measurements of one candidate on one shape. Times in seconds, memory in bytes."""

    candidate: Candidate
    timing: Timing | Failed | None = None
    differs: tuple[float, float] | None = None  # from the float64 reference: mean, largest
    index: Timing | None = None  # building the index, or a baseline's prepared batch
    first_use: float | None = None  # the first call on a new index, code warm
    memory: float | Failed | None = None
    cold: list[dict[str, float]] | Failed | None = None


@dataclass
class Measured:
    """One hierarchy on one shape. `floor` times a copy of `bytes_moved`, in turns with the candidates."""

    hierarchy: Hierarchy
    shape: Shape
    rows: list[Row] = field(default_factory=list)
    bytes_moved: int = 0
    tokens: int = 0
    positions: int = 0
    floor: Timing | Failed | None = None
    failed: Failed | None = None  # the shape as a whole

    @property
    def lowest(self) -> Timing | None:
        """The fastest copy: noise must not raise the floor."""
        return Timing((min(self.floor.samples),)) if isinstance(self.floor, Timing) else None

    def row(self, name: str) -> Row | None:
        return next((r for r in self.rows if r.candidate.name == name), None)


def measure(
    hierarchy: Hierarchy,
    shape: Shape,
    rows: Sequence[Candidate],
    plan: Plan,
    alone: bool,
    say: Callable[[str], None] = lambda what: None,
) -> Measured:
    """Measure every candidate on one shape. `alone` adds memory and cold starts, which need fresh processes."""
    result = Measured(hierarchy, shape, [Row(c) for c in rows])
    try:
        problem = make_problem(hierarchy, shape, DTYPES[plan.dtype], plan.device, plan.seed)
        expected = reference(hierarchy, problem)
    except (BatchError, MemoryError, RuntimeError) as error:
        result.failed = Failed(reason(error))
        return result
    result.bytes_moved, result.tokens = problem.bytes_moved, problem.tokens
    result.positions = problem.log_probs.numel()
    time_all(result, problem, expected, plan.repeats, say)
    if alone:
        for row in result.rows:
            say(f"{row.candidate.name}, in a fresh process")
            _alone(row, hierarchy, plan, shape)
    return result


def time_all(
    result: Measured, problem: Problem, expected: torch.Tensor, rounds: int, say: Callable[[str], None]
) -> None:
    """Start every candidate, compare its coefficients, time all in turns. A failed candidate keeps the reason."""
    watch = clock(problem.device)
    ready: dict[str, Ready | Failed] = {}
    calls: dict[str, Callable[[], object]] = {FLOOR: copy_call(problem.bytes_moved, problem.device)}
    for row in result.rows:
        c = row.candidate
        say(f"starting {c.name}")
        try:
            if c.ours and c.backend not in ready:
                ready[c.backend] = _try_ready(result.hierarchy, c.backend, problem)
            shared = ready.get(c.backend)
            if isinstance(shared, Failed):
                row.timing = shared
                continue
            call = start(c, result.hierarchy, problem, shared)
            row.differs = disagreement(c, call(), expected)
            _time_index(row, problem, shared, watch)
        except Exception as error:
            row.timing = Failed(reason(error))
            continue
        calls[c.name] = call
    say("timing")
    timed = interleave(calls, rounds, watch)
    result.floor = timed[FLOOR]
    for row in result.rows:
        row.timing = timed.get(row.candidate.name, row.timing)


def _try_ready(hierarchy: Hierarchy, backend: str, problem: Problem) -> Ready | Failed:
    try:
        return make_ready(hierarchy, backend, problem)
    except Exception as error:
        return Failed(reason(error))


def _time_index(row: Row, problem: Problem, ready: Ready | None, watch: Clock) -> None:
    """Time the index, once per backend, since its rows share it. For a baseline, time its prepared batch."""
    c = row.candidate
    if ready is None:
        row.index = median_of(lambda: prepare(problem), BUILDS, watch)
    elif not c.what:
        row.index = median_of(lambda: problem.index(ready.operator), BUILDS, watch)
        fresh_index = problem.index(ready.operator)
        again = start(c, ready.operator.hierarchy, problem, Ready(ready.operator, fresh_index))
        row.first_use = watch(again)


def _alone(row: Row, hierarchy: Hierarchy, plan: Plan, shape: Shape) -> None:
    if isinstance(row.timing, Failed):
        return
    text = hierarchy.model_dump_json()
    common = (text, row.candidate, shape, plan.dtype, plan.device, plan.seed, torch.get_num_threads())
    row.memory = fresh.memory(fresh.Task("memory", *common))
    if not row.candidate.ours or not row.candidate.what:
        row.cold = fresh.cold(fresh.Task("cold", *common))
