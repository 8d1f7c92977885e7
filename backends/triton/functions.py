"""What generated Triton modules have in common: functions that Triton lacks, tiles of tokens, sums, shapes of launches.

A generated module imports them. `fibration compile -o` writes this file beside it, as `fibration_triton.py`.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

# Whether a program may read what other programs of its launch have written. Not on ROCm, where a barrier does not wait
# for the stores of other waves.
ONE_LAUNCH = torch.version.hip is None
GATHERS = tl.constexpr(hasattr(tl, "gather"))  # since Triton 3.3
PARTS = 128  # the most programs that share a sum over the batch


def shape_for(mean_length):
    """The shape of a tile for rows of this mean length: BLOCK_R rows, BLOCK_T tokens, and the warps of a program."""
    if mean_length <= 8:
        return 16, 4, 1
    if mean_length <= 32:
        return 4, 32, 1
    if mean_length <= 512:
        return 2, 64, 1
    if mean_length <= 1024:
        return 1, 256, 2
    if mean_length <= 2048:
        return 1, 512, 2
    if mean_length <= 8192:
        return 1, 1024, 4
    return 1, 4096, 16


def is_vector(block_r, block_t, warps, positions, *tensors):
    """Whether a thread of a sweep reads and stores 4 neighbouring places at once, which begin at a multiple of 4."""
    has_4 = block_t % 4 == 0 and block_r * block_t >= 128 * warps
    aligned = all(x.data_ptr() % (4 * x.element_size()) == 0 for x in tensors)
    return has_4 and aligned and positions.count(None) == len(positions)


def fibre_block(sources, targets):
    """The number of sources over one target that are summed at a time."""
    return 16 if sources <= 64 * targets else 256


def share(elements):
    """The number of elements that each program of a coarse stage computes first."""
    return max(8, triton.cdiv(elements, PARTS)) if ONE_LAUNCH else elements


def parts_of(elements, tile):
    """The number of programs that share a sum over this number of elements, of which each takes a tile at a time."""
    return max(1, min(PARTS, triton.cdiv(elements, tile))) if ONE_LAUNCH else 1


class Call:
    """The launches of one call of a generated function. A kernel gets what the function has under the same names.

    `floats` are the tensors over tokens, of which one in float64 makes all sums so. Sweeps read `others` too.
    """

    def __init__(self, given, floats=(), others=(), positions=()):
        self.given, self.tensors, self.positions = dict(given), [*floats, *others], positions
        for name, value in given.items():  # a program without tokens reads a tensor's first places
            if isinstance(value, torch.Tensor) and not value.numel():
                self.given[name] = value.new_zeros(4)
        self.metrics = given.get("metrics", False)
        self.constants = {"METRICS": self.metrics, "fill": given.get("fill")}
        self.constants["WIDE"] = torch.float64 in [x.dtype for x in floats]
        self.launched = []  # kernels, their grids and arguments, and the compiled kernels

    def sweep(self, kernel, segments):
        """Programs of BLOCK_R of the segments, for tiles of the shape that their mean length asks for."""
        rows, columns, warps = self.given["shape"] or shape_for(self.given["tokens"] / segments)
        vector = is_vector(rows, columns, warps, self.positions, *self.tensors)
        if self.metrics and "BLOCK_L" in kernel.arg_names:
            # sums of metrics need many registers, and their order depends on the columns
            rows, vector = 1 if columns >= 64 else rows, False
        tile = {"BLOCK_R": rows, "BLOCK_T": columns, "BLOCK_L": 32 * warps, "VECTOR": vector}
        self.launch(kernel, triton.cdiv(segments, rows), warps, tile)

    def coarse(self, kernel, elements=0, programs=1, parts=0, **tiles):
        """One program, or several that share `elements` of a stratum, or sums of which each has a part."""
        work = self.given["work"]
        if elements:
            self.given["own"] = share(elements)
            programs = max(programs, triton.cdiv(elements, self.given["own"]))
        counts, memory = bool(elements) or programs > 1, {}
        if counts and "counter" not in self.given:
            self.given["counter"] = torch.zeros(1, dtype=torch.int32, device=work.device)
        memory["counter"] = self.given["counter"] if counts else None
        if parts:
            memory["parts"] = torch.empty(parts * PARTS, dtype=torch.float64, device=work.device)
        self.launch(kernel, programs, 8, tiles, **memory)

    def launch(self, kernel, programs, warps, constants, **memory):
        constants, given = self.constants | constants, self.given | memory
        values = {name: constants[name] if name in constants else given[name] for name in kernel.arg_names}
        passed = [value for name, value in values.items() if name not in constants]
        fixed = {name: value for name, value in values.items() if name in constants}
        compiled = kernel[(programs,)](*passed, **fixed, num_warps=warps)
        self.launched.append((kernel, (programs,), values, compiled))


@triton.jit
def exp(x):
    """e to the x. In float32 a GPU computes it as 2 to the x·log2 e. Written so, results below 2^-126 are 0, which
    spares three instructions."""
    return tl.exp(x) if x.dtype == tl.float64 else tl.exp2(x * 1.4426950408889634)


@triton.jit
def expm1(x):
    """exp(x) - 1 without cancellation: a Taylor polynomial near 0. In float64 it is one in r, with x = k·ln 2 + r and
    |r| <= 0.35; in float32 one in x, and where |x| >= 0.5 the difference loses at most two bits."""
    if x.dtype == tl.float64:
        c = tl.where(x < 709.782712893384, x, 709.782712893384)  # also takes NaN, whose integer part has no meaning
        c = tl.where(c > -40.0, c, -40.0)
        k = tl.floor(c * 1.4426950408889634 + 0.5)
        r = (c - k * 0.6931471803691238) - k * 1.9082149292705877e-10
        p = r * 1.6059043836821613e-10 + 2.08767569878681e-09
        p = ((p * r + 2.505210838544172e-08) * r + 2.755731922398589e-07) * r + 2.7557319223985893e-06
        p = ((p * r + 2.48015873015873e-05) * r + 0.0001984126984126984) * r + 0.001388888888888889
        p = ((p * r + 0.008333333333333333) * r + 0.041666666666666664) * r + 0.16666666666666666
        p = p * r + 0.5
        p = p * (r * r) + r  # exp(r) - 1
        half = ((k.to(tl.int64) + 1022) << 52).to(tl.float64, bitcast=True)  # 2^(k - 1): 2^1024 would overflow
        y = (half * p + (half - 0.5)) * 2.0
        y = tl.where(x > 709.782712893384, float("inf"), y)
        y = tl.where(k == 0.0, p, y)
        y = tl.where(x == x, y, x)
    else:  # a caller that needs exp(x) too computes it once
        p = x * 2.48015873015873e-05 + 0.0001984126984126984
        p = ((p * x + 0.001388888888888889) * x + 0.008333333333333333) * x + 0.041666666666666664
        p = (p * x + 0.16666666666666666) * x + 0.5
        p = p * (x * x) + x
        y = tl.where(tl.abs(x) < 0.5, p, exp(x) - 1.0)
    return y


@triton.jit
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, plus a correction for the rounding. So small a correction needs no
    division in float64."""
    u = 1.0 + x
    rest = (x - (u - 1.0)) * (1.0 / u.to(tl.float32)).to(tl.float64) if x.dtype == tl.float64 else (x - (u - 1.0)) / u
    return tl.log(u) + tl.where((x > -1.0) & (x < float("inf")), rest, 0.0)


