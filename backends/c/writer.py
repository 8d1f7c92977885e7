"""Writes one C function: loops over segments, which are called rows here, over their tokens, and over coarser strata.

`sweeps.h` has two ways to visit rows, one after another or in blocks of short ones. The code here is the same for both.
Every coarse value is a double.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from fibration.backends.bodies import AnyNode, Functions, broken
from fibration.backends.c.language import RESERVED, TOKEN, WIDE, dtype_of, wide_constant
from fibration.compiler.arguments import GIVEN, HOLDS, TOKENS, for_each, result_of, signature
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Mix, Names, Node, Pull, Push, Quantile, Scan
from fibration.compiler.plan import Coarse, Group, Pass, Plan, Scalars, Section, Sweep, gathers
from fibration.errors import BackendError

FIBRES = "order", "members"
OWN = "row_advantage"  # the advantage of a row
DECLARED = for_each("C declarations", HOLDS, {
    "integer": "int64_t {0}", "integers": "const int64_t *restrict {0}", "floats": "const STORED({1}) *restrict {0}",
    "real": "double {0}", "reals": "const double *restrict {0}", "results": "STORED(RESULT) *restrict {0}",
    "workspace": "double *restrict {0}",
})  # fmt: skip


class Writer:
    """Has the places of a function's values, and writes its loops."""

    def __init__(self, name: str, plan: Plan, section: Section, title: str, functions: Functions) -> None:
        self.name, self.plan, self.section, self.title, self.functions = name, plan, section, title, functions
        self.signature = signature(plan)
        self.arguments, self.called, self.size = self.signature.arguments, self.signature.name, self.signature.size
        self.names = dict(plan.names)
        words = Names({*self.names.values(), *RESERVED, *(a.name for a in self.arguments)})
        self.free, self.taken = words.free, words.taken
        self.slots = {n: self.free(f"{plan.names[n]}_of") for n in plan.saved}
        self.arrays = self.slots | {a.key[0]: a.name for a in self.arguments if a.kind == "vector"}
        self.element = "b"  # of the loop that is written
        self.columns: dict[Node, str] = {}  # arrays over the rows of a sweep
        self.local: set[Node] = set()  # values that the loop has under their names
        self.lines: list[str] = []
        self.spare = plan.spare  # what stands under `#if METRICS`
        self.condition = "#if METRICS", "#endif"
        self.ended = 0  # the number of lines up to the end of such lines
        self.segments = ""  # of the sweep that is written
        self.words: dict[str, str] = {}  # by leaf, how the arguments that locate its tokens begin
        self.word = ""  # that of the tokens of the pass that is written
        self.precise: frozenset[Node] = frozenset()  # values of tokens that this pass has in float64
        self.spread: dict[tuple[Node | str, bool], str] = {}  # numbers of rows that tokens read, in either precision
        self.wanted: dict[tuple[Node | str, bool], str] = {}  # those that a pass is the first to read
        self.room: dict[tuple[Node, ...], tuple[str, str]] = {}  # memory for the values of quantiles, and its size
        self.lanes: dict[Scan, str] = {}  # memory for sums in order
        self.memory: list[str] = []  # names of memory for other sums

    def line(self, depth: int, text: str = "") -> None:
        for line in text.splitlines() or [""]:
            indent = "    " * depth + line[: len(line) - len(line.lstrip())]
            self.lines += [line] if line[:1] in ("#", "") else broken(line, indent)

    @contextmanager
    def if_metrics(self, spare: bool = True) -> Iterator[None]:
        """Lines that are compiled with metrics alone, if they are `spare`."""
        if not spare or not self.spare:
            yield
            return
        before, everything, (begin, end) = len(self.lines), self.spare, self.condition
        self.spare = frozenset()
        yield
        self.spare = everything
        if len(self.lines) == before:
            return
        if self.ended == before:
            del self.lines[before - 1]
        else:
            self.lines.insert(before, begin)
        self.lines.append(end)
        self.ended = len(self.lines)

    @contextmanager
    def macro_argument(self) -> Iterator[None]:
        """Lines inside the parentheses of a macro, where `#if` cannot stand."""
        before, self.condition, self.ended = self.condition, ("IF_METRICS(", ")"), -1
        yield
        self.condition, self.ended = before, -1

    def in_turn(self, nodes: Iterable[AnyNode]) -> Iterator[AnyNode]:
        """The nodes of the loss, then those of metrics, under whose condition the caller's lines stand."""
        nodes, spare = list(nodes), self.spare
        yield from (n for n in nodes if n not in spare)
        with self.if_metrics():
            yield from (n for n in nodes if n in spare)

    # ------------------------------------------------------------ values

    def at(self, node: Node, element: str) -> str:
        """The text of a vector's value at an element, from its array."""
        if isinstance(node, Const):
            return wide_constant(node.value)
        if node.stratum == BATCH:
            element = "0"
        elif isinstance(node, Input) and node.kind == "parameter":
            element = f"{f'({element})' if ' ' in element else element} * {self.called('stride', node)}"
        return f"{self.arrays[node]}[{element}]"

    def read(self, node: Node, wide: bool) -> str:
        """The text of a value that the loop's element has from elsewhere."""
        if isinstance(node, Quantile):
            room, size = self.room[node.values]
            return f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level, True)}, 1)"
        if isinstance(node, Scan):
            return self.in_order(node)
        if isinstance(node, Pull):
            if node.target == BATCH:
                return self.at(node.operand, "0")
            return self.at(node.operand, f"{self.called('parent', node.source, node.target)}[{self.element}]")
        if not isinstance(node, Input):
            raise BackendError(f"the C backend cannot emit {type(node).__name__} on {node.stratum}")
        if node.kind not in (*TOKENS, *GIVEN):
            return self.at(node, self.element)
        array = self.called("advantage") if node.kind in GIVEN else self.called("token", node.kind, *node.key)
        value = f"LOAD({dtype_of(array)}, {array}, AT({self.word}, i))"
        return f"PER_ROW ? {self.of_row(OWN, wide)} : {value}" if node.kind in GIVEN else value

    def operand(self, node: Node, wide: bool) -> str:
        """The text of a value at the element of the loop."""
        if self.is_of_row(node):
            return self.of_row(node.operands[0], wide)
        if not wide and node in self.precise:
            return f"((real){self.names[node]})"
        if node in self.local:
            return self.names[node]
        if node in self.columns:
            return f"{self.columns[node]}[r]"
        if isinstance(node, Pull) and node not in self.arrays:
            return self.read(node, wide)
        return self.at(node, self.element)

    def value(self, depth: int, node: Node, saved: Collection[Node], wide: bool = True) -> None:
        """Computes one value of the loop's element: in its array, in its column, or under its name."""
        kind, language = ("double", WIDE) if wide else ("real", TOKEN)
        if isinstance(node, Map):
            operands = [self.operand(o, wide) for o in node.inputs]
            before, text = language.write(node.body, operands, self.names[node], self.taken, self.functions)
            for name, part in before:
                self.assign(depth, f"const {kind} {name}", part)
        else:
            text = self.read(node, wide)
        if node in saved or node in self.columns:
            self.assign(depth, self.operand(node, wide), text)
        else:
            self.assign(depth, f"const {kind} {self.names[node]}", text)
            self.local.add(node)

    def assign(self, depth: int, to: str, text: str) -> None:
        first, *rest = text.splitlines()
        self.line(depth, "\n".join([f"{to} = {first}", *rest]) + ";")

    def text(self) -> str:
        self.line(0, f"/* {self.title} `threads` are OpenMP's.")
        width = max(len(a.name) for a in self.arguments)
        for a in self.arguments:
            self.line(0, f"   {a.name:<{width}}  {a.note.replace('None if', 'NULL if')}")
        self.lines[-1] += " */"
        given = (DECLARED[a.holds].format(a.name, dtype_of(a.name)) for a in self.arguments)
        self.line(0, f"void {self.name}({', '.join([*given, 'int threads'])})\n{{")
        for stratum, nodes in itertools.groupby(self.slots, lambda n: n.stratum):
            self.line(1, f"{'' if self.lines[-1] != '{' else 'int64_t '}size = {self.size(stratum)};")
            self.line(1, f"double {', '.join(f'VECTOR({self.slots[n]})' for n in nodes)};")
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

    # ------------------------------------------------------------ rows and their tokens

    def sweep(self, sweep: Sweep) -> None:
        s = self.segments = sweep.segments
        self.words = {leaf: self.signature.layouts[s, leaf] for leaf in sweep.leaves}
        scalars = [n for step in sweep.steps if isinstance(step, Scalars) for n in step.values]
        n, (self.word, *others) = self.size(s), self.words.values()
        total = " + ".join(f"{w}_offsets[{n}]" for w in self.words.values())
        self.line(1, f"{{ /* each {s} and its tokens */")
        blocks = f"SHORT_{self.word} && WHOLE_{self.word} && COUNTED_{self.word}"
        blocks = blocks if self.goes_in_blocks(sweep, scalars) else "0"
        self.line(2, f"enum {{ BLOCKS = {blocks}, ROWS = BLOCKS ? MOST_ROWS : 1 }};")
        pragma = f"#pragma omp parallel for schedule(dynamic, GRAIN({n}, {total})) num_threads(threads) \\"
        self.lines += [pragma, f"    if ({total} > LONG)"]  # which is one line, whatever its length
        self.line(2, f"EACH_BLOCK({n}) {{")
        if others:
            self.line(3, "const int64_t longest = 0, *const offsets = 0; /* of blocks */")
            self.line(3, "int64_t first, tokens, start; /* set for one leaf after another */")
        else:
            self.line(3, f"ROWS_FROM({self.word}, {n})")
        self.element, self.spread = "b + r", {}
        self._columns(sweep, scalars)
        self._rooms(sweep, scalars)
        for step in sweep.steps:
            if isinstance(step, Scalars):
                self._scalars(step, sweep)
                continue
            self.word = w = self.words[step.leaf]
            if others:
                self.line(0)
                self.line(3, f"first = {w}_offsets[b], tokens = {w}_offsets[b + 1] - first, start = {w}_starts[b];")
            summed = [*step.pushes, *step.aside, *step.scans]
            with self.if_metrics(self.spare.issuperset(summed) and not step.stores):
                self._pass(step, sweep)
        alone = len(self.plan.program.leaves) == 1  # between a leaf's tokens lie those of other leaves
        for array in dict.fromkeys(self.out(k) for p in sweep.passes for k, _ in p.stores) if alone else ():
            self.line(3, f"FILL_GAPS({self.word}, {n}, {array})")
        self.columns = {}
        self.line(2, "}")
        self.line(1, "}")

    def goes_in_blocks(self, sweep: Sweep, scalars: list[Node]) -> bool:
        """Whether segments only sum their tokens: no quantile, no sum in order or what may jump with it, one leaf."""
        plain = not any(isinstance(n, Quantile) for n in scalars) and not any(
            p.aside or p.found or p.scans or not self.plan.precise.isdisjoint(p.values) for p in sweep.passes
        )
        return plain and len(sweep.leaves) == 1

    def _columns(self, sweep: Sweep, scalars: list[Node]) -> None:
        """Declares arrays over rows: of sums and of values that other steps read, unless they lie in the workspace."""
        later = {o for step in sweep.steps for n in step.values for o in n.operands if o not in step.values}
        found = dict.fromkeys([*(p for one in sweep.passes for p in one.pushes), *(n for n in scalars if n in later)])
        self.columns = {n: self.names[n] for n in found if n not in sweep.saved}
        if self.columns:
            self.line(3, f"double {', '.join(f'{name}[ROWS]' for name in self.columns.values())};")

    def _scalars(self, step: Scalars, sweep: Sweep) -> None:
        """Writes scalar work on every row."""
        self.line(0)
        self.line(3, "EACH_ROW {")
        self.local = set()
        for node in self.in_turn(step.values):
            self.value(4, node, sweep.saved)
        self.line(3, "}")

    # ------------------------------------------------------------ tokens

    def _pass(self, step: Pass, sweep: Sweep) -> None:
        """Writes a loop over the tokens of rows, after the numbers of rows that it reads."""
        outer, ended = self.lines, self.ended
        self.lines, self.ended, self.wanted = [], -1, {}
        self.precise = frozenset((*step.values, *step.found)) if step.wide else self.plan.precise_in(step)
        self.element, self.local = f"TOKEN({self.word}, i)", set()
        with self.macro_argument():
            self._body(step, sweep)
            body, self.lines, self.ended = self.lines, [], -1
            self.memory += [self.free(f"lanes_{i}") for i in range(len(self.memory) + 1, len(step.pushes) + 1)]
            lanes = dict(zip(step.pushes, self.memory, strict=False))
            for push in self.in_turn(lanes):
                to = self.columns[push] if push in self.columns else f"{self.arrays[push]} + b"
                how = f"{push.reduce}, {'double' if step.wide else 'real'}"
                self.line(1, f"EACH({how}, {lanes[push]}, {to}, {self.operand(push.operand, step.wide)})")
        entries, self.lines, self.ended, self.element = self.lines, outer, ended, "b + r"
        self.line(0)
        for key in self.wanted:
            self._spread(*key)
        if self.spare == self.plan.spare:  # and not under a condition
            self.spread |= self.wanted
        sums = self.free(f"{self.name}_sums") if entries else "NOTHING"
        if entries:
            self.lines += [f"#define {sums}(EACH) \\", *(f"{line} \\" for line in entries)]
            self.lines[-1] = self.lines[-1].removesuffix(" \\")
        fetch = " ".join(f"FETCH({array})" for array in self.fetched(step, sweep))
        self.line(3, f"PASS({sums}, {fetch or 'NOTHING()'},")
        self.lines += body
        self.line(3, ")")
        for scan in self.in_turn(step.scans):
            self.line(3, f"scan({self.lanes[scan]}, tokens, {self.at(scan.discount, '0')}, {int(scan.forward)});")

    def fetched(self, step: Pass, sweep: Sweep) -> list[str]:
        """The arrays of the next row that the second pass fetches, if it writes nothing: what the first pass reads."""
        if len(sweep.passes) < 2 or step is not sweep.passes[1] or step.stores or len(sweep.leaves) > 1:
            return []
        return [self.called("token", i.kind, *i.key) for i in sweep.passes[0].reads if i.kind in TOKENS]

    def _body(self, step: Pass, sweep: Sweep) -> None:
        """Writes what a pass does with token `i`."""
        for node in self.in_turn(step.found):
            self.assign(4, f"const double {self.names[node]}", self.set_place(node))
            self.local.add(node)
        for node in self.in_turn(n for n in step.values if not (self.is_of_row(n) or isinstance(n, Const))):
            self.value(4, node, (), node in self.precise)
        for node in self.in_turn(step.aside):
            self.set_aside(node, step, sweep)
        for k, node in step.stores:
            value = self.operand(node, node in self.precise)
            self.line(4, f"STORE(RESULT, {self.out(k)}, AT({self.word}, i), {value});")

    def is_of_row(self, node: Node) -> bool:
        """Whether a token reads a number of its row, or of the batch."""
        return isinstance(node, Pull) and node.source in self.words and node.target in (self.segments, BATCH)

    def of_row(self, node: Node | str, wide: bool) -> str:
        """The text of a number of token i's row, or of the batch."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        key = node, wide
        if key not in self.spread and key not in self.wanted:
            word = OWN if isinstance(node, str) else self.names[node]
            self.wanted[key] = self.free(f"{word}_{'d' if wide else 'r'}")
        name = self.spread.get(key) or self.wanted[key]
        return f"ROW({name})" if isinstance(node, str) or node.stratum != BATCH else name

    def _spread(self, node: Node | str, wide: bool) -> None:
        """Writes the number of a row, or of the batch, in the precision of the tokens that read it."""
        kind, name = "double" if wide else "real", self.wanted[node, wide]
        if isinstance(node, str):
            given, row = self.called("advantage"), f"{self.called('rows', self.segments)}[b + r]"
            value = f"LOAD({dtype_of(given)}, {given}, {row})"
            value = f"{row} < 0 ? 0 : {value}" if self.plan.spread else value
            self.line(3, f"SPREAD_IF(PER_ROW, {kind}, {name}, {value})")
        elif node.stratum == BATCH:
            self.line(3, f"const {kind} {name} = {self.at(node, '0')};")
        else:
            self.line(3, f"SPREAD({kind}, {name}, {self.operand(node, True)})")

    def in_order(self, node: Scan) -> str:
        """The sum over the tokens before a token, or after it."""
        if node in self.arrays:
            return self.at(node, self.element)
        if node in self.lanes:
            return f"{self.lanes[node]}[i {'-' if node.forward else '+'} 1]"
        (value,) = node.values  # a constant, times the number of tokens before or after
        assert isinstance(value, Const)
        places = "i" if node.forward else "(tokens - 1 - i)"
        return places if value.value == 1.0 else f"({wide_constant(value.value)} * (double){places})"

    def out(self, output: Key) -> str:
        """The array that an output over tokens is written to."""
        return self.called("result", result_of(self.plan, output))

    # ------------------------------------------------------------ values that are set aside

    def _rooms(self, sweep: Sweep, scalars: list[Node]) -> None:
        """Declares memory for the values of this sweep's quantiles, with room to find them, and for sums in order."""
        self.room, self.lanes = {}, {}
        for node in self.in_turn(scalars):
            if isinstance(node, Quantile) and node.values not in self.room:
                room = self.free(f"values_of_{self.names[node]}", "", "_small", "_large")
                size = self.free(f"number_of_{self.names[node]}")
                self.line(3, f"const int64_t {size} = {' + '.join(map(self.size_of, node.sources))};")
                self.line(3, f"ROOM({room}, 3 * {size})")
                self.room[node.values] = room, size
        for scan in self.in_turn(scan for one in sweep.passes for scan in one.scans):
            parts = "", "_room", "_room_small", "_room_large"
            lanes = self.lanes[scan] = self.free(f"values_of_{self.names[scan]}", *parts)
            self.line(3, f"ROOM_IN_ORDER({lanes}, {self.size_of(scan.into)})")

    def size_of(self, leaf: str) -> str:
        """The number of tokens of a leaf that the row has."""
        return "{0}_offsets[b + 1] - {0}_offsets[b]".format(self.words[leaf])

    def set_place(self, node: Node, values: tuple[Node, ...] = ()) -> str:
        """The place of a token's value among `values` of a quantile, or of any."""
        values = values or next(v for v in self.room if node in v)
        before = [self.size_of(v.stratum) for v in values[: values.index(node)]]
        return f"{self.room[values][0]}[{' + '.join(['i', *before])}]"

    def set_aside(self, node: Node, step: Pass, sweep: Sweep) -> None:
        """Stores a token's value for quantiles and sums in order, of this sweep and of later stages."""
        places = [self.set_place(node, values) for values in self.room if node in values]
        places += [f"{self.lanes[scan]}[i]" for scan in step.scans if node in scan.values]
        places += [f"{self.slots[node]}[{self.element}]"] if node in sweep.saved else []
        for place in places:
            self.line(4, f"{place} = {self.operand(node, True)};")

    # ------------------------------------------------------------ coarse strata

    def group(self, group: Group, stage: Coarse) -> None:
        """Writes the loops of a group."""
        s, size = group.stratum, self.size(group.stratum)
        sums = [n for n in group.values if isinstance(n, Push)]
        writers = {Quantile: self.quantile, Scan: self.scan, Mix: self.mix}
        for node in self.in_turn(n for n in group.values if type(n) in writers):
            writers[type(node)](node)  # type: ignore[operator]
        if sums:
            order, members = (self.called(kind, sums[0].source, s) for kind in FIBRES)
            self.line(1, f"PUSH({order}, {members}, {size},")
            with self.macro_argument():
                for push in self.in_turn(sums):
                    self.line(2, f"{{{push.reduce}, {self.arrays[push]}, {self.arrays[push.operand]}}},")
            self.line(1, ");")
        if gathers(group.values[0]):
            return
        self.line(1, f"/* {'the batch' if s == BATCH else f'each {s}'} */")
        if s != BATCH:
            # of segments there are many: there vector code is worth the time that compilers take for it
            simd = "simd " if any(s == sweep.segments for sweep in self.plan.sweeps) else ""
            self.line(1, f"#pragma omp parallel for {simd}num_threads(threads) if (parallel : {size} > LONG)")
        self.line(1, "{" if s == BATCH else f"for (int64_t b = 0; b < {size}; b++) {{")
        self.element, self.local = "b", set()
        for node in self.in_turn(group.values):
            self.value(2, node, stage.saved)
        self.line(1, "}")

    def quantile(self, node: Quantile) -> None:
        """Writes a quantile of values that sweeps have set aside."""
        made = [(self.slots[v], *(self.called(k, v.stratum, node.target) for k in FIBRES)) for v in node.values]
        parts = ", ".join(f"{{{', '.join(part)}}}" for part in made)
        parameter = isinstance(node.level, Input) and node.level.kind == "parameter"
        stride = self.called("stride", node.level) if parameter else "1"
        level = f"(const double[]){{{wide_constant(node.level.value)}}}, 0" if isinstance(node.level, Const) else ""
        level = level or f"{self.arrays[node.level]}, {stride}"
        self.line(1, f"quantiles({self.arrays[node]}, (const Part[]){{{parts}}}, {len(made)}, {level},")
        self.line(2, f"{self.size(node.target)}, threads);")

    def scan(self, node: Scan) -> None:
        """Writes a sum in order, of values that sweeps have set aside or of a coarser stratum."""
        values = ", ".join("0" if isinstance(v, Const) else self.arrays[v] for v in node.values)
        same = ", ".join(wide_constant(v.value) if isinstance(v, Const) else "0" for v in node.values)
        sizes = ", ".join(self.size(s) for s in node.sources)
        order, members = (self.called(kind, *node.order) for kind in ("sequence", "sequence_members"))
        self.line(1, f"scans({self.arrays[node]}, {node.sources.index(node.into)}, {len(node.values)},")
        self.line(2, f"(const double *const[]){{{values}}}, (const double[]){{{same}}}, (const int64_t[]){{{sizes}}},")
        self.line(2, f"{order}, {members}, {self.at(node.discount, '0')}, {int(node.forward)},")
        self.line(2, f"{self.size(node.target)}, threads);")

    def mix(self, node: Mix) -> None:
        """Writes a product with a matrix, or with its transpose."""
        shape, places = [self.size(node.into), self.size(node.of)], [self.size(node.of), "1"]
        rows, columns = shape[::-1] if node.transposed else shape
        down, right = places[::-1] if node.transposed else places
        matrix, out, x = self.called("matrix", node.matrix), self.arrays[node], self.arrays[node.operand]
        self.line(1, f"mix({out}, {matrix}, {down}, {right}, {x}, {rows}, {columns}, threads);")
