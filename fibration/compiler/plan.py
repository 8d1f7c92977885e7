"""Plans: the fused schedules of the compiled backends. `str` prints a plan.

A `Sweep` visits the elements of the stratum right under the tokens: its segments, mostly trajectories, which are
independent. For each segment it alternates loops over its tokens (`Pass`) with scalar work on the segment (`Scalars`).
A `Coarse` stage computes the vectors over all coarser strata, which are small.
Loops keep few values of tokens (`reuse.py`): a later loop computes them again from inputs, which the segment's first
loop left in the cache. A sweep sets aside what quantiles and sums in order read: for those over its segments until they
are taken, for others in a vector over the tokens, which a coarse stage reads.

    two levels         one sweep
    any depth above    sweep, coarse, sweep, coarse, sweep
    the same, within certified bounds (`split.py`)    sweep, coarse, sweep

If a batch is spread over ranks, a sweep reads only this rank's tokens. A `Collective` combines the ranks' values of
coarser strata, so that every rank has all of them. Collectives cut the plan into sections.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fibration.compiler import ir
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Mix, Node, Pull, Push, Quantile, Scalar, Scan, parts
from fibration.compiler.program import Program


@dataclass(frozen=True)
class Pass:
    """One loop over the tokens of one leaf in a segment: compute `values`, add up `pushes`, write `stores`.

    `wide` passes compute in float64: a gate later compares their sums with a bound, and a rollback strip can be
    narrower than float32 resolution. Other passes compute in the tokens' precision, except for `Plan.precise` values.
    """

    leaf: str
    wide: bool
    values: tuple[Node, ...]
    pushes: tuple[Push, ...]
    stores: tuple[tuple[Key, Node], ...]
    aside: tuple[Node, ...] = ()  # values that quantiles and sums in order read
    scans: tuple[Scan, ...] = ()  # sums along the segment of values set aside, taken after the loop
    found: tuple[Node, ...] = ()  # values that an earlier pass has set aside, for quantiles over the same segment

    @property
    def reads(self) -> tuple[Input, ...]:
        """The token inputs of the loop."""
        return tuple(n for n in self.values if isinstance(n, Input))


@dataclass(frozen=True)
class Scalars:
    """Work on one segment, in float64: inputs, values gathered from coarser strata, and maps of them."""

    values: tuple[Node, ...]


@dataclass(frozen=True)
class Sweep:
    """One visit to every segment. `saved` are the segment values that a later stage reads, and the token values that a
    later stage takes quantiles or sums in order of.
    """

    segments: str
    steps: tuple[Pass | Scalars, ...]
    saved: tuple[Node, ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        return tuple(s for s in self.steps if isinstance(s, Pass))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves whose tokens the sweep visits."""
        return tuple(dict.fromkeys(p.leaf for p in self.passes))


