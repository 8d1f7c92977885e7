"""What tells losses apart, in words: what they divide by, where they stop a token, what its gradient depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fibration.auditing.batch import UNDER, Batch, Floats, drawn, on_policy, probe, steps
from fibration.auditing.finding import MU, Finding, Status, first_failure, is_close
from fibration.auditing.formula import Untraced, free
from fibration.auditing.function import Function
from fibration.errors import listed

PLACES = "places of the padded batch, rows × width"
EXCHANGED = "k3 with the policy and the reference exchanged"
ROWS = "its share of the rows"
SUM = "the sum over all tokens"
# What μ is, of rows, tokens, the longest row and the token's row; and by what a micro-batch's loss is then multiplied.
NORMALISERS: dict[str, tuple[Callable[[float, float, float, float], float], str]] = {
    "the mean over all tokens": (lambda r, t, w, n: 1 / t, "its share of the tokens"),
    "the mean over rows of each row's mean": (lambda r, t, w, n: 1 / (r * n), ROWS),
    "the sum of each row, averaged over rows": (lambda r, t, w, n: 1 / r, ROWS),
    SUM: (lambda r, t, w, n: 1.0, "nothing"),
    "each row's mean, summed": (lambda r, t, w, n: 1 / n, "nothing"),
    f"{SUM} ÷ all {PLACES}": (lambda r, t, w, n: 1 / (r * w), f"its share of the {PLACES}"),
    f"{SUM} ÷ the width of the padded batch": (lambda r, t, w, n: 1 / w, "its width ÷ that of the batch"),
}


def first_update(f: Function) -> Finding | None:
    """At ratio 1 `−∂loss/∂log π = μ·A`, with a μ that reads neither log-probs nor advantages."""
    if not f.reads_advantages:
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


def sign(f: Function) -> Finding | None:
    """At ratio 1 every token is pushed with its advantage."""
    if not f.reads_advantages or f.whitens:  # whitened ones may have another sign
        return None

    def against(b: Batch) -> bool:
        return bool((f.evaluate(b.on_policy()).coefficients * b.advantages < -1e-12).any())

    if at := first_failure(f, against, on_policy()):
        return Finding("sign", "fails", "at ratio 1 a token is pushed against its advantage: the loss is −J, or J?", at)
    return Finding("sign", "holds", "at ratio 1 every token is pushed with its advantage")


def normaliser(f: Function) -> Finding | None:
    """What the loss divides by, and by what the loss of each micro-batch is multiplied."""
    if not f.reads_advantages or (first := first_update(f)) is None or first.status != "holds":
        return None  # then there is no μ
    seen: list[tuple[float, ...]] = []
    for b in on_policy():
        mu, lengths = f.evaluate(b).coefficients / b.advantages, np.repeat(b.lengths, b.lengths)
        seen += [(m, len(b.rows), b.tokens, max(b.lengths), n) for m, n in zip(mu, lengths, strict=True)]
    for words, (shape, share) in NORMALISERS.items():
        k = np.array([m / shape(*counts) for m, *counts in seen])
        if np.abs(k - k[0]).max() <= MU * abs(k[0]):
            is_one = abs(k[0] - 1) < MU
            text = f"μ is {words}{'' if is_one else f' × {k[0]:.6g}'}; multiply the loss of a micro-batch by {share}"
            return Finding("normaliser", "holds" if is_one else "fails", text, None if is_one else on_policy()[0])

    def uneven(b: Batch) -> bool:
        if not b.advantages.all():
            return False
        mu = f.evaluate(b).coefficients / b.advantages
        sums = np.array([mu[b.row_of_token == r].sum() for r in range(len(b.rows))])
        return all(np.ptp(v) > MU * abs(v[0]) for v in (sums, sums / np.array(b.lengths)))

    at = first_failure(f, uneven, on_policy())
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


def slope(f: Function, x: Floats, sign: float) -> Floats:
    """The coefficients of many rows of one token (`probe`), times the number of rows and the advantage's sign.

    Where advantages are standardised, each row has one beside it with the other sign, so that they keep theirs.
    """
    signs = np.repeat([sign, -sign][: 1 + f.whitens], len(x))
    found = f.evaluate(probe(np.tile(x, 1 + f.whitens), signs))
    return found.coefficients[: len(x)] * len(signs) * sign


BACK = "as a clip without min(ratio·A, clip(ratio)·A) does"


def sides(f: Function) -> Finding | None:
    """Where a token's gradient is 0: a bound stops what pushes outward, away from the old policy."""
    if not f.reads_advantages:
        return None
    x, said, both = steps(3.0), list[str](), list[str]()  # further out, soft gates are 0 but for rounding
    for a, sign in ((1.0, "> 0"), (-1.0, "< 0")):
        c = slope(f, x, a)
        if not np.isfinite(c).all():
            continue
        outward, stopped, against = x * a > 0, c == 0, c < -1e-9 * np.abs(c).max()
        if stopped[~outward].any() and not stopped[outward].any():
            text = f"with A {sign}, a bound stops a ratio on its way back to 1, and none on its way out: max for min"
            at = _row_at(f, x[stopped & ~outward], a)
            return Finding("sides", "fails", f"{text}, or a clip on the wrong side?", at)
        if (against & ~outward).any():
            text = f"with A {sign}, a token is pushed further out against its advantage"
            return Finding("sides", "fails", text, _row_at(f, x[against & ~outward], a))
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
    near, far, further = slope(f, np.array([3.0, 6.0, 9.0]), 1.0)
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
        if slope(f, np.array([middle]), a)[0] == 0:
            closed = middle
        else:
            open_ = middle
    return float(closed)


def _row_at(f: Function, x: Floats, a: float) -> Batch:
    """The row of the first of these log ratios; where advantages are standardised, with one of the other sign."""
    return probe(np.full(1 + f.whitens, x[0]), np.array([a, -a][: 1 + f.whitens]))


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
