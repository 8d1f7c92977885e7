"""Fused plan → the text of its kernels: one per sweep, and a function per coarse stage.

A program of a sweep's grid has `BLOCK_R` segments, whose tokens it goes over in tiles `[BLOCK_R, BLOCK_T]`. Values of
segments and everything coarser are float64. The coarse stage after a sweep is run by the program that arrives last.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fibration.backends.triton.language import RESERVED, TOKEN, WIDE, constant, typed
from fibration.calling import Argument, signature
from fibration.errors import BackendError
from fibration.ir import BATCH, Const, Input, Map, Node, Pull, Push
from fibration.sweeps import Coarse, Group, Pass, Plan, Scalars, Sweep

# Values of a coarse stage that goes along with a sweep; a larger one would take registers from all of its programs.
SMALL = 32
TOGETHER = 4  # sums over the same fibres that one loop takes
SPREAD = 4  # sums in float64 that stay spread over a tile until the loop ends
# Elements that a program takes at once, for each of its warps: scalar work needs many registers, sums many loads.
PER_WARP = {"BLOCK_C": 32, "BLOCK_S": 128}
NEUTRAL = {"sum": "0.0", "max": 'float("-inf")'}
NUMBERS = ("size", "places", "stride")
LOADED = "mask=live, other=1.0"  # 1 does no harm in a lane that is no element


@dataclass(frozen=True)
class Kernel:
    """`segments` is what its grid goes over; None for a single program. `tail` is the coarse stage it ends with."""

    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...]
    segments: str | None
    tail: Kernel | None
    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of its run-time arguments, in order."""
        counter = ("counter",) if self.tail else ()
        return (*(a.name for a in self.arguments if a.kind != "fill"), *counter)


def kernels(name: str, plan: Plan) -> tuple[Kernel, ...]:
    """The kernels of a program in the order of the plan's stages, coarse ones on their own among them."""
    return _Writer(name, plan).kernels()


