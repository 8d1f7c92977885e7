"""Penalties on every backend, against formulas that know nothing of lowering: values and gradients, off policy."""

from dataclasses import replace

import numpy as np
import pytest
import rank_batches
import torch
from oracles.backend_cases import BACKENDS_HERE, F32, F64, Case
from support import Batch, operator, packed, padded, prompt_group, refuses, token, trajectory
from thorough import ALL

from fibration import (
    BatchError,
    Hierarchy,
    Parameter,
    Penalty,
    absolute,
    advantage,
    after,
    before,
    centred,
    count,
    exp,
    expm1,
    log,
    log_prob,
    mean,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    reward,
    sqrt,
    stop,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.atoms import BATCH, Stratum

WHOLE = Stratum(BATCH)


# ---------------------------------------------------------------- by hand


def on(*names):
    """Of compiled backends, everyday those that are named: building takes time."""
    here = [b.name for b in BACKENDS_HERE if b.device == "cpu" and (ALL or b.name in names)]
    return pytest.mark.parametrize("backend", here)


current, old, rollout, reference = policies("current old rollout reference")
x = log_prob(current) - log_prob(reference)
k = log_prob(old) - log_prob(rollout)
r = token_log_ratio
beta = Parameter("beta", default=0.3)


def losing(objective=None, groups=(), **penalties):
    """PPO less penalties."""
    gates = {token: pessimistic_clip_gate(0.2, 0.2)}
    return Hierarchy(
        name="losing", gates=gates, decomposition=ratio_deviation(), objective=objective or token_mean(),
        groups=groups, penalties=penalties,
    )  # fmt: skip


worse = where(advantage > 0, exp(-mean(r, over=trajectory) / beta), 0)


# Penalties of every kind in one loss, which weighs and keeps in every way: every backend builds it once.
EVERY = losing(
    trajectory_mean().weigh(exp(k)).keep(k <= 0.3, normaliser="kept").keep(absolute(r) < 0.8),
    k2=beta * x * x / 2,
    own=Penalty(expm1(-x) + x, objective=token_mean().weigh(exp(r)).keep(x < 0.5, normaliser="kept")),
    positives=Penalty(where(advantage > 0, -log_prob(current), 0) / 4, objective=token_mean().keep(r > -0.5)),
    spread=(r - mean(r, over=trajectory)) ** 2 * stop(exp(r)),
    soft=Penalty(log(1 + total(exp(-r / 2), over=trajectory)) * mean(x, over=WHOLE), over=trajectory),
    real=Penalty(log(1 + total(worse, over=prompt_group, of=trajectory)), over=prompt_group),
    groups=[prompt_group],
)


class Given:
    """Rows of 4, 0, 1, 7 and 3 tokens: ratios on both sides of every bound, and log-probs of four policies."""

    lengths = (4, 0, 1, 7, 3)

    def __init__(self):
        generator = np.random.default_rng(5)
        n = sum(self.lengths)
        self.row, self.n = np.repeat(np.arange(5), self.lengths), n
        self.old = generator.uniform(-3, -1.2, n)
        self.now = self.old + generator.normal(scale=0.5, size=n)
        self.reference, self.rollout = (self.old + generator.normal(scale=0.4, size=n) for _ in range(2))
        self.advantages = generator.normal(size=5)[self.row]

    def mean(self, values, chosen=None):
        """`Σ μ·values` of a mean over trajectories, of some tokens alone."""
        chosen = np.ones(self.n, bool) if chosen is None else chosen
        rows = [np.flatnonzero((self.row == i) & chosen) for i in range(5)]
        return np.mean([values[tokens].mean() for tokens in rows if len(tokens)])

    def rows(self, values):
        return [values[self.row == i] for i in range(5) if self.lengths[i]]

    def taken_off(self, now, held):
        """Every penalty of EVERY at log-probs `now`, with weights and conditions at `held`."""
        x, r, fixed = now - self.reference, now - self.old, held - self.old
        counted, own = self.old - self.rollout <= 0.3, held - self.reference < 0.5
        means = np.array([row.mean() for row in self.rows(r)])
        spread = np.concatenate([row - m for row, m in zip(self.rows(r), means, strict=True)])
        soft = [np.log(1 + np.exp(-row / 2).sum()) for row in self.rows(r)]
        worse = np.where([row[0] > 0 for row in self.rows(self.advantages)], np.exp(-means / 0.3), 0)
        return {
            "k2": self.mean(0.3 * x * x / 2, counted),
            "own": (np.exp(fixed) * (np.exp(-x) - 1 + x))[own].mean(),
            "positives": np.where((self.advantages > 0) & (fixed > -0.5), -now, 0).sum() / 4 / self.n,
            "spread": self.mean(spread**2 * np.exp(fixed), counted),
            "soft": np.mean(soft) * x.mean(),
            "real": (np.log(1 + worse[[0, 2]].sum()) + np.log(1 + worse[[1, 3]].sum())) / 2,
        }

    def gated(self, now, held):
        r, k = now - self.old, self.old - self.rollout
        a = self.advantages
        terms = np.minimum(np.exp(r) * a, np.clip(np.exp(r), 0.8, 1.2) * a) * np.exp(k)
        return self.mean(np.where(np.abs(held - self.old) < 0.8, terms, 0), k <= 0.3)

    def objective(self, now, held):
        return self.gated(now, held) - sum(self.taken_off(now, held).values())

    def slopes(self, step=1e-6):
        """Central differences."""
        e = np.eye(self.n) * step
        return np.array(
            [self.objective(self.now + d, self.now) - self.objective(self.now - d, self.now) for d in e]
        ) / (2 * step)

    def call(self, op, layout, dtype=F64, **changes):
        given = {w: getattr(self, w) for w in ("now", "old", "advantages", "reference", "rollout")} | changes
        tensors = {word: layout.tensor(values, dtype) for word, values in given.items()}
        others = {name: tensors[name] for name in ("reference", "rollout") if name in op.hierarchy.policies}
        return op.coefficients(tensors["now"], tensors["old"], tensors["advantages"], layout.index, policies=others)

    def case(self):
        others = {"reference": self.reference - self.old, "rollout": self.rollout - self.old}
        return Case(EVERY, replace(self.batch(), policies=others), np.zeros(self.n), F64, 0)

    def batch(self):
        return Batch(self.lengths, self.now - self.old, self.advantages, labels={"prompt_group": list("azbab")})


@on("torch", "c")
def test_every_kind_of_penalty_equals_its_formula(backend):
    """Values, metrics, and central differences of float64 formulas, with what is detached held."""
    op, given = operator(EVERY, backend), Given()
    for make in (packed, padded):
        layout = make(op, given.batch())
        found = given.call(op, layout)
        expected, slopes = given.taken_off(given.now, given.now), given.slopes()
        assert float(found.objective) == pytest.approx(given.objective(given.now, given.now), rel=1e-12)
        assert layout.read(found.values) == pytest.approx(slopes, rel=1e-7, abs=1e-9)
        assert {n: float(found.metrics[f"penalty/{n}"]) for n in expected} == pytest.approx(expected, rel=1e-12)
        assert [float(found.metrics[f"penalty/{name}"].count) for name in ("soft", "real")] == [4, 2]


@on("torch", "c")
def test_gradients_of_penalties_flow_through_order(backend):
    """Of a prefix, and of what comes after: values, and central differences."""
    prefix = before(x, over=trajectory, discount=0.9) + x
    share = Parameter("share", default=0.7, lower=0, upper=1)
    rest = stop(r) * after(x * x, over=trajectory, discount=share)
    op, given = operator(losing(prefix=prefix**2, rest=Penalty(rest, objective=token_mean())), backend), Given()

    def taken_off(now, held):
        d, total = now - given.reference, 0.0
        for i in range(5):
            row, mine = d[given.row == i], (held - given.old)[given.row == i]
            for t in range(len(row)):
                before_t = sum(0.9 ** (t - s) * row[s] for s in range(t))
                after_t = sum(0.7 ** (s - t) * row[s] ** 2 for s in range(t + 1, len(row)))
                total += ((before_t + row[t]) ** 2 + mine[t] * after_t) / given.n
        return total

    plain, layout = operator(losing(), backend), packed(op, given.batch())
    found = given.call(op, layout)
    alone = given.call(plain, packed(plain, given.batch()))
    now, steps = given.now, np.eye(given.n) * 1e-6
    slopes = np.array([taken_off(now + e, now) - taken_off(now - e, now) for e in steps]) / 2e-6
    assert float(alone.objective - found.objective) == pytest.approx(taken_off(now, now), rel=1e-12)
    assert layout.read(alone.values) - layout.read(found.values) == pytest.approx(slopes, rel=1e-7, abs=1e-9)


@on("torch")
def test_conditions_of_penalties_read_advantages_from_rewards(backend):
    """Of tokens and of coarser elements: what is good is what is better than its group."""
    penalties = {name: EVERY.penalties[name] for name in ("positives", "real")}
    h = losing(groups=[prompt_group], **penalties).replace(advantages=centred(reward, over=prompt_group))
    op, given = operator(h, backend), Given()
    layout = packed(op, given.batch())
    rewards = torch.tensor([1.0, 7.0, 0.5, 3.0, -1.0], dtype=F64)  # of which no token has the second
    now, old = layout.tensor(given.now), layout.tensor(given.old)
    others = {"reference": layout.tensor(given.reference)} if "reference" in h.policies else {}
    found = op.coefficients(now, old, index=layout.index, rewards=rewards, policies=others)
    given.advantages = np.array([-1.0, 0, 0.75, 1.0, -0.75])[given.row]
    expected = given.call(op, layout)
    taken = given.taken_off(given.now, given.now)
    assert torch.equal(found.values, expected.values)
    assert {n: float(found.metrics[f"penalty/{n}"]) for n in penalties} == pytest.approx(
        {n: taken[n] for n in penalties}
    )


@on("c")
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_k3_keeps_its_digits_near_and_far_from_the_reference(backend, dtype):
    """The slope of k3 is `1 - exp(-x)` to float32's last digits, from where the policies are the same bits to e^80."""
    given = Given()
    distances = np.array([0, 2**-9, -(2**-9), 2**-7, 0.5, -0.5, 3, -3, 20, -20, 60, -60, -80, 2**-8, -(2**-8)])
    given.old = given.now = np.full(given.n, -0.5)
    given.reference = np.full(given.n, -0.5) - distances
    far = torch.as_tensor(given.reference).to(dtype).double().numpy()
    distances = given.now - far
    for formula in (expm1(-x) + x, x - 1 + exp(-x)):
        op = operator(losing(kl=Penalty(formula)), backend)
        layout = packed(op, given.batch())
        found = layout.read(given.call(op, layout, dtype).values)
        wanted = torch.as_tensor(given.advantages).to(dtype).double().numpy() / given.n
        bound = 1e-6 * (np.abs(np.expm1(-distances)) + np.abs(wanted * given.n))
        assert (np.abs(found - wanted - np.expm1(-distances) / given.n) * given.n <= bound).all()
        alone = given.call(op, layout, dtype, advantages=np.zeros(given.n))
        assert layout.read(alone.values) == pytest.approx(np.expm1(-distances) / given.n, rel=1e-6, abs=0)


@on("torch")
def test_a_token_that_a_penalty_drops_adds_nothing(backend):
    """Tokens and a row at which values and slopes are infinite, beside others that are by hand."""
    m = mean(x, over=trajectory)
    own = token_mean().keep((absolute(x) < 700) & (absolute(m) < 700))
    op, given = (
        operator(
            losing(steep=Penalty(exp(-x) + 1 / x + exp(m) + log(2000 - m) + log(710 - x), objective=own)), backend
        ),
        Given(),
    )
    given.now[4] = -1.5  # so that 2000 - m is 0
    given.reference[[2, 4, 6]] = given.now[[2, 4, 6]] + [1500, -2000, -1900]
    d = given.now - given.reference
    m = np.array([row.mean() for row in given.rows(d)])[np.searchsorted([0, 2, 3, 4], given.row)]
    kept = (np.abs(d) < 700) & (np.abs(m) < 700)
    assert kept.tolist() == [i not in (2, 4, 6) for i in range(given.n)]
    layout = padded(op, given.batch())
    found = layout.read(given.call(op, layout).values)
    plain = layout.read(
        given.call(operator(losing(), backend), padded(operator(losing(), backend), given.batch())).values
    )
    lengths = np.array(given.lengths)[given.row]
    of_row = np.where(kept, np.exp(np.where(kept, m, 0)) - 1 / np.where(kept, 2000 - m, 1), 0)
    of_row = np.bincount(given.row, of_row, minlength=5)[given.row] / lengths
    assert m[4] == 2000
    own_slope = np.exp(-d[kept]) + 1 / d[kept] ** 2 + 1 / (710 - d[kept])
    assert found[kept] == pytest.approx(plain[kept] + (own_slope - of_row[kept]) / given.n, rel=1e-12)
    assert found[~kept] == pytest.approx(plain[~kept] - of_row[~kept] / given.n, rel=1e-12)


@on("torch")
def test_a_penalty_that_is_infinite_is_named_with_its_token(backend):
    given = Given()
    given.reference[6] = given.now[6] + 800
    per_row = Penalty(exp(-mean(x, over=trajectory) * count(token, over=trajectory)), over=trajectory)
    for name, made, words in (
        ("steep", Penalty(exp(-x)), "the penalty 'steep' of token"),
        ("weighed", Penalty(x, objective=token_mean().weigh(exp(-x))), "the penalty 'weighed' of token"),
        ("whole", per_row, "the penalty 'whole' of the trajectory of token"),
    ):
        op = operator(losing(fine=x * x, **{name: made}), backend)
        layout = padded(op, given.batch())
        refuses(
            BatchError,
            lambda op=op, layout=layout: given.call(op, layout),
            what=(words, "of trajectory 3 is not finite"),
            required="finite penalties of all kept tokens",
            remedy="minimum(..., bound)",
        )


@on("torch")
def test_a_root_at_0_in_a_penalty_is_an_error(backend):
    """A distance from a reference that the policy still is has a value there, and no slope."""
    given = Given()
    given.reference[given.row == 3] = given.now[given.row == 3]
    far = sqrt(mean(x * x, over=trajectory))
    op = operator(losing(far=Penalty(far, over=trajectory)), backend)
    refuses(
        BatchError,
        lambda: given.call(op, packed(op, given.batch())),
        what=("the slope of the penalty 'far' at token", "of trajectory 3 is not finite"),
        found="sqrt(mean(",
        remedy="sqrt(... + 1e-8)",
    )
    given.reference[given.row == 3] += 0.1
    assert torch.isfinite(given.call(op, packed(op, given.batch())).values).all()


def test_losses_require_a_policy_that_only_a_penalty_reads():
    op, given = operator(losing(kl=beta * (expm1(-x) + x))), Given()
    layout = packed(op, given.batch())
    now, old, advantages = (layout.tensor(v) for v in (given.now, given.old, given.advantages))
    refuses(
        BatchError,
        lambda: op.loss(now, old, advantages, layout.index),
        what="the policy 'reference', whose log-probs are missing",
        found="no 'reference', which is read by the penalty 'kl'",
    )
    others = {"reference": layout.tensor(given.reference)}
    ratio = (now - old).requires_grad_()
    plain = operator(losing())
    index = packed(plain, given.batch()).index
    for more in (None, others):
        gated = op.gate(ratio, layout.index, advantages=advantages, policies=more)
        assert torch.equal(gated, plain.gate(ratio, index, advantages=advantages))
        op.levels(ratio.detach(), layout.index, advantages=advantages, policies=more)
    now = now.requires_grad_()
    loss = op.loss(now, old, advantages, layout.index, policies=others)
    loss.loss.backward()
    found = given.call(op, layout)
    assert torch.equal(loss.loss.detach(), -found.objective)
    assert torch.equal(now.grad, -found.values)


def test_metrics_of_penalties_add_up_over_batches():
    """By their rows, or by the elements that a penalty is read over."""
    op, given = operator(EVERY), Given()
    found = given.call(op, packed(op, given.batch())).metrics
    twice = found["penalty/real"] + found["penalty/real"]
    assert (float(twice), float(twice.count)) == (pytest.approx(float(found["penalty/real"])), 4)


@pytest.mark.thorough
@on("torch")
def test_the_bits_of_penalties_do_not_depend_on_ranks(backend):
    """Whole rows in order, and a rank without any: those of one process. Cut ones: the same for any cut."""
    c = Given().case()
    op, rows = operator(c.hierarchy, backend), range(len(c.batch.lengths))
    expected = rank_batches.alone(op, c.batch, gates=False)
    whole = rank_batches.spread(op, c.batch, rank_batches.whole_rows(c.batch, 1, 1), gates=False)
    assert whole.bits() == expected.bits()
    lengths = c.batch.lengths
    halves = [[(r, 0, lengths[r] // 2) for r in rows], [(r, lengths[r] // 2, lengths[r]) for r in rows]]
    strewn = [
        [(r, lengths[r] - 1, lengths[r]) for r in rows if lengths[r]],
        [],
        [(r, 0, lengths[r] - 1) for r in rows if lengths[r] > 1],
    ]
    one, other = (rank_batches.spread(op, c.batch, pieces, keys=True, gates=False) for pieces in (halves, strewn))
    assert one.bits() == other.bits()
    assert one.values == pytest.approx(expected.values, rel=1e-9, abs=1e-12)
    assert one.objective == pytest.approx(expected.objective, rel=1e-9)
