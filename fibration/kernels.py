"""Reflecting Markov kernels (object 2 of def:fgh): how the density of an element is spread over its fibre.

To add a kernel, write one function here and decorate it.
"""

from __future__ import annotations

from typing import Any

from fibration.constructors import Written, constructor
from fibration.errors import SpecError
from fibration.expressions import Expression, as_expression
from fibration.symbols import SOURCE, TARGET, at, count


class MarkovKernel(Written):
    """The weight `K(a|b)` of a source element `a` over a target element `b`, as an expression read at `a`."""

    weight: Expression

    def __init__(self, weight: object, **data: Any) -> None:
        value = as_expression(weight, "a kernel weight")
        if value.is_condition:
            raise SpecError(f"a kernel weight cannot be the condition {value}", required="a number")
        super().__init__(weight=value, **{"written": f"MarkovKernel({value})", **data})  # type: ignore[call-arg]


@constructor(MarkovKernel, examples=("uniform()",))
def uniform() -> MarkovKernel:
    """Every element of the fibre gets the same share: `1 / count(source, over=target)`."""
    return MarkovKernel(1 / count(SOURCE, over=TARGET))


@constructor(MarkovKernel, examples=("proportional(measure)",))
def proportional(measure: Expression) -> MarkovKernel:
    """Shares proportional to an additive measure: `m(a)/m(b)`, for a count or the total of an attribute."""
    return MarkovKernel(at(measure, SOURCE) / at(measure, TARGET))
