"""A batch on several ranks: the pieces of rows on each rank, and the combined results of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from support import Batch, Layout, packed, padded
from thread_ranks import ThreadGroup, on_ranks
from torch import Tensor

from fibration.runtime.metrics import Metric
from fibration.runtime.operator import Operator

Pieces = Sequence[tuple[int, int, int]]  # (row, first token, end) per piece on a rank, in the rank's order


@dataclass(frozen=True)
class Part:
    """The share of a batch on one rank."""

    batch: Batch
    places: np.ndarray  # of its tokens among the batch's
    rows: tuple[int, ...]  # the batch's row of each of its rows: the keys that join pieces of one row


def part(batch: Batch, pieces: Pieces) -> Part:
    if unclear(pieces):
        pieces = [(r, a, b) for r, a, b in pieces if a < b]
    starts = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(int)
    places = np.array([starts[r] + i for r, a, b in pieces for i in range(a, b)], int)
    rows = tuple(r for r, _, _ in pieces)
    mine = replace(
        batch,
        lengths=tuple(b - a for _, a, b in pieces),
        x=batch.x[places],
        advantages=batch.advantages[places],
        labels={k: [v[r] for r in rows] for k, v in batch.labels.items()},
        token_labels={k: [v[p] for p in places] for k, v in batch.token_labels.items()},
        weights=None if batch.weights is None else batch.weights[places],
        attributes={k: v[places] if isinstance(v, np.ndarray) else v for k, v in batch.attributes.items()},
        policies={k: v[places] for k, v in batch.policies.items()},
        positions=None if batch.positions is None else batch.positions[places],
    )
    return Part(mine, places, rows)


def unclear(pieces: Pieces) -> bool:
    """Whether per-row and per-token inputs look alike: as many tokens as rows, with an empty row among them."""
    sizes = [b - a for _, a, b in pieces]
    return sum(sizes) == len(sizes) and 0 in sizes


def whole_rows(batch: Batch, *ends: int) -> list[Pieces]:
    """Whole rows in order: the first rank has the rows before `ends[0]`, and so on."""
    cuts = [0, *ends, len(batch.lengths)]
    return [[(r, 0, batch.lengths[r]) for r in range(a, b)] for a, b in itertools.pairwise(cuts)]


@st.composite
def in_order(draw: st.DrawFn, batch: Batch, ranks: int) -> list[Pieces]:
    """Whole rows in the batch's order; some ranks may have none."""
    ends = draw(st.lists(st.integers(0, len(batch.lengths)), min_size=ranks - 1, max_size=ranks - 1))
    found = whole_rows(batch, *sorted(ends))
    assume(not any(map(unclear, found)))
    return found


