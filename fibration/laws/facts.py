"""Facts certified beside the laws: how far ratios pass unchanged, what each level adds at most, where it resists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
from sympy import oo

from fibration.expressions import atoms
from fibration.laws.algebra import Assumptions, from_sympy, to_sympy, vanishes
from fibration.laws.germ import RHO
from fibration.laws.law import Subject
from fibration.laws.outcome import coordinate, domain, lines
from fibration.laws.pieces import Line, extremes, text
from fibration.laws.reference import gates
from fibration.report import Fact
from fibration.spec import Hierarchy
from fibration.symbols import Density, Reading, Stratum

Lines = dict[tuple[Stratum, str], list[Line] | None]


def facts(subject: Subject) -> Iterator[Fact]:
    """Everything that can be certified of a hierarchy whose laws have been decided."""
    h = subject.hierarchy
    table = lines(h, subject)
    known = coordinate(h, subject)
    # distances of log ratios from residuals, when the levels are means and R turns their sum back into a ratio
    if known and subject.first_failure("markov", "reflecting", "recovery") is None:
        yield from _radius(subject, table, known)
        yield from _bounds(subject, table, known)
    yield from _shapes(h, table)
    yield _blocks(h)


# ---------------------------------------------------------------- pass-through radius


def _radius(subject: Subject, table: Lines, known: str) -> Iterator[Fact]:
    """`max{R : |x_i| <= R for all i implies 𝒢(r) = r}`, the least over all sizes."""
    h = subject.hierarchy
    exact = all(subject.germ(g).passes for _, _, g in gates(h))
    if not exact:
        if any(v.law == "identity" and v.status == "undecided" for v in subject.verdicts):
            return
        smooth = subject.proved("first_order", "hierarchy")
        why = "some gate is not the identity on any neighbourhood of 0"
        yield Fact("radius", "hierarchy", "0", why + ("; agreement is to first order only" if smooth else ""))
        return
    limits: list[Any] = []
    for (stratum, _), found in table.items():
        if found is None:
            return
        for line in found:
            interval = line.passes()
            if interval is None:
                return
            reach = _reach(h, stratum, known, *interval, subject.assume)
            if reach is None or any(_reads_batch(v) for v in reach):
                return
            limits += reach
    finite = [v for v in limits if v != oo]
    smallest = extremes(finite, subject.assume, -1) if finite else [oo]
    unit = "|log r|"
    value = text(smallest[0]) if len(smallest) == 1 else f"min({', '.join(text(v) for v in smallest)})"
    yield Fact(
        "radius",
        "hierarchy",
        value,
        f"𝒢(r) = r while every {unit} is at most this: no residual leaves its gate's pass-through interval",
    )


def _reads_batch(value: Any) -> bool:
    """Whether a bound changes with the batch: with a density or an advantage."""
    return any(isinstance(from_sympy(s), (Density, Reading)) for s in sympy.sympify(value).free_symbols)


def _reach(h: Hierarchy, stratum: Stratum, known: str, low: Any, high: Any, assume: Assumptions) -> list[Any] | None:
    """How large `|x|` may be so that this gate's residual stays in `[low, high]`, whatever the sizes."""
    root = stratum == h.chain[0]
    below = oo if low == -oo else -low
    if known == "deviation":
        if not root:  # at opposite ends of [exp(-R) - 1, exp(R) - 1]: 2 sinh(R) apart
            return [v if v == oo else sympy.log(v / 2 + sympy.sqrt(1 + v**2 / 4)) for v in (below, high)]
        room = frozenset({0}) if below == oo else assume.signs(1 + low)
        down = oo if room <= {-1, 0} else -sympy.log(1 + low) if room == {1} else None
        return None if down is None else [oo if high == oo else sympy.log(1 + high), down]
    if known == "split":  # means of max(±x, 0) lie in [0, R], their differences in [-R, R]
        return [high] if root else [below, high]
    factor = 1 if root else 2  # a token and the mean of its siblings may lie at opposite ends of [-R, R]
    return [v if v == oo else v / factor for v in (below, high)]


# ---------------------------------------------------------------- bounds of log 𝒢


def _bounds(subject: Subject, table: Lines, known: str) -> Iterator[Fact]:
    h = subject.hierarchy
    total_low: Any = 0
    total_high: Any = 0
    level_facts = []
    for stratum in h.chain:
        found = _level(h, stratum, table, subject, known)
        if found is None or any(_reads_batch(v) for v in found):
            return
        low, high = found
        level_facts.append((stratum, low, high))
        total_low = -oo if -oo in (low, total_low) else total_low + low
        total_high = oo if oo in (high, total_high) else total_high + high
    if known != "deviation":
        yield Fact("bounds", "log 𝒢", _interval(total_low, total_high), "the sum of what the levels contribute at most")
        for stratum, low, high in level_facts:
            yield Fact(
                "bounds",
                f"{stratum} level",
                _interval(low, high),
                "range of its gates over the residuals that can reach them",
            )
    elif len(h.chain) == 1 and subject.proved("positivity"):
        shown = _interval(1 + total_low, 1 + total_high)
        yield Fact(
            "bounds",
            "𝒢",
            f"({shown[1:]}" if total_low == -1 else shown,
            "1 plus the range of the gate over r > 0 and every advantage",
        )


