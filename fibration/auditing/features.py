"""What tells losses apart, in words: what they divide by, where they stop a token, what its gradient depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fibration.auditing.batch import Batch, Floats, drawn, probe
from fibration.auditing.battery import on_policy, steps
from fibration.auditing.finding import MU, Finding, Status, first_failure, is_close
from fibration.auditing.function import Found, Function
from fibration.auditing.numbers import slope
from fibration.errors import listed

EXCHANGED = "k3 with the policy and the reference exchanged"


def _fresh(f: Function) -> list[tuple[Batch, Found]]:
    return [(b, f.evaluate(b)) for b in on_policy()]


def first_update(f: Function) -> Finding | None:
    """At ratio 1 `−∂loss/∂log π = μ·A`, with a μ that reads neither log-probs nor advantages."""
    if f.reads_rewards:
        return None
    if f.whitens:
        text = "the function standardises advantages over the rows of each call: each micro-batch has its own mean"
        return Finding("first_update", "note", text)

    def bends(b: Batch) -> bool:
        b = b.on_policy()
        once = f.evaluate(b).coefficients
        many = (replace(b, rows=tuple(replace(r, advantage=k * r.advantage) for r in b.rows)) for k in (2.0, -1.0))
        other = replace(b, rows=tuple(r.mapped(lambda v: tuple(1.3 * x - 0.1 for x in v)) for r in b.rows))
        twice, back, moved = (f.evaluate(c).coefficients for c in (*many, other))
        scale = float(np.abs(once).max(initial=0))
        return not (is_close(2 * once, twice, scale) and is_close(-once, back, scale) and is_close(once, moved, scale))

    if at := first_failure(f, bends, on_policy()):
        text = "at ratio 1 the gradient is not μ·A: it bends with the advantages, or moves with the log-probs"
        return Finding("first_update", "fails", text, at)
    return Finding("first_update", "holds", "at ratio 1 the gradient is that of the policy: μ·A")


@dataclass(frozen=True)
class Mu:
    """`μ` of tokens at ratio 1, by batch: what normaliser it is, in words, and whether it is one that is known."""

    words: str
    known: bool
    factor: float = 1.0


def mu_of(f: Function) -> Mu | None:
    """`μ` by its shape: a multiple of a normaliser that is known, or none."""
    seen: list[tuple[Batch, Floats]] = []
    for b, found in _fresh(f):
        if not b.advantages.all():
            return None
        seen.append((b, found.coefficients / b.advantages))
    lengths = [np.repeat(b.lengths, b.lengths).astype(float) for b, _ in seen]
    tokens = [np.full(b.tokens, float(b.tokens)) for b, _ in seen]
    rows = [np.full(b.tokens, float(len(b.rows))) for b, _ in seen]
    widths = [np.full(b.tokens, float(max(b.lengths))) for b, _ in seen]
    one = [np.ones(b.tokens) for b, _ in seen]
    known = {
        "the mean over all tokens": [1 / t for t in tokens],
        "the mean over rows of each row's mean": [1 / (r * n) for r, n in zip(rows, lengths, strict=True)],
        "the sum of each row, averaged over rows": [1 / r for r in rows],
        "the sum over all tokens": one,
        "each row's mean, summed": [1 / n for n in lengths],
        "the sum over all tokens ÷ all places of the padded batch, rows × width": [
            1 / (r * w) for r, w in zip(rows, widths, strict=True)
        ],
        "the sum over all tokens ÷ the width of the padded batch": [1 / w for w in widths],
    }
    for words, shapes in known.items():
        k = np.concatenate([mu / s for (_, mu), s in zip(seen, shapes, strict=True)])
        if np.abs(k - k[0]).max() <= MU * abs(k[0]):
            return Mu(words, True, float(k[0]))
    return Mu("no mean or sum of tokens or rows", False)


def normaliser(f: Function) -> Finding | None:
    """What the loss divides by."""
    if f.reads_rewards or (mu := mu_of(f)) is None or (first := first_update(f)) is None or first.status != "holds":
        return None  # then there is no μ
    if mu.known:
        times = "" if abs(mu.factor - 1) < MU else f" × {mu.factor:.6g}"
        return Finding("normaliser", "holds", f"μ is {mu.words}{times}")

    def uneven(b: Batch) -> bool:
        b = b.on_policy()
        if not b.advantages.all():
            return False
        mu = f.evaluate(b).coefficients / b.advantages
        sums = np.array([mu[b.row_of_token == r].sum() for r in range(len(b.rows))])
        per_token = sums / np.array(b.lengths)
        return all(np.ptp(v) > MU * abs(v[0]) for v in (sums, per_token))

    at = first_failure(f, uneven, on_policy())
    text = "μ is no mean or sum of tokens or rows: neither rows nor tokens weigh the same"
    return Finding("normaliser", "fails" if at else "note", text if at else f"μ is {mu.words}", at)


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
    for words, a in known.items():
        k = float(found @ a / (a @ a))
        if _is_near(k * a, found):  # functions write ÷ (std + 1e-6), or 1e-4
            if words == OF_ALL:  # which differs from standardised rewards by one factor
                twice = f.evaluate(replace(b, rows=tuple(replace(row, reward=2 * row.reward) for row in b.rows)))
                words = "the rewards standardised over all" if _is_near(twice.coefficients, found) else words
            text = f"advantages are {'' if k > 0 else 'minus '}{words}"
            if "all" in words and "group_ids" in f.arguments.values():
                return Finding("baseline", "note" if k > 0 else "fails", f"{text}, though group_ids are given", b)
            return Finding("baseline", "holds" if k > 0 else "fails", text, None if k > 0 else b)
    return Finding("baseline", "note", "advantages come of rewards in a way without a name here")


BACK = "as a clip without min(ratio·A, clip(ratio)·A) does"


def sides(f: Function) -> Finding | None:
    """Where a token's gradient is 0: a bound stops what pushes outward, away from the old policy."""
    if f.reads_rewards:
        return None
    x, said, both = steps(3.0), list[str](), list[str]()  # further out, soft gates are 0 but for rounding
    for a, sign in ((1.0, "> 0"), (-1.0, "< 0")):
        c = slope(f.evaluate, x, a, f.whitens)
        if not np.isfinite(c).all():
            continue
        outward, stopped, against = x * a > 0, c == 0, c < -1e-9 * np.abs(c).max()
        if stopped[~outward].any() and not stopped[outward].any():
            at = first_failure(f, partial(_one_sided, f, a), _rows_at(f, x[stopped & ~outward], a))
            text = f"with A {sign}, a bound stops a ratio on its way back to 1, and none on its way out"
            return Finding("sides", "fails", f"{text}: max for min, or a clip on the wrong side?", at)
        if (against & ~outward).any():
            at = first_failure(f, partial(_pushed_away, f), _rows_at(f, x[against & ~outward], a))
            text = f"with A {sign}, a token is pushed further out against its advantage"
            return Finding("sides", "fails", text, at)
        edges = {}
        for way, name in ((outward, "outward"), (~outward, "inward")):
            if stopped[way].any():
                edges[name] = _edge(f, x[way], stopped[way], a)
                said.append(f"{name} ones with A {sign} at the ratio {np.exp(edges[name]):.6g}")
        if len(edges) == 2 and abs(edges["inward"]) < 2 * abs(edges["outward"]):  # the bound of a dual clip is further
            both.append(f"with A {sign} a bound also stops ratios on their way back to 1, {BACK}")
    if not said and np.any(f.evaluate(probe(x, np.zeros(len(x)))).coefficients):
        return Finding("sides", "note", "not seen: another term has a gradient, also where advantages are 0")
    stops = f"pushes stop: {listed(said)}" if said else "no bound stops a token"
    limit = "with A > 0 the coefficient grows with the ratio without limit"
    near, far, further = slope(f.evaluate, np.array([3.0, 6.0, 9.0]), 1.0, f.whitens)
    if further > 2 * far > 4 * near > 0:
        return Finding("sides", "note", f"{stops}; {limit}" if said else f"no bound: {limit}")
    return Finding("sides", "note", "; ".join([stops, *both])) if both else Finding("sides", "holds", stops)


