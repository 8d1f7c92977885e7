"""C code of sweeps: loops over segments, which are called rows here, and the loops over their tokens.

`sweeps.h` has two ways to visit rows, one after another or in blocks of short ones. The code here is the same for both.
"""

from __future__ import annotations

from fibration.backends.c.coarse import CoarseStages
from fibration.backends.c.language import TOKEN, WIDE, dtype_of, wide_constant
from fibration.backends.c.precision import Precisions
from fibration.compiler.arguments import FLOATS, GIVEN, TOKENS, result_of
from fibration.compiler.ir import BATCH, Const, Input, Map, Node, Pull, Quantile, Scan
from fibration.compiler.keys import Key
from fibration.compiler.plan import Pass, Scalars, Sweep
from fibration.errors import BackendError

OWN = "row_advantage"  # the array of advantages per row


class Sweeps(CoarseStages):
    """Writes the sweeps of a function."""

    precisions: Precisions
    halves: dict[Node, str]  # names of float64 values in the tokens' precision
    here: dict[str, str]  # tensors over tokens, at the places that AT has
    spread: dict[tuple[Node | str, bool], str]  # numbers of rows that tokens read, in either precision
    wanted: dict[tuple[Node | str, bool], str]  # those that a pass is the first to read
    always: set[tuple[Node | str, bool]]  # those of them that not only metrics read
    outside: frozenset[Node]  # what stands under the pass's condition for metrics
    room: dict[tuple[Node, ...], tuple[str, str]]  # memory for the values of quantiles, and its size
    lanes: dict[Scan, str]  # memory for sums in order
    memory: list[str]  # names of memory for other sums
    powers: dict[Scan, str]

    def sweep(self, sweep: Sweep) -> None:
        s, leaves = sweep.segments, self.plan.program.leaves
        n, words = self.size(s), [self.signature.layouts[s, leaf] for leaf in sweep.leaves]
        total = " + ".join(f"{w}_offsets[{n}]" for w in words)
        in_blocks, word = self.goes_in_blocks(sweep), words[0]
        self.line(1, f"{{ /* each {s} and its tokens */")
        blocks = f"SHORT_{word} && WHOLE_{word} && COUNTED_{word}" if in_blocks else "0"
        self.line(2, f"enum {{ BLOCKS = {blocks}, ROWS = BLOCKS ? MOST_ROWS : 1 }};")
        self.powers = {scan: self.free(f"powers_of_{self.names[scan]}") for p in sweep.passes for scan in p.scans}
        for scan, powers in self.powers.items():
            self.line(2, f"double {powers}[WIDTH + 1];")
            self.line(2, f"powers_of({powers}, {self.at(scan.discount, '0')});")
        pragma = f"#pragma omp parallel for schedule(dynamic, GRAIN({n}, {total})) num_threads(threads) \\"
        self.lines += [pragma, f"    if ({total} > LONG)"]  # which is one line, whatever its length
        self.line(2, f"for (int64_t b = 0; b < {n}; b += ROWS) {{")
        if len(words) == 1:
            self.line(3, f"ROWS_FROM({word}, {n})")
        else:
            self.line(3, "const int64_t rows = 1, longest = 0, *const offsets = 0; /* of blocks */")
            self.line(3, "int64_t first, tokens, start; /* set for one leaf after another */")
        self.element, self.spread, self.halves = "b + r", {}, {}
        results = self._tensors(sweep)
        self._columns(sweep)
        self.rooms(sweep)
        for step in sweep.steps:
            if isinstance(step, Scalars):
                self._scalars(step, sweep)
            else:
                if len(words) > 1:
                    w = self.signature.layouts[s, step.leaf]
                    self.line(0)
                    self.line(3, f"first = {w}_offsets[b], tokens = {w}_offsets[b + 1] - first, start = {w}_starts[b];")
                summed = [*step.pushes, *step.aside, *step.scans]
                with self.if_metrics(self.spare.issuperset(summed) and not step.stores):
                    self._pass(step, sweep)
        for node, room in self.released.items():
            with self.if_metrics(node in self.spare):
                self.line(3, f"release({room});")
        stored = {self.out(k) for p in sweep.passes for k, _ in p.stores}
        for array in results:
            if in_blocks:
                self.line(3, f"COPY_BACK({self.here[array]}, {array})")
            if array in stored and len(leaves) == 1:
                self.line(3, f"FILL_GAPS({word}, {n}, {array})")
        self.columns = {}
        self.line(2, "}")
        self.line(1, "}")

    def goes_in_blocks(self, sweep: Sweep) -> bool:
        """Whether segments only sum their tokens: no quantile, no sum in order or what may jump with it, one leaf."""
        scalars = [n for step in sweep.steps if isinstance(step, Scalars) for n in step.values]
        plain = not any(isinstance(n, Quantile) for n in scalars) and not any(
            p.aside or p.found or p.scans or not self.plan.precise.isdisjoint(p.values) for p in sweep.passes
        )
        return plain and len(sweep.leaves) == 1

    def _tensors(self, sweep: Sweep) -> list[str]:
        """Writes where the tensors of a sweep lie. Returns those of results."""
        read = {i for p in sweep.passes for i in p.reads}
        per_row = any(i.kind in GIVEN for i in read)
        self.here = {}
        in_blocks = self.goes_in_blocks(sweep)
        for a in self.arguments:
            own = a.kind == "advantage" and per_row
            if a.holds == FLOATS and (own or any((i.kind, *i.key) == a.key for i in read)):
                self._here("const", dtype_of(a.name), a.name, "!PER_ROW" if own else "1", in_blocks)
        made = {p.kept for p in sweep.passes}
        recalled = {p.recalled[0] for p in sweep.passes if p.recalled and p.recalled not in made}
        keys = {k for p in sweep.passes for k, _ in (*p.stores, *(x for x in (p.kept, p.recalled) if x))}
        results = {self.out(k): k in recalled for k in self.plan.program.outputs if k in keys}
        for array, has_values in results.items():
            self._here("", "RESULT", array, str(int(has_values)), in_blocks)
        if per_row:
            given = self.called("advantage")
            row = f"{self.called('rows', sweep.segments)}[b + r]"
            here = f"PER_ROW && {row} >= 0" if self.plan.spread else "PER_ROW"
            self.line(3, f"double {OWN}[ROWS];")
            self.line(3, f"EACH_ROW {OWN}[r] = {here} ? (double)LOAD({dtype_of(given)}, {given}, {row}) : 0;")
        return list(results)

    def _here(self, const: str, dtype: str, array: str, has_values: str, in_blocks: bool) -> None:
        self.here[array] = array
        if in_blocks:
            self.here[array] = self.free(f"{array}_here", "", "_room")
            self.line(3, f"HERE({const}, {dtype}, {self.here[array]}, {array}, {has_values})")

    def _columns(self, sweep: Sweep) -> None:
        """Declares arrays over rows: of sums and of values that other steps read, unless they lie in the workspace."""
        found: dict[Node, None] = {p: None for one in sweep.passes for p in one.pushes}
        read: dict[Node, None] = {}
        for step in sweep.steps:
            own = set(step.values)
            read |= {o: None for n in step.values for o in n.operands if o not in own}
        found |= {n: None for step in sweep.steps if isinstance(step, Scalars) for n in step.values if n in read}
        self.columns = {n: self.names[n] for n in found if n not in sweep.saved}
        if self.columns:
            self.line(3, f"double {', '.join(f'{name}[ROWS]' for name in self.columns.values())};")
        read |= {o: None for step in sweep.steps if isinstance(step, Scalars) for n in step.values for o in n.operands}
        for node in self.in_turn(n for n in read if n.stratum == sweep.segments):
            if isinstance(node, Input) and node.kind == "parameter":
                stride, array = self.called("stride", node), self.free(f"{self.names[node]}_here")
                self.line(3, f"COLUMN({array}, {self.arrays[node]} + b * {stride}, {stride});")
                self.columns[node] = array

    def _scalars(self, step: Scalars, sweep: Sweep) -> None:
        """Writes scalar work on every row."""
        self.line(0)
        self.line(3, "EACH_ROW {")
        self.local = set()
        for node in self.in_turn(step.values):
            if isinstance(node, Quantile):
                room, size = self.room[node.values]
                text = f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level)}, 1)"
                self.put(4, node, text, sweep.saved)
            else:
                self.value(4, node, sweep.saved)
        self.line(3, "}")

    # ------------------------------------------------------------ tokens

    def _pass(self, step: Pass, sweep: Sweep) -> None:
        """Writes a loop over the tokens of rows, after the numbers of rows that it reads."""
        outer, ended, condition = self.lines, self.ended, self.condition
        self.lines, self.ended, self.wanted, self.always, self.outside = [], -1, {}, set(), self.spare
        sums = self.free(f"{self.name}_sums") if step.pushes else ""
        if sums:
            self.condition = "IF_METRICS(", ")"
        self._body(step, sweep)
        body, self.lines, self.ended = self.lines, [], -1
        self.memory += [self.free(f"lanes_{i}") for i in range(len(self.memory) + 1, len(step.pushes) + 1)]
        lanes = dict(zip(step.pushes, self.memory, strict=False))
        for push in self.in_turn(lanes):
            to = self.columns[push] if push in self.columns else f"{self.arrays[push]} + b"
            how = f"{push.reduce}, {'double' if step.wide else 'real'}"
            self.line(
                1, f"EACH({how}, {lanes[push]}, {to}, {self.token_operand(push.operand, step, sweep, step.wide)})"
            )
        entries, self.lines, self.ended, self.condition = self.lines, outer, ended, condition
        self.line(0)
        for key in self.wanted:
            with self.if_metrics(key not in self.always):
                self._spread(*key)
        if self.spare == self.plan.spare:
            self.spread |= {key: name for key, name in self.wanted.items() if key in self.always}
        if sums:
            self.lines += [f"#define {sums}(EACH) \\", *(f"{line} \\" for line in entries)]
            self.lines[-1] = self.lines[-1].removesuffix(" \\")
            self.line(3, f"PASS({sums},")
            self.lines += body
            self.line(3, ")")
        else:
            self.line(0, "#pragma omp simd")
            self.line(3, "for (int64_t i = 0; i < tokens; i++) {")
            self.lines += body
            self.line(3, "}")
        for scan in self.in_turn(step.scans):
            self.line(3, f"scan({self.lanes[scan]}, tokens, {self.powers[scan]}, {int(scan.forward)});")

    def _body(self, step: Pass, sweep: Sweep) -> None:
        """Writes what a pass does with token `i`."""
        word = self.signature.layouts[sweep.segments, step.leaf]
        if step.recalled:
            k, node = step.recalled
            here = self.here[self.out(k)]
            self.line(4, f"const real {self.names[node]} = (real)LOAD(RESULT, {here}, AT({word}, i));")
        for node in self.in_turn(step.found):
            room, place = self.set_place(node, sweep)
            self.line(4, f"const double {self.names[node]} = {room}[{place}];")
        for node in self.in_turn(step.values):
            self.token_value(node, step, sweep, word)
        for node in self.in_turn(step.aside):
            self.set_aside(node, self.token_operand(node, step, sweep, True), step, sweep, word)
        for k, node in [*step.stores, *([step.kept] if step.kept else [])]:
            value = self.token_operand(node, step, sweep, step.wide or node in self.precisions.precise(step))
            self.line(4, f"STORE(RESULT, {self.here[self.out(k)]}, AT({word}, i), {value});")

    def of_row(self, node: Node | str, wide: bool) -> str:
        """The text of a number of token i's row, or of the batch."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        key = node, wide
        if key not in self.spread:
            if key not in self.wanted:
                word = OWN if isinstance(node, str) else self.names[node]
                self.wanted[key] = self.free(f"{word}_{'d' if wide else 'r'}")
            if self.spare == self.outside:
                self.always.add(key)
        name = self.spread.get(key) or self.wanted[key]
        return f"ROW({name})" if isinstance(node, str) or node.stratum != BATCH else name

    def _spread(self, node: Node | str, wide: bool) -> None:
        """Writes the number of a row, or of the batch, in the precision of the tokens that read it."""
        kind, name = "double" if wide else "real", self.wanted[node, wide]
        if isinstance(node, str):
            self.line(3, f"SPREAD_IF(PER_ROW, {kind}, {name}, {OWN});")
        elif node.stratum == BATCH:
            self.line(3, f"const {kind} {name} = ({kind}){self.at(node, '0')};")
        else:
            self.line(3, f"SPREAD({kind}, {name}, {self.columns.get(node) or f'{self.arrays[node]} + b'});")

    def token_value(self, node: Node, step: Pass, sweep: Sweep, word: str) -> None:
        """Computes a token's value, in float64 and in the tokens' precision if readers need both and it is cheap."""
        if isinstance(node, Pull) and node.target in (sweep.segments, BATCH):
            return
        wide = step.wide or node in self.precisions.precise(step)
        self.token_value_as(node, step, sweep, word, wide, self.names[node])
        if node in self.precisions.both(step):
            if node not in self.halves:
                self.halves[node] = self.free(f"{self.names[node]}_r")
            self.token_value_as(node, step, sweep, word, False, self.halves[node])

    def token_value_as(self, node: Node, step: Pass, sweep: Sweep, word: str, wide: bool, name: str) -> None:
        kind, language = ("double", WIDE) if wide else ("real", TOKEN)
        if isinstance(node, Input):
            text = self.token_input(node, word, wide)
        elif isinstance(node, Scan):
            text = f"({kind}){self.in_order(node, word)}"
        elif isinstance(node, Pull):
            parent = self.called("parent", node.source, node.target)
            text = f"({kind}){self.at(node.operand, f'{parent}[TOKEN({word}, i)]')}"
        elif isinstance(node, Const):
            text = language.constant(node.value)
        elif isinstance(node, Map):
            operands = [self.token_operand(o, step, sweep, wide) for o in node.inputs]
            before, text = language.write(node.body, operands, name, self.taken, self.functions)
            for part, shared in before:
                self.assign(4, f"const {kind} {part}", shared)
        else:
            raise BackendError(f"the C backend cannot emit {type(node).__name__} on {node.stratum}")
        self.assign(4, f"const {kind} {name}", text)

    def token_operand(self, node: Node, step: Pass, sweep: Sweep, wide: bool) -> str:
        """A value of a pass, in the precision of its reader."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        if isinstance(node, Pull) and node.target in (sweep.segments, BATCH):
            return self.of_row(node.operand, wide)
        if wide or step.wide or node not in self.precisions.precise(step):
            return self.names[node]
        return self.halves[node] if node in self.precisions.both(step) else f"((real){self.names[node]})"

    def token_input(self, node: Input, word: str, wide: bool) -> str:
        kind = "double" if wide else "real"
        if node.kind not in (*TOKENS, *GIVEN):
            return f"({kind}){self.arrays[node]}[TOKEN({word}, i)]"
        array = self.called("advantage") if node.kind in GIVEN else self.called("token", node.kind, *node.key)
        value = f"({kind})LOAD({dtype_of(array)}, {self.here[array]}, AT({word}, i))"
        return f"PER_ROW ? {self.of_row(OWN, wide)} : {value}" if node.kind in GIVEN else value

    def in_order(self, node: Scan, word: str) -> str:
        """The sum over the tokens before a token, or after it."""
        if node in self.arrays:
            return f"{self.arrays[node]}[TOKEN({word}, i)]"
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

    def rooms(self, sweep: Sweep) -> None:
        """Reserves memory for the values of this sweep's quantiles, as much again to find them, and memory for sums in
        order.
        """
        self.room, self.lanes = {}, {}
        self.released: dict[Node, str] = {}
        taken = (n for step in sweep.steps if isinstance(step, Scalars) for n in step.values)
        for node in self.in_turn(taken):
            if isinstance(node, Quantile) and node.values not in self.room:
                room, size = (
                    self.free(f"values_of_{self.names[node]}", "", "_small"),
                    self.free(f"number_of_{self.names[node]}"),
                )
                number = " + ".join(self.size_of(sweep, leaf) for leaf in node.sources)
                self.line(3, f"const int64_t {size} = {number};")
                self.line(3, f"_Alignas(64) double {room}_small[3 * SHORT];")
                self.line(3, f"double *restrict {room} = reserve_beyond({room}_small, 3 * SHORT, 3 * {size});")
                self.room[node.values], self.released[node] = (room, size), f"{room}, {room}_small"
        for scan in self.in_turn(scan for one in sweep.passes for scan in one.scans):
            lanes = self.lanes[scan] = self.free(f"values_of_{self.names[scan]}", "", "_small")
            self.line(3, f"_Alignas(64) double {lanes}_small[SEVERAL];")
            size = self.size_of(sweep, scan.into)
            self.line(3, f"double *restrict {lanes} = reserve_several({lanes}_small, {size});")
            self.released[scan] = f"{lanes} - WIDTH, {lanes}_small"

    def size_of(self, sweep: Sweep, leaf: str) -> str:
        """The number of tokens of a leaf that the row has."""
        w = self.signature.layouts[sweep.segments, leaf]
        return f"{w}_offsets[b + 1] - {w}_offsets[b]"

    def set_place(self, node: Node, sweep: Sweep, values: tuple[Node, ...] = ()) -> tuple[str, str]:
        """The memory, and the place in it, of a token's value among `values` of a quantile, or of any."""
        values = values or next(v for v in self.room if node in v)
        before = [self.size_of(sweep, v.stratum) for v in values[: values.index(node)]]
        return self.room[values][0], " + ".join(["i", *before])

    def set_aside(self, node: Node, value: str, step: Pass, sweep: Sweep, word: str) -> None:
        """Stores a token's value for quantiles and sums in order, of this sweep and of later stages."""
        for values in self.room:
            if node in values:
                room, place = self.set_place(node, sweep, values)
                self.line(4, f"{room}[{place}] = {value};")
        for scan in step.scans:
            if node in scan.values:
                self.line(4, f"{self.lanes[scan]}[i] = {value};")
        if node in sweep.saved:
            self.line(4, f"{self.slots[node]}[TOKEN({word}, i)] = {value};")
