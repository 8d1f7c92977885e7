"""What modules that leave this library take along: a table of their functions, and how to lay out a batch for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fibration.calling import Argument, signature
from fibration.ir import Const, Input
from fibration.sweeps import Plan


@dataclass(frozen=True)
class Export:
    """Files by name, the module to import first; and per compiled kernel what it takes of the chip."""

    files: Mapping[str, str | bytes]
    kernels: tuple[Mapping[str, str | int], ...] = field(default=())


# Plain text in the generated module, beside FUNCTIONS. It needs torch alone.
LAY_OUT = '''\
def lay_out(function, offsets, parents):
    """The arguments of a function that say who lies over whom, for packed tokens without gaps.

    `offsets`: cu_seqlens, int64 [segments + 1], in the order of the segments. `parents`: for every fibration above the
    segments, as {("trajectory", "prompt_group"): which one each lies over, int64 [trajectory], ...}.
    """
    arguments = FUNCTIONS[function]["arguments"]
    segments = next(of[0] for _, kind, of in arguments if kind == "offsets")
    leaf, n = FUNCTIONS[function]["leaf"], len(offsets) - 1
    lengths = offsets[1:] - offsets[:-1]
    edges = {**parents, (leaf, segments): torch.repeat_interleave(torch.arange(n, device=offsets.device), lengths)}
    size = {leaf: int(offsets[-1]), segments: n, "batch": 1}
    for (_, target), parent in parents.items():
        size[target] = int(parent.max()) + 1

    def parent(source, target):
        if target == "batch":
            return torch.zeros(size[source], dtype=torch.int64, device=offsets.device)
        if (source, target) in edges:
            return edges[source, target]
        below = next(t for s, t in edges if s == source)
        return parent(below, target)[edges[source, below]]

    found = {}
    for name, kind, of in arguments:
        if kind in ("offsets", "starts"):
            found[name] = offsets if kind == "offsets" else offsets[:-1].contiguous()
        elif kind == "parent":
            found[name] = parent(*of)
        elif kind in ("order", "members"):
            above = parent(*of)
            sizes = torch.bincount(above, minlength=size[of[1]])
            in_order = bool((above[1:] >= above[:-1]).all())
            order = None if in_order else torch.argsort(above, stable=True)
            found[name] = order if kind == "order" else torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        elif kind == "vector" and of[1] == "count":
            found[name] = torch.bincount(parent(of[2], of[3]), minlength=size[of[3]]).double()
    return found
'''


def table(plan: Plan, arguments: tuple[Argument, ...] = ()) -> dict[str, Any]:
    """What a module says of one function: see the comment above FUNCTIONS in it."""
    inputs = {i.name: i for i in plan.program.inputs}

    def of(a: Argument) -> tuple[str, ...]:
        if a.kind != "vector":
            return a.key
        node = inputs[a.key[0]]
        return (node.name, node.kind, *node.key)

    returns = {}
    for name, node in plan.program.outputs.items():
        if node.stratum != plan.program.leaf and not isinstance(node, Const):
            returns[name] = f"{node.name}_of" if isinstance(node, Input) else plan.names[node]
    return {
        "leaf": plan.program.leaf,
        "fill": 1.0 if "gated_ratio" in plan.program.outputs else 0.0,
        "arguments": [(a.name, a.kind, of(a)) for a in arguments or signature(plan)],
        "work": [(plan.names[n], n.stratum) for n in plan.saved],
        "returns": returns,
    }


def written(functions: Mapping[str, dict[str, Any]]) -> str:
    """FUNCTIONS as text, one entry a line."""
    lines = ["{"]
    for name, about in functions.items():
        lines.append(f"    {name!r}: {{")
        lines += [f"        {k!r}: {about[k]!r}," for k in ("leaf", "fill")]
        for k in ("arguments", "work"):
            lines += [f"        {k!r}: [", *(f"            {item!r}," for item in about[k]), "        ],"]
        lines += [
            '        "returns": {',
            *(f"            {k!r}: {v!r}," for k, v in about["returns"].items()),
            "        },",
        ]
        lines.append("    },")
    return "\n".join([*lines, "}"])
