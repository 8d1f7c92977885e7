"""Positivity: what the operator's parts give together."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy
from sympy import oo

from fibration.cancel import cancel
from fibration.expressions import Expression, as_expression, log
from fibration.laws import empty
from fibration.laws.algebra import Assumptions, symbol, to_sympy, vanishes
from fibration.laws.cases import TooManyCases, always_defined, cases
from fibration.laws.concrete import Witness, concretes, rounding
from fibration.laws.germ import RHO
from fibration.laws.law import Law, Subject
from fibration.laws.pieces import Line, Piece, pieces
from fibration.laws.reach import domain
from fibration.laws.recovery import X
from fibration.laws.reference import gates
from fibration.laws.shrink import shrinks
from fibration.report import Verdict
from fibration.spec import Hierarchy
from fibration.symbols import Gated, Stratum, advantage, gated, in_channel, residual
from fibration.traversal import evaluate, substitute

POSITIVITY = "gated ratios are positive: 𝒢(r) > 0"


RATIOS = tuple(Fraction(n, 1000) for n in (1, 125, 250, 500, 750, 875, 1000, 1250, 1500, 5000, 10**5, 10**9))


def intensive(h: Hierarchy, stratum: Stratum, channel: str) -> Expression:
    """A gate in the units of the normal form, `g(m·s)/m`."""
    m = h.masses[stratum]
    return cancel(substitute(in_channel(h.gate(stratum), channel), {residual: m * residual}) / m)


def lines(h: Hierarchy, subject: Subject) -> dict[tuple[Stratum, str], list[Line] | None]:
    """Every gate's pieces, in intensive units."""
    extra = {}
    if len(h.order) == 1 and coordinate(h, subject) == "deviation":
        extra = {1 + RHO: frozenset({1})}
    return {(s, c): pieces(intensive(h, s, c), subject.at(s).with_signs(extra)) for s, c, _ in gates(h)}


def coordinate(h: Hierarchy, subject: Subject) -> str:
    """What the gates act on in the normal form: "log" ratios, log ratios "split" by sign, "deviation" of ratios.

    "split deviation" for these split by sign; `""` for a decomposition of another kind, or one whose scale is not the
    leaf measure of the kernels: what follows from the range of log ratios is then not certified.
    """
    found = {_coordinate(h, leaf, subject) for leaf in h.leaves}
    return found.pop() if len(found) == 1 else ""


def _coordinate(h: Hierarchy, leaf: Stratum, subject: Subject) -> str:
    m = h.masses[leaf]
    channels = h.decomposition.channels
    back = [symbol(gated(c)) for c in channels]
    recovery = to_sympy(normal_recovery(h, leaf))
    log_argument = recovery.args[0] if isinstance(recovery, sympy.exp) else None
    sides = [subject.at(leaf).with_signs({X: frozenset({s})}) for s in (-1, 1)]
    try:
        seen = [
            [case.sympy() for case in cases(cancel(h.with_mass(h.decomposition[channel], leaf) / m), side)]
            for channel in channels
            for side in sides
        ]
    except TooManyCases:
        return ""

    def are(*expected: Any) -> bool:
        return all(all(vanishes(v - e) for v in values) for values, e in zip(seen, expected, strict=True))

    deviation = sympy.exp(X) - 1
    if len(channels) == 2:
        if log_argument is not None and vanishes(log_argument - back[0] + back[1]):
            return "split" if are(0, X, -X, 0) else ""
        apart = vanishes(recovery - 1 - back[0] + back[1]) and are(0, deviation, -deviation, 0)
        return "split deviation" if apart else ""
    if log_argument is not None and vanishes(log_argument - back[0]) and are(X, X):
        return "log"
    return "deviation" if vanishes(recovery - 1 - back[0]) and are(deviation, deviation) else ""


def is_logarithmic(h: Hierarchy) -> bool:
    """Whether the recovery is an exponential on every leaf, so that gates act on log ratios."""
    return all(isinstance(to_sympy(normal_recovery(h, leaf)), sympy.exp) for leaf in h.leaves)


def normal_recovery(h: Hierarchy, leaf: Stratum) -> Expression:
    """`R` on a leaf, in the units of the normal form."""
    m = h.masses[leaf]
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    return cancel(substitute(recovery, {Gated(c): m * Gated(c) for c in h.decomposition.channels}))


