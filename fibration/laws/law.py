"""What a law is: a statement, and a function that decides it for one hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fibration.language.report import Verdict
from fibration.laws.proof.subject import Subject


@dataclass(frozen=True)
class Law:
    """`decide` yields one verdict per subject. A `foundation` must hold before later laws can be asked."""

    name: str
    statement: str
    decide: Callable[[Subject], Iterator[Verdict]]
    may_be_given_up: bool = True
    foundation: bool = False
