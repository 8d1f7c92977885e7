"""Coherence (quivers): the kernels are disintegrations of one leaf measure, `K(a|b) = m(a)/m(b)`."""

from __future__ import annotations

from collections.abc import Iterator

from fibration.laws.law import Law, Subject
from fibration.report import Verdict

STATEMENT = "the kernels along all paths spread one leaf measure: K(a|b) = m(a)/m(b)"


def decide(subject: Subject) -> Iterator[Verdict]:
    yield from ()


LAW = Law("coherent", STATEMENT, decide, may_be_given_up=False)