def decide_positivity(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    recovery = " and ".join(dict.fromkeys(str(normal_recovery(h, leaf)) for leaf in h.leaves))
    logarithmic, known = is_logarithmic(h), coordinate(h, subject)
    found = f"𝒢(r) = {recovery}, whose lower bound is not above 0"
    remedy = "bound the gate below by less than 1, for example Parameter(..., upper=1), or gate log ratios"
    witness = None
    if not (loose := _undefined(h, subject, known)):
        if logarithmic:
            yield Verdict("positivity", "hierarchy", "proved", f"𝒢(r) = {recovery} > 0 for every real argument")
            return
        if _stays_positive(h, subject, known):
            argument = "1 + g(ρ) > 0 on every piece of the gate, for ρ = r - 1 > -1"
            yield Verdict("positivity", "hierarchy", "proved", argument)
            return
        if shrinks(subject, known):
            argument = "the gates add up to something between 0 and the token's own density: 𝒢(r) lies between 1 and r"
            yield Verdict("positivity", "hierarchy", "proved", argument)
            return
    else:
        what, formula, assume = loose
        found = f"{what}, which may have no value: a division by 0, or a logarithm or root outside its domain"
        remedy = empty.remedy(h, formula, assume) or remedy
    if len(h.order) == 1:
        witness = _search(h, known)
    yield Verdict(
        "positivity",
        "hierarchy",
        "refuted" if witness else "undecided",
        "",
        required=POSITIVITY,
        found=found,
        remedy=remedy,
        counterexample=witness,
    )


def _undefined(h: Hierarchy, subject: Subject, known: str) -> tuple[str, Expression, Assumptions] | None:
    """A kernel, a gate, or the recovery, that could not be shown to have a value for every argument.

    In words, as a formula, and with what is known where it is read.
    """
    for f in h.fibrations:
        if not always_defined(f.weight, subject.at(f.source)):
            return f"the kernel {f.name} has the weight {f.weight}", f.weight, subject.at(f.source)
    for stratum, _, gate in gates(h):
        assume = subject.at(stratum)
        if known == "split" and domain(h, stratum, known) == (0, oo):
            assume = assume.with_signs({RHO: frozenset({0, 1})})
        if len(h.order) == 1 and known == "deviation":
            assume = assume.with_signs({1 + RHO: frozenset({1})})
        if not always_defined(gate, assume):
            return f"the gate on {stratum} is {h.gates[stratum]}", gate, assume
    for leaf in h.leaves:
        recovery = h.with_mass(h.decomposition.recovery, leaf)
        if not always_defined(recovery, subject.at(leaf)):
            return f"R = {h.decomposition.recovery}", recovery, subject.at(leaf)
    return None


def _stays_positive(h: Hierarchy, subject: Subject, known: str) -> bool:
    """One stratum in deviation coordinates: every piece of the gate on `ρ > -1` stays above -1."""
    if len(h.order) > 1 or known != "deviation":
        return False
    found = pieces(intensive(h, h.leaves[0], ""), subject.assume.with_signs({1 + RHO: frozenset({1})}))
    return found is not None and all(_piece_stays_positive(p, line.assume) for line in found for p in line.pieces)


def _piece_stays_positive(p: Piece, assume: Assumptions) -> bool:
    if p.high != oo:  # r = 1 + ρ > 0 comes here only if the piece reaches above ρ = -1
        if assume.signs(p.high + 1) <= {-1, 0}:
            return True
        assume = assume.with_signs({p.high + 1: frozenset({1})})
    # the infimum lies at an end, because a piece that is not monotone is not accepted
    low_end = p.low if p.low != -oo and assume.signs(p.low + 1) == {1} else sympy.Integer(-1)
    slope = sympy.diff(p.value, RHO)
    direction = p.direction(assume)
    if direction == 0:
        return bool(assume.signs(p.value + 1) == {1})
    if direction == 1:
        # at the open end r -> 0 a rising piece may tend to 0, since r > 0 is strict
        signs = assume.signs(p.value.subs(RHO, low_end) + 1)
        return bool(signs == {1} or (low_end == -1 and signs <= {0, 1} and assume.signs(slope) == {1}))
    return bool(direction == -1 and p.high != oo and assume.signs(p.value.subs(RHO, p.high) + 1) == {1})


def _search(h: Hierarchy, known: str) -> Witness | None:
    """A sampled ratio whose gated ratio is not positive, on one token."""
    [leaf] = h.order
    gate, scale = h.gate(leaf), h.with_mass(h.decomposition.scale, leaf)
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    if known not in ("log", "deviation"):
        return None
    for tried, concrete in enumerate(concretes(h, [gate, recovery, scale])):
        if tried > 200:
            return None
        for a in (Fraction(1), Fraction(-1)):
            for r in RATIOS:
                try:
                    rho = r - 1 if known == "deviation" else evaluate(log(as_expression(r)), {})
                    scaled = concrete.value(scale, leaf, 0) * rho
                except (ZeroDivisionError, ArithmeticError, TypeError):
                    continue
                value: Fraction | None
                try:
                    g = concrete.value(gate, leaf, 0, {residual: scaled, advantage: a})
                    value = concrete.value(recovery, leaf, 0, {gated(""): g})
                except (ZeroDivisionError, ArithmeticError, TypeError):
                    value = None
                if value is None or value <= -rounding(gate, recovery) or (value == 0 and not rounding(gate, recovery)):
                    settings = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                    shown = "no value" if value is None else f"the gated ratio {value}"
                    text = f"a token with ratio {r} and advantage {a}{settings} gets {shown}"
                    return Witness(text, concrete, {"ratio": r, "advantage": a, "gated": value})
    return None


LAWS = (Law("positivity", POSITIVITY, decide_positivity),)
