"""Counts over a branch that may be empty, where a formula needs them not to be 0: what to say about them."""

from __future__ import annotations

from fibration.language.atoms import Count, Stratum, Total
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.sympy_bridge import from_sympy
from fibration.laws.proof.branches import TooManyCases, cases
from fibration.laws.proof.signs import Assumptions


def may_be_zero(expression: Expression, assume: Assumptions) -> list[Count | Total]:
    """The counts and totals over an empty branch that keep a formula from having a value everywhere."""
    found: dict[Count | Total, None] = {}
    try:
        branches = cases(expression, assume)
    except TooManyCases:
        return []
    for case in branches:
        inside = assume.with_signs(dict(case.signs))
        for e, allowed in case.needs:
            if inside.signs(e) <= allowed:
                continue
            for s in sorted(e.free_symbols, key=str):
                atom = from_sympy(s)
                if isinstance(atom, (Count, Total)) and not inside.present(_of(atom), atom.over):
                    found[atom] = None
    return list(found)


def remedy(h: Hierarchy, expression: Expression, assume: Assumptions) -> str:
    """Which count may be 0, and what to assume or to divide by; '' where no empty branch is at fault."""
    empty = may_be_zero(expression, assume)
    if not empty:
        return ""
    verb = "is" if len(empty) == 1 else "are"
    pairs = dict.fromkeys((of, a.over) for a in empty if isinstance(of := _of(a), Stratum))
    # only strata of the hierarchy can be assumed to be populated
    known = [f"populated({of}, over={over})" for of, over in pairs if over in h.strata and of in h.strata]
    offers = [f"assume=[{', '.join(known)}]"] if len(known) == len(pairs) else []
    offers.append("use a sum of counts that cannot all be 0")
    return f"{' and '.join(map(str, empty))} {verb} 0 where that branch is empty: {', or '.join(offers)}"


def _of(atom: Count | Total) -> object:
    return atom.of if isinstance(atom, Count) else atom.attribute.on
