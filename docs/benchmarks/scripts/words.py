"""Time a loss with one word more (a weight, a statistic, an order, a penalty, rewards) beside the loss without it.

python docs/benchmarks/scripts/words.py [SPEC...] [--tokens 1Mi] [--json FILE.json]
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fibration import pipeline
from fibration.bench.batches import DTYPES, Shape, make_batch, parse_count
from fibration.bench.command import number
from fibration.bench.measure import Times, describe_machine, interleave, record, seconds, start
from fibration.files import write_file
from fibration.language.atoms import BATCH, Stratum, reward, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import absolute, exp, minimum
from fibration.language.report import key_of
from fibration.language.statistics import after, before, centred, mean, position, quantile, standardised
from fibration.printing.reports import load_quietly

PLAIN = "without"


@dataclass(frozen=True)
class Measured:
    """One hierarchy with one word more, on one backend."""

    hierarchy: Hierarchy
    backend: str
    word: str
    times: Times


@functools.cache
def variants(hierarchy: Hierarchy) -> Mapping[str, Hierarchy]:
    """The loss without and with a word more: of single tokens, of all over an element, of order, penalties, rewards."""
    drift = absolute(token_log_ratio)
    current, old, rollout = policies("current old rollout")
    h, rows, batch, group = hierarchy, hierarchy.rows, Stratum(BATCH), Stratum("answers")

    def up_to(bound: Any) -> Hierarchy:
        return h.replace(objective=h.objective.keep(drift <= bound))

    def weighed(weight: Expression) -> Hierarchy:
        return h.replace(objective=h.objective.weigh(weight))

    def rewarded(advantages: Expression) -> Hierarchy:
        return h.replace(groups=[group], advantages=advantages)

    kl = (log_prob(current) - log_prob(rollout)) ** 2 / 2
    found = {
        PLAIN: h,
        "mask": up_to(0.3),
        "mask, kept counted": h.replace(objective=h.objective.keep(drift <= 0.3, normaliser="kept")),
        "weight": weighed(exp(minimum(token_log_ratio, 0))),
        "third policy": weighed(minimum(exp(log_prob(old) - log_prob(rollout)), 2)),
        "mean over the batch": up_to(3 * mean(drift, over=batch)),
        "quantile over rows": up_to(quantile(drift, 0.95, over=rows)),
        "quantile over the batch": up_to(quantile(drift, 0.95, over=batch)),
        "position": weighed(1 / (1 + position(over=rows))),
        "sum before a token": weighed(exp(minimum(before(token_log_ratio, over=rows), 0))),
        "discounted sum after it": weighed(exp(minimum(after(token_log_ratio, over=rows, discount=0.97), 0))),
        "penalty": h.replace(penalties={"kl": 0.04 * kl}),
        "rewards of rows": rewarded(standardised(reward, over=group)),
        "rewards of tokens": rewarded(
            centred(reward + after(reward, over=rows, discount=0.97), over=group, of=h.leaves[0])
        ),
    }
    return {word: accepted(variant) for word, variant in found.items()}


def accepted(hierarchy: Hierarchy) -> Hierarchy:
    """The hierarchy with all that it breaks given up, laws and what is left of them: it is here for what it costs."""
    while failures := hierarchy.verify().failures:
        broken = {key_of(v.law, v.subject): "measured for what it costs" for v in failures}
        if broken.keys() <= hierarchy.gives_up.keys():
            break  # what no reason covers is for whoever compiles it to say
        hierarchy = hierarchy.replace(gives_up={**hierarchy.gives_up, **broken})
    return hierarchy


def measure(
    hierarchy: Hierarchy, backend: str, shape: Shape, repeats: int, dtype: str, device: str, seed: int
) -> Iterator[Measured]:
    """All variants of a hierarchy in turns, on batches of the same rows and log ratios."""
    calls: dict[str, Callable[[], object]] = {}
    for word, h in variants(hierarchy).items():
        calls[word] = start(h, make_batch(h, shape, dtype, device, seed), f"fibration {backend}")
    for word, times in interleave(calls, repeats, lambda call: seconds(call, torch.device(device))).items():
        yield Measured(hierarchy, backend, word, times)


def over_plain(result: Measured, results: Sequence[Measured]) -> float | None:
    """Its median over that of the same loss without the word."""
    same = (result.hierarchy, result.backend)
    plain = next(r for r in results if (r.hierarchy, r.backend) == same and r.word == PLAIN)
    if isinstance(result.times, str) or isinstance(plain.times, str):
        return None
    return median(result.times) / median(plain.times)


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
    if isinstance(result.times, str):
        yield result.times
        return
    yield number(median(result.times) * 1e3)
    yield number(min(result.times) * 1e3)
    yield f"{over_plain(result, results) or 0:.2f}"


def document(shape: Shape, results: Sequence[Measured]) -> dict[str, Any]:
    """Everything that was measured, in seconds."""

    def of(r: Measured) -> dict[str, Any]:
        found = {"hierarchy": r.hierarchy.name, "backend": r.backend, "word": r.word}
        timing = {"error": r.times} if isinstance(r.times, str) else record(r.times)
        return {**found, **timing, "over_plain": over_plain(r, results)}

    return {
        "format": "fibration.bench.words/1",
        "command": sys.argv,
        "machine": describe_machine(torch.device("cpu")),
        "tokens": shape.tokens,
        "length": shape.length,
        "results": [of(r) for r in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["grpo", "fiberpo"])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokens", default="1Mi")
    parser.add_argument("--length", default="512")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shape, backend = Shape(parse_count(given.tokens), parse_count(given.length)), pipeline.choose(given.backend)
    results = [
        r
        for spec in given.specs
        for r in measure(load_quietly(spec), backend, shape, given.repeats, given.dtype, given.device, 0)
    ]
    emit_tables(Console(), results)
    if given.json:
        write_file(given.json, json.dumps(document(shape, results), indent=2) + "\n")


if __name__ == "__main__":
    main()
