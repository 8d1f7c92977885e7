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

from fibration.expressions import Expression, atoms
from fibration.laws.algebra import from_sympy, symbol, to_sympy, vanishes
from fibration.laws.cases import TooManyCases, always_defined, cases
from fibration.laws.concrete import Concrete, Witness, concretes, rounding
from fibration.laws.germ import SIDES, defined_near, is_kinked, near_zero
from fibration.laws.law import Law, Subject
from fibration.laws.recovery import X, composed
from fibration.lower import home
from fibration.objective import LEAF, ROWS
from fibration.report import Status, Verdict
from fibration.spec import Hierarchy
from fibration.symbols import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Stratum,
    Total,
    advantage,
    gated,
    in_channel,
    put,
    residual,
)

IDENTITY = "g(0) = 0 and g'(0) = 1 at the on-policy residual 0, from both sides"
FIRST_ORDER = "near on-policy 𝒢(r) = r to first order, so that value and gradient are those of the true objective"
STEPS = (Fraction(1, 10**12), Fraction(1, 10**20), Fraction(1, 10**24))
FAR, NEAR = Fraction(1, 10), Fraction(1000)  # densities, and as multiples of the residual, to ask value and slope at


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
            found = subject.germ(gate)
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
    """Whether `F` is 0 at `r = 1` and tends to 0 towards it, from both sides."""
    try:
        return all(
            defined_near(case, side, subject.assume, {}, X) and vanishes(case.sympy().subs(X, 0))
            for _, e in h.decomposition.densities
            for side in SIDES
            for case in near_zero(e, side, subject.assume, {}, X)
        )
    except TooManyCases:
        return False


def _search(h: Hierarchy, stratum: Stratum, gate: Expression) -> Witness | None:
    """A value at 0 that is not 0, or a difference quotient there that is not 1, in exact rationals.

    Quotients are taken where residuals other than 0 occur: an only child has none, and the root of a sign channel none
    below 0.
    """
    others = [a for a in atoms(gate) if isinstance(a, Density)]
    split, root = h.decomposition.channels != ("",), stratum == h.chain[0]
    signs = (1,) if split else (1, -1)  # densities of a sign channel are not negative
    far, near = ([Fraction(0), *(s * p for s in signs)] if others else [Fraction(0)] for p in (FAR, NEAR))
    for tried, concrete in enumerate(concretes(h, [gate])):
        if tried > 400:
            return None
        for element in range(min(concrete.size[stratum], 2)):
            only_child = not root and concrete.parents[stratum].count(concrete.parents[stratum][element]) == 1
            for a in (Fraction(1), Fraction(-1), Fraction(0)):
                asked = [(p, _value_differs(concrete, gate, stratum, element, _bound(others, p, a))) for p in far]
                found = next(((p, "value", text) for p, text in asked if text), None)
                for p in near if not (found or only_child) else ():
                    bound = _bound(others, p, a)
                    sides = (1,) if split and root else (1, -1)
                    if text := _slope_differs(concrete, gate, stratum, element, bound, p, sides):
                        found = p, "slope", text
                        break
                if found:
                    p, part, text = found
                    where_ = f"on {concrete.describe(stratum, element)}" if stratum != h.leaf else f"on a {stratum}"
                    extra = f" with advantage {a}" if advantage in set(atoms(gate)) else ""
                    if p:
                        extra += f" over densities {_number(p)}" + (" times as large" if part == "slope" else "")
                    values = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                    return Witness(
                        f"{where_}{extra}{values}: {text}",
                        concrete,
                        {
                            "stratum": stratum.name, "element": element, "advantage": a, "gate": gate, "densities": p,
                            "part": part,
                        },
                    )  # fmt: skip
    return None


Bound = dict[Expression, Fraction]


def _bound(others: list[Density], density: Fraction, a: Fraction) -> Bound:
    return {**{d: density for d in others}, advantage: a}


