"""`fibration.head.loss`: value and gradients are those of full logits, whatever the chunk, the cut and the ranks."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from random_steps import VOCABULARY, WIDTH, ClosedForm, HeadStep, furthest
from support import operator, packed, padded, refuses, spec
from thorough import ALL
from thread_ranks import on_ranks, try_on_ranks

import fibration
from fibration import BatchError
from fibration.language.loading import shipped

ROUNDING = 1e-12  # of float64 sums over a vocabulary and a batch, in another order
BIAS = np.random.default_rng(7).normal(size=VOCABULARY)
SHAPED = {"bias": BIAS, "softcap": 2.5, "temperature": 0.7}


def step(name, *given, **more):
    return HeadStep(operator(spec(name)), *given, **more)


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


WAYS = [(layout, chunk) for chunk in (1, 7, 1000) for layout in (packed, padded)]
MET = [  # every loss in two ways, of which CI takes one
    (name, *WAYS[(i + k) % len(WAYS)]) for i, name in enumerate(sorted(shipped())) for k in (range(6) if ALL else (0, 3))
]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "layout", "chunk"), MET)
def test_every_shipped_loss_has_the_gradients_of_full_logits(name, layout, chunk):
    for seed, shape in ((7, {}), (2, SHAPED)):
        made = step(name, seed, layout, **shape)
        leaves = made.leaves()
        result = made.loss_of_head(leaves, chunk=chunk)
        result.loss.backward()
        assert furthest(made.got(leaves), made.wanted()) <= ROUNDING
        whole = made.coefficients()
        assert float(result.loss.detach()) == pytest.approx(-float(whole.objective), rel=1e-12, abs=1e-13)
        assert np.abs(made.layout.read(result.log_probs) - made.form.log_probs(made.numbers)).max() <= ROUNDING
        assert numbers(result.metrics) == pytest.approx(numbers(whole.metrics), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["dapo", "gspo", "real"])
@pytest.mark.parametrize("chunk", [2, 1000])
def test_the_entropy_and_the_gradient_of_its_bonus_equal_full_logits(name, chunk):
    """The bonus is `κ` times the mean entropy over unmasked tokens, without advantages too."""
    for shape in ({}, SHAPED):
        made = step(name, 2, padded, **shape)
        for advantages in (made.advantages, torch.zeros_like(made.advantages)):
            made.advantages = advantages
            leaves = made.leaves()
            result = made.loss_of_head(leaves, chunk=chunk, entropy_bonus=0.4)
            result.loss.backward()
            assert furthest(made.got(leaves), made.wanted(bonus=0.4)) <= ROUNDING
            assert np.abs(made.layout.read(result.entropy) - made.form.entropy).max() <= ROUNDING
            assert not result.entropy.requires_grad and not result.log_probs.requires_grad
            wanted = -float(made.coefficients().objective) - 0.4 * made.form.entropy.mean()
            assert float(result.loss.detach()) == pytest.approx(wanted, rel=1e-12)
    assert made.loss_of_head(leaves).entropy is None
    asked = made.loss_of_head(leaves, entropy=True)
    assert torch.equal(asked.entropy, result.entropy) or chunk == 2


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["grpo", "gspo", "fiberpo_domain"])
def test_errors_are_not_larger_than_those_of_full_logits_in_the_same_dtype(name, dtype):
    """The exact gradients are those of the rounded hidden states and weights, with log ratios far from any bound.

    A gradient is rounded once to its dtype. Before, each log-prob is off by some roundings of float32 numbers of the
    logits' size, and so is the ratio that its coefficient has as a factor.
    """
    made = step(name, 5, padded, scale=0.3)
    hidden, weight = (t.detach() for t in made.leaves(dtype))
    slots = made.layout.slots
    made.form = ClosedForm(hidden.double().reshape(-1, WIDTH).numpy()[slots], weight.double().numpy())
    made.new = made.layout.tensor(made.form.log_probs(made.numbers))
    made.old = made.new + made.layout.tensor(np.where(np.arange(len(slots)) % 3, 0.02, -0.03))
    wanted, largest = made.wanted(), float(np.abs(made.form.log_p).max())

    full = [hidden.nan_to_num(0).requires_grad_(), weight.clone().requires_grad_()]
    logits = (full[0] @ full[1].T).float().log_softmax(-1)
    log_probs = logits.gather(-1, made.targets.clamp_min(0)[..., None]).squeeze(-1)
    given = made.old, made.advantages, made.index, made.parameters
    made.op.loss(log_probs, *given, policies=made.policies).loss.backward()

    for chunk in (3, 1000):
        mine = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        result = made.loss_of_head(mine, chunk=chunk)
        result.loss.backward()
        assert result.loss.dtype == torch.float32 and mine[1].grad.dtype == dtype
        for g, f, w in zip(made.got(mine), made.got(full), wanted, strict=True):
            unit = torch.finfo(dtype).eps + (8 + 4 * largest) * torch.finfo(torch.float32).eps
            assert np.abs(g - w).max() <= 2 * np.abs(f - w).max() + unit * np.abs(w).max()


@pytest.mark.thorough
def test_a_scale_of_the_loss_reaches_float16_before_its_gradients_are_rounded():
    """Gradients of 1e-9 are 0 in float16; trainers scale the loss by 2**16."""
    made = step("grpo", 5, scale=0.3)
    made.advantages = made.advantages * 1e-7
    leaves = made.leaves(torch.float16)
    (made.loss_of_head(leaves, chunk=3).loss * 2**16).backward()
    assert furthest([g / 2**16 for g in made.got(leaves)], made.wanted()) < 0.02


def test_log_probs_are_never_above_0():
    """verl #2656. In float32, of distributions so peaked that rounding would show."""
    for seed in range(20):
        made = step("grpo", seed, scale=float(10 ** (seed % 5)))
        with torch.no_grad():
            result = made.loss_of_head([t.float() for t in made.leaves()], entropy=True)
        assert float(made.layout.read(result.log_probs).max()) <= 0
        assert float(made.layout.read(result.entropy).min()) >= -1e-5


