"""Which rewards a formula of advantages is given: one per row, or one per token."""

from __future__ import annotations

from fibration.language.atoms import reward
from fibration.language.hierarchy import Hierarchy
from fibration.language.order import Ordered
from fibration.language.statistics import Aggregate, within
from fibration.language.traversal import atoms


def adds_up_tokens(hierarchy: Hierarchy) -> bool:
    """Whether the formula of advantages adds up rewards over tokens, as one from the token on does.

    Such a formula is given every token's own: a row's, at each of its tokens, would count as often as it has tokens.
    """
    if hierarchy.advantages is None:
        return False
    return any(
        atom.of is None and reward in {inner for e in within(atom.formula) for inner in atoms(e)}
        for expression in within(hierarchy.advantages)
        for atom in atoms(expression)
        if isinstance(atom, Ordered) or (isinstance(atom, Aggregate) and atom.kind == "total")
    )
