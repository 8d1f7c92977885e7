"""Properties of a loss function, each with its smallest batch: what any loss owes, and what tells losses apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fibration.auditing.batch import OLD, UNDER, Batch, Floats, Padding, Row, drawn, on_policy, probe, small, steps
from fibration.auditing.counts import COUNTS, NORMALISERS, OF_BATCH, SUM, WIDTH, Powers, multiples, products
from fibration.auditing.formula import Untraced, free
from fibration.auditing.function import Found, Function
from fibration.auditing.record import Traced
from fibration.errors import AuditError, listed

Status = Literal["holds", "fails", "note"]
MARK: dict[Status, str] = {"holds": "✓", "fails": "✗", "note": "·"}
CLOSE = 1e-9
MU = 2e-6  # functions write ÷ (n + 1e-6) for ÷ n


@dataclass(frozen=True)
class Finding:
    """One property. `batch`: the smallest found on which it fails. `other`: one that should have the same loss."""

    name: str
    status: Status
    text: str
    batch: Batch | None = None
    other: Batch | None = None


def is_close(one: Floats, other: Floats, scale: float | None = None) -> bool:
    size = max(float(np.abs(one).max(initial=0)), 1e-300) if scale is None else scale
    return bool(np.isfinite(other).all() and (np.abs(one - other) <= CLOSE * size).all())


def alike(one: Found, other: Found) -> bool:
    """Whether coefficients and values are equal. Two results with NaN are: NaN is a property of its own."""
    if not one.is_finite:
        return not other.is_finite
    return is_close(one.coefficients, other.coefficients) and abs(one.value - other.value) <= CLOSE * (
        1 + abs(one.value)
    )


def first_failure(
    function: Function, fails: Callable[[Batch], bool], batches: tuple[Batch, ...] | None = None
) -> Batch | None:
    """The first batch for which `fails` holds. A batch that the function does not take fails nothing."""
    for batch in small() if batches is None else batches:
        try:
            if fails(batch):
                return batch
        except AuditError:
            continue
    return None


# ------------------------------------------------------------ what any loss owes

SOME = tuple(b for b in small() if not b.is_probe or round(abs(b.log_ratios[0]), 9) == 0.113)
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
        k = wide / c if c else 1.0
        of = f": × {k:.3g} of the first token" if np.isfinite(k) else ", which is NaN in one of them"
        what = f"the gradient{of}" if k != 1 else "the loss"
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
    far = usual.mapped(lambda r: replace(r, advantage=30 * r.advantage, reward=30 * r.reward))
    far = far.mapped(lambda r: r.mapped(lambda v: tuple(30 * x for x in v)))  # a clamp in place changes large numbers
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
    if any(not torch.equal(first[role].nan_to_num(), second[role].nan_to_num()) for role in first):
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

    def moved(log_ratios: Iterable[float], b: Batch) -> Batch:
        left = iter(log_ratios)
        return b.mapped(lambda r: replace(r, log_probs=tuple(x + next(left) for x in r.old_log_probs)))

    def breaks(b: Batch) -> bool:
        return f.evaluate(b.on_policy()).is_finite and not all(
            f.evaluate(b, dtype).is_finite for dtype in (torch.float64, torch.float32)
        )

    wrong, right = "a token far off policy (a log ratio of 12 or 20)", "ratios from e⁻²⁰ to e²⁰"
    if f.moves == "values":
        wrong, right = "a value that is 12 or 20 from the old one", "values that are 20 from the old ones"
    places = ([20.0, 0.1], [-20.0, 0.1], [12.0, -12.0])
    far = [moved(x, drawn(8, lengths, 0.0)) for x in places for lengths in ((2,), (1, 1))]
    far += [b.mapped(lambda r: replace(r, advantage=-r.advantage)) for b in far]
    if at := first_failure(f, breaks, tuple(far)):
        return Finding("finite", "fails", f"{wrong} makes the loss NaN or infinite", at)

    def with_numbers(b: Batch, step: float) -> Batch:
        numbers = itertools.count(1.0, step)
        return b.mapped(lambda r: replace(r, advantage=(n := next(numbers)), reward=n))

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
        if not np.isfinite(wide).all():  # which other findings say
            return False
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


# ------------------------------------------------------------ what tells losses apart

EXCHANGED = "k3 with the policy and the reference exchanged"


def _share(powers: Powers) -> str:
    """By what the loss of a micro-batch is multiplied, so that the losses add up to the batch's."""
    of_batch = {OF_BATCH[n]: p for n, p in powers.items() if n in OF_BATCH}
    if of_batch == {OF_BATCH["rows"]: -1, WIDTH: -1}:
        return "its share of the places of the padded batch, rows × width"
    over = {what: f"its share of the {what}" for what in of_batch} | {WIDTH: "its width ÷ that of the batch"}
    each = [over[n] if p < 0 else f"the batch's {n} ÷ its own" for n, p in of_batch.items() for _ in range(abs(p))]
    return " and ".join(each) or "nothing"


