"""Identity at the reference, and first-order agreement (thm:fbg_first_order).

At the on-policy point every residual and every density is 0 in log-ratio and deviation coordinates. A gate is examined
at 0 and in the germ on both sides of it: which branches can hold there, for any value of its parameters, counts and
advantage, and whether each has value 0 and slope 1. A branch that *is* the residual passes a whole neighbourhood.

A gate that reads coarser densities must have value 0 at residual 0 *whatever* they are: a level without drift of its
own adds nothing. (A residual taken against the gated base fails here.) Its slope is asked near density 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy

from fibration.cancel import cancel
from fibration.expressions import Expression, atoms
from fibration.laws.algebra import symbol, vanishes
from fibration.laws.cases import TooManyCases, cases
from fibration.laws.concrete import Concrete, Witness, concretes
from fibration.laws.germ import Germ
from fibration.laws.law import Law, Subject
from fibration.laws.recovery import X
from fibration.lower import measures
from fibration.objective import LEAF, ROWS
from fibration.report import Status, Verdict
from fibration.spec import Hierarchy
from fibration.symbols import Count, Density, Stratum, advantage, gated, in_channel, put, residual

IDENTITY = "g(0) = 0 and g'(0) = 1 at the on-policy residual 0, from both sides"
FIRST_ORDER = "near on-policy 𝒢(r) = r to first order, so that value and gradient are those of the true objective"
STEP = Fraction(1, 10**12)


def gates(h: Hierarchy) -> Iterator[tuple[Stratum, str, Expression]]:
    """Every gate as read on each channel, root first."""
    for stratum in h.chain:
        for channel in h.decomposition.channels:
            yield stratum, channel, in_channel(h.gate(stratum), channel)


def decide_identity(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    if not _reference_is_zero(h, subject):
        yield Verdict(
            "identity",
            "reference",
            "undecided",
            "",
            required="F(1) = 0",
            found="densities that are not 0 on policy",
            remedy="use log-ratio or deviation coordinates",
        )
        return
    for stratum in h.chain:
        what = f"gate on {stratum}"
        status: Status = "proved"
        why = ""
        verdict = None
        for channel in h.decomposition.channels:
            gate = in_channel(h.gate(stratum), channel)
            try:
                found = subject.germ(gate)
            except TooManyCases:
                found = Germ(False, False, False)
            if found.value_ok and found.slope_ok:
                why = "the identity near 0" if found.passes else "value 0 and slope 1 at 0, from both sides"
                continue
            witness = _search(h, stratum, gate)
            status = "refuted" if witness else "undecided"
            part = "value" if not found.value_ok else "slope"
            why = f"whose {part} at 0 is not the identity's" if witness else "whose branches near 0 were not decided"
            verdict = Verdict(
                "identity",
                what,
                status,
                "",
                required=IDENTITY,
                found=f"{h.gates[stratum]}, {why}",
                remedy="let small residuals pass; if the loss breaks this on purpose, gives_up={'first_order': 'why'}",
                counterexample=witness,
            )
            break
        yield verdict or Verdict("identity", what, status, f"{h.gates[stratum]} is {why}")


def _reference_is_zero(h: Hierarchy, subject: Subject) -> bool:
    assume = subject.assume.with_signs({X: frozenset({0})})
    return all(vanishes(case.sympy().subs(X, 0)) for _, e in h.decomposition.densities for case in cases(e, assume))


def _search(h: Hierarchy, stratum: Stratum, gate: Expression) -> Witness | None:
    """A value at 0 that is not 0, or a difference quotient there that is not 1, in exact rationals."""
    others = [a for a in atoms(gate) if isinstance(a, Density)]
    for tried, concrete in enumerate(concretes(h, [gate])):
        if tried > 400:
            return None
        for element in range(min(concrete.size[stratum], 2)):
            for a in (Fraction(1), Fraction(-1), Fraction(0)):
                for p in (Fraction(0), Fraction(1, 10), Fraction(-1, 10)) if others else (Fraction(0),):
                    bound: dict[Expression, Fraction] = {advantage: a}
                    bound.update(dict.fromkeys(others, p))
                    text = _differs(concrete, gate, stratum, element, bound)
                    if text:
                        where_ = f"on {concrete.describe(stratum, element)}" if stratum != h.leaf else f"on a {stratum}"
                        extra = f" with advantage {a}" if advantage in set(atoms(gate)) else ""
                        values = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                        return Witness(
                            f"{where_}{extra}{values}: {text}",
                            concrete,
                            {"stratum": stratum.name, "element": element, "advantage": a, "gate": gate, "densities": p},
                        )
    return None


def _differs(
    concrete: Concrete, gate: Expression, stratum: Stratum, element: int, bound: dict[Expression, Fraction]
) -> str:
    def g(rho: Fraction) -> Fraction | None:
        try:
            return concrete.value(gate, stratum, element, {**bound, residual: rho})
        except (ZeroDivisionError, ArithmeticError, TypeError):
            return None

    at_zero = g(Fraction(0))
    if at_zero is None:
        return "g(0) has no value"
    if abs(at_zero) > Fraction(1, 10**30):
        return f"g(0) = {_number(at_zero)}, not 0"
    for h in (STEP, -STEP):
        value = g(h)
        slope = None if value is None else (value - at_zero) / h
        if slope is None or abs(slope - 1) > Fraction(1, 10**6):
            got = (
                "has no value"
                if value is None
                else f"= {_number(value)}, a slope of {_number(slope or Fraction(0))}, not 1"
            )
            return f"g({'' if h > 0 else '-'}1e-12) {got}"
    return ""


def _number(value: Fraction) -> str:
    return str(value) if value.denominator < 10**6 else f"{float(value):.6g}"


def decide_first_order(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    failure = subject.first_failure("reflecting", "recovery", "identity")
    slope = _declared_slope(h, subject)
    if failure is None and slope == 1:
        exact = all(subject.germ(g).passes for _, _, g in gates(h))
        why = "every gate is the identity near 0, Σ_k K ρ_k telescopes to σ, and R∘F = id"
        soft = "every gate has value 0 and slope 1 at 0, Σ_k K ρ_k telescopes to σ, and R∘F = id"
        yield Verdict("first_order", "hierarchy", "proved", why if exact else soft)
        return
    if failure is None:
        yield Verdict(
            "first_order",
            "decomposition",
            "refuted",
            "",
            required="the declared derivative of R∘F at x = 0 is 1, where every first update starts",
            found=f"the derivative {slope}",
            remedy="let one channel own x = 0: where(token_log_ratio >= 0, ...)",
            counterexample=Witness(f"a token with log ratio 0 has the coefficient {slope}·μ·A", None, {"slope": slope}),
        )
        return
    status: Status = "refuted" if failure.status == "refuted" else "undecided"
    yield Verdict(
        "first_order",
        "hierarchy",
        status,
        "",
        required=FIRST_ORDER,
        found=f"{failure.subject} fails '{failure.law}'",
        remedy=failure.remedy,
        counterexample=failure.counterexample,
    )
    coarse = _subspace(h, subject)
    if coarse is not None:
        yield Verdict(
            "first_order",
            f"advantages constant on each {coarse}",
            "proved",
            f"{_span(h, coarse)} near 0, finer residuals sum to 0 over a {coarse}, "
            f"and μ is proportional to the kernels' measure there",
        )


def _declared_slope(h: Hierarchy, subject: Subject) -> Any:
    """`d log R(F)/dx` at exactly `x = 0`, by the branches that hold there."""
    assume = subject.assume.with_signs({X: frozenset({0})})
    total: Any = 0
    for channel, density in h.decomposition.densities:
        inner = [sympy.diff(c.sympy(), X).subs(X, 0) for c in cases(density, assume)]
        recovery = [sympy.diff(c.sympy(), symbol(gated(channel))) for c in cases(h.decomposition.recovery, assume)]
        outer = [r.subs({symbol(gated(k)): 0 for k in h.decomposition.channels}) for r in recovery]
        total += inner[0] * outer[0]
    return sympy.cancel(total)


def _span(h: Hierarchy, coarse: Stratum) -> str:
    if coarse == h.chain[0]:
        return f"the gate on {coarse} is the identity"
    return f"the gates from {h.chain[0]} to {coarse} are the identity"


def _subspace(h: Hierarchy, subject: Subject) -> Stratum | None:
    """The finest stratum such that first-order agreement holds for advantages that are constant on it."""
    if not (subject.proved("reflecting") and subject.proved("recovery")):
        return None
    good: Stratum | None = None
    for stratum in h.chain[:-1]:
        germs = [subject.germ(g) for s, _, g in gates(h) if s == stratum]
        if not all(g.value_ok and g.slope_ok for g in germs):
            break
        good = stratum
    if good is None:
        return None
    finer = h.chain[h.chain.index(good) + 1 :]
    if not all(subject.germ(g).value_ok for s, _, g in gates(h) if s in finer):
        return None
    places = {LEAF.name: h.leaf, ROWS.name: h.rows}
    weight = put(h.objective.weight, lambda p: places.get(p.name, Stratum("batch")))
    ratio = cancel(weight / measures(h)[h.leaf.name])
    allowed = {good, *h.coarser(good), Stratum("batch")}
    return good if all(not isinstance(a, Count) or a.over in allowed for a in atoms(ratio)) else None


LAWS = (Law("identity", IDENTITY, decide_identity), Law("first_order", FIRST_ORDER, decide_first_order))
