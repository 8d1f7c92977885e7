"""Orthogonality and positivity: what the operator's parts give together."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy
from sympy import oo

from fibration.cancel import cancel
from fibration.expressions import Expression, substitute
from fibration.laws.algebra import symbol, to_sympy
from fibration.laws.concrete import Witness, concretes
from fibration.laws.germ import RHO
from fibration.laws.law import Law, Subject
from fibration.laws.pieces import Line, pieces
from fibration.laws.reference import gates
from fibration.lower import measures
from fibration.report import Verdict
from fibration.spec import Hierarchy
from fibration.symbols import Gated, Stratum, advantage, gated, in_channel, residual

ORTHOGONALITY = "the residual of every level sums to 0 over the level below: π_* ρ = 0"
POSITIVITY = "gated ratios are positive: 𝒢(r) > 0"


def decide_orthogonality(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    for f in h.fibrations:
        what = f"residual on {f.source}"
        kernel = next(v for v in subject.verdicts if v.law == "reflecting" and v.subject == f"kernel {f.name}")
        if kernel.status == "proved":
            yield Verdict("orthogonality", what, "proved", "π_*(σ - K π_*σ) = π_*σ - (Σ K)·π_*σ = 0, since ΣK = 1")
        else:
            yield Verdict(
                "orthogonality",
                what,
                kernel.status,
                "",
                required=ORTHOGONALITY,
                found="π_*(σ - K π_*σ) = (1 - ΣK)·π_*σ, which is not 0",
                remedy=kernel.remedy,
                counterexample=kernel.counterexample,
            )


def intensive(h: Hierarchy, stratum: Stratum, channel: str) -> Expression:
    """A gate in the units of the normal form, `g(m·s)/m`."""
    m = measures(h)[stratum.name]
    return cancel(substitute(in_channel(h.gate(stratum), channel), {residual: m * residual}) / m)


def lines(h: Hierarchy, subject: Subject) -> dict[tuple[Stratum, str], list[Line] | None]:
    """Every gate's pieces, in intensive units."""
    return {(s, c): pieces(intensive(h, s, c), subject.assume) for s, c, _ in gates(h)}


def domain(h: Hierarchy, stratum: Stratum, channel: str) -> tuple[Any, Any]:
    """The residuals that can reach a gate, in intensive units, as far as they are bounded by 0 or -1."""
    if stratum != h.chain[0]:
        return -oo, oo
    if channel:  # the root of a signed decomposition sees means of max(±x, 0)
        return 0, oo
    return (-1, oo) if not is_logarithmic(h) else (-oo, oo)


def is_logarithmic(h: Hierarchy) -> bool:
    """Whether the recovery is an exponential, so that gates act on log ratios."""
    value = to_sympy(normal_recovery(h))
    return isinstance(value, sympy.exp)


def normal_recovery(h: Hierarchy) -> Expression:
    """`R` in the units of the normal form."""
    m = measures(h)[h.leaf.name]
    return cancel(substitute(h.decomposition.recovery, {Gated(c): m * Gated(c) for c in h.decomposition.channels}))


def decide_positivity(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    recovery = normal_recovery(h)
    if is_logarithmic(h):
        yield Verdict("positivity", "hierarchy", "proved", f"𝒢(r) = {recovery} > 0 for every real argument")
        return
    argument = _affine_proof(h, subject, recovery)
    if argument:
        yield Verdict("positivity", "hierarchy", "proved", argument)
        return
    witness = _search(h)
    yield Verdict(
        "positivity",
        "hierarchy",
        "refuted" if witness else "undecided",
        "",
        required=POSITIVITY,
        found=f"𝒢(r) = {recovery}, whose lower bound is not above 0",
        remedy="bound the gate below by less than 1, for example Parameter(..., upper=1), or gate log ratios",
        counterexample=witness,
    )


def _affine_proof(h: Hierarchy, subject: Subject, recovery: Expression) -> str:
    """One stratum, `R = 1 + σ`: every piece of the gate on `ρ > -1` stays above -1."""
    s = symbol(gated(""))
    if len(h.chain) > 1 or h.decomposition.channels != ("",) or to_sympy(recovery) != 1 + s:
        return ""
    found = pieces(intensive(h, h.leaf, ""), subject.assume)
    if found is None:
        return ""
    for line in found:
        for p in line.pieces:
            assume = line.assume
            if p.high != oo:  # r = 1 + ρ > 0 comes here only if the piece reaches above ρ = -1
                if assume.signs(p.high + 1) <= {-1, 0}:
                    continue
                assume = assume.with_signs({p.high + 1: frozenset({1})})
            ends = [e for e in (p.low, p.high) if e not in (oo, -oo)]
            low_end = p.low if p.low != -oo and assume.signs(p.low + 1) == {1} else sympy.Integer(-1)
            slope = sympy.diff(p.value, RHO)
            rising = assume.signs(slope) <= {0, 1}
            inside = [low_end] if rising and slope != 0 else ends or [sympy.Integer(0)]
            for end in inside:
                signs = assume.signs(p.value.subs(RHO, end) + 1)
                # at the open end r -> 0 a rising piece may tend to 0, since r > 0 is strict
                allowed = {1} if end != -1 else ({0, 1} if slope != 0 else {1})
                if not signs <= allowed:
                    return ""
            if not rising and p.high == oo:
                return ""
    return "1 + g(ρ) > 0 on every piece of the gate, for ρ = r - 1 > -1"


def _search(h: Hierarchy) -> Witness | None:
    """A sampled ratio whose gated ratio is not positive, on one token."""
    if len(h.chain) > 1:
        return None
    gate = h.gate(h.leaf)
    for tried, concrete in enumerate(concretes(h, [gate, h.decomposition.recovery])):
        if tried > 200:
            return None
        for a in (Fraction(1), Fraction(-1)):
            for r in (Fraction(1, 1000), Fraction(1, 2), Fraction(3, 2), Fraction(5), Fraction(100), Fraction(10**6)):
                try:
                    g = concrete.value(gate, h.leaf, 0, {residual: r - 1, advantage: a})
                    value = concrete.value(h.decomposition.recovery, h.leaf, 0, {gated(""): g})
                except (ZeroDivisionError, ArithmeticError, TypeError):
                    continue
                if value <= 0:
                    settings = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                    text = f"a token with ratio {r} and advantage {a}{settings} gets the gated ratio {value}"
                    return Witness(text, concrete, {"ratio": r, "advantage": a, "gated": value})
    return None


LAWS = (Law("orthogonality", ORTHOGONALITY, decide_orthogonality), Law("positivity", POSITIVITY, decide_positivity))
