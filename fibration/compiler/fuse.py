"""Fuses a program into a plan: the loops over tokens and coarser strata that compute it, in order.

The sums and reads of tokens go through the segments of their leaf (`route`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from fibration.compiler import ir
from fibration.compiler.arguments import signature
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Mix, Node, Pull, Push, Quantile, Scan, broadcast
from fibration.compiler.optimise import subtracted
from fibration.compiler.plan import Coarse, Group, Pass, Plan, Scalars, Spread, Stage, Sweep, counts, gathers
from fibration.compiler.program import Program
from fibration.compiler.reuse import compared, cost, sums_of_one_pass
from fibration.compiler.schedule import value_names
from fibration.compiler.spread import collected, exact
from fibration.errors import IRError


def route(program: Program, rows: str) -> Program:
    """Sends sums over all tokens through the segments. Tokens read coarser strata through their segment too."""
    first = {leaf: segments_of(program, rows, leaf) for leaf in program.leaves}
    return program.mapped(lambda node: _routed(node, program, first)).validate()


def segments_of(program: Program, rows: str, leaf: str) -> str:
    """The stratum that groups a leaf's tokens first: the finest that they lie over.

    Of several it is the rows, if they are among them, because a row's tokens are adjacent. Without one it is the rows.
    """
    targets = [t for s, t in program.edges if s == leaf and t != BATCH]
    finer = [t for t in targets if not any(t in _reached(program, other) for other in targets if other != t)]
    return rows if rows in finer or not finer else finer[0]


def _reached(program: Program, stratum: str) -> set[str]:
    """Every stratum that `stratum` lies over, by the edges of the program."""
    found: set[str] = {BATCH}
    frontier = [stratum]
    while frontier:
        here = frontier.pop()
        for source, target in program.edges:
            if source == here and target not in found:
                found.add(target)
                frontier.append(target)
    return found


def _path(program: Program, source: str, target: str) -> list[str]:
    """Strata from `source` to `target`, both included, shortest first."""
    paths = [[source]]
    while paths:
        path = paths.pop(0)
        if path[-1] == target:
            return path
        paths += [[*path, t] for s, t in program.edges if s == path[-1] and t != BATCH]
    return [source, target]  # every stratum lies over the batch


def _routed(node: Node, program: Program, segments: Mapping[str, str]) -> Node:
    first = segments.get(getattr(node, "source", ""))
    if first is None or not isinstance(node, (Push, Pull)):
        return node
    leaf = node.source
    if isinstance(node, Push):
        if node.target == BATCH and first != leaf:
            return Push(first, BATCH, replace(node, target=first), node.reduce)
        return node
    value = node.operand
    reached = _reached(program, first)
    while node.target != first and value.stratum not in reached and isinstance(value, Pull):
        value = value.operand  # values below a crossing are read through the segment
    if value.stratum == BATCH:
        return Pull(leaf, BATCH, value)
    if node.target == first or value.stratum not in reached:
        return node
    return Pull(leaf, first, broadcast(value, _path(program, first, value.stratum)))


SHARED = 64  # the cost of values that are a stage of their own, because many programs can share it


def sweeps(
    program: Program,
    rows: str,
    reserved: frozenset[str] = frozenset(),
    spread: Spread | None = None,
    within: bool = True,
    by_length: bool = False,
    metrics: Collection[Key] = (),
) -> Plan:
    """The plan of a program. `rows` is the stratum of the batch's rows; the tokens of a row are adjacent.

    If the batch is `spread` over ranks, collectives stand between the stages. `within`: a sweep computes the quantiles
    and sums in order of its own segments; otherwise a coarse stage does. `by_length`: the longest segments come first.
    `metrics`: the outputs that a call may leave out.
    """
    program = route(program.mapped(subtracted), rows)
    units: Mapping[Push, float] = {}
    if spread is not None:
        program, units = exact(program, spread)
    stages: Iterable[Stage] = _Planner(program, rows, spread, within).stages()
    if spread is not None:
        stages = collected(stages, program, spread, units)
    plan = Plan(program, rows, tuple(stages), {}, spread, reserved, by_length, frozenset(metrics))
    taken = reserved | {a.name for a in signature(plan).arguments}
    return replace(plan, names=value_names(program, list(program.nodes()), taken))


# ------------------------------------------------------------ the stages


class _Planner:
    """List scheduling: sweeps until every token value is summed or written, with coarse stages in between."""

    def __init__(self, program: Program, rows: str, spread: Spread | None, within: bool) -> None:
        self.program, self.leaves, self.spread = program, program.leaves, spread
        self.order = list(program.nodes())
        self.primary = {leaf: segments_of(program, rows, leaf) for leaf in program.leaves}
        self.users: dict[Node, list[Node]] = {n: [] for n in self.order}
        for node in self.order:
            for o in node.operands:
                self.users[o].append(node)
        # ranks hold parts of these: sums are exact, in float64; maxima join them for the same collective
        cut = {n for n in self.order if spread is not None and spread.cuts(n, self.leaves)}
        self.wide = compared(program) | {n for n in self.order if isinstance(n, Push) and (n.wide or n in cut)}
        self.wide |= sums_of_one_pass(program, self.wide)
        scans = [n for n in self.order if isinstance(n, Scan) and n.stratum in self.leaves]
        # every sweep that reads a sum in order, over one segment's tokens of one leaf, computes it
        own = {n for n in scans if within and len(n.sources) == 1 and self._in_a_sweep(n)}
        self.along = own - self._read_elsewhere()
        self.needs: dict[Node, frozenset[Node]] = {}  # earlier values that a token value depends on
        self.reads: dict[Node, frozenset[Node]] = {}  # sums along a segment that its loop reads
        for node in self.order:
            if node.stratum in self.leaves:
                self.needs[node] = frozenset(self._needs(node))
                if isinstance(node, Scan):
                    self.reads[node] = frozenset({node} if node in self.along and not counts(node) else ())
                else:
                    inside = (self.reads[o] for o in node.operands if o.stratum in self.leaves)
                    self.reads[node] = frozenset().union(*inside)
        self.critical = self._critical()
        self.pushes = [n for n in self.order if isinstance(n, Push) and n.source in self.leaves]
        self.stores = [(k, n) for k, n in program.outputs.items() if n.stratum in self.leaves]
        self.quantiles = [n for n in self.order if isinstance(n, Quantile)]
        self.within = {q for q in self.quantiles if within and self._in_a_sweep(q)}
        elsewhere = [n for n in scans if n not in self.along]
        self.summed = {v for n in elsewhere for v in n.values if not isinstance(v, Const) and v not in elsewhere}
        self.asides = list(dict.fromkeys([*(v for q in self.quantiles for v in q.values), *self._sorted(self.summed)]))
        self.done: set[Node] = {n for n in self.order if isinstance(n, (Input, Const)) and n.stratum not in self.leaves}

    def _cut(self, segments: str) -> bool:
        """Whether several ranks may have tokens of one segment. Its values are then coarse work for every rank."""
        return self.spread is not None and segments not in self.spread.whole

    def _needs(self, node: Node) -> Iterator[Node]:
        """The values that earlier stages compute for a token value: coarser values, and sums in order."""
        if isinstance(node, Pull):
            yield node.operand
        elif isinstance(node, Scan) and node not in self.along:
            yield node
        else:
            for o in node.operands:
                yield from self.needs[o] if o.stratum in self.leaves else (o,)

    def _read_elsewhere(self) -> set[Node]:
        """The token values that are computed for sums over other strata than the leaf's segments."""
        pushes = (n for n in self.order if isinstance(n, Push) and n.source in self.leaves)
        found: set[Node] = {p.operand for p in pushes if p.target != self.primary[p.source]}
        return ir.needed(self.order, found, lambda n: n.operands if isinstance(n, Map) else ())

    def _sorted(self, nodes: Collection[Node]) -> list[Node]:
        return [n for n in self.order if n in nodes]

    def _in_a_sweep(self, node: Quantile | Scan) -> bool:
        """Whether all values of a quantile or a scan lie over one segment, on one rank."""
        return all(self.primary[leaf] == node.target for leaf in node.sources) and not self._cut(node.target)

    def _critical(self) -> set[Node]:
        """The values that some token value depends on. A sweep cannot leave them for later."""
        found: set[Node] = set()
        for node in reversed(self.order):
            if any(u in found or (isinstance(u, Pull) and u.stratum in self.leaves) for u in self.users[node]):
                found.add(node)
        return found

    def stages(self) -> Iterator[Sweep | Coarse]:
        while self.pushes or self.stores or self.asides:
            yield from self._coarse()
            segments = self._next_segments()
            if segments is None and (self.stores or self.asides or any(p in self.critical for p in self.pushes)):
                # sums over segments read their values, or segments of one stratum those of another: they cannot wait
                summed = self._summed_of_segments()
                many = cost(n for n in summed if n not in self.done) > SHARED
                stages = list(self._coarse(summed if many else self._coarse_nodes(summed)))
                if stages:
                    yield from stages
                    continue
                yield from self._coarse(self.order)
                segments = self._next_segments()
            segments = segments or self._next_segments(urgent=False)
            if segments is None:
                raise IRError(f"program '{self.program.name}': nothing left can be computed")
            yield self._sweep(segments)
        yield from self._coarse()

    def _ready(self, node: Node, local: set[Node]) -> bool:
        return all(n in self.done or n in local for n in self.needs[node])

    def _next_segments(self, urgent: bool = True) -> str | None:
        """The segments to sweep next; None if a sweep could compute no result and no sum. `urgent`: no critical sum."""
        chosen = [p for p in self.pushes if p in self.critical or not urgent]
        ready = [p.target for p in chosen if self._reachable(p.operand, p.target)]
        for leaf, segments in self.primary.items():
            mine = [n for n in (*self.asides, *(n for _, n in self.stores)) if n.stratum == leaf]
            if segments in ready or any(self._reachable(n, segments) for n in mine):
                return segments
        return ready[0] if ready else None

    def _reachable(self, node: Node, segments: str) -> bool:
        """Whether a sweep over `segments` can start with a token value: its needs are done, or computed from those."""
        return all(self._scalar_ready(n, segments) for n in self.needs[node])

    def _scalar_ready(self, node: Node, segments: str) -> bool:
        if node in self.done:
            return True
        if node.stratum != segments or gathers(node) or self._cut(segments):
            return False
        return all(self._scalar_ready(o, segments) for o in node.operands)

    def _summed_of_segments(self) -> list[Node]:
        """The values of segments that sums over segments need."""
        segments = set(self.primary.values())
        found: set[Node] = set()
        for node in reversed(self.order):
            sums = isinstance(node, Push) and node.source in segments
            if sums or (node in found and not gathers(node)):
                found.update(o for o in node.operands if o.stratum in segments)
        return [n for n in self.order if n in found and not gathers(n)]

    def _coarse_nodes(self, early: Collection[Node] = ()) -> list[Node]:
        """All coarse values but those of segments that a later sweep visits; `early` ones are among them."""
        live = {p.target for p in self.pushes} | {self.primary[n.stratum] for _, n in self.stores}
        live = {s for s in live if not self._cut(s)}
        return [n for n in self.order if n.stratum not in live or gathers(n) or n in early]

    def _coarse(self, nodes: Collection[Node] | None = None) -> Iterator[Coarse]:
        """The coarse values among `nodes` that can be computed now. Default: those that wait for no sweep."""
        mine = [n for n in (self._coarse_nodes() if nodes is None else nodes) if n not in self.within]
        found = [n for n in mine if self._computable(n, self.done)]
        if found:
            groups = _grouped(found)
            outputs = set(self.program.outputs.values())
            home = {n: g for g in groups for n in g.values}
            saved = [n for n in found if n in outputs or any(home.get(u) is not home[n] for u in self.users[n])]
            # a group of quantiles or sums in order is a stage of its own
            alone = {id(g): i for i, g in enumerate(groups) if g.quantiles or g.scans}
            for _, run in itertools.groupby(groups, lambda g: alone.get(id(g), -1)):
                stage = tuple(run)
                yield Coarse(stage, tuple(n for n in saved if home[n] in stage))

    def _sweep(self, segments: str) -> Sweep:
        local: set[Node] = set()
        passes: list[Pass] = []
        scalars: list[tuple[Node, ...]] = []
        saved: list[Node] = []  # token values that are set aside for later stages
        taken: set[Node] = set()  # sums along a segment that this sweep has taken
        pushed_wide = False
        while True:
            scalars.append(self._segment_values(segments, local))
            ready = [p for p in self.pushes if p.target == segments and self._ready(p.operand, local)]
            wide = [p for p in ready if p in self.wide]
            free = [p for p in wide if self.reads[p.operand] <= taken]
            mine = [(k, n) for k, n in self.stores if segments == self.primary[n.stratum]]
            stores = [(k, n) for k, n in mine if self._ready(n, local)]
            chosen = wide or ready
            asides = [v for v in self.asides if segments == self.primary[v.stratum] and self._all_ready(v, local)]
            if wide:
                stores = []
            elif (
                pushed_wide
                and not stores
                and not asides
                and not any(p in self.critical for p in ready)
                and self._more(segments)
            ):
                break  # nothing here is urgent: the next sweep takes it
            if not chosen and not stores and not asides:
                break
            pushed_wide |= bool(wide)
            leaf = chosen[0].source if chosen else (*asides, *(n for _, n in stores))[0].stratum
            chosen, stores = [p for p in chosen if p.source == leaf], [s for s in stores if s[1].stratum == leaf]
            asides = [v for v in asides if v.stratum == leaf]
            scans = self._scans([*(p.operand for p in chosen), *(n for _, n in stores), *asides], taken)
            if scans:  # an extra loop first, which also takes the float64 sums that are ready
                chosen, stores, asides = [p for p in free if p.source == leaf], [], []
            passes.append(self._pass(leaf, bool(wide), chosen, stores, asides, scans))
            taken.update(scans)
            local.update(() if self._cut(segments) else chosen)
            local.update(v for v in asides if any(v in q.values for q in self.within))
            later = {v for q in self.quantiles if q not in self.within for v in q.values} | self.summed
            saved += [v for v in asides if v in later]
            self.done.update(saved)
            self.asides = [v for v in self.asides if v not in asides]
            self.pushes = [p for p in self.pushes if p not in chosen]
            self.stores = [s for s in self.stores if s not in stores]
        return self._trimmed(segments, passes, scalars, local, saved)

    def _scans(self, values: Iterable[Node], taken: set[Node]) -> list[Scan]:
        """The sums along a segment that `values` need and that can be taken now."""
        waiting = {s for v in values for s in self.reads[v] if s not in taken}
        while True:
            inner = {i for s in waiting for v in s.operands if v in self.reads for i in self.reads[v] if i not in taken}
            if inner <= waiting:
                break
            waiting |= inner
        ready = (s for s in waiting if all(self.reads[v] <= taken for v in s.operands if v in self.reads))
        return [s for s in self._sorted(set(ready)) if isinstance(s, Scan)]

    def _all_ready(self, value: Node, local: set[Node]) -> bool:
        """Whether a value can be set aside together with the other values of its quantiles in this sweep."""
        beside = {value}.union(*(q.values for q in self.within if value in q.values))
        return all(self._ready(v, local) for v in beside)

    def _more(self, segments: str) -> bool:
        """Whether a later sweep over these segments has work that cannot start yet."""
        stores = any(segments == self.primary[n.stratum] for _, n in self.stores)
        return stores or any(p.target == segments and p in self.critical for p in self.pushes)

    def _segment_values(self, segments: str, local: set[Node]) -> tuple[Node, ...]:
        mine = (n for n in self.order if n.stratum == segments and not self._cut(segments))
        here = (n for n in mine if n in self.within or not gathers(n))
        return tuple(n for n in here if self._computable(n, local, self.done))

    def _computable(self, node: Node, known: set[Node], also: Collection[Node] = ()) -> bool:
        """Whether a coarse value can be computed from `known` and `also`. If it can, it is added to `known`."""
        in_order = isinstance(node, Scan) and node not in self.along
        if (node.stratum in self.leaves and not in_order) or node in known or node in also:
            return False
        if isinstance(node, Push) and node.source in self.leaves:
            return False
        if node in self.within and not all(v in known for v in node.operands[:-1]):  # read from this sweep's memory
            return False
        if not all(o in known or o in also or (in_order and isinstance(o, Const)) for o in node.operands):
            return False
        known.add(node)
        return True

    def _pass(
        self, leaf: str, wide: bool, pushes: list[Push], stores: list[tuple[Key, Node]], asides: list[Node],
        scans: list[Scan],
    ) -> Pass:  # fmt: skip
        asides = list(dict.fromkeys([*asides, *(v for s in scans for v in s.values)]))
        wide = wide or bool(scans) or not self.summed.isdisjoint(asides)
        wanted = {p.operand for p in pushes} | {n for _, n in stores} | set(asides)
        values = []
        for node in reversed(self.order):
            if node in wanted:
                values.append(node)
                if not isinstance(node, (Pull, Scan)):
                    wanted.update(o for o in node.operands if o.stratum in self.leaves)
        return Pass(leaf, wide, tuple(reversed(values)), tuple(pushes), tuple(stores), tuple(asides), tuple(scans))

    def _trimmed(
        self, segments: str, passes: list[Pass], scalars: list[tuple[Node, ...]], local: set[Node], aside: list[Node]
    ) -> Sweep:
        """The sweep, with the segment values that its passes read or that are final; the others wait."""
        wanted = {o for p in passes for v in p.values if isinstance(v, Pull) for o in v.operands}
        wanted |= {n for n in local if self._is_final(n, segments)}
        for node in reversed(self.order):
            if node in wanted and node in local:
                wanted.update(node.operands)
        kept = [tuple(n for n in group if n in wanted) for group in scalars]
        steps: list[Pass | Scalars] = []
        for group, one in itertools.zip_longest(kept, passes):
            steps += [Scalars(group)] if group else []
            steps += [one] if one else []
        inside = {n for group in kept for n in group}
        computed = inside | {p for one in passes for p in one.pushes}
        self.done |= computed
        outputs = set(self.program.outputs.values())
        saved = [
            n
            for n in self.order
            if n in computed and (n in outputs or any(self._later(u, n, inside) for u in self.users[n]))
        ]
        return Sweep(segments, tuple(steps), (*saved, *aside))

    def _later(self, user: Node, node: Node, inside: set[Node]) -> bool:
        """Whether `user` reads `node` after this sweep."""
        if user in inside:
            return False
        if user.stratum in self.leaves:  # a Pull, which a pending sum or store may still need
            pending = [p.operand for p in self.pushes] + [n for _, n in self.stores] + self.asides
            return any(node in self.needs[n] for n in pending)
        return True

    def _is_final(self, node: Node, segments: str) -> bool:
        """Whether other strata, a separate loop or the caller read a segment value."""
        outside = any(gathers(u) or u.stratum not in (segments, *self.leaves) for u in self.users[node])
        return outside or node in self.within or node in self.program.outputs.values()


