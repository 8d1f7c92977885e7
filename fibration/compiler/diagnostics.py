"""Adds metrics to a program, as sums and maxima that ranks can combine.

Metrics of every stratum and channel, of the batch and per element of the coarsest strata that it lies over:
- the number of elements that passed, rolled back, were zeroed, limited or attenuated;
- the sum and the maximum of the drift, which is the absolute residual in intensive coordinates.
The divisors of these sums are counts of the hierarchy. Metrics of the batch: the range of the gated ratio, and the TV
and KL estimates (eq:dhat_traj, eq:dhat_kl_traj).

`pull` of every level of a tree is how much of the pull on the tokens its elements have in common. With the mass `m` and
the mean pull `Y` on an element of a level (the fact `share`, `laws/facts/levels.py`), it is `Σ m·Y²` over the level's
elements, over `Σ m·Y²` of all tokens. Slopes of gates reach coefficients only through `Y`. So a level at 0 is idle, but
for what its gates pass to the ratios, which is of the order of log ratios.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fibration.compiler import ir
from fibration.compiler.formulas import Formulas, added
from fibration.compiler.ir import Const, Key, Map, Node, Push, Scalar, arg, const, count_input, scalar, total
from fibration.compiler.lower import where_kept
from fibration.compiler.optimise import UNLESS
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.compiler.scalars import ZERO, derivative, is_closed
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy, adds_up_levels
from fibration.language.objectives import Penalty
from fibration.language.outline import row_path
from fibration.language.traversal import cancel

# The regimes of a gate at one residual, decided by its value and slope. Every element is in exactly one regime.
REGIMES = ("passed", "rolled_back", "zeroed", "limited", "attenuated")
Terms = Mapping[str, tuple[Node, ...]]  # by leaf, vectors over its tokens
NO_TERMS: Terms = {}
UNCHANGED = 1e-6  # relative: if a gate's scale does not cancel, `(ρ/m)·m` differs from ρ by a float32 rounding


def absolute(x: Scalar) -> Scalar:
    return scalar("select", scalar("le", ZERO, x), x, scalar("neg", x))


def equal(a: Scalar, b: Scalar) -> Scalar:
    return scalar("and", scalar("le", a, b), scalar("le", b, a))


def nothing(node: Node) -> Node:
    """0 where a number is finite, else NaN."""
    return Map(scalar("sub", arg(0), arg(0)), (node,))


def lost(nothing: Node) -> Node:
    """1 where a sum of `nothing` is NaN, else 0."""
    return Map(scalar("select", equal(arg(0), ZERO), ZERO, const(1.0)), (nothing,))


def slope_of(gated: Node, residual: Node) -> Scalar | None:
    """The gate's slope as a body over the gate's own operands, or None where it is constant in its residual."""
    if gated is residual:
        return const(1.0)
    if isinstance(gated, Map) and residual in gated.inputs:
        return derivative(gated.body, gated.inputs.index(residual))
    return None


def regime_nodes(residual: Node, gated: Node) -> dict[str, Node]:
    """Zeros and ones for four sets of elements, and the gate's `slope`. The other regimes are differences of the four.

    `passed`: the gate changed nothing. Of the others, `rolled_back`: the slope is negative; `flat`: the slope is 0.
    `zeroed`: flat elements with the value 0.
    """
    value = const(gated.value) if isinstance(gated, Const) else arg(1)
    both = (residual,) if isinstance(gated, Const) else (residual, gated)
    moved = absolute(scalar("sub", value, arg(0)))
    same = scalar("le", moved, scalar("mul", const(UNCHANGED), absolute(arg(0))))
    passed = Map(scalar("select", same, const(1.0), ZERO), both)

    def unless_passed(condition: Scalar, operands: tuple[Node, ...]) -> Node:
        stopped = scalar("sub", const(1.0), arg(len(operands)))
        return Map(scalar("select", condition, stopped, ZERO), (*operands, passed))

    body = slope_of(gated, residual) or ZERO
    read = gated.inputs if isinstance(gated, Map) and gated is not residual else (residual,)
    slope = Map(body, read)

    def where_slope(condition: Callable[[Scalar], Scalar]) -> Node:
        decided = is_closed(simplify(condition(body)))  # for all residuals: no token has to compare
        return unless_passed(condition(body), read) if decided else unless_passed(condition(arg(0)), (slope,))

    back, flat = where_slope(lambda s: scalar("lt", s, ZERO)), where_slope(lambda s: equal(s, ZERO))
    zeroed = Map(scalar("select", equal(arg(0), ZERO), arg(1), ZERO), (gated, flat))
    return {"passed": passed, "rolled_back": back, "flat": flat, "zeroed": zeroed, "slope": slope}


def _difference(first: Node, *others: Node) -> Node:
    every = (first, *others)
    return Map(functools.reduce(partial(scalar, "sub"), map(arg, range(len(every)))), every)


@dataclass(frozen=True)
class Report:
    """The levels that metrics report, and the paths along which their numbers are added up.

    `levels` are (stratum, channel). `paths[a, b]` leads from a stratum `a` to `b`, a coarsest stratum or the batch.
    `rows[leaf]` leads from a leaf to the rows.
    """

    levels: tuple[tuple[str, str], ...]
    paths: Mapping[tuple[str, str], tuple[str, ...]]
    rows: Mapping[str, tuple[str, ...]]

    def over(self, stratum: str) -> list[str]:
        """The strata that the numbers of `stratum` are added up over."""
        return [b for a, b in self.paths if a == stratum]

    def key(self, word: str, stratum: str, channel: str, over: str) -> Key:
        """The key of a level's metric; it names `over` only if the report adds up over several strata."""
        return Key(word, stratum, channel, over if len({b for _, b in self.paths}) > 1 else "")

    def total(self, word: str, stratum: str, channel: str) -> Key:
        """The key of a level's metric of the batch."""
        first = self.over(stratum)[0]
        return self.key(word, stratum, channel, first) if first == BATCH else Key(word, stratum, channel, BATCH)

    def has_elements(self, over: str) -> bool:
        """Whether metrics are kept per element: not for rows, which differ between batches."""
        return over != BATCH and over not in (path[-1] for path in self.rows.values())


