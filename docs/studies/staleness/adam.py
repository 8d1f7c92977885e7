"""Adam for many models at a time: `[models, size]` weights, gradients and moments, every model clipped by itself."""

from __future__ import annotations

import torch
from torch import Tensor

BETAS, EPSILON, CLIP = (0.9, 0.95), 1e-8, 1.0  # of reinforcement learning; gradients are clipped to the norm 1


class Adam:
    """The moments of all models' gradients."""

    def __init__(self, flat: Tensor, betas: tuple[float, float] = BETAS) -> None:
        self.betas, self.first, self.second = betas, torch.zeros_like(flat), torch.zeros_like(flat)

    @torch.no_grad()
    def update(self, flat: Tensor, gradient: Tensor, rate: Tensor | float, number: int) -> Tensor:
        """One step of the weights, from number 0 on; norms of the gradients, `[models]`, before they are clipped."""
        norm = gradient.norm(dim=1, keepdim=True)
        gradient = gradient * (CLIP / norm.clamp(min=1e-12)).clamp(max=1)
        a, b = self.betas
        self.first.lerp_(gradient, 1 - a)
        self.second.mul_(b).addcmul_(gradient, gradient, value=1 - b)
        scale = (self.second / (1 - b ** (number + 1))).sqrt_().add_(EPSILON)
        flat -= rate / (1 - a ** (number + 1)) * self.first / scale
        return norm[:, 0]
