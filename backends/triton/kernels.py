"""Writes the kernels of a fused plan: one per sweep, and a kernel or function calls per coarse stage.

A program of a sweep's grid has `BLOCK_R` segments and visits their tokens in tiles `[BLOCK_R, BLOCK_T]`. Values of
segments and coarser strata are float64. `coarse.py` writes coarse stages.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping

from fibration.backends.bodies import NOTHING, Functions
from fibration.backends.triton.coarse import CoarseWriter, is_called
from fibration.backends.triton.language import constant, typed
from fibration.backends.triton.writer import HARMLESS, NEUTRAL, Kernel, uses
from fibration.compiler.arguments import GIVEN, TOKENS, result_of
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Node, Pull, Push, Scalar, Scan
from fibration.compiler.optimise import is_mark
from fibration.compiler.plan import Coarse, Pass, Plan, Scalars, Section, Sweep, computing
from fibration.compiler.scalars import ZERO
from fibration.errors import BackendError


def kernels(plans: Mapping[str, Plan], program: str) -> tuple[Kernel, ...]:
    """The kernels of a program in the order of the plan's stages, coarse stages included."""
    return tuple(itertools.chain(*kernels_of_sections(plans, program)))


def kernels_of_sections(plans: Mapping[str, Plan], program: str, functions: Functions = NOTHING) -> list[list[Kernel]]:
    """The kernels of every section. A plan has one section, unless the batch is spread over ranks."""
    plan = plans[program]
    sections = _Stages(computing(plans)[program], plan.of or plan, functions).sections()
    return [[k for k in made if plan.of is None or not k.spare] for made in sections]


