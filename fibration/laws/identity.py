"""Identity at the reference: every gate lets small residuals pass (thm:fbg_first_order).

At the on-policy point every residual and every density is 0 in log-ratio and deviation coordinates. A gate is examined
at 0 and in the germ on both sides of it: which branches can hold there, for any value of its parameters, counts and
advantage, and whether each has value 0 and slope 1. A branch that *is* the residual passes a whole neighbourhood.

A gate that reads coarser densities must have value 0 at residual 0 *whatever* they are: a level without drift of its
own adds nothing. (A residual taken against the gated base fails here.) Its slope is asked near density 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.language.atoms import Count, Density, Stratum, advantage, in_channel, residual
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Status, Verdict
from fibration.language.sympy_bridge import vanishes
from fibration.language.traversal import atoms
from fibration.laws.law import Law
from fibration.laws.proof import empty_branches
from fibration.laws.proof.branches import TooManyCases
from fibration.laws.proof.coordinates import X
from fibration.laws.proof.germ import SIDES, defined_near, near_zero, open_question
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Concrete, Witness, concretes, rounding
from fibration.laws.witness.definition import STEPS, has_residual

STATEMENT = "g(0) = 0 and g'(0) = 1 at the on-policy residual 0, from both sides"
REMEDY = "let small residuals pass; if the loss breaks this on purpose, gives_up={'first_order': 'why'}"
BOUNDS = (
    "bound what decides it, Parameter(..., lower=..., upper=...); or, if the loss means it, gives_up={'first_order': "
    "'why'}, which covers 'identity'"
)
NO_VALUE = "has no value"  # how a witness ends where a gate cannot be evaluated
# densities, and as multiples of the residual, to ask value and slope at
FAR, NEAR = (Fraction(1, 10), Fraction(1), Fraction(10)), (Fraction(1000),)


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    if not reference_is_zero(subject):
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
    for stratum in h.order:
        what = f"gate on {stratum}"
        status: Status = "proved"
        why = ""
        verdict = None
        for channel in h.decomposition.channels:
            gate = in_channel(h.gate(stratum), channel)
            found = subject.germ(gate, stratum)
            if found.value_ok and found.slope_ok:
                why = "the identity near 0" if found.passes else "value 0 and slope 1 at 0, from both sides"
                continue
            witness = _search(h, stratum, gate)
            status = "refuted" if witness else "undecided"
            part = "value" if not found.value_ok else "slope"
            question = "" if witness else open_question(gate, subject.at(stratum))
            why = f"whose {part} at 0 is not the identity's" if witness else "whose branches near 0 were not decided"
            why += f": it is not known whether {question}" if question else ""
            verdict = Verdict(
                "identity",
                what,
                status,
                "",
                required=STATEMENT,
                found=f"{h.gates[stratum]}, {why}",
                # a count that may be 0 matters only where a value lacks, or may
                remedy=(empty_branches.remedy(h, gate, subject.at(stratum)) if not witness or _lacks(witness) else "")
                or (BOUNDS if question else REMEDY),
                counterexample=witness,
            )
            break
        yield verdict or Verdict("identity", what, status, f"{h.gates[stratum]} is {why}")


def _lacks(witness: Witness) -> bool:
    return str(witness).endswith(NO_VALUE)


def reference_is_zero(subject: Subject) -> bool:
    """Whether `F` is 0 at `r = 1` and tends to 0 towards it, from both sides, on every leaf."""
    h = subject.hierarchy
    try:
        return all(
            defined_near(case, side, subject.at(leaf), {}, X) and vanishes(case.sympy().subs(X, 0))
            for leaf in h.leaves
            for _, e in h.decomposition.densities
            for side in SIDES
            for case in near_zero(h.with_mass(e, leaf), side, subject.at(leaf), {}, X)
        )
    except TooManyCases:
        return False


def _search(h: Hierarchy, stratum: Stratum, gate: Expression) -> Witness | None:
    """A value at 0 that is not 0, or a difference quotient there that is not 1, in exact rationals.

    Quotients are taken where residuals other than 0 occur: an only child has none, and the root of a sign channel none
    below 0.
    """
    others = [a for a in atoms(gate) if isinstance(a, Density)]
    split, root = h.decomposition.channels != ("",), stratum in h.roots
    signs = (1,) if split else (1, -1)  # densities of a sign channel are not negative
    far, near = ([Fraction(0), *(s * p for p in ps for s in signs if others)] for ps in (FAR, NEAR))
    for tried, concrete in enumerate(concretes(h, [gate])):
        if tried > 400:
            return None
        for element in range(min(concrete.size[stratum], 2)):
            still = not has_residual(h, concrete, stratum, element)
            for a in (Fraction(1), Fraction(-1), Fraction(0)):
                asked = [(p, _value_differs(concrete, gate, stratum, element, _bound(others, p, a))) for p in far]
                found = next(((p, "value", text) for p, text in asked if text), None)
                for p in near if not (found or still) else ():
                    bound = _bound(others, p, a)
                    sides = (1,) if split and root else (1, -1)
                    if text := _slope_differs(concrete, gate, stratum, element, bound, p, sides):
                        found = p, "slope", text
                        break
                if found:
                    p, part, text = found
                    where_ = (
                        f"on {concrete.describe(stratum, element)}" if stratum not in h.leaves else f"on a {stratum}"
                    )
                    extra = f" with advantage {a}" if advantage in set(atoms(gate)) else ""
                    if p:
                        extra += f" over densities {_number(p)}" + (" times as large" if part == "slope" else "")
                    values = "".join(f", {k} = {v}" for k, v in concrete.parameters.items())
                    if text.endswith(NO_VALUE):
                        values += "".join(f", {c} = 0" for c in _none(concrete, gate, stratum, element))
                    return Witness(
                        f"{where_}{extra}{values}: {text}",
                        concrete,
                        {
                            "stratum": stratum.name, "element": element, "advantage": a, "gate": gate, "densities": p,
                            "part": part,
                        },
                    )  # fmt: skip
    return None


def _none(concrete: Concrete, gate: Expression, stratum: Stratum, element: int) -> list[Expression]:
    """The counts that a gate reads and that are 0 at an element: what it may have divided by."""
    counts = (a for a in atoms(gate) if isinstance(a, Count))
    return [c for c in counts if not concrete.atom(c, stratum, element)]


Bound = dict[Expression, Fraction]


def _bound(others: list[Density], density: Fraction, a: Fraction) -> Bound:
    return {**{d: density for d in others}, advantage: a}


def _gate_value(
    concrete: Concrete, gate: Expression, stratum: Stratum, element: int, bound: Bound, rho: Fraction
) -> Fraction | None:
    try:
        return concrete.value(gate, stratum, element, {**bound, residual: rho})
    except NoValue:
        return None


def _value_differs(concrete: Concrete, gate: Expression, stratum: Stratum, element: int, bound: Bound) -> str:
    at_zero = _gate_value(concrete, gate, stratum, element, bound, Fraction(0))
    if at_zero is None:
        return f"g(0) {NO_VALUE}"
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
            got = NO_VALUE if value is None else f"= {_number(value)}, a slope of {_number(value / step)}, not 1"
            return f"g({float(step):g}) {got}"
    return ""


def _number(value: Fraction) -> str:
    return str(value) if value.denominator < 10**6 else f"{float(value):.6g}"


LAW = Law("identity", STATEMENT, decide)