@dataclass(frozen=True)
class Group:
    """Coarse values that one loop computes: sums along one fibration, products with one matrix, quantiles over one
    stratum, sums in one order, or scalar work on every element of a stratum."""

    values: tuple[Node, ...]

    @property
    def stratum(self) -> str:
        return self.values[0].stratum

    @property
    def source(self) -> str | None:
        """The stratum of the summed elements; None for scalar work, quantiles and sums in order."""
        first = self.values[0]
        return first.source if isinstance(first, (Push, Mix)) else None

    @property
    def quantiles(self) -> tuple[Quantile, ...]:
        """The values of a group of quantiles; empty for other groups."""
        return tuple(v for v in self.values if isinstance(v, Quantile))

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The values of a group of sums in order, all in one order; empty for other groups."""
        return tuple(v for v in self.values if isinstance(v, Scan))


def of_quantiles(program: Program) -> set[Node]:
    """The quantiles, the coarse values that depend on them, and the Pulls through which tokens read these values."""
    found: set[Node] = set()
    for node in program.nodes():
        coarse = isinstance(node, Pull) or (isinstance(node, Map) and node.stratum not in program.leaves)
        if isinstance(node, Quantile) or (coarse and not found.isdisjoint(node.operands)):
            found.add(node)
    return found


def counts(node: Node) -> bool:
    """Whether a sum in order is a constant times the number of tokens before, or after, so that no sum is needed."""
    return isinstance(node, Scan) and node.discount == Const(1.0, BATCH) and isinstance(node.values[0], Const)


def _jumps(body: Scalar, read: set[Scalar]) -> bool:
    """Whether the condition of a choice reads one of `read`. A choice between the two compared numbers never jumps."""
    if body.op == "select":
        condition, *branches = body.args
        between = condition.op in ("lt", "le") and set(condition.args) == set(branches)
        if not between and not read.isdisjoint(parts(condition)):
            return True
    return any(_jumps(a, read) for a in body.args)


def gathers(node: Node) -> bool:
    """Whether one element of a node depends on many elements of its operand, which needs a separate loop."""
    return isinstance(node, (Push, Mix, Quantile, Scan))


@dataclass(frozen=True)
class Coarse:
    """Vectors over coarser strata in float64, group after group. Another group, a stage or the caller reads `saved`."""

    groups: tuple[Group, ...]
    saved: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Collective:
    """Combines vectors over coarser strata that ranks know in part. Every rank then has all of them, in place.

    - `whole`: an element's value comes from a rank with tokens of the element; all ranks with its tokens agree on it.
    - `parts`: sums and maxima over tokens. Each rank has those over its own tokens; the result is their sum or maximum
      over the ranks with tokens of the element. A partial sum is a whole multiple of its `units` or NaN; so is the sum.
    - `quantiles`: over the tokens of all ranks; each rank sends the values of its own tokens.
    - `scans`: several ranks may have tokens of one element; each sends one number per piece of the element.
    """

    whole: tuple[Node, ...]
    parts: tuple[Push, ...] = ()
    units: Mapping[Push, float] = field(default_factory=dict)
    quantiles: tuple[Quantile, ...] = ()
    scans: tuple[Scan, ...] = ()

    @cached_property
    def values(self) -> tuple[Node, ...]:
        """All combined values, in the order in which they are sent."""
        return (*self.whole, *self.parts, *self.of_tokens)

    @property
    def of_tokens(self) -> tuple[Quantile | Scan, ...]:
        """The values that the collective computes from token values, not from partial sums."""
        return (*self.quantiles, *self.scans)

    @cached_property
    def reads(self) -> tuple[Node, ...]:
        """The values of this rank that the collective reads."""
        return tuple(dict.fromkeys((*self.whole, *self.parts, *(o for n in self.of_tokens for o in n.operands))))


Section = tuple[Sweep | Coarse, ...]
Stage = Sweep | Coarse | Collective


@dataclass(frozen=True)
class Spread:
    """How a batch lies on ranks: every element of a `whole` stratum has all of its tokens on one rank.

    In other strata any rank may have some of an element's tokens. Sums, maxima and quantiles over tokens are cut there,
    and so are sums in order along tokens.
    """

    whole: frozenset[str] = frozenset()

    def cuts(self, node: Node, leaves: Collection[str]) -> bool:
        if isinstance(node, Scan):
            return node.into in leaves and node.target not in self.whole
        over_tokens = isinstance(node, Quantile) or (isinstance(node, Push) and node.source in leaves)
        return over_tokens and node.stratum not in self.whole


@dataclass(frozen=True)
class Plan:
    """The stages of a program. `rows` is the stratum of the batch's rows, `names` holds a word for every value.

    Collectives: only if the batch is `spread`. `reserved`: words that no argument takes. `by_length`: longest first.
    `metrics`: the outputs that a call may leave out. `of`: the plan whose functions compute this one, without metrics.
    """

    program: Program
    rows: str
    stages: tuple[Stage, ...]
    names: Mapping[Node, str]
    spread: Spread | None = None
    reserved: frozenset[str] = frozenset()
    by_length: bool = False
    metrics: frozenset[Key] = frozenset()
    of: Plan | None = None

    def without_metrics(self) -> Plan:
        """The same stages for the other outputs. It shares functions, arguments and workspace with this plan."""
        outputs = {k: node for k, node in self.program.outputs.items() if k not in self.metrics}
        return replace(self, program=replace(self.program, outputs=outputs), metrics=frozenset(), of=self)

    @cached_property
    def spare(self) -> frozenset[Node]:
        """The values that only metrics need."""
        if not self.metrics:
            return frozenset()
        return frozenset(self.program.nodes()) - frozenset(self.without_metrics().program.nodes())

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        return tuple(s for s in self.stages if isinstance(s, Sweep))

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(s for s in self.stages if isinstance(s, Collective))

    def functions(self, name: str) -> dict[str, Section]:
        """The emitted functions of a program: one, or one for every section if the batch is spread."""
        if self.spread is None:
            return {name: self.sections[0]}
        return {f"{name}_{i}": section for i, section in enumerate(self.sections, 1)}

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The stages between collectives: one section more than collectives. A section may be empty."""
        found: list[list[Sweep | Coarse]] = [[]]
        for stage in self.stages:
            if isinstance(stage, Collective):
                found.append([])
            else:
                found[-1].append(stage)
        return tuple(map(tuple, found))

    @cached_property
    def saved(self) -> tuple[Node, ...]:
        """Every vector that lies in memory between stages, one stratum after the other.

        Vectors that are summed over the same fibres lie side by side, and so do their sums. A stratum's block is last.
        """
        if self.of is not None:
            return self.of.saved
        found: dict[Node, None] = {}
        for stage in self.stages:
            found.update(dict.fromkeys(stage.of_tokens if isinstance(stage, Collective) else stage.saved))
        first = {s: i for i, s in enumerate(dict.fromkeys(n.stratum for n in found))}
        written = {n for block in self.blocks.values() for n in block}
        return tuple(sorted(found, key=lambda n: (first[n.stratum], n in written, self._place[n])))

    @cached_property
    def blocks(self) -> dict[str, tuple[Node, ...]]:
        """By coarse stratum, the outputs that stages save: side by side, so that a caller reads them as one slice."""
        kept = {n for s in self.stages if not isinstance(s, Collective) for n in s.saved}
        found: dict[str, dict[Node, None]] = {}
        for node in self.program.outputs.values():
            if node in kept:
                found.setdefault(node.stratum, {})[node] = None
        return {stratum: tuple(sorted(nodes, key=self._place.__getitem__)) for stratum, nodes in found.items()}

    def layout(self) -> str:
        """The vectors in the workspace in words, by stratum."""
        groups = itertools.groupby(self.saved, lambda n: n.stratum)
        return "; ".join(f"[{s}] {', '.join(self.names[n] for n in nodes)}" for s, nodes in groups) or "nothing"

    @cached_property
    def _place(self) -> dict[Node, tuple[bool, str, int]]:
        """The order of values in memory: metrics last, then by the last sum that they go into, and what that sum is."""
        if self.of is not None:
            return self.of._place
        order = list(self.program.nodes())
        found = {node: (node in self.spare, "", i) for i, node in enumerate(order)}
        for node in reversed(order):  # users first
            if isinstance(node, Push):
                spare, reduce, last = found[node]
                found[node] = spare, reduce or node.reduce, last
                found[node.operand] = (found[node.operand][0], *found[node][1:])
        return found

    @cached_property
    def quantiles(self) -> tuple[Quantile, ...]:
        """The quantiles that coarse stages take."""
        groups = (g for s in self.stages if isinstance(s, Coarse) for g in s.groups)
        return tuple(q for g in groups for q in g.quantiles)

    @cached_property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders of the sums that coarse stages take: a target, then the strata in order over it."""
        groups = (g for s in self.stages if isinstance(s, Coarse) for g in s.groups)
        return tuple(dict.fromkeys(n.order for g in groups for n in g.scans))

    @cached_property
    def precise(self) -> frozenset[Node]:
        """The token values that are float64 in every pass that compares them. They are values that:

        - a quantile reads, or that read a quantile: a token with the quantile's value equals it in every pass;
        - may jump with a sum in order: the sum is above a bound in every pass that compares them, or in none.
        """
        found = ir.needed(list(self.program.nodes()), set(self._compared), self.in_a_loop)
        return frozenset(found | self._reading)

    @cached_property
    def _compared(self) -> set[Node]:
        """The values of quantiles, and the token values that may jump with a sum in order."""
        order, leaves = list(self.program.nodes()), self.program.leaves
        maps = (n for n in order if isinstance(n, Map) and n.stratum in leaves)
        scans = ((n, {ir.arg(i) for i, o in enumerate(n.inputs) if isinstance(o, Scan)}) for n in maps)
        jumping = {n for n, read in scans if _jumps(n.body, read)}
        return {v for n in order if isinstance(n, Quantile) for v in n.values} | jumping

    @cached_property
    def _reading(self) -> set[Node]:
        """The token values that read a quantile."""
        made, leaves = of_quantiles(self.program), self.program.leaves
        maps = (n for n in self.program.nodes() if isinstance(n, Map) and n.stratum in leaves)
        return {n for n in maps if not made.isdisjoint(n.inputs)} | {n for n in made if n.stratum in leaves}

    def precise_in(self, step: Pass) -> frozenset[Node]:
        """The values that a pass needs in float64: the precise values, without those that none of them reads here."""
        wanted = {n for n in step.values if n in self._compared or n in self._reading}
        wanted = ir.needed(step.values, wanted, lambda n: self.precise.intersection(self.in_a_loop(n)))
        return frozenset(wanted | set(step.found))

    def in_a_loop(self, node: Node) -> Iterable[Node]:
        """The token values that a loop over tokens computes a token value from."""
        return () if isinstance(node, (Pull, Scan)) else (o for o in node.operands if o.stratum in self.program.leaves)

    def __str__(self) -> str:
        passes = sum(len(s.passes) for s in self.sweeps)
        lines = [f"plan of {self.program.name}: {len(self.sweeps)} sweeps, {passes} passes over the tokens"]
        for stage in self.stages:
            if isinstance(stage, Collective):
                lines += self._collective(stage)
                continue
            if isinstance(stage, Coarse):
                lines.append("  coarse")
                for g in stage.groups:
                    for q in g.quantiles:
                        lines.append(f"    quantiles of {', '.join(q.sources)} by {q.target}: {self.names[q]}")
                    for scan in g.scans:
                        lines.append(f"    {self._along(scan)}")
                    if g.quantiles or g.scans:
                        continue
                    sums = "products with" if isinstance(g.values[0], Mix) else "sums over"
                    what = f"{sums} {g.source} by" if g.source else "values of each"
                    lines.append(f"    {what} {g.stratum}: {self._words(g.values)}")
                lines += [f"    save {self._words(stage.saved)}"] if stage.saved else []
                continue
            lines.append(f"  sweep over {stage.segments}")
            for step in stage.steps:
                if isinstance(step, Scalars):
                    lines.append(f"    scalars: {self._words(step.values)}")
                    continue
                over = f"{step.leaf}, " if len(self.program.leaves) > 1 else ""
                precision = "float64" if step.wide else "token precision"
                lines.append(f"    pass ({over}{precision}): {self._words(step.values)}")
                lines += [f"      add up {self._words(step.pushes)}"] if step.pushes else []
                lines += [f"      set aside {self._words(step.aside)}"] if step.aside else []
                lines += [f"      then {self._along(scan)}" for scan in step.scans]
                lines += [f"      write {', '.join(str(k) for k, _ in step.stores)}"] if step.stores else []
                lines += [f"      find {self._words(step.found)} where it was set aside"] if step.found else []
            lines += [f"    save {self._words(stage.saved)}"] if stage.saved else []
        return "\n".join(lines)

    def _collective(self, stage: Collective) -> Iterator[str]:
        """Lines for the combined values of each stratum, with how many numbers they have per element."""
        yield "  collective"
        for q in stage.quantiles:
            yield f"    quantiles of {', '.join(q.sources)} by {q.target}, of all ranks' tokens: {self.names[q]}"
        for scan in stage.scans:
            yield f"    sums along {', '.join(scan.sources)} by {scan.target}, a number per piece: {self.names[scan]}"
        for s in dict.fromkeys(n.stratum for n in (*stage.whole, *stage.parts)):
            mine = [n for n in (*stage.whole, *stage.parts) if n.stratum == s]
            yield f"    {len(mine)} number{'s' * (len(mine) != 1)} per {s}"
            for what, chosen in (("gather", stage.whole), ("put together", stage.parts)):
                nodes = [n for n in chosen if n.stratum == s]
                if nodes:
                    yield f"      {what} {self._words(nodes)}"

    def _along(self, scan: Scan) -> str:
        way = "before" if scan.forward else "after"
        return f"sum what comes {way} of {', '.join(scan.sources)} along {scan.target}: {self.names[scan]}"

    def _words(self, nodes: Iterable[Node]) -> str:
        return ", ".join(self.names[n] for n in nodes)


def computing(plans: Mapping[str, Plan]) -> dict[str, str]:
    """By program, the one whose functions compute it."""
    names = {id(plan): name for name, plan in plans.items()}
    return {name: names[id(plan.of or plan)] for name, plan in plans.items()}
