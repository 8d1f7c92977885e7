"""A hierarchy under verification, with what is already decided about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from fibration.language.atoms import Density, Reading, Stratum, in_channel, residual, token_log_ratio
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import POSITIVE, Signs
from fibration.language.outline import whole_batch
from fibration.language.report import Verdict
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.strata import Fibration, Shape
from fibration.language.sympy_bridge import OLD_LOG_PROB, symbol, to_sympy
from fibration.language.traversal import atoms
from fibration.laws import topic
from fibration.laws.signs.assumptions import NOT_POSITIVE, Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim
from fibration.laws.signs.coinciding import Coinciding
from fibration.laws.signs.neighbourhood import Germ, germ


@dataclass
class Subject:
    """A hierarchy under verification, with what is already decided about it."""

    hierarchy: Hierarchy
    verdicts: list[Verdict]
    before: list[Any] = field(default_factory=list)  # the laws that are decided
    _germs: dict[tuple[Expression, Stratum], Germ] = field(default_factory=dict)
    _at: dict[Stratum, Assumptions] = field(default_factory=dict)

    @cached_property
    def assume(self) -> Assumptions:
        """What is known of every atom, wherever it is read."""
        return self._assume(None)

    def at(self, stratum: Stratum) -> Assumptions:
        """What is known of atoms read at the elements of a stratum: more than `assume`, except on a chain."""
        if stratum not in self._at:
            # on a chain no more is known: signs that `assume` has decided are used again
            self._at[stratum] = self.assume if self.hierarchy.shape.is_chain else self._assume(stratum)
        return self._at[stratum]

    @cached_property
    def _shape(self) -> Shape:
        """The strata whose counts are read: the whole batch if the hierarchy has groups."""
        h = self.hierarchy
        return whole_batch(h) if h.groups else h.shape

    @cached_property
    def never_negative(self) -> frozenset[str]:
        """The channels whose densities are never below 0, such as sums of `max(±x, 0)`."""
        h = self.hierarchy
        at = {leaf: Assumptions(self._shape, h.assume, leaf) for leaf in h.leaves}
        return frozenset(
            channel
            for channel, density in h.decomposition.densities
            if all(is_never_negative(h.with_mass(density, leaf), known) for leaf, known in at.items())
        )

    def _assume(self, stratum: Stratum | None) -> Assumptions:
        h = self.hierarchy
        plain = Assumptions(self._shape, h.assume, stratum)
        read = {a for s in h.order for c in self.never_negative for a in atoms(in_channel(h.gate(s), c))}
        known = (a for a in read if isinstance(a, Density) and a.channel in self.never_negative)
        return plain.with_signs({symbol(a): frozenset({0, 1}) for a in known} | self._probabilities)

    @cached_property
    def _probabilities(self) -> dict[Any, Signs]:
        """`π_old·r <= 1`, if there is one gate, it reads `π_old`, and its residual determines `r`."""
        h, x, rho = self.hierarchy, symbol(token_log_ratio), symbol(residual)
        if len(h.order) > 1 or OLD_LOG_PROB not in atoms(h.gate(h.order[0])):
            return {}
        old, densities = symbol(OLD_LOG_PROB), [to_sympy(e) for _, e in h.decomposition.densities]
        if densities == [x]:
            return {old + rho: NOT_POSITIVE, sympy.exp(old + rho) - 1: NOT_POSITIVE}
        if densities == [sympy.exp(x) - 1]:
            return {sympy.exp(old) * (1 + rho) - 1: NOT_POSITIVE, 1 + rho: POSITIVE}
        return {}

    def germ(self, gate: Expression, stratum: Stratum) -> Germ:
        """The germ of a gate on a stratum, cached."""
        if (gate, stratum) not in self._germs:
            here, read = Coinciding(self.hierarchy, stratum), set(atoms(gate))
            plain = not any(isinstance(a, (Aggregate, LogProb, Ordered)) for a in read)
            written = gate if plain else here.written(gate)
            assume = self.at(stratum).with_signs(here.sides)
            known = not here.may_lack
            self._germs[gate, stratum] = germ(written, assume, here.small) if known else Germ(False, False, False)
        return self._germs[gate, stratum]

    def proved(self, law: str, subject: str | None = None) -> bool:
        """Whether a law has verdicts and all are proved, for one subject or for all."""
        found = [v for v in self.verdicts if v.law == law and subject in (None, v.subject)]
        return bool(found) and all(v.status == "proved" for v in found)

    def verdict(self, law: str, topic: str) -> Verdict | None:
        """The verdict of a law on one subject; None if it has none."""
        return next((v for v in self.verdicts if (v.law, v.subject) == (law, topic)), None)

    def failure(self, law: str, topic: str) -> Verdict | None:
        """The verdict of a law on one subject, if it is not proved; else None."""
        return next((v for v in self.verdicts if (v.law, v.subject) == (law, topic) and v.status != "proved"), None)

    def kernel_without_a_value(self, *fibrations: Fibration) -> Verdict | None:
        """The verdict on the first of these kernels whose weights may have no value; None if there is none."""
        f = next((f for f in fibrations if not Claim(f.weight, self.at(f.source)).is_shown), None)
        return None if f is None else self.verdict("markov", topic.kernel(f))

    def first_failure(self, *laws: str) -> Verdict | None:
        return next((v for law in laws for v in self.verdicts if v.law == law and v.status != "proved"), None)


def is_never_negative(density: Expression, assume: Assumptions) -> bool:
    """Whether every branch of a density is shown to be at least 0."""
    try:
        return all(_is_at_least_0(c.sympy(), assume.with_signs(dict(c.signs))) for c in cases(density, assume))
    except TooManyCases:
        return False


def _is_at_least_0(value: Any, assume: Assumptions) -> bool:
    x, t = symbol(token_log_ratio), symbol(Reading("r - 1, apart from its sign"))
    sign = {frozenset({0, 1}): 1, frozenset({1}): 1, frozenset({-1, 0}): -1, frozenset({-1}): -1}.get(assume.signs(x))
    if sign is not None:  # exp(x) - 1 has the sign of x
        value, assume = value.subs(sympy.exp(x), 1 + sign * t), assume.with_signs({t: frozenset({0, 1})})
    return -1 not in assume.signs(value)
