"""Conditions that contradict each other, and those that do not."""

from fibration import Parameter
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import symbol
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.feasible import feasible, normal

ZERO, POSITIVE, NOT_NEGATIVE, NEGATIVE = frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset({-1})
ASSUME = Assumptions(Shape((), ()))
C = symbol(Parameter("C"))


def can(difference, signs):
    return feasible(dict([normal(difference, signs, ASSUME)]), ASSUME)


def test_a_formula_that_simplifies_to_0_has_only_the_sign_0():
    for nothing in (C - C, 0 * C):
        assert can(nothing, ZERO)
        assert can(nothing, NOT_NEGATIVE)
        assert not can(nothing, POSITIVE)
        assert not can(nothing, NEGATIVE)


def test_a_formula_that_simplifies_to_a_number_has_only_its_sign():
    assert can(C / C, POSITIVE)
    assert not can(C / C, NEGATIVE)
    assert can(-3 * C / C, NEGATIVE)
    assert not can(-3 * C / C, NOT_NEGATIVE)