class _Writer:
    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.arguments = signature(plan)
        self.leaf = plan.program.leaf
        given = {a.name for a in self.arguments}
        self.taken = {*plan.names.values(), *RESERVED, *given}
        self.names = {n: self._free(f"{w}_") if w in given else w for n, w in plan.names.items()}
        self.arrays = {n: self._free(f"{self.names[n]}_of") for n in plan.saved}
        self.offsets = self._offsets()
        self.arrays.update({n: f"{n.name}_of" for n in plan.program.inputs})
        strata = dict.fromkeys(n.stratum for n in plan.program.nodes())
        self.over = {s: self._free(f"over_{s}") for s in strata}  # the number of the element that each lies over
        self.lines: list[str] = []
        self.known: set[Node] = set()  # coarse values that have their name in this kernel
        self.lone: set[Node] = set()  # those of them that are one number rather than one per element
        self.local: set[str] = set()  # names of other things that are there already
        self.cached = ""

    def _free(self, word: str) -> str:
        while word in self.taken:
            word += "_"
        self.taken.add(word)
        return word

    def _offsets(self) -> dict[str, str]:
        """Where each vector starts in the workspace."""
        found, before = {}, dict.fromkeys((n.stratum for n in self.plan.saved), 0)
        for node in self.plan.saved:
            terms = [str(k) if s == BATCH else f"n_{s}" if k == 1 else f"{k} * n_{s}" for s, k in before.items() if k]
            found[self.arrays[node]] = " + ".join(["work", *terms])
            before[node.stratum] += 1
        return found

    def line(self, depth: int, text: str = "", note: str = "") -> None:
        lines = text.splitlines() or [""]
        lines[-1] += f"  # {note}" if note else ""
        self.lines += [textwrap.indent(line, "    " * depth) for line in lines]

    def kernels(self) -> tuple[Kernel, ...]:
        found: list[Kernel] = []
        numbers = {Sweep: itertools.count(1), Coarse: itertools.count(1)}
        stages = list(self.plan.stages)
        while stages:
            stage = stages.pop(0)
            if isinstance(stage, Coarse):
                found.append(self._coarse(f"{self.name}_coarse_{next(numbers[Coarse])}", stage))
                continue
            tail = None
            if stages and isinstance(stages[0], Coarse) and sum(len(g.values) for g in stages[0].groups) <= SMALL:
                tail = self._coarse(f"{self.name}_coarse_{next(numbers[Coarse])}", stages.pop(0))  # type: ignore[arg-type]
            found.append(self._sweep(f"{self.name}_sweep_{next(numbers[Sweep])}", stage, tail))
        return tuple(found)

    def _kernel(self, name: str, constants: list[str], segments: str | None, tail: Kernel | None, doc: str) -> Kernel:
        """Wrap up the lines that were written: only what they use becomes an argument."""
        body = "\n".join(self.lines)
        used = tuple(a for a in self.arguments if _uses(body, a.name))
        sizes = [f"    {a.name} = {a.name}.to(tl.int64)" for a in used if a.kind in NUMBERS]
        constants = [c for c in [*constants, "WIDE", "fill"] if _uses(body, c)]
        names = [a.name for a in used if a.kind != "fill"] + (["counter"] if tail else [])
        numbers = [a.name for a in used if a.kind in NUMBERS]
        wrapped = textwrap.wrap(", ".join(names) + ",", 112)
        wrapped += textwrap.wrap(", ".join(f"{c}: tl.constexpr" for c in constants) + ",", 112)
        decorator = "\n".join(
            textwrap.wrap(
                f"@triton.jit(do_not_specialize=[{', '.join(map(repr, numbers))}])",
                118,
                subsequent_indent=" " * 31,
                break_long_words=False,
            )
        ).replace("'", '"')
        text = "\n".join(
            [
                decorator if numbers else "@triton.jit",
                f"def {name}(",
                *(f"    {w}" for w in wrapped),
                "):  # fmt: skip",
                textwrap.indent(doc, "    "),
                *sizes,
                body,
            ]
        )
        self.lines, self.known, self.lone, self.local = [], set(), set(), set()
        return Kernel(name, used, tuple(constants), segments, tail, text.rstrip())

    def name_arrays(self, since: int) -> None:
        """Say where in the workspace the vectors are that the lines from there on use: near them, to need no registers
        before."""
        body = "\n".join(self.lines[since:])
        self.lines[since:since] = [f"    {a} = {offset}" for a, offset in self.offsets.items() if _uses(body, a)]

    # ------------------------------------------------------------ coarse values, in float64

    def address(self, node: Node, element: str) -> str:
        if isinstance(node, Input) and node.kind == "parameter":
            element = f"{element} * {node.name}_stride"
        return f"{self.arrays[node]} + {element}"

    def loaded(self, node: Node, element: str, mask: str = LOADED) -> str:
        """A vector's value at an element, from its array; what this launch has written is read past the first cache."""
        cached = "" if isinstance(node, Input) else self.cached
        if node.stratum == BATCH:
            return f"tl.load({self.arrays[node]}{cached})"
        return f"tl.load({self.address(node, element)}, {mask}{cached})"

    def need(self, depth: int, node: Node) -> None:
        """Bring a coarse value that comes from memory into its name."""
        if node in self.known or isinstance(node, Const):
            return
        if isinstance(node, Pull) and node not in self.arrays:
            self.value(depth, node)
            return
        self.line(depth, f"{self.names[node]} = {self.loaded(node, 'b')}")
        self.known.add(node)
        if node.stratum == BATCH:
            self.lone.add(node)

    def value(self, depth: int, node: Node) -> None:
        """Compute one coarse value under its name."""
        name = self.names[node]
        if isinstance(node, Pull):
            if node.target == BATCH and isinstance(node.operand, Const):
                self.line(depth, f"{name} = {typed(constant(node.operand.value), 'tl.float64')}")
            elif node.target == BATCH:
                self.line(depth, f"{name} = {self.loaded(node.operand, '')}")
            else:
                over = self.over[node.target]
                if over not in self.local:
                    self.local.add(over)
                    self.line(depth, f"{over} = tl.load({node.target}_of_{node.source} + b, mask=live, other=0)")
                self.line(depth, f"{name} = {self.loaded(node.operand, over)}")
            if node.target == BATCH:
                self.lone.add(node)
        elif isinstance(node, Map):
            for o in node.inputs:
                self.need(depth, o)
            operands = [constant(o.value) if isinstance(o, Const) else self.names[o] for o in node.inputs]
            before, text = WIDE.write(node.body, operands, name, self.taken)
            for part, shared in before:
                self.line(depth, f"{part} = {shared}")
            self.line(depth, f"{name} = {typed(text, 'tl.float64')}")
            if all(o in self.lone or isinstance(o, Const) for o in node.inputs):
                self.lone.add(node)
        else:
            raise BackendError(f"the triton backend cannot emit {type(node).__name__}")
        self.known.add(node)

    def save(self, depth: int, node: Node) -> None:
        if node.stratum == BATCH:
            self.line(depth, f"tl.store({self.arrays[node]}, {self.names[node]})")
        else:
            self.line(depth, f"tl.store({self.arrays[node]} + b, {self.names[node]}, mask=live)")

    # ------------------------------------------------------------ coarse stages

    def _coarse(self, name: str, stage: Coarse) -> Kernel:
        self.cached = ', cache_modifier=".cg"'
        blocks: dict[str, None] = {"BLOCK_C": None, "BLOCK_S": None}
        for i, group in enumerate(stage.groups):
            if i:
                self.line(1, "tl.debug_barrier()")
            if group.source:
                for at in range(0, len(group.values), TOGETHER):
                    self.sums(group, group.values[at : at + TOGETHER], blocks)
            else:
                self.elements(group, stage)
        self.cached = ""
        strata = ", ".join(dict.fromkeys(g.stratum for g in stage.groups))
        return self._kernel(name, list(blocks), None, None, f'"""Values over {strata}, by one program."""')

    def sums(self, group: Group, pushes: Iterable[Node], blocks: dict[str, None]) -> None:
        """Sums and maxima over the fibres of one fibration, in a fixed order."""
        a, b = str(group.source), group.stratum
        chosen = [p for p in pushes if isinstance(p, Push)]
        whole = b == BATCH
        self.line(1, f"# over the {a} elements of {'the batch' if whole else f'each {b}'}")
        since = len(self.lines)
        if whole:
            shape, axis, depth = "[BLOCK_S]", 0, 1
        else:
            rows, columns = f"Y_{a}_by_{b}", f"F_{a}_by_{b}"
            blocks[rows] = blocks[columns] = None
            shape, axis, depth = f"[{rows}, {columns}]", 1, 2
            self.line(1, f"for y in range(0, n_{b}, {rows}):")
            self.line(2, f"b, live, first, size = fibres({a}_before_{b}, y, n_{b}, {rows})")
        parts = {p: self._free(f"{self.names[p]}_tile") for p in chosen}
        for push, part in parts.items():
            self.line(depth, f"{part} = tl.full({shape}, {NEUTRAL[push.reduce]}, tl.float64)")
        if whole:
            self.line(1, f"for f in range(0, n_{a}, BLOCK_S):")
            self.line(2, "a = f + tl.arange(0, BLOCK_S)")
            self.line(2, f"m = a < n_{a}")
        else:
            self.line(2, f"for f in range(0, tl.max(size, axis=0), {columns}):")
            self.line(3, f"a, m = members({a}_by_{b}, first, size, f, {columns})")
        for push, part in parts.items():
            neutral = NEUTRAL[push.reduce]
            if isinstance(push.operand, Const):
                x = f"tl.where(m, {constant(push.operand.value)}, tl.full([], {neutral}, tl.float64))"
            else:
                x = self.loaded(push.operand, "a", f"mask=m, other={neutral}")
            self.line(depth + 1, f"{part} += {x}" if push.reduce == "sum" else f"{part} = tl.maximum({part}, {x})")
        for push, part in parts.items():
            total = f"tl.{push.reduce}({part}, axis={axis})"
            array = self.arrays[push]
            self.line(depth, f"tl.store({array}, {total})" if whole else f"tl.store({array} + b, {total}, mask=live)")
        self.name_arrays(since)

    def elements(self, group: Group, stage: Coarse) -> None:
        """Scalar work on every element of a stratum."""
        s = group.stratum
        depth = 1 if s == BATCH else 2
        self.line(1, "# the batch" if s == BATCH else f"# each {s}")
        since = len(self.lines)
        if s != BATCH:
            self.line(1, f"for y in range(0, n_{s}, BLOCK_C):")
            self.line(2, "b = y + tl.arange(0, BLOCK_C)")
            self.line(2, f"live = b < n_{s}")
        self.known, self.lone, self.local = set(), set(), set()
        for node in group.values:
            self.value(depth, node)
            if node in stage.saved:
                self.save(depth, node)
        self.name_arrays(since)

    # ------------------------------------------------------------ sweeps

    def _sweep(self, name: str, sweep: Sweep, tail: Kernel | None) -> Kernel:
        s = sweep.segments
        self.line(1, "b = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)", f"[BLOCK_R] {s} elements")
        self.line(1, f"live = b < n_{s}")
        self.line(1, f"first = tl.load({s}_offsets + b, mask=live, other=0)")
        self.line(1, f"size = tl.load({s}_offsets + b + 1, mask=live, other=0) - first")
        self.line(1, f"start = tl.load({s}_starts + b, mask=live, other=0)")
        self.line(1, "longest = tl.max(size, axis=0)")
        if any(i.kind == "advantage" for p in sweep.passes for i in p.reads):
            self.line(1, f"if {s}_rows is not None:")
            self.line(2, f"row = tl.load({s}_rows + b, mask=live, other=0)")
            self.line(2, "row_advantage = tl.load(advantages + row, mask=live, other=0.0)[:, None]")
        narrow: dict[Node, str] = {}
        saved = set(sweep.saved)
        number = 0
        for step in sweep.steps:
            if isinstance(step, Scalars):
                self.line(0)
                self.line(1, f"# each {s}, in float64: [BLOCK_R]")
                since = len(self.lines)
                for node in step.values:
                    self.value(1, node)
                    if node in saved:
                        self.save(1, node)
                self.name_arrays(since)
            else:
                number += 1
                self.tokens(step, sweep, narrow, number)
        stored = [k for p in sweep.passes for k, _ in p.stores]
        if stored:
            self.line(0)
            self.line(1, f"if {s}_positions is None:")
            self.line(2, "if tl.program_id(0) == 0:")
            for k in stored:
                self.line(3, f"fill_before({k}_out, tl.load({s}_starts), fill)")
        if tail:
            self.line(0)
            self.line(1, "if TAIL:  # what lies above is for the program that arrives last")
            self.line(2, "if last_to_arrive(counter):")
            given = textwrap.wrap(", ".join([*tail.names, *tail.constants]) + ",", 100)
            self.line(3, "\n".join([f"{tail.name}(", *(f"    {w}" for w in given), ")"]))
        body = "\n".join(self.lines)
        if _uses(body, "REAL"):
            self.lines.insert(0, "    REAL: tl.constexpr = tl.float64 if WIDE else tl.float32")
        constants = ["BLOCK_R", "BLOCK_T", *(["TAIL", *tail.constants] if tail else [])]
        return self._kernel(name, constants, s, tail, f'"""Sweep over {s}: {_passes(sweep)}."""')

    def tokens(self, step: Pass, sweep: Sweep, narrow: dict[Node, str], number: int) -> None:
        """The loop over the tokens of a program's segments."""
        s = sweep.segments
        precision, language = ("tl.float64", WIDE) if step.wide else ("REAL", TOKEN)
        names = dict(self.names)
        names.update((n, constant(n.value)) for n in step.values if isinstance(n, Const))
        self.line(0)
        wide = "float64" if step.wide else "the tokens' precision"
        self.line(1, f"# pass {number} over the tokens, in {wide}: [BLOCK_R, BLOCK_T]")
        since = len(self.lines)
        for node in step.values:
            if isinstance(node, Pull) and node.target in (s, BATCH):
                names[node] = self.spread(node, step.wide, narrow)
        spread = step.wide and len(step.pushes) <= SPREAD
        parts = {p: self._free(f"{self.names[p]}_tile") if spread else self.names[p] for p in step.pushes}
        for push, part in parts.items():
            shape = "[BLOCK_R, BLOCK_T]" if spread else "[BLOCK_R]"
            self.line(1, f"{part} = tl.full({shape}, {NEUTRAL[push.reduce]}, tl.float64)")
        end = "longest"
        if step.stores:
            end = "tl.max(reach, axis=0)"
            self.reach(s)
        self.line(1, f"for t in range(0, {end}, BLOCK_T):")
        self.line(2, "i = t + tl.arange(0, BLOCK_T)[None, :]")
        self.line(2, "m = i < size[:, None]")
        start_of_body = len(self.lines)
        for node in step.values:
            self.token_value(node, s, precision, language.write, names)
        for push, part in parts.items():
            self.add(push, part, names, precision, spread)
        for k, node in step.stores:
            value = f"tl.where(m, {typed(names[node], precision)}, fill)"
            self.line(2, f"tl.store({k}_out + at, {value}, mask=i < reach[:, None])")
        body = "\n".join(self.lines[start_of_body:])
        before = []
        if _uses(body, "at"):
            before.append(f"        at = place({s}_positions, first, start, i, m)")
        if _uses(body, "k"):
            before.append(f"        k = number({s}_tokens, first, i, m)")
        self.lines[start_of_body:start_of_body] = before
        for push, part in parts.items():
            if spread:
                self.line(1, f"{self.names[push]} = tl.{push.reduce}({part}, axis=1)")
            self.known.add(push)
            if push in sweep.saved:
                self.save(1, push)
        self.name_arrays(since)

    def reach(self, s: str) -> None:
        """How far a row's stores go."""
        self.line(1, "reach = size")
        self.line(1, f"if {s}_positions is None:  # masked places after a row's tokens are its own to fill")
        self.line(2, f"following = tl.load({s}_starts + b + 1, mask=b + 1 < n_{s}, other=places)")
        self.line(2, "reach = tl.where(live, following - start, 0)")

    def spread(self, node: Pull, wide: bool, narrow: dict[Node, str]) -> str:
        """A value of a segment, or of the batch, beside its tokens and in their precision."""
        if isinstance(node.operand, Const):
            return constant(node.operand.value)
        if not wide and node in narrow:
            return narrow[node]
        self.need(1, node.operand)
        name = self._free(f"{self.names[node]}_f64") if wide else self.names[node]
        shape = "" if node.operand in self.lone else "[:, None]"
        text = self.names[node.operand] + ("" if wide else ".to(REAL)") + shape
        self.line(1, f"{name} = {text}")
        if not wide:
            narrow[node] = name
        return name

    def add(self, push: Push, part: str, names: Mapping[Node, str], precision: str, spread: bool) -> None:
        value = f"tl.where(m, {typed(names[push.operand], precision)}, {NEUTRAL[push.reduce]})"
        if not spread:
            value = f"tl.{push.reduce}({value}, axis=1)" + ("" if precision == "tl.float64" else ".to(tl.float64)")
        self.line(2, f"{part} += {value}" if push.reduce == "sum" else f"{part} = tl.maximum({part}, {value})")

    def token_value(
        self, node: Node, s: str, precision: str, write: Callable[..., tuple[list[tuple[str, str]], str]],
        names: Mapping[Node, str],
    ) -> None:  # fmt: skip
        if isinstance(node, Const) or (isinstance(node, Pull) and node.target in (s, BATCH)):
            return
        name = names[node]
        if isinstance(node, Input) and node.kind == "advantage":
            self.line(2, f"if {s}_rows is None:")
            self.line(3, f"{name} = tl.load(advantages + at, mask=m, other=0.0).to({precision})")
            self.line(2, "else:")
            self.line(3, f"{name} = row_advantage.to({precision})")
        elif isinstance(node, Input):
            if node.kind == "log_ratio" and "objective" in self.plan.program.outputs:
                self.line(2, f"now = tl.load(log_probs + at, mask=m, other=0.0).to({precision})")
                self.line(2, f"old = tl.load(old_log_probs + at, mask=m, other=0.0).to({precision})")
                self.line(2, f"{name} = now - old")
            elif node.kind in ("log_ratio", "cotangent"):
                self.line(2, f"{name} = tl.load({node.kind}s + at, mask=m, other=0.0).to({precision})")
            else:
                self.line(2, f"{name} = tl.load({self.arrays[node]} + k, mask=m, other=1.0).to({precision})")
        elif isinstance(node, Pull):
            parent = f"tl.load({node.target}_of_{self.leaf} + k, mask=m, other=0)"
            self.line(2, f"{name} = {self.loaded(node.operand, parent, 'mask=m, other=1.0')}.to({precision})")
        elif isinstance(node, Map):
            operands = [constant(o.value) if isinstance(o, Const) else names[o] for o in node.inputs]
            before, text = write(node.body, operands, name, self.taken)
            for part, shared in before:
                self.line(2, f"{part} = {shared}")
            self.line(2, f"{name} = {typed(text, precision)}")
        else:
            raise BackendError(f"the triton backend cannot emit {type(node).__name__} on {node.stratum}")


def _uses(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.]){word}\b", text) is not None


def _passes(sweep: Sweep) -> str:
    n = len(sweep.passes)
    return f"{n} pass{'es' if n != 1 else ''} over the tokens"
