"""Losses that differ where one has no value: inside a mean, in a limit, at two infinities, by a constant's digits."""

import math
from fractions import Fraction

import pytest
import sympy
from hierarchies.weights_and_masks import mu, old, one, token, trajectory, x

from fibration import (
    Attribute,
    FibrationError,
    Gate,
    Parameter,
    Stratum,
    absolute,
    before,
    decomposition,
    deviation,
    equivalent,
    exp,
    log,
    log_prob,
    mass,
    mean,
    residual,
    sqrt,
    where,
)
from fibration.language.atoms import gated as gated_density
from fibration.language.expressions import as_expression

R, batch = residual, Stratum("batch")
u = Attribute("u", on=token, positive=False)
v = Attribute("v", on=trajectory, positive=False)
C, D = Parameter("C", default=1), Parameter("D", default=1)
q = Parameter("q", default=1, on=trajectory)
z = mean(sqrt(absolute(x)), over=trajectory)


def gated(formula):
    return one(mu, gate=Gate(formula))


def off(formula):
    return one(mu, penalties={"p": formula})


def by(formula):
    return one(mu.weigh(formula))


def status(first, second, **more):
    """What is said; a comparison that is refused is `refused`."""
    try:
        return equivalent(first, second, timeout=5, **more).verdicts[0].status
    except FibrationError:
        return "refused"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (gated(R + mean(0 * mean(1 / u, over=trajectory) + u, over=batch)), gated(R + mean(u, over=batch))),
        (gated(R + deviation(0 * mean(1 / u, over=trajectory) + log_prob(old), over=batch)),
         gated(R + deviation(log_prob(old), over=batch))),
        (off(mean(z - z + x, over=batch)), off(mean(x, over=batch))),
        (off(before(z - z + x, over=trajectory)), off(before(x, over=trajectory))),
        (off(mean(0 * z + mean(x, over=trajectory), over=batch, of=trajectory)),
         off(mean(mean(x, over=trajectory), over=batch, of=trajectory))),
    ],
)  # fmt: skip
def test_terms_that_cancel_inside_a_statistic_still_need_a_value(first, second):
    assert status(first, second) != "proved"


def test_statistics_of_equal_formulas_are_the_same():
    assert status(off(mean(2 * z + x, over=batch)), off(mean(x + 2 * z, over=batch))) == "proved"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (gated(where(R / u < C, R, 0 * R)), gated(R)),
        (gated(R + log(R) / C), gated(R)),
        (gated(where((log(u) > 0) | (R < C), R, 0 * R)), gated(R)),
        (by(where(log(v) < C, 1, 2)), one(mu)),
        (by(1 + (log(v) / C) ** 2), one(mu)),
        (off(x + log(x) / C), off(x)),
        (off(where(1 / x < C, x, 0)), off(x)),
        (off(x + sqrt(absolute(x)) / C), off(x)),
    ],
)
def test_a_limit_that_drops_a_formula_without_a_value_is_refused(first, second):
    assert status(first, second, parameters={"C": math.inf}) == "refused"


@pytest.mark.parametrize(
    "formula", [where(C > D, 1, 2), where(C - D > 5, 1, 2), where((C > 2 * D) | (D > 2 * C), 1, 2), 1 + C / D]
)
@pytest.mark.parametrize("names", ["CD", "DC"])
def test_two_infinite_parameters_cannot_be_compared(formula, names):
    assert status(by(formula), one(mu), parameters=dict.fromkeys(names, math.inf)) == "refused"


def test_a_gate_with_two_infinite_budgets_passes_every_residual():
    bounded = gated(where(R < -C, -C, where(R > D, D, R)))
    assert status(bounded, gated(R), parameters={"C": math.inf, "D": math.inf}) == "proved"


@pytest.mark.thorough
def test_a_large_constant_is_evaluated_with_enough_digits():
    constant = sympy.exp(100)
    short, long = (sympy.Rational(str(sympy.N(constant, digits))) for digits in (30, 80))
    between = Fraction(int((short + long) / 2))
    e = exp(as_expression(100))
    assert status(by(where((v < e) & (v > between), 2, 1)), one(mu)) != "proved"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "formula", [1 + (mean(q, over=batch) - q) ** 2, 1 + (mean(q * v, over=batch) - q * mean(v, over=batch)) ** 2]
)
def test_a_parameter_per_element_is_not_constant_over_the_batch(formula):
    assert status(by(formula), one(mu)) != "proved"


@pytest.mark.thorough
@pytest.mark.parametrize("density", [x * x / x, x * u / u, x * (u - 1) / (u - 1)])
def test_densities_without_a_value_on_some_batch_differ_from_the_log_ratio(density):
    """At `x = 0`, or where `u` is 0 or 1, the first density is 0/0."""

    def of(d):
        split = decomposition(density=d * mass, recovery=exp(gated_density("") / mass), scale=mass)
        return one(mu, gate=Gate(R)).replace(decomposition=split)

    assert status(of(density), of(x)) == "undecided"
    assert status(of(x + 0), of(x)) == "proved"
