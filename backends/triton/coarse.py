"""Writes the kernels of coarse stages: sums over segments and coarser elements, and what is computed from them.

A coarse stage is a launch of its own. Its programs share the sums over segments, which are many: each computes the sums
of some coarser elements, and its part of the sums over the batch. The last program to arrive adds up the parts and
does the work that needs all results.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from fibration.backends.triton.language import constant
from fibration.backends.triton.writer import Kernel, Writer, times, uses
from fibration.compiler.ir import BATCH, Const, Input, Map, Mix, Node, Push, Quantile, Scan
from fibration.compiler.plan import Coarse, Group
from fibration.errors import BackendError

# Elements that a program of 8 warps takes at once: for scalar work, which needs many registers; for sums, which need
# many loads; and for its part of a sum over the batch.
VALUES, SUMS, WHOLE, PART = 256, 1024, 4096, 512
MOST_PARTS = 128  # `PARTS` of functions.py
TOGETHER = 4  # the sums over the same fibres that one loop takes
PARTS_TOGETHER = 8  # the parts of sums over the batch that one loop takes: loads of few elements, which wait together


class CoarseWriter(Writer):
    def coarse_stage(self, name: str, stage: Coarse) -> Kernel:
        """The kernel of a stage without calls."""
        self.coarse = True
        spare = self.plan.spare.issuperset(stage.saved)
        self.spare = frozenset() if spare else self.plan.spare
        strata = ", ".join(dict.fromkeys(g.stratum for g in stage.groups))
        shared = _shared(stage)
        parted = [g for g in stage.groups if g not in shared and _is_parted(g, stage)]
        rest = [g for g in stage.groups if g not in shared and g not in parted]
        how = "One program computes them."
        if shared or parted:
            last = parted or rest
            how = "All programs compute sums, and the last computes the rest." if last else "All programs share them."
        doc = "\n".join(textwrap.wrap(f'"""Values of {strata}. {how}"""', 114))
        if shared:
            self.line(1, "low = tl.program_id(0).to(tl.int64) * own")
            self.line(1, f"high = tl.minimum(low + own, {self.size(shared[0].stratum)})")
            self.groups(shared, stage, ("low", "high"))
        if parted:
            self.line(1, "part, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)")
        runs = [(g.source, run) for g in parted for run in self.runs(g.values, PARTS_TOGETHER)]
        places = [sum(len(run) for _, run in runs[:i]) for i in range(len(runs) + 1)]
        memory = [" + ".join(["parts", *times(n, "programs")]) for n in places]
        for i, ((source, run), to) in enumerate(zip(runs, memory, strict=False)):
            if not i or source != runs[i - 1][0]:
                self.line(1, f"# this program's part of sums and maxima over the {source} elements of the batch")
            self.push(run, to, "programs", self.summed(run[0]), ("part", "part + 1"), ("1", str(PART)))
        if parted or (shared and rest):
            self.line(1, "if last_to_arrive(counter):")
            self.inside = 1
        for (_, run), of in zip(runs, memory, strict=False):
            self.push(run, self.arrays[run[0]], "1", (of, "programs", "1"), ("0", "1"), ("1", str(MOST_PARTS)))
        if parted and rest:
            self.barrier()
        self.groups(rest, stage, None)
        self.coarse, self.inside = False, 0
        edges = {f"F_{a.name}": a.key for a in self.arguments if a.kind == "order"}
        words = [name, *([f"elements={self.size(shared[0].stratum)}"] if shared else [])]
        programs = [f"parts_of({self.size(source)}, {PART})" for source in dict.fromkeys(str(g.source) for g in parted)]
        if programs:
            most = f"max({', '.join(programs)})" if len(programs) > 1 else programs[0]
            words += [f"programs={most}", f"parts={places[-1]}"]
        body = "\n".join(self.lines)
        words += [f"{c}=fibre_block({', '.join(map(self.size, edge))})" for c, edge in edges.items() if uses(body, c)]
        return self.wrapped(name, list(edges), doc, f"call.coarse({', '.join(words)})", spare)

    def runs(self, values: Iterable[Node], most: int) -> list[list[Push]]:
        """Sums that one loop takes: their vectors are neighbours in memory, and they are too."""

        def beside(p: Push, q: Push) -> bool:
            pairs, place = ((p, q), (p.operand, q.operand)), self.places
            near = all(x in place and place.get(y) == place[x] + 1 and x.stratum == y.stratum for x, y in pairs)
            return near and (p.reduce, p in self.spare) == (q.reduce, q in self.spare)

        found: list[list[Push]] = []
        pushes = (p for p in values if isinstance(p, Push))
        for push in sorted(pushes, key=lambda p: (p in self.spare, self.places[p])):
            if found and len(found[-1]) < most and beside(found[-1][-1], push):
                found[-1].append(push)
            else:
                found.append([push])
        return found

    def push(
        self, run: Sequence[Push], to: str, targets: str, of: Sequence[str], within: Sequence[str],
        shape: Sequence[str], fibres: Sequence[str] = ("None", "None"),
    ) -> None:  # fmt: skip
        """Writes sums and maxima. `of`: the vector, its length, and how far its elements are apart. `shape`: how many
        targets, and elements over each of them, are summed at a time."""
        with self.if_metrics(1, run[0] in self.spare):
            for line in textwrap.wrap(", ".join(self.names[p] for p in run), 100):
                self.line(1, f"# {line}")
            vectors = str(1 << (len(run) - 1).bit_length())  # the next power of 2
            given = (to, targets, *of, str(len(run)), *fibres, *within, vectors, *shape)
            self.line(1, f'push({", ".join(given)}, "{run[0].reduce}")')

    def summed(self, push: Push) -> tuple[str, str, str]:
        """The vector of a sum, its length, and how far its elements are apart."""
        if isinstance(push.operand, Const):
            raise BackendError("the triton backend adds up no constant")
        is_parameter = isinstance(push.operand, Input) and push.operand.kind == "parameter"
        step = self.called("stride", push.operand) if is_parameter else "1"
        return self.arrays[push.operand], self.size(push.source), step

    def barrier(self) -> None:
        self.line(1, "tl.debug_barrier()")

    def groups(self, groups: list[Group], stage: Coarse, ends: tuple[str, str] | None) -> None:
        """Writes the groups one after the other, for the elements between `ends`, or for all."""
        for i, group in enumerate(groups):
            within = ends or ("0", self.size(group.stratum))
            with self.if_metrics(1, self.spare.issuperset(group.values)):
                if i:
                    self.barrier()
                if isinstance(group.values[0], Mix):
                    for node in self.in_turn(1, group.values):
                        self.product(node)
                elif group.source:
                    self.sums(group, within)
                else:
                    self.elements(group, stage, within)

    def quantile(self, node: Quantile) -> Kernel:
        """The call for a quantile of values that sweeps have set aside."""

        orders, befores = ([self.called(kind, s, node.target) for s in node.sources] for kind in ("order", "members"))
        lists = [[self.vector(v) for v in node.values], orders, befores, [self.size(s) for s in node.sources]]
        given = [f"[{', '.join(words)}]" for words in lists]
        return self._called(node, "digits", "quantile", [self.vector(node), *given, self.vector(node.level)])

    def scans(self, nodes: list[Scan]) -> Kernel:
        """The call for sums in order, of values that sweeps have set aside or coarse stages have saved. `nodes` are the
        same sums into different strata."""
        node, into = nodes[0], {n.into: self.vector(n) for n in nodes}
        sizes = [*map(self.size, node.sources)]
        lists = [[into.get(s, "None") for s in node.sources], [*map(self.vector, node.values)], sizes]
        tokens = "tokens" if node.into in self.plan.program.leaves else " + ".join(sizes)
        shape = f"shape or shape_for({tokens} / {self.size(node.target)})"
        order, before = (self.called(kind, *node.order) for kind in ("sequence", "sequence_members"))
        given = [*(f"[{', '.join(words)}]" for words in lists), order, before]
        return self._called(node, "along", "scan", [*given, self.vector(node.discount), str(node.forward), shape])

    def _called(self, node: Node, kernel: str, function: str, given: list[str]) -> Kernel:
        """A call of a function of functions.py."""
        call = "\n".join([f"{function}(", *(f"    {g}," for g in given), ")  # fmt: skip"])
        used = tuple(a for a in self.arguments if uses(call, a.name))
        return Kernel(kernel, used, call, spare=node in self.plan.spare)

    def vector(self, node: Node) -> str:
        """The text of a coarse value, or of a token value that was set aside: a tensor, or a number."""
        if node not in self.slots:
            return constant(node.value) if isinstance(node, Const) else self.arrays[node]
        first = self.first[node.stratum]
        start = self.slots[node].replace(first, self.starts[node.stratum], 1).removeprefix("work").removeprefix(" + ")
        return f"work[{start or '0'} :][: {self.size(node.stratum)}]"

    def sums(self, group: Group, within: tuple[str, str]) -> None:
        """Writes sums and maxima over the fibres of one fibration, in a fixed order."""
        a, b = str(group.source), group.stratum
        if a == BATCH:  # the batch over itself
            for push in self.in_turn(1, group.values):
                self.line(1, f"tl.store({self.arrays[push]}, {self.loaded(push.operands[0], '')})")
            return
        self.line(1, f"# sums and maxima over the {a} elements of {'the batch' if b == BATCH else f'each {b}'}")
        for run in self.runs(group.values, TOGETHER):
            to = self.arrays[run[0]], self.size(b), self.summed(run[0])
            if b == BATCH:
                self.push(run, to[0], "1", to[2], ("0", "1"), ("1", str(WHOLE)))
            else:
                order, before = (self.called(kind, a, b) for kind in ("order", "members"))
                self.push(run, *to, within, (f"{SUMS} // F_{order}", f"F_{order}"), (order, before))

    def product(self, node: Node) -> None:
        """Writes a matrix of the index times a vector: one element of the result after the other."""
        if not isinstance(node, Mix) or isinstance(node.operand, Const):
            raise BackendError("the triton backend multiplies no matrix by a constant")
        matrix, columns = self.called("matrix", node.matrix), self.size(node.of)
        self.line(1, f"# {node.stratum} from {node.source}: a product with {matrix}{' transposed' * node.transposed}")
        strides = ("1", columns) if node.transposed else (columns, "1")
        sizes = (self.size(node.stratum), self.size(node.source))
        given = (self.arrays[node], matrix, self.arrays[node.operand], *sizes, *strides, str(SUMS))
        self.line(1, f"product({', '.join(given)})")

    def elements(self, group: Group, stage: Coarse, within: tuple[str, str]) -> None:
        """Writes scalar work on every element of a stratum."""
        s = group.stratum
        depth = 1 if s == BATCH else 2
        self.line(1, "# the batch" if s == BATCH else f"# each {s}")
        if s != BATCH:
            self.line(1, f"for y in range({within[0]}, {within[1]}, {VALUES}):")
            self.line(2, f"b = y + tl.arange(0, {VALUES})")
            self.line(2, f"live = b < {within[1]}")
        self.known, self.lone, self.local = set(), set(), set()
        for node in self.in_turn(depth, group.values):
            self.value(depth, node)
            if node in stage.saved:
                self.save(depth, node)


def _shared(stage: Coarse) -> list[Group]:
    """The groups that several programs do first: sums over segments by the elements of one stratum, and values computed
    from them at the same element. A stage of values alone, at the elements of one stratum, is shared too."""
    if len({g.stratum for g in stage.groups}) == 1 and not any(g.source for g in stage.groups):
        return [] if stage.groups[0].stratum == BATCH else list(stage.groups)
    computed = {n for g in stage.groups for n in g.values}
    shared: list[Group] = []
    own: set[Node] = set()
    for group in stage.groups:
        reads = {o for n in group.values for o in n.operands if o in computed} - set(group.values)
        alone = all(isinstance(n, Map) or not computed & {*n.operands} for n in group.values)
        summed = bool(group.source) and group.stratum != BATCH and not isinstance(group.values[0], Mix)
        if alone and reads <= own and (group.stratum == shared[0].stratum if shared else summed):
            shared.append(group)
            own |= {*group.values}
    return shared


def _is_parted(group: Group, stage: Coarse) -> bool:
    """Whether programs share a group's sums over the batch: of values that are known before the launch."""
    if group.stratum != BATCH or group.source in (None, BATCH) or isinstance(group.values[0], Mix):
        return False
    computed = {n for g in stage.groups for n in g.values}
    return not any(computed & {*n.operands} for n in group.values)


def is_called(stage: Coarse) -> bool:
    """Whether functions of the module do the work of a stage, with launches of their own."""
    return bool(stage.groups[0].quantiles or stage.groups[0].scans)
