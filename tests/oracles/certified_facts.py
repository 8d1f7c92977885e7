"""The verdicts on one law and the facts of one name, without the others; and batches on which tests check facts."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from fractions import Fraction

from fuzz.judges.judge import OfHierarchy
from fuzz.judges.level_facts import LevelFacts

from fibration.language.atoms import Component, Count, Stratum
from fibration.language.hierarchy import FOUNDATIONS
from fibration.laws import LAWS, verify
from fibration.laws.facts import certified
from fibration.laws.subject import Subject
from oracles.definition import World
from oracles.fact_text import number, parameter_values


@functools.cache
def report(h):
    return h.verify()


SEARCHED = ("reversal", "amplification")  # these search many batches


@functools.cache
def decided(h, law, alone=False):
    """The verdicts on one law, as the report lists them, without reasons. Laws after it are not asked.

    `alone`: nor are those before it, but for the foundations.
    """
    subject = Subject(h, [])
    for name, asked in LAWS.items():
        if alone and name not in (*FOUNDATIONS, law):
            continue
        subject.verdicts.extend(asked.decide(subject))
        subject.before.append(asked)
        if name == law or (asked.needed_by_all and subject.first_failure(name)):
            break
    assert not any(v.internal_error for v in subject.verdicts), subject.verdicts
    return tuple(v for v in subject.verdicts if v.law == law)


@functools.cache
def facts_of(h, name):
    """The facts of one name, as the report lists them. What is `SEARCHED` for other facts is left out."""
    verdicts = h.verify().verdicts
    if any(v.law in FOUNDATIONS and v.fails for v in verdicts):
        return ()
    groups = certified.facts(verify.SUBJECTS.of(h, lambda: Subject(h, list(verdicts))))
    asked = (some for group, some in groups if group == name or group not in SEARCHED)
    return tuple(f for some in asked for f in some if f.name == name)


def facts(h, name):
    return {f.subject: f.value for f in facts_of(h, name)}


def judged(h):
    """The facts that the judge read on random batches, by their names; none is contradicted."""
    said, complaint = LevelFacts().judge(OfHierarchy(h), random.Random(5))
    assert not complaint, complaint
    return said


def forest(h, fans, roots=1, **given):
    """A regular hierarchy: `fans` elements over each, root first; parameters at their defaults, or as given."""
    parents, width = {}, roots
    for stratum, fan in zip(h.order[1:], fans, strict=True):
        parents[stratum] = [i for i in range(width) for _ in range(fan)]
        width *= fan
    return World.chain(h, parents, settings_of(h, given), roots)


def settings_of(h, given):
    values = parameter_values(h, **given)
    found = {}
    for p in h.parameters.values():
        for c in ("", "+", "-"):
            if c and p.per_channel:
                found[Component(p, c)] = Fraction(repr(values[f"{p.name}[{c}]"]))
        if not p.per_channel:
            found[p] = Fraction(repr(values[p.name]))
    return found


UNIT, TINY = Fraction(1, 10**12), Fraction(1, 10**30)


# ---------------------------------------------------------------- amplification


@dataclass(frozen=True)
class Pulled:
    """What a fact says of `|c|/(μ·max|A|)` for advantages of one sign, in the words of the report."""

    most: str
    least: str
    reached: dict[int, float]

    def at_most(self, concrete, leaf, element):
        """The bound as read at one token of a batch."""
        return _read(self.most, concrete, leaf, element)

    def at_least(self, concrete, leaf, element):
        return _read(self.least or self.most, concrete, leaf, element)


def amplified(h):
    """By the sign of the advantage, 0 for any; nothing where the fact names no bound."""
    found, parts = {}, facts(h, "amplification")["hierarchy"].split("; ")
    while parts:
        said, _, where = parts.pop(0).partition(" where ")
        reached = {}
        if parts and parts[0].startswith("reached: "):
            numbers, _, where = parts.pop(0).removeprefix("reached: ").partition(" where ")
            values, sizes = numbers.removesuffix(" tokens").split(" with ")
            reached = {int(n): float(v) for n, v in zip(sizes.split(", "), values.split(", "), strict=True)}
        if "without bound" not in said:
            most, _, least = said.removeprefix("at most ").partition(", at least ")
            side = 1 if "is above 0" in where else -1 if "is below 0" in where else 0
            found[side] = Pulled("" if most in ("no bound known", "not certified") else most, least, reached)
    return found


def _read(text, concrete, leaf, element):
    counts = {
        said: concrete.atom(Count(Stratum(of), Stratum(over)), leaf, element)
        for said, of, over in re.findall(r"(count\((\w+), over=(\w+)\))", text)
    }
    return number(text, {str(p): float(v) for p, v in concrete.parameters.items()}, counts)
