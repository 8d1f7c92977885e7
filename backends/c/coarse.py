"""C code of coarse stages. Every value is a double, in arrays that outlive their stage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from fibration.backends.bodies import AnyNode, Functions, broken
from fibration.backends.c.language import RESERVED, WIDE, wide_constant
from fibration.compiler.arguments import signature
from fibration.compiler.ir import BATCH, Const, Input, Map, Mix, Node, Pull, Push, Quantile, Scan
from fibration.compiler.keys import Names
from fibration.compiler.plan import Coarse, Group, Plan, Section
from fibration.errors import BackendError


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
        self.arrays = dict(self.slots)
        self.arrays |= {a.key[0]: a.name for a in self.arguments if a.kind == "vector"}
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

    def in_turn(self, nodes: Iterable[AnyNode]) -> Iterator[AnyNode]:
        """The nodes of the loss, then those of metrics, under whose condition the caller's lines stand."""
        nodes, spare = list(nodes), self.spare
        yield from (n for n in nodes if n not in spare)
        with self.if_metrics():
            yield from (n for n in nodes if n in spare)

    # ------------------------------------------------------------ where values are

    def at(self, node: Node, element: str) -> str:
        """The text of a vector's value at an element, from its array."""
        if isinstance(node, Const):
            return wide_constant(node.value)
        if node.stratum == BATCH:
            element = "0"
        elif isinstance(node, Input) and node.kind == "parameter":
            element = f"{f'({element})' if ' ' in element else element} * {self.called('stride', node)}"
        return f"{self.arrays[node]}[{element}]"

    def gathered(self, node: Pull) -> str:
        if node.target == BATCH:
            return self.at(node.operand, "0")
        return self.at(node.operand, f"{self.called('parent', node.source, node.target)}[{self.element}]")

    # ------------------------------------------------------------ coarse strata

    def group(self, group: Group, stage: Coarse) -> None:
        with self.if_metrics(self.spare.issuperset(group.values)):
            self._group(group, stage)

    def _group(self, group: Group, stage: Coarse) -> None:
        s = group.stratum
        size = self.size(s)
        for quantile in self.in_turn(group.quantiles):
            self.quantile(quantile)
        for scan in self.in_turn(group.scans):
            self.scan(scan)
        if group.quantiles or group.scans:
            return
        if group.source:
            for push in self.in_turn(group.values):
                if isinstance(push, Mix):
                    self.mix(push)
                    continue
                assert isinstance(push, Push)
                out, x = self.arrays[push], self.arrays[push.operand]
                order, members = (self.called(kind, push.source, s) for kind in ("order", "members"))
                self.line(1, f"push_{push.reduce}({out}, {x}, {order}, {members}, {size}, threads);")
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
        rows, columns = self.size(node.into), self.size(node.of)
        call = "mix_transposed" if node.transposed else "mix"
        out, x = self.arrays[node], self.arrays[node.operand]
        self.line(1, f"{call}({out}, {self.called('matrix', node.matrix)}, {x}, {rows}, {columns}, threads);")

    def value(self, depth: int, node: Node, saved: Collection[Node]) -> None:
        """Computes one coarse value in double: in its array, in its column, or under its name."""
        before: list[tuple[str, str]] = []
        if isinstance(node, Pull):
            text = self.gathered(node)
        elif isinstance(node, Map):
            operands = [self.operand(o) for o in node.inputs]
            before, text = WIDE.write(node.body, operands, self.names[node], self.taken, self.functions)
        else:
            raise BackendError(f"the C backend cannot emit {type(node).__name__}")
        for name, part in before:
            self.assign(depth, f"const double {name}", part)
        self.put(depth, node, text, saved)

    def put(self, depth: int, node: Node, text: str, saved: Collection[Node]) -> None:
        """Writes where a value of the element goes: into an array, or under its name."""
        if node in saved or node in self.columns:
            self.assign(depth, self.operand(node), text)
        else:
            self.assign(depth, f"const double {self.names[node]}", text)
            self.local.add(node)

    def operand(self, node: Node) -> str:
        """The text of a coarse value at the element of the loop."""
        if node in self.local:
            return self.names[node]
        if node in self.columns:
            return f"{self.columns[node]}[r]"
        if isinstance(node, Pull) and node not in self.arrays:
            return self.gathered(node)
        return self.at(node, self.element)

    def assign(self, depth: int, to: str, text: str) -> None:
        first, *rest = text.splitlines()
        self.line(depth, "\n".join([f"{to} = {first}", *rest]) + ";")
