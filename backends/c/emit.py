"""Writes a fused plan as one standalone, readable C file (C11 and OpenMP).

This module writes the loops over segments, and `passes.py` those over their tokens; their bodies come from the plan. A
pass in float64 sums into doubles. A pass in the tokens' precision sums chunks of `CHUNK` tokens in that precision, and
the chunks in double. The order of a sum depends on nothing but the segment's tokens and the dtypes: chunks and lanes
(`fibres.h`) begin at its first token, and long coarse sums are cut at fixed places. Sweeps over short segments are in
`blocks.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from fibration.backends.bodies import Functions, functions_of
from fibration.backends.c.language import FUNCTIONS, PARTS, RESERVED, SELECTING, TOKEN, WIDE, dtype_of
from fibration.backends.c.passes import TokenPasses
from fibration.backends.c.precision import Precisions
from fibration.compiler.arguments import (
    FLOATS,
    GIVEN,
    HOLDS,
    INTEGER,
    INTEGERS,
    REAL,
    REALS,
    RESULTS,
    WORKSPACE,
    Argument,
    for_each,
    signature,
)
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import BATCH, Const, Node, Pull, Quantile, Scan
from fibration.compiler.keys import Key
from fibration.compiler.plan import Plan, Scalars, Spread, Sweep
from fibration.compiler.program import Program
from fibration.compiler.reuse import find_aside, keep, read_quantile_values


def plan(program: Program, rows: str, spread: Spread | None = None, metrics: Collection[Key] = ()) -> Plan:
    """Fused sweeps over the tokens. Arithmetic is the main cost, so the coefficients' memory keeps a value."""
    fused = sweeps(read_quantile_values(program), rows, RESERVED, spread, metrics=metrics)
    return keep(find_aside(fused), Key("coefficients"))