def first_update(f: Function) -> Finding | None:
    """At ratio 1 `−∂loss/∂log π = μ·A`, with a μ that reads neither log-probs nor advantages."""
    if not f.reads_advantages:
        return None
    if f.whitens:
        text = "the function standardises advantages over the rows of each call: each micro-batch has its own mean"
        return Finding("first_update", "note", text)

    def differs(b: Batch, change: Callable[[Row], Row], times: float = 1.0) -> bool:
        once, changed = (f.evaluate(x).coefficients for x in (b, b.mapped(change)))
        is_nan = not np.isfinite(once).all()  # which other findings say
        return not is_nan and not is_close(times * once, changed, float(np.abs(once).max(initial=0)))

    def moves(b: Batch) -> bool:
        return differs(b.on_policy(), lambda r: r.mapped(lambda v: tuple(1.3 * x - 0.1 for x in v)))

    def bends(b: Batch) -> bool:
        b = b.on_policy()
        return any(differs(b, lambda r, k=k: replace(r, advantage=k * r.advantage), k) for k in (2.0, -1.0))  # type: ignore[misc]

    said = "at ratio 1 the gradient is not μ·A"
    if at := first_failure(f, moves, on_policy()):
        return Finding("first_update", "fails", f"{said}: it moves with log π itself. Is a weight not detached?", at)
    if at := first_failure(f, bends, on_policy()):
        return Finding("first_update", "fails", f"{said}: it is not proportional to the advantages", at)
    return Finding("first_update", "holds", "at ratio 1 the gradient is that of the policy: μ·A")


def sign(f: Function) -> Finding | None:
    """At ratio 1 every token is pushed with its advantage."""
    if not f.reads_advantages or f.whitens:  # whitened ones may have another sign
        return None

    def pushes(b: Batch) -> Floats:
        return np.asarray(f.evaluate(b.on_policy()).coefficients * b.advantages)

    if at := first_failure(f, lambda b: bool((pushes(b) < -1e-12).any()), on_policy()):
        every = first_failure(f, lambda b: bool((pushes(b) > 1e-12).any()), on_policy()) is None
        text = f"at ratio 1 a token is pushed against its advantage{': the loss is −J, or J?' * every}"
        return Finding("sign", "fails", text, at)
    return Finding("sign", "holds", "at ratio 1 every token is pushed with its advantage")


def _aims(f: Function) -> Callable[[Batch], Floats] | None:
    """What tokens are pushed by at ratio 1, beside μ: advantages; a teacher's lead; what a critic's value lacks."""
    if f.reads_advantages:
        first = first_update(f)
        return (lambda b: b.advantages) if first is not None and first.status == "holds" else None
    if f.moves == "values" and "returns" in f.roles:
        return lambda b: b.of("returns") - b.of("values")
    if "teacher_log_probs" in f.roles and not f.reads_rewards:
        return lambda b: b.of("teacher_log_probs") - b.of("log_probs")
    return None


