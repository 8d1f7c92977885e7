"""Which declared loss a function is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, shrunk
from fibration.auditing.battery import around, fitted, ladder, off_policy, on_policy
from fibration.auditing.fit import EXACT, Fit, Target, differs
from fibration.auditing.function import Found, Function
from fibration.auditing.numbers import bends, written
from fibration.auditing.reference import Reference, lacks
from fibration.errors import AuditError
from fibration.language.loading import load, shipped

SAME_VALUE = 1e-5
COMMON = ("ppo", "dapo", "grpo", "gspo", "reinforce", "cispo")  # named first among equals
NUMBERS = 30  # at which parameters are tried: those of the bends nearest to ratio 1
MOST = 6  # losses whose parameters are searched along gradients: those that come nearest without


@dataclass(frozen=True)
class Likeness:
    """A declared loss beside the function.

    `differing`: on how many of `batches` a coefficient differs. `same_value`: whether the loss has the same value on
    all of them. `unseen`: parameters that decide nothing on these batches, such as a bound beyond all ratios: their
    values are not the function's. `batch`: the smallest found on which they differ; None if there is none.
    """

    reference: Reference
    parameters: Mapping[str, Any]
    batches: int
    differing: int
    same_value: bool
    unseen: tuple[str, ...] = ()
    batch: Batch | None = None

    @property
    def name(self) -> str:
        return self.reference.hierarchy.name

    @property
    def has_same_gradient(self) -> bool:
        return bool(self.batches) and not self.differing

    @property
    def is_same(self) -> bool:
        return self.has_same_gradient and self.same_value

    @property
    def is_strained(self) -> bool:
        """Whether a parameter is so small or large that it switches part of the loss off."""
        numbers = [v for p in self.parameters.values() for v in (p.values() if isinstance(p, Mapping) else [p])]
        return any(not 1e-6 < abs(v) < 1e6 for v in numbers)

    def other(self, batch: Batch) -> Found | None:
        return self.reference.evaluate(batch, self.parameters)


class Compared:
    """A function on the battery, computed once, and its numbers."""

    def __init__(self, function: Function) -> None:
        self.function = function

        def targets(*batches: Batch) -> list[Target]:
            return [Target(b, function.evaluate(b)) for b in batches]

        self.fresh = targets(*on_policy())
        self.fitted = targets(ladder(), fitted())
        near: list[float] = []
        for mismatch in (False, True) if "rollout_log_probs" in function.roles else (False,):
            places = sorted({x for sign in (1.0, -1.0) for x in bends(function.evaluate, sign, mismatch)}, key=abs)
            near += [v for x in places for v in written(x)][:NUMBERS]
            self.fitted += targets(ladder(mismatch)) if mismatch else []
            self.fitted += targets(around(places, mismatch)) if places else []
        self.numbers = list(dict.fromkeys(near))
        self.targets = [*self.fitted, *self.fresh, *targets(*off_policy())]

    def beside(self, references: Sequence[Reference], fixed: Mapping[str, Any]) -> list[Likeness]:
        """Losses with the parameters that bring them nearest to the function: those that are the same, or else all."""
        fits = [Fit(r, [t for t in self.fitted if r.takes(t.batch)], fixed) for r in references]
        declared = [dict(fit.values) for fit in fits]
        same = [fit for fit in fits if fit.among(self.numbers)]
        found = [self._judged(fit) for fit in same]
        if any(x.is_same for x in found):
            return found
        rest = [(fit, values) for fit, values in zip(fits, declared, strict=True) if fit not in same]
        rest = sorted(rest, key=lambda x: x[0].least)[:MOST]
        for fit, values in rest:
            fit.values = values
            fit.run(self.numbers)
        return [*found, *(self._judged(fit) for fit, _ in rest)]

    def _judged(self, fit: Fit) -> Likeness:
        reference, parameters = fit.reference, fit.parameters(fit.values)
        apart, same_value = [], True
        taken = [t for t in self.targets if reference.takes(t.batch)]
        for t in taken:
            other = reference.evaluate(t.batch, parameters)
            if differs(t.found, other).max(initial=0) > EXACT:
                apart.append(t.batch)
            elif other is not None:
                same_value &= abs(other.value - t.found.value) <= SAME_VALUE * (1 + abs(other.value))
        likeness = Likeness(reference, parameters, len(taken), len(apart), same_value, fit.unseen())
        if not apart:
            return likeness
        start = min(apart, key=lambda b: b.tokens)
        smallest = shrunk(start, lambda b: self._differs(reference, parameters, b))
        return replace(likeness, batch=smallest)

    def _differs(self, reference: Reference, parameters: Mapping[str, Any], batch: Batch) -> bool:
        try:
            found = self.function.evaluate(batch)
        except AuditError:
            return False
        other = reference.evaluate(batch, parameters)
        return other is not None and found.is_finite and bool(differs(found, other).max(initial=0) > 100 * EXACT)

    def fits_on_policy(self, reference: Reference) -> bool:
        """Whether a loss has the function's coefficients on fresh batches, up to one factor for all."""
        factors = []
        for t in self.fresh:
            other = reference.evaluate(t.batch)
            if other is None:
                if reference.takes(t.batch):
                    return True  # a parameter without a default decides
                continue
            size = float(np.abs(other.coefficients).max(initial=0))
            if not size or not np.isfinite(size):
                return True  # its parameters decide
            k = float(t.found.coefficients @ other.coefficients / (other.coefficients @ other.coefficients))
            if np.abs(t.found.coefficients - k * other.coefficients).max() > 1e-6 * abs(k) * size:
                return False
            factors.append(k)
        return not factors or max(factors) - min(factors) <= 1e-6 * max(map(abs, factors))


def identify(compared: Compared, names: Sequence[str] | None = None) -> list[Likeness]:
    """The shipped losses that a function is, with fitted parameters; or the nearest one alone, if it is none."""
    candidates = [
        Reference.of(h, compared.function)
        for n in names or sorted(shipped())
        if not lacks(h := load(n), compared.function)
    ]
    near = [r for r in candidates if compared.fits_on_policy(r)]
    found = compared.beside(near or candidates, {})
    same = [x for x in found if x.is_same] or [x for x in found if x.has_same_gradient]
    if same:
        return sorted(
            same, key=lambda x: (x.is_strained, len(x.unseen), len(x.parameters), x.name not in COMMON, x.name)
        )
    return sorted(found, key=lambda x: (x.differing, len(x.parameters)))[:1]
