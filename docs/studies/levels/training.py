"""One run of the study: a base from supervised training, and reinforcement learning of it by one loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from drift import correlation
from level_arms import EXPLORED, LEVEL_ARMS, operator
from long_answers import ANSWER, SHAPE, VOCABULARY, ask, corpus, log_probs, logits, sample, score
from torch import Tensor

# `long_answers` has opened the folder of these
from adam import Adam  # isort: skip
from rl import standardised  # isort: skip
from tasks import stream  # isort: skip

PROMPTS, SAMPLES, EPOCHS, ROLLOUTS = 8, 8, 4, 20  # of a rollout, of a prompt, of a rollout, of a run
BLOCKS, LAGS, BITS = 4, 4, (4, 5)  # prompts that share a sampling policy; rollouts of lag, less one; of its weights
GROUP = 8  # weights of a column that are rounded to multiples of one unit
HELD_OUT, LOOK = 64, 2  # prompts, and rollouts between two looks at them
WARMUP = 10  # steps of Adam
BASE_ROWS, BASE_RATE, BASE_BETAS, BASE_STEPS = 16, 3e-3, (0.9, 0.98), 3000
WANTED, TRIED_EVERY, TRIED = 0.35, 20, 128  # the score of samples at which a base is taken, on so many other prompts
BASE, TEXTS, TRIAL, ASKED, LAGGED, NOISE, FIXED = range(7)  # streams of random numbers


@dataclass(frozen=True)
class Run:
    part: str
    arm: str
    seed: int
    scale: float
    lr: float


def gumbel(draw: torch.Generator, *shape: int) -> Tensor:
    """Noise for `sample`, `[ANSWER, *shape, VOCABULARY]`."""
    uniform = torch.rand(ANSWER, *shape, VOCABULARY, generator=draw)
    return -torch.log(-torch.log(uniform.clamp_(1e-7, 1 - 1e-7)))


def trainable(flat: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Weights by name in the buffer `[1, size]`, and the buffer of their gradients."""
    weights, gradient = SHAPE.views(flat), torch.zeros_like(flat)
    for weight, part in zip(weights.values(), SHAPE.views(gradient).values(), strict=True):
        weight.requires_grad_().grad = part
    return weights, gradient


def pretrain(seed: int) -> tuple[Tensor, float, int]:
    """A base policy `[1, size]`, the score of its samples, and its steps of supervised training."""
    flat = SHAPE.initial([seed])
    (weights, gradient), adam = trainable(flat), Adam(flat, BASE_BETAS)
    for step in range(1, BASE_STEPS + 1):
        prompts = ask(BASE_ROWS, stream(seed, BASE, step))
        gradient.zero_()
        text = corpus(prompts, stream(seed, TEXTS, step))
        (-log_probs(weights, prompts[None], text[None]).mean()).backward()
        adam.update(flat, gradient, BASE_RATE * min(1, step / WARMUP), step - 1)
        if step % TRIED_EVERY == 0:
            tried = ask(TRIED, stream(seed, TRIAL, step))
            said, _ = sample(weights, tried[None], gumbel(stream(seed, NOISE, -step), 1, TRIED))
            found = float(score(tried, said[0]).mean())
            if found >= WANTED:
                return flat.detach(), found, step
    raise SystemExit(f"the base of seed {seed} did not reach a score of {WANTED} in {BASE_STEPS} steps")


def quantised(flat: Tensor, bits: Tensor) -> Tensor:
    """Weights `[models, size]` rounded to so many bits each: matrices, in groups of weights of one unit."""
    found = flat.clone()
    for name, weight in SHAPE.views(found).items():
        if name not in ("token", "position"):
            groups = weight.unflatten(1, (-1, GROUP))
            unit = groups.abs().amax(2, keepdim=True) / (2.0 ** (bits - 1) - 1).view(-1, 1, 1, 1)
            groups.copy_((groups / unit).round() * unit)
    return found


@dataclass
class Rollout:
    """Prompts and answers `[rows, ...]`, log-probs of the policies that sampled, advantages `[rows]`."""

    prompts: Tensor
    answers: Tensor
    old: Tensor
    advantages: Tensor
    reward: float


