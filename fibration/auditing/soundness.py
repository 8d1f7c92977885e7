"""What is wrong for any loss: padding that decides, NaN, a sign, half precision. Each with its smallest batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fibration.auditing.batch import Batch, Floats, Padding, drawn, probe, small
from fibration.auditing.finding import CLOSE, Finding, Status, alike, first_failure
from fibration.auditing.formula import free
from fibration.auditing.function import Found, Function
from fibration.auditing.record import Traced
from fibration.errors import AuditError, listed

SOME = tuple(b for b in small() if not b.is_probe or round(abs(b.log_ratios[0]), 9) == 0.1)
APART = ((-0.1, 0.1), (-0.4, -0.2, 0.2), (-0.4, -0.2, -0.1, 0.1, 0.2, 0.4))  # log π_old − log π_rollout
UNDER_MASK: tuple[tuple[float, Status, str], ...] = (
    (0.0, "fails", "a masked place gets a gradient, or NaN"),
    (-0.7, "fails", "what lies under the mask changes the loss or the gradient"),
    (-30.0, "fails", "large numbers under the mask change the loss or the gradient"),
    (-1e4, "note", "a ratio that overflows under the mask makes NaN (0·inf): masked_fill the log ratio before exp"),
    (np.nan, "note", "NaN under the mask reaches the loss or a gradient: masked_fill what is read there first"),
)


def mask(f: Function) -> Finding | None:
    """What lies under the mask decides nothing, and gets no gradient."""
    shapes = (Padding(after=2), Padding(before=1), Padding(holes=True))
    batches = () if f.is_packed else tuple(replace(b, padding=p) for b in SOME for p in shapes)
    for value, status, said in UNDER_MASK:

        def matters(b: Batch, value: float = value) -> bool:
            found = f.evaluate(replace(b, padding=replace(b.padding, value=value)))
            return not alike(f.evaluate(b), found) or (found.is_finite and bool((found.outside != 0).any()))

        if at := first_failure(f, matters, batches):
            other = at if value else None
            return Finding("mask", status, said, replace(at, padding=replace(at.padding, value=value)), other)
    return None if f.is_packed else Finding("mask", "holds", "what lies under the mask decides nothing, NaN included")


def padding(f: Function) -> Finding | None:
    """Another width of the padded tensors changes nothing."""

    def wider(b: Batch) -> Batch:
        return replace(b, padding=replace(b.padding, after=3))

    if f.is_packed:
        return None
    if at := first_failure(f, lambda b: not alike(f.evaluate(b), f.evaluate(wider(b))), SOME):
        c, wide = f.evaluate(at).coefficients[0], f.evaluate(wider(at)).coefficients[0]
        what = f"the gradient: × {wide / c:.3g} of the first token" if c and wide != c else "the loss"
        return Finding("padding", "fails", f"three more masked places change {what}", at, wider(at))
    return Finding("padding", "holds", "the padded width decides nothing")


def rows(f: Function) -> Finding:
    """The order of rows decides nothing; a row without tokens is no error."""

    def order(b: Batch) -> bool:
        back = f.evaluate(replace(b, rows=b.rows[::-1]))
        parts = np.split(back.coefficients, np.cumsum(b.lengths[::-1])[:-1])[::-1]
        return not alike(f.evaluate(b), Found(back.value, np.concatenate(parts), back.outside))

    if at := first_failure(f, order, SOME):
        back = replace(at, rows=at.rows[::-1])
        return Finding("rows", "fails", "the order of rows changes the gradient", at, back)
    if at := first_failure(f, lambda b: not f.evaluate(b).is_finite, (drawn(4, (1, 3), 0.0).on_policy(),)):
        return Finding("rows", "fails", "a row of one token makes the loss or a gradient NaN", at)
    empty = drawn(4, (2, 0, 3), 0.2, groups=[0, 0, 0])
    try:
        what = "" if f.evaluate(empty).is_finite else " makes the loss or a gradient NaN"
    except AuditError as error:
        what = f": {error.what}"
    if what:
        return Finding("rows", "fails", f"a row without tokens{what}", empty)
    return Finding("rows", "holds", "the order of rows decides nothing, and a row without tokens is no error")


def reads(f: Function) -> Finding | None:
    """Every argument decides a gradient. Decided on the program: of a variable that is not in it there is nothing."""
    made = [p for p in f.programs.values() if isinstance(p, Traced)]
    gradient = {v.args[0] for p in made for c in p.coefficients[f.moves].flat for v in free(c)}
    value = {v.args[0] for p in made for v in free(p.loss)} - gradient
    given = {r for p in made for r in p.coefficients if r not in gradient and r != f.moves}
    if f.untraced or (given and len(made) < len(f.programs)):
        return None
    said = [f"{listed(sorted(given & value))} decide the loss and no gradient"] if given & value else []
    said += [f"{listed(sorted(given - value))} decide nothing"] if given - value else []
    if said:
        return Finding("reads", "note", "; ".join(said))
    return Finding("reads", "holds", "every argument decides a gradient")


def inputs(f: Function) -> Finding | None:
    """Inputs stay as they are; views are as good as copies; backward may be called twice."""
    usual = drawn(5, (2, 1), 0.2, padding=Padding(value=-0.7))
    far = usual.scaled(30.0)  # a clamp in place changes large numbers
    far = replace(far, rows=tuple(replace(r, advantage=30 * r.advantage, reward=30 * r.reward) for r in far.rows))
    for b in (far, usual):
        given = f.given(b)
        before = {r: t.clone() for r, t in given.items()}
        try:
            loss = f.loss({**given, f.moves: given[f.moves].requires_grad_()})
        except AuditError:
            if b is usual:
                raise
            continue
        if changed := [r for r, t in given.items() if not torch.equal(t.detach(), before[r])]:
            return Finding("inputs", "fails", f"the function changes {listed(changed)} in place: copy first", b)
    if not loss.requires_grad:
        return None
    first, second = (f.gradients(loss, {f.moves: given[f.moves]}, again=True) for _ in range(2))
    if any(not torch.equal(first[role], second[role]) for role in first):
        return Finding("inputs", "fails", "a second backward gives another gradient", b)
    strided = {r: t.t().contiguous().t() if t.ndim == 2 else t for r, t in before.items()}
    try:
        what = " change the loss" if abs(float(f.loss(strided)) - float(loss.detach())) > CLOSE else ""
    except AuditError as error:
        what = f": {error.what}"
    if what:
        return Finding("inputs", "fails", f"tensors that are not contiguous{what}", b)
    return Finding("inputs", "holds", "nothing is changed in place, and views are as good as copies")


def finite(f: Function) -> Finding:
    """Ratios of e²⁰ and e⁻²⁰ give finite losses and gradients, in float32 too."""

    def breaks(b: Batch) -> bool:
        return f.evaluate(b.on_policy()).is_finite and not all(
            f.evaluate(b, dtype).is_finite for dtype in (torch.float64, torch.float32)
        )

    wrong, right = "a token far off policy (a log ratio of 12 or 20)", "ratios from e⁻²⁰ to e²⁰"
    if f.moves == "values":
        wrong, right = "a value that is 12 or 20 from the old one", "values that are 20 from the old ones"
    places = ([20.0, 0.1], [-20.0, 0.1], [12.0, -12.0])
    far = [drawn(8, lengths, 0.0).moved(np.array(x)) for x in places for lengths in ((2,), (1, 1))]
    far += [replace(b, rows=tuple(replace(r, advantage=-r.advantage) for r in b.rows)) for b in far]
    if at := first_failure(f, breaks, tuple(far)):
        return Finding("finite", "fails", f"{wrong} makes the loss NaN or infinite", at)

    def with_numbers(b: Batch, step: float) -> Batch:
        numbers = [1.0 + step * i for i in range(len(b.rows))]
        return replace(b, rows=tuple(replace(r, advantage=n, reward=n) for r, n in zip(b.rows, numbers, strict=True)))

    def is_flat(b: Batch) -> bool:
        equal, other = (f.evaluate(with_numbers(b, step)) for step in (0.0, -1.0))
        return other.is_finite and not equal.is_finite

    if at := first_failure(f, is_flat, tuple(drawn(8, n, 0.1, groups=[0] * len(n)) for n in ((1, 1), (2, 3, 2, 2)))):
        text = (
            f"equal {'advantages' if f.reads_advantages else 'rewards'} make NaN: add 1e-6 to the deviation, which is 0"
        )
        return Finding("finite", "fails", text, with_numbers(at, 0.0))
    one = drawn(8, (3,), 0.1)
    if first_failure(f, lambda b: not f.evaluate(b).is_finite, (one,)):
        whose = "a group" if "group_ids" in f.roles else "a batch"
        return Finding("finite", "note", f"{whose} of one row makes the loss NaN: a deviation of one number?", one)
    return Finding("finite", "holds", f"{right} have finite gradients")


def precision(f: Function) -> Finding | None:
    """float32 is as good as float64, up to rounding, and nothing is rounded to 16 bits."""

    def coarse(b: Batch) -> bool:
        wide, narrow = f.evaluate(b).coefficients, f.evaluate(b, torch.float32).coefficients
        return bool(np.abs(wide - narrow).max(initial=0) > 2e-4 * (np.abs(wide).max(initial=0) + 1e-30))

    if at := first_failure(f, coarse, SOME):
        return Finding("precision", "fails", "float32 inputs give another gradient: is half precision used inside?", at)
    if at := first_failure(f, lambda b: bool(f.halves(b)), SOME):
        names = listed(sorted(str(t).removeprefix("torch.") for t in f.halves(at)))
        text = f"numbers are rounded to {names} inside: compute log-probs and ratios in float32"
        return Finding("precision", "fails", text, at)
    return Finding("precision", "holds", "float32 inputs give the gradient of float64 ones")


def engine(f: Function) -> Finding | None:
    """The weight for the rollout engine is old over rollout: it grows with the old policy's log-prob."""
    if "rollout_log_probs" not in f.roles or not f.reads_advantages:
        return None
    # At ratio 1 with a detached weight, log π has the same effect on the value, relative to it, whatever the engine's
    # log-probs are. A gradient of exp(log π − log π_rollout) adds 1 to that where the weight is not truncated.
    found = [f.evaluate(probe(np.array([x]), np.ones(1), True)) for x in np.linspace(-3.05, 3.05, 13)]
    slopes: Floats = np.array([-x.coefficients[0] / x.value for x in found if x.value and x.is_finite])
    low, high = slopes.min(initial=np.inf), slopes.max(initial=-np.inf)
    steps = np.minimum(slopes - low, high - slopes)
    is_truncated = abs(high - low - 1) < 1e-6 and steps.max() < 1e-6 and abs(low) > 1e-6  # at 0 it is the ratio itself
    if len(slopes) > 1 and (is_truncated or np.abs(slopes - 2).max() < 1e-6):
        text = "the weight by rollout_log_probs carries a gradient into log_probs: detach the weight"
        return Finding("engine", "fails", text, probe(np.array([0.1]), np.ones(1), True))

    def shrinks(b: Batch) -> bool:
        x = b.of("old_log_probs") - b.of("rollout_log_probs")
        c = f.evaluate(b).coefficients * b.advantages
        x, c = x[c != 0], c[c != 0]
        step = np.diff(c) / np.abs(c).max(initial=1e-300)
        return bool((np.diff(x) > 0).all() and (step < 1e-6).all() and (step < -1e-6).any())

    if at := first_failure(f, shrinks, tuple(probe(np.array(x), np.ones(len(x)), True) for x in APART)):
        text = (
            "tokens weigh less where old log-probs are above the rollout engine's: the importance weight is upside down"
        )
        return Finding("engine", "fails", f"{text}, old and rollout exchanged?", at)
    return Finding("engine", "holds", "no importance weight shrinks as old log-probs rise above the rollout engine's")