class _Stages(CoarseWriter):
    def sections(self) -> list[list[Kernel]]:
        numbers = {Sweep: itertools.count(1), Coarse: itertools.count(1)}
        return [self.kernels(section, numbers) for section in self.plan.sections]

    def kernels(self, section: Section, numbers: Mapping[type, Iterator[int]]) -> list[Kernel]:
        found: list[Kernel] = []
        for stage in section:
            if isinstance(stage, Coarse) and is_called(stage):
                alike: dict[tuple[object, ...], list[Scan]] = {}
                for scan in stage.groups[0].scans:
                    alike.setdefault((scan in self.spare, scan.values, scan.discount, scan.forward), []).append(scan)
                found += [*map(self.quantile, stage.groups[0].quantiles), *map(self.scans, alike.values())]
            elif isinstance(stage, Coarse):
                found.append(self.coarse_stage(f"{self.name}_coarse_{next(numbers[Coarse])}", stage))
            else:
                found.append(self._sweep(f"{self.name}_sweep_{next(numbers[Sweep])}", stage))
        return found

    # ------------------------------------------------------------ sweeps

    def _sweep(self, name: str, sweep: Sweep) -> Kernel:
        s = sweep.segments
        by_length = self.called("by_length", s, sweep.leaves[0])
        self.line(1, f"b, live = of_program({by_length}, {self.size(s)}, BLOCK_R)")
        several = len(sweep.leaves) > 1
        spare = self.spare.issuperset(sweep.saved) and not any(p.stores for p in sweep.passes)
        self.spare = frozenset() if spare else self.plan.spare
        if not several:
            self.segments(self.signature.layouts[s, sweep.leaves[0]], any(not p.stores for p in sweep.passes))
            if any(p.stores for p in sweep.passes):
                self.reach(s, self.signature.layouts[s, sweep.leaves[0]])
        if any(i.kind in GIVEN for p in sweep.passes for i in p.reads):
            rows = self.called("rows", s)
            self.line(1, f"if {rows} is not None:")
            self.line(2, f"row = tl.load({rows} + b)")
            here = ", mask=row >= 0, other=0.0" if self.plan.spread else ""
            self.line(2, f"row_advantage = tl.load({self.called('advantage')} + row{here})[:, None]")
        self.line(0)
        self.line(1, "# inputs, loaded together: a program then waits for memory once")
        for node in self.in_turn(1, _known_before(sweep)):
            if isinstance(node, Pull):  # which may be saved here, and is read elsewhere
                self.value(1, node)
            else:
                self.need(1, node)
        narrow: dict[Node, str] = {}
        saved = set(sweep.saved)
        read: set[Node] = set()
        number = 0
        for step in sweep.steps:
            if isinstance(step, Scalars):
                self.line(0)
                self.line(1, f"# each {s}, in float64: [BLOCK_R]")
                operands = dict.fromkeys(o for n in step.values if n not in self.spare for o in n.operands)
                own = [o for o in operands if isinstance(o, Input) and o.kind != "count" and o.stratum == s]
                for node in own:
                    if node in read:  # again, from the first cache: a thread has few registers to keep it during a pass
                        address = self.address(node, "b")
                        self.line(1, f'{self.names[node]} = tl.load({address}, cache_modifier=".ca")')
                read.update(own)
                for node in self.in_turn(1, step.values):
                    if node not in self.known:
                        self.value(1, node)
                    if node in saved:
                        self.save(1, node)
            else:
                number += 1
                if several:
                    self.line(0)
                    self.segments(self.signature.layouts[s, step.leaf], not step.stores)
                with self.if_metrics(1, self.spare.issuperset([*step.pushes, *step.aside]) and not step.stores):
                    self.tokens(step, sweep, narrow, number)
        stored = [k for p in sweep.passes for k, _ in p.stores]
        if stored and len(self.plan.program.leaves) == 1:
            self.line(0)
            w = self.signature.layouts[s, sweep.leaves[0]]
            self.line(1, f"if {w}_positions is None and {w}_tokens is None:")
            self.line(2, "if tl.program_id(0) == 0:")
            for k in stored:
                self.line(3, f"fill_before({self.out(k)}, tl.load({w}_starts), fill)")
        body = "\n".join(self.lines)
        if uses(body, "REAL"):
            self.lines.insert(0, "    REAL: tl.constexpr = tl.float64 if WIDE else tl.float32")
        made = [*(str(k) for p in sweep.passes for k, _ in p.stores)]
        made += [self.names[n] for n in sweep.saved if n in self.plan.program.names and n not in self.plan.spare]
        words = ", ".join(made) or ("metrics" if spare else "sums")
        n = len(sweep.passes)
        text = f"Visits each {s}, in {n} pass{'es' if n != 1 else ''} over the tokens, for {words}."
        doc = "\n".join(['"""' + "\n".join(textwrap.wrap(text, 110)), '"""'] if len(text) > 104 else [f'"""{text}"""'])
        launch = f"call.sweep({name}, {self.size(s)})"
        return self.wrapped(name, ["BLOCK_R", "BLOCK_T", "BLOCK_L", "VECTOR"], doc, launch, spare)

    def segments(self, word: str, longest: bool) -> None:
        """Writes where the tokens of a program's segments lie. Places count from where the first tile begins."""
        where = f"{word}_offsets, {word}_starts, {word}_positions"
        self.line(1, f"first, size, start, lead = segments({where}, b, live, VECTOR)")
        self.line(1, "origin = tl.where(size > 0, start, 0)")
        if longest:
            self.line(1, "longest = extent(size + lead)")

    def tokens(self, step: Pass, sweep: Sweep, narrow: dict[Node, str], number: int) -> None:
        """Writes the loop over the tokens of a program's segments."""
        s, word = sweep.segments, self.signature.layouts[sweep.segments, step.leaf]
        precise = {n for n in step.values if step.wide or n in self.plan.precise}
        names = {wide: self.read_as(step, precise, wide) for wide in (False, True)}  # in the reader's precision
        self.line(0)
        wide = "float64" if step.wide else "the tokens' precision"
        self.line(1, f"# pass {number} over the tokens, in {wide}: [BLOCK_R, BLOCK_T]")
        for node in self.in_turn(1, step.values):
            if isinstance(node, Pull) and node.target in (s, BATCH):
                readers = {u for u in step.values if node in u.operands}
                pushed = any(p.operand is node for p in step.pushes)
                ways = {u in precise for u in readers} | ({step.wide} if pushed or not readers else set())
                for way in sorted(ways):
                    names[way][node] = self.spread(node, way, narrow)
        # Every thread adds what it has: sums over threads are shuffles, which come once per row.
        # Sums of the loss have one for each column of a tile: the same bits wherever a row begins, with metrics or not.
        spare = self.plan.spare
        words = {p: "lane" if p in spare else "mark" if is_mark(p.operand) else "column" for p in step.pushes}
        for push in self.in_turn(1, step.pushes):
            columns = {"mark": "BLOCK_T // 4", "column": "BLOCK_T", "lane": "min(BLOCK_T, BLOCK_L)"}[words[push]]
            dtype = "REAL" if words[push] == "mark" and not step.wide else "tl.float64"
            self.line(1, f"{self.names[push]} = tl.full([BLOCK_R, {columns}], {NEUTRAL[push.reduce]}, {dtype})")
        masked = {_masked_in(p) for p in step.pushes if p.reduce == "sum" and p not in spare}
        end = "longest"
        if step.stores:
            end = "extent(reach + lead)"
            if len(sweep.leaves) > 1:
                self.reach(s, word)
        self.line(1, f"for t in range(0, {end}, BLOCK_T):")
        self.line(2, f"c, m, k, at = tile({word}_positions, {word}_tokens, first, size, lead, t, BLOCK_T, VECTOR)")
        precision = "tl.float64" if step.wide else "REAL"
        for node in self.in_turn(2, [*step.values, *step.pushes]):
            if isinstance(node, Push):
                self.add(node, names[step.wide], precision)
            else:
                self.token_value(node, s, node in precise, names, node in masked)
        for node in self.in_turn(2, step.aside):
            value = typed(names[True][node], "tl.float64")
            self.line(2, f"tl.store({self.slots[node]} + k, {value}, mask=m)")
        for k, node in step.stores:
            value = f"tl.where(m, {typed(names[node in precise][node], precision)}, fill)"
            self.line(
                2, f"put({self.out(k)}, start, {word}_positions, at, t, c, m, lead, reach, fewest, {value}, VECTOR)"
            )
        read = {o for other in sweep.steps for n in other.values for o in n.operands}
        for push in self.in_turn(1, step.pushes):
            part = self.names[push]
            halved = push.reduce == "sum" and words[push] == "column"
            made = f"halved({part}, lead, VECTOR)" if halved else f"tl.{push.reduce}({part}, axis=1)"
            made += ".to(tl.float64)" if words[push] == "mark" else ""
            if push in sweep.saved and push not in read:
                self.line(1, f"save({self.arrays[push]} + b, {made}, live, BLOCK_T)")
                continue
            self.line(1, f"{part} = {made}")
            self.known.add(push)
            if push in sweep.saved:
                self.save(1, push)

    def out(self, output: Key) -> str:
        """The array that an output over tokens is written to."""
        return self.called("result", result_of(self.plan, output))

    def reach(self, s: str, word: str) -> None:
        """Writes how far a row's stores go."""
        if len(self.plan.program.leaves) > 1:  # results are filled already: no leaf's tokens are whole rows
            self.line(1, "reach, fewest = size, tl.min(size + lead, axis=0)")
            return
        where = f"{word}_starts, {word}_positions, {word}_tokens"
        self.line(1, f"reach, fewest = reach_of({where}, b, live, start, size, lead, {self.size(s)}, places)")

    def spread(self, node: Pull, wide: bool, narrow: dict[Node, str]) -> str:
        """The name of a value of a segment, or of the batch, in the shape and the precision of a pass over tokens."""
        if isinstance(node.operand, Const):
            return constant(node.operand.value)
        if not wide and node in narrow:
            return narrow[node]
        self.need(1, node.operand)
        name = self.free(f"{self.names[node]}_f64") if wide else self.names[node]
        shape = "[:, None]"
        if node.operand in self.lone:
            shape = "[None, None]" if node in self.joined else ""
        text = self.names[node.operand] + ("" if wide else ".to(REAL)") + shape
        self.line(1, f"{name} = {text}")
        if not wide:
            narrow[node] = name
        return name

    def add(self, push: Push, names: Mapping[Node, str], precision: str) -> None:
        part, value = self.names[push], typed(names[push.operand], precision)
        if push in self.plan.spare:
            self.line(2, f'{part} = added({part}, {value}, m, "{push.reduce}")')
            return
        if push.reduce == "max":
            value = f"tl.where(m, {value}, {NEUTRAL[push.reduce]})"
        elif not isinstance(_masked_in(push), Map):
            value = f"tl.where(m, {value}, 0.0)"
        if is_mark(push.operand):
            value = f"of_vectors({value})"
        elif precision != "tl.float64":
            value += ".to(tl.float64)"
        self.line(2, f"{part} += {value}" if push.reduce == "sum" else f"{part} = tl.maximum({part}, {value})")

    def read_as(self, step: Pass, precise: set[Node], wide: bool) -> dict[Node, str]:
        """The values of a pass, in float64 or in the tokens' precision."""
        names: dict[Node, str] = {}
        for node in step.values:
            if isinstance(node, Const):
                names[node] = constant(node.value)
            elif (node in precise) is wide:
                names[node] = self.names[node]
            else:
                names[node] = self.names[node] + (".to(tl.float64)" if wide else ".to(REAL)")
        return names

    def token(self, tensor: str) -> str:
        return f"tl.load(from_row({tensor}, origin, VECTOR) + at)"

    def token_value(
        self, node: Node, s: str, wide: bool, every: Mapping[bool, Mapping[Node, str]], masked: bool
    ) -> None:
        """Writes a value of tokens. `masked`: it is 0 in columns without a token."""
        precision, names = "tl.float64" if wide else "REAL", every[wide]
        if isinstance(node, Const) or (isinstance(node, Pull) and node.target in (s, BATCH)):
            return
        name = names[node]
        if isinstance(node, Input) and node.kind in GIVEN:
            self.line(2, f"if {self.called('rows', s)} is None:")
            self.line(3, f"{name} = {self.token(self.called('advantage'))}.to({precision})")
            self.line(2, "else:")
            self.line(3, f"{name} = row_advantage.to({precision})")
        elif isinstance(node, Input) and node.kind in TOKENS:
            tensor = self.called("token", node.kind, *node.key)
            self.line(2, f"{name} = {self.token(tensor)}.to({precision})")
        elif isinstance(node, (Scan, Input, Pull)):
            there = "size[:, None] > 0"
            text = f"tl.load({self.arrays.get(node)} + k, mask={there}, other={HARMLESS})"
            if isinstance(node, Pull):
                parent = f"tl.load({self.called('parent', node.source, node.target)} + k, mask={there}, other=0)"
                text = self.loaded(node.operand, parent, there)
            self.line(2, f"{name} = {text}.to({precision})")
        elif isinstance(node, Map):
            operands = [constant(o.value) if isinstance(o, Const) else names[o] for o in node.inputs]
            self.map(2, node, operands, wide, "tl.where(m, {}, 0.0)" if masked else "{}")
        else:
            raise BackendError(f"the triton backend cannot emit {type(node).__name__} on {node.stratum}")


