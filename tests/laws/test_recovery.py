"""The recovery returns the ratio from ungated channels."""

from fractions import Fraction

import pytest
from hierarchies.builders import epsilon, one, weight, x
from hypothesis import given
from hypothesis import strategies as st
from oracles import verdicts
from thorough import examples

from fibration import (
    Decomposition,
    Gate,
    absolute,
    clip_gate,
    exp,
    expm1,
    gated,
    identity_gate,
    log1p,
    maximum,
    residual,
    sqrt,
    tanh,
    where,
)


@pytest.mark.sampled
@verdicts.wrong_specs("recovery")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@st.composite
def decompositions(draw):
    g, plus, minus = gated(""), gated("+"), gated("-")
    c = draw(st.sampled_from([Fraction(1), Fraction(2), Fraction(-1), Fraction(1, 2)]))
    e = draw(st.sampled_from([c, 1 / c, c, 1]))
    if draw(st.booleans()):
        f = draw(
            st.sampled_from([c * x, c * expm1(x), where(x > 0, c * x, x), where(x >= 0, x, c * x), x * x / x, tanh(x)])
        )
        back = draw(
            st.sampled_from([
                exp(g / e), 1 + g / e, exp(where(g > 0, g / e, g)), exp(g) * e, exp(g * (e * e)),
                where(g > 0, exp(g / e), exp(g)), exp(absolute(g) / e), exp(g / e + g * g - g * g),
            ])
        )  # fmt: skip
        return Decomposition({"": f}, back)
    owners = [x >= 0, x > 0, (x >= 0) & (weight > 1), (x > 0) | (weight < 1)]
    up = where(draw(st.sampled_from(owners)), c * x, 0)
    down = where(draw(st.sampled_from(owners)), 0, draw(st.sampled_from([-c * x, c * x, -x])))
    if draw(st.booleans()):
        down = where(x < 0, -c * x, 0)
    back = draw(
        st.sampled_from([exp((plus - minus) / e), exp((plus + minus) / e), exp(plus / e), exp(maximum(plus, minus))])
    )
    return Decomposition({"+": up, "-": down}, back)


@st.composite
def in_exponentials(draw):
    """Functions of the ratio and their inverses, of which most do not belong together."""
    g, c = gated(""), draw(st.sampled_from([1, 2, -1, Fraction(1, 2)]))
    f = draw(
        st.sampled_from([tanh(c * x), tanh(c * x / 2), expm1(2 * x), 1 - exp(-c * x), (exp(c * x) - exp(-c * x)) / 2])
    )
    back = [
        (1 + g) / (1 - g), sqrt((1 + g) / (1 - g)), exp((log1p(g) - log1p(-g)) / 2), sqrt(1 + g), -sqrt(1 + g), 1 / (1 - g),
        g + sqrt(1 + g * g), sqrt(1 + g * g) - g, exp(g), exp(log1p(g) / 2),
    ]  # fmt: skip
    return Decomposition({"": f}, draw(st.sampled_from(back)))


@examples(40)
@given(in_exponentials())
def test_verdicts_on_random_densities_are_right(split):
    verdicts.check(one(identity_gate(), split), sizes=(1, 1))


@examples(60)
@given(decompositions(), st.sampled_from([clip_gate(epsilon), identity_gate(), Gate(tanh(residual))]))
def test_verdicts_on_random_decompositions_are_right(split, gate):
    verdicts.check(one(gate, split), sizes=(1, 1, 1, 1))
