"""Formulas in the limit of an infinite parameter: decided limits, and formulas without one."""

from __future__ import annotations

import functools
import math
import operator

import pytest

from fibration import (
    Gate,
    Parameter,
    SpecError,
    count,
    equivalent,
    exp,
    load,
    log,
    log_prob,
    mass,
    minimum,
    policies,
    residual,
    sign,
    some,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    where,
)
from fibration.language.expressions import as_expression
from fibration.language.fixed import Here, Unbounded, at_infinity

C = Parameter("C")
(old,) = policies("old")
text, image, trajectory = strata("text_token image_token trajectory")
tree, chain = load("fiberpo_modal"), load("gspo")
TEXTS, IMAGES = (count(s, over=trajectory) for s in (text, image))


@pytest.mark.parametrize(
    "formula",
    [
        where(residual < 1 / C, 1, 2),
        where(residual >= -exp(-C), 1, 2),
        where(tanh(C) < 1, 0, 1),
        minimum(residual, 1 - 1 / C),
        sign(1 / C),
        where(some(log_prob(old) < -1, over=trajectory) & (1 / C > 0), 1, 2),
        residual + 1 / (1 / C),
        log(1 / C) * residual,
    ],
)
def test_a_possible_tie_in_the_limit_is_not_decided(formula):
    """At residual 0, `residual < 1/C` holds for every C, but `residual < 0` does not. A division by 0 has no value."""
    with pytest.raises(Unbounded):
        at_infinity(formula, {C: 1}, Here(chain.shape))


@pytest.mark.parametrize(
    ("formula", "limit"),
    [(where(tanh(C) < 2, 3, 4), 3), (where(exp(residual) > 1 / C, 3, 4), 3), (where(1 / C >= 1, 3, 4), 4)],
)
def test_limits_that_certainly_differ_are_compared(formula, limit):
    assert at_infinity(formula, {C: 1}, Here(chain.shape)) == as_expression(limit)


def at(stratum, **masses):
    return Here(tree.shape, (stratum,), {trajectory: masses["mass"]} if masses else tree.masses)


@pytest.mark.parametrize(
    ("size", "here"),
    [
        (mass, at(text)),
        (mass, at(trajectory)),
        (TEXTS, at(text)),
        (TEXTS + IMAGES, at(trajectory)),
        (1 / (TEXTS + IMAGES), at(image)),
        (total(exp(residual), over=trajectory), at(trajectory)),
        (total(exp(residual), over=trajectory, of=text), at(text)),
    ],
)
def test_an_infinite_budget_times_a_positive_size_never_binds(size, here):
    assert at_infinity(where(residual < C * size, 1, 2), {C: 1}, here) == as_expression(1)


@pytest.mark.parametrize(
    ("size", "here"),
    [
        (TEXTS, at(trajectory)),
        (TEXTS, at(image)),
        (TEXTS, Here(tree.shape)),
        (TEXTS - IMAGES, at(text)),
        (mass, at(trajectory, mass=TEXTS / (TEXTS + IMAGES))),
        (mass, Here(tree.shape)),
        (total(exp(residual), over=trajectory, of=text), at(trajectory)),
        (total(TEXTS, over=trajectory), at(trajectory)),
    ],
)
def test_an_infinite_budget_times_a_size_that_may_be_0_is_not_decided(size, here):
    """A branch of a tree may be empty, and a kernel may give an element no mass."""
    with pytest.raises(Unbounded, match="whose sign is not known"):
        at_infinity(where(residual < C * size, 1, 2), {C: 1}, here)


def test_a_budget_in_units_of_the_mass_of_a_tree_is_compared():
    by_mass = where(residual > C * mass, C * mass, residual)
    given = tree.replace(name="given", gates={**tree.gates, trajectory: Gate(by_mass)})
    plain = tree.replace(name="plain", gates={**tree.gates, trajectory: Gate(residual)})
    assert equivalent(given, plain, parameters={"C": math.inf}).ok


def test_strict_comparisons_that_may_be_ties_in_the_limit_are_not_matched():
    x = token_log_ratio
    kept = [chain.replace(objective=token_mean().keep(c)) for c in (x < 1 / C, x < 0)]
    weighed = [chain.replace(objective=token_mean().weigh(w)) for w in (where(tanh(C) < 1, 0, 1), as_expression(1))]
    of_texts = functools.reduce(operator.mul, [C, total(exp(x), over=trajectory, of=text)])
    capped = [tree.replace(objective=token_mean().weigh(w)) for w in (minimum(1, of_texts), as_expression(1))]
    for first, second in (kept, weighed, capped):
        with pytest.raises(SpecError):
            equivalent(first, second, parameters={"C": math.inf})
