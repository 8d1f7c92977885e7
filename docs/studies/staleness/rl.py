"""Reinforcement learning of a batch of models: one optimizer step of all of them at a time, each with its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from adam import Adam
from arms import Arm
from candidates import LOSSES
from measures import Series, of_step
from model import Sequences, Shape, gumbel, log_probs, sample
from tasks import DOMAINS, RESPONSE, answer, ask, lengths, stream
from torch import Tensor

GROUPS, SAMPLES = 4, 8  # prompts of each domain in a step, and responses to each of them
PROMPTS = GROUPS * len(DOMAINS)
ROWS = PROMPTS * SAMPLES
OF_PROMPT = torch.arange(len(DOMAINS)).repeat_interleave(GROUPS)
WARMUP = 10  # steps of Adam
STACK = 5  # models that are trained side by side in one process, unless it is told otherwise
PROMPT_STREAM, NOISE_STREAM, REWARD_STREAM, LABEL_STREAM = range(4)


@dataclass(frozen=True)
class Condition:
    """How stale the samples are, in optimizer steps per domain, how often a wrong answer is rewarded there, and tricks.

    A domain with a `trick` rewards every answer that begins with that digit: what is learnt there is not the task.
    """

    lags: tuple[int, ...]
    false_positives: tuple[float, ...] = (0.0,) * len(DOMAINS)
    tricks: tuple[int | None, ...] = (None,) * len(DOMAINS)


CONDITIONS = {  # in the order in which they are tested and shown
    "unequal": Condition((1, 4, 16, 16)),
    "large": Condition((1, 4, 16, 16)),  # at the largest learning rate
    "apart": Condition((1, 1, 1, 16), tricks=(None, None, None, 0)),  # at the largest learning rate
    "stale": Condition((16, 16, 16, 16)),
    "fresh": Condition((1, 1, 1, 1)),
    "noisy": Condition((1, 4, 16, 16), false_positives=(0.0, 0.0, 0.0, 0.2)),
}


@dataclass(frozen=True)
class Run:
    part: str
    arm: str
    condition: str
    seed: int
    lr: float
    trust: float | None
    steps: int = 150


@dataclass
class Batch:
    """What all models train on in a step: `[models, PROMPTS, PROMPT]` and `[models, PROMPTS, SAMPLES, RESPONSE]`.

    Rewards are `[models, PROMPTS, SAMPLES]`.
    """

    prompts: Tensor
    responses: Tensor
    old_log_probs: Tensor
    rewards: Tensor

    def take(self, domain: int, other: Batch) -> None:
        """The rows of one domain from another batch."""
        here = slice(domain * GROUPS, (domain + 1) * GROUPS)
        for mine, given in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[:, here] = given[:, here]

    def copy(self) -> Batch:
        return Batch(*(value.clone() for value in vars(self).values()))


class Sampler:
    """Rollouts of all models as they are now, kept until the step that trains on them."""

    def __init__(self, shape: Shape, runs: Sequence[Run]) -> None:
        self.shape, self.seeds = shape, [run.seed for run in runs]
        (name,) = {run.condition for run in runs}
        self.condition = CONDITIONS[name]
        self.waiting: dict[int, Batch] = {}

    def rollouts(self, weights: dict[str, Tensor], moment: int) -> Batch:
        prompts = torch.stack([self.ask(seed, moment) for seed in self.seeds])
        noise = gumbel([stream(seed, NOISE_STREAM, moment) for seed in self.seeds], ROWS)
        responses, likely = sample(self.shape, weights, prompts, SAMPLES, noise)
        right = (responses == answer(prompts)[:, :, None]).all(-1)
        luck = torch.stack(
            [torch.rand(PROMPTS, SAMPLES, generator=stream(s, REWARD_STREAM, moment)) for s in self.seeds]
        )
        gift = luck < torch.tensor(self.condition.false_positives)[OF_PROMPT][:, None]
        trick = torch.tensor([-1 if digit is None else digit for digit in self.condition.tricks])[OF_PROMPT]
        tricked = responses[..., 0] == trick[:, None]
        return Batch(prompts, responses, likely, (right | gift | tricked).float())

    def ask(self, seed: int, moment: int) -> Tensor:
        draw = stream(seed, PROMPT_STREAM, moment)
        return torch.cat([ask(domain, GROUPS, draw) for domain in range(len(DOMAINS))])

    def begin(self, weights: dict[str, Tensor]) -> None:
        """Of the first weights: what the first steps train on in stale domains."""
        for step in range(max(self.condition.lags)):
            self.put(self.rollouts(weights, step - 1000), [step if lag > step else None for lag in self.condition.lags])

    def put(self, batch: Batch, steps: Sequence[int | None]) -> None:
        for domain, step in enumerate(steps):
            if step is not None:
                self.waiting.setdefault(step, batch.copy()).take(domain, batch)

    def go_on(self, weights: dict[str, Tensor], step: int) -> None:
        """Sample with the weights at `step`, before its update, for the step that is the domain's lag later."""
        self.put(self.rollouts(weights, step), [step + lag for lag in self.condition.lags])