def emit(header: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a file with one function per plan, or one per section if the batch is spread over ranks.

    `header` is a comment block of lines that start with '#'.
    """
    lines = (line.removeprefix("#").removeprefix(" ").replace("*/", "* /") for line in header.splitlines())
    top = "/*\n" + "\n".join(lines) + "\n*/"
    found = dict.fromkeys(word for plan in plans.values() for word in signature(plan).layouts.values())
    variants = "".join(VARIANT.format(s=word) for word in found)
    every = (a for plan in plans.values() for a in signature(plan).arguments if a.holds == FLOATS)
    dtypes = "".join(DTYPE.format(macro=dtype_of(name)) for name in dict.fromkeys(a.name for a in every))
    defined = functions_of(plans, RESERVED, copies=2)  # loops over tokens are written twice
    loops = []
    for name, plan in plans.items():
        if plan.of is not None:
            continue
        sections = [(f, section) for f, section in plan.functions(name).items() if section]
        texts = [_Function(f, plan, section, titles[name], defined).text() for f, section in sections]
        loops.append("\n".join([f"\n#ifndef WITHOUT_{name}", *texts, "#endif"]))
    bodies = "\n".join(["", *_defined(defined, "\n".join(loops))])
    parts = [top, f'{dtypes}{variants}#include "{SHARED}"', bodies, *loops]
    return "\n".join(part.rstrip() + "\n" for part in parts)


@cache
def shared() -> str:
    """What generated C files have in common. `fibration compile -o` writes it beside them."""
    text = "\n".join(path.read_text() for path in PARTS.values())
    functions = (f"#define {f}_real JOIN({f}_, REAL)\n" for f in (*FUNCTIONS, *SELECTING))
    return text.replace("{functions}", "".join(functions))


def _defined(functions: Functions, text: str) -> Iterator[str]:
    """Scalar bodies as functions, in the precisions in which `text` calls them."""
    for body, function in functions.items():
        given, ways = function.parameters, (("double", WIDE), ("real", TOKEN))
        made = [(kind, way) for kind, way in ways if f"{function.name}{way.suffix}(" in text]
        yield from [f"/* {function.about} */"] * bool(made)
        for kind, language in made:
            before, value = language.write(body, given, "part", RESERVED | set(given))
            lines = [*(f"const {kind} {name} = {part};" for name, part in before), f"return {value};"]
            head = f"MATH {kind} {function.name}{language.suffix}({', '.join(f'{kind} {word}' for word in given)})"
            yield "\n".join([head, "{", textwrap.indent("\n".join(lines), "    "), "}"])


SHARED = "fibration.h"
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

WITH_METRICS = """\
#ifndef METRICS /* 0: J and its coefficients alone */
#define METRICS 1
#endif
"""

DECLARED = for_each("C declarations", HOLDS, {
    INTEGER: "int64_t {0}", REAL: "double {0}", INTEGERS: "const int64_t *restrict {0}",
    REALS: "const double *restrict {0}", WORKSPACE: "double *restrict {0}", FLOATS: "const STORED({1}) *restrict {0}",
    RESULTS: "STORED(RESULT) *restrict {0}",
})  # fmt: skip


def declared(argument: Argument) -> str:
    return DECLARED[argument.holds].format(argument.name, dtype_of(argument.name))


class _Function(TokenPasses):
    def text(self) -> str:
        self.halves: dict[Node, str] = {}  # names of float64 values in the tokens' precision
        self.precisions = Precisions(self.plan)
        self.line(0, f"/* {self.title}")
        width = max(len(a.name) for a in self.arguments)
        for a in self.arguments:
            self.line(0, f"   {a.name:<{width}}  {a.note}")
        layout = textwrap.wrap(f"Vectors in the workspace, in this order: {self.plan.layout()}", 110)
        self.line(0, "   " + "\n   ".join(layout) + " */")
        given = ", ".join(word.replace(" ", "\0") for word in [*map(declared, self.arguments), "int threads"])
        lines = textwrap.wrap(given, 112, break_long_words=False)  # a line ends between arguments
        self.line(0, "\n    ".join([f"void {self.name}(", *lines]).replace("\0", " ") + ")\n{")
        unused = ["threads", *(a.name for a in self.arguments if a.may_lack)]
        self.line(1, ", ".join(f"(void){word}" for word in unused) + ";")
        for node, array in self.slots.items():
            self.line(1, f"double *restrict {array} = work; work += {self.size(node.stratum)};")
        for stage in self.section:
            self.line(0)
            if isinstance(stage, Sweep):
                stored = any(p.stores for p in stage.passes)
                with self.if_metrics(self.spare.issuperset(stage.saved) and not stored):
                    self.sweep(stage)
            else:
                for group in stage.groups:
                    self.group(group, stage)
        self.line(0, "}")
        return "\n".join(self.lines)

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
        for node in self.in_turn(wanted):
            if node not in computed and not isinstance(node, Const):
                self.line(2, f"const double {self.names[node]} = {self.at(node, 'b')};")
        if any(i.kind in GIVEN for p in sweep.passes for i in p.reads):
            self.line(2, f"const double row_advantage = {self.row_advantage(sweep, 'b', 'double')};")
        self.rounded = {}
        self.rooms(sweep)
        for step in sweep.steps:
            if isinstance(step, Scalars):
                for node in self.in_turn(step.values):
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
                summed = [*step.pushes, *step.aside, *step.scans]
                with self.if_metrics(self.spare.issuperset(summed) and not step.stores):
                    self.tokens(step, sweep)
        for node in self.in_turn(sweep.saved):
            if node.stratum not in self.plan.program.leaves:
                self.line(2, f"{self.arrays[node]}[b] = {self.names[node]};")
        for node, room in self.released.items():
            with self.if_metrics(node in self.spare):
                self.line(2, f"release({room});")
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
        self.released: dict[Node, str] = {}
        taken = (n for step in sweep.steps if isinstance(step, Scalars) for n in step.values)
        for node in self.in_turn(taken):
            if isinstance(node, Quantile) and node.values not in self.room:
                words = [self.signature.layouts[sweep.segments, leaf] for leaf in node.sources]
                room, size = (
                    self.free(f"values_of_{self.names[node]}", "", "_small"),
                    self.free(f"number_of_{self.names[node]}"),
                )
                number = " + ".join(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in words)
                self.line(2, f"const int64_t {size} = {number};")
                self.line(2, f"_Alignas(64) double {room}_small[3 * SHORT];")
                self.line(2, f"double *restrict {room} = reserve_beyond({room}_small, 3 * SHORT, 3 * {size});")
                self.room[node.values], self.released[node] = (room, size), f"{room}, {room}_small"

        self.lanes: dict[Scan, str] = {}
        for scan in self.in_turn(scan for one in sweep.passes for scan in one.scans):
            w = self.signature.layouts[sweep.segments, scan.into]
            self.lanes[scan] = self.free(f"values_of_{self.names[scan]}", "", "_small")
            size = f"{w}_offsets[b + 1] - {w}_offsets[b]"
            self.line(2, f"_Alignas(64) double {self.lanes[scan]}_small[SEVERAL];")
            self.line(2, f"double *restrict {self.lanes[scan]} = reserve_several({self.lanes[scan]}_small, {size});")
            self.released[scan] = f"{self.lanes[scan]} - WIDTH, {self.lanes[scan]}_small"

    def picked(self, node: Quantile) -> None:
        """Writes the quantile of a segment, from the values in its room."""
        room, size = self.room[node.values]
        text = f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level)}, 1)"
        self.assign(2, "double", self.names[node], text)
