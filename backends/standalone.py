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
    offsets, parents = offsets.long(), {edge: parent.long() for edge, parent in parents.items()}
    segments = next(of[0] for _, kind, of in arguments if kind == "offsets")
    leaf, n = FUNCTIONS[function]["leaf"], len(offsets) - 1
    lengths = offsets[1:] - offsets[:-1]
    if bool((lengths <= 0).any()) or int(offsets[0]) != 0:
        raise ValueError(f"offsets start at 0, and every {segments} has a token: leave out those without")
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


def checked(function, given):
    """What the caller gave, as the code reads it: contiguous, vectors float64, layouts int64; or what does not fit."""
    arguments = FUNCTIONS[function]["arguments"]
    unknown = sorted(set(given) - {name for name, _, _ in arguments})
    if unknown:
        raise TypeError(f"{function}() has no argument {unknown[0]}")
    floats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    values = {}
    for name, kind, _ in arguments:
        value = given.get(name)
        if kind in ("size", "places", "stride", "fill", "work", "result"):
            continue
        if value is None:
            if kind not in ("positions", "tokens", "rows", "order"):
                raise TypeError(f"{function}() lacks the argument {name}")
            values[name] = None
            continue
        if kind == "vector":
            value = torch.as_tensor(value).double().reshape(-1)
        elif not isinstance(value, torch.Tensor) or (kind in ("token", "advantage") and value.dtype not in floats):
            raise TypeError(f"{name} is {getattr(value, 'dtype', type(value).__name__)}: a tensor of floats is wanted")
        elif kind not in ("token", "advantage"):
            value = value.long()
        values[name] = value.contiguous()
    tokens = {name: values[name] for name, kind, _ in arguments if kind == "token"}
    places = max(t.numel() for t in tokens.values())
    per_row = any(values[name] is not None for name, kind, _ in arguments if kind == "rows")
    if not per_row:
        tokens |= {name: values[name] for name, kind, _ in arguments if kind == "advantage"}
    for name, tensor in tokens.items():
        if tensor.numel() != places:
            raise ValueError(f"{name} has {tensor.numel()} numbers, and there are {places} tokens")
    device = next(iter(tokens.values())).device
    for name, kind, of in arguments:
        if isinstance(values.get(name), torch.Tensor):
            values[name] = values[name].to(device) if kind == "vector" else values[name]
            if values[name].device != device:
                raise ValueError(f"{name} is on {values[name].device}, and the tokens are on {device}")
        if device.type != "cpu":
            continue  # what follows reads numbers back
        if kind == "offsets" and name in values and int(values[name][-1]) > places:
            raise ValueError(f"{name} end at {int(values[name][-1])}, and there are {places} tokens")
        if kind == "rows" and per_row and int(values[name].max()) >= values["advantages"].numel():
            raise ValueError(f"{name} name row {int(values[name].max())} of {values['advantages'].numel()} advantages")
    return values
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