def _gate_value(
    concrete: Concrete, gate: Expression, stratum: Stratum, element: int, bound: Bound, rho: Fraction
) -> Fraction | None:
    try:
        return concrete.value(gate, stratum, element, {**bound, residual: rho})
    except (ZeroDivisionError, ArithmeticError, TypeError):
        return None


def _value_differs(concrete: Concrete, gate: Expression, stratum: Stratum, element: int, bound: Bound) -> str:
    at_zero = _gate_value(concrete, gate, stratum, element, bound, Fraction(0))
    if at_zero is None:
        return "g(0) has no value"
    return f"g(0) = {_number(at_zero)}, not 0" if abs(at_zero) > rounding(gate) else ""


def _slope_differs(
    concrete: Concrete,
    gate: Expression,
    stratum: Stratum,
    element: int,
    bound: Bound,
    density: Fraction,
    sides: tuple[int, ...],
) -> str:
    """Whether `g(ρ) - ρ` is not small beside the residual and the densities, however small these are.

    `density` is in units of the residual.
    """

    def beside(step: Fraction) -> Fraction | None:
        near = {a: abs(step) * density if isinstance(a, Density) else v for a, v in bound.items()}
        return _gate_value(concrete, gate, stratum, element, near, step)

    for sign in sides:
        steps = [sign * step for step in STEPS]
        values = [beside(step) for step in steps]
        wrong = [
            v is None or abs(v / step - 1) > (1 + abs(density)) / 10**6 for v, step in zip(values, steps, strict=True)
        ]
        if all(wrong):
            value, step = values[0], steps[0]
            got = "has no value" if value is None else f"= {_number(value)}, a slope of {_number(value / step)}, not 1"
            return f"g({float(step):g}) {got}"
    return ""


def _number(value: Fraction) -> str:
    return str(value) if value.denominator < 10**6 else f"{float(value):.6g}"


def decide_first_order(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    failure = subject.first_failure("recovery", "identity") or _undefined_kernel(subject)
    slopes = _declared_slopes(h, subject)
    slope = next((s for s in slopes if s != 1), 1)
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
            "undecided" if slope is None else "refuted",
            "",
            required="the declared derivative of R∘F at x = 0 is 1, where every first update starts",
            found="a derivative that was not found" if slope is None else f"the derivative {slope}",
            remedy="let one channel own x = 0: where(token_log_ratio >= 0, ...)",
            counterexample=None
            if slope is None
            else Witness(f"a token with log ratio 0 has the coefficient {slope}·μ·A", None, {"slope": slope}),
        )
        return
    broken = _breaks_first_order(h, subject, failure)
    yield Verdict(
        "first_order",
        "hierarchy",
        "refuted" if broken else "undecided",
        "",
        required=FIRST_ORDER,
        found=f"{failure.subject} fails '{failure.law}'",
        remedy=failure.remedy,
        counterexample=failure.counterexample if broken else None,
    )
    coarse = _subspace(h, subject)
    if coarse is not None:
        yield Verdict(
            "first_order",
            f"advantages constant on each {coarse}",
            "proved",
            f"{_span(h, coarse)} near 0, finer residuals sum to 0 over a {coarse}, and μ·R' has one value there",
        )


def _undefined_kernel(subject: Subject) -> Verdict | None:
    """Σ_k K ρ_k telescopes whatever the weights are, but they must be numbers."""
    fibrations = (f for f in subject.hierarchy.fibrations if not always_defined(f.weight, subject.assume))
    names = [f"kernel {f.name}" for f in fibrations]
    return next((v for v in subject.verdicts if v.law == "markov" and v.subject in names), None)


def _breaks_first_order(h: Hierarchy, subject: Subject, failure: Verdict) -> bool:
    """Whether what was found on one gate is felt by the operator.

    A slope is: move that gate's residuals alone, and every other gate passes or adds nothing. A value is, unless
    another gate or the other channel takes it away again.
    """
    witness = failure.counterexample
    if failure.law != "identity" or not isinstance(witness, Witness):
        return False
    if not (subject.proved("recovery") and (subject.proved("reflecting") or not h.fibrations)):
        return False
    values = witness.values
    wrong = {s.name for s, _, g in gates(h) if not subject.germ(g).value_ok}
    if values["part"] == "slope":
        return not wrong
    return wrong <= {values["stratum"]} and not values["densities"] and h.decomposition.channels == ("",)


