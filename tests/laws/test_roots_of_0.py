"""Laws judge a formula as it is written: `sqrt(x - x)` is 0, and its derivative by the chain rule is `0·inf`.

The float64 interpreter runs the program as lowered, which computes what the formula says. No proof may contradict it.
"""

import numpy as np
import pytest
from hierarchies.builders import one, token, trajectory, two
from hypothesis import given, reject
from hypothesis import strategies as st
from oracles import brute_force
from oracles.interpreter import Interpreter
from thorough import examples

from fibration import (
    Gate,
    SpecError,
    absolute,
    atan,
    clip,
    decomposition,
    density,
    exp,
    expm1,
    gated,
    log,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    minimum,
    policies,
    residual,
    sign,
    sqrt,
    stop,
    tanh,
    token_log_ratio,
    where,
)

r = residual
OF_SLOPES = ("identity", "first_order", "gradient", "inward")
PLACES = (0.0, 2**-10, -(2**-10), 0.125, -0.125, 0.5, -0.5, 2.0, -2.0)  # sums and products of these are not rounded

# Formulas that are 0 for all numbers, or for those at which they are read. A gradient flows through most of them.
ZEROS = {
    "x - x": lambda e: e - e,
    "x**2 - x*x": lambda e: e**2 - e * e,
    "2*x - x - x": lambda e: 2 * e - e - e,
    "(1 + x) - x - 1": lambda e: (1 + e) - e - 1,
    "maximum(x, x) - x": lambda e: maximum(e, e) - e,
    "where(c, x, x) - x": lambda e: where(e > 0, e, e) - e,
    "clip(x) - clip(x)": lambda e: clip(e, -1, 1) - clip(e, -1, 1),
    "exp(x) - exp(x)": lambda e: exp(e) - exp(e),
    "tanh(x) - tanh(x)": lambda e: tanh(e) - tanh(e),
    "x - stop(x)": lambda e: e - stop(e),
    "stop(x) - stop(x)": lambda e: stop(e) - stop(e),
    "0*x": lambda e: 0 * e,
    "clip(x, 0, 0)": lambda e: clip(e, 0, 0),
    "maximum(-x*x, 0)": lambda e: maximum(-(e * e), 0),
    "x*(1 - x/x)": lambda e: e * (1 - e / e),
    "sqrt(x*x) - sqrt(x*x)": lambda e: sqrt(e * e) - sqrt(e * e),
    "|x| - |x|": lambda e: absolute(e) - absolute(e),
}
# What adds 0 to a formula of `x`, if `z` is 0.
WRAPS = {
    "sqrt(z)": lambda z, e: sqrt(z),
    "0*sqrt(z)": lambda z, e: 0 * sqrt(z),
    "sqrt(z)*sqrt(z)": lambda z, e: sqrt(z) * sqrt(z),
    "stop(sqrt(z))": lambda z, e: stop(sqrt(z)),
    "z*sqrt(x*x)": lambda z, e: z * sqrt(e * e),
    "z/x": lambda z, e: z / e,
    "log(1 + z)": lambda z, e: log(1 + z),
    "log1p(z)": lambda z, e: log1p(z),
    "expm1(z)": lambda z, e: expm1(z),
    "atan(z)": lambda z, e: atan(z),
    "z": lambda z, e: z,
}
SETS = {
    "sum": lambda e, a: e + a,
    "product": lambda e, a: e * (1 + a),
    "beyond 1": lambda e, a: where(absolute(e) < 1, e, e + a),
    "at 0": lambda e, a: where(e * e > 0, e, e + a),
    "minimum": lambda e, a: minimum(e, e + a),
    "condition": lambda e, a: where(a < 1, e, 0),
    "sum of clips": lambda e, a: clip(e, -1, 1) + a,
}
FOUND = {
    "a root": r + sqrt(r - r),
    "a root of a square": sign(r) * sqrt(r**2),
    "a root of a product": r + sqrt(r**2 - r * r),
    "a root at 0 alone": where(r * r > 0, r, r + sqrt(r - r)),
    "a root beyond 1": where(absolute(r) < 1, r, r + sqrt(r - r)),
    "a logarithm of an exponential": r + sqrt(log(exp(r)) - r),
    "a factor of 0": r + (r - r) * sqrt(r * r),
    "a factor of 0 in a branch": r + where(r > 0, 0, where(r < 0, 0, 0)) * sqrt(r * r),
    "a quotient": r * (r / r),
    "an exponential of a logarithm": exp(log(r)),
}
HARMLESS = {
    "a factor of a written 0": r + 0 * sqrt(r * r),
    "a root of a written 0": r + sqrt(0 * r),
    "a stopped root": r + stop(sqrt(r - r)),
    "a root of what is stopped": r + sqrt(stop(r) - stop(r)),
    "a root in a condition": where(sqrt(r - r) < 1, r, 0),
    "a root of a square in a condition": where(sqrt(r**2) > 1, 0, r),
    "the smaller of two that are equal": minimum(r, r + sqrt(r - r)),
    "a logarithm": r + log(1 + r - r),
    "one of two that are equal": maximum(r, r),
    "clips": r + clip(r, -1, 1) - clip(r, -1, 1),
}