def _masked_in(push: Push) -> Node:
    """What is 0 in columns without a token, so that a sum's values are: they choose between it, its opposite and 0."""
    found = push.operand
    while isinstance(found, Map) and (i := _zero_with(found.body)) is not None and isinstance(found.inputs[i], Map):
        found = found.inputs[i]
    return found


def _zero_with(body: Scalar) -> int | None:
    """The only argument that a body is 0 with, whatever the others are: it is chosen, or its opposite, or 0."""
    if body.op == "arg":
        return int(body.value or 0)
    parts = [a for a in body.args[body.op == "select" :] if a is not ZERO] if body.op in ("neg", "select") else []
    found = {_zero_with(a) for a in parts}
    return found.pop() if len(found) == 1 else None


def _known_before(sweep: Sweep) -> list[Node]:
    """The values of segments and of the batch that a sweep reads and does not compute."""
    computed = {n for step in sweep.steps for n in (*step.values, *(step.pushes if isinstance(step, Pass) else ()))}
    values = [n for step in sweep.steps for n in step.values]
    gathered = [n for n in values if isinstance(n, Pull) and n.source == sweep.segments]
    read = [o for n in values if n not in gathered for o in (n, *n.operands)] + gathered
    own = (n for n in dict.fromkeys(read) if n.stratum in (sweep.segments, BATCH))
    return [
        n
        for n in own
        if isinstance(n, Input)
        or (isinstance(n, (Push, Map)) and n not in computed)
        or (n in gathered and n.operands[0] not in computed)
    ]
