"""Writes a fused plan as one standalone, readable C file (C11 and OpenMP).

This module writes the loops; their bodies come from the plan. A pass in float64 sums into doubles. A pass in the
tokens' precision sums chunks of `CHUNK` tokens in that precision, and the chunks in double. The order of a sum depends
on nothing but the segment's tokens and the dtypes: chunks and lanes (`fibres.h`) begin at its first token, and long
coarse sums are cut at fixed places. Sweeps over short segments are in `blocks.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import cache

from fibration.backends.c.blocks import BlockStages
from fibration.backends.c.lanes import add_to, add_up, start_of
from fibration.backends.c.language import (
    FUNCTIONS,
    PARTS,
    RESERVED,
    TOKEN,
    WIDE,
    dtype_of,
    token_constant,
    wide_constant,
)
from fibration.compiler.arguments import (
    FLOATS,
    GIVEN,
    HOLDS,
    INTEGER,
    INTEGERS,
    REAL,
    REALS,
    RESULTS,
    TOKENS,
    WORKSPACE,
    Argument,
    for_each,
    result_of,
    signature,
)
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import BATCH, Const, Input, Map, Node, Pull, Push, Quantile, Scan
from fibration.compiler.keys import Key
from fibration.compiler.plan import Pass, Plan, Scalars, Spread, Sweep
from fibration.compiler.program import Program
from fibration.compiler.reuse import keep
from fibration.errors import BackendError


def plan(program: Program, rows: str, spread: Spread | None = None) -> Plan:
    """Fused sweeps over the tokens. Arithmetic is the main cost, so the coefficients' memory keeps a value."""
    fused = sweeps(program, rows, RESERVED, spread)
    return keep(fused, Key("coefficients"))