def normaliser(f: Function) -> Finding | None:
    """What the loss divides by, and by what the loss of each micro-batch is multiplied."""
    if (aims := _aims(f)) is None:
        return None  # then there is no μ
    batches = on_policy()
    if not f.reads_advantages:  # the current policy alone is moved
        batches = tuple(b.mapped(lambda r: replace(r, log_probs=r.old_log_probs)) for b in small())

    def uneven(b: Batch) -> bool:
        if not aims(b).all() or not np.isfinite(c := f.evaluate(b).coefficients).all():
            return False
        mu = c / aims(b)
        sums = np.array([mu[b.row_of_token == r].sum() for r in range(len(b.rows))])
        return all(np.ptp(v) > MU * abs(v[0]) for v in (sums, sums / np.array(b.lengths)))

    pushed = [
        (c / by, b.counts(row))
        for b in batches
        for c, by, row in zip(f.evaluate(b).coefficients, aims(b), b.row_of_token, strict=True) if abs(by) > CLOSE
    ]  # fmt: skip
    mu, counts = np.array([k for k, _ in pushed]), {n: np.array([c[n] for _, c in pushed], float) for n in COUNTS}
    read = [n for n in COUNTS if "group_ids" in f.roles or "group" not in n]
    named = {words: e for words, e in NORMALISERS.items() if {*e} <= {*read}}
    squares = [{**e, n: 2 * p} for e in products(read, 2) for n, p in e.items()]  # divided by the rows twice
    others = [e for e in (*products(read, len(read)), *squares) if e not in named.values()]
    first, more = (multiples(mu, counts, [(e, "", 0.0) for e in some], MU) for some in (named.values(), others))
    if found := next(itertools.chain(first, ((k, e) for k, e in more if abs(k - 1) < MU)), None):
        k, (e, *_) = found
        is_one, known = abs(k - 1) < MU, next((words for words, same in named.items() if same == e), "")
        times, over = ([COUNTS[n] for n, p in e.items() for _ in range(sign * p)] for sign in (1, -1))
        words = known or " ÷ ".join([" × ".join([SUM, *times]), *over])
        text = f"μ is {words}{'' if is_one else f' × {k:.6g}'}; multiply the loss of a micro-batch by {_share(e)}"
        if not is_one and (f.reads_advantages or k < 0):  # a critic or a teacher has a factor of its own
            return Finding("normaliser", "fails", text, batches[0])
        of_groups = bool({*e} & {"group", "rows of the group"})
        at = None if known or of_groups else first_failure(f, uneven, batches)
        return Finding("normaliser", "fails" if at else "holds" if known else "note", text, at)

    if not f.reads_advantages:
        lead = "returns − values" if f.moves == "values" else "log π_teacher − log π. Is that not detached?"
        text = f"not seen: where nothing has moved, the gradient is in no proportion to {lead}"
        return Finding("normaliser", "note", text)
    at = first_failure(f, uneven, batches)
    text = ": neither rows nor tokens weigh the same" if at else ""
    return Finding("normaliser", "fails" if at else "note", f"μ is no mean or sum of tokens or rows{text}", at)


OF_ALL = "the rewards less the mean of all"


def _is_near(one: Floats, other: Floats) -> bool:
    return bool(np.abs(one - other).max() <= 2e-3 * np.abs(other).max())


