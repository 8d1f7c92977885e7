"""The penalties of one hierarchy of a pair as one formula per token; its derivatives are what they add to `c`.

Each penalty has the weight of its tokens, which carries no gradient. A penalty over coarser elements becomes one over
tokens: the tokens of an element have equal shares, which add up to the element's penalty.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter

from fibration.language.atoms import Count, Stratum, at
from fibration.language.conditions import WHOLE
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import stop
from fibration.language.pairs import Pair
from fibration.language.penalties import Penalty
from fibration.language.stops import SUMS
from fibration.laws.equivalent.token_formulas import ZERO, TokenFormulas


def penalties(formulas: TokenFormulas, h: Hierarchy, leaf: Stratum) -> Expression:
    """`Σ_k μ·P_k` at a token."""
    terms = [_weight(formulas, h, leaf, p) * _formula(formulas, leaf, p) for p in h.penalties.values()]
    return functools.reduce(operator.add, terms, ZERO)


def has_same_penalties(pair: Pair) -> bool:
    """Whether both hierarchies have equal penalties with equal weights; names do not matter."""
    first, second = (Counter(h.penalties.values()) for h in pair)
    if first != second:
        return False
    own = {(h.objective.of_penalties, h.rows) for h in pair}
    return len(own) == 1 or all(p.objective or p.over for p in first)


def _weight(formulas: TokenFormulas, h: Hierarchy, leaf: Stratum, p: Penalty) -> Expression:
    if p.over is None:
        return stop(formulas.weight(h, leaf, p.objective or h.objective.of_penalties))
    counted = formulas.variables.counted
    tokens = functools.reduce(operator.add, [counted(Count(s, p.over)) for s in h.leaves])
    return 1 / (counted(Count(p.over, WHOLE)) * tokens)


def _formula(formulas: TokenFormulas, leaf: Stratum, p: Penalty) -> Expression:
    return formulas.read(at(p.formula, p.over or leaf), leaf, SUMS)
