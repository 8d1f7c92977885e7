"""Makes the arguments of generated functions, for callers without the library.

`fibration compile -o` writes these functions beside a module. It needs only torch.
"""

# mypy: ignore-errors
import torch

# Kinds of arguments: those that a call makes, those that may be None, and what the others hold.
MADE = ["size", "stride", "result", "places", "fill", "work"]
MAY_LACK = ["positions", "tokens", "by_length", "rows", "order", "sequence"]
FLOATS = ["token", "advantage"]
FLOAT64 = ["vector", "matrix"]


def described(rows, leaves, fill, arguments, work, returns):
    """An entry of FUNCTIONS: its arguments (name, kind, what they are of), the vectors of its workspace by stratum,
    and the results that are not per token, with their names in the workspace or among the arguments."""
    given = [item.split() for item in arguments.split(",")]
    vectors, stratum = {}, ""
    for item in filter(str.strip, work.split(",")):
        *first, name = item.replace(":", " ").split()
        stratum = first[0] if first else stratum
        vectors.setdefault(stratum, []).append(name)
    return {
        "rows": rows,
        "leaves": leaves.split(),
        "fill": fill,
        "arguments": [(name, kind, tuple(of)) for name, kind, *of in given],
        "work": vectors,
        "returns": {item.split()[0]: item.split()[-1] for item in returns.split(",") if item.strip()},
    }


def without_metrics(functions, of, returns):
    """The entry of a function that another one computes, without metrics."""
    return functions[of] | {"of": of, "returns": {name: functions[of]["returns"][name] for name in returns.split()}}


def laid_out(about, offsets, parents, leaves=None):
    """Returns the layout arguments of a function, for packed tokens without gaps.

    `about`: its entry of FUNCTIONS. `offsets`: cu_seqlens, int64 [segments + 1]. Segments are the rows of the batch if
    the function has them, else the elements that tokens belong to. `parents`: for every other fibration the target of
    each element, such as {("trajectory", "prompt_group"): int64 [trajectory]}. `leaves`: for several kinds of tokens,
    {"text_token": bool [tokens], ...}. Sums in order run over tokens in their order in the batch.
    """
    arguments, kinds = about["arguments"], about["leaves"]
    offsets, edges = offsets.long(), {edge: parent.long() for edge, parent in parents.items()}
    targets = [of[0] for _, kind, of in arguments if kind == "offsets"]
    segments = about["rows"] if about["rows"] in targets or not targets else targets[0]
    lengths, n, device = offsets[1:] - offsets[:-1], len(offsets) - 1, offsets.device
    if not n or bool((lengths <= 0).any()) or int(offsets[0]) != 0:
        raise ValueError(f"offsets {offsets[:9].tolist()}: from 0 on, each {segments} has a token: leave out others")
    every = torch.arange(int(offsets[-1]), device=device)
    place = {leaf: every if leaves is None else every[leaves[leaf].to(device).bool()] for leaf in kinds}
    if sum(map(len, place.values())) != len(every):
        raise ValueError(f"every token is of one kind: {', '.join(kinds)}")
    segment = torch.repeat_interleave(torch.arange(n, device=device), lengths)
    for leaf in kinds:
        edges.setdefault((leaf, segments), segment[place[leaf]])
    size = {"batch": 1, **{leaf: len(place[leaf]) for leaf in kinds}, segments: n}
    for (_, target), parent in parents.items():
        size[target] = max(size.get(target, 0), int(parent.max()) + 1)
    for target in [stratum for stratum in size if stratum not in ("batch", segments, *kinds)]:
        found = {e for (_, t), above in edges.items() if t == target for e in above.unique().tolist()}
        if wrong := found ^ set(range(size[target])):
            raise ValueError(f"{target} {min(wrong)}: number those with elements 0, 1, 2, ... without gaps")

    def parent(source, target):
        if target == "batch":
            return torch.zeros(size[source], dtype=torch.int64, device=device)
        if (source, target) in edges:
            return edges[source, target]
        for s, t in edges:
            if s == source and (above := parent(t, target)) is not None:
                return above[edges[s, t]]
        return None

    def members(target, sources, order=None):
        """Elements by target, then in `order`, by default as numbered; None if they are so. How many come before."""
        above = torch.cat([parent(source, target) for source in sources])
        order = torch.arange(len(above), device=device) if order is None else order
        order = order[torch.argsort(above[order], stable=True)]
        sizes = torch.bincount(above, minlength=size[target])
        in_order = bool((order[1:] > order[:-1]).all())
        return None if in_order else order, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])

    def places(stratum):
        if stratum in place:
            return place[stratum]
        first = torch.full((size[stratum],), len(every), dtype=torch.int64, device=device)
        for leaf in kinds:
            if (above := parent(leaf, stratum)) is not None:
                first.scatter_reduce_(0, above, place[leaf], "amin")
        return first

    found = {}
    for name, kind, of in arguments:
        if kind in ("offsets", "starts", "positions", "tokens", "by_length"):
            target, leaf = of
            order, before = members(target, [leaf])
            there = place[leaf] if order is None else place[leaf][order]
            padded = torch.cat([there, there.new_zeros(1)])
            starts = padded[before[:-1]]
            last = padded[(before[1:] - 1).clamp(min=0)]
            sizes = before[1:] - before[:-1]
            whole = bool((last - starts == sizes - 1)[sizes > 0].all())
            layout = {"offsets": before, "starts": starts, "positions": None if whole else there, "tokens": order}
            layout["by_length"] = torch.argsort(sizes, descending=True, stable=True)
            found[name] = layout[kind]
        elif kind == "parent":
            found[name] = parent(*of)
        elif kind in ("order", "members"):
            found[name] = members(of[1], of[:1])[kind == "members"]
        elif kind in ("sequence", "sequence_members"):
            target, *sources = of
            order = torch.argsort(torch.cat([places(source) for source in sources]))
            found[name] = members(target, sources, order)[kind == "sequence_members"]
        elif kind == "vector" and of[1] == "count":
            found[name] = torch.bincount(parent(of[2], of[3]), minlength=size[of[3]]).double()
    return found


