"""A step's gradient beside that of the declared loss: parameter by parameter, micro-batch by micro-batch, in words."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fibration.auditing.batch import Floats
from fibration.auditing.properties import MARK, Finding
from fibration.auditing.recorded import Recorded
from fibration.errors import AuditError, listed

# How far a parameter's gradient may be from a multiple of the declared one, relative, by the coarsest dtype.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}
ROUNDING = 1e-2  # times the tolerance: a parameter's share of the whole gradient that may be rounding alone
EXACT = 0.3  # times the tolerance: how far the factor of all parameters together may be from 1
FEW = 2  # names in a message
LEFT_OUT = 0.05  # of the largest weight: a micro-batch with less is not in a sum
LOSS_SCALE = 256  # the smallest factor that is read as the scale of a GradScaler
ALONE = "the gradient is that of this rank's rows alone: ranks are not averaged (no_sync(), or a hook that never fires)"
OTHER = (
    "other rows, labels, advantages, masks or old log-probs than the declared loss has, or log-probs of other weights"
)


@dataclass(frozen=True)
class Declared:
    """The gradients of the declared loss: of the whole batch; of its micro-batches, sampled; of this rank's rows."""

    gradients: Mapping[str, Tensor | None]
    parts: Sequence[Mapping[str, Tensor]]
    own: Mapping[str, Tensor | None]


@dataclass(frozen=True)
class StepAudit:
    """What was found about one optimizer step. It prints as a report.

    `factor`: by what the declared gradient is multiplied in the step, before clipping; None if that is no single
    number. `factors`: the same per parameter; 0 where the step has no gradient, NaN where it has another direction or
    NaN. Parameters whose gradient is rounding alone are left out. `passes`: the number of backward passes seen.
    `read`: which gradient was read.
    """

    factor: float | None
    factors: Mapping[str, float]
    findings: tuple[Finding, ...]
    passes: int
    read: str

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == "fails")

    @property
    def ok(self) -> bool:
        """Whether the step has the gradient of the declared loss."""
        return not self.failures

    def raise_for_status(self) -> None:
        """Raises AuditError if the step has another gradient than the declared loss."""
        if not self.ok:
            raise AuditError(str(self))

    def __str__(self) -> str:
        lines = [f"  {MARK[f.status]} {f.name:<13} {f.text}" for f in self.findings]
        return "\n".join(["one optimizer step beside the declared loss", "", *lines, "", f"  {self.read}"])


def beside(
    recorded: Recorded,
    declared: Declared,
    *,
    group: Any = None,
    max_grad_norm: float | None = None,
    tolerance: float | None = None,
    read: str = "",
    counts: tuple[int, int] | None = None,
) -> StepAudit:
    """The gradient of a step beside the declared one. Arguments as in `audit_step`; `read`: when it was read.

    `counts`: of micro-batches and ranks, where backward passes cannot be seen and gradients are averaged already.
    """
    if any(g is not None and not bool(g.isfinite().all()) for g in declared.gradients.values()):
        raise AuditError(
            "the declared loss has a gradient that is NaN or infinite",
            required="finite gradients",
            remedy="is a log-prob, a ratio or an advantage of the batch not finite?",
        )
    dtypes = [recorded.dtype, *(p.dtype for p in recorded.named.values())]
    close = max(CLOSE[t] for t in dtypes if t in CLOSE) if tolerance is None else tolerance
    compared = Comparison(recorded.found, declared.gradients, close)
    ranks = 1 if group is None else dist.get_world_size(group)
    found, passes, wanted, parts = _sampled(recorded, declared, group)
    whole = _fitted(found, passes.sum(0, keepdims=True), close)
    scaled = None if whole is None else float(whole[0])
    norm = _clipped_to(recorded.found, scaled, max_grad_norm, close)
    clip = scaled if norm is not None and scaled is not None else 1.0
    findings = [*_unlike(compared, recorded)]
    told, why = _multiple(compared, clip, *(counts or (len(passes), ranks))), None
    if told.status == "fails":
        own = Comparison(recorded.found, declared.own, close) if ranks > 1 else None
        if own is not None and own.alike and not own.turned and not own.missing:  # that of the rank's own rows
            why = Finding("ranks", "fails", ALONE)
        elif text := _of_passes(found, passes, wanted, close) or _of_parts(found, parts, close):
            why = Finding("accumulation", "fails", text)
    if why is None and told.name == "direction":
        told = replace(told, text=f"{told.text}: {OTHER}")
    findings += [told] if why is None else [why, told]
    if norm is not None:
        findings.append(Finding("clipping", "note", f"clipped to the norm {norm:g}: × {clip:.4g}"))
    elif scaled is not None and abs(scaled - 1) > close:
        text = f"the sum of the backward passes is multiplied by {_ratio(scaled, close)} before the optimizer's step"
        findings.append(Finding("scaling", "note", text))
    factor = None if compared.factor is None else compared.factor / clip
    factors = {name: f / clip for name, f in compared.factors().items()}
    return StepAudit(factor, factors, tuple(findings), len(recorded.passes), _read(recorded, read))


