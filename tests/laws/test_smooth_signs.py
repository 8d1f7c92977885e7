"""Signs of smooth formulas of one variable: proved signs are those of values, and similar ones are not proved."""

import math

import pytest
import sympy
from hierarchies.builders import two

from fibration.language.operators import POSITIVE
from fibration.language.sympy_bridge import Stopped
from fibration.laws.signs.smooth_signs import DEEPEST, T, _course
from fibration.laws.subject import Subject

exp, log, tanh, atan = sympy.exp, sympy.log, sympy.tanh, sympy.atan
U = T * T
KNOWN = Subject(two(), []).assume
COURSES = {
    exp(T) - 1 - T: (1,),
    exp(-T) - 1 + T: (1,),
    T - tanh(T): (1,),
    1 + tanh(T) - T * (1 - tanh(T) ** 2): (1,),
    (1 + U) * (1 + log(1 + U)) - 2 * U: (1,),
    (1 + U) * (1 + 3 * log(1 + U)) - 6 * U: (1,),  # 0.08 at its turn, T = 0.97
    (1 + U) * (6 - 5 * log(1 + U)) - 12: (-1,),
    1 - U: (1, 0, -1),
    (1 - U) ** 2: (1, 0, 1),
    3 * log(1 + U) - 2: (-1, 0, 1),
    atan(T) - T / (1 + U): (1,),
    T * exp(-T) - sympy.Rational(1, 2): (-1,),
}
UNKNOWN = (
    (1 + U) * (1 + 4 * log(1 + U)) - 8 * U,  # below 0 between two places
    T * exp(-T) - sympy.Rational(1, 3),
    log((1 - T) ** 2) + 1,  # has no value at T = 1
    1 / (T - 1) + exp(T),
    sympy.sin(T) + 2,
    log(U + 2 * T + 1) - 2 * log(1 + T),  # 0, which sympy does not see
    T - Stopped(2 * T),  # its derivative is 1, and it falls
)


def inside():
    return KNOWN.with_signs({T: POSITIVE})


@pytest.mark.parametrize("f", COURSES, ids=str)
def test_the_proved_signs_of_a_smooth_formula_are_those_of_its_values(f):
    found = _course(f, inside(), DEEPEST)
    assert found == COURSES[f]
    value = sympy.lambdify(T, f, "math")
    signs = [int(math.copysign(1, v)) for k in range(-300, 300) if abs(v := value(1.02**k)) > 1e-9]
    assert [s for i, s in enumerate(signs) if i == 0 or signs[i - 1] != s] == list(dict.fromkeys(s for s in found if s))


@pytest.mark.parametrize("f", UNKNOWN, ids=str)
def test_a_formula_with_two_turning_points_or_a_pole_has_no_known_signs(f):
    assert _course(f, inside(), DEEPEST) is None