@triton.jit
def tanh(x):
    """tanh |x| = -t / (t + 2) with t = exp(-2 |x|) - 1, and the sign of x."""
    t = expm1(-2.0 * tl.abs(x))
    y = -t / (t + 2.0)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow."""
    e = exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit
def softplus(x):
    """log(1 + exp(x)): the larger of x and 0, plus the rest."""
    return tl.where(x > 0.0, x, 0.0) + log1p(exp(-tl.abs(x)))


@triton.jit
def atan(x):
    """atan |x| = n pi/4 + atan(t) with n = 0, 1 or 2 and |t| <= tan(pi/8), where atan is a minimax polynomial in t."""
    a = tl.abs(x)
    turns = tl.where(a > 2.414213562373095, 2.0, tl.where(a > 0.41421356237309503, 1.0, 0.0)).to(x.dtype)
    t = tl.where(turns > 1.0, -1.0, a - turns) / tl.where(turns > 1.0, a, 1.0 + a * turns)
    z = t * t
    if x.dtype == tl.float64:
        p = z * -0.017903548591907317 + 0.03806080464507613
        p = ((p * z - 0.050391389643816994) * z + 0.0584784811096756) * z - 0.06663097707866754
        p = ((p * z + 0.07692059589464638) * z - 0.09090897718281017) * z + 0.11111110781921175
        p = ((p * z - 0.14285714280162076) * z + 0.19999999999953205) * z - 0.333333333333332
        y = turns * 0.7853981633974483 + (t + (t * z * p + turns * 3.061616997868383e-17))
    else:
        p = z * -0.060779910534620285 + 0.10593727231025696
        p = ((p * z - 0.142435222864151) * z + 0.19998471438884735) * z - 0.33333316445350647
        y = turns * 0.7853981852531433 + (t + (t * z * p - turns * 2.1855695e-08))
    return tl.where(x < 0.0, -y, y)


@triton.jit
def of_program(by_length, n_segments, rows: tl.constexpr):
    """The segments of a program of a sweep, in the order of `by_length`, and which of them exist: [BLOCK_R]. Others
    read what the last segment has, so that no load needs a mask. Numbers of segments are int32: an address in int64
    takes one instruction more."""
    b, last = tl.program_id(0) * rows + tl.arange(0, rows), (n_segments - 1).to(tl.int32)
    live, b = b <= last, tl.minimum(b, last)
    if by_length is not None:
        b = tl.load(by_length + b).to(tl.int32)
    return b, live


@triton.jit
def segments(offsets, starts, positions, b, live, vector: tl.constexpr):
    """Where segments are: the number of the first token, how many there are, the place of column 0 of the first tile, 0
    with `positions`, and the column of the first token, `lead`: with vectors tiles begin at a multiple of 4 places."""
    first, start = tl.load(offsets + b), tl.load(starts + b)
    size = tl.where(live, tl.load(offsets + b + 1) - first, 0).to(tl.int32)
    lead = start.to(tl.int32) & (3 if vector else 0)
    if positions is not None:
        start = tl.zeros_like(start)  # the tensor's
    return first, size, start - lead, lead


@triton.jit
def reach_of(starts, positions, tokens, b, live, start, size, lead, n_segments, places):
    """The places that a row's stores fill: with the masked places after its tokens, unless tokens have `positions` or
    numbers of their own. And the first column at which one of the program's rows ends."""
    reach = size
    if positions is None and tokens is None:
        following = tl.load(starts + b + 1, mask=b + 1 < n_segments, other=places)
        reach = tl.where(live, following - start - lead, 0).to(tl.int32)
    return reach, tl.min(reach + lead, axis=0)


