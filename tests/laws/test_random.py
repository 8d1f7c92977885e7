"""Random hierarchies, right and wrong: proved laws hold on every batch tried, refuted laws fail on their counterexample.

`oracles/brute_force.py` computes everything again in rationals: sums over fibres, the dense operator of eq:fgh_gating,
exact difference quotients. The dense operator shares no code with lowering, the interpreter or the laws.
"""

import random
from fractions import Fraction

import pytest
from hierarchies import builders
from hierarchies.additive_kernels import CHAIN, linear_kernels, over, right_kernels, small
from hierarchies.builders import budget, epsilon, one, token, trajectory, two
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import brute_force
from oracles.interpreter import Interpreter
from oracles.verdicts import check
from thorough import examples

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    density,
    expm1,
    identity_gate,
    log_ratio,
    maximum,
    ratio_deviation,
    residual,
    sign,
    signed_log_ratio,
    tanh,
    token_mean,
    trajectory_mean,
    where,
)
from fibration.language.traversal import atoms

# ---------------------------------------------------------------- gates


@st.composite
def gates(draw, depth=2, base=None):
    """A formula in the residual: now and then the identity near 0, often not."""
    r = residual
    d = base
    leaves = [
        r,
        r,
        2 * r,
        r + r * r,
        clip(r, -epsilon, budget),
        tanh(r),
        r * (1 + epsilon * r),
        r * r,
        expm1(r),
        r - r**3,
    ]
    leaves += [Gate(aggregate_gate(budget, rollback=3).expression).expression, absolute(r), sign(r) * absolute(r)]
    leaves += [r / (1 + absolute(r)), r * r / r, r + draw(small(-1, 1)), draw(small()) * r, r * (1 + r) / (1 + r)]
    if d is not None:
        leaves += [r + d, r * (1 + d), r / (1 + d * d), r + d * r, r + d - d, clip(r, -epsilon - d, epsilon + d)]
        leaves += [clip(r, -maximum(budget - absolute(d), 0), maximum(budget - absolute(d), 0)), r + d * d]
    if depth == 0:
        return draw(st.sampled_from(leaves))
    conditions = [r > 0, r >= 0, r < 0, r <= 0, absolute(r) <= epsilon, absolute(r) < budget / 10, r > 1, r > -1]
    conditions += [advantage >= 0, advantage > 0, epsilon < 1, budget > epsilon, r * r > 0, r * r >= 0, r + r * r > 0]
    conditions += [r > epsilon * r, 2 * r <= r, r - r**3 < 0, expm1(r) > 0, tanh(r) >= r, (r >= 0) & (r <= 0)]
    conditions += [absolute(r) > draw(small(0, 1)), budget - absolute(r) > epsilon]
    if d is not None:
        conditions += [d > 0, d >= 0, absolute(d) > epsilon, r > d, r >= -absolute(d), r * d > 0, r + d <= budget]
    c = draw(st.sampled_from(conditions))
    if draw(st.integers(0, 3)) == 0:
        other = draw(st.sampled_from(conditions))
        c = draw(st.sampled_from([c & other, c | other, ~c]))
    return where(c, draw(gates(depth - 1, base)), draw(gates(depth - 1, base)))


@pytest.mark.thorough
@examples(70)
@given(gates(), st.sampled_from([log_ratio(), ratio_deviation(), signed_log_ratio()]))
def test_verdicts_on_random_gates_of_tokens_are_right(formula, split):
    check(one(formula, split), sizes=(1, 1, 1))


@pytest.mark.thorough
@examples(40)
@given(
    gates(base=density(trajectory)),
    st.sampled_from([log_ratio(scale=1 / builders.T), signed_log_ratio(scale=1 / builders.T)]),
)
def test_verdicts_on_random_gates_that_read_a_coarser_density_are_right(formula, split):
    check(two(inner=Gate(formula), split=split, objective=trajectory_mean()), sizes=(1, 2, 3))


# ---------------------------------------------------------------- everything at once


@st.composite
def hierarchies(draw):
    levels = CHAIN[: draw(st.integers(1, 4))]
    kernels = []
    for a, b in zip(levels, levels[1:], strict=False):
        if draw(st.integers(0, 5)) == 0:
            kernels.append(draw(linear_kernels(a, b))[0])
        else:
            kernels.append(draw(st.sampled_from(right_kernels(a, b))))
    made = {}
    for s in levels:
        own = Parameter(f"C_{s.name}", default=0.2)
        coarse = levels[-1]
        options = [
            identity_gate(),
            clip_gate(own),
            aggregate_gate(own, rollback=count(token)),
            Gate(own * tanh(residual / own)),
        ]
        options += [clip_gate(own).per(1 / count(token, over=s)) if s != token else clip_gate(own).per(own)]
        if s != coarse:
            options.append(Gate(clip(residual, -own - density(coarse) ** 2, own + density(coarse) ** 2)))
        if draw(st.integers(0, 4)) == 0:
            options = [Gate(draw(gates(1, density(coarse) if s != coarse else None)))]
            assume(s in (token, trajectory) or advantage not in set(atoms(options[0].expression)))
        made[s] = draw(st.sampled_from(options))
    scale = draw(
        st.sampled_from(
            [None, 1 / count(token, over=levels[-1]), 1 / count(token, over=levels[min(1, len(levels) - 1)])]
        )
    )
    split = draw(st.sampled_from([log_ratio, signed_log_ratio, ratio_deviation]))
    return Hierarchy(
        name="random",
        fibrations=[
            Fibration(a, b, kernel=MarkovKernel(k)) for a, b, k in zip(levels, levels[1:], kernels, strict=False)
        ],
        gates=made,
        decomposition=split() if scale is None else split(scale=scale),
        objective=draw(st.sampled_from([token_mean(), trajectory_mean()])),
    )


@pytest.mark.thorough
@examples(20)
@given(hierarchies())
def test_verdicts_on_random_hierarchies_are_right(h):
    found = check(h, sizes=(1, 2, 3) if len(h.order) < 4 else (1, 2))
    if found.ok and len(h.order) > 1:
        _agrees_with_the_interpreter(h)


def _agrees_with_the_interpreter(h):
    """The dense operator of eq:fgh_gating and the lowered program, on one tree."""
    world = list(brute_force.worlds_for(h, (4,)))[-1]
    rng = random.Random(1)
    xs = [Fraction(rng.randint(-20, 20), 32) for _ in range(world.size(token))]
    dense = world.ratios(xs, [Fraction(1)] * len(xs))
    assert [float(v) for v in dense] == pytest.approx(list(Interpreter(world).ratio(xs)), rel=1e-9)


def test_chains_of_additive_measures_are_always_proved():
    """Every chain of additive measures, up to four strata, with every gate that a function makes, is proved."""
    for levels in (CHAIN[:1], CHAIN[:2], CHAIN):
        for first in range(2):
            pairs = list(zip(levels, levels[1:], strict=False))
            kernels = [right_kernels(a, b)[min(first, i)] for i, (a, b) in enumerate(pairs)]
            for split in (log_ratio(), signed_log_ratio()):
                gate = [clip_gate(epsilon), aggregate_gate(budget, rollback=count(token)).inward()][first]
                h = over(levels, kernels).replace(gates=dict.fromkeys(levels, gate), decomposition=split)
                found = h.verify()
                assert found.ok, found
                assert all(v.status == "proved" for v in found.verdicts)
