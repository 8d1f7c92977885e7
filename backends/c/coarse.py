"""C code of coarse stages, and what all loops are written with. Every coarse value is a double."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from fibration.backends.bodies import AnyNode, Functions, broken
from fibration.backends.c.language import RESERVED, TOKEN, WIDE, wide_constant
from fibration.compiler.arguments import signature
from fibration.compiler.ir import BATCH, Const, Input, Map, Mix, Names, Node, Pull, Push, Quantile, Scan
from fibration.compiler.plan import Coarse, Group, Plan, Section, gathers
from fibration.errors import BackendError

FIBRES = "order", "members"


class CoarseStages:
    """Writes one C function: the places of its values, and its loops over coarse strata."""

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
        if not isinstance(node, Pull):
            raise BackendError(f"the C backend cannot emit {type(node).__name__} on {node.stratum}")
        if node.target == BATCH:
            return self.at(node.operand, "0")
        return self.at(node.operand, f"{self.called('parent', node.source, node.target)}[{self.element}]")

    def operand(self, node: Node, wide: bool) -> str:
        """The text of a value at the element of the loop."""
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
            self.line(1, f"#pragma omp parallel for num_threads(threads) if ({size} > LONG)")
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
