"""Base policies: supervised training in all domains until samples of each are right about as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from adam import Adam
from model import Sequences, Shape, gumbel, log_probs, sample
from tasks import DOMAINS, RESPONSE, answer, ask, lengths, stream
from torch import Tensor

EXAMPLES, BASE_RATE, STEPS, TRIED_EVERY, TRIED = 32, 1e-3, 1600, 20, 64
BASE_BETAS, BASE_WARMUP = (0.9, 0.99), 100  # of Adam, and steps
WANTED, CLOSE = 0.35, 0.15  # the share of samples that is to be right in each domain, and how close is close enough
EXAMPLE_STREAM, TRIAL_STREAM, TRIAL_NOISE_STREAM = range(10, 13)


def pretrain(shape: Shape, seeds: Sequence[int], report: Callable[[str], None] = print) -> tuple[Tensor, Tensor]:
    """Weights `[models, size]` and how often samples of them are right, `[models, domains]`.

    A domain that is ahead of what is wanted weighs less; a model in which all have once been there learns more slowly.
    What is returned of each model is where it was closest.
    """
    models, domains = len(seeds), len(DOMAINS)
    flat = shape.initial(seeds)
    weights, gradient = shape.views(flat), torch.zeros_like(flat)
    for weight, part in zip(weights.values(), shape.views(gradient).values(), strict=True):
        weight.requires_grad_().grad = part
    adam, at = Adam(flat, BASE_BETAS), Sequences(1)
    kept, closest, reached = flat.detach().clone(), torch.full((models, domains), 9.0), torch.zeros(models, domains)
    share, rate = torch.ones(models, domains), torch.full((models, 1), BASE_RATE)
    for step in range(STEPS):
        prompts = torch.stack([questions(EXAMPLES, seed, EXAMPLE_STREAM, step) for seed in seeds])
        right = answer(prompts)
        mask = torch.arange(RESPONSE) < lengths(right)[..., None]
        gradient.zero_()
        likely = log_probs(shape, weights, prompts, right[:, :, None], at)[:, :, 0] * mask
        loss = -likely.view(models, domains, -1).sum(-1) / mask.view(models, domains, -1).sum(-1)
        (loss * share).sum().backward()
        with torch.no_grad():
            adam.update(flat, gradient, rate * min(1, step / BASE_WARMUP), step)
            if step % TRIED_EVERY == TRIED_EVERY - 1:
                tried = torch.stack([questions(TRIED, seed, TRIAL_STREAM, step) for seed in seeds])
                noise = gumbel([stream(seed, TRIAL_NOISE_STREAM, step) for seed in seeds], tried.shape[1])
                said, _ = sample(shape, weights, tried, 1, noise)
                found = (said[:, :, 0] == answer(tried)).all(-1).view(models, domains, -1).float().mean(-1)
                reached = torch.maximum(reached, found)
                rate = torch.where((reached >= WANTED).all(1, keepdim=True), BASE_RATE / 4, BASE_RATE)
                share = ((WANTED - found) / WANTED + 0.15).clamp(0, 1)
                off = lambda x: (x - WANTED).abs().amax(1)  # noqa: E731
                better = off(found) < off(closest)
                kept[better], closest[better] = flat[better], found[better]
                report(f"{step + 1}: " + "; ".join(" ".join(f"{x:.2f}" for x in row) for row in found.tolist()))
                if bool((off(closest) <= CLOSE).all()):
                    break
    return kept, closest


def questions(each: int, *key: int) -> Tensor:
    draw = stream(*key)
    return torch.cat([ask(domain, each, draw) for domain in range(len(DOMAINS))])
