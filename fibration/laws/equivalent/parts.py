"""The parts of a loss: gates, μ, estimator, weights, conditions, advantages and penalties."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any

from fibration.errors import FibrationError
from fibration.language.atoms import Parameter, Reading
from fibration.language.decompositions import ratio_deviation
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import zero_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.pairs import Pair, pair
from fibration.language.penalties import Penalty
from fibration.language.roles import desugared
from fibration.language.statistics import rewritten
from fibration.language.traversal import transform
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.equivalent.search import FEW, difference
from fibration.laws.law import Proved
from fibration.laws.signs.branches import at_most

COMPARISONS = 1000  # in the proof that one part is the same


def gates_of(h: Hierarchy) -> tuple[Any, ...]:
    split = h.decomposition
    return (
        frozenset((f.source, f.target, plain(f.weight)) for f in h.fibrations),
        frozenset((s, plain(h.gate(s))) for s in h.gates),
        frozenset((c, plain(e)) for c, e in split.densities),
        plain(split.recovery), plain(split.scale), h.orthogonalise,
    )  # fmt: skip


def _penalties(h: Hierarchy) -> Counter[Hashable]:
    return Counter(_penalty(h, p) for p in h.penalties.values())


def _penalty(h: Hierarchy, p: Penalty) -> Hashable:
    o = p.objective
    own = None if o is None else (plain(o.spelled_out(h.leaves, h.rows)), _weights(o), _conditions(o))
    return plain(p.formula), own, p.over


def _weights(o: Objective) -> Hashable:
    return frozenset(Counter(map(plain, o.weighed)).items())


def _conditions(o: Objective) -> Hashable:
    return frozenset(Counter((plain(k.condition), k.normaliser) for k in o.kept).items())


@functools.lru_cache(4096)
def plain(e: Expression) -> Expression:
    """A formula without sugar, in which a parameter is its name, and what it has a value for."""

    def named(a: Expression) -> Expression:
        if not isinstance(a, Parameter):
            return a
        return Reading(f"parameter {a.name} on {a.on}, {'per channel' if a.per_channel else 'one'}")

    return rewritten(desugared(e), lambda inner: transform(inner, named))


PARTS: Mapping[str, Callable[[Hierarchy], Hashable]] = {
    "gates": gates_of,
    "μ": lambda h: plain(h.objective.spelled_out(h.leaves, h.rows)),
    "estimator": lambda h: h.objective.estimator,
    "weights": lambda h: _weights(h.objective),
    "conditions": lambda h: _conditions(h.objective),
    "advantages": lambda h: None if h.advantages is None else plain(h.advantages),
    "penalties": lambda h: frozenset(_penalties(h).items()),
}


def with_part(shipped_one: Hierarchy, h: Hierarchy, part: str) -> Hierarchy:
    """The shipped loss with one part of another loss. Raises SpecError if it cannot have it."""
    o, own = shipped_one.objective, h.objective
    changes: dict[str, dict[str, Any]] = {
        "gates": {
            "gates": h.gates, "fibrations": h.fibrations, "decomposition": h.decomposition,
            "orthogonalise": h.orthogonalise, "assume": h.assume,
        },
        "μ": {"objective": o.with_parts(weight=own.weight)},
        "estimator": {"objective": o.with_parts(estimator=own.estimator)},
        "weights": {"objective": o.with_parts(weighed=own.weighed)},
        "conditions": {"objective": o.with_parts(kept=own.kept)},
        "advantages": {"advantages": h.advantages, "groups": dict.fromkeys((*shipped_one.groups, *h.groups))},
        "penalties": {"penalties": h.penalties},
    }  # fmt: skip
    return bare(shipped_one).replace(**changes[part])


def bare(h: Hierarchy) -> Hierarchy:
    """A loss without the laws that it gives up: its other parts may have no subject for them."""
    return h.replace(gives_up={})


def times(h: Hierarchy, factor: Fraction) -> Hierarchy:
    """A loss with `factor` times the coefficients. Raises SpecError if `μ` would be negative."""
    k, o = as_expression(factor), h.objective

    def scaled(p: Penalty) -> Penalty:  # one without an objective has the loss's `μ`
        own = p.objective is None and p.over is None
        return p if own else p.model_copy(update={"formula": k * p.formula})

    penalties = {name: scaled(p) for name, p in h.penalties.items()}
    return bare(h).replace(objective=o.with_parts(weight=k * o.spelled_out(h.leaves, h.rows)), penalties=penalties)


def are_same(first: Hierarchy, second: Hierarchy) -> bool:
    """Whether two losses with matched names are proved the same, after a quick search for a difference.

    No clock decides it: the search and the proof end after a number of steps.
    """
    return are_proved_same(lambda: pair(first, second))


def are_proved_same(paired: Callable[[], Pair]) -> bool:
    """`are_same` of a pair, which may be refused when it is made."""
    try:
        both = paired()
        if difference(both, FEW, any_size=True) is not None:
            return False
        with at_most(COMPARISONS):
            return isinstance(same_loss(both), Proved)
    except (FibrationError, ArithmeticError):
        return False


def light(h: Hierarchy) -> Hierarchy:
    """A loss with the same weights and terms, and a gate that is proved at once: the gradient is `Σ μ·w·A·∇log π`."""
    if len(h.leaves) > 1:
        return h
    (leaf,) = h.leaves
    groups = dict.fromkeys(s for s in (*h.strata, *h.groups) if s not in (leaf, h.rows))
    objective = h.objective.with_parts(estimator="score")
    changes = {
        "gates": {leaf: zero_gate()},
        "fibrations": (),
        "decomposition": ratio_deviation(),
        "orthogonalise": None,
    }
    try:
        return h.replace(**changes, groups=groups, objective=objective, assume=(), gives_up={})
    except FibrationError:  # a stratum below the rows
        return h
