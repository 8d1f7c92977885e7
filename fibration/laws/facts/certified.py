"""Facts certified beside the laws: how far ratios pass unchanged, how much levels add, where gates oppose drift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Component, Density, Parameter, Stratum, advantage, in_channel, pull
from fibration.language.hierarchy import gates
from fibration.language.report import NOTE, WARNING, Fact, Width
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import ATOM_OF, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms
from fibration.laws import topic
from fibration.laws.facts import levels
from fibration.laws.facts.amplification import amplification
from fibration.laws.facts.batch_facts import blocks, normaliser, second_moment
from fibration.laws.facts.weight_sums import weight
from fibration.laws.gates.contributions import Lines, by_sizes, contribution, domain, is_effect, reach, reads_batch
from fibration.laws.gates.coordinates import coordinate, lines
from fibration.laws.gates.pieces import Line, Piece, extremes, text
from fibration.laws.off_policy.further_out import moves_along
from fibration.laws.signs.neighbourhood import RHO, WORDS
from fibration.laws.subject import Subject

# the most expensive fact comes last
NAMES = (
    "radius", "bounds", "continuity", "blocks", "second_moment", "normaliser", "weight", "share", "idle", "spill",
    "reversal", "amplification",
)  # fmt: skip
PASSES = "unless the loss means it, as 'gspo' and 'sapo' do, give each gate a band that passes: clip_gate(epsilon)"


def facts(subject: Subject) -> Iterator[tuple[str, Iterator[Fact]]]:
    """Yields all facts of a hierarchy, by name. Its laws must have been decided."""
    h = subject.hierarchy
    table = lines(h, subject)
    known = coordinate(h, subject)
    # residuals bound log ratios only if the levels are means and R turns their sum back into a ratio
    far = known in ("log", "split", "deviation") and not subject.first_failure("markov", "reflecting", "recovery")
    yield "radius", _radius(subject, table, known) if far else iter(())
    yield "bounds", _bounds(subject, table, known) if far else iter(())
    yield "continuity", _continuity(subject, table, known)
    yield "blocks", blocks(h)
    yield "second_moment", second_moment(subject)
    yield "normaliser", normaliser(h)
    yield "weight", weight(h)
    yield "share", levels.share(subject, known)
    yield "idle", levels.idle(subject, known)
    yield "spill", levels.spill(subject, known)
    yield "reversal", levels.reversal(subject, known, table)
    yield "amplification", amplification(subject, table, known)


# ---------------------------------------------------------------- pass-through radius


def _radius(subject: Subject, table: Lines, known: str) -> Iterator[Fact]:
    """Yields `max{R : |x_i| <= R for all i implies 𝒢(r) = r}`, the least over all sizes."""
    h = subject.hierarchy
    exact = all(subject.germ(g, s).passes for s, _, g in gates(h))
    if not exact:
        if any(v.law == "identity" and v.status == "undecided" for v in subject.verdicts) or _makes_up(subject):
            return
        smooth = ", though not to first order" if subject.proved("identity") else ""
        why = f"some ratios are changed however near they are to 1{smooth}; {PASSES}"
        yield Fact("radius", "hierarchy", "0", why, WARNING)
        return
    limits: list[Any] = []
    is_closed = True
    for (stratum, _), found in table.items():
        if found is None:
            return
        ends_of: list[tuple[Line, list[Any]]] = []
        for line in found:
            interval = line.passes()
            if interval is None:
                return
            ends = reach(h, stratum, known, *interval, subject.at(stratum))
            if ends is None and is_effect(h, stratum):
                why = f"the effects on {stratum}, of a least-squares fit, have no bound that holds for every crossing"
                yield Fact("radius", "hierarchy", "not certified", why, NOTE)
                return
            if ends is None or any(reads_batch(v) for v in ends):
                return
            ends_of.append((line, ends))
            is_closed = is_closed and all(line.passes_at(end) for end in interval)
        limits += by_sizes(ends_of, subject.at(stratum), -1)
    finite = [v for v in limits if v != oo]
    smallest = extremes(finite, subject.assume, -1) if finite else [oo]
    value = text(smallest[0]) if len(smallest) == 1 else f"min({', '.join(text(v) for v in smallest)})"
    within = "at most" if is_closed else "below"
    why = f"𝒢(r) = r while every |log r| is {within} this: no residual leaves its gate's pass-through interval"
    yield Fact("radius", "hierarchy", value, why, NOTE)


def _makes_up(subject: Subject) -> bool:
    """Whether gates that fail alone may pass everything together. The radius is then not 0, and is not computed."""
    if subject.proved("identity"):
        return False
    first = next(v.status for v in subject.verdicts if v.law == "first_order")
    # a score estimator is refuted for its value, whatever its gates are
    return first != "refuted" or subject.hierarchy.objective.estimator == "score"


# ---------------------------------------------------------------- bounds of log 𝒢


def _bounds(subject: Subject, table: Lines, known: str) -> Iterator[Fact]:
    """Yields the range that every level adds, and for each leaf the sum over its own level and all coarser ones."""
    h = subject.hierarchy
    found: dict[Stratum, tuple[Any, Any]] = {}
    for stratum in h.order:
        level = contribution(stratum, table, subject, known)
        if level is not None and not any(reads_batch(v) for v in level):
            found[stratum] = level
    totals = {}
    for leaf in h.leaves:
        path = [found.get(s) for s in h.order if s == leaf or s in h.coarser(leaf)]
        if None not in path:
            lows, highs = zip(*path, strict=True)  # type: ignore[arg-type]
            totals[leaf] = -oo if -oo in lows else sum(lows), oo if oo in highs else sum(highs)
    if not totals:
        return
    if known != "deviation":
        for leaf, total in totals.items():
            what = "log 𝒢" if len(h.leaves) == 1 else f"log 𝒢 on {leaf}"
            width = _width(*total) if subject.proved("identity") else ()
            why = "the sum of what the levels contribute at most"
            yield Fact("bounds", what, _interval(*total), why, width=width)
        why = "range of its gates over the residuals that can reach them"
        for stratum, level in found.items():
            yield Fact("bounds", f"{stratum} level", _interval(*level), why)
    elif len(h.order) == 1 and subject.proved("positivity"):
        low, high = totals[h.leaves[0]]
        # the gate's lower bound may lie below -1, but the gated ratio is positive, so the gate stays above -1
        least = 1 + low if low == -oo or -1 not in subject.assume.signs(1 + low) else sympy.Max(0, 1 + low)
        shown = _interval(least, 1 + high)
        why = "1 plus the range of the gate over r > 0 and every advantage"
        yield Fact("bounds", "𝒢", f"({shown[1:]}" if low == -1 else shown, why)


def _width(low: Any, high: Any) -> Width:
    """`high - low`, if it is a sum of parameters times factors above 0."""
    found = []
    for term, factor in sympy.expand(high - low).as_coefficients_dict().items():
        read = ATOM_OF.get(term)
        parameter, channel = (read.parameter, read.channel) if isinstance(read, Component) else (read, "")
        if not isinstance(parameter, Parameter) or not factor > 0:
            return ()
        found.append((parameter.name, channel, float(factor)))
    return tuple(sorted(found))


def _interval(low: Any, high: Any) -> str:
    return f"{'(' if low == -oo else '['}{text(low)}, {text(high)}{')' if high == oo else ']'}"


# ---------------------------------------------------------------- continuity of the gates, and where they resist


def _continuity(subject: Subject, table: Lines, acts_on: str) -> Iterator[Fact]:
    h = subject.hierarchy
    for stratum in h.order:
        found = [table[stratum, c] for c in h.decomposition.channels]
        known = [line for per_channel in found for line in per_channel or ()]
        if None in found:
            yield Fact("continuity", topic.gate(stratum), "not decided", "its breakpoints could not be put in order")
            continue
        read = [str(a) for a in atoms(h.gate(stratum)) if isinstance(a, Density) or moves_along(a)]
        held = f" in its residual, with {' and '.join(read)} held" if read else ""  # it may jump across a density
        is_continuous = all(line.continuous() for line in known)
        yield Fact("continuity", topic.gate(stratum), f"continuous{held}" if is_continuous else "has a jump")
        least = domain(h, stratum, acts_on)[0]
        regions = dict.fromkeys(
            r for c in h.decomposition.channels for r in _regions(subject, stratum, c, table, least)
        )
        if regions:
            why = "there the gradient opposes further drift"
            yield Fact("restorative", topic.gate(stratum), "; ".join(regions), why)


def _regions(subject: Subject, stratum: Stratum, channel: str, table: Lines, least: Any) -> Iterator[str]:
    """Yields where a gate has negative slope, in words; once, with `|ρ|`, if both sides are the same.

    `least`: the lower bound of all residuals; a deviation of ratios is above -1.
    """
    found: dict[str, list[tuple[Any, Any, Any, Line]]] = {}
    for line in table[stratum, channel] or ():
        for p in line.restorative():
            when = _when(subject, stratum, channel, line, p)
            found.setdefault(when, []).append((p.low, p.high, p.slope, line))
    for when, low, high, slope, line in ((when, *region) for when, regions in found.items() for region in regions):
        mirrored = any(
            vanishes(low + top) and vanishes(high + base) and vanishes(slope - steep)
            for base, top, steep, _ in found[when]
            if oo not in (top, high)
        )
        if mirrored and line.assume.signs(high) <= {-1, 0}:
            continue
        name = "|ρ|" if mirrored else "ρ"
        low = least if low == -oo and least == -1 else low
        # the two channels differ only in their budgets' names
        region = f"{text(low)} < {name} < {text(high)} with slope {text(slope)}{when}"
        yield region.replace("[+]", "").replace("[-]", "")


def _when(subject: Subject, stratum: Stratum, channel: str, line: Line, piece: Piece) -> str:
    """On which batches a piece of a gate holds, in words: by the pull, if the gate reads it, or by the advantage."""
    h, said = subject.hierarchy, []
    known = {*subject.at(stratum).extra, 1 + RHO}
    mentioned = {symbol(advantage), *(symbol(a) for a in atoms(h.pull(stratum), Aggregate))}
    turned = set[int]()
    if pull in atoms(h.gates[stratum].expression):
        side = 1 if line.assume.signs(piece.high) == {1} or piece.high == oo else -1
        turned = {side * s for s in line.assume.signs(to_sympy(in_channel(h.pull(stratum), channel)))}
    if turned in ({1}, {-1}):
        said.append(f"the pull is {'outward' if turned == {1} else 'inward'}")
    elif (signs := line.assume.extra.get(symbol(advantage))) in WORDS:
        said.append(f"the advantage is {WORDS[signs]}")
    others = ((d, s) for d, s in line.assume.extra.items() if d not in known and d not in mentioned and s in WORDS)
    said += [f"{text(d)} is {WORDS[s]}" for d, s in others]
    return f" where {' and '.join(said)}" if said else ""