@triton.jit
def extent(ends):
    """The columns that a program's tiles cover, at least 1: a loop that runs at least once needs no way around it."""
    return tl.maximum(tl.max(ends, axis=0), 1)


@triton.jit
def save(places, values, live, columns: tl.constexpr):
    """Stores a value of each segment. All threads of a row have it: that of the first column stores it, where it is."""
    i = tl.arange(0, max(columns // 4, 1))[None, :]
    places, values = places[:, None] + 0 * i, values[:, None]
    values = tl.where(i == 0, values, values)  # in the interpreter, `tl.broadcast_to` makes nothing that can be stored
    tl.store(places, values, mask=live[:, None] & (i == 0))


@triton.jit
def below(x, limit):
    """0 <= x < limit, for int32 in one comparison: as an unsigned number, one below 0 is large."""
    return x.to(tl.uint32) < tl.maximum(limit, 0).to(tl.uint32)


@triton.jit
def tile(positions, tokens, first, size, lead, t, columns: tl.constexpr, vector: tl.constexpr):
    """The tile from the t-th column of each row on: `c` counts from the row's first token (int32), `m` tells which
    columns are tokens, `k` are their numbers among all tokens, `at` the places to read.

    Loads have no masks: a thread would run out of predicates, and put zeros where it does not read. A column outside
    reads the row's nearest token or vector, one of an empty row the tensor's first place. A vector of 4 is read whole:
    its neighbours are of other rows, or lie beside the tensor in 4 aligned places."""
    i, lead, size = tl.arange(0, columns)[None, :], lead[:, None], size[:, None]
    c = (t + i) - lead
    near = tl.minimum(tl.maximum(c, 0), tl.maximum(size - 1, 0))
    k, at = first[:, None] + near, near
    if vector:
        at = tl.minimum(t + i // 4 * 4, tl.maximum(size + lead - 1, 0) // 4 * 4) + i % 4
    if positions is not None:
        at = tl.load(positions + k, mask=size > 0, other=0)
    if tokens is not None:
        k = tl.load(tokens + k, mask=size > 0, other=0)
    return c, below(c, size), k, at


@triton.jit
def halved(sums, lead, vector: tl.constexpr):
    """The sum of all columns: of every four, then the first half plus the second, and again. With vectors a row's fours
    begin at column `lead`, and a thread gets the columns of one four. An addition of two numbers does not depend on
    their order, so the sum has the same bits wherever the row began, and whatever thread has which column."""
    if GATHERS and sums.shape[1] % 4 == 0:
        fours: tl.constexpr = sums.shape[1] // 4
        even, odd = tl.split(tl.reshape(sums, [sums.shape[0], fours, 2, 2]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        if vector:
            v, lead = tl.arange(0, fours)[None, :], lead[:, None]
            x0 = tl.gather(x0, (v + ((lead + 1 >> 1) & 1)) & (fours - 1), 1)
            x1 = tl.gather(x1, (v + (lead >> 1)) & (fours - 1), 1)
        even, odd = x2 + x0, x3 + x1
        if vector:
            even = tl.gather(even, (v + (lead + 1 >> 2)) & (fours - 1), 1)
        sums = even + odd
    for _ in tl.static_range(20):
        if sums.shape[1] > 1:
            sums = tl.sum(tl.reshape(sums, [sums.shape[0], 2, sums.shape[1] // 2]), axis=1)
    return tl.sum(sums, axis=1)


@triton.jit
def of_vectors(marks):
    """The sums of 4 neighbouring columns, which a thread has: of 0 and NaN, which add up to the same in every order."""
    return tl.sum(tl.reshape(marks, [marks.shape[0], marks.shape[1] // 4, 4]), axis=2)


@triton.jit
def added(part, x, m, how: tl.constexpr):
    """The sums, or the maxima, of each lane, with a tile's tokens: float64 [rows, lanes]. A lane has columns of one
    thread."""
    x = tl.where(m, x, 0.0 if how == "sum" else float("-inf"))
    if x.shape[1] > part.shape[1]:
        x = joined(tl.reshape(x, [x.shape[0], x.shape[1] // part.shape[1], part.shape[1]]), 1, how)
    x = x.to(tl.float64)
    return part + x if how == "sum" else tl.maximum(part, x)


@triton.jit
def from_row(tensor, start, vector: tl.constexpr):
    """Pointers to where each row's first tile begins: [BLOCK_R, 1], with vectors at a multiple of 4 places."""
    p = tensor + start[:, None]
    if vector:
        size: tl.constexpr = tensor.dtype.element_ty.primitive_bitwidth // 2  # bytes of 4 places
        p = tl.multiple_of(p, (size, size))
    return p


@triton.jit
def put(out, start, positions, at, t, c, m, lead, reach, fewest, value, vector: tl.constexpr):
    """Stores a tile in its row's places: whole vectors, and the rest in tiles where a row may begin or end. `value` has
    the fill at masked places."""
    p, inside = from_row(out, start, vector), below(c, reach[:, None])
    if vector:
        p += t + tl.arange(0, value.shape[1])[None, :]
        v = t - lead[:, None] + tl.arange(0, value.shape[1])[None, :] // 4 * 4
        whole = below(v, reach[:, None] - 3)
        tl.store(p, value, mask=whole)
        if t == 0 or t + value.shape[1] > fewest:
            tl.store(p, value, mask=inside & ~whole)
    elif positions is None:
        tl.store(p + c, value, mask=inside)
    else:
        tl.store(p + at, value, mask=m)


@triton.jit
def fill_before(out, end, fill: tl.constexpr):
    """Fills the masked places before the first row."""
    for k in range(0, end, 1024):
        o = k + tl.arange(0, 1024)
        tl.store(out + o, tl.full([1024], fill, tl.float32), mask=o < end)


@triton.jit
def last_to_arrive(counter):
    """True in the program that arrives last. It can read what the others stored, and resets the counter. `counter` is
    None if there is one program."""
    tl.debug_barrier()
    last = counter is None
    if counter is not None:
        last = tl.atomic_add(counter, 1, sem="acq_rel") == tl.num_programs(0) - 1
        if last:
            tl.store(counter, 0)
    return last


@triton.jit
def fresh(pointers, mask, other):
    """Loads values that this launch may have written, bypassing the first cache."""
    return tl.load(pointers, mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def joined(x, axis: tl.constexpr, how: tl.constexpr):
    """The sums, or the maxima, along one axis."""
    return tl.sum(x, axis=axis) if how == "sum" else tl.max(x, axis=axis)


@triton.jit(noinline=True)
def push(
    to, targets, of, sources, step, count, order, before, low, high, vectors: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, how: tl.constexpr,
):  # fmt: skip
    """The sums, or the maxima, of `count` neighbouring vectors over each target from `low` to `high`, in a fixed order.
    Without `before` every target has a tile of the sources in turn. `vectors`: the next power of 2."""
    v = tl.arange(0, vectors)
    none: tl.constexpr = 0.0 if how == "sum" else float("-inf")
    for y in range(low, high, rows):
        b = y + tl.arange(0, rows)
        live = b < high
        end, every = sources, columns * targets
        if before is not None:
            first = tl.load(before + b, mask=live, other=0)
            size = tl.load(before + b + 1, mask=live, other=0) - first
            end, every = tl.max(size, axis=0), columns
        found = tl.full([vectors, rows, columns], none, tl.float64)
        for f in range(0, end, every):
            o = tl.arange(0, columns)[None, :]
            if before is None:
                a = f + b[:, None] * columns + o
                m = a < tl.where(live, sources, 0)[:, None]
            else:
                m = f + o < size[:, None]
                a = first[:, None] + f + o
            if order is not None:
                a = tl.load(order + a, mask=m, other=0)
            there = m[None, :, :] & (v < count)[:, None, None]
            x = fresh(of + v[:, None, None] * sources + (a * step)[None, :, :], there, none)
            found = found + x if how == "sum" else tl.maximum(found, x)
        inside = (v < count)[:, None] & live[None, :]
        tl.store(to + v[:, None] * targets + b[None, :], joined(found, 2, how), mask=inside)


@triton.jit
def product(out, matrix, x, rows, columns, row, column, block: tl.constexpr):
    """out[b] = Σ_a matrix[b·row + a·column]·x[a], for every b of `rows`."""
    for b in range(0, rows):
        total = tl.full([block], 0.0, tl.float64)
        for f in range(0, columns, block):
            a = f + tl.arange(0, block).to(tl.int64)
            m = a < columns
            total += tl.load(matrix + b * row + a * column, mask=m, other=0.0) * fresh(x + a, m, 0.0)
        tl.store(out + b, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["columns", "column", "pieces", "targets", "first", "last"])
def digits(
    x, order, before, counts, states, least, columns, column, pieces, targets, first, last, block: tl.constexpr
):  # fmt: skip
    """Finds a number of given rank digit by digit, in integers that have the order of the numbers. Round r counts, in a
    piece of a target's numbers that share the first r hexadecimal digits, how many have each next digit. The 17th round
    finds the least number above the one found, or NaN if a number is NaN.
    """
    b = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    start = tl.load(before + b)
    size = tl.load(before + b + 1) - start
    low = size * piece // pieces
    high = size * (piece + 1) // pieces
    i = tl.arange(0, 16)
    mine = (b * columns + column + piece) * 16 + i
    for r in range(first, last):
        at = (tl.maximum(r - 1, 0).to(tl.int64) * targets + b) * 3
        prefix = tl.load(states + at, cache_modifier=".cg")
        k = tl.load(states + at + 1, cache_modifier=".cg")
        if r > 0:
            total = tl.full([16], 0, tl.int64)
            since = ((r - 1) % 2 * targets + b) * columns * 16
            for c in range(0, columns):
                total += tl.load(counts + since + c * 16 + i, cache_modifier=".cg")
            prior = tl.sum(tl.where(i[:, None] < i[None, :], total[:, None], 0), axis=0)
            digit = tl.minimum(tl.sum((prior + total <= k).to(tl.int64), axis=0), 15)
            prefix = prefix * 16 + digit
            k = k - tl.sum(tl.where(i == digit, prior, 0), axis=0)
            if column + piece == 0:
                at = (tl.full([], 0, tl.int64) + r * targets + b) * 3
                tl.store(states + at, prefix)
                tl.store(states + at + 1, k)
                tl.store(states + at + 2, tl.sum(tl.where(i == digit, total, 0), axis=0))
        found = tl.full([16], 0, tl.int32)
        above = tl.full([block], float("inf"), tl.float64)
        strange = tl.full([block], 0, tl.int32)
        bits = tl.where(prefix < 0, prefix ^ -0x8000000000000000, ~prefix)
        bound = bits.to(tl.float64, bitcast=True)
        shift = tl.maximum(60 - 4 * r, 0)
        known = (tl.full([], 1, tl.int64) << tl.minimum(4 * r, 60)) - 1
        for f in range(low, high, block):
            o = f + tl.arange(0, block)
            m = o < high
            a = start + o
            if order is not None:
                a = tl.load(order + a, mask=m, other=0)
            value = tl.load(x + a, mask=m, other=0.0) + 0.0  # 0 for -0
            if r < 16:
                image = value.to(tl.int64, bitcast=True)
                image = image ^ ((image >> 63) | -0x8000000000000000)
                inside = m & (((image >> shift >> 4) & known) == prefix)
                same = ((image >> shift) & 15)[:, None] == i[None, :]
                found += tl.sum((same & inside[:, None]).to(tl.int32), axis=0)
            else:
                above = tl.minimum(above, tl.where(m & (value > bound), value, float("inf")))
                strange = strange | (m & (value != value)).to(tl.int32)
        if r < 16:
            tl.store(counts + r % 2 * targets * columns * 16 + mine, found)
        else:
            nearest = tl.where(tl.max(strange, axis=0) > 0, float("nan"), tl.min(above, axis=0))
            tl.store(least + b * columns + column + piece, nearest)
        tl.debug_barrier()


def quantile(out, values, orders, befores, sizes, level):
    """Writes to `out` [targets] the quantile over each target, of `values` of several leaves. No wait for the device.

    It interpolates linearly at `level·(n - 1)` among `n` sorted values: NaN if a value is NaN, 0 without values.
    """
    targets, pieces = out.numel(), [max(1, min(64, triton.cdiv(n, 8192 * out.numel()))) for n in sizes]
    columns = sum(pieces)
    n = sum(before[1:] - before[:-1] for before in befores)
    place = level * (n - 1).clamp(min=0).double()
    states = torch.zeros(17, targets, 3, dtype=torch.int64, device=out.device)
    states[0, :, 1] = place.floor().long()
    counts = torch.empty(2, targets, columns, 16, dtype=torch.int32, device=out.device)
    least = torch.empty(targets, columns, dtype=torch.float64, device=out.device)
    rounds = [(0, 17)] if ONE_LAUNCH and columns == 1 else [(r, r + 1) for r in range(17)]
    for first, last in rounds:
        column = 0
        for x, order, before, count in zip(values, orders, befores, pieces, strict=True):
            digits[targets, count](
                x, order, before, counts, states, least, columns, column, count, targets, first, last,
                block=512, num_warps=8,
            )  # fmt: skip
            column += count
    prefix, k, equal = states[16].unbind(1)
    a = torch.where(prefix < 0, prefix ^ -(2**63), ~prefix).view(torch.float64)
    least, t = least.amin(1), place - place.floor()
    b = torch.where(k + 1 < equal, a, least)
    gap = b - a
    between = torch.where(t < 0.5, a + gap * t, b - gap * (1 - t))  # from the nearer end
    between = torch.where(gap.isinf(), a * (1 - t) + b * t, between)
    between = torch.where((t == 0) | (a == b), a, between)
    between = torch.where(least.isnan(), torch.nan, between)
    out.copy_(torch.where(n > 0, between, 0.0))


@triton.jit
def later(sum, share, term, other):
    """Joins two neighbouring discounted sums, with the discounts across them."""
    return other * sum + term, share * other


@triton.jit(do_not_specialize=["targets", "way"])
def along(out, x, order, before, discount, targets, way, rows: tl.constexpr, columns: tl.constexpr):
    """The discounted sum of all elements of the same target before each element (`way` 1) or after it (`way` -1). A
    program computes `rows` targets tile by tile, and carries a sum from each tile to the next."""
    b = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    first = tl.load(before + b, mask=b < targets, other=0)
    size = tl.load(before + b + 1, mask=b < targets, other=0) - first
    start = tl.where(way > 0, first, first + size - 1)
    share = tl.load(discount)
    carry = tl.full([rows], 0.0, tl.float64)
    column = tl.arange(0, columns)[None, :]
    for t in range(0, tl.max(size, axis=0), columns):
        i = t + column
        m = i < size[:, None]
        inside = m & (i > 0)
        a = start[:, None] + way * i
        neighbour = a - way
        if order is not None:
            a = tl.load(order + a, mask=m, other=0)
            neighbour = tl.load(order + neighbour, mask=inside, other=0)
        value = tl.load(x + neighbour, mask=inside, other=0.0)
        sum, power = tl.associative_scan((value, tl.zeros_like(value) + share), 1, combine_fn=later)
        sum += tl.where(t > 0, power * carry[:, None], 0.0)
        tl.store(out + a, tl.where(i > 0, share * sum, 0.0), mask=m)
        carry = tl.sum(tl.where(column == columns - 1, sum, 0.0), axis=1)


def scan(outs, values, sizes, order, before, discount, forward, shape):
    """The discounted sum of all elements of the same target before each element, or after it. `values` are vectors or
    numbers of several strata, whose elements are numbered one stratum after another. Results go to `outs`, unless None.
    """
    like = next(out for out in outs if out is not None)

    def vector(value, n):  # filled on the device: a copy of a number would wait for it
        return value.expand(n) if isinstance(value, torch.Tensor) else like.new_full((n,), value)

    x = [vector(v, n) for v, n in zip(values, sizes, strict=True)]
    x = x[0].contiguous() if len(x) == 1 else torch.cat(x)
    found = like if len(sizes) == 1 else torch.empty_like(x)
    rows, columns, warps = shape
    targets = before.numel() - 1
    along[triton.cdiv(targets, rows),](
        found, x, order, before, vector(discount, 1), targets, 1 if forward else -1, rows=rows, columns=columns,
        num_warps=warps,
    )  # fmt: skip
    for out, part in zip(outs, found.split(sizes), strict=True):
        if out is not None and len(sizes) > 1:
            out.copy_(part)