def _edge(f: Function, x: Floats, stopped: NDArray[np.bool_], a: float) -> float:
    """The log ratio nearest to 0 at which the gradient becomes 0."""
    order = np.argsort(np.abs(x))
    first = int(np.argmax(stopped[order]))
    closed, open_ = x[order[first]], x[order[first - 1]] if first else 0.0
    for _ in range(40):
        middle = (closed + open_) / 2
        if slope(f.evaluate, np.array([middle]), a, f.whitens)[0] == 0:
            closed = middle
        else:
            open_ = middle
    return float(closed)


def _rows_at(f: Function, x: Floats, a: float) -> tuple[Batch, ...]:
    signs = np.array([a, -a] if f.whitens else [a])
    return tuple(probe(np.full(len(signs), v), signs) for v in x)


def _one_sided(f: Function, a: float, b: Batch) -> bool:
    found = f.evaluate(b).coefficients
    if not f.evaluate(b.on_policy()).coefficients.all():  # it is not the bound
        return False
    return bool(((found == 0) & (b.log_ratios * b.advantages < 0) & (b.advantages * a > 0)).any())


def _pushed_away(f: Function, b: Batch) -> bool:
    found = f.evaluate(b).coefficients
    return bool(((found * b.advantages < 0) & (b.log_ratios * b.advantages < 0)).any())