def _sampled(recorded: Recorded, declared: Declared, group: Any) -> tuple[Floats, Floats, Floats, Floats]:
    """Sampled elements: of the step's gradient, of its backward passes, of the declared gradient and its parts."""
    names = list(recorded.named)

    def vector(of: Mapping[str, Tensor]) -> Floats:
        each = [of[n] if n in of else torch.zeros_like(recorded.sample(n, recorded.named[n])) for n in names]
        return np.asarray(torch.cat(each).numpy())

    def whole(gradients: Mapping[str, Tensor | None]) -> Floats:
        return vector({n: recorded.sample(n, g) for n, g in gradients.items() if g is not None})

    def rows(of: Sequence[Mapping[str, Tensor]]) -> Floats:
        return np.stack([vector(one) for one in of]) if of else np.zeros((0, len(found)))

    found, wanted = np.nan_to_num(whole(recorded.found)), whole(declared.gradients)
    return found, np.nan_to_num(_averaged(rows(recorded.passes), group)), wanted, rows(declared.parts)


def _averaged(passes: Floats, group: Any) -> Floats:
    """The mean over ranks of what each backward pass adds, as DDP makes it."""
    if group is None:
        return passes
    ranks = dist.get_world_size(group)
    counts: list[Any] = [None] * ranks
    dist.all_gather_object(counts, len(passes), group=group)
    if not max(counts):  # sharded parameters, of which each rank has others
        return passes
    padded = np.zeros((max(counts), passes.shape[1]))
    padded[: len(passes)] = passes
    given: list[Any] = [None] * ranks
    dist.all_gather_object(given, padded, group=group)
    return np.asarray(np.mean(given, axis=0))


def _unlike(compared: Comparison, recorded: Recorded) -> Iterable[Finding]:
    """Parameters without a finite gradient, or with one that is not declared, and weights that move in between."""
    if compared.broken:
        yield Finding("finite", "fails", f"the gradient of {_names(compared.broken)} is NaN or infinite")
    if compared.missing:
        none = not any(p.there for p in compared.missing)
        text = f"{_names(compared.missing)} {'has' if len(compared.missing) == 1 else 'have'} no gradient"
        why = "the declared loss gives one: is it detached, frozen in the step, or a copy, or does a hook not fire?"
        yield Finding("missing", "fails", f"{text}{'' if none else ' but 0'}, and {why}")
    if compared.extra:
        text = f"{_names(compared.extra)} gets a gradient, and the declared loss gives none"
        yield Finding("extra", "fails", f"{text}: does the step add a term of its own?")
    if recorded.unstepped:
        text = (
            f"no optimizer has {_few(recorded.unstepped)}, so that it never moves: add it to the optimizer's parameters"
        )
        yield Finding("optimizer", "fails", text)
    if recorded.steps > 1:
        text = f"an optimizer begins {recorded.steps} steps, and the first one's gradient is read: weights move between"
        yield Finding("optimizer", "fails", f"{text} micro-batches. Or let the step end with the first of them")


def _multiple(compared: Comparison, clip: float, passes: int, ranks: int) -> Finding:
    """By what the declared gradient is multiplied."""
    close, groups = compared.tolerance, compared.groups()
    if compared.turned:
        many = f"{_names(compared.turned)} of {len(compared.pairs)} parameters"
        return Finding(
            "direction", "fails", f"another direction in {many}; the cosine over all is {compared.cosine:.6g}"
        )
    if not groups:
        return Finding("factor", "fails", "no parameter has a gradient that can be compared")
    told = [(f / clip, members) for f, members in groups]
    if len(told) > 1:
        by = listed(f"{_ratio(f, close)} in {_names(members)}" for f, members in told[:FEW])
        return Finding("factor", "fails", f"the gradient is not one multiple of the declared one: × {by}")
    k = told[0][0]
    if abs(k - 1) <= EXACT * close:
        return Finding("factor", "holds", "the gradient is that of the declared loss")
    text = f"the gradient is {_ratio(k, close)} times the declared one{_cause(k, passes, ranks, close)}"
    return Finding("factor", "fails", text)


