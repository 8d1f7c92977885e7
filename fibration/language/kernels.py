"""Fibrations and their reflecting Markov kernels (objects 1 and 2 of def:fgh): what lies over what, with what weight.

To add a kernel, write one function here and decorate it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from fibration.errors import SpecError, an, declare
from fibration.language.atoms import SOURCE, TARGET, Stratum, at, count, resolve_places
from fibration.language.declared import Declared
from fibration.language.expressions import Expression, as_expression
from fibration.language.registry import Written, constructor


class MarkovKernel(Written):
    """The weight `K(a|b)` of an element `a` in the coarser element `b`, as a formula read at `a`."""

    weight: Expression

    def __init__(self, weight: object, **data: Any) -> None:
        value = as_expression(weight, "a kernel weight")
        if value.is_condition:
            raise SpecError(
                f"a kernel weight cannot be the condition {value}", required="a number", remedy=f"where({value}, 1, 0)"
            )
        super().__init__(weight=value, **{"written": f"MarkovKernel({value})", **data})  # type: ignore[call-arg]


@constructor(MarkovKernel, examples=("uniform()",))
def uniform(share: Expression | None = None) -> MarkovKernel:
    """Gives every element of a fibre the same weight, `1 / count(source, over=target)`.

    `share`: if several strata lie directly over the target, the part of this kernel. All shares sum to 1.
    """
    return MarkovKernel((1 if share is None else share) / count(SOURCE, over=TARGET))


@constructor(MarkovKernel, examples=("proportional(measure)",))
def proportional(measure: Expression, share: Expression | None = None) -> MarkovKernel:
    """Gives weights proportional to a measure, `m(a)/m(b)`: a count, or the total of an attribute.

    `share`: as in `uniform`.
    """
    weight = at(measure, SOURCE) / at(measure, TARGET)
    return MarkovKernel(weight if share is None else share * weight)


class Fibration(Declared):
    """A map that sends every element of `source` to the element of `target` that it belongs to, with a kernel."""

    source: Stratum
    target: Stratum
    kernel: MarkovKernel

    def __init__(self, source: Stratum, target: Stratum, kernel: MarkovKernel | None = None) -> None:
        ends = {"source": (source, Stratum), "target": (target, Stratum), "kernel": (kernel, MarkovKernel)}
        for end, (value, kind) in ends.items():
            if not isinstance(value, kind):
                remedy = "write uniform(), proportional(m) or MarkovKernel(weight)"
                if kind is Stratum:
                    remedy = declare("strata", value, end)
                elif value is None:
                    raise SpecError(
                        f"the fibration {source} → {target} has no kernel", required="a MarkovKernel", remedy=remedy
                    )
                raise SpecError(f"a fibration's {end} is {value!r}", required=an(kind.__name__), remedy=remedy)
        super().__init__(source=source, target=target, kernel=kernel)  # type: ignore[call-arg]

    @property
    def name(self) -> str:
        return f"{self.source.name} → {self.target.name}"

    @cached_property
    def weight(self) -> Expression:
        """`K(a|b)` read at a source element. Every count and total names its stratum."""
        return resolve_places(at(self.kernel.weight, SOURCE), lambda p: self.source if p == SOURCE else self.target)

    def __repr__(self) -> str:
        return f"Fibration({self.source!r}, {self.target!r}, kernel={self.kernel!r})"
