"""Models side by side are each the plain transformer, and samples come from the very policy whose log-probs are taken."""

import pytest
import torch
from model import Sequences, Shape, gumbel, log_probs, sample
from oracles.transformer import of_response
from tasks import END, PROMPT, RESPONSE, VOCABULARY, lengths

SHAPE = Shape(width=8, layers=2, heads=2)
MODELS, GROUPS, SAMPLES = 2, 2, 3


@pytest.fixture(scope="module")
def case():
    """Weights large enough that attention picks and choices differ; responses with their ends at all places."""
    draw = torch.Generator().manual_seed(3)
    flat = torch.randn(MODELS, SHAPE.size, generator=draw, dtype=torch.float64) / 2
    SHAPE.views(flat)["head"][..., END] *= 3  # so that responses end, greedy ones too
    prompts = torch.randint(VOCABULARY, (MODELS, GROUPS, PROMPT), generator=draw)
    responses = torch.randint(10, (MODELS, GROUPS, SAMPLES, RESPONSE), generator=draw)
    ends = torch.tensor([2, 5, RESPONSE])[None, None, :, None]
    return flat, prompts, torch.where(torch.arange(RESPONSE) < ends, responses, END)


def every(flat, prompts, responses):
    """Log-probs of all tokens everywhere, written plainly."""
    return torch.stack(
        [of_response(SHAPE, flat[m], prompts[m, g].tolist(), responses[m, g, s].tolist())
         for m in range(MODELS) for g in range(GROUPS) for s in range(SAMPLES)]
    ).view(*responses.shape, VOCABULARY)  # fmt: skip


def test_log_probs_are_those_of_the_plain_transformer(case):
    flat, prompts, responses = case
    found = log_probs(SHAPE, SHAPE.views(flat), prompts, responses, Sequences(SAMPLES))
    wanted = every(flat, prompts, responses).gather(-1, responses[..., None])[..., 0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


def test_gradients_are_those_of_finite_differences(case):
    flat, prompts, responses = case
    draw = torch.Generator().manual_seed(4)
    c = torch.randn(responses.shape, generator=draw, dtype=torch.float64)
    leaf = flat.clone().requires_grad_()
    log_probs(SHAPE, SHAPE.views(leaf), prompts, responses, Sequences(SAMPLES)).backward(c)
    value = lambda x: (c * log_probs(SHAPE, SHAPE.views(x), prompts, responses, Sequences(SAMPLES))).sum()  # noqa: E731
    for m in range(MODELS):  # along the weights of one model alone
        for _ in range(3):
            along = torch.zeros_like(flat)
            along[m] = torch.randn(flat[m].shape, generator=draw, dtype=torch.float64)
            slope = (value(flat + 1e-6 * along) - value(flat - 1e-6 * along)) / 2e-6
            assert float((leaf.grad * along).sum()) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("greedy", [False, True])
def test_samples_are_the_largest_of_log_probs_and_noise(case, greedy):
    flat, prompts, _ = case
    noise = None if greedy else gumbel([torch.Generator().manual_seed(m) for m in range(MODELS)], GROUPS * SAMPLES)
    said, likely = sample(SHAPE, SHAPE.views(flat), prompts, SAMPLES, noise)
    logs = every(flat, prompts, said)
    ended = (said == END).cumsum(-1) - (said == END).long() > 0
    best = (logs if greedy else logs + noise.permute(1, 2, 0, 3).view(logs.shape)).argmax(-1)
    assert torch.equal(said, torch.where(ended, END, best))
    mask = torch.arange(RESPONSE) < lengths(said)[..., None]
    assert torch.equal(mask, ~ended) and not bool(mask.all())
    wanted = logs.gather(-1, said[..., None])[..., 0]
    torch.testing.assert_close(likely * mask, wanted * mask, rtol=0, atol=1e-11)
    if greedy:
        assert torch.equal(said, said[:, :, :1].expand_as(said))


def test_noise_is_gumbels_and_each_models_own():
    alone = gumbel([torch.Generator().manual_seed(7)], 400)
    beside = gumbel([torch.Generator().manual_seed(k) for k in (6, 7)], 400)
    assert torch.equal(alone[:, 0], beside[:, 1]) and not torch.equal(beside[:, 0], beside[:, 1])
    x = alone.flatten().double().sort().values
    share = (torch.arange(len(x)) + 0.5) / len(x)
    assert (
        float(((-(-x).exp()).exp() - share).abs().max()) < 1.63 / len(x) ** 0.5
    )  # Kolmogorov's bound of one in a hundred


def test_a_model_does_not_depend_on_those_beside_it(case):
    flat, prompts, responses = case
    flat, draws = flat.float(), [torch.Generator().manual_seed(m) for m in range(MODELS)]
    noise = gumbel(draws, GROUPS * SAMPLES)
    said, likely = sample(SHAPE, SHAPE.views(flat), prompts, SAMPLES, noise)
    now = log_probs(SHAPE, SHAPE.views(flat), prompts, responses, Sequences(SAMPLES))
    for order in ([1, 0], [0], [1]):
        views = SHAPE.views(flat[order])
        text, probs = sample(SHAPE, views, prompts[order], SAMPLES, noise[:, order])
        assert torch.equal(text, said[order])
        torch.testing.assert_close(probs, likely[order], rtol=0, atol=3e-6)
        again = log_probs(SHAPE, views, prompts[order], responses[order], Sequences(SAMPLES))
        torch.testing.assert_close(again, now[order], rtol=0, atol=3e-6)
    assert torch.equal(SHAPE.initial([5, 6])[1], SHAPE.initial([6])[0])
