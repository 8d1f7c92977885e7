"""Identity at the reference: every gate lets small residuals pass (thm:fbg_first_order).

At the on-policy point every residual and every density is 0 in log-ratio and deviation coordinates. The law examines a
gate at 0 and in the germ on both sides: which branches can hold there, for any parameters, counts and advantage, and
whether each has value 0 and slope 1. A branch that *is* the residual passes a whole neighbourhood.

A gate that reads coarser densities must have value 0 at residual 0 *whatever* they are: a level without drift of its
own adds nothing. (A residual taken against the gated base fails here.) Its slope is checked near density 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from fibration.errors import FibrationError
from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Stratum,
    Summary,
    Total,
    advantage,
    in_channel,
    residual,
)
from fibration.language.declared import LogProb
from fibration.language.exact import NoValue
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.gates import Gate, identity_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import cancelled, from_sympy
from fibration.language.traversal import applications, atoms, evaluate, rewrite
from fibration.laws import topic
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, differentiate, has_residual
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.first_update import CLOSE, STEPS
from fibration.laws.batches.search import concretes, find
from fibration.laws.law import Decision, Law, proved, undecided, unproved
from fibration.laws.on_policy.expansion import reference_is_zero
from fibration.laws.remedies import Offers, bounded, gate_to_write
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim
from fibration.laws.signs.neighbourhood import RHO, Germ, open_question
from fibration.laws.subject import Subject
from fibration.laws.values.duals import Dual, slopes_of, value_of
from fibration.laws.values.intervals import Series, Unsure, branching, evaluate_series
from fibration.laws.values.numerals import in_brief, shown
from fibration.laws.values.probes import between

STATEMENT = "g(0) = 0 and g'(0) = 1 at the on-policy residual 0, from both sides"
GIVE_UP = "gives_up={'first_order': 'why'}, which covers 'identity', if the loss means it"
NO_VALUE = "has no value"
# DEEP: residuals for the slope; FAR: densities for the value; NEAR: densities for the slope, in units of the residual
DEEP = (*STEPS, Fraction(1, 10**40), Fraction(1, 10**80), Fraction(1, 10**160))
FAR, NEAR = (Fraction(1, 10), Fraction(1), Fraction(10)), (Fraction(1000),)


def decide_identity(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    if not reference_is_zero(subject):
        remedy = "write decomposition=log_ratio(), signed_log_ratio() or ratio_deviation(), whose F(1) is 0"
        yield undecided("reference", "densities that are not 0 on policy", remedy, "F(1) = 0")
        return
    for stratum in h.order:
        for channel in h.decomposition.channels:
            gate = in_channel(h.gate(stratum), channel)
            germ = subject.germ(gate, stratum)
            if not (germ.value_ok and germ.slope_ok):
                yield _not_identity(subject, stratum, channel, germ)
                break
        else:
            why = "the identity near 0" if germ.passes else "value 0 and slope 1 at 0, from both sides"
            yield proved(topic.gate(stratum), f"{h.gates[stratum]} is {why}")


def _not_identity(subject: Subject, stratum: Stratum, channel: str, germ: Germ) -> Decision:
    h, assume = subject.hierarchy, subject.at(stratum)
    gate = in_channel(h.gate(stratum), channel)
    differs = any(in_channel(h.gate(stratum), c) != gate for c in h.decomposition.channels)
    witness = gate_off_identity(h, stratum, gate, channel if differs else "")
    question = "" if witness else open_question(gate, assume)
    part = "slope" if germ.value_ok else "value"
    why = f"whose {part} at 0 is not the identity's" if witness else "whose branches near 0 were not decided"
    why += f": it is not known whether {question}" if question else ""
    # a count that may be 0 matters only if a value is missing, or may be
    lacks = witness is None or witness.has_no_value
    remedy = (Claim(gate, assume).remedy(h) if lacks else "") or (*_below_0(h, stratum), *_passing(subject, stratum))
    return unproved(topic.gate(stratum), f"{h.gates[stratum]}, {why}", remedy, witness)


def _passing(subject: Subject, stratum: Stratum) -> Offers:
    """The remedy: a bound of a parameter, or a gate to write, with which small residuals pass."""

    def passes(h: Hierarchy) -> bool:
        changed = Subject(h, [])
        germs = [changed.germ(in_channel(h.gate(stratum), c), stratum) for c in h.decomposition.channels]
        return all(germ.value_ok and germ.slope_ok for germ in germs)

    h = subject.hierarchy
    own = [in_channel(h.gate(stratum), c) for c in h.decomposition.channels]
    plain = gate_to_write(h, stratum, identity_gate(), ", or clip_gate(bound), which passes small residuals alone")
    return (*(bounded(h, own, passes) or _normalised(h, stratum)), plain, GIVE_UP)


def _normalised(h: Hierarchy, stratum: Stratum) -> Offers:
    """The gate to write, less its value at 0 and divided by its slope there."""
    gate = h.gates[stratum]
    try:
        (case,) = cases(gate.expression, Assumptions(whole_batch(h), h.assume, stratum))
        whole = case.sympy()
        value, slope = whole.subs(RHO, 0), case.slope(RHO).subs(RHO, 0)
        if whole.is_rational_function():
            made = Gate(from_sympy(cancelled((whole - value) / slope)))
        else:
            kept = gate.expression if value == 0 else gate.expression - from_sympy(value)
            made = Gate(kept if slope == 1 else from_sympy(cancelled(1 / slope)) * kept)
    except (FibrationError, TooManyCases, ValueError):  # several branches, or no value or slope at 0
        return ()
    return (gate_to_write(h, stratum, made),)


def gate_without_a_value(subject: Subject, stratum: Stratum) -> Verdict | None:
    """The verdict on the gate of a stratum if it was refused because it has no value at a residual near 0."""
    found = subject.failure(LAW.name, topic.gate(stratum))
    witness = found and found.counterexample
    return found if isinstance(witness, Witness) and witness.has_no_value else None


def gate_off_identity(h: Hierarchy, stratum: Stratum, gate: Expression, channel: str = "") -> Witness | None:
    """A witness that the value at 0 is not 0, or that a difference quotient there is not 1, in exact rationals.

    Quotients are computed only for residuals that occur: an only child has residual 0, and the root of a sign channel
    has none below 0. The witness names `channel` if it is given.
    """
    reads = set(atoms(gate))
    split, root = h.decomposition.channels != ("",), stratum in h.roots
    signs = (1,) if split else (1, -1)  # densities of a sign channel are not negative
    based = any(isinstance(a, Density) for a in reads)
    far, near = ([Fraction(0), *(s * p for p in ps for s in signs if based)] for ps in (FAR, NEAR))
    sides = (1,) if split and root else (1, -1)
    bases = (Fraction(-1), Fraction(0)) if any(isinstance(a, LogProb) for a in reads) else (Fraction(-1),)
    measured = [a for a in reads if isinstance(a, (Attribute, Component, Count, Parameter, Total))]
    seen = set()

    def fails(concrete: Concrete) -> Witness | None:
        for element in range(min(concrete.size[stratum], 2)):
            still = not has_residual(h, concrete, stratum, element)
            here: dict[Expression, Fraction] = {a: concrete.atom(a, stratum, element) for a in measured}
            if (point := (still, *here.values())) in seen:
                continue
            seen.add(point)
            given = _advantages(gate, here) if advantage in reads else [Fraction(1)]
            for a, base in itertools.product(given, bases):
                at = _Gate(h, gate, concrete, stratum, element, a, base)
                found = next((off for p in far if (off := at.value_off(p))), None)
                if not (found or still or base == 0):  # a log-prob of 0 can only move down
                    found = next((off for p in near if (off := at.slope_off(p, sides))), None)
                if found:
                    extra = f' on channel "{channel}"' if channel else ""
                    extra += f" with advantage {a}" if advantage in reads else ""
                    extra += f" and log-probs of {base}" if len(bases) > 1 else ""
                    return _witness(at, found, extra)
        return None

    return find(concretes(h, [gate], caps.IDENTITY), fails)


def _witness(at: _Gate, off: _Off, extra: str) -> Witness:
    concrete, element, p = at.concrete, at.element, off.density
    if p:
        extra += f" over densities {in_brief(p)}" + (" times as large" if off.part == "slope" else "")
    values = concrete.chosen
    if off.has_no_value:  # the gate may have divided by a count that is 0
        counts = (c for c in atoms(at.gate, Count))
        values += "".join(f", {c} = 0" for c in counts if not concrete.atom(c, at.stratum, element))
    found = {"stratum": at.stratum.name, "element": element, "advantage": at.advantage, "gate": at.gate}
    found |= {"densities": p, "part": off.part}
    text = f"on {concrete.describe(at.stratum, element)}{extra}{values}: {off.words}"
    return Witness(text, concrete, found, has_no_value=off.has_no_value)


def _advantages(gate: Expression, here: Mapping[Expression, Fraction]) -> list[Fraction]:
    """Advantages of every sign, and on both sides of those at which the branch at the reference changes."""
    return list(dict.fromkeys([*map(Fraction, (1, -1, 0)), *between(sorted(branching(gate, here)))]))


def _below_0(h: Hierarchy, stratum: Stratum) -> Offers:
    """The remedy for a clip of the residual whose lower bound was written as a distance; none if there is none."""
    whole = h.gate(stratum)
    for clip in applications(whole, "clip", "maximum"):
        value, low, *high = clip.arguments
        if value == residual and (isinstance(low, Parameter) or (isinstance(low, Number) and low.value > 0)):
            turned = Apply(clip.operator, (value, -low, *high))
            made = Gate(rewrite(whole, lambda e, c=clip, t=turned: t if e == c else e))  # type: ignore[misc]
            return (gate_to_write(h, stratum, made, ", whose lower bound is below 0"),)
    return ()


class _Off(NamedTuple):
    """How a gate is not the identity: in its value or its slope, over a density, in words."""

    words: str
    part: str
    density: Fraction
    has_no_value: bool = False


@dataclass(frozen=True)
class _Gate:
    """A gate at one element, for one advantage: a function of its residual and of the densities that it reads."""

    h: Hierarchy
    gate: Expression
    concrete: Concrete
    stratum: Stratum
    element: int
    advantage: Fraction
    base: Fraction  # all log-probs

    @cached_property
    def beside_it(self) -> dict[Expression, Fraction]:
        """The log-probs and statistics that the gate reads, where all policies coincide."""
        n, read = self.concrete.tokens, atoms(self.gate, LogProb, Summary)
        here = Point.alike(self.h, self.concrete, (self.advantage,) * n, (self.base,) * n)
        return {a: value_of(here.value_at(a, self.stratum, self.element)) for a in read}

    def reads(self, rho: Any, density: Any) -> Callable[[Expression], Any]:
        """What the gate reads: the residual, one density for every coarser element, and numbers of the batch."""
        given = {residual: rho, advantage: self.advantage, **self.beside_it}

        def atom(a: Expression) -> Any:
            if isinstance(a, Density):
                return density
            return given[a] if a in given else self.concrete.atom(a, self.stratum, self.element)

        return atom

    def value(self, rho: Fraction, density: Fraction) -> Fraction | None:
        return attempt(lambda: evaluate(self.gate, self.reads(rho, density)))

    def value_off(self, density: Fraction) -> _Off | None:
        """How the value at residual 0 is not 0; None if it is 0."""
        at_zero = self.value(Fraction(0), density)
        if at_zero is None:
            return _Off(f"g(0) {NO_VALUE}", "value", density, has_no_value=True)
        is_off = abs(at_zero) > rounding(self.gate)
        return _Off(f"g(0) = {in_brief(at_zero)}, not 0", "value", density) if is_off else None

    def slope_off(self, density: Fraction, sides: tuple[int, ...]) -> _Off | None:
        """How `g(ρ) - ρ` is not small compared with small residuals and densities; None if it is.

        `density`: in units of the residual.
        """
        stops = bool(applications(self.gate, "stop"))  # then the slope at 0, or near 0 at every step
        for steps in ((Fraction(0),), *(tuple(sign * s for s in STEPS) for sign in sides)) if stops else ():
            slopes = (self.slope(step, abs(step) * density) for step in steps)
            found = [s for s in slopes if s is not None and abs(s - 1) > CLOSE]
            if len(found) == len(steps):
                words = f"g'({shown(steps[0])}) = {in_brief(found[0])}, not 1: what is stopped has no slope"
                return _Off(words, "slope", density)
        for sign in sides:
            line = self.line(density, sign)
            if line == (0, 1) or (line is None and not self.stays_off(density, sign)):
                continue
            for step in (sign * s for s in DEEP):
                value = self.value(step, abs(step) * density)
                if value is None:
                    return _Off(f"g({shown(step)}) {NO_VALUE}", "slope", density, has_no_value=True)
                expected = step if line is None else line[0] + line[1] * step
                # clearly nearer to the line on which the gate leaves 0 than to the residual
                if line is None or abs(value - expected) <= abs(expected - step) / 2:
                    of = value / step
                    slope = f"1 + {shown(of - 1)}" if in_brief(of) == "1" != of else in_brief(of)
                    return _Off(f"g({shown(step)}) = {in_brief(value)}, a slope of {slope}, not 1", "slope", density)
        if density or len(sides) == 1:
            return None  # without residuals below 0, tokens at 0 may be those of the other channel
        at_zero = self.slope(Fraction(0), Fraction(0))
        if at_zero is None:
            return _Off("g'(0) is not a number: a root of 0 has no slope", "slope", density, has_no_value=True)
        words = f"g'(0) = {in_brief(at_zero)}, not 1: the branch at 0 is differentiated"
        return _Off(words, "slope", density) if abs(at_zero - 1) > CLOSE else None

    def slope(self, rho: Fraction, density: Fraction) -> Fraction | None:
        """The derivative towards the residual, without the stopped parts."""
        moving = self.reads(Dual(rho, {0: Fraction(1)}), density)
        found = attempt(lambda: differentiate(self.gate, moving))
        return None if found is None else slopes_of(found).get(0, Fraction(0))

    def line(self, density: Fraction, sign: int) -> tuple[Fraction, Fraction] | None:
        """Value and slope as the residual leaves 0 on one side; (0, 1) if that is possible, None if unknown."""
        read = self.reads(Series.of(Fraction(0), Fraction(sign)), Series.of(Fraction(0), density))

        def atom(a: Expression) -> Any:
            value = read(a)
            return value if a.is_condition or isinstance(value, Series) else Series.of(value)

        try:
            found = evaluate_series(self.gate, atom)
            value, slope = found.term(0), found.term(1) * Fraction(sign)
        except (Unsure, NoValue):
            return None
        if 0 in value.signs and slope.low <= 1 <= slope.high:
            return Fraction(0), Fraction(1)
        return value.middle, slope.middle

    def stays_off(self, density: Fraction, sign: int) -> bool:
        """Whether no step has a quotient near 1, and either a step has no value or the quotients do not tend to 1."""
        values = [self.value(sign * step, step * density) for step in STEPS]
        off = [None if v is None else abs(v / (sign * step) - 1) for v, step in zip(values, STEPS, strict=True)]
        if any(d is not None and d <= (1 + abs(density)) / 10**6 for d in off):
            return False
        return None in off or off[-1] > off[0] * Fraction(99, 100)  # type: ignore[operator]


LAW = Law("identity", STATEMENT, decide_identity)