def read_at(hierarchy: Hierarchy, penalty: Penalty) -> Stratum:
    """The stratum whose elements a penalty's mean counts."""
    return hierarchy.rows if penalty.over is None else penalty.over


def checked_terms(program: Program) -> dict[str, tuple[Node, ...]]:
    """By leaf, the vectors over tokens that may be infinite for finite inputs: weights and penalty terms.

    The product of a token's weights counts, and is 0 at tokens that `keep` drops.
    """
    weights: dict[str, Node] = {}
    for key, node in program.outputs.items():
        if key.word.startswith("weight_"):
            before = weights.get(node.stratum)
            weights[node.stratum] = node if before is None else Map(scalar("mul", arg(0), arg(1)), (before, node))
    kept = {leaf: program.outputs.get(program.part("kept", leaf)) for leaf in weights}
    found = {leaf: [where_kept(kept[leaf], node)] for leaf, node in weights.items()}
    for key, node in program.outputs.items():
        if key.word.startswith("term_"):
            found.setdefault(node.stratum, []).append(node)
    return {leaf: tuple(nodes) for leaf, nodes in found.items()}


def instrument(program: Program, report: Report, hierarchy: Hierarchy) -> Program:
    """`program` with metric outputs. Of its own outputs only `objective` and `penalty` stay."""
    outputs = {k: v for k, v in program.outputs.items() if k.word in ("objective", "penalty")}

    def report_on(word: str, stratum: str, channel: str, found: Mapping[str, Node]) -> None:
        """Add a level's vectors, by the strata that they are added up over, and the batch's number."""
        for i, (over, node) in enumerate(found.items()):
            if report.has_elements(over):
                outputs[report.key(word, stratum, channel, over)] = node
            if i == 0:  # every `over` adds up to the same number
                number = node if over == BATCH else Push(over, BATCH, node, "max" if word == "peak" else "sum")
                outputs[report.total(word, stratum, channel)] = number

    names = dict(program.names)
    changed: dict[str, list[Node]] = {leaf: [] for leaf in program.leaves}
    for stratum, channel in report.levels:
        residual, gated = (program.outputs[Key(word, stratum, channel)] for word in ("residual", "gated"))
        seen = regime_nodes(residual, gated)
        for word, node in seen.items():
            names.setdefault(node, Key("slope" if word == "slope" else f"is_{word}", stratum, channel))
        drift = Map(absolute(arg(0)), (residual,))
        found: dict[str, dict[str, Node]] = {word: {} for word in (*REGIMES, "drift", "peak")}
        for over in report.over(stratum):
            path = report.paths[stratum, over]
            sums = {name: ir.reduce(seen[name], path) for name in ("passed", "rolled_back", "flat", "zeroed")}
            every = Const(1.0, stratum) if stratum == over else count_input(stratum, over)
            sums["limited"] = _difference(sums["flat"], sums["zeroed"])
            sums["attenuated"] = _difference(every, sums["passed"], sums["rolled_back"], sums["flat"])
            sums["drift"], sums["peak"] = ir.reduce(drift, path), ir.reduce(drift, path, "max")
            for word, of in found.items():
                of[over] = sums[word]
        for word, of in found.items():
            report_on(word, stratum, channel, of)
        if stratum in changed and not isinstance(gated, Const):
            changed[stratum].append(seen["passed"])

    # A token is clipped if any of its channels did not pass. A gate that removes the whole level clips nothing.
    for leaf, passed in changed.items():
        every_channel = passed or [Const(1.0, leaf)]
        body = functools.reduce(partial(scalar, "mul"), map(arg, range(len(every_channel))))
        clipped = Map(scalar("sub", const(1.0), body), tuple(dict.fromkeys(every_channel)))
        report_on("clipped", leaf, "", {o: ir.reduce(clipped, report.paths[leaf, o]) for o in report.over(leaf)})

    means: dict[str, list[Node]] = {"tv": [], "kl": []}
    extremes: dict[str, list[Node]] = {"max": [], "min": []}
    for leaf in program.leaves:
        rows, x = report.rows[leaf], program.token_input("log_ratio", leaf)
        ratio = program.outputs[program.part("gated_ratio", leaf)]
        way = _to_batch(report, leaf)
        extremes["max"].append(ir.reduce(ratio, way, "max"))
        extremes["min"].append(ir.reduce(Map(scalar("neg", arg(0)), (ratio,)), way, "max"))
        means["tv"].append(ir.reduce(Map(absolute(scalar("expm1", arg(0))), (x,)), rows))
        means["kl"].append(ir.reduce(Map(scalar("neg", arg(0)), (x,)), rows))
    outputs[Key("ratio_max")] = _largest(extremes["max"])
    outputs[Key("ratio_min")] = Map(scalar("neg", arg(0)), (_largest(extremes["min"]),))
    outputs |= _of_tokens(program, report)
    for name, penalty in hierarchy.penalties.items():
        pair = outputs[Key("penalty", name)], count_input(read_at(hierarchy, penalty).name, BATCH)
        outputs[Key("penalty_sum", name)] = Map(scalar("mul", arg(0), arg(1)), pair)
    rows_stratum = next(iter(report.rows.values()))[-1]
    counts: list[Node] = [count_input(leaf, rows_stratum) for leaf in program.leaves]
    for name, sums_of in means.items():
        mean = Map(scalar("div", arg(0), arg(1)), (total(sums_of), total(counts)))
        outputs[Key(name)] = Push(rows_stratum, BATCH, mean)
    return replace(program, outputs=outputs, names=names).validate()