def baseline(f: Function) -> Finding | None:
    """How advantages come of rewards, on fresh rows of one token."""
    if not f.reads_rewards:
        return None
    groups = [0, 0, 0, 1, 1]
    b = drawn(12, (1,) * len(groups), 0.0, groups=groups).on_policy()
    found = f.evaluate(b).coefficients
    if not np.isfinite(found).all() or not found.any():
        return Finding("baseline", "note", "rows of one token get no gradient, so that advantages are not seen")
    r, g = np.array([row.reward for row in b.rows]), np.array(groups)
    inside = g[:, None] == g

    def mean(of: NDArray[np.bool_]) -> Floats:
        return np.asarray((of * r).sum(1) / np.maximum(of.sum(1), 1))

    own, others = r - mean(inside), r - mean(inside & ~np.eye(len(r), dtype=bool))
    spread = np.array([r[row].std() for row in inside])
    wide = np.array([r[row].std(ddof=1) for row in inside])
    known = {
        "the rewards": r,
        OF_ALL: r - r.mean(),
        "the rewards less the mean of their group, their own included": own,
        "the rewards less the mean of the others of their group": others,
        "the rewards standardised in their group (÷ n)": own / spread,
        "the rewards standardised in their group (÷ n − 1)": own / wide,
    }
    alone = drawn(13, (1, 1, 1), 0.0, groups=[0, 0, 1]).on_policy()

    def pushes_alone(b: Batch) -> bool:
        c = f.evaluate(b).coefficients
        return bool(np.isfinite(c).all() and abs(c[-1]) > 1e-6 * np.abs(c).max())

    for words, a in known.items():
        k = float(found @ a / (a @ a))
        if _is_near(k * a, found):  # functions write ÷ (std + 1e-6), or 1e-4
            if words == OF_ALL:  # which differs from standardised rewards by one factor
                twice = f.evaluate(b.mapped(lambda row: replace(row, reward=2 * row.reward)))
                words = "the rewards standardised over all" if _is_near(twice.coefficients, found) else words
            text = f"advantages are {'' if k > 0 else 'minus '}{words}"
            if "their group" in words and "others" not in words and (at := first_failure(f, pushes_alone, (alone,))):
                text += ", but the only answer of a group is pushed by more"
                return Finding("baseline", "note" if k > 0 else "fails", text, at)
            if "all" in words and "group_ids" in f.arguments.values():
                return Finding("baseline", "note" if k > 0 else "fails", f"{text}, though group_ids are given", b)
            return Finding("baseline", "holds" if k > 0 else "fails", text, None if k > 0 else b)
    return Finding("baseline", "note", "advantages come of rewards in a way without a name here")


def slope(f: Function, x: Floats, sign: float) -> Floats:
    """The coefficients of many rows of one token (`probe`), times the number of rows and the advantage's sign.

    Where advantages are standardised, each row has one beside it with the other sign, so that they keep theirs.
    """
    signs = np.repeat([sign, -sign][: 1 + f.whitens], len(x))
    found = f.evaluate(probe(np.tile(x, 1 + f.whitens), signs))
    return found.coefficients[: len(x)] * len(signs) * sign


Gradient = Callable[[Floats], Floats]  # of rows of one token, by their log ratios or values
BACK = "as a clip without min(ratio·A, clip(ratio)·A) does"


def _stops(gradient: Gradient, x: Floats, outward: NDArray[np.bool_]) -> dict[str, tuple[Floats, float]]:
    """Where a gradient is 0, outward and inward: all these log ratios or values, and the bound nearest to 0.

    Two rows are asked together, since functions divide by a deviation over rows.
    """
    stopped, found = gradient(x) == 0, {}
    for name, way in (("outward", outward), ("inward", ~outward)):
        if (stopped & way).any():
            order = np.flatnonzero(way)[np.argsort(np.abs(x[way]))]
            first = int(np.argmax(stopped[order]))
            closed, open_ = x[order[first]], x[order[first - 1]] if first else 0.0
            for _ in range(40):
                middle = (closed + open_) / 2
                closed, open_ = (middle, open_) if gradient(np.array([middle, middle]))[0] == 0 else (closed, middle)
            found[name] = x[stopped & way], float(closed)
    return found


