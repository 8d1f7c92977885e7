"""C code of the loops over a segment's tokens."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.backends.c.blocks import BlockStages
from fibration.backends.c.lanes import add_to, add_up, start_of
from fibration.backends.c.language import TOKEN, WIDE, dtype_of, token_constant, wide_constant
from fibration.backends.c.precision import Precisions
from fibration.compiler.arguments import GIVEN, TOKENS, result_of
from fibration.compiler.ir import BATCH, Const, Input, Map, Node, Pull, Push, Scan
from fibration.compiler.keys import Key
from fibration.compiler.plan import Pass, Sweep
from fibration.errors import BackendError


class TokenPasses(BlockStages):
    """Writes the passes of a sweep over one segment after another, and the expressions of tokens' values."""

    precisions: Precisions
    halves: dict[Node, str]  # names of float64 values in the tokens' precision
    room: dict[tuple[Node, ...], tuple[str, str]]  # memory for the values of quantiles, and its size
    lanes: dict[Scan, str]  # memory for sums in order
    powers: dict[Scan, str]

    def set_place(self, node: Node, sweep: Sweep, values: tuple[Node, ...] = ()) -> tuple[str, str]:
        """The memory, and the place in it, of a token's value among `values` of a quantile, or of any."""
        values = values or next(v for v in self.room if node in v)
        before = [self.signature.layouts[sweep.segments, v.stratum] for v in values[: values.index(node)]]
        place = " + ".join(["i", *(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in before)])
        return self.room[values][0], place

    def set_aside(self, depth: int, node: Node, value: str, step: Pass, sweep: Sweep, word: str) -> None:
        """Stores a token's value for quantiles and sums in order, of this sweep and of later stages."""
        for values in self.room:
            if node in values:
                room, place = self.set_place(node, sweep, values)
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
        for node in self.in_turn(step.values):
            if isinstance(node, Pull) and node.target in (s, BATCH):
                readers = {u for u in step.values if node in u.operands} | {p for p in step.pushes if p.operand is node}
                if not step.wide and not (readers and readers <= self.precisions.precise(step)):
                    self.rounded_scalar(node.operand, False)
        lanes = {p: self.free(f"lanes_of_{self.plan.names[p]}") for p in step.pushes}
        if lanes:
            self.chunks(step, sweep, lanes)
        else:
            self.line(0, "#pragma omp simd")
            self.line(2, "for (int64_t i = 0; i < tokens; i++) {")
            self.body(3, step, sweep, lanes)
            self.line(2, "}")
        for scan in self.in_turn(step.scans):
            self.line(2, f"scan({self.lanes[scan]}, tokens, {self.powers[scan]}, {int(scan.forward)});")

    def chunks(self, step: Pass, sweep: Sweep, lanes: Mapping[Push, str]) -> None:
        """Writes a loop with sums: over the whole groups of `LANES` tokens of a chunk, then over its other tokens."""
        for push in self.in_turn(lanes):
            self.line(2, f"double {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};")
        self.line(2, "for (int64_t at = 0; at < tokens; at += CHUNK) {")
        self.line(3, "const int64_t to = at + CHUNK < tokens ? at + CHUNK : tokens;")
        self.line(3, "const int64_t others = (to - at) % LANES, whole = to - others;")
        for push in self.in_turn(lanes):
            self.line(3, start_of(push, step.wide, lanes[push]))
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
        for push in self.in_turn(lanes):
            self.line(3, add_up(push, step.wide, self.names[push], lanes[push]))
        self.line(2, "}")

    def body(self, depth: int, step: Pass, sweep: Sweep, lanes: Mapping[Push, str]) -> None:
        """Writes what a pass does with token `i`, which belongs to lane `k`."""
        s = sweep.segments
        word = self.signature.layouts[s, step.leaf]
        self.recall(depth, step, word)
        for node in self.in_turn(step.found):
            room, place = self.set_place(node, sweep)
            self.line(depth, f"const double {self.names[node]} = {room}[{place}];")
        for node in self.in_turn([*step.values, *lanes]):
            if isinstance(node, Push):
                value = self.token_operand(node.operand, step, s, step.wide)
                self.line(depth, add_to(node, step.wide, lanes[node], value))
            else:
                self.token_value(depth, node, step, s, word)
        for node in self.in_turn(step.aside):
            self.set_aside(depth, node, self.token_operand(node, step, s, True), step, sweep, word)
        self.store(depth, step, s, word)

    def recall(self, depth: int, step: Pass, word: str) -> None:
        if step.recalled:
            k, node = step.recalled
            self.line(depth, f"const real {self.names[node]} = (real)LOAD(RESULT, {self.out(k)}, {self.place(word)});")

    def store(self, depth: int, step: Pass, s: str, word: str) -> None:
        for k, node in [*step.stores, *([step.kept] if step.kept else [])]:
            value = self.token_operand(node, step, s, step.wide or node in self.precisions.precise(step))
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
        """Computes a token's value, in float64 and in the tokens' precision if readers need both and it is cheap."""
        if isinstance(node, Pull) and node.target in (s, BATCH):
            return
        wide = step.wide or node in self.precisions.precise(step)
        self.token_value_as(depth, node, step, s, word, wide, self.names[node])
        if node in self.precisions.both(step):
            if node not in self.halves:
                self.halves[node] = self.free(f"{self.names[node]}_r")
            self.token_value_as(depth, node, step, s, word, False, self.halves[node])

    def token_value_as(self, depth: int, node: Node, step: Pass, s: str, word: str, wide: bool, name: str) -> None:
        kind, language = ("double", WIDE) if wide else ("real", TOKEN)
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
            before, text = language.write(node.body, operands, name, self.taken, self.functions)
            for part, shared in before:
                self.assign(depth, kind, part, shared)
        else:
            raise BackendError(f"the C backend cannot emit {type(node).__name__} on {node.stratum}")
        self.assign(depth, kind, name, text)

    def token_operand(self, node: Node, step: Pass, s: str, wide: bool) -> str:
        """A value of a pass, in the precision of its reader."""
        if isinstance(node, Const):
            return (WIDE if wide else TOKEN).constant(node.value)
        if isinstance(node, Pull) and node.target in (s, BATCH):
            return self.rounded_scalar(node.operand, wide)
        if wide or step.wide or node not in self.precisions.precise(step):
            return self.names[node]
        return self.halves[node] if node in self.precisions.both(step) else f"((real){self.names[node]})"

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
            return f"{self.lanes[node]}[i {'-' if node.forward else '+'} 1]"
        (value,) = node.values  # a constant, times the number of tokens before or after
        assert isinstance(value, Const)
        places = "i" if node.forward else "(tokens - 1 - i)"
        return places if value.value == 1.0 else f"({wide_constant(value.value)} * (double){places})"

    def out(self, output: Key) -> str:
        """The array that an output over tokens is written to."""
        return self.memory(self.called("result", result_of(self.plan, output)))