def _of_tokens(program: Program, report: Report) -> dict[Key, Node]:
    """Metrics of tokens: number and weights of kept tokens, and divergences of further policies from the old policy.

    The divergence estimate is `exp(d) - 1 - d` with `d = log π_old - log π`; it is never negative.
    """
    square, estimate = scalar("mul", arg(0), arg(0)), scalar("sub", scalar("expm1", arg(0)), arg(0))
    kept = {leaf: program.outputs.get(program.part("kept", leaf)) for leaf in program.leaves}
    found: dict[Key, Node] = {}

    def add(word: str, of: Mapping[str, Node]) -> None:
        sums = total([ir.reduce(node, report.rows[leaf]) for leaf, node in of.items()])
        found[Key(word)] = Push(sums.stratum, BATCH, sums)

    chosen = {leaf: node for leaf, node in kept.items() if node is not None}
    if chosen:
        add("kept", chosen)
    for word in dict.fromkeys(key.word for key in program.outputs if key.word.startswith("weight_")):
        weights = {leaf: where_kept(kept[leaf], program.outputs[program.part(word, leaf)]) for leaf in program.leaves}
        add(word, weights)
        add(f"{word}_square", {leaf: Map(square, (w,)) for leaf, w in weights.items()})
        largest = [ir.reduce(w, _to_batch(report, leaf), "max") for leaf, w in weights.items()]
        found[Key(f"{word}_max")] = _largest(largest)
    for name in dict.fromkeys(i.key[0] for i in program.inputs if i.kind == "policy_log_prob"):
        apart = {}
        for leaf in program.leaves:
            pair = program.token_input("old_log_prob", leaf), program.token_input("policy_log_prob", leaf, (name,))
            apart[leaf] = Map(scalar("sub", arg(0), arg(1)), pair)
        add(f"{name}_log_ratio", apart)
        add(f"{name}_kl", {leaf: Map(estimate, (d,)) for leaf, d in apart.items()})
    return found


