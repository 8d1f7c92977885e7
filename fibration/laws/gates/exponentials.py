"""Whether a branch-free formula of a log ratio `x` is `exp(x)`: rational powers of rational functions of `exp(x)`."""

from __future__ import annotations

import math
from typing import Any

import sympy

from fibration.language.sympy_bridge import vanishes
from fibration.laws.gates.coordinates import X


def is_the_ratio(value: Any) -> bool:
    """Whether a formula is `exp(x)` wherever it has a value.

    Hyperbolic tangents are written in exponentials. sympy turns exponentials of logarithms into powers, and simplifies
    roots of `exp(x/n)`, which is above 0.
    """
    value = value.replace(sympy.tanh, lambda a: 1 - 2 / (1 + sympy.exp(2 * a)))
    multiples = [a.args[0] / X for a in value.atoms(sympy.exp) if a.args[0].has(X)]
    if not all(m.is_Rational for m in multiples):
        return False
    e, n = sympy.Dummy("e", positive=True), math.lcm(1, *(m.q for m in multiples))
    value = value.replace(sympy.exp, lambda a: e ** (a / X * n) if a.has(X) else sympy.exp(a))
    value = value.replace(lambda v: v.is_Pow and not v.exp.is_Integer, lambda v: sympy.factor(v.base) ** v.exp)
    return not value.has(X) and vanishes(value - e**n)