@st.composite
def scattered(draw: st.DrawFn, batch: Batch, ranks: int, cut: bool) -> list[Pieces]:
    """Rows on any ranks in any order, with `cut` also cut anywhere, down to single tokens. Some ranks may have none."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    for r, n in enumerate(batch.lengths):
        ends = draw(st.sets(st.integers(1, n - 1), max_size=3)) if cut and n > 1 else ()
        edges = [0, *sorted(ends), n]
        for a, b in itertools.pairwise(edges):
            found[draw(st.integers(0, ranks - 1))].append((r, a, b))
    return [draw(st.permutations(pieces)) for pieces in found]


# ---------------------------------------------------------------- calls on all ranks


@dataclass(frozen=True)
class Together:
    """The results of all ranks: per token of the batch, and once for results of the whole batch."""

    values: np.ndarray
    objective: float
    metrics: dict[str, tuple[float, ...]]
    gated: np.ndarray
    slope: np.ndarray
    levels: dict[tuple[str, str, str], np.ndarray]
    cut: bool = False  # whether ranks have pieces of one row

    def bits(self) -> dict[str, Any]:
        """All results, for bitwise comparison."""
        return {
            "values": self.values.tobytes(),
            "objective": self.objective,
            "metrics": {k: repr(v) for k, v in self.metrics.items()},
            "gated": self.gated.tobytes(),
            "slope": self.slope.tobytes(),
            "levels": {k: v.tobytes() for k, v in self.levels.items()},
        }


def numbers(metrics: dict[str, Metric]) -> dict[str, tuple[float, ...]]:
    return {k: tuple(float(v) for n, v in vars(m).items() if isinstance(v, Tensor)) for k, m in metrics.items()}


def row_wise(batch: Batch) -> list[float] | None:
    """One advantage per row, or None if some row has several."""
    rows = np.split(batch.advantages, np.cumsum(batch.lengths)[:-1])
    return [row[0] if len(row) else 0.5 for row in rows] if all(len(set(row)) < 2 for row in rows) else None


def evaluate(
    op: Operator,
    layout: Layout,
    batch: Batch,
    by_row: list[float] | None,
    dtype: torch.dtype = torch.float64,
    gates: bool = True,
) -> dict[str, Any]:
    """Call the operator on one rank's part, or on a whole batch. Returns numpy vectors over its tokens.

    Without `gates`, only the training step runs. `by_row` has advantages per row, or is None.
    """
    now = layout.tensor(batch.x, dtype)
    a = layout.tensor(batch.advantages, dtype) if by_row is None else torch.tensor(by_row, dtype=dtype)
    old = layout.tensor(np.zeros(batch.tokens), dtype)
    others = {
        name: layout.tensor(values, dtype) for name, values in batch.policies.items() if name in op.hierarchy.policies
    }
    result = op.coefficients(now, old, a, layout.index, batch.parameters, policies=others)
    found = {
        "values": layout.read(result.values),
        "objective": float(result.objective),
        "metrics": numbers(result.metrics),
        **{"gated": np.zeros(batch.tokens), "slope": np.zeros(batch.tokens), "levels": {}},
    }
    if gates:
        x = now.clone().requires_grad_()
        others |= {"old": old} if "old" in op.hierarchy.policies else {}
        gated = op.gate(x, layout.index, batch.parameters, advantages=a, policies=others)
        gated.backward(layout.tensor(np.cos(np.round(batch.x * 1024)), dtype))
        levels = op.levels(now, layout.index, batch.parameters, advantages=a, policies=others)
        both = {"residual": levels.residual, "gated": levels.gated}
        found |= {"gated": layout.read(gated), "slope": layout.read(x.grad)}
        found["levels"] = {(word, *key): v.numpy() for word, one in both.items() for key, v in one.items()}
    return found


def alone(op: Operator, batch: Batch, kind: str = "packed", *options: Any, **more: Any) -> Together:
    """The results of one process, without a group."""
    return Together(**evaluate(op, LAYOUTS[kind](op, batch), batch, row_wise(batch), *options, **more))


def spread(
    op: Operator,
    batch: Batch,
    pieces: Sequence[Pieces],
    keys: bool = False,
    kind: str = "packed",
    *options: Any,
    **more: Any,
) -> Together:
    """The results of all ranks, each with its pieces. Results of the whole batch must agree bitwise on all ranks."""
    parts = [part(batch, p) for p in pieces]
    leaves = [s.name for s in op.hierarchy.leaves]
    by_row = row_wise(batch)

    def work(group: ThreadGroup) -> dict[str, Any]:
        mine = parts[group.rank]
        named = {op.hierarchy.rows.name: list(mine.rows)} if keys else {}
        mine_alone = mine.batch if keys else replace(mine.batch, attributes=per_row(op, mine))
        layout = LAYOUTS[kind](op, mine_alone, group=group, **named)
        given = None if by_row is None else [by_row[r] for r in mine.rows]
        found = evaluate(op, layout, mine.batch, given, *options, **more)
        return {**found, "index": layout.index}

    found = on_ranks(len(parts), work)
    vectors = {name: np.empty(batch.tokens) for name in ("values", "gated", "slope")}
    for mine, result in zip(parts, found, strict=True):
        for name, vector in vectors.items():
            vector[mine.places] = result[name]
    first = found[0]
    levels = {k: v for k, v in first["levels"].items() if k[1] not in leaves}
    for other in found[1:]:
        assert repr(other["objective"]) == repr(first["objective"])
        assert {k: repr(v) for k, v in other["metrics"].items()} == {k: repr(v) for k, v in first["metrics"].items()}
        assert all(other["levels"][k].tobytes() == v.tobytes() for k, v in levels.items())
    for k in first["levels"].keys() - levels.keys():
        of = [token_of(op, batch, mine, k[1]) for mine in parts]
        levels[k] = np.full(batch.tokens, np.nan)
        for places, result in zip(of, found, strict=True):
            levels[k][places] = result["levels"][k]
        levels[k] = levels[k][np.sort(np.concatenate(of))]
    whole = {"objective": first["objective"], "metrics": first["metrics"], "levels": levels}
    return Together(**vectors, **whole, cut=first["index"].ranks.cut)


def per_row(op: Operator, mine: Part) -> dict[str, Any]:
    """The attributes of a rank's part. Rows have no names, so their attributes become lists in the rank's order."""
    rows = [a.name for a in op.hierarchy.attributes.values() if a.on == op.hierarchy.rows]
    given = mine.batch.attributes
    lists = {
        k: torch.tensor([given[k].get(r, 1.0) for r in mine.rows], dtype=torch.float64) for k in rows if k in given
    }
    return {**given, **lists}


def token_of(op: Operator, batch: Batch, mine: Part, leaf: str) -> np.ndarray:
    """The places in the batch of a rank's tokens of one leaf."""
    if len(op.hierarchy.leaves) == 1:
        return mine.places
    given = mine.batch.token_labels[leaf]
    return mine.places[np.array(given, bool)]


LAYOUTS: dict[str, Callable[..., Layout]] = {"packed": packed, "padded": padded}


def close(found: Together, expected: Together, numbered: bool = True, dtype: torch.dtype = torch.float64) -> None:
    """Assert equality to rounding. Without `numbered`, levels are compared sorted, whatever the elements' numbers."""

    def near(a: object, b: object, what: object, size: float) -> None:
        a, b = np.asarray(a, float), np.asarray(b, float)
        size = np.abs(b[np.isfinite(b)]).max(initial=size)
        allowed = (1e-13 if dtype == torch.float64 else 1e-6) * size
        assert np.allclose(a, b, rtol=0, atol=allowed, equal_nan=True), (what, a, b)

    for name, size in (("values", 0), ("objective", 1e-3), ("gated", 1), ("slope", 1)):
        near(getattr(found, name), getattr(expected, name), name, size)
    assert found.metrics.keys() == expected.metrics.keys()
    assert found.levels.keys() == expected.levels.keys()
    for k, v in expected.metrics.items():
        near(found.metrics[k], v, k, 1e-2)
    for k, v in expected.levels.items():
        near(*((found.levels[k], v) if numbered else (np.sort(found.levels[k]), np.sort(v))), k, 1e-2)
