"""What is measured of a run: answers to fixed questions, divergences on fixed states, what a loss did to gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from model import Sequences, Shape, logits, sample
from tasks import DOMAINS, RESPONSE, answer, ask, lengths
from torch import Tensor

EVERY = 10  # steps between two looks at the policy; what is measured in each step is put together over them
QUESTIONS = 64  # of every domain, the same for all runs
FIXED = 2**31 - 1  # the seed of these questions, which no run trains with
LARGEST = ("amplification", "grad_norm")  # of which the largest of EVERY steps counts, not the mean


def rounded(x: float | list[float]) -> float | list[float]:
    return [rounded(y) for y in x] if isinstance(x, list) else float(f"{x:.3g}")  # type: ignore[misc]


def mean(x: Tensor, where: Tensor) -> float:
    return float((x * where).sum() / where.sum()) if bool(where.any()) else 0.0


def of_step(values: Tensor, on_policy: Tensor, log_ratio: Tensor, mask: Tensor, metrics: Mapping[str, float]) -> dict:
    """Of one model's step: coefficients `[rows, tokens]`, those on policy (`μ·A`), log ratios, mask, metrics."""
    counted = mask & (on_policy != 0)
    by = torch.where(counted, values / on_policy, 0.0)
    outward = counted & (values * log_ratio > 0)
    ratio = torch.where(mask, log_ratio, 0.0)
    divergence = (ratio.exp() - 1 - ratio).view(len(DOMAINS), -1).sum(1) / mask.view(len(DOMAINS), -1).sum(1)
    drift = (ratio.sum(1) / mask.sum(1)).view(len(DOMAINS), -1)
    gated = defaultdict(list)
    for name, share in metrics.items():
        if name.endswith("/passed"):
            gated[name.split("/")[0]].append(1 - share)
    return {
        "amplification": float(by.abs().max()),  # max |c| / (μ |A|)
        "outward": mean(outward, counted),  # tokens that are pushed further from the policy that sampled them
        "against": mean(outward & (by < 0), counted),  # of all tokens, those so pushed against their own advantage
        "zeroed": mean(by == 0, counted),
        "divergence": divergence.tolist(),  # mean of r - 1 - log r, per domain
        "between": float(drift.mean(1).var(unbiased=False) / drift.var(unbiased=False).clamp(min=1e-30)),
        **{f"gated/{level}": sum(shares) / len(shares) for level, shares in gated.items()},
    }


def together(name: str, column: list) -> float | list[float]:
    found = torch.tensor(column)
    return (found.amax(0) if name in LARGEST else found.mean(0)).tolist()


class Series:
    """Measures of all models over training; `results` has them per model, rounded."""

    def __init__(self, shape: Shape, models: int, weights: dict[str, Tensor]) -> None:
        self.shape, self.models = shape, models
        draw = torch.Generator().manual_seed(FIXED)
        asked = torch.cat([ask(domain, QUESTIONS, draw) for domain in range(len(DOMAINS))])
        self.right = answer(asked)
        self.asked, self.at = asked.expand(models, -1, -1), Sequences(1)
        states = torch.arange(RESPONSE) < lengths(self.right)[:, None]
        self.states = states / states.sum(1, keepdim=True)  # a mean over the states of each answer
        self.found: list[dict[str, list]] = [defaultdict(list) for _ in range(models)]
        self.open: list[list[dict]] = [[] for _ in range(models)]
        self.base = self.before = self.everywhere(weights)

    @torch.no_grad()
    def everywhere(self, weights: dict[str, Tensor]) -> Tensor:
        """Log-probs of all tokens at the states of right answers, `[models, questions, RESPONSE, VOCABULARY]`."""
        given = self.right.expand(self.models, -1, -1)[:, :, None]
        return logits(self.shape, weights, self.asked, given, self.at)[:, :, 0].log_softmax(-1)

    def per_domain(self, states: Tensor) -> Tensor:
        """Means over states `[models, questions, RESPONSE]`, per domain: `[models, domains]`."""
        return (states * self.states).sum(-1).view(self.models, len(DOMAINS), -1).mean(-1)

    def accuracy(self, weights: dict[str, Tensor]) -> Tensor:
        """Greedy answers that are right, of QUESTIONS, `[models, domains]`."""
        said, _ = sample(self.shape, weights, self.asked, 1, None)
        return (said[:, :, 0] == self.right).all(-1).view(self.models, len(DOMAINS), -1).sum(-1)

    def add(self, steps: Sequence[dict]) -> None:
        for mine, step in zip(self.open, steps, strict=True):
            mine.append(step)

    def look(self, number: int, weights: dict[str, Tensor]) -> None:
        if number % EVERY:
            return
        now = self.everywhere(weights)
        measured = {
            "right": self.accuracy(weights),
            "moved": self.per_domain((self.before.exp() * (self.before - now)).sum(-1)),  # KL(10 steps ago, now)
            "from_base": self.per_domain((self.base.exp() * (self.base - now)).sum(-1)),
            "entropy": self.per_domain(-(now.exp() * now).sum(-1)),
        }
        self.before = now
        for k, found in enumerate(self.found):
            for name, values in measured.items():
                found[name].append(rounded(values[k].tolist()))
            for name in self.open[k][0] if self.open[k] else ():
                found[name].append(rounded(together(name, [step[name] for step in self.open[k]])))
            self.open[k] = []

    def results(self) -> list[dict[str, list]]:
        return [dict(found) for found in self.found]