def test_tied_weights_add_up_and_the_trunk_learns_with_the_head():
    """verl #7235: a trunk whose gradient is 0 while the head trains."""
    made = step("grpo", 4)

    def gradients(loss_of):
        embedding = torch.from_numpy(made.form.weight).clone().requires_grad_()
        mixing = torch.eye(WIDTH, dtype=torch.float64).requires_grad_()
        before = made.targets.roll(1)
        hidden = torch.tanh(embedding[before] @ mixing) + made.hidden.nan_to_num(0)
        loss_of(hidden, embedding).backward()
        return [embedding.grad.numpy(), mixing.grad.numpy()]

    given = made.old, made.advantages, made.index

    def full(hidden, weight):
        log_probs = (hidden @ weight.T).log_softmax(-1).gather(-1, made.targets[:, None])[:, 0]
        return made.op.loss(log_probs, *given).loss

    got = gradients(
        lambda hidden, weight: fibration.head.loss(made.op, hidden, weight, made.targets, *given, chunk=3).loss
    )
    assert all(np.abs(g).max() > 1e-4 for g in got)
    assert furthest(got, gradients(full)) <= ROUNDING


def test_a_tensor_that_does_not_require_grad_gets_no_gradient():
    made = step("gspo", 0, padded, **SHAPED)
    for which in range(3):
        leaves = made.leaves()
        for i, leaf in enumerate(leaves):
            leaf.requires_grad_(i == which)
        made.loss_of_head(leaves, chunk=3).loss.backward()
        assert [t.grad is not None for t in leaves] == [i == which for i in range(3)]
        if which:
            assert furthest([leaves[which].grad.numpy()], [made.wanted()[which]]) <= ROUNDING
    assert not made.loss_of_head([t.detach() for t in leaves]).loss.requires_grad
    with torch.no_grad():
        assert not made.loss_of_head(made.leaves()).loss.requires_grad


def test_a_backward_pass_scales_may_be_repeated_and_is_not_differentiable():
    made = step("grpo", 0, padded)
    leaves = made.leaves()
    loss = made.loss_of_head(leaves, chunk=3).loss
    loss.backward(retain_graph=True)
    once = made.got(leaves)
    leaves[1].grad.zero_()  # a gradient that is handed out is not the saved one
    (-3 * loss).backward()
    assert furthest([made.got(leaves)[0] / -2, made.got(leaves)[1] / -3], once) <= ROUNDING
    leaves = made.leaves()
    (gradient,) = torch.autograd.grad(made.loss_of_head(leaves).loss, leaves[1], create_graph=True)
    refuses(BatchError, lambda: gradient.sum().backward(), what="differentiated again", remedy="without create_graph")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["grpo", "gspo", "geometric_mask", "real", "fiberpo_domain"])
