"""C code of sweeps over short segments, which lie in blocks.

A loop over the few tokens of one segment is scalar code. So one loop computes the values of all tokens of a block of
segments, as vector code, and stores those that are summed. Sums are then taken segment by segment, in the order of
`emit.py`'s loops, so no bit depends on which loops a batch takes. Numbers of segments lie in arrays over the rows of
the block.
"""

from __future__ import annotations

from typing import Any

from fibration.backends.c.coarse import CoarseStages
from fibration.backends.c.lanes import precision_of
from fibration.backends.c.language import dtype_of
from fibration.compiler.arguments import FLOATS, GIVEN
from fibration.compiler.ir import BATCH, Const, Input, Map, Node, Pull, Push, Quantile
from fibration.compiler.keys import Key
from fibration.compiler.plan import Pass, Scalars, Sweep


def _memory(step: Pass) -> list[tuple[Key, Node]]:
    """What a pass writes to results or reads from them."""
    return [*step.stores, *(x for x in (step.kept, step.recalled) if x)]


class BlockStages(CoarseStages):
    """Writes the loops over blocks of short segments, with the expressions of `_Function`."""

    in_block = False
    token_value: Any
    token_operand: Any
    recall: Any
    store: Any
    out: Any

    def place(self, word: str) -> str:
        """The place of a token in the tensors of a batch."""
        return "i" if self.in_block else f"AT({word}, i)"

    def number(self, word: str) -> str:
        return "first + i" if self.in_block else f"TOKEN({word}, i)"

    def memory(self, array: str) -> str:
        """The pointer to a tensor; in a block, to the block's first token."""
        return self.here[array] if self.in_block else array

    def goes_in_blocks(self, sweep: Sweep) -> bool:
        """Whether segments only sum their tokens: no quantile, no sum in order or what may jump with it, one leaf."""
        scalars = [n for step in sweep.steps if isinstance(step, Scalars) for n in step.values]
        plain = not any(isinstance(n, Quantile) for n in scalars) and not any(
            p.aside or p.found or p.scans or not self.plan.precise.isdisjoint(p.values) for p in sweep.passes
        )
        return plain and len(sweep.leaves) == 1

    def block_condition(self, sweep: Sweep) -> str:
        """Holds where no segment has more tokens than there are lanes."""
        w = self.word = self.signature.layouts[sweep.segments, sweep.leaves[0]]
        return f"SHORT_{w} && WHOLE_{w} && COUNTED_{w}"

    def _tensors(self, sweep: Sweep) -> dict[str, str]:
        """The tensors that a sweep reads and writes, and the macros of their dtypes."""
        read = {i for p in sweep.passes for i in p.reads}
        found: dict[str, str] = {}
        for a in self.arguments:
            if a.holds == FLOATS and any(
                (i.kind, *i.key) == a.key or (a.kind == "advantage" and i.kind in GIVEN) for i in read
            ):
                found[a.name] = dtype_of(a.name)
        results = {k for p in sweep.passes for k, _ in _memory(p)}
        return found | {self.out(k): "RESULT" for k in self.plan.program.outputs if k in results}

    def block(self, sweep: Sweep) -> None:
        """Writes the loop over blocks."""
        s, w = sweep.segments, self.word
        n, tensors = self.size(s), self._tensors(sweep)
        self.line(0, "#pragma omp parallel for schedule(dynamic, 16) num_threads(threads) \\")
        self.line(1, f"if ({w}_offsets[{n}] > LONG)")
        self.line(1, f"for (int64_t b0 = 0; b0 < {n}; b0 += ROWS) {{")
        self.line(2, f"const int64_t rows = {n} - b0 < ROWS ? {n} - b0 : ROWS;")
        self.line(2, f"const int64_t *offsets = {w}_offsets + b0, *starts = {w}_starts + b0;")
        self.line(2, "const int64_t first = offsets[0], tokens = offsets[rows] - first;")
        self.line(2, "const int64_t longest = longest_of(offsets, rows);")
        self.line(2, "const int joined = starts[rows - 1] - starts[0] == offsets[rows - 1] - first;")
        kept = {p.kept for p in sweep.passes}
        recalled = {self.out(p.recalled[0]) for p in sweep.passes if p.recalled and p.recalled not in kept}
        filled = {self.out(k) for p in sweep.passes for k, _ in p.stores}
        self.here = {}
        for array, dtype in tensors.items():
            here = self.here[array] = self.free(f"{array}_here")
            room, kind = self.free(f"{array}_room"), f"STORED({dtype})"
            self.line(2, f"{kind} {room}[BLOCK];")
            const = "" if dtype == "RESULT" else "const "
            lacking = "!PER_ROW && " if array in self._advantages() else ""
            if const or array in recalled:
                self.line(2, f"if ({lacking}!joined) COPY_ROWS({room}, offsets[r] - first, {array}, starts[r])")
            self.line(2, f"{const}{kind} *restrict {here} = joined ? {array} + starts[0] : {room};")
        self.columns: dict[Node, str] = {}
        self.in_block, self.rounded = True, {}
        self.read_again = self._read_by_others(sweep)
        for given in self.read_again:
            if not (isinstance(given, Input) and given.kind == "parameter" and given.stratum != BATCH):
                continue
            stride, array = self.called("stride", given), self._column(given)
            self.line(2, f"column_of({array}, {self.arrays[given]} + b0 * {stride}, {stride}, rows);")
        self._given_per_row(sweep)
        self._of_batch(sweep)
        self.of_tokens: dict[tuple[Node, str], tuple[str, str]] = {}
        for step in sweep.steps:
            self.line(0)
            if isinstance(step, Scalars):
                self._scalars(step)
            else:
                self._pass(step, s)
        self.in_block, self.rounded = False, {}
        saved = [node for node in sweep.saved if node.stratum not in self.plan.program.leaves]
        if saved:
            self.line(2, "for (int64_t r = 0; r < rows; r++) {")
            for node in self.in_turn(saved):
                self.line(3, f"{self.arrays[node]}[b0 + r] = {self.columns[node]}[r];")
            self.line(2, "}")
        for array in (a for a, dtype in tensors.items() if dtype == "RESULT"):
            self.line(2, f"if (!joined) COPY_ROWS({array}, starts[r], {self.here[array]}, offsets[r] - first)")
            if array not in filled or len(self.plan.program.leaves) > 1:  # other leaves' tokens lie between
                continue
            self.line(2, "if (!isnan(fill)) { /* masked places before and after */")
            self.line(3, f"if (!b0) FILL_GAP({array}, 0, starts[0]);")
            self.line(3, "for (int64_t r = joined ? rows - 1 : 0; r < rows; r++)")
            end = f"b0 + r + 1 < {n} ? starts[r + 1] : places"
            self.line(4, f"FILL_GAP({array}, starts[r] + offsets[r + 1] - offsets[r], {end});")
            self.line(2, "}")
        self.line(1, "}")

    def _advantages(self) -> set[str]:
        return {a.name for a in self.arguments if a.kind == "advantage"}

    def _given_per_row(self, sweep: Sweep) -> None:
        """Advantages per row, as an array over the block's rows."""
        self.given = ""
        if any(i.kind in GIVEN for p in sweep.passes for i in p.reads):
            self.given = self.free("row_advantages", "_of_tokens")
            self.line(2, f"real {self.given}[ROWS], {self.given}_of_tokens[BLOCK + LANES];")
            own = self.row_advantage(sweep, "b0 + r", "real")
            self.line(2, f"for (int64_t r = 0; r < rows; r++) {self.given}[r] = {own};")
            self.line(2, f"if (PER_ROW) spread_real({self.given}_of_tokens, {self.given}, offsets, rows);")

    def row_advantage(self, sweep: Sweep, b: str, kind: str) -> str:
        row, given = f"{self.called('rows', sweep.segments)}[{b}]", self.called("advantage")
        here = f"PER_ROW && {row} >= 0" if self.plan.spread else "PER_ROW"
        return f"{here} ? ({kind})LOAD({dtype_of(given)}, {given}, {row}) : 0"

    def _of_batch(self, sweep: Sweep) -> None:
        """Numbers of the batch that tokens read, in both precisions."""
        read = (n.operand for p in sweep.passes for n in p.values if isinstance(n, Pull) and n.target == BATCH)
        self.of_batch = {n: self.free(f"{self.names[n]}_r") for n in read if not isinstance(n, Const)}
        for node, rounded in self.of_batch.items():
            self.line(2, f"const double {self.names[node]} = {self._of_row(node)};")
            self.line(2, f"const real {rounded} = (real){self.names[node]};")

    def _read_by_others(self, sweep: Sweep) -> dict[Node, None]:
        """The values of segments that other steps or stages read."""
        found = dict.fromkeys(sweep.saved)
        for step in sweep.steps:
            own = set(step.values)
            found |= {o: None for n in step.values for o in n.operands if o not in own}
        return found

    def _column(self, node: Node) -> str:
        """A new array with one number per row of the block."""
        array = self.columns[node] = self.free(f"{self.names[node]}_at")
        self.line(2, f"double {array}[ROWS];")
        return array

    def _of_row(self, node: Node) -> str:
        """The value of a segment: row `r` of the block."""
        return f"{self.columns[node]}[r]" if node in self.columns else self.at(node, "(b0 + r)")

    def _scalars(self, step: Scalars) -> None:
        kept = {node: self._column(node) for node in self.in_turn(step.values) if node in self.read_again}
        own = set(step.values)
        wanted = {o: None for n in step.values if not isinstance(n, Pull) for o in n.operands if o not in own}
        self._rows()
        for node in self.in_turn(wanted):
            if not isinstance(node, Const) and node.stratum not in self.plan.program.leaves:
                self.line(3, f"const double {self.names[node]} = {self._of_row(node)};")
        for node in self.in_turn(step.values):
            self.value(3, node, "(b0 + r)")
            if node in kept:
                self.line(3, f"{kept[node]}[r] = {self.names[node]};")
        self.line(2, "}")

    def _pass(self, step: Pass, s: str) -> None:
        """One loop over all tokens of the block, then one for the sums of each segment."""
        kind = "double" if step.wide else "real"
        of_rows: set[Node] = {n for n in step.values if isinstance(n, Pull) and n.target in (s, BATCH)}
        uniform = []  # values that are the same for all tokens of a segment
        for node in step.values:
            if isinstance(node, Map) and all(isinstance(o, Const) or o in of_rows for o in node.inputs):
                uniform.append(node)
                of_rows.add(node)
        others = [n for n in step.values if n not in of_rows]
        read = {o for n in others for o in n.operands} | {p.operand for p in step.pushes}
        read |= {node for _, node in [*step.stores, *([step.kept] if step.kept else [])]}
        pulled = {n.operand: n for n in step.values if n in of_rows and isinstance(n, Pull)}
        of_segments = [n for n in pulled if n.stratum != BATCH and not isinstance(n, Const)]
        called = {n: self.names[n] if step.wide else self.free(f"{self.names[n]}_r") for n in of_segments}
        known = {n for n in of_segments if (n, kind) in self.of_tokens}
        called |= {n: self.of_tokens[n, kind][0] for n in known}
        self.rounded = {} if step.wide else {**self.of_batch, **called}
        new = [n for n in [*of_segments, *uniform] if n not in known and (pulled.get(n) in read or n in read)]
        called |= {n: self.names[n] for n in uniform}
        arrays = {n: self.free(f"{called[n]}_at") for n in new}
        for node in self.in_turn(arrays):
            self.line(2, f"{kind} {arrays[node]}[ROWS];")
        if arrays:
            self._rows()
            for node in self.in_turn([*of_segments, *uniform]):
                if node in uniform:
                    self.token_value(3, node, step, s, self.word)
                else:
                    self.line(3, f"const {kind} {called[node]} = ({kind}){self._of_row(node)};")
                if node in arrays:
                    self.line(3, f"{arrays[node]}[r] = {called[node]};")
            self.line(2, "}")
        for node in self.in_turn(arrays):
            self._spread(node, called[node], arrays[node], kind)
        self._loop(step, s, others, [n for n in [*of_segments, *uniform] if n in arrays or n in known])

    def _spread(self, node: Node, name: str, array: str, kind: str) -> None:
        """Repeats the numbers of segments for their tokens."""
        tokens = self.free(f"{name}_of_tokens")
        self.of_tokens[node, kind] = name, tokens
        self.line(2, f"{kind} {tokens}[BLOCK + LANES];")
        self.line(2, f"spread_{kind}({tokens}, {array}, offsets, rows);")

    def _loop(self, step: Pass, s: str, values: list[Node], of_rows: list[Node]) -> None:
        """The loops of a pass: its values for all tokens, then its sums. `of_rows`: the values of segments it reads."""
        kind = "double" if step.wide else "real"
        summed = {p: self.free(f"values_of_{self.names[p]}") for p in step.pushes}
        for push in self.in_turn(summed):
            self.line(2, f"{kind} {summed[push]}[BLOCK + LANES];")
        self.line(0, "#pragma omp simd")
        self.line(2, "for (int64_t i = 0; i < tokens; i++) {")
        for node in self.in_turn(of_rows):
            name, tokens = self.of_tokens[node, kind]
            self.line(3, f"const {kind} {name} = {tokens}[i];")
        if any(i.kind in GIVEN for i in step.reads):
            self.line(3, f"const real row_advantage = PER_ROW ? {self.given}_of_tokens[i] : 0;")
        self.recall(3, step, self.word)
        for node in self.in_turn([*values, *summed]):
            if isinstance(node, Push):
                self.line(3, f"{summed[node]}[i] = {self.token_operand(node.operand, step, s, step.wide)};")
            else:
                self.token_value(3, node, step, s, self.word)
        self.store(3, step, s, self.word)
        self.line(2, "}")
        for push in self.in_turn(summed):
            given = f"{self._column(push)}, {summed[push]}, offsets, rows, longest"
            self.line(3, f"{push.reduce}_rows_{precision_of(step.wide)}({given});")

    def _rows(self) -> None:
        self.line(0, "#pragma omp simd")
        self.line(2, "for (int64_t r = 0; r < rows; r++) {")
