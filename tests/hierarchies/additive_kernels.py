"""Hypothesis strategies: kernels of chains that are quotients of additive measures, and linear combinations of kernels."""

from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    MarkovKernel,
    count,
    identity_gate,
    log_ratio,
    token_mean,
    total,
)
from hierarchies.builders import FULL as CHAIN
from hierarchies.builders import token, trajectory, weight

price = Attribute("price", on=trajectory)


def small(low=-3, high=3):
    return st.builds(Fraction, st.integers(low, high), st.sampled_from([1, 2, 4]))


def right_kernels(source, target):
    """Weights that sum to 1 over every fibre, as quotients of additive measures."""
    made = [1 / count(source, over=target)]
    for finer in CHAIN[: CHAIN.index(source)]:
        made.append(count(finer, over=source) / count(finer, over=target))
    made.append(total(weight, over=source) / total(weight, over=target))
    if source == token:
        made[-1] = weight / total(weight, over=target)
    if CHAIN.index(source) >= CHAIN.index(trajectory):
        own = price if source == trajectory else total(price, over=source)
        made.append(own / total(price, over=target))
    return made


@st.composite
def linear_kernels(draw, source, target):
    """A combination of right kernels, and what its coefficients add up to: it sums to that over every fibre."""
    parts = draw(st.lists(st.sampled_from(right_kernels(source, target)), min_size=1, max_size=3, unique_by=str))
    coefficients = [draw(small(-2, 3)) for _ in parts]
    if draw(st.booleans()):
        coefficients[0] = 1 - sum(coefficients[1:], Fraction(0))
    assume(any(coefficients))
    value = sum((c * p for c, p in zip(coefficients[1:], parts[1:], strict=True)), coefficients[0] * parts[0])
    return value, sum(coefficients), coefficients


def over(levels, kernels):
    return Hierarchy(
        name="random",
        fibrations=[
            Fibration(a, b, kernel=MarkovKernel(k)) for a, b, k in zip(levels, levels[1:], kernels, strict=False)
        ],
        gates=dict.fromkeys(levels, identity_gate()),
        decomposition=log_ratio(),
        objective=token_mean(),
    )