def test_micro_batches_with_the_bonus_add_up(name):
    made = step(name, 6, padded, **SHAPED)
    leaves, losses = made.leaves(), []
    made.freeze()
    for rows in made.closed():
        part = made.loss_of_head(leaves, rows, chunk=3, entropy_bonus=0.2)
        part.loss.backward()
        losses.append(float(part.loss.detach()))
        refuses(BatchError, lambda part=part: part.metrics, what="metrics of a micro-batch")
    assert furthest(made.got(leaves), made.wanted(bonus=0.2)) <= ROUNDING
    wanted = -float(made.coefficients().objective) - 0.2 * made.form.entropy.mean()
    assert sum(losses) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_rows_in_pieces_have_the_gradients_of_full_logits(name):
    """Pieces of one trajectory in several rows: a loss of trajectories sees them together."""
    made = step(name, 1)
    rows, n = len(made.index), len(made.layout.slots)
    keys, bounds = [f"t{r // 2}" for r in range(rows)], made.index.bounds
    made.advantages = made.advantages[[2 * (r // 2) for r in range(rows)]]
    made.index = made.op.index(offsets=bounds, trajectory=keys, positions=np.arange(n))
    leaves = made.leaves()
    made.loss_of_head(leaves, chunk=2).loss.backward()
    assert furthest(made.got(leaves), made.wanted()) <= ROUNDING


@pytest.mark.parametrize("name", ["grpo", "gspo", "geometric_mask", "fiberpo_domain"])
def test_losses_and_gradients_of_ranks_add_up(name):
    """Ranks have other numbers of chunks, and one has no rows."""
    made = step(name, 8)
    rows = len(made.index)
    split = [list(range(rows // 3)), [], list(range(rows // 3, rows))]
    labels = {s: made.index.labels[s] for s in ("prompt_group", "domain") if s in made.index.labels}
    of = {s: [labels[s][min(e)] for e in made.elements(s)] for s in labels}
    wanted = made.coefficients()

    def on_rank(group):
        mine = split[group.rank]
        offsets = np.cumsum([0, *np.diff(made.index.bounds)[mine]])
        index = made.op.index(offsets=offsets, group=group, **{s: [of[s][r] for r in mine] for s in of})
        leaves = made.leaves()
        result = made.loss_of_head(leaves, mine, index, chunk=2, entropy_bonus=0.1)
        result.loss.backward()
        return float(result.loss.detach()), made.got(leaves), numbers(result.metrics)

    losses, gradients, metrics = zip(*on_ranks(3, on_rank), strict=True)
    assert sum(losses) == pytest.approx(-float(wanted.objective) - 0.1 * made.form.entropy.mean(), rel=1e-12)
    total = [np.nan_to_num(g) for g in map(sum, zip(*gradients, strict=True))]
    assert furthest(total, made.wanted(bonus=0.1)) <= ROUNDING
    expected = numbers(wanted.metrics)
    assert all(m == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True) for m in metrics)


@pytest.mark.parametrize("name", ["grpo", "fiberpo_domain"])
def test_an_error_on_one_rank_is_raised_on_all(name):
    made = step(name, 8)
    labels = {s: ["x"] for s in ("prompt_group", "domain") if s in made.index.labels}

    def on_rank(group):
        index = made.op.index(offsets=[0, 2], group=group, **labels)
        hidden = torch.zeros(2, WIDTH, dtype=torch.float64)
        if group.rank == 1:
            hidden[1] = float("inf")
        zeros = torch.zeros(2, dtype=torch.float64)
        return fibration.head.loss(
            made.op, hidden, made.leaves()[1], torch.zeros(2, dtype=torch.int64), zeros - 1, torch.ones(1), index
        )

    for error in try_on_ranks(2, on_rank).errors:
        assert isinstance(error, BatchError) and error.what.startswith("rank 1: ")
        assert "the log-prob of token [1] of row 0" in error.what and error.found == "hidden states that are not finite"


def test_autocast_chooses_the_precision_of_products():
    made = step("grpo", 0, scale=0.3)
    leaves = made.leaves(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        under = made.loss_of_head(leaves, chunk=3)
    under.loss.backward()
    rounded = [t.detach().bfloat16().requires_grad_() for t in leaves]
    plain = made.loss_of_head(rounded, chunk=3)
    assert torch.equal(under.log_probs, plain.log_probs) and leaves[0].grad.dtype == torch.float32


def test_tokens_that_the_bias_excludes_have_no_gradient():
    bias = np.where(np.arange(VOCABULARY) % 5 == 4, -np.inf, 0.0)
    for softcap in (None, 3.0):
        made = step("grpo", 0)
        made.numbers = made.numbers // 5 * 5
        made.targets = torch.from_numpy(made.numbers)
        hidden, weight = made.leaves()
        given = (made.op, hidden, weight, made.targets, made.old, made.advantages, made.index)
        result = fibration.head.loss(*given, bias=torch.from_numpy(bias), entropy_bonus=0.1, softcap=softcap)
        result.loss.backward()
        assert hidden.grad.isfinite().all() and result.entropy.isfinite().all()
        assert softcap or not weight.grad[4::5].any()  # a softcap makes them rare


def test_importing_the_library_gives_access_to_head():
    code = "import fibration; fibration.head.loss; import sys; sys.exit('torch' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
    made = step("grpo", 0)
    result = made.loss_of_head(made.leaves(), metrics=False)
    assert list(result.scalars()) == ["loss"] and result.metrics == {}
