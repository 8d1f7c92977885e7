"""Which declared loss a function is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, Floats, shrunk
from fibration.auditing.battery import around, ladder, off_policy, on_policy
from fibration.auditing.battery import fitted as fitted_batch
from fibration.auditing.fit import EXACT, Fit, Target, Targets, differs
from fibration.auditing.function import Found, Function
from fibration.auditing.numbers import OTHERS, bends, written
from fibration.auditing.reference import Reference, lacks
from fibration.auditing.sharpen import Range, sharpen
from fibration.errors import AuditError
from fibration.language.loading import load, shipped

SAME_VALUE = 1e-5
COMMON = ("ppo", "dapo", "grpo", "gspo", "reinforce", "cispo")  # named first among equals
NUMBERS = 120  # at which parameters are tried: those of the bends nearest to ratio 1
MOST = 6  # losses whose parameters are searched along gradients and on grids: those that come nearest without


@dataclass(frozen=True)
class Likeness:
    """A declared loss beside the function.

    `differing`: on how many of `batches` a coefficient differs. `is_far`: whether more than half of the tokens differ,
    by more than a factor of their batch. `same_value`: whether the loss has the same value on
    all of them. `unseen`: parameters that decide nothing on these batches, such as a bound beyond all ratios: their
    values are not the function's. `between`: parameters that are known to lie in a range, and no better, such as a
    quantile's level. `batch`: the smallest found on which they differ; None if there is none.
    """

    reference: Reference
    parameters: Mapping[str, Any]
    batches: int
    differing: int
    same_value: bool
    is_far: bool = False
    unseen: tuple[str, ...] = ()
    between: Mapping[str, Range] = field(default_factory=dict)
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
        others = OTHERS if function.reads_rewards else 0

        def targets(*batches: Batch) -> list[Target]:
            return [t for b in batches if (t := self._target(b)) is not None]

        self.fresh = Targets.of(targets(*on_policy()))
        fitted = targets(ladder(others=others), fitted_batch())
        near: list[float] = []
        for mismatch in (False, True) if "rollout_log_probs" in function.roles else (False,):
            found = {x for a in (1.0, -1.0) for x in bends(function.evaluate, a, mismatch, function.reads_rewards)}
            places = sorted(found, key=abs)
            near += [v for x in places for v in written(x)][:NUMBERS]
            fitted += targets(ladder(mismatch, others)) if mismatch else []
            fitted += targets(around(places, mismatch, others)) if places else []
        self.numbers = list(dict.fromkeys(near))
        self.fitted = Targets.of(fitted)
        self.targets = Targets.of([*fitted, *targets(*on_policy(), *off_policy())])

    def _target(self, batch: Batch) -> Target | None:
        """What the function makes of a batch; None if a group of one row is an error, or NaN."""
        if not self._is_alone(batch):
            return Target(batch, self.function.evaluate(batch))
        try:
            found = self.function.evaluate(batch)
        except AuditError:
            return None
        return Target(batch, found) if found.is_finite else None

    def _is_alone(self, batch: Batch) -> bool:
        """Whether a reward has no other to be compared with: trainers have no such batches."""
        groups = [r.group for r in batch.rows] if "group_ids" in self.function.roles else [0] * len(batch.rows)
        return self.function.reads_rewards and any(groups.count(g) == 1 for g in groups)

    def beside(self, references: Sequence[Reference], fixed: Mapping[str, Any]) -> list[Likeness]:
        """As `tried`, with the smallest batch on which each differs."""
        return [self.with_batch(x) for x in self.tried(references, fixed)]

    def tried(self, references: Sequence[Reference], fixed: Mapping[str, Any], may_be: bool = True) -> list[Likeness]:
        """Losses with the parameters that bring them nearest to the function: those that are the same, or else all.

        `may_be`: whether one of them may be the function. Otherwise the nearest is good enough.
        """
        fits = [Fit(r, self.fitted, fixed) for r in references]
        same = [fit for fit in fits if fit.among(self.numbers) and fit.widen(self.targets)]
        found = [self._judged(fit) for fit in same]
        if any(x.is_same for x in found):
            return found
        for fit in fits if may_be else ():
            if fit not in same:
                fit.along_gradients(set(), dict(fit.values))
        rest = sorted((fit for fit in fits if fit not in same), key=lambda fit: fit.least[1:])[:MOST]
        for fit in rest:
            fit.widen(self.targets)
            if may_be:
                fit.run(self.numbers)
        if may_be and not any(fit.is_exact for fit in rest):
            for fit in rest:
                fit.along_bounds()
        return [*found, *(self._judged(fit) for fit in rest)]

    def _judged(self, fit: Fit) -> Likeness:
        between = sharpen(fit, self.function) if fit.is_exact and len(fit.targets.values) else {}
        reference, parameters = fit.reference, fit.parameters(fit.values)
        taken = self.targets.subset(reference.taken(self.targets.joined))
        if not len(taken.values):
            return Likeness(reference, parameters, 0, 0, True)
        coefficients, values = (v[0] for v in reference.evaluate_each(taken.joined, [parameters]))
        error = taken.joined.largest(taken.differ(coefficients))
        apart = [b for b, e in zip(taken.joined.batches, error, strict=True) if e > EXACT]
        close = np.abs(values - taken.values) <= SAME_VALUE * (1 + np.abs(values))
        same_value = bool(close[error <= EXACT].all())
        start = min(apart, key=lambda b: b.tokens, default=None)
        few = len(taken.coefficients) / 2
        is_far = bool((taken.differ(coefficients) > EXACT).sum() > few < taken.differ_in_shape(coefficients[None])[0])
        return Likeness(reference, parameters, len(error), len(apart), same_value, is_far, fit.unseen(), between, start)

    def with_batch(self, x: Likeness) -> Likeness:
        """With the smallest batch found on which it differs, if it does."""
        if x.batch is None:
            return x
        return replace(x, batch=shrunk(x.batch, lambda b: self._differs(x.reference, x.parameters, b)))

    def _differs(self, reference: Reference, parameters: Mapping[str, Any], batch: Batch) -> bool:
        try:
            found = self.function.evaluate(batch)
        except AuditError:
            return False
        other = reference.evaluate(batch, parameters)
        return other is not None and found.is_finite and bool(differs(found, other).max(initial=0) > 100 * EXACT)

    def fits_on_policy(self, reference: Reference) -> bool:
        """Whether a loss has the function's coefficients on fresh batches, up to one factor for all.

        True if its parameters decide more than a factor there.
        """
        fresh = self.fresh.subset(reference.taken(self.fresh.joined))
        if reference.lacks_a_number or not len(fresh.values):
            return True
        fit = Fit(reference, fresh, {})
        moved = [{**fit.values, slot: v * k} for slot, v in fit.values.items() for k in (0.5, 0.9, 1.1, 2.0)]
        other, *others = fit.coefficients([fit.values, *moved])
        others = [o for o in others if np.isfinite(o).all()]  # the rest is out of bounds
        if not (np.isfinite(other).all() and other.any()):
            return True
        if not all(_is_multiple(o, other, fresh) for o in others):
            return True
        return _is_multiple(fresh.coefficients, other, fresh)


def _is_multiple(one: Floats, other: Floats, of: Targets) -> bool:
    """Whether coefficients of batches are others times one factor for all."""
    k = float(one @ other / (other @ other))
    size = np.maximum(of.joined.largest(np.abs(one)), abs(k) * of.joined.largest(np.abs(other)))
    return bool((np.abs(one - k * other) <= 1e-6 * size[of.joined.batch_of_token]).all())


def identify(compared: Compared, names: Sequence[str] | None = None) -> list[Likeness]:
    """The shipped losses that a function is, with fitted parameters; or the nearest one alone, if it is none."""
    candidates = [
        Reference.of(h, compared.function)
        for n in names or sorted(shipped())
        if not lacks(h := load(n), compared.function)
    ]
    near = [r for r in candidates if compared.fits_on_policy(r)]
    found = compared.tried(near, {})
    same = [x for x in found if x.is_same] or [x for x in found if x.has_same_gradient]
    if not same:
        found += compared.tried([r for r in candidates if r not in near], {}, may_be=False)
    if same:
        return sorted(
            same, key=lambda x: (x.is_strained, len(x.unseen), len(x.parameters), x.name not in COMMON, x.name)
        )
    return [compared.with_batch(x) for x in sorted(found, key=lambda x: (x.is_far, x.differing, len(x.parameters)))[:1]]