def _largest(numbers: Sequence[Node]) -> Node:
    """The largest of a few numbers of the batch."""
    larger = scalar("select", scalar("le", arg(0), arg(1)), arg(1), arg(0))
    return functools.reduce(lambda a, b: Map(larger, (a, b)), numbers)


def _to_batch(report: Report, leaf: str) -> tuple[str, ...]:
    """The path from a leaf to the batch, through the first stratum that it is reported over."""
    path = report.paths[leaf, report.over(leaf)[0]]
    return path if path[-1] == BATCH else (*path, BATCH)


def count_nonfinite(program: Program, hierarchy: Hierarchy, terms: Terms = NO_TERMS) -> Program:
    """`program` with the output `nonfinite`: how many rows have an infinite or undefined log-prob or advantage.

    A closed gate would turn these values into 0, so the count reads them before the gates. Rows with a non-finite token
    in `terms` count too. If the count is above 0, the objective is NaN.
    """
    rows = report_of(hierarchy).rows
    marks = _nothing(program, hierarchy, terms)
    sums = [ir.reduce(node, rows[leaf]) for leaf, node in marks.items()]
    counted = Push(next(iter(rows.values()))[-1], BATCH, lost(total(sums)))
    outputs = {k: _unless(counted, v) if k == Key("objective") else v for k, v in program.outputs.items()}
    names = {**{node: program.part("nan_or_0", leaf) for leaf, node in marks.items()}, **program.names}
    return replace(program, outputs={**outputs, Key("nonfinite"): counted}, names=names).validate()


def mark_nonfinite(program: Program, hierarchy: Hierarchy, terms: Terms = NO_TERMS) -> Program:
    """`program` with NaN for its results at tokens whose log-prob, advantage or term is infinite or undefined.

    A caller that does not read the count, as on a GPU, would otherwise train on the 0 of a closed gate.
    """
    marks = _nothing(program, hierarchy, terms)
    outputs = {k: _unless(marks[v.stratum], v) if v.stratum in marks else v for k, v in program.outputs.items()}
    return replace(program, outputs=outputs).validate()


def _nothing(program: Program, hierarchy: Hierarchy, terms: Terms) -> dict[str, Node]:
    """By leaf, 0 at a token whose log ratio and other inputs and terms are finite, else NaN."""
    found: dict[str, Node] = {}
    advantages = [i for i in program.inputs if i.kind == "advantage"]
    formulas = Formulas(hierarchy)
    for leaf in hierarchy.leaves:
        read: list[Node] = [program.token_input("log_ratio", leaf.name)]  # even if no gate passes it
        kinds = ["policy_log_prob", *(["old_log_prob"] if Key("objective") not in program.outputs else [])]
        read += [i for i in program.inputs if i.over == leaf.name and i.kind in kinds]
        read += terms.get(leaf.name, ())
        for node in advantages:
            if node.stratum in (leaf.name, BATCH) or Stratum(node.stratum) in hierarchy.coarser(leaf):
                read.append(formulas.broadcast(node, leaf.name))
        differences = [scalar("sub", arg(i), arg(i)) for i in range(len(read))]
        found[leaf.name] = Map(functools.reduce(partial(scalar, "add"), differences), tuple(read))
    return found


def _unless(nothing: Node, node: Node) -> Node:
    """`node`, bit for bit, where `nothing` is 0, else NaN."""
    return Map(UNLESS, (node, nothing))


