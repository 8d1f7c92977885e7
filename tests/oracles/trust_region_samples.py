"""Sampled tokens for the tests of `fibration.trust_region`, and the paper's definitions in plain Python.

The definitions loop over (state, action) pairs with multiplicities, as in the paper's appendix. The library sums over
tokens and has no multiplicities.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fibration import FibrationError
from oracles.rationals import Row, combined, inner, solve

Pair = tuple[int, int]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def spent(deviation: Tensor, state: Tensor) -> Tensor:
    """D̂_TV per token's state, in plain Python."""
    pairs = list(zip(state.tolist(), deviation.tolist(), strict=True))
    of = {s: [abs(d) for z, d in pairs if z == s] for s, _ in pairs}
    return tensor([sum(of[s]) / len(of[s]) for s, _ in pairs])


def refuses_with_a_rule(call: Callable[[], object], error: type[FibrationError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert raised.value.required


@dataclass(frozen=True)
class Sample:
    """Tokens in trajectories; log ratios and advantages belong to pairs."""

    tokens: tuple[Pair, ...]
    lengths: tuple[int, ...]
    log_ratio_of: dict[Pair, float]
    advantage_of: dict[Pair, float]

    # ------------------------------------------------------------ as tensors

    def tensor(self, of: dict[Pair, float]) -> Tensor:
        return torch.tensor([of[p] for p in self.tokens], dtype=torch.float64)

    def pairs(self, tensor: Tensor) -> dict[Pair, float]:
        """One value per pair, which all of its tokens must share."""
        result: dict[Pair, float] = {}
        for p, v in zip(self.tokens, tensor.tolist(), strict=True):
            assert result.setdefault(p, v) == v
        return result

    @property
    def log_ratio(self) -> Tensor:
        return self.tensor(self.log_ratio_of)

    @property
    def advantages(self) -> Tensor:
        return self.tensor(self.advantage_of)

    @property
    def state(self) -> Tensor:
        return torch.tensor([s for s, _ in self.tokens])

    @property
    def action(self) -> Tensor:
        return torch.tensor([a for _, a in self.tokens])

    @property
    def trajectory(self) -> Tensor:
        return torch.tensor([i for i, n in enumerate(self.lengths) for _ in range(n)])

    @property
    def step(self) -> Tensor:
        return torch.tensor([t for n in self.lengths for t in range(n)])

    @property
    def offsets(self) -> Tensor:
        return torch.tensor([sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)])

    # ------------------------------------------------------------ the paper's counts

    @cached_property
    def n(self) -> Counter[Pair]:
        return Counter(self.tokens)

    @cached_property
    def states(self) -> list[int]:
        return sorted({s for s, _ in self.tokens})

    def actions(self, s: int) -> list[int]:
        return sorted(a for z, a in self.n if z == s)

    def count(self, s: int) -> int:
        return sum(self.n[s, a] for a in self.actions(s))

    def share(self, s: int, gamma: float) -> float:
        """Γ(s)/Γ."""
        steps = [t for n in self.lengths for t in range(n)]
        weight = {z: sum(gamma**t for (y, _), t in zip(self.tokens, steps, strict=True) if y == z) for z in self.states}
        return weight[s] / sum(weight.values())

    # ------------------------------------------------------------ the paper's definitions

    def tv(self, s: int, deviation: dict[Pair, float]) -> float:
        return sum(self.n[s, a] * abs(deviation[s, a]) for a in self.actions(s)) / self.count(s)

    def discounted(self, term: dict[Pair, float], gamma: float) -> float:
        """The paper's sum over states and actions with the weights of a discounted estimator."""
        total = 0.0
        for s in self.states:
            total += (
                self.share(s, gamma) / self.count(s) * sum(self.n[s, a] * term[s, a] for a in self.actions(s))
            ) / (1 - gamma)
        return total

    def gated(self, deviation: dict[Pair, float], delta: float) -> dict[Pair, float]:
        """The clip of eq:surrogated_apc_obj, with the Kronecker delta that leaves one copy of the pair out."""
        result = {}
        for s, a in self.n:
            others = sum((self.n[s, b] - (a == b)) * abs(deviation[s, b]) for b in self.actions(s))
            bound = max(self.count(s) * delta - others, 0.0)
            result[s, a] = max(-bound, min(deviation[s, a], bound))
        return result

    def correction(self, deviation: dict[Pair, float], delta: float) -> dict[int, float]:
        """eq:correction_term."""
        g = self.gated(deviation, delta)
        return {s: sum(self.n[s, a] * g[s, a] for a in self.actions(s)) / self.count(s) for s in self.states}

    def penalty(self, gamma: float) -> float:
        return 4 * gamma * max(abs(self.advantage_of[p]) for p in self.n) / (1 - gamma) ** 2

    def objective(self, deviation: dict[Pair, float], gamma: float) -> float:
        """eq:j_delta."""
        gain = self.discounted({p: deviation[p] * self.advantage_of[p] for p in self.n}, gamma)
        return gain - self.penalty(gamma) * max(self.tv(s, deviation) for s in self.states) ** 2


def deviation_of(log_ratio_of: dict[Pair, float]) -> dict[Pair, float]:
    return {p: math.exp(x) - 1 for p, x in log_ratio_of.items()}


@st.composite
def samples(draw: Any, max_tokens: int = 10, max_states: int = 3) -> Sample:
    """Few states and actions, so that pairs repeat; advantages from a short list, so that they tie."""
    ids = [7, -3, 10**12][:max_states]
    tokens = draw(
        st.lists(st.tuples(st.sampled_from(ids), st.sampled_from([5, 0, -1])), min_size=1, max_size=max_tokens)
    )
    cuts = sorted(draw(st.sets(st.integers(1, len(tokens) - 1), max_size=3))) if len(tokens) > 1 else []
    bounds = [0, *cuts, len(tokens)]
    table = list(dict.fromkeys(tokens))
    advantage = st.sampled_from([-2.0, -1.0, 0.0, 0.25, 1.0, 3.0])
    ratio = st.floats(-1.5, 1.5, allow_subnormal=False)
    return Sample(
        tuple(tokens),
        tuple(b - a for a, b in zip(bounds, bounds[1:], strict=False)),
        {p: draw(ratio) for p in table},
        {p: draw(advantage) for p in table},
    )


def programme(sample: Sample, weight: Mapping[int, float | Fraction], budget: float | Fraction) -> Fraction:
    """The largest Σ weight·n·Δ·A over deviations of pairs with D̂_TV(s) at most `budget`, in rationals.

    States share nothing, so each is a programme of its own: Δ = up - down and what is left of the budget are at least 0
    and obey two equations. The region is bounded, so one of its corners is best: at most two variables that are not 0.
    """
    result = Fraction(0)
    for s in sample.states:
        room = Fraction(budget) * sample.count(s)
        columns = [(Fraction(0), Fraction(1), Fraction(0))]  # in Σ n Δ = 0, in Σ n |Δ| + left = room, in the gain
        for a in sample.actions(s):
            n, gain = (
                Fraction(sample.n[s, a]),
                Fraction(weight[s]) * sample.n[s, a] * Fraction(sample.advantage_of[s, a]),
            )
            columns += [(n, n, gain), (-n, n, -gain)]
        corners = []
        for (a, b, gain), (c, d, other) in itertools.combinations(columns, 2):
            if a * d != b * c:
                first, second = -c * room / (a * d - b * c), a * room / (a * d - b * c)
                if first >= 0 and second >= 0:
                    corners.append(first * gain + second * other)
        result += max(corners)
    return result


def smallest_maximiser(sample: Sample, s: int) -> dict[Pair, Fraction]:
    """Of the deviations of one state that gain most with D̂_TV(s) = 1, that of the least Σ_a Δ² (def:sample_tv_trpo).

    In rationals. With the signs of its Δ and whether all of T_s is spent, it is the least solution of linear equations;
    so it is the least of those solutions, one for every choice, that keep their signs and the budget.
    """
    pairs = [(s, a) for a in sample.actions(s)]
    n = [Fraction(sample.n[p]) for p in pairs]
    gain = [m * Fraction(sample.advantage_of[p]) for m, p in zip(n, pairs, strict=True)]
    most = programme(sample, {z: int(z == s) for z in sample.states}, 1)
    found = []
    for signs in itertools.product((-1, 0, 1), repeat=len(pairs)):
        rows = [[m * abs(i) for m, i in zip(row, signs, strict=True)] for row in (n, gain)]
        spends = [m * i for m, i in zip(n, signs, strict=True)]
        for more, right in (([], []), ([spends], [Fraction(sample.count(s))])):
            v = _least_solution([*rows, *more], [Fraction(0), most, *right])
            if v is None or any(x * i < 0 for x, i in zip(v, signs, strict=True)):
                continue
            if inner(n, [abs(x) for x in v]) <= sample.count(s):
                found.append(v)
    return dict(zip(pairs, min(found, key=lambda v: sum(x * x for x in v)), strict=True))


def _least_solution(rows: list[Row], right: list[Fraction]) -> Row | None:
    """The solution of rows·v = right of the least Σ v², which is rowsᵀ·y with rows·rowsᵀ·y = right; None if none is."""
    y = solve([[inner(one, two) for two in rows] for one in rows], right)
    return None if y is None else combined(y, rows)
