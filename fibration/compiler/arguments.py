"""How a compiled program is called: its arguments in order, the same for every fused backend.

Coarse vectors that outlive their stage, results among them, share one float64 workspace, in the order of `Plan.saved`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fibration.compiler.ir import BATCH, Mix, Pull, Push
from fibration.compiler.plan import Plan

TOKENS = ("log_ratio", "log_prob", "cotangent")  # inputs over tokens that come in tensors of the batch's shape


@dataclass(frozen=True)
class Argument:
    """One argument. `kind` says what it is, `key` of what, `note` says it to a reader.

    size       how many elements a stratum has
    offsets, starts, positions, tokens   where the tokens of a leaf lie in each segment; the last two may lack
    rows       the row of the batch of each segment; may lack
    token      a tensor over the tokens, in the batch's own layout and dtype
    advantage  such a tensor, or one number per row
    vector     float64, one number per element; `stride` is 0 for one number throughout
    matrix     float64, [into, of]
    parent     the target under each element
    order, members     the elements over each target; order may lack
    work       the workspace
    result     a token output
    places, fill       how many numbers a token tensor holds, and what masked ones get
    """

    name: str
    kind: str
    key: tuple[str, ...]
    note: str


def signature(plan: Plan) -> tuple[Argument, ...]:
    """The arguments of a program, each once."""
    return tuple({a.name: a for a in _arguments(plan)}.values())


def layout_word(plan: Plan, segments: str, leaf: str) -> str:
    """What names the layout of a leaf's tokens in segments: the segments, where there is one leaf."""
    return segments if len(plan.program.leaves) == 1 else f"{leaf}_in_{segments}"


def _arguments(plan: Plan) -> Iterator[Argument]:
    leaves = plan.program.leaves
    strata = dict.fromkeys(n.stratum for n in plan.saved)
    for sweep in plan.sweeps:
        strata.setdefault(sweep.segments)
    for node in plan.program.nodes():
        if isinstance(node, Push) and node.source not in leaves:
            strata.setdefault(node.target)
        if isinstance(node, Mix):
            strata.update({node.into: None, node.of: None})
    for s in strata:
        if s != BATCH:
            yield Argument(f"n_{s}", "size", (s,), f"how many {s} elements")
    for sweep in plan.sweeps:
        for leaf in sweep.leaves:
            s, w = sweep.segments, layout_word(plan, sweep.segments, leaf)
            tokens = "tokens" if len(leaves) == 1 else f"{leaf} elements"
            yield Argument(f"{w}_offsets", "offsets", (s, leaf), f"[n_{s} + 1] {tokens} before each {s}")
            yield Argument(f"{w}_starts", "starts", (s, leaf), f"[n_{s}] where its {tokens} start")
            note = f"[{tokens}] where each is, unless they are in a row"
            yield Argument(f"{w}_positions", "positions", (s, leaf), note)
            note = f"[{tokens}] number of each, unless counted in this order"
            yield Argument(f"{w}_tokens", "tokens", (s, leaf), note)
    read = {i.kind for sweep in plan.sweeps for p in sweep.passes for i in p.reads}
    if read & {"log_ratio", "log_prob"}:
        yield from _log_ratio(plan)
    if "cotangent" in read:
        yield Argument("cotangents", "token", ("cotangent",), "∂/∂ratio")
    if "advantage" in read:
        yield Argument("advantages", "advantage", (), "per token, or per row of the batch")
        for sweep in plan.sweeps:
            if any(i.kind == "advantage" for p in sweep.passes for i in p.reads):
                s = sweep.segments
                yield Argument(f"{s}_rows", "rows", (s,), f"[n_{s}] the row of the batch that each lies in")
    for vector in plan.program.inputs:
        if vector.kind not in TOKENS and not (vector.kind == "advantage" and vector.stratum in leaves):
            yield Argument(f"{vector.name}_of", "vector", (vector.name,), f"[{vector.stratum}]")
            if vector.kind == "parameter":
                yield Argument(f"{vector.name}_stride", "stride", (vector.name,), "0 where one number serves all")
    for mix in plan.program.matrices:
        note = f"[{mix.into}, {mix.of}] of the projection: an index's matrix({mix.into!r}, {mix.of!r})"
        yield Argument(mix.matrix, "matrix", (mix.into, mix.of), note)
    for edge in plan.program.nodes():
        if isinstance(edge, Pull) and edge.target != BATCH and not _is_broadcast(plan, edge):
            yield Argument(f"{edge.target}_of_{edge.source}", "parent", (edge.source, edge.target), f"[{edge.source}]")
        if isinstance(edge, Push) and edge.source not in leaves:
            a, b = edge.source, edge.target
            yield Argument(f"{a}_by_{b}", "order", (a, b), f"[{a}] sorted by {b}, unless they are")
            yield Argument(f"{a}_before_{b}", "members", (a, b), f"[{b} + 1] {a} elements before each {b}")
    results = plan.program.results()
    for name in results:
        yield Argument(f"{name}_out", "result", (name,), "result, per token")
    if results:
        yield Argument("places", "places", (), "numbers in each token tensor")
        yield Argument("fill", "fill", (), "what masked places of a result get")
    yield Argument("work", "work", (), "float64 workspace: see below")


def result_of(plan: Plan, output: str) -> str:
    """The result in the shape of the batch that an output over tokens is a part of."""
    return next(k for k, parts in plan.program.results().items() if output in parts.values())


def _log_ratio(plan: Plan) -> Iterator[Argument]:
    if "objective" in plan.program.outputs:
        yield Argument("log_probs", "token", ("log_probs",), "log π of every token now")
        yield Argument("old_log_probs", "token", ("old_log_probs",), "and when it was sampled")
    else:
        yield Argument("log_ratios", "token", ("log_ratio",), "log π - log π_old")


def _is_broadcast(plan: Plan, node: Pull) -> bool:
    """A token reading its own segment: no gathering."""
    if node.source not in plan.program.leaves:
        return False
    return all(sweep.segments == node.target for sweep in plan.sweeps for p in sweep.passes if node in p.values)
