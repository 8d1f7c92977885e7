"""Fused plan → one standalone C file (C11 and OpenMP), made to be read.

The skeletons here are the loops; the bodies come from the plan. A pass in float64 sums straight into doubles; a pass
in the tokens' precision sums chunks of `CHUNK` tokens in that precision and the chunks in double. No sum depends on
the number of threads: a segment is one thread's, and long coarse sums are cut at fixed places.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from fibration.backends.bodies import Language, ternary
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
from fibration.compiler.ir import BATCH, SCALAR_ARITY, Const, Input, Map, Mix, Node, Pull, Push, Quantile
from fibration.compiler.keys import Key, Names
from fibration.compiler.plan import Coarse, Group, Pass, Plan, Scalars, Section, Spread, Sweep
from fibration.compiler.program import Program
from fibration.compiler.reuse import keep
from fibration.errors import BackendError

PARTS = {part: Path(__file__).with_name(f"{part}.h") for part in ("math", "storage", "fibres", "matrix", "quantiles")}
# One row per scalar operator of the IR, but for the choice. Functions are those of math.h.
_DOUBLE, _FLOAT = (
    set(re.findall(rf"^MATH {kind} (\w+)_{precision}\({kind} x\)", PARTS["math"].read_text(), re.MULTILINE))
    for kind, precision in (("double", "f64"), ("float", "f32"))
)
FUNCTIONS = [op for op in SCALAR_ARITY if op in _DOUBLE & _FLOAT]
OPERATORS = {
    "stop": "{}",
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "lt": "{} < {}", "le": "{} <= {}", "and": "{} & {}", "or": "{} | {}", "not": "!{}",
    **{function: f"{function}_T({{}})" for function in sorted(_DOUBLE & _FLOAT)},
}  # fmt: skip
INFIX = frozenset({"add", "sub", "mul", "div", "neg", "lt", "le", "and", "or", "not", "select"})
KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Alignas _Alignof
_Atomic _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert _Thread_local asm typeof bool true false main
""".split()
SKELETON_WORDS = """
real row_advantage b i k at to from first tokens start threads places fill work fibre_sum fibre_max push_sum push_max
AT mix mix_transposed TOKEN LOAD STORE INFINITY NAN CHUNK LONG REAL RESULT PER_ROW FILL_GAP errno signal linux unix
int64_t uint16_t uint32_t uint64_t int32_t size_t memcpy abs reserve quantile quantiles FEW SAMPLE
""".split()
PRECISIONS = ("f32", "f64", "real")
RESERVED = frozenset({*KEYWORDS, *SKELETON_WORDS, *FUNCTIONS, *(f"{f}_{p}" for f in FUNCTIONS for p in PRECISIONS)})


def wide_constant(value: float) -> str:
    if math.isfinite(value):
        return repr(value) if value >= 0 else f"({value!r})"
    return "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)")


def token_constant(value: float) -> str:
    """In the tokens' precision: whole numbers are exact in any, others are rounded once."""
    if math.isfinite(value) and abs(value) < 2**24 and value == int(value):
        return f"{value!r}f" if value >= 0 else f"({value!r}f)"
    return f"(real){wide_constant(value)}"


def _language(precision: str, constant) -> Language:  # type: ignore[no-untyped-def]
    operators = {k: v.replace("_T(", f"_{precision}(") for k, v in OPERATORS.items()}
    # compilers make branches of a comparison with a choice inside, and no vector code
    return Language("C", operators, constant, ternary, INFIX, named_conditions=False, compared=frozenset({"lt", "le"}))


WIDE, TOKEN = _language("f64", wide_constant), _language("real", token_constant)


def plan(program: Program, rows: str, spread: Spread | None = None) -> Plan:
    """Fused sweeps over the tokens; arithmetic is what costs, so that a result's memory keeps values for a while."""
    fused = sweeps(program, rows, RESERVED, spread)
    return keep(fused, Key("coefficients"))


