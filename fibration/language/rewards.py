"""Whether the formula of advantages takes one reward per row or one per token."""

from __future__ import annotations

from fibration.language.atoms import reward
from fibration.language.hierarchy import Hierarchy
from fibration.language.order import Ordered
from fibration.language.statistics import Aggregate, atoms_within


def adds_up_tokens(hierarchy: Hierarchy) -> bool:
    """Whether the formula of advantages adds up rewards over tokens, as a reward-to-go does.

    A formula that adds up tokens needs one reward per token. A row's reward, repeated at each of its tokens, would
    count once per token.
    """
    if hierarchy.advantages is None:
        return False
    return any(
        atom.of is None and reward in atoms_within(atom.formula)
        for atom in atoms_within(hierarchy.advantages)
        if isinstance(atom, Ordered) or (isinstance(atom, Aggregate) and atom.kind == "total")
    )