def reference(f: Function) -> Finding | None:
    """A term of the reference policy pulls towards it, and not where the policies agree."""
    if "ref_log_probs" not in f.roles:
        return None

    def still(b: Batch) -> Batch:
        return replace(b, rows=tuple(replace(r, advantage=0.0, reward=0.0) for r in b.on_policy().rows))

    def pulls(b: Batch) -> bool:
        return bool((np.abs(f.evaluate(still(b)).coefficients) > 1e-12).any())

    if at := first_failure(f, pulls):
        text = "without advantages, and with log-probs equal to the reference's, there is a gradient: k1 as a loss?"
        return Finding("reference", "fails", text, still(at))

    def moved(y: Floats) -> Batch:
        base = still(drawn(6, (1,) * len(y), 0.0, groups=[0] * len(y)))
        moves = zip(base.rows, y, strict=True)
        return replace(base, rows=tuple(replace(r, ref_log_probs=(float(r.log_probs[0] - d),)) for r, d in moves))

    y = np.array([-1.0, -0.3, 0.4, 1.2])
    c = f.evaluate(moved(y)).coefficients
    if not np.isfinite(c).all():
        return None
    if not c.any():
        return Finding("reference", "note", "the log-probs of the reference decide no gradient")
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


def causal(f: Function) -> Finding:
    """Whether a token's coefficient depends on later tokens of its row, or on other rows."""

    def reads(b: Batch, later: bool) -> bool:
        for r, row in enumerate(b.rows):
            for t in range(len(row)):
                place = sum(b.lengths[:r]) + t
                x = b.log_ratios
                x[place] += 0.05
                before, after = f.evaluate(b).coefficients, f.evaluate(b.moved(x)).coefficients
                moved = np.abs(after - before) > 1e-10 * np.abs(before).max()
                same_row = b.row_of_token == r
                asked = same_row & (np.arange(b.tokens) < place) if later else ~same_row
                if (moved & asked).any():
                    return True
        return False

    # off policy, and at ratio 1, from which a step of 0.05 crosses the narrowest bounds
    small = (drawn(2, (3, 2), 0.05), drawn(3, (3, 2), 0.6), drawn(2, (3, 2), 0.0).on_policy())
    if at := first_failure(f, lambda b: reads(b, later=False), small):
        return Finding("causal", "note", "a token's gradient depends on log-probs of other rows", at)
    if at := first_failure(f, lambda b: reads(b, later=True), small):
        return Finding("causal", "note", "a token's gradient depends on later tokens of its row", at)
    return Finding("causal", "holds", "a token's gradient depends on no later token")


def accumulation(f: Function) -> Finding:
    """By what each micro-batch's loss has to be scaled, so that the sum is the loss of the whole batch."""
    whole = drawn(11, (3, 1, 4, 2, 4, 2, 6, 1), 0.0, groups=[0] * 5 + [1] * 3).on_policy()
    found = f.evaluate(whole).coefficients
    cut = (whole.rows[:5], whole.rows[5:])
    parts = [Batch(p) for p in cut]
    own = [f.evaluate(p).coefficients for p in parts]
    ends = [0, parts[0].tokens, whole.tokens]
    factors = []
    for i, c in enumerate(own):
        mine = found[ends[i] : ends[i + 1]]
        k = float(mine @ c / (c @ c)) if c.any() else 1.0
        if not is_close(mine, k * c, float(np.abs(found).max())):
            text = "the parts of a batch do not add up to the whole, whatever they are scaled by"
            return Finding("accumulation", "note", text)
        factors.append(k)

    def share(size: Callable[[Batch], float]) -> list[float]:
        return [size(p) / size(whole) for p in parts]

    shares = (
        ("its share of the rows: the loss is a mean over rows", share(lambda b: len(b.rows))),
        ("its share of the tokens: the loss is a mean over tokens", share(lambda b: b.tokens)),
        ("its share of the padded places, rows × width: the loss is a mean over places", share(_places)),
        ("its width ÷ that of the batch: the loss divides by the padded width", share(lambda b: max(b.lengths))),
        ("its share of the prompt groups: the loss is a mean over groups", [0.5, 0.5]),
    )
    if np.allclose(factors, 1, rtol=MU, atol=0):
        return Finding("accumulation", "note", "add up the losses of micro-batches as they are: the loss is a sum")
    for words, expected in shares:
        if np.allclose(factors, expected, rtol=MU, atol=0):
            return Finding("accumulation", "note", f"multiply the loss of each micro-batch by {words}")
    by = listed(f"{k:.4g} for {p}" for k, p in zip(factors, parts, strict=True))
    return Finding("accumulation", "note", f"micro-batches need factors that are no share of rows or tokens: {by}")


def _places(b: Batch) -> float:
    return len(b.rows) * max(b.lengths)
