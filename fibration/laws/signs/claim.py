"""Claims that several laws prove of a formula: it has a value everywhere, perhaps of a certain sign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from fibration.language.atoms import Count, Stratum, Summary, Total, at
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, NOT_NEGATIVE, ZERO, Signs, where
from fibration.language.outline import whole_batch
from fibration.language.statistics import atoms_within
from fibration.language.sympy_bridge import CURRENT_LOG_PROB, from_sympy, to_sympy, vanishes
from fibration.language.traversal import transform
from fibration.laws.signs import smooth_signs
from fibration.laws.signs.assumptions import NOT_POSITIVE, Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.populations import HAVE_A_VALUE_OF_NONE, number_of


@dataclass(frozen=True)
class Claim:
    """The claim that a formula has a value, with one of `signs`, wherever `assume` holds."""

    formula: Expression
    assume: Assumptions
    signs: Signs = ANY

    @property
    def is_shown(self) -> bool:
        """Whether the claim is proved: of each factor, if a product must not be below 0, or else of the formula.

        The branches of `n` factors with `k` branches each are `n·k`, and those of their product `k**n`.
        """
        parts = factors(self.formula)
        if len(parts) > 1 and self.signs in (ANY, NOT_NEGATIVE):
            return all(Claim(part, self.assume, self.signs).is_shown for part in parts) or self._is_shown_whole()
        return self._is_shown_whole()

    def _is_shown_whole(self) -> bool:
        try:
            branches = cases(self.formula, self.assume)
        except TooManyCases:
            return False
        return all(case.defined(self.assume) and self._has_sign(case) for case in branches)

    def _has_sign(self, case: Case) -> bool:
        if self.signs in (ANY, ZERO):  # algebra shows that a formula is 0 more often than signs do
            return self.signs == ANY or vanishes(case.sympy())
        return smooth_signs.signs(case.sympy(), self.assume.with_signs(dict(case.signs))) <= self.signs

    def empty_branches(self) -> list[Count | Total]:
        """The counts and totals of branches that may be empty, if the formula then has no value."""
        try:
            branches = cases(self.formula, self.assume)
        except TooManyCases:
            return []
        found: dict[Count | Total, None] = {}
        for case in branches:
            inside = self.assume.with_signs(dict(case.signs))
            for e in (n.value for n in case.needs if not inside.signs(n.value) <= n.signs):
                for atom in map(from_sympy, sorted(e.free_symbols, key=str)):
                    if isinstance(atom, (Count, Total)) and not inside.presence.present(atom.of, atom.over):
                        found[atom] = None
        return list(found)

    def remedy(self, h: Hierarchy) -> str:
        """The remedy: which count may be 0, and what to assume or divide by. '' if no empty branch is at fault."""
        empty = self.empty_branches()
        if not empty:
            return ""
        verb = "is" if len(empty) == 1 else "are"
        pairs = dict.fromkeys((a.of, a.over) for a in empty if isinstance(a.of, Stratum))
        # only strata of the hierarchy can be assumed to be populated
        known = [f"populated({of}, over={over})" for of, over in pairs if over in h.strata and of in h.strata]
        offers = [f"assume=[{', '.join(known)}]"] if len(known) == len(pairs) else []
        offers.append("use a sum of counts that cannot all be 0")
        return f"{' and '.join(map(str, empty))} {verb} 0 where that branch is empty: {', or '.join(offers)}"


def factors(formula: Expression) -> list[Expression]:
    """The formulas whose product has the value of a formula, and a value where all of them have one.

    `where(c, a*b, 1)` is the product of `where(c, a, 1)` and `where(c, b, 1)`.
    """
    if not isinstance(formula, Apply):
        return [formula]
    if formula.operator == "*":
        return [f for part in formula.arguments for f in factors(part)]
    if formula.operator == "where" and formula.arguments[2] == as_expression(1):
        condition, value, otherwise = formula.arguments
        return [where(condition, f, otherwise) for f in factors(value)]
    return [formula]


def divided(formula: Expression) -> Expression:
    """The formula, in which statistics without a value for no elements are divided and multiplied by their number."""

    def by_number(atom: Expression) -> Expression:
        number = required_number(atom)
        return atom if number is None else atom / number * number

    return transform(formula, by_number)


def known_at(h: Hierarchy, stratum: Stratum) -> Assumptions:
    """What is known at the elements of a stratum, and that the log-prob of the current policy is not above 0."""
    plain, current = Assumptions(whole_batch(h), h.assume, stratum), to_sympy(CURRENT_LOG_PROB)
    return plain.with_signs({current: NOT_POSITIVE, sympy.exp(current) - 1: NOT_POSITIVE})


def inside(h: Hierarchy, formula: Expression) -> Iterator[Claim]:
    """Claims that the formulas in statistics and orders of a formula, at any depth, have values where they are read."""
    for a in atoms_within(formula, Summary):
        number = where(a.formula, 1, 0) if a.formula.is_condition else a.formula
        for place in (a.of,) if isinstance(a.of, Stratum) else h.leaves:
            yield Claim(divided(at(number, place)), known_at(h, place))


def required_number(atom: Expression) -> Count | None:
    """The number of elements of a statistic that has no value without elements; None for any other atom."""
    number = number_of(atom)
    return None if number is None or atom.kind in HAVE_A_VALUE_OF_NONE else number  # type: ignore[attr-defined]