def _grouped(nodes: list[Node]) -> list[Group]:
    """The nodes, grouped into as few loops as their order allows."""
    groups = []
    left = list(nodes)

    def take(same: Callable[[Node], bool], within: bool) -> None:
        taken: list[Node] = []
        for node in left:
            waits = [o for o in node.operands if o in left and not (within and o in taken)]
            if same(node) and not waits:
                taken.append(node)
        groups.append(Group(tuple(taken)))
        left[:] = [n for n in left if n not in taken]

    while left:
        ready = [n for n in left if not any(o in left for o in n.operands)]
        first = next((n for n in ready if not gathers(n)), ready[0])
        if isinstance(first, Push):
            take(lambda n, f=first: isinstance(n, Push) and (n.source, n.target) == (f.source, f.target), False)  # type: ignore[misc]
        elif isinstance(first, Quantile):
            take(lambda n, f=first: isinstance(n, Quantile) and n.target == f.target, False)  # type: ignore[misc]
        elif isinstance(first, Scan):
            take(lambda n, f=first: isinstance(n, Scan) and n.order == f.order, False)  # type: ignore[misc]
        elif isinstance(first, Mix):
            kind = (first.matrix, first.transposed)
            take(lambda n, k=kind: isinstance(n, Mix) and (n.matrix, n.transposed) == k, False)  # type: ignore[misc]
        else:
            take(lambda n, f=first: not gathers(n) and n.stratum == f.stratum, True)  # type: ignore[misc]
    return groups