def emit(header: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a file with one function per plan, or one per section if the batch is spread over ranks.

    `header` is a comment block of lines that start with '#'.
    """
    top = "/*\n" + "\n".join(line.removeprefix("#").removeprefix(" ") for line in header.splitlines()) + "\n*/"
    found = dict.fromkeys(word for plan in plans.values() for word in signature(plan).layouts.values())
    variants = "".join(VARIANT.format(s=word) for word in found)
    every = (a for plan in plans.values() for a in signature(plan).arguments if a.holds == FLOATS)
    dtypes = "".join(DTYPE.format(macro=dtype_of(name)) for name in dict.fromkeys(a.name for a in every))
    functions = "\n".join(f"#define {f}_real JOIN({f}_, REAL)" for f in FUNCTIONS)
    storage = _part("storage").replace("{variants}", dtypes + variants).replace("{functions}", functions)
    parts = [top, _part("math"), storage, "\n" + _part("fibres")]
    parts += ["\n" + _part("matrix")] if any(plan.program.matrices for plan in plans.values()) else []
    kinds = {type(n) for plan in plans.values() for n in plan.program.nodes()}
    extra = [word for kind, word in ((Quantile, "quantiles"), (Scan, "scans")) if kind in kinds]
    parts += ["\n" + _part(word) for word in (["room", *extra] if extra else [])]
    for name, plan in plans.items():
        sections = [(f, section) for f, section in plan.functions(name).items() if section]
        texts = [_Function(f, plan, section, titles[name]).text() for f, section in sections]
        parts.append("\n".join([f"\n#ifndef WITHOUT_{name}", *texts, "#endif"]))
    return "\n".join(part.rstrip() + "\n" for part in parts)


@cache
def _part(name: str) -> str:
    """Handwritten C that generated files contain."""
    return PARTS[name].read_text()


VARIANT = """\
#ifndef WHOLE_{s} /* 1: the tokens of each {s} are contiguous. 0: {s}_positions has their places */
#define WHOLE_{s} 1
#endif
#ifndef COUNTED_{s} /* 1: tokens are numbered {s} by {s}. 0: {s}_tokens has their numbers */
#define COUNTED_{s} 1
#endif
#ifndef SHORT_{s} /* 1: no {s} has more than LANES tokens. 0: any number, with the same bits */
#define SHORT_{s} 0
#endif
"""

DTYPE = """\
#ifndef {macro}
#define {macro} f32
#endif
"""

LACKING = {"positions": "WHOLE", "tokens": "COUNTED"}  # the macro that is 1 if the argument is None

DECLARED = for_each("C declarations", HOLDS, {
    INTEGER: "int64_t {0}", REAL: "double {0}", INTEGERS: "const int64_t *restrict {0}",
    REALS: "const double *restrict {0}", WORKSPACE: "double *restrict {0}", FLOATS: "const STORED({1}) *restrict {0}",
    RESULTS: "STORED(RESULT) *restrict {0}",
})  # fmt: skip


def declared(argument: Argument) -> str:
    return DECLARED[argument.holds].format(argument.name, dtype_of(argument.name))


class _Function(BlockStages):
    def text(self) -> str:
        self.line(0, f"/* {self.title}")
        width = max(len(a.name) for a in self.arguments)
        for a in self.arguments:
            self.line(0, f"   {a.name:<{width}}  {a.note}")
        self.line(0, f"   Vectors in the workspace, each [elements of its stratum]:\n   {self._layout()} */")
        given = ",\n    ".join([*map(declared, self.arguments), "int threads"])
        self.line(0, f"void {self.name}(\n    {given})\n{{")
        self.line(1, "(void)threads;")
        for a in self.arguments:
            if a.may_lack:
                self.line(1, f"(void){a.name};")
        for node, array in self.slots.items():
            self.line(1, f"double *restrict {array} = work;\nwork += {self.size(node.stratum)};")
        for stage in self.section:
            self.line(0)
            if isinstance(stage, Sweep):
                self.sweep(stage)
            else:
                for group in stage.groups:
                    self.group(group, stage)
        self.line(0, "}")
        return "\n".join(self.lines)

    def _layout(self) -> str:
        words = ", ".join(f"{self.plan.names[n]} [{n.stratum}]" for n in self.plan.saved) or "nothing"
        return "\n   ".join(textwrap.wrap(words, 110))

    # ------------------------------------------------------------ sweeps

    def sweep(self, sweep: Sweep) -> None:
        s = sweep.segments
        n, words = self.size(s), [self.signature.layouts[s, leaf] for leaf in sweep.leaves]
        total = " + ".join(f"{w}_offsets[{n}]" for w in words)
        self.line(1, f"/* each {s} and its tokens */")
        self.powers = {scan: self.free(f"powers_of_{self.names[scan]}") for p in sweep.passes for scan in p.scans}
        for scan, powers in self.powers.items():
            self.line(1, f"double {powers}[WIDTH + 1];")
            self.line(1, f"powers_of({powers}, {self.at(scan.discount, '0')});")
        if blocks := self.goes_in_blocks(sweep):
            self.line(0, f"#if !({self.block_condition(sweep)})")
        self.line(0, f"#pragma omp parallel for schedule(dynamic, GRAIN({n}, {total})) num_threads(threads) \\")
        self.line(1, f"if ({total} > LONG)")
        self.line(1, f"for (int64_t b = 0; b < {n}; b++) {{")
        if len(words) == 1:
            self.line(2, f"const int64_t first = {words[0]}_offsets[b], tokens = {words[0]}_offsets[b + 1] - first;")
            self.line(2, f"const int64_t start = {words[0]}_starts[b];")
            self.line(2, "(void)first, (void)start;")
        else:
            self.line(2, "int64_t first, tokens, start; /* set for one leaf after another */")
        computed = {n for step in sweep.steps if isinstance(step, Scalars) for n in step.values}
        computed |= {p for one in sweep.passes for p in one.pushes}
        wanted: dict[Node, None] = {}
        for step in sweep.steps:
            if isinstance(step, Scalars):
                read = (o for n in step.values if not isinstance(n, Pull) for o in n.operands)
                wanted.update({o: None for o in read if o.stratum not in self.plan.program.leaves})
            else:
                pulls = [v for v in step.values if isinstance(v, Pull) and v.target in (s, BATCH)]
                wanted.update({o: None for v in pulls for o in v.operands})
        for node in wanted:
            if node not in computed and not isinstance(node, Const):
                self.line(2, f"const double {self.names[node]} = {self.at(node, 'b')};")
        if any(i.kind in GIVEN for p in sweep.passes for i in p.reads):
            self.line(2, f"const double row_advantage = {self.row_advantage(sweep, 'b', 'double')};")
        self.rounded = {}
        self.rooms(sweep)
        for step in sweep.steps:
            if isinstance(step, Scalars):
                for node in step.values:
                    if isinstance(node, Quantile):
                        self.picked(node)
                    else:
                        self.value(2, node, "b")
            else:
                if len(words) > 1:
                    w = self.signature.layouts[s, step.leaf]
                    self.line(0)
                    self.line(2, f"first = {w}_offsets[b], tokens = {w}_offsets[b + 1] - first, start = {w}_starts[b];")
                    self.line(2, "(void)first, (void)start;")
                self.tokens(step, sweep)
        for node in sweep.saved:
            if node.stratum not in self.plan.program.leaves:
                self.line(2, f"{self.arrays[node]}[b] = {self.names[node]};")
        for room, _ in self.room.values():
            self.line(2, f"__builtin_free({room});")
        for lanes in self.lanes.values():
            self.line(2, f"__builtin_free({lanes} - WIDTH);")
        stored = [k for p in sweep.passes for k, _ in p.stores]
        if stored and len(self.plan.program.leaves) == 1:
            (w,) = words
            self.line(2, "/* masked places before and after, which have the fill already if it is NaN */")
            self.line(2, f"if (WHOLE_{w} && COUNTED_{w} && !isnan(fill)) {{")
            for out in map(self.out, stored):
                self.line(3, f"if (!b) FILL_GAP({out}, 0, start);")
                self.line(3, f"FILL_GAP({out}, start + tokens, b + 1 < {n} ? {w}_starts[b + 1] : places);")
            self.line(2, "}")
        self.line(1, "}")
        if blocks:
            self.line(0, "#else /* in blocks of short segments */")
            self.block(sweep)
            self.line(0, "#endif")

    def rooms(self, sweep: Sweep) -> None:
        """Reserves memory for the values of this sweep's quantiles, as much again to find them, and memory for sums in
        order.
        """
        self.room: dict[tuple[Node, ...], tuple[str, str]] = {}
        taken = (n for step in sweep.steps if isinstance(step, Scalars) for n in step.values)
        for node in taken:
            if isinstance(node, Quantile) and node.values not in self.room:
                words = [self.signature.layouts[sweep.segments, leaf] for leaf in node.sources]
                room, size = self.free(f"values_of_{self.names[node]}"), self.free(f"number_of_{self.names[node]}")
                number = " + ".join(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in words)
                self.line(2, f"const int64_t {size} = {number};")
                self.line(2, f"double *restrict {room} = reserve(2 * {size});")
                self.room[node.values] = room, size

        self.lanes: dict[Scan, str] = {}
        for scan in (scan for one in sweep.passes for scan in one.scans):
            w = self.signature.layouts[sweep.segments, scan.into]
            self.lanes[scan] = self.free(f"values_of_{self.names[scan]}")
            size = f"{w}_offsets[b + 1] - {w}_offsets[b]"
            self.line(2, f"double *restrict {self.lanes[scan]} = reserve_several({size});")

    def picked(self, node: Quantile) -> None:
        """Writes the quantile of a segment, from the values in its room."""
        room, size = self.room[node.values]
        text = f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level)})"
        self.assign(2, "double", self.names[node], text)

    def set_aside(self, depth: int, node: Node, value: str, step: Pass, sweep: Sweep, word: str) -> None:
        """Stores a token's value for quantiles and sums in order, of this sweep and of later stages."""
        for values, (room, _) in self.room.items():
            if node in values:
                before = [self.signature.layouts[sweep.segments, v.stratum] for v in values[: values.index(node)]]
                place = " + ".join(["i", *(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in before)])
                self.line(depth, f"{room}[{place}] = {value};")
        for scan in step.scans:
            if node in scan.values:
                self.line(depth, f"{self.lanes[scan]}[i] = {value};")
        if node in sweep.saved:
            self.line(depth, f"{self.slots[node]}[TOKEN({word}, i)] = {value};")

    def tokens(self, step: Pass, sweep: Sweep) -> None:
        """Writes the loop over a segment's tokens."""
        s = sweep.segments
        self.line(0)
        for node in step.values:
            if isinstance(node, Pull) and node.target in (s, BATCH):
                readers = {u for u in step.values if node in u.operands} | {p for p in step.pushes if p.operand is node}
                if not step.wide and not (readers and readers <= self.plan.precise):
                    self.rounded_scalar(node.operand, False)
        lanes = {p: self.free(f"lanes_of_{self.plan.names[p]}") for p in step.pushes}
        if lanes:
            self.chunks(step, sweep, lanes)
        else:
            self.line(0, "#pragma omp simd")
            self.line(2, "for (int64_t i = 0; i < tokens; i++) {")
            self.body(3, step, sweep, lanes)
            self.line(2, "}")
        for scan in step.scans:
            self.line(2, f"scan({self.lanes[scan]}, tokens, {self.powers[scan]}, {int(scan.forward)});")

    def chunks(self, step: Pass, sweep: Sweep, lanes: Mapping[Push, str]) -> None:
        """Writes a loop with sums: over the whole groups of `LANES` tokens of a chunk, then over its other tokens."""
        for push in lanes:
            self.line(2, f"double {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};")
        self.line(2, "for (int64_t at = 0; at < tokens; at += CHUNK) {")
        self.line(3, "const int64_t to = at + CHUNK < tokens ? at + CHUNK : tokens;")
        self.line(3, "const int64_t others = (to - at) % LANES, whole = to - others;")
        for push, array in lanes.items():
            self.line(3, start_of(push, step.wide, array))
        self.line(3, "for (int64_t group = at; group < whole; group += LANES) {")
        self.line(0, "#pragma GCC unroll 4")
        self.line(4, "for (int lane = 0; lane < LANES; lane += ABREAST) {")
        self.line(0, "#pragma omp simd")
        self.line(5, "for (int k = lane; k < lane + ABREAST; k++) {")
        self.line(6, "const int64_t i = group + k;")
        self.body(6, step, sweep, lanes)
        self.line(5, "}")
        self.line(4, "}")
        self.line(3, "}")
        self.line(0, "#pragma omp simd")
        self.line(3, "for (int k = 0; k < others; k++) {")
        self.line(4, "const int64_t i = whole + k;")
        self.body(4, step, sweep, lanes)
        self.line(3, "}")
        for push, array in lanes.items():
            self.line(3, add_up(push, step.wide, self.names[push], array))
        self.line(2, "}")

    def body(self, depth: int, step: Pass, sweep: Sweep, lanes: Mapping[Push, str]) -> None:
        """Writes what a pass does with token `i`, which belongs to lane `k`."""
        s = sweep.segments
        word = self.signature.layouts[s, step.leaf]
        self.recall(depth, step, word)
        for node in step.values:
            self.token_value(depth, node, step, s, word)
        for push, array in lanes.items():
            self.line(depth, add_to(push, step.wide, array, self.token_operand(push.operand, step, s, step.wide)))
        for node in step.aside:
            self.set_aside(depth, node, self.token_operand(node, step, s, True), step, sweep, word)
        self.store(depth, step, s, word)

    def recall(self, depth: int, step: Pass, word: str) -> None:
        if step.recalled:
            k, node = step.recalled
            self.line(depth, f"const real {self.names[node]} = (real)LOAD(RESULT, {self.out(k)}, {self.place(word)});")

    def store(self, depth: int, step: Pass, s: str, word: str) -> None:
        for k, node in [*step.stores, *([step.kept] if step.kept else [])]:
            value = self.token_operand(node, step, s, step.wide or node in self.plan.precise)
            self.line(depth, f"STORE(RESULT, {self.out(k)}, {self.place(word)}, {value});")

    def rounded_scalar(self, node: Node, wide: bool) -> str:
        """A segment's value, in the precision of a pass over its tokens."""
        if isinstance(node, Const):
            return wide_constant(node.value) if wide else token_constant(node.value)
        if wide:
            return self.names[node]
        if node not in self.rounded:
            self.rounded[node] = self.free(f"{self.names[node]}_r")
            self.line(2, f"const real {self.rounded[node]} = (real){self.names[node]};")
        return self.rounded[node]

    def token_value(self, depth: int, node: Node, step: Pass, s: str, word: str) -> None:
        wide = step.wide or node in self.plan.precise
        kind, language = ("double", WIDE) if wide else ("real", TOKEN)
        if isinstance(node, Pull) and node.target in (s, BATCH):
            return
        if isinstance(node, Input):
            text = self.token_input(node, word, kind)
        elif isinstance(node, Scan):
            text = f"({kind}){self.in_order(node, word)}"
        elif isinstance(node, Pull):
            parent = self.called("parent", node.source, node.target)
            text = f"({kind}){self.at(node.operand, f'{parent}[{self.number(word)}]')}"
        elif isinstance(node, Const):
            text = language.constant(node.value)
        elif isinstance(node, Map):
            operands = [self.token_operand(o, step, s, wide) for o in node.inputs]
            before, text = language.write(node.body, operands, self.names[node], self.taken)
            for name, shared in before:
                self.assign(depth, kind, name, shared)
        else:
            raise BackendError(f"the C backend cannot emit {type(node).__name__} on {node.stratum}")
        self.assign(depth, kind, self.names[node], text)

    def token_operand(self, node: Node, step: Pass, s: str, wide: bool) -> str:
        """A value of a pass, in the precision of its reader."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        if isinstance(node, Pull) and node.target in (s, BATCH):
            return self.rounded_scalar(node.operand, wide)
        return self.names[node] if wide or step.wide or node not in self.plan.precise else f"((real){self.names[node]})"

    def token_input(self, node: Input, s: str, kind: str) -> str:
        if node.kind in TOKENS:
            array = self.called("token", node.kind, *node.key)
            return f"({kind})LOAD({dtype_of(array)}, {self.memory(array)}, {self.place(s)})"
        if node.kind in GIVEN:
            array = self.called("advantage")
            own = f"LOAD({dtype_of(array)}, {self.memory(array)}, {self.place(s)})"
            return f"PER_ROW ? ({kind})row_advantage : ({kind}){own}"
        return f"({kind}){self.arrays[node]}[{self.number(s)}]"

    def in_order(self, node: Scan, word: str) -> str:
        """The sum over the tokens before a token, or after it."""
        if node in self.arrays:
            return f"{self.arrays[node]}[TOKEN({word}, i)]"
        if node in self.lanes:
            return f"{self.lanes[node]}[i]"
        (value,) = node.values  # a constant, times the number of tokens before or after
        assert isinstance(value, Const)
        places = "i" if node.forward else "(tokens - 1 - i)"
        return places if value.value == 1.0 else f"({wide_constant(value.value)} * (double){places})"

    def out(self, output: Key) -> str:
        """The array that an output over tokens is written to."""
        return self.memory(self.called("result", result_of(self.plan, output)))