def checked(function, about, given):
    """Returns the caller's arguments, contiguous, vectors in float64, layouts in int64. Raises if one does not fit."""
    arguments = about["arguments"]
    unknown = sorted(set(given) - {name for name, _, _ in arguments})
    if unknown:
        raise TypeError(f"{function}() has no argument {unknown[0]}")
    floats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    values = {}
    for name, kind, _ in arguments:
        value = given.get(name)
        if kind in MADE:
            continue
        if value is None:
            if kind not in MAY_LACK:
                raise TypeError(f"{function}() lacks the argument {name}")
            values[name] = None
            continue
        if kind in FLOAT64:
            value = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        elif not isinstance(value, torch.Tensor) or (kind in FLOATS and value.dtype not in floats):
            raise TypeError(f"{name} is {getattr(value, 'dtype', type(value).__name__)}: pass a tensor of floats")
        elif kind not in FLOATS:
            value = value.long()
        values[name] = value.contiguous()
    tokens = {name: values[name] for name, kind, _ in arguments if kind == "token"}
    places = max((t.numel() for t in tokens.values()), default=None)
    per_row = any(values[name] is not None for name, kind, _ in arguments if kind == "rows")
    if not per_row:
        tokens |= {name: values[name] for name, kind, _ in arguments if kind == "advantage"}
    for name, tensor in tokens.items():
        if places is not None and tensor.numel() != places:
            raise ValueError(f"{name} has {tensor.numel()} numbers, and there are {places} tokens")
    given_floats = (values[name] for name, kind, _ in arguments if kind in (*FLOATS, "vector"))
    device = next(v.device for v in given_floats if v is not None)
    for name, kind, _ in arguments:
        if isinstance(values.get(name), torch.Tensor):
            values[name] = values[name].to(device) if kind in FLOAT64 else values[name]
            if values[name].device != device:
                raise ValueError(f"{name} is on {values[name].device}, and the tokens are on {device}")
        if device.type != "cpu":
            continue  # the checks below would wait for the device
        if kind == "offsets" and name in values and places is not None and int(values[name][-1]) > places:
            raise ValueError(f"{name} end at {int(values[name][-1])}, and there are {places} tokens")
        if kind == "rows" and per_row:
            (word,) = (n for n, k, _ in arguments if k == "advantage")
            if int(values[name].max()) >= values[word].numel():
                raise ValueError(f"{name} name row {int(values[name].max())} of {values[word].numel()} {word}")
    return values


