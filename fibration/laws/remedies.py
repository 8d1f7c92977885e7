"""Fixes: what to write, and the hierarchy that has it. `Law` offers a fix only if the law holds of that one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from fibration.errors import FibrationError
from fibration.language.atoms import Attribute, Parameter, Stratum, Total
from fibration.language.expressions import Expression
from fibration.language.fixed import with_declared
from fibration.language.gates import Gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.statistics import atoms_within
from fibration.language.strata import Fibration, MarkovKernel
from fibration.language.traversal import atoms

MOST = 4  # parameters and attributes whose bounds are tried
Holds = Callable[[Hierarchy], bool]


@dataclass(frozen=True)
class Fix:
    """One thing to write. `mended` returns the hierarchy with it, or raises FibrationError if that cannot be."""

    words: str
    mended: Callable[[], Hierarchy]


class Otherwise(str):
    """Advice for the case that no fix holds."""


Offers = tuple[str | Fix, ...]  # fixes, and advice that names nothing to try


def gate_to_write(h: Hierarchy, stratum: Stratum, made: Gate, also: str = "") -> Fix:
    """The fix that writes a gate. `also`: what else to say of it."""
    return Fix(f"write {stratum}: {made} in gates{also}", lambda: h.replace(gates={**h.gates, stratum: made}))


def kernels(h: Hierarchy, words: str, made: Mapping[Fibration, MarkovKernel]) -> Fix:
    """The fix that gives fibrations other kernels."""

    def mended() -> Hierarchy:
        return h.replace(fibrations=[Fibration(f.source, f.target, made.get(f, f.kernel)) for f in h.fibrations])

    return Fix(words, mended)


def bounded(h: Hierarchy, formulas: Iterable[Expression], holds: Holds) -> Offers:
    """The declaration of one parameter or attribute with which a claim holds; none if none is found.

    `formulas`: those whose parameters and attributes are tried, in the order in which they are read.
    """
    read = [a for formula in formulas for a in (*atoms(formula), *atoms_within(formula, Total))]
    named = dict.fromkeys(a.attribute if isinstance(a, Total) else a for a in read)
    for given in islice((a for a in named if isinstance(a, (Parameter, Attribute))), MOST):
        for other, bound in _others(given):
            try:
                changed = with_declared(h, {given: other})
                if holds(changed):
                    return (Fix(f"declare {_text(other, bound)}", lambda made=changed: made),)  # type: ignore[misc]
            except FibrationError:  # this hierarchy cannot have it
                continue
    return ()


def _text(declared: Parameter | Attribute, bound: Mapping[str, float]) -> str:
    """The declaration; a new bound is written even where it is the usual one, such as lower=0."""
    written = declared.declaration()
    for name, value in bound.items():
        new = f", {name}={value:g}"
        written = written.replace(f"{new}.0", new) if f"{new}.0" in written else f"{written[:-1]}{new})"
    return written


def _others(given: Parameter | Attribute) -> Iterator[tuple[Parameter | Attribute, Mapping[str, float]]]:
    """Yields the same parameter or attribute with one tighter bound. Bounds that exclude its default are left out."""
    if isinstance(given, Attribute):
        if not given.positive and (given.upper is None or given.upper > 0):
            yield Attribute(given.name, on=given.on, upper=given.upper), {}
        return
    low, high = given.lower, given.upper
    tried = [{"upper": 1.0}] if high is None or high > 1 else []
    tried += [{"lower": 0.0}] if low is None or low < 0 else []
    tried += [{"lower": 1.0}] if (low is None or low < 1) and (high is None or high > 1) else []
    for bound in tried:
        bounds = {"lower": low, "upper": high, **bound}
        try:
            made = Parameter(given.name, given.default, per_channel=given.per_channel, on=given.on, **bounds)
        except FibrationError:
            continue
        yield made, bound