def coefficients(h, x):
    """`∂J/∂log π` over `μ·A`, where all tokens have the log ratio `x`."""
    world = list(brute_force.worlds_for(h, (2,)))[-1]
    n = world.size(token)
    return n * Interpreter(world, np.full(n, x)).coefficients()


def proved(report, *laws):
    return {law: all(v.status == "proved" for v in report.verdicts if v.law == law) for law in laws}


def contradicted(h):
    """The laws that are proved although the interpreter finds coefficients that are not numbers, or wrong ones."""
    shown = proved(h.verify(), "gradient", "inward")
    wrong = []
    if shown["gradient"] and not np.allclose(coefficients(h, 0.0), 1, rtol=1e-6):
        wrong.append("gradient")
    if shown["inward"] and not all(np.isfinite(coefficients(h, x)).all() for x in PLACES[1:]):
        wrong.append("inward")
    return wrong


@pytest.mark.parametrize("gate", FOUND.values(), ids=FOUND)
def test_no_law_proves_a_slope_that_is_not_a_number(gate):
    h = one(Gate(gate), split=log_ratio())
    found = h.verify()
    assert not found.ok
    assert not contradicted(h)
    assert not all(np.isfinite(coefficients(h, x)).all() for x in PLACES) or not all(proved(found, *OF_SLOPES).values())


@pytest.mark.parametrize("gate", HARMLESS.values(), ids=HARMLESS)
def test_a_root_without_a_gradient_is_harmless(gate):
    h = one(Gate(gate), split=log_ratio())
    found = proved(h.verify(), "identity", "gradient")
    assert all(found.values()), h.verify()
    assert not contradicted(h)


def test_the_refusal_names_a_root_of_0():
    report = one(Gate(r + sqrt(r - r)), split=log_ratio()).verify()
    [found] = [v for v in report.verdicts if v.law == "identity"]
    assert found.status == "refuted"
    assert "a root of 0 has no slope" in str(found.counterexample)


def test_a_density_that_cancels_under_a_root_has_no_slope():
    d = density(trajectory)
    h = two(inner=Gate(r + sqrt(d - d)), split=log_ratio())
    assert not any(proved(h.verify(), "identity", "gradient").values())


def test_a_decomposition_and_a_recovery_are_judged_as_written():
    x = token_log_ratio
    inside = decomposition(density=x + sqrt(x - x), recovery=exp(gated()))
    outside = decomposition(density=x, recovery=exp(gated() + sqrt(gated() - gated())))
    for split in (inside, outside):
        assert not proved(one(Gate(r), split=split).verify(), "gradient")["gradient"]
    far = decomposition(density=where(absolute(x) < 1, x, x + sqrt(x - x)), recovery=exp(gated()))
    g = gated()
    far_out = decomposition(density=x, recovery=exp(where(absolute(g) < 1, g, g + sqrt(g - g))))
    for split in (inside, outside, far, far_out):
        assert not contradicted(one(Gate(clip(r, -3, 3)), split=split))


def test_a_penalty_is_judged_as_written():
    current, reference = policies("current reference")
    d = log_prob(current) - log_prob(reference)
    h = one(Gate(r), split=log_ratio(), penalties={"kl": d * d / 2 + sqrt(d - d)})
    assert not proved(h.verify(), "kl_gradient")["kl_gradient"]
    h = one(Gate(r), split=log_ratio(), penalties={"kl": d * d / 2 + 0 * sqrt(d * d)})
    assert proved(h.verify(), "kl_gradient")["kl_gradient"]


@st.composite
def planted(draw):
    """A gate near the identity, with a formula in it that cancels."""
    z = draw(st.sampled_from(list(ZEROS.values())))
    wrap, place = draw(st.sampled_from(list(WRAPS.values()))), draw(st.sampled_from(list(SETS.values())))
    inner = draw(st.sampled_from([r, 2 * r, r * r, r + 1, clip(r, -1, 1), r + r**3]))
    gate = Gate(place(r, wrap(z(inner), inner)))
    try:
        return one(gate, split=log_ratio())
    except SpecError:  # a `stop` in a condition, or of what is stopped
        reject()


@pytest.mark.thorough
@examples(160)
@given(planted())
def test_no_law_contradicts_the_operator_on_random_cancellations(h):
    assert not contradicted(h)