def standardised(rewards: Tensor) -> Tensor:
    """GRPO's advantages: rewards less their group's mean, by its deviation."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + 1e-4)


def coefficients(
    arm: Arm, run: Run, adapted: dict, step: int, now: Tensor, batch: Batch, model: int
) -> tuple[Tensor, dict]:
    """`∂J/∂log π` of one model's tokens, `[ROWS, RESPONSE]`, and what is measured of them; `adapted` follows it."""
    op, old = arm.operator, batch.old_log_probs[model].flatten(0, 1)
    advantages = standardised(batch.rewards[model]).flatten()
    mask = torch.arange(RESPONSE) < lengths(batch.responses[model]).flatten()[:, None]
    domains = OF_PROMPT
    if arm.shuffled:
        domains = domains[torch.randperm(PROMPTS, generator=stream(run.seed, LABEL_STREAM, step))]
    labels: dict[str, Any] = {
        "prompt_group": torch.arange(PROMPTS).repeat_interleave(SAMPLES).tolist(),
        "domain": domains.repeat_interleave(SAMPLES).tolist(),
    }
    index = op.index(mask=mask, **{name: labels[name] for name in arm.labels})
    given = {**arm.given(run.trust), **adapted}
    found = op.coefficients(now, old, advantages, index, given)
    on_policy = op.coefficients(old, old, advantages, index, given, metrics=[]).values
    scalars = found.scalars()
    if arm.adapt:
        arm.adapt(adapted, scalars)
    return found.values, of_step(found.values, on_policy, now - old, mask, scalars)


class Learner:
    """All models, their optimizer's state, and one step of them."""

    def __init__(self, shape: Shape, runs: Sequence[Run], base: Tensor) -> None:
        self.shape, self.runs, self.arms = shape, runs, [LOSSES[run.arm] for run in runs]
        self.flat = base.clone()
        self.lr = torch.tensor([run.lr for run in runs])[:, None]
        (self.by_domain,) = {arm.clip_domains for arm in self.arms}
        copies = len(DOMAINS) if self.by_domain else 1
        self.leaves = torch.zeros(len(runs) * copies, shape.size)
        self.gradient = torch.zeros_like(self.leaves)
        self.weights = shape.views(self.leaves)
        for weight, gradient in zip(self.weights.values(), shape.views(self.gradient).values(), strict=True):
            weight.requires_grad_().grad = gradient
        self.adapted: list[dict] = [{} for _ in runs]
        self.adam, self.at = Adam(base), Sequences(SAMPLES)

    @property
    def current(self) -> dict[str, Tensor]:
        return self.shape.views(self.flat)

    def step(self, number: int, batch: Batch) -> list[dict]:
        models, copies = len(self.runs), len(self.leaves) // len(self.runs)
        with torch.no_grad():
            self.leaves.view(models, copies, -1).copy_(self.flat[:, None].expand(-1, copies, -1))
        self.gradient.zero_()
        fold = lambda x: x.reshape(models * copies, PROMPTS // copies, *x.shape[2:])  # noqa: E731
        now = log_probs(self.shape, self.weights, fold(batch.prompts), fold(batch.responses), self.at)
        per_model = now.detach().view(models, ROWS, RESPONSE)
        found = [
            coefficients(arm, run, self.adapted[k], number, per_model[k], batch, k)
            for k, (arm, run) in enumerate(zip(self.arms, self.runs, strict=True))
        ]
        torch.autograd.backward(now, -torch.stack([values for values, _ in found]).view_as(now))
        rewards = batch.rewards.view(models, len(DOMAINS), -1).mean(-1)
        norms = self.update(number)
        return [
            {**step, "reward": reward, "grad_norm": norm}
            for (_, step), reward, norm in zip(found, rewards.tolist(), norms.tolist(), strict=True)
        ]

    @torch.no_grad()
    def update(self, number: int) -> Tensor:
        """One step of Adam; the norms of the gradients, `[models]`, before they are clipped."""
        gradient = self.gradient
        if self.by_domain:
            bound = torch.tensor([run.trust for run in self.runs]).repeat_interleave(len(DOMAINS))[:, None]
            gradient = gradient * (bound / gradient.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
            gradient = gradient.view(len(self.runs), len(DOMAINS), -1).sum(1)
        return self.adam.update(self.flat, gradient, self.lr * min(1, (number + 1) / WARMUP), number)


def learn(shape: Shape, runs: Sequence[Run], base: Tensor) -> list[dict]:
    """Train all runs side by side from `[models, size]` base weights; what was measured of each."""
    (steps,) = {run.steps for run in runs}
    learner, sampler = Learner(shape, runs, base), Sampler(shape, runs)
    series = Series(shape, len(runs), learner.current)
    sampler.begin(learner.current)
    for number in range(steps):
        series.look(number, learner.current)
        sampler.go_on(learner.current, number)
        batch = sampler.waiting.pop(number)
        series.add(learner.step(number, batch))
    series.look(steps, learner.current)
    return series.results()
