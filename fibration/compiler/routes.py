"""Routes for fused programs: the sums and reads of tokens go through the segments of their leaf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fibration.compiler.ir import BATCH, Node, Pull, Push, broadcast
from fibration.compiler.program import Program


def route(program: Program, rows: str) -> Program:
    """Sends sums over all tokens through the segments. Tokens read coarser strata through their segment too."""
    first = {leaf: segments_of(program, rows, leaf) for leaf in program.leaves}
    return program.mapped(lambda node: _routed(node, program, first)).validate()


def segments_of(program: Program, rows: str, leaf: str) -> str:
    """The stratum that groups a leaf's tokens first: the finest that they lie over.

    Of several it is the rows, if they are among them, because a row's tokens are adjacent. Without one it is the rows.
    """
    targets = [t for s, t in program.edges if s == leaf and t != BATCH]
    finer = [t for t in targets if not any(t in _reached(program, other) for other in targets if other != t)]
    return rows if rows in finer or not finer else finer[0]


def _reached(program: Program, stratum: str) -> set[str]:
    """Every stratum that `stratum` lies over, by the edges of the program."""
    found: set[str] = {BATCH}
    frontier = [stratum]
    while frontier:
        here = frontier.pop()
        for source, target in program.edges:
            if source == here and target not in found:
                found.add(target)
                frontier.append(target)
    return found


def _path(program: Program, source: str, target: str) -> list[str]:
    """Strata from `source` to `target`, both included, shortest first."""
    paths = [[source]]
    while paths:
        path = paths.pop(0)
        if path[-1] == target:
            return path
        paths += [[*path, t] for s, t in program.edges if s == path[-1] and t != BATCH]
    return [source, target]  # every stratum lies over the batch


def _routed(node: Node, program: Program, segments: Mapping[str, str]) -> Node:
    first = segments.get(getattr(node, "source", ""))
    if first is None or not isinstance(node, (Push, Pull)):
        return node
    leaf = node.source
    if isinstance(node, Push):
        if node.target == BATCH and first != leaf:
            return Push(first, BATCH, replace(node, target=first), node.reduce)
        return node
    value = node.operand
    reached = _reached(program, first)
    while node.target != first and value.stratum not in reached and isinstance(value, Pull):
        value = value.operand  # values below a crossing are read through the segment
    if value.stratum == BATCH:
        return Pull(leaf, BATCH, value)
    if node.target == first or value.stratum not in reached:
        return node
    return Pull(leaf, first, broadcast(value, _path(program, first, value.stratum)))