def _declared_slopes(h: Hierarchy, subject: Subject) -> list[Any]:
    """`d R(F)/dx` at exactly `x = 0`, in every branch that can hold there; None where it could not be found."""
    try:
        found = near_zero(composed(h), 0, subject.assume, {}, X)
    except TooManyCases:
        return [None]
    smooth = [defined_near(c, 0, subject.assume, {}, X) and not is_kinked(c.sympy()) for c in found]
    return [
        sympy.cancel(sympy.diff(c.sympy(), X).subs(X, 0)) if ok else None for c, ok in zip(found, smooth, strict=True)
    ]


def _span(h: Hierarchy, coarse: Stratum) -> str:
    if coarse == h.chain[0]:
        return f"the gate on {coarse} is the identity"
    return f"the gates from {h.chain[0]} to {coarse} are the identity"


def _subspace(h: Hierarchy, subject: Subject) -> Stratum | None:
    """The finest stratum such that first-order agreement holds for advantages that are constant on it.

    Over each of its elements `Σ μ_i A_i R'_i (K h(ρ))_i = c·A·μ·R'·Σ ρ = 0` for every finer level: its gate must have
    one slope `c` there, and `μ R'` one value.
    """
    if not (subject.proved("reflecting") and subject.proved("recovery")):
        return None
    if any(v.law == "identity" and v.subject == "reference" for v in subject.verdicts):
        return None
    if any(s != 1 for s in _declared_slopes(h, subject)):
        return None
    good: Stratum | None = None
    for stratum in h.chain[:-1]:
        germs = [subject.germ(g) for s, _, g in gates(h) if s == stratum]
        if not all(g.value_ok and g.slope_ok for g in germs):
            break
        good = stratum
    if good is None:
        return None
    for stratum, _, gate in gates(h):
        if stratum in h.chain[h.chain.index(good) + 1 :]:
            near = subject.germ(gate)
            if not near.value_ok or near.slopes is None or any(not vanishes(s - near.slopes[0]) for s in near.slopes):
                return None
            if not _is_constant(h, near.slopes[0], good):
                return None
    places = {LEAF.name: h.leaf, ROWS.name: h.rows}
    weight = to_sympy(put(h.objective.weight, lambda p: places.get(p.name, Stratum(BATCH))))
    recovery = cases(h.decomposition.recovery, subject.assume)
    if len(recovery) > 1 or is_kinked(recovery[0].sympy()):
        return None
    zero = {symbol(gated(c)): 0 for c in h.decomposition.channels}
    shares = [weight * sympy.diff(recovery[0].sympy(), g).subs(zero) for g in zero]
    finite = not any(share.has(sympy.zoo, sympy.nan, sympy.oo) for share in shares)
    return good if finite and all(_is_constant(h, share, good) for share in shares) else None


def _is_constant(h: Hierarchy, value: Any, stratum: Stratum) -> bool:
    """Whether a value is the same for everything that lies over one element of a stratum."""
    allowed = {s.name for s in (stratum, *h.coarser(stratum))} | {BATCH}

    def home_of(atom: Expression) -> str:
        if isinstance(atom, (Count, Total)):
            return str(atom.over)
        if isinstance(atom, Attribute):
            return atom.on.name
        if isinstance(atom, (Parameter, Component)):
            return home(h, atom.parameter if isinstance(atom, Component) else atom)
        return ""

    return all(home_of(from_sympy(s)) in allowed for s in sympy.cancel(sympy.together(value)).free_symbols)


LAWS = (Law("identity", IDENTITY, decide_identity), Law("first_order", FIRST_ORDER, decide_first_order))
