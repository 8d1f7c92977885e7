"""Hierarchies whose laws take longer the larger they are: in depth, leaves, crossings, and in one formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

from fibration.language.atoms import BATCH, Parameter, Stratum, count, mass, residual
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, clip_gate, log_ratio, signed_log_ratio
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import trajectory_mean
from fibration.language.operators import tanh, where
from fibration.language.strata import Fibration, MarkovKernel, balanced, proportional, uniform


def _strata(n: int, name: str = "s") -> list[Stratum]:
    return [Stratum(f"{name}{i}") for i in range(n)]


def chain(n: int) -> Hierarchy:
    s = _strata(n)
    fibrations = [Fibration(a, b, uniform()) for a, b in pairwise(s)]
    gates = {x: clip_gate(0.1) for x in s}
    return Hierarchy(
        name="chain", fibrations=fibrations, gates=gates, decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(), rows=s[1],
    )  # fmt: skip


def mixed(n: int) -> Hierarchy:
    s = _strata(n)
    kernels = [uniform(), proportional(count(s[0]))]
    fibrations = [
        Fibration(a, b, [*kernels, proportional(count(a)) if i else uniform()][i % 3])
        for i, (a, b) in enumerate(pairwise(s))
    ]
    gates = {x: clip_gate(Parameter(f"c{i}", default=0.1)).per(mass) for i, x in enumerate(s)}
    return Hierarchy(
        name="mixed", fibrations=fibrations, gates=gates, decomposition=signed_log_ratio(scale=mass),
        objective=trajectory_mean(), rows=s[1],
    )  # fmt: skip


def tree(n: int, kernel: Callable[[int, Expression], MarkovKernel]) -> Hierarchy:
    """Leaves over one root; `kernel` of a leaf's place and of the count of all of them."""
    leaves, root = _strata(n, "leaf"), Stratum("trajectory")
    joint = sum((count(x, over=root) for x in leaves[1:]), count(leaves[0], over=root))
    gates = {x: clip_gate(0.1) for x in (*leaves, root)}
    return Hierarchy(
        name="tree", fibrations=[Fibration(x, root, kernel(i, joint)) for i, x in enumerate(leaves)], gates=gates,
        decomposition=log_ratio(scale=mass), objective=trajectory_mean(), rows=root,
    )  # fmt: skip


def quiver(n: int, is_balanced: bool) -> Hierarchy:
    """Tokens over several strata that cross, over one batch."""
    token, batch, crossed = Stratum("token"), Stratum(BATCH), _strata(n)
    fibrations = [Fibration(token, x, uniform()) for x in crossed]
    fibrations += [Fibration(x, batch, proportional(count(token))) for x in crossed]
    return Hierarchy(
        name="quiver", fibrations=fibrations, gates={s: clip_gate(0.1) for s in (token, *crossed, batch)},
        decomposition=log_ratio(scale=mass), objective=trajectory_mean(), rows=crossed[0],
        assume=[balanced(a, b) for a, b in combinations(crossed, 2)] if is_balanced else [],
    )  # fmt: skip


def alone(gate: Expression) -> Hierarchy:
    return Hierarchy(
        name="formula", gates={Stratum("token"): Gate(gate)}, decomposition=log_ratio(), objective=trajectory_mean()
    )


def nested(n: int) -> Hierarchy:
    gate: Expression = residual
    for _ in range(n):
        gate = tanh(gate)
    return alone(gate)


def branches(n: int) -> Hierarchy:
    gate: Expression = residual / 39
    for i in range(1, n):
        gate = gate + where(residual > Fraction(i, 50), residual / 39, residual * Fraction(i + 1, 39 * (i + 2)))
    return alone(gate)


def factors(n: int) -> Hierarchy:
    """A product of as many quotients, as shallow as it can be."""
    parts: list[Expression] = [(1 + residual / i) / (1 + residual / (i + 1)) for i in range(1, n + 1)]
    while len(parts) > 1:
        parts = [a * b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) // 2 * 2 :]
    return alone(residual * parts[0])


def _shared(n: int) -> Hierarchy:
    return tree(n, lambda i, joint: uniform(share=Fraction(1, n - 1)))


@dataclass(frozen=True)
class Family:
    """Hierarchies of growing `sizes` of one kind; `axis` is what grows."""

    name: str
    axis: str
    make: Callable[[int], Hierarchy]
    sizes: Sequence[int]


DEPTH, LEAVES, CROSSINGS, FORMULA = "strata of a chain", "leaves of a tree", "strata that cross", "terms of a gate"
FAMILIES = (
    Family("uniform kernels", DEPTH, chain, (2, 4, 6, 8, 10, 12, 16, 20, 30)),
    Family("mixed kernels", DEPTH, mixed, (2, 4, 6, 8, 10, 12, 16, 20, 30)),
    Family("joint counts", LEAVES, lambda n: tree(n, lambda i, joint: MarkovKernel(1 / joint)), (2, 4, 6, 8, 12)),
    Family(
        "one slip", LEAVES, lambda n: tree(n, lambda i, joint: MarkovKernel(1 / (joint if i else joint + 1))),
        (2, 4, 6, 8, 12),
    ),
    Family("shares above 1", LEAVES, _shared, (2, 4, 6, 8, 12)),
    Family("balanced", CROSSINGS, lambda n: quiver(n, True), (2, 3, 4, 6, 8)),
    Family("not balanced", CROSSINGS, lambda n: quiver(n, False), (2, 3, 4, 6, 8)),
    Family("nested tanh", FORMULA, nested, (1, 2, 3, 5, 10)),
    Family("summed where", FORMULA, branches, (2, 5, 10, 20, 39)),
    Family("quotients", FORMULA, factors, (2, 5, 10, 20, 40, 59)),
)  # fmt: skip
