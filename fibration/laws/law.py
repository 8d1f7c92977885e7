"""What a law is: a statement, and a function that decides it for one hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fibration.expressions import Expression
from fibration.laws.algebra import Assumptions
from fibration.laws.germ import Germ, germ
from fibration.report import Verdict
from fibration.spec import Hierarchy


@dataclass
class Subject:
    """A hierarchy under verification, with what is already decided about it."""

    hierarchy: Hierarchy
    verdicts: list[Verdict]
    _germs: dict[Expression, Germ] = field(default_factory=dict)

    @cached_property
    def assume(self) -> Assumptions:
        return Assumptions(self.hierarchy.chain)

    def germ(self, gate: Expression) -> Germ:
        """`reference.germ`, once per gate."""
        if gate not in self._germs:
            self._germs[gate] = germ(gate, self.assume)
        return self._germs[gate]

    def proved(self, law: str, subject: str | None = None) -> bool:
        """Whether a law holds, of one subject or of all."""
        found = [v for v in self.verdicts if v.law == law and subject in (None, v.subject)]
        return bool(found) and all(v.status == "proved" for v in found)

    def first_failure(self, *laws: str) -> Verdict | None:
        return next((v for law in laws for v in self.verdicts if v.law == law and v.status != "proved"), None)


@dataclass(frozen=True)
class Law:
    """`decide` yields one verdict per subject. A `foundation` must hold before later laws can be asked."""

    name: str
    statement: str
    decide: Callable[[Subject], Iterator[Verdict]]
    may_be_given_up: bool = True
    foundation: bool = False