def _sides_of_values(f: Function) -> Finding:
    """Where a clip stops values: those that have come nearer to their returns than its width, none that have gone."""

    def valued(x: Floats, sign: float) -> Batch:
        """Values `x` above the old ones, and returns that are far above them, or below."""
        there = (OLD + 4 * sign,)
        return probe(x, np.ones(len(x))).mapped(lambda r: replace(r, rollout_log_probs=there))

    x, edges, gone = steps(3.0), dict[str, float](), False
    for sign, where in ((1.0, "above"), (-1.0, "below")):
        found = _stops(lambda y, s=sign: f.evaluate(valued(y, s)).coefficients, x, x * sign > 0)  # type: ignore[misc]
        if {*found} == {"inward"}:
            text = "a bound stops values that have left their returns, and none that have come nearer: min for max?"
            return Finding("sides", "fails", text, valued(found["inward"][0][:1], sign))
        gone |= "inward" in found
        edges |= {where: abs(found["outward"][1])} if found else {}
    if not edges:
        return Finding("sides", "holds", "no bound stops a value that has moved by up to 3")
    said = [f"{v:.6g} where they are {where}" for where, v in edges.items()]
    if len(edges) == 2 and np.ptp([*edges.values()]) < CLOSE:
        said = [f"{edges['above']:.6g}"]
    text = f"a bound stops values that have come nearer to their returns by {listed(said)}"
    if gone:
        return Finding("sides", "note", f"{text}; and those that have left them, as a clip without a maximum does")
    return Finding("sides", "holds", text)


def sides(f: Function) -> Finding | None:
    """Where a token's gradient is 0: a bound stops what pushes outward, away from the old policy."""
    if f.moves == "values" and {"old_values", "returns"} <= f.roles:
        return _sides_of_values(f)
    if not f.reads_advantages:
        return None
    x, is_seen = steps(3.0), False  # further out, soft gates are 0 but for rounding
    said, both, never = list[str](), list[str](), list[str]()
    for a, sign in ((1.0, "> 0"), (-1.0, "< 0")):
        c, outward = slope(f, x, a), x * a > 0
        if not np.isfinite(c).all():
            continue
        if not c.any():
            never.append(sign)
            continue
        is_seen = True
        found, against = _stops(partial(slope, f, sign=a), x, outward), c < -1e-9 * np.abs(c).max()
        if {*found} == {"inward"}:
            text = f"with A {sign}, a bound stops a ratio on its way back to 1, and none on its way out: max for min"
            at = _row_at(f, found["inward"][0], a)
            return Finding("sides", "fails", f"{text}, or a clip on the wrong side?", at)
        if (against & ~outward).any():
            text = f"with A {sign}, a token is pushed further out against its advantage"
            return Finding("sides", "fails", text, _row_at(f, x[against & ~outward], a))
        said += [f"{way} ones with A {sign} at the ratio {np.exp(edge):.6g}" for way, (_, edge) in found.items()]
        # the bound of a dual clip is further
        if len(found) == 2 and abs(found["inward"][1]) < 2 * abs(found["outward"][1]):
            both.append(f"with A {sign} a bound also stops ratios on their way back to 1, {BACK}")
    if not is_seen:
        what = "no gradient" if never else "no gradient that is a number"
        return Finding("sides", "note", f"not seen: rows of one token get {what}")
    if not said and np.any(f.evaluate(probe(x, np.zeros(len(x)))).coefficients):
        return Finding("sides", "note", "not seen: another term has a gradient, also where advantages are 0")
    stops = f"pushes stop: {listed(said)}" if said else "no bound stops a token"
    both += [f"no token with A {sign} is pushed at any ratio" for sign in never]
    limit = "with A > 0 the coefficient grows with the ratio without limit"
    near, far, further = slope(f, np.array([3.0, 6.0, 9.0]), 1.0)
    if further > 2 * far > 4 * near > 0:
        return Finding("sides", "note", "; ".join([stops, limit] if said else [f"no bound: {limit}", *both]))
    return Finding("sides", "note", "; ".join([stops, *both])) if both else Finding("sides", "holds", stops)


