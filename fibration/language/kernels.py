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
    """The weight `K(a|b)` of a source element `a` over a target element `b`, as an expression read at `a`."""

    weight: Expression

    def __init__(self, weight: object, **data: Any) -> None:
        value = as_expression(weight, "a kernel weight")
        if value.is_condition:
            raise SpecError(f"a kernel weight cannot be the condition {value}", required="a number")
        super().__init__(weight=value, **{"written": f"MarkovKernel({value})", **data})  # type: ignore[call-arg]


@constructor(MarkovKernel, examples=("uniform()",))
def uniform(share: Expression | None = None) -> MarkovKernel:
    """The same weight for every element of the fibre: `1 / count(source, over=target)`.

    If several strata lie over the target, their kernels sum to 1 together. `share` is the part of this kernel, and all
    shares sum to 1.
    """
    return MarkovKernel((1 if share is None else share) / count(SOURCE, over=TARGET))


@constructor(MarkovKernel, examples=("proportional(measure)",))
def proportional(measure: Expression, share: Expression | None = None) -> MarkovKernel:
    """Weights proportional to an additive measure, a count or the total of an attribute: `m(a)/m(b)`.

    `share`: as in `uniform`.
    """
    weight = at(measure, SOURCE) / at(measure, TARGET)
    return MarkovKernel(weight if share is None else share * weight)


class Fibration(Declared):
    """`π: source → target` and its reflecting kernel: every source element lies over exactly one target element."""

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
