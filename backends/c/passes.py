"""C code of sweeps: loops over segments, which are called rows here, and the loops over their tokens.

`sweeps.h` has two ways to visit rows, one after another or in blocks of short ones. The code here is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fibration.backends.c.coarse import CoarseStages
from fibration.backends.c.language import TOKEN, WIDE, dtype_of, wide_constant
from fibration.compiler.arguments import GIVEN, TOKENS, result_of
from fibration.compiler.ir import BATCH, Const, Input, Key, Node, Pull, Quantile, Scan
from fibration.compiler.plan import Pass, Scalars, Sweep

OWN = "row_advantage"  # the advantage of a row


class Sweeps(CoarseStages):
    """Writes the sweeps of a function."""

    segments: str
    words: Mapping[str, str] = MappingProxyType({})  # by leaf, how the arguments that locate its tokens begin
    word: str  # that of the tokens of the loop that is written
    precise: frozenset[Node] = frozenset()  # their values in float64
    spread: dict[tuple[Node | str, bool], str]  # numbers of rows that tokens read, in either precision
    wanted: dict[tuple[Node | str, bool], str]  # those that a pass is the first to read
    room: dict[tuple[Node, ...], tuple[str, str]]  # memory for the values of quantiles, and its size
    lanes: dict[Scan, str]  # memory for sums in order
    memory: list[str]  # names of memory for other sums

    def sweep(self, sweep: Sweep) -> None:
        s = self.segments = sweep.segments
        self.words = {leaf: self.signature.layouts[s, leaf] for leaf in sweep.leaves}
        n, (self.word, *others) = self.size(s), self.words.values()
        total = " + ".join(f"{w}_offsets[{n}]" for w in self.words.values())
        self.line(1, f"{{ /* each {s} and its tokens */")
        blocks = f"SHORT_{self.word} && WHOLE_{self.word} && COUNTED_{self.word}" if self.goes_in_blocks(sweep) else "0"
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
        self._columns(sweep)
        self._rooms(sweep)
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

    def goes_in_blocks(self, sweep: Sweep) -> bool:
        """Whether segments only sum their tokens: no quantile, no sum in order or what may jump with it, one leaf."""
        scalars = [n for step in sweep.steps if isinstance(step, Scalars) for n in step.values]
        plain = not any(isinstance(n, Quantile) for n in scalars) and not any(
            p.aside or p.found or p.scans or not self.plan.precise.isdisjoint(p.values) for p in sweep.passes
        )
        return plain and len(sweep.leaves) == 1

    def _columns(self, sweep: Sweep) -> None:
        """Declares arrays over rows: of sums and of values that other steps read, unless they lie in the workspace."""
        scalars = [n for step in sweep.steps if isinstance(step, Scalars) for n in step.values]
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
        self.line(3, f"PASS({sums},")
        self.lines += body
        self.line(3, ")")
        for scan in self.in_turn(step.scans):
            self.line(3, f"scan({self.lanes[scan]}, tokens, {self.at(scan.discount, '0')}, {int(scan.forward)});")

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

    def operand(self, node: Node, wide: bool) -> str:
        if self.is_of_row(node):
            return self.of_row(node.operands[0], wide)
        cast = not wide and node in self.precise
        return f"((real){self.names[node]})" if cast else super().operand(node, wide)

    def read(self, node: Node, wide: bool) -> str:
        if isinstance(node, Quantile):
            room, size = self.room[node.values]
            return f"quantile({room}, {room} + {size}, {size}, {self.operand(node.level, True)}, 1)"
        if isinstance(node, Scan):
            return self.in_order(node)
        if not isinstance(node, Input):
            return super().read(node, wide)
        if node.kind not in (*TOKENS, *GIVEN):
            return self.at(node, self.element)
        array = self.called("advantage") if node.kind in GIVEN else self.called("token", node.kind, *node.key)
        value = f"LOAD({dtype_of(array)}, {array}, AT({self.word}, i))"
        return f"PER_ROW ? {self.of_row(OWN, wide)} : {value}" if node.kind in GIVEN else value

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
            self.line(3, f"SPREAD({kind}, {name}, {super().operand(node, True)})")

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

    def _rooms(self, sweep: Sweep) -> None:
        """Declares memory for the values of this sweep's quantiles, with room to find them, and for sums in order."""
        self.room, self.lanes = {}, {}
        for node in self.in_turn(n for step in sweep.steps if isinstance(step, Scalars) for n in step.values):
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