def _row_at(f: Function, x: Floats, a: float) -> Batch:
    """The row of the first of these log ratios; where advantages are standardised, with one of the other sign."""
    return probe(np.full(1 + f.whitens, x[0]), np.array([a, -a][: 1 + f.whitens]))


def reference(f: Function) -> Finding | None:
    """A term of the reference policy pulls towards it, and not where the policies agree."""
    if "ref_log_probs" not in f.roles:
        return None

    def still(b: Batch) -> Batch:
        return b.on_policy().mapped(lambda r: replace(r, advantage=0.0, reward=0.0))

    def pulls(b: Batch) -> bool:
        return bool((np.abs(f.evaluate(still(b)).coefficients) > 1e-12).any())

    if at := first_failure(f, pulls):
        text = "without advantages, and with log-probs equal to the reference's, there is a gradient: k1 as a loss?"
        return Finding("reference", "fails", text, still(at))

    def moved(y: Floats) -> Batch:
        moves = iter(y.tolist())
        base = still(drawn(6, (1,) * len(y), 0.0, groups=[0] * len(y)))
        return base.mapped(lambda r: replace(r, ref_log_probs=(r.log_probs[0] - next(moves),)))

    def other(b: Batch) -> Batch:
        return b.mapped(lambda r: replace(r, ref_log_probs=tuple(x - 0.37 for x in r.ref_log_probs)))

    y = np.array([-1.0, -0.3, 0.4, 1.2])
    c = f.evaluate(moved(y)).coefficients
    if not np.isfinite(c).all():
        return None
    if not c.any():
        text = "the log-probs of the reference decide no gradient"

        def decides(b: Batch) -> bool:
            return not is_close(f.evaluate(b).coefficients, f.evaluate(other(b)).coefficients)

        if first_failure(f, lambda b: decides(b.mapped(lambda r: replace(r, advantage=0.0, reward=0.0)))):
            text = "the term of the reference is 0 near it: a bound?"
        elif first_failure(f, decides):
            text = "the reference has no term of its own: it decides how advantages push. Is the ratio taken to it?"
        return Finding("reference", "note", text)
    if (c * y > 0).any():
        return Finding("reference", "fails", "the term of the reference pushes away from it")
    known: tuple[tuple[Status, str, Floats], ...] = (
        ("note", "k3: its gradient is that of the other divergence, KL(reference ‖ policy)", 1 - np.exp(-y)),
        ("note", "k2: its gradient is that of KL(policy ‖ reference), where tokens are the policy's own", y),
        ("fails", f"{EXCHANGED}: its gradient, π/π_reference − 1, is that of no KL and has no bound", np.expm1(y)),
    )
    for status, words, expected in known:
        k = -c / expected
        if np.ptp(k) <= MU * abs(k[0]):
            at = moved(y[2:]) if status == "fails" else None
            return Finding("reference", status, f"the term of the reference is {words}", at)
    return Finding("reference", "holds", "the term of the reference pulls towards it")


def causal(f: Function) -> Finding | None:
    """Whether a token's coefficient depends on later tokens of its row, or on other rows: decided on its formula."""
    read = dict[str, Batch]()
    try:
        for at in f.structures:
            for own, c in zip(at.places, f.formulas(at), strict=True):
                for _, row, t in (a for v in free(c) if (a := v.args)[0] in UNDER and len(a) == 3):  # none masked
                    read.setdefault("other" if row != own[0] else "later" if t > own[1] else "own", at)
    except Untraced:
        return None
    for whose, words in (("other", "log-probs of other rows"), ("later", "later tokens of its row")):
        if whose in read:
            return Finding("causal", "note", f"a token's gradient depends on {words}", read[whose])
    return Finding("causal", "holds", "a token's gradient depends on no later token") if read else None


Ask = Callable[[Function], Finding | None]
OWED: tuple[Ask, ...] = (mask, padding, rows, reads, inputs, finite, precision, engine)
TELLING: tuple[Ask, ...] = (sign, first_update, normaliser, baseline, sides, reference, causal)