def emit(header: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a file with one function per plan, or per section of it where a batch is spread over ranks.

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
    selecting = any(isinstance(n, Quantile) for plan in plans.values() for n in plan.program.nodes())
    parts += ["\n" + _part("quantiles")] if selecting else []
    for name, plan in plans.items():
        sections = [(f, section) for f, section in plan.functions(name).items() if section]
        texts = [_Function(f, plan, section, titles[name]).text() for f, section in sections]
        parts.append("\n".join([f"\n#ifndef WITHOUT_{name}", *texts, "#endif"]))
    return "\n".join(part.rstrip() + "\n" for part in parts)


@cache
def _part(name: str) -> str:
    """C that every generated file takes along, written by hand."""
    return PARTS[name].read_text()


VARIANT = """\
#ifndef WHOLE_{s} /* each {s}'s tokens lie next to each other; otherwise {s}_positions says where they are */
#define WHOLE_{s} 1
#endif
#ifndef COUNTED_{s} /* tokens are numbered {s} by {s}; otherwise {s}_tokens says their numbers */
#define COUNTED_{s} 1
#endif
"""

DTYPE = """\
#ifndef {macro}
#define {macro} f32
#endif
"""

LACKING = {"positions": "WHOLE", "tokens": "COUNTED"}  # the macro of a layout in which these lack

DECLARED = for_each("C declarations", HOLDS, {
    INTEGER: "int64_t {0}", REAL: "double {0}", INTEGERS: "const int64_t *restrict {0}",
    REALS: "const double *restrict {0}", WORKSPACE: "double *restrict {0}", FLOATS: "const STORED({1}) *restrict {0}",
    RESULTS: "STORED(RESULT) *restrict {0}",
})  # fmt: skip


def dtype_of(argument: str) -> str:
    """The macro that says in which dtype a tensor of floats is stored."""
    return f"DTYPE_{argument}"


def declared(argument: Argument) -> str:
    return DECLARED[argument.holds].format(argument.name, dtype_of(argument.name))


REDUCTIONS = {"sum": "+", "max": "max"}  # OpenMP's words


def reductions(parts: Mapping[Push, str]) -> str:
    """The clauses that let a loop add up in any order."""
    named = {sign: ", ".join(p for push, p in parts.items() if push.reduce == r) for r, sign in REDUCTIONS.items()}
    return "".join(f" reduction({sign} : {chosen})" for sign, chosen in named.items() if chosen)


class _Function:
    def __init__(self, name: str, plan: Plan, section: Section, title: str) -> None:
        self.name, self.plan, self.section, self.title = name, plan, section, title
        self.signature = signature(plan)
        self.arguments, self.called, self.size = self.signature.arguments, self.signature.name, self.signature.size
        self.names = dict(plan.names)
        words = Names({*self.names.values(), *RESERVED, *(a.name for a in self.arguments)})
        self.free, self.taken = words.free, words.taken
        self.slots = {n: self.free(f"{plan.names[n]}_of") for n in plan.saved}
        self.arrays = dict(self.slots)
        self.arrays |= {a.key[0]: a.name for a in self.arguments if a.kind == "vector"}
        self.rounded: dict[Node, str] = {}
        self.lines: list[str] = []

    def line(self, depth: int, text: str = "") -> None:
        self.lines += [textwrap.indent(line, "    " * depth) for line in text.splitlines() or [""]]

    def text(self) -> str:
        self.line(0, f"/* {self.title}")
        width = max(len(a.name) for a in self.arguments)
        for a in self.arguments:
            self.line(0, f"   {a.name:<{width}}  {a.note}")
        self.line(0, f"   The workspace holds, each [elements of its stratum]: {self._layout()} */")
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

    # ------------------------------------------------------------ where values are

    def at(self, node: Node, element: str) -> str:
        """A vector's value at an element: from its array."""
        if isinstance(node, Const):
            return wide_constant(node.value)
        if node.stratum == BATCH:
            element = "0"
        elif isinstance(node, Input) and node.kind == "parameter":
            element = f"{element} * {self.called('stride', node)}"
        return f"{self.arrays[node]}[{element}]"

    def load(self, node: Node, element: str) -> str:
        """The value of a coarse node that this loop does not compute itself."""
        if isinstance(node, Pull) and node not in self.arrays:
            return self.gathered(node, element)
        return self.at(node, element)

    def gathered(self, node: Pull, element: str) -> str:
        if node.target == BATCH:
            return self.at(node.operand, "0")
        return self.at(node.operand, f"{self.called('parent', node.source, node.target)}[{element}]")

    # ------------------------------------------------------------ coarse strata

    def group(self, group: Group, stage: Coarse) -> None:
        s = group.stratum
        size = self.size(s)
        for quantile in group.quantiles:
            self.quantile(quantile)
        if group.quantiles:
            return
        if group.source:
            for push in group.values:
                if isinstance(push, Mix):
                    self.mix(push)
                    continue
                assert isinstance(push, Push)
                out, x = self.arrays[push], self.arrays[push.operand]
                order, members = (self.called(kind, push.source, s) for kind in ("order", "members"))
                self.line(1, f"push_{push.reduce}({out}, {x}, {order}, {members}, {size}, threads);")
            return
        self.line(1, f"/* every {s} */")
        if s != BATCH:
            self.line(1, f"#pragma omp parallel for num_threads(threads) if ({size} > LONG)")
        self.line(1, f"for (int64_t b = 0; b < {size}; b++) {{")
        self.loads(2, group.values, set(group.values), "b")
        for node in group.values:
            self.value(2, node, "b")
        for node in group.values:
            if node in stage.saved:
                self.line(2, f"{self.arrays[node]}[b] = {self.names[node]};")
        self.line(1, "}")

    def quantile(self, node: Quantile) -> None:
        """Of the values that sweeps have set aside."""
        values = ", ".join(self.slots[v] for v in node.values)
        order, members = (
            ", ".join(self.called(kind, s, node.target) for s in node.sources) for kind in ("order", "members")
        )
        parameter = isinstance(node.level, Input) and node.level.kind == "parameter"
        stride = self.called("stride", node.level) if parameter else "1"
        level = self.arrays.get(node.level, "")
        if isinstance(node.level, Const):
            level, stride = f"(const double[]){{{wide_constant(node.level.value)}}}", "0"
        self.line(1, f"quantiles({self.arrays[node]}, {len(node.values)}, (const double *const[]){{{values}}},")
        self.line(2, f"(const int64_t *const[]){{{order}}}, (const int64_t *const[]){{{members}}},")
        self.line(2, f"{level}, {stride}, {self.size(node.target)}, threads);")

    def mix(self, node: Mix) -> None:
        """A product with a matrix, or with its transpose."""
        rows, columns = self.size(node.into), self.size(node.of)
        call = "mix_transposed" if node.transposed else "mix"
        out, x = self.arrays[node], self.arrays[node.operand]
        self.line(1, f"{call}({out}, {self.called('matrix', node.matrix)}, {x}, {rows}, {columns}, threads);")

    def loads(self, depth: int, values: Iterable[Node], inside: set[Node], element: str) -> None:
        """Bring the operands that come from memory into scalars of their own names."""
        wanted = {o: None for n in values if not isinstance(n, Pull) for o in n.operands if o not in inside}
        for node in wanted:
            if not isinstance(node, Const):
                self.line(depth, f"const double {self.names[node]} = {self.load(node, element)};")

    def value(self, depth: int, node: Node, element: str) -> None:
        """Compute one coarse value under its name, in double."""
        if isinstance(node, Pull):
            self.line(depth, f"const double {self.names[node]} = {self.gathered(node, element)};")
        elif isinstance(node, Map):
            operands = [self.operand(o) for o in node.inputs]
            before, text = WIDE.write(node.body, operands, self.names[node], self.taken)
            for name, part in [*before, (self.names[node], text)]:
                self.assign(depth, "double", name, part)
        else:
            raise BackendError(f"the C backend cannot emit {type(node).__name__}")

    def operand(self, node: Node) -> str:
        return wide_constant(node.value) if isinstance(node, Const) else self.names[node]

    def assign(self, depth: int, kind: str, name: str, text: str) -> None:
        first, *rest = text.splitlines()
        self.line(depth, "\n".join([f"const {kind} {name} = {first}", *rest]) + ";")

    # ------------------------------------------------------------ sweeps

    def sweep(self, sweep: Sweep) -> None:
        s = sweep.segments
        n, words = self.size(s), [self.signature.layouts[s, leaf] for leaf in sweep.leaves]
        total = " + ".join(f"{w}_offsets[{n}]" for w in words)
        self.line(1, f"/* sweep over {s} */")
        self.line(0, f"#pragma omp parallel for schedule(dynamic, GRAIN({n}, {total})) num_threads(threads) \\")
        self.line(1, f"if ({total} > LONG)")
        self.line(1, f"for (int64_t b = 0; b < {n}; b++) {{")
        if len(words) == 1:
            self.line(2, f"const int64_t first = {words[0]}_offsets[b], tokens = {words[0]}_offsets[b + 1] - first;")
            self.line(2, f"const int64_t start = {words[0]}_starts[b];")
            self.line(2, "(void)first, (void)start;")
        else:
            self.line(2, "int64_t first, tokens, start; /* of one leaf after the other */")
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
            row = f"{self.called('rows', s)}[b]"
            here = f"PER_ROW && {row} >= 0" if self.plan.spread else "PER_ROW"
            given = self.called("advantage")
            load = f"LOAD({dtype_of(given)}, {given}, {row})"
            self.line(2, f"const double row_advantage = {here} ? (double){load} : 0;")
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
        stored = [k for p in sweep.passes for k, _ in p.stores]
        if stored and len(self.plan.program.leaves) == 1:
            (w,) = words
            self.line(2, f"if (WHOLE_{w} && COUNTED_{w}) {{ /* masked places before and after */")
            for out in map(self.out, stored):
                self.line(3, f"if (!b) FILL_GAP({out}, 0, start);")
                self.line(3, f"FILL_GAP({out}, start + tokens, b + 1 < {n} ? {w}_starts[b + 1] : places);")
            self.line(2, "}")
        self.line(1, "}")

    def rooms(self, sweep: Sweep) -> None:
        """Room for the values that this sweep takes quantiles of, and as much beside it to look for them."""
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

    def picked(self, node: Quantile) -> None:
        """The quantile of a segment, of the values in its room."""
        room, size = self.room[node.values]
        text = f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level)})"
        self.assign(2, "double", self.names[node], text)

    def set_aside(self, depth: int, node: Node, value: str, sweep: Sweep, word: str) -> None:
        """A token's value, for quantiles of this sweep and of later stages."""
        for values, (room, _) in self.room.items():
            if node in values:
                before = [self.signature.layouts[sweep.segments, v.stratum] for v in values[: values.index(node)]]
                place = " + ".join(["i", *(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in before)])
                self.line(depth, f"{room}[{place}] = {value};")
        if node in sweep.saved:
            self.line(depth, f"{self.slots[node]}[TOKEN({word}, i)] = {value};")

    def tokens(self, step: Pass, sweep: Sweep) -> None:
        """The loop over a segment's tokens."""
        s = sweep.segments
        word = self.signature.layouts[s, step.leaf]
        kind = "double" if step.wide else "real"
        self.line(0)
        for node in step.values:
            if isinstance(node, Pull) and node.target in (s, BATCH):
                readers = {u for u in step.values if node in u.operands} | {p for p in step.pushes if p.operand is node}
                if not step.wide and not (readers and readers <= self.plan.precise):
                    self.rounded_scalar(node.operand, False)
        parts = {p: self.free(f"part_{self.plan.names[p]}") for p in step.pushes}
        for push in parts:
            self.line(2, f"double {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};")
        if parts:
            self.line(2, "for (int64_t at = 0; at < tokens; at += CHUNK) {")
            self.line(3, "const int64_t to = at + CHUNK < tokens ? at + CHUNK : tokens;")
        precision = "f64" if step.wide else "real"
        start = {"sum": f"{kind} {{}} = 0;", "max": f"ordered_{precision} {{}} = order_{precision}(-INFINITY);"}
        add = {"sum": "{0} += {1};", "max": f"{{0}} = MORE({{0}}, order_{precision}({{1}}));"}
        end = {"sum": "{0} += {1};", "max": f"{{0}} = MORE({{0}}, unorder_{precision}({{1}}));"}
        for push, part in parts.items():
            self.line(3, start[push.reduce].format(part))
        depth, bounds = (3, "int64_t i = at; i < to") if parts else (2, "int64_t i = 0; i < tokens")
        self.line(0, f"#pragma omp simd{reductions(parts)}")
        self.line(depth, f"for ({bounds}; i++) {{")
        if step.recalled:
            k, node = step.recalled
            self.line(depth + 1, f"const real {self.names[node]} = (real)LOAD(RESULT, {self.out(k)}, AT({word}, i));")
        for node in step.values:
            self.token_value(depth + 1, node, step, s, word)
        for push, part in parts.items():
            self.line(depth + 1, add[push.reduce].format(part, self.token_operand(push.operand, step, s, step.wide)))
        for node in step.aside:
            self.set_aside(depth + 1, node, self.token_operand(node, step, s, True), sweep, word)
        for k, node in [*step.stores, *([step.kept] if step.kept else [])]:
            value = self.token_operand(node, step, s, step.wide or node in self.plan.precise)
            self.line(depth + 1, f"STORE(RESULT, {self.out(k)}, AT({word}, i), {value});")
        self.line(depth, "}")
        for push, part in parts.items():
            self.line(3, end[push.reduce].format(self.names[push], part))
        if parts:
            self.line(2, "}")

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
        elif isinstance(node, Pull):
            parent = self.called("parent", node.source, node.target)
            text = f"({kind}){self.at(node.operand, f'{parent}[TOKEN({word}, i)]')}"
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
        """A value of a pass, in the precision of what reads it."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        if isinstance(node, Pull) and node.target in (s, BATCH):
            return self.rounded_scalar(node.operand, wide)
        return self.names[node] if wide or step.wide or node not in self.plan.precise else f"((real){self.names[node]})"

    def token_input(self, node: Input, s: str, kind: str) -> str:
        if node.kind in TOKENS:
            array = self.called("token", node.kind, *node.key)
            return f"({kind})LOAD({dtype_of(array)}, {array}, AT({s}, i))"
        if node.kind in GIVEN:
            array = self.called("advantage")
            return f"PER_ROW ? ({kind})row_advantage : ({kind})LOAD({dtype_of(array)}, {array}, AT({s}, i))"
        return f"({kind}){self.arrays[node]}[TOKEN({s}, i)]"

    def out(self, output: Key) -> str:
        """The array that an output over tokens is written to."""
        return self.called("result", result_of(self.plan, output))