def roll_out(past: list[Tensor], seed: int, number: int) -> Rollout:
    """Answers of policies of the past, `[1, size]` each, the newest last: every block of prompts has its own."""
    draw = stream(seed, LAGGED, number)
    lags = torch.randint(LAGS, (BLOCKS,), generator=draw).clamp(max=len(past) - 1)
    bits = torch.tensor(BITS)[torch.randint(len(BITS), (BLOCKS,), generator=draw)]
    weights = SHAPE.views(quantised(torch.cat([past[-1 - lag] for lag in lags.tolist()]), bits))
    prompts = ask(PROMPTS, stream(seed, ASKED, number)).repeat_interleave(SAMPLES, 0)
    rows = len(prompts) // BLOCKS
    answers, old = sample(weights, prompts.view(BLOCKS, rows, -1), gumbel(stream(seed, NOISE, number), BLOCKS, rows))
    answers = answers.flatten(0, 1)
    rewards = score(prompts, answers).view(PROMPTS, SAMPLES)
    return Rollout(prompts, answers, old.flatten(0, 1), standardised(rewards).flatten(), float(rewards.mean()))


def of_step(values: Tensor, on_policy: Tensor, log_ratio: Tensor, advantages: Tensor) -> dict[str, float]:
    """Of one step: coefficients and those on policy, log ratios, `[rows, ANSWER]`, advantages `[rows]`."""
    a = advantages[:, None].expand_as(values)
    counted = a != 0
    outward = counted & (a * log_ratio > 0)
    ratio, n = log_ratio.exp(), counted.sum().clamp(min=1)
    beyond = outward & torch.where(a > 0, ratio > 1.2, ratio < 0.8)
    reduced = outward & (values.abs() < 0.99 * (on_policy * ratio).abs())
    return {
        "grpo_gates": float(beyond.sum() / n),  # tokens that grpo would gate at 0.2
        "zeroed": float((counted & (values == 0)).sum() / n),
        "reduced": float(reduced.sum() / n),  # tokens that count less than without a gate, zeroed ones included
        "outward": float(outward.sum() / n),
        "k3": float((ratio - 1 - log_ratio).mean()),
        "size": float(log_ratio.abs().mean()),
        "design_effect": correlation(log_ratio, torch.ones_like(counted))["design_effect"],
    }


class Looks:
    """Greedy scores on fixed prompts, and how far the policy has moved since the look before, in nats per token."""

    def __init__(self) -> None:
        self.prompts = ask(HELD_OUT, stream(FIXED), held_out=True)
        self.states = corpus(self.prompts, stream(FIXED))
        self.scores: list[float] = []
        self.moved: list[float] = []
        self.before: Tensor | None = None

    @torch.no_grad()
    def look(self, weights: dict[str, Tensor]) -> None:
        said, _ = sample(weights, self.prompts[None], None)
        self.scores.append(float(score(self.prompts, said[0]).mean()))
        now = logits(weights, self.prompts[None], self.states[None]).log_softmax(-1)
        if self.before is not None:
            self.moved.append(float(((self.before - now) * self.before.exp()).sum(-1).mean()))
        self.before = now


def learn(run: Run, base: Tensor, rollouts: int = ROLLOUTS) -> dict:
    """Train a copy of `base`, `[1, size]`; what was measured, by look, by rollout, or as means by epoch."""
    flat = base.clone()
    (weights, gradient), adam, looks = trainable(flat), Adam(flat), Looks()
    op, parameters = operator(run.arm), (LEVEL_ARMS | EXPLORED)[run.arm].parameters(run.scale)
    index = op.index(mask=torch.ones(PROMPTS * SAMPLES, ANSWER, dtype=torch.bool))
    past: list[Tensor] = []
    steps: list[list[dict]] = []
    rewards = []
    for number in range(rollouts):
        if number % LOOK == 0:
            looks.look(weights)
        past = [*past[1 - LAGS :], flat.detach().clone()]
        data = roll_out(past, run.seed, number)
        rewards.append(data.reward)
        steps.append([])
        on_policy = op.coefficients(data.old, data.old, data.advantages, index, parameters, metrics=[]).values
        for epoch in range(EPOCHS):
            gradient.zero_()
            now = log_probs(weights, data.prompts[None], data.answers[None])[0]
            given = now.detach(), data.old, data.advantages, index, parameters
            values = op.coefficients(*given, metrics=[]).values
            now.backward(-values)
            step = number * EPOCHS + epoch
            norm = adam.update(flat, gradient, run.lr * min(1, (step + 1) / WARMUP), step)
            steps[-1].append(
                of_step(values, on_policy, now.detach() - data.old, data.advantages) | {"norm": float(norm)}
            )
    looks.look(weights)
    by_epoch = {name: [sum(s[e][name] for s in steps) / rollouts for e in range(EPOCHS)] for name in steps[0][0]}
    measured = {"scores": looks.scores, "moved": looks.moved, "rewards": rewards, **by_epoch}
    return {name: [float(f"{x:.4g}") for x in column] for name, column in measured.items()}