def _cause(k: float, passes: int, ranks: int, close: float) -> str:
    """What the factor may come of."""
    steps, devices = f"the accumulation steps, {passes}", f"the ranks, {ranks}"
    counts = {steps: passes, devices: ranks}
    counts |= {f"{steps}, and {devices}": passes * ranks} if passes > 1 < ranks else {}
    for of, text in (
        (operator.truediv, "it is not divided by {}"),
        (operator.mul, "it is divided by {}, once too often"),
    ):
        if said := [name for name, n in counts.items() if n > 1 and abs(of(k, n) - 1) <= close]:
            return f": {text.format(' or '.join(said))}"
    if abs(k + 1) <= close:
        return ": the step follows J, and the loss is −J"
    if k >= LOSS_SCALE and abs(k / 2 ** round(math.log2(k)) - 1) <= close:
        return ": is that the scale of a GradScaler? let the step end with scaler.unscale_(optimizer)"
    return ": look for what the loss is divided by: tokens, rows, the padded width, accumulation steps, ranks"


def _clipped_to(
    found: Mapping[str, Tensor | None], scaled: float | None, max_grad_norm: float | None, close: float
) -> float | None:
    """The norm to which the gradient is clipped; None if it is not."""
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in found.values() if g is not None))
    if scaled is None or not norm or not math.isfinite(norm) or scaled >= 1 - close:
        return None
    near = max(2e-4, 0.1 * close)  # clip_grad_norm_ adds 1e-6 to the norm
    if max_grad_norm is not None:
        return max_grad_norm if abs(norm / max_grad_norm - 1) <= near else None
    simple = float(f"{norm:.0e}")
    return simple if abs(norm / simple - 1) <= near else None


def _ratio(k: float, close: float) -> str:
    simple = Fraction(k).limit_denominator(64) if math.isfinite(k) else Fraction(0)
    return str(simple) if simple and abs(simple / Fraction(k) - 1) <= min(close, 1e-3) else f"{k:.6g}"


def _names(pairs: Sequence[Pair]) -> str:
    return _few([p.name for p in pairs])


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:FEW])} and {len(names) - FEW} more" if len(names) > FEW else listed(names)


def _read(recorded: Recorded, when: str) -> str:
    seen = len(recorded.passes)
    passes = f"{seen} backward pass{'' if seen == 1 else 'es'}" if seen else "backward passes that were not seen"
    began = "as an optimizer began its step: after clipping and unscaling"
    return f"{passes}. The gradient was read {when or (began if recorded.steps else 'when the step returned')}."


# ------------------------------------------------------------ parameters


@dataclass(frozen=True)
class Pair:
    """A parameter's gradient in the step beside the declared one.

    `size`, `declared`: the squared norms. `both`: their product. All in float64. `there`: whether the step has a
    gradient. `finite`: whether it has no NaN or infinity.
    """

    name: str
    size: float
    declared: float
    both: float
    there: bool
    finite: bool

    @classmethod
    def of(cls, name: str, found: Tensor | None, declared: Tensor | None) -> Pair:
        one, two = (None if g is None else g.to_dense() if g.is_sparse else g for g in (found, declared))

        def product(a: Tensor | None, b: Tensor | None) -> float:
            return 0.0 if a is None or b is None else float((a.double() * b.double()).sum())

        finite = one is None or bool(one.isfinite().all())  # the square of a finite number may be infinite
        return cls(name, product(one, one), product(two, two), product(one, two), found is not None, finite)

    @property
    def factor(self) -> float:
        return self.both / self.declared if self.declared else math.nan

    @property
    def rest(self) -> float:
        """How far the step's gradient is from a multiple of the declared one, relative."""
        if not self.size or not self.declared:
            return 1.0
        return math.sqrt(max(0.0, 1 - self.both * self.both / (self.size * self.declared)))


class Comparison:
    """All parameters, sorted.

    `broken`: the step has NaN. `missing`: it has no gradient, and the declared loss has one. `extra`: the other way
    round. `turned`: both have one, of different directions. `alike`: they have one direction. Parameters whose
    gradients are as small as rounding are in none of these.
    """

    def __init__(
        self, found: Mapping[str, Tensor | None], declared: Mapping[str, Tensor | None], tolerance: float
    ) -> None:
        self.tolerance = tolerance
        self.pairs = [Pair.of(name, found[name], declared[name]) for name in found]
        self.finite = [p for p in self.pairs if p.finite]
        least = (ROUNDING * tolerance) ** 2
        owed, made = least * sum(p.declared for p in self.finite), least * sum(p.size for p in self.finite)
        self.broken = [p for p in self.pairs if not p.finite]
        self.missing = [p for p in self.finite if p.declared > owed and not p.size]
        self.extra = [p for p in self.finite if p.declared <= owed and p.size > made]
        both = [p for p in self.finite if p.declared > owed and p.size]
        self.alike = [p for p in both if p.rest <= tolerance]
        self.turned = [p for p in both if p.rest > tolerance]

    @property
    def cosine(self) -> float:
        """Of the angle between both gradients, over all finite parameters."""
        size, declared, both = (sum(getattr(p, k) for p in self.finite) for k in ("size", "declared", "both"))
        return both / math.sqrt(size * declared) if size and declared else math.nan

    @property
    def factor(self) -> float | None:
        """By what the declared gradient is multiplied in the step; None if that is no single number."""
        groups = self.groups()
        return groups[0][0] if len(groups) == 1 and not self.turned else None

    def groups(self) -> list[tuple[float, list[Pair]]]:
        """The parameters that are alike, by their factors; the largest group first."""
        found: list[list[Pair]] = []
        for p in sorted(self.alike, key=lambda p: p.factor):
            if found and abs(p.factor - found[-1][0].factor) <= 2 * self.tolerance * abs(p.factor):
                found[-1].append(p)
            else:
                found.append([p])
        each = ((sum(p.both for p in g) / sum(p.declared for p in g), g) for g in found)
        return sorted(each, key=lambda x: -len(x[1]))

    def factors(self) -> dict[str, float]:
        """By parameter: 0 where it is missing, NaN where it has another direction or is broken."""
        told = {p.name: p.factor for p in self.alike} | {p.name: 0.0 for p in self.missing}
        return told | {p.name: math.nan for p in (*self.turned, *self.broken)}


