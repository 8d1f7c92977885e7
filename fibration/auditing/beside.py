"""A step's gradient beside that of the declared loss, in words."""

from __future__ import annotations

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

from fibration.auditing.finding import MARK, Finding
from fibration.auditing.parameters import CLOSE, Comparison, Pair
from fibration.auditing.passes import explained, scale_of
from fibration.auditing.recorded import Recorded, total
from fibration.errors import AuditError, listed

Floats = NDArray[np.float64]
EXACT = 0.3  # times the tolerance: how far the factor of all parameters together may be from 1
FEW = 2  # names in a message
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
    scaled = scale_of(found, passes.sum(0), close) if len(passes) else None
    norm = _clipped_to(total(recorded.found), scaled, max_grad_norm, close)
    clip = scaled if norm is not None and scaled is not None else 1.0
    findings = [*_unlike(compared, recorded)]
    told, why = _factor(compared, clip, *(counts or (len(passes), ranks))), None
    if told.status == "fails":
        is_alone = ranks > 1 and _is_alone(Comparison(recorded.found, declared.own, close))
        why = Finding("ranks", "fails", ALONE) if is_alone else explained(found, passes, wanted, parts, close)
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


def _is_alone(own: Comparison) -> bool:
    """Whether a rank's gradient is that of its own rows."""
    return bool(own.alike) and not own.turned and not own.missing


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


def _factor(compared: Comparison, clip: float, passes: int, ranks: int) -> Finding:
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


def _clipped_to(norm: float, scaled: float | None, max_grad_norm: float | None, close: float) -> float | None:
    """The norm to which the gradient is clipped; None if it is not."""
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