def _interval(low: Any, high: Any) -> str:
    return f"{'(' if low == -oo else '['}{text(low)}, {text(high)}{')' if high == oo else ']'}"


def _level(h: Hierarchy, stratum: Stratum, table: Lines, subject: Subject, known: str) -> tuple[Any, Any] | None:
    """Infimum and supremum of one level's contribution to the recovery's argument."""
    channels = h.decomposition.channels
    ranges: dict[tuple[str, str], tuple[Any, Any]] = {}
    for channel in channels:
        full = domain(h, stratum, known)
        for name, (low, high) in {"full": full, "down": (full[0], min(full[1], 0))}.items():
            bounds = _range(table[stratum, channel], low, high, subject)
            if bounds is None:
                return None
            ranges[channel, name] = bounds
    if channels == ("",):
        return ranges["", "full"]
    pairs = [("full", "full")]
    if stratum == h.leaf and stratum != h.chain[0]:
        # a token lies in one channel: in the other its density is 0, and its residual minus a mean, so not above 0
        pairs = [("full", "down"), ("down", "full")]
    lows = [_minus(ranges["+", a][0], ranges["-", b][1]) for a, b in pairs]
    highs = [_minus(ranges["+", a][1], ranges["-", b][0]) for a, b in pairs]
    low, high = extremes(lows, subject.assume, -1), extremes(highs, subject.assume, 1)
    return sympy.Min(*low), sympy.Max(*high)


def _minus(a: Any, b: Any) -> Any:
    return a if a in (oo, -oo) else -b if b in (oo, -oo) else sympy.cancel(a - b)


def _range(found: list[Line] | None, low: Any, high: Any, subject: Subject) -> tuple[Any, Any] | None:
    if found is None:
        return None
    lows: list[Any] = []
    highs: list[Any] = []
    for line in found:
        bounds = line.range(low, high)
        if bounds is None:
            return None
        lows += bounds[0]
        highs += bounds[1]
    least, most = extremes(lows, subject.assume, -1), extremes(highs, subject.assume, 1)
    return sympy.Min(*least), sympy.Max(*most)


# ---------------------------------------------------------------- shape of the gates


def _shapes(h: Hierarchy, table: Lines) -> Iterator[Fact]:
    for stratum in h.chain:
        found = [table[stratum, c] for c in h.decomposition.channels]
        known = [line for f in found if f is not None for line in f]
        if any(f is None for f in found):
            yield Fact("continuity", f"gate on {stratum}", "not decided", "its breakpoints could not be put in order")
            continue
        yield Fact(
            "continuity",
            f"gate on {stratum}",
            "continuous" if all(line.continuous() for line in known) else "has a jump",
        )
        regions = dict.fromkeys(r for line in known for r in _regions(line))
        if regions:
            yield Fact(
                "restorative", f"gate on {stratum}", "; ".join(regions), "there the gradient opposes further drift"
            )


def _regions(line: Line) -> Iterator[str]:
    """Where a gate has negative slope, in the words of the positive side if it is the same on both."""
    found = [(p.low, p.high, sympy.diff(p.value, RHO)) for p in line.restorative()]
    for low, high, slope in found:
        mirrored = any(
            vanishes(low + h) and vanishes(high + w) and vanishes(slope - s) for w, h, s in found if oo not in (h, high)
        )
        if mirrored and line.assume.signs(high) <= {-1, 0}:
            continue
        name = "|ρ|" if mirrored else "ρ"
        # the two channels differ only in their budgets' names
        yield f"{text(low)} < {name} < {text(high)} with slope {text(slope)}".replace("[+]", "").replace("[-]", "")


def _blocks(h: Hierarchy) -> Fact:
    """The stratum over which the Jacobian of `𝒢` is block-diagonal (prop:traj_independence)."""
    leading = 0
    for stratum in h.chain:
        own = [g for s, _, g in gates(h) if s == stratum]
        if not all(vanishes(to_sympy(g) - RHO) if not _has_branches(g) else False for g in own):
            break
        leading += 1
    # levels that pass unchanged telescope: D_k = σ_k, so the first real gate sees one element of the level below it
    depth = len(h.chain) - 1 if leading == len(h.chain) else max(leading - 1, 0)
    read = {a.stratum for _, _, g in gates(h) for a in atoms(g) if isinstance(a, Density)}
    stratum = h.chain[min([depth, *(h.chain.index(s) for s in read)])]
    return Fact(
        "blocks",
        "Jacobian of 𝒢",
        f"block-diagonal over {stratum}",
        "no gate reads beyond the element of this stratum that it lies over",
    )


def _has_branches(e: Any) -> bool:
    return getattr(e, "operator", "") in ("where", "clip", "minimum", "maximum", "abs", "sign") or any(
        _has_branches(a) for a in getattr(e, "arguments", ())
    )