# ------------------------------------------------------------ micro-batches


def _fitted(target: Floats, rows: Floats, tolerance: float) -> Floats | None:
    """The numbers by which the rows `[k, n]` have to be multiplied to add up to the target `[n]`; None if there are
    none. NaN for rows that are as small as rounding, of which nothing can be said.
    """
    scales = np.linalg.norm(rows, axis=1)
    used = scales > min(10 * tolerance, 0.3) * scales.max(initial=0)
    if not target.any() or not used.any():
        return None
    found, unit = np.full(len(rows), np.nan), rows[used] / scales[used, None]
    found[used] = np.linalg.lstsq(unit.T, target, rcond=1e-8)[0] / scales[used]
    rest = np.linalg.norm(found[used] @ rows[used] - target)
    return found if rest <= tolerance * np.linalg.norm(target) else None


# What happened to micro-batches, where the gradient is not that of the declared loss. All are sampled elements: `found`
# and `declared` `[n]` of whole gradients, `passes` `[k, n]` of backward passes, `parts` `[j, n]` of micro-batches.


def _of_passes(found: Floats, passes: Floats, declared: Floats, close: float) -> str:
    """Backward passes that are not in the gradient, that are of one micro-batch, or that count differently."""
    k = len(passes)
    if k < 2:
        return ""
    if (kept := _fitted(found, passes, close)) is not None:
        gone = np.abs(kept) < LEFT_OUT * np.nanmax(np.abs(kept))
        if gone.any() and (gone | np.isnan(kept))[:-1].all() and not gone[-1]:
            text = f"the gradient is that of the last of {k} backward passes alone: it is overwritten"
            return f"{text}, as by zero_grad() between them"
        if gone.any():
            return f"{_numbered('backward pass', gone)} of {k} {_are(gone)} not in the gradient"
    for i, j in itertools.combinations(range(k), 2):
        apart = np.linalg.norm(passes[i] - passes[j])
        if passes[i].any() and apart <= ROUNDING * close * np.linalg.norm(passes[i]):
            return f"backward passes {i + 1} and {j + 1} have the same gradient: one micro-batch comes twice"
    owed = _fitted(declared, passes, close)
    if owed is None or _spread(owed) <= 3 * close * np.nanmax(np.abs(owed)):
        return ""
    by = listed(f"{w:.4g}" for w in owed)
    return (
        f"the backward passes have to be multiplied by {by} to add up to the declared loss: each has a normaliser "
        "of its own, such as its number of tokens"
    )


def _of_parts(found: Floats, parts: Floats, close: float) -> str:
    """Micro-batches of the declared loss that are not in the step, or too often."""
    if len(parts) < 2 or (counted := _fitted(found, parts, close)) is None:
        return ""
    usual = float(np.median(counted[np.abs(counted) > LEFT_OUT * np.nanmax(np.abs(counted))]))
    gone = np.abs(counted / usual) < LEFT_OUT
    if gone.any():
        return f"{_numbered('micro-batch', gone)} of {len(parts)} of the declared loss {_are(gone)} left out"
    by = listed(f"{w:.4g}" for w in counted)
    is_uneven = _spread(counted / usual) > 3 * close
    return f"the micro-batches of the declared loss are in the gradient {by} times" if is_uneven else ""


def _spread(values: Floats) -> float:
    return float(np.nanmax(values) - np.nanmin(values))


def _numbered(what: str, chosen: NDArray[np.bool_]) -> str:
    numbers: Sequence[int] = (np.flatnonzero(chosen) + 1).tolist()
    plural = "es" if what.endswith(("s", "ch")) else "s"
    return f"{what}{plural if len(numbers) > 1 else ''} {listed(numbers)}"


def _are(chosen: NDArray[np.bool_]) -> str:
    return "are" if chosen.sum() > 1 else "is"
