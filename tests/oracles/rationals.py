"""Linear equations and ranks in exact rationals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Row = list[Fraction]


def inner(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x and y), Fraction(0))


def combined(factors: Sequence[Fraction], rows: Sequence[Row]) -> Row:
    """`Σ factor · row`."""
    columns = zip(*rows, strict=True)
    return [inner(factors, column) for column in columns]


def solve(rows: Sequence[Row], right: Sequence[Fraction]) -> Row | None:
    """A solution of `rows · v = right`, with 0 for unknowns that are free; None if there is none."""
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    pivots = _eliminate(table, len(rows[0]))
    if any(row[-1] for row in table[len(pivots) :]):
        return None
    known = {column: row[-1] for column, row in zip(pivots, table, strict=False)}
    return [known.get(column, Fraction(0)) for column in range(len(rows[0]))]


def rank(rows: Sequence[Row]) -> int:
    return len(_eliminate([list(row) for row in rows], len(rows[0])))


def _eliminate(table: list[Row], width: int) -> list[int]:
    """Reduce the first `width` columns in place; the columns of the leading ones, row by row."""
    pivots: list[int] = []
    for column in range(width):
        done = len(pivots)
        at = next((i for i in range(done, len(table)) if table[i][column]), None)
        if at is None:
            continue
        table[done], table[at] = table[at], table[done]
        first = table[done] = [v / table[done][column] for v in table[done]]
        for i, row in enumerate(table):
            if i != done and (factor := row[column]):
                table[i] = [v - factor * w for v, w in zip(row, first, strict=True)]
        pivots.append(column)
    return pivots
