"""What a weight, a condition or a statistic of tokens costs: a loss with one beside the same loss without, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fibration.bench.candidates import make_ready, of_backend, start
from fibration.bench.measure import Failed, Timing, clock, interleave, ratio
from fibration.bench.report import number
from fibration.bench.shapes import DTYPES, Shape, make_problem
from fibration.language.atoms import BATCH, Stratum, token_log_ratio
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import absolute, exp, minimum
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import mean, quantile

PLAIN = "without"


@dataclass(frozen=True)
class Measured:
    """One hierarchy with one word more, on one backend."""

    hierarchy: Hierarchy
    backend: str
    word: str
    timing: Timing | Failed


def variants(hierarchy: Hierarchy) -> Mapping[str, Hierarchy]:
    """The loss without and with a mask, a third policy, a mean and quantiles over a row and over the batch."""
    drift = absolute(token_log_ratio)
    _, old, rollout = policies("current old rollout")

    def up_to(bound: Any) -> Callable[[Objective], Objective]:
        return lambda objective: objective.keep(drift <= bound)

    words: dict[str, Callable[[Objective], Objective]] = {
        PLAIN: lambda objective: objective,
        "mask": up_to(0.3),
        "mask, kept counted": lambda objective: objective.keep(drift <= 0.3, normaliser="kept"),
        "third policy": lambda objective: objective.weigh(minimum(exp(log_prob(old) - log_prob(rollout)), 2)),
        "mean over the batch": up_to(3 * mean(drift, over=Stratum(BATCH))),
        "quantile over rows": up_to(quantile(drift, 0.95, over=hierarchy.rows)),
        "quantile over the batch": up_to(quantile(drift, 0.95, over=Stratum(BATCH))),
    }
    given_up = {**hierarchy.gives_up, "mask_open": "the largest values are dropped from any batch"}
    return {
        word: hierarchy.replace(
            objective=change(hierarchy.objective), gives_up=given_up if "over" in word else hierarchy.gives_up
        )
        for word, change in words.items()
    }


def measure(
    hierarchy: Hierarchy, backend: str, shape: Shape, repeats: int, dtype: str, device: str, seed: int
) -> Iterator[Measured]:
    """All variants of a hierarchy in turns, on batches of the same rows and log ratios."""
    calls: dict[str, Callable[[], object]] = {}
    for word, h in variants(hierarchy).items():
        problem = make_problem(h, shape, DTYPES[dtype], device, seed)
        calls[word] = start(of_backend(backend), h, problem, make_ready(h, backend, problem))
    for word, timing in interleave(calls, repeats, clock(problem.device)).items():
        yield Measured(hierarchy, backend, word, timing)


def over_plain(result: Measured, results: Sequence[Measured]) -> float | None:
    """Its median over that of the same loss without the word."""
    same = (result.hierarchy, result.backend)
    plain = next(r for r in results if (r.hierarchy, r.backend) == same and r.word == PLAIN)
    return ratio(result.timing, plain.timing)


def emit_tables(console: Console, results: Sequence[Measured]) -> None:
    """A table per hierarchy and backend."""
    for h, backend in dict.fromkeys((r.hierarchy, r.backend) for r in results):
        table = Table(box=None, padding=(0, 1, 0, 0), title=f"{h.name}, {backend}", title_justify="left")
        for column in ("", "ms", "best", "/without"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for r in results:
            if (r.hierarchy, r.backend) == (h, backend):
                table.add_row(r.word, *_cells(r, results))
        console.print(table)


def _cells(result: Measured, results: Sequence[Measured]) -> Iterator[str]:
    if isinstance(result.timing, Failed):
        yield result.timing.reason
        return
    yield number(result.timing.median * 1e3)
    yield number(min(result.timing.samples) * 1e3)
    yield f"{over_plain(result, results) or 0:.2f}"


def document(
    command: Sequence[str], machine: Mapping[str, Any], shape: Shape, results: Sequence[Measured]
) -> dict[str, Any]:
    """Everything that was measured, for `--json`, in seconds."""

    def of(r: Measured) -> dict[str, Any]:
        found = {"hierarchy": r.hierarchy.name, "backend": r.backend, "word": r.word}
        timing = {"error": r.timing.reason} if isinstance(r.timing, Failed) else r.timing.record()
        return {**found, **timing, "over_plain": over_plain(r, results)}

    return {
        "format": "fibration.bench.masks/1",
        "command": list(command),
        "machine": dict(machine),
        "tokens": shape.tokens,
        "length": shape.length,
        "results": [of(r) for r in results],
    }