def levels(hierarchy: Hierarchy) -> Iterator[tuple[str, str]]:
    """(stratum, channel) for every gate, roots first."""
    for stratum in hierarchy.order:
        for channel in hierarchy.decomposition.channels:
            yield stratum.name, channel


def report_of(hierarchy: Hierarchy) -> Report:
    """The report of a hierarchy: every level is added up over the coarsest strata under it, except the batch."""
    shape, batch = hierarchy.shape, Stratum(BATCH)
    rows = {leaf.name: tuple(row_path(hierarchy, leaf.name)) for leaf in hierarchy.leaves}
    paths: dict[tuple[str, str], tuple[str, ...]] = {}
    for stratum in hierarchy.order:
        down = (stratum, *hierarchy.coarser(stratum))
        coarsest = [s for s in down if s != batch and set(hierarchy.coarser(s)) <= {batch}]
        if stratum.name in rows and stratum in coarsest:  # one number per token is no sum: go by rows to the batch
            paths[stratum.name, BATCH] = (*rows[stratum.name], BATCH)
            continue
        for over in coarsest or [batch]:
            names = [stratum.name, *(f.target.name for f in shape.path(stratum, over))]
            paths[stratum.name, over.name] = tuple(names)
    return Report(tuple(levels(hierarchy)), paths, rows)


RECEIVED = "received"  # the word of a pull on the sum of what all levels pass to a leaf's tokens


def has_pulls(hierarchy: Hierarchy) -> bool:
    """Whether levels have this metric: a coefficient is their sum, and their strata do not cross."""
    return adds_up_levels(hierarchy) and hierarchy.shape.is_tree


def received_by_tokens(program: Program, hierarchy: Hierarchy) -> dict[Key, tuple[Node, ...]]:
    """What all levels pass to the tokens, by the key of its pull."""
    if not has_pulls(hierarchy):
        return {}
    found = {k: node for k, node in program.outputs.items() if k.word == "down"}
    return {key._replace(word=RECEIVED): (node,) for key, node in found.items()}


def add_pulls(program: Program, hierarchy: Hierarchy) -> Program:
    """`program` with `pull` of every level and `pull_sum` of the tokens, in place of its outputs `RECEIVED`."""
    received = {k: node for k, node in program.outputs.items() if k.word == RECEIVED}
    outputs = {k: node for k, node in program.outputs.items() if k.word != RECEIVED}
    if not received:
        return program
    pulls = _SquaredPulls(hierarchy)
    found = {s: pulls.square(s, received) for s in hierarchy.order}
    outputs |= {Key("pull", s.name): node for s, node in found.items()}
    outputs[Key("pull_sum")] = added([found[leaf] for leaf in hierarchy.leaves])
    return replace(program, outputs=outputs).validate()


class _SquaredPulls(Formulas):
    def square(self, stratum: Stratum, received: dict[Key, Node]) -> Node:
        """`Σ m·Y²` of one level over the batch and all channels."""
        leaves = [leaf for leaf in self.h.leaves if leaf in self.shape.leaves_over(stratum)]

        def pull(channel: str) -> Node:
            """`m·Y`: the sum of what is received over an element."""
            given = [(received[Key(RECEIVED, leaf.name, channel)], self.path(leaf, stratum)) for leaf in leaves]
            return added([ir.reduce(node, path) for node, path in given])

        return added([self.square_of(pull(channel)) for channel in self.h.decomposition.channels])

    def square_of(self, node: Node) -> Node:
        """`Σ m·(node/m)²` over the batch."""
        name = node.stratum
        square, mass = scalar("mul", arg(0), arg(0)), self.h.masses[self.strata[name]]
        if name in self.leaves:  # times 1/m, so that a factor that all tokens of a row have is applied once per row
            term = Map(scalar("mul", square, arg(1)), (node, self.map(cancel(1 / mass), name)))
            way = row_path(self.h, name)
        else:
            term, way = Map(scalar("div", square, arg(1)), (node, self.map(mass, name))), [name]
        return term if name == BATCH else Push(way[-1], BATCH, ir.reduce(term, way))

    def path(self, source: Stratum, target: Stratum) -> list[str]:
        return [source.name, *(f.target.name for f in self.shape.path(source, target))]