def shape_of(about, given):
    """Returns the shape of tensors over tokens. If all given tensors are per row, it follows from the offsets."""
    arguments = about["arguments"]
    per_row = any(given[name] is not None for name, kind, _ in arguments if kind == "rows")
    for name, kind, _ in arguments:
        if kind == "token" or (kind == "advantage" and not per_row):
            return given[name].shape
    ends = {}
    for name, kind, of in arguments:
        if kind == "offsets":
            ends[of[0]] = ends.get(of[0], 0) + int(given[name][-1])
    return torch.Size([max(ends.values(), default=0)])


def dtype_of_results(about, given):
    """Returns float64 if a tensor over tokens is float64, or if there is none; else float32."""
    tokens = [given[name].dtype for name, kind, _ in about["arguments"] if kind == "token"]
    return torch.float64 if torch.float64 in tokens or not tokens else torch.float32


def completed(about, given, dtype):
    """Returns every argument by name, in order, with those that the call makes; and the results that it fills."""
    like = next(given[name] for name, kind, _ in about["arguments"] if kind in (*FLOATS, "vector"))
    shape = shape_of(about, given)
    size = {"batch": 1, **dict.fromkeys(about["leaves"], shape.numel())}  # of a leaf, the largest possible number
    for name, kind, of in about["arguments"]:
        if kind == "starts":
            size[of[0]] = len(given[name])
        elif kind == "members":
            size[of[1]] = len(given[name]) - 1
        elif kind == "sequence_members":
            size[of[0]] = len(given[name]) - 1
        elif kind == "parent":
            size.setdefault(of[0], len(given[name]))
    strided = {of[0] for _, kind, of in about["arguments"] if kind == "stride"}  # one number serves all elements
    for name, kind, of in about["arguments"]:
        if kind == "vector" and given[name] is not None:
            n, size[of[0]] = given[name].numel(), size.get(of[0], given[name].numel())
            if n != size[of[0]] and not (n == 1 and name in strided):
                raise ValueError(f"{name} has {n} numbers: pass one for each of the {size[of[0]]} {of[0]} elements")
    saved = [(name, size[stratum]) for stratum, names in about["work"].items() for name in names]
    work = torch.empty(sum(n for _, n in saved), dtype=torch.float64, device=like.device)
    make = {
        "size": lambda of: size[of[0]],
        "places": lambda of: shape.numel(),
        "stride": lambda of: int(given[of[0]].numel() > 1),
        "fill": lambda of: about["fill"],
        "work": lambda of: work,
        "result": lambda of: torch.full(shape, about["fill"], dtype=dtype, device=like.device),
    }
    values = {name: make[kind](of) if kind in MADE else given[name] for name, kind, of in about["arguments"]}
    results = {of[0]: values[name] for name, kind, of in about["arguments"] if kind == "result"}
    slots = dict(zip([name for name, _ in saved], work.split([n for _, n in saved]), strict=True))
    return values, results | {name: slots[at] if at in slots else given[at] for name, at in about["returns"].items()}
