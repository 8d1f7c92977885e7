"""Positivity: what the operator's parts give together."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import sympy
from sympy import oo

from fibration.language.atoms import advantage, gated, residual
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import log
from fibration.language.report import Verdict
from fibration.language.traversal import evaluate
from fibration.laws.law import Law
from fibration.laws.proof import empty_branches
from fibration.laws.proof.branches import always_defined
from fibration.laws.proof.coordinates import coordinate, intensive, is_logarithmic, normal_recovery
from fibration.laws.proof.germ import RHO
from fibration.laws.proof.pieces import Piece, pieces
from fibration.laws.proof.reach import domain
from fibration.laws.proof.shrinking import shrinks
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Witness, concretes, rounding

STATEMENT = "gated ratios are positive: 𝒢(r) > 0"


RATIOS = tuple(Fraction(n, 1000) for n in (1, 125, 250, 500, 750, 875, 1000, 1250, 1500, 5000, 10**5, 10**9))


def decide(subject: Subject) -> Iterator[Verdict]:
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
        remedy = empty_branches.remedy(h, formula, assume) or remedy
    if len(h.order) == 1:
        witness = _search(h, known)
    yield Verdict(
        "positivity",
        "hierarchy",
        "refuted" if witness else "undecided",
        "",
        required=STATEMENT,
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
                except NoValue:
                    continue
                value: Fraction | None
                try:
                    g = concrete.value(gate, leaf, 0, {residual: scaled, advantage: a})
                    value = concrete.value(recovery, leaf, 0, {gated(""): g})
                except NoValue:
                    value = None
                if value is None or value <= -rounding(gate, recovery) or (value == 0 and not rounding(gate, recovery)):
                    settings = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                    shown = "no value" if value is None else f"the gated ratio {value}"
                    text = f"a token with ratio {r} and advantage {a}{settings} gets {shown}"
                    return Witness(text, concrete, {"ratio": r, "advantage": a, "gated": value})
    return None


LAW = Law("positivity", STATEMENT, decide)
