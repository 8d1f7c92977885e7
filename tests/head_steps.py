"""Steps with hidden states and a head, and the head's gradients in closed form, float64 and without autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from steps import Step
from support import packed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fibration
from fibration.runtime.operator import Operator

VOCABULARY, WIDTH = 23, 6
VIEWS = ("aten::t", "aten::transpose", "aten::permute", "aten::detach", "aten::alias")  # of the weight


@dataclass
class ClosedForm:
    """A head on tokens, in numpy. `z`: the product and the bias; `logits`: softcapped and divided by temperature."""

    hidden: np.ndarray
    weight: np.ndarray
    bias: np.ndarray | None = None
    softcap: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        z = self.hidden @ self.weight.T + (0 if self.bias is None else self.bias)
        self.slope = np.full_like(z, 1 / self.temperature)
        if self.softcap is not None:
            z = self.softcap * np.tanh(z / self.softcap)
            self.slope *= 1 - (z / self.softcap) ** 2
        logits = z / self.temperature
        self.log_p = logits - logits.max(1, keepdims=True)
        self.log_p -= np.log(np.exp(self.log_p).sum(1, keepdims=True))
        self.p = np.exp(self.log_p)
        self.entropy = -(self.p * self.log_p).sum(1)

    def log_probs(self, targets: np.ndarray) -> np.ndarray:
        return self.log_p[np.arange(len(targets)), targets]

    def gradients(self, targets: np.ndarray, coefficients: np.ndarray, bonus: float = 0.0) -> tuple[np.ndarray, ...]:
        """Of `-Σ c·log p - bonus·Σ entropy`, with respect to hidden states, weight and bias."""
        dz = coefficients[:, None] * self.p
        dz[np.arange(len(targets)), targets] -= coefficients
        dz += bonus * self.p * (self.log_p + self.entropy[:, None])
        dz *= self.slope
        return dz @ self.weight, dz.T @ self.hidden, dz.sum(0)


class HeadStep(Step):
    """A step whose log-probs are those of a head on random hidden states. Under the mask is NaN, and targets are -100."""

    def __init__(self, op: Operator, seed: int = 0, layout: Any = packed, scale: float = 1.0, **head: Any) -> None:
        super().__init__(op, seed, layout)
        generator = np.random.default_rng(seed)
        n = len(self.layout.slots)
        self.numbers = generator.integers(VOCABULARY, size=n)
        self.head = head
        self.bias = head.pop("bias", None)
        self.form = ClosedForm(
            generator.normal(size=(n, WIDTH)), scale * generator.normal(size=(VOCABULARY, WIDTH)), self.bias, **head
        )
        shape = self.index.shape
        self.targets = torch.full(shape, -100)
        self.targets.view(-1)[self.layout.slots] = torch.from_numpy(self.numbers)
        self.hidden = torch.full((*shape, WIDTH), float("nan"), dtype=torch.float64)
        self.hidden.view(-1, WIDTH)[self.layout.slots] = torch.from_numpy(self.form.hidden)
        moved = self.layout.tensor(self.form.log_probs(self.numbers)) - self.new
        self.old, self.new = self.old + moved, self.new + moved
        self.policies = {name: t + moved for name, t in self.policies.items()}

    def leaves(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """New leaves: hidden states, weight and, with a bias, bias."""
        made = [self.hidden, torch.from_numpy(self.form.weight)]
        made += [] if self.bias is None else [torch.from_numpy(self.bias)]
        return [t.to(dtype).clone().requires_grad_() for t in made]

    def loss_of_head(self, leaves: list[Tensor], rows: Any = None, index: Any = None, **more: Any) -> Any:
        """`fibration.head.loss` of all rows, or of some."""
        hidden, weight, *bias = leaves
        policies, old, a, targets = self.policies, self.old, self.advantages, self.targets
        if rows is not None:
            hidden, old, targets = (self._of(t, rows) for t in (hidden, old, targets))
            policies = {name: self._of(t, rows) for name, t in policies.items()}
            a = a[torch.as_tensor(rows, dtype=torch.int64)]
        if index is None:  # an index without rows is false
            index = self.index if rows is None else self.index.micro(rows)
        more = {"bias": bias[0] if bias else None, "policies": policies, "parameters": self.parameters} | more
        return fibration.head.loss(self.op, hidden, weight, targets, old, a, index, **self.head, **more)

    def _of(self, tensor: Tensor, rows: Any) -> Tensor:
        by_row = len(self.index.shape) == 2
        return tensor[torch.as_tensor(rows, dtype=torch.int64) if by_row else self.places(rows)]

    def wanted(self, bonus: float = 0.0) -> list[np.ndarray]:
        """The gradients of `leaves()`, of hidden states at the tokens. `bonus`: of the mean entropy."""
        c = self.layout.read(self.coefficients().values)
        per_token = bonus / max(len(c), 1)
        return list(self.form.gradients(self.numbers, c, per_token))[: 2 if self.bias is None else 3]

    def got(self, leaves: list[Tensor]) -> list[np.ndarray]:
        hidden, *others = (t.grad.clone().double() for t in leaves)
        return [hidden.reshape(-1, WIDTH).numpy()[self.layout.slots], *(t.numpy() for t in others)]


def furthest(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest number of each."""
    return max(
        float(np.abs(g - w).max(initial=0) / (np.abs(w).max(initial=0) + 1e-30))
        for g, w in zip(got, wanted, strict=True)
    )


class Products(TorchDispatchMode):
    """Counts products with the head: `tokens` of each, in order; and the most rows of logits that an operation made."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = WIDTH) -> None:
        super().__init__()
        self.size, self.vocabulary = vocabulary * width, vocabulary
        self.tokens: list[int] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::mm", "aten::addmm", "aten::addmm_"):
            a, b = args[-2:]
            self.tokens.append(a.shape[0] * a.shape[1] * b.shape[1] // self.size)
        if isinstance(made, Tensor) and made.ndim == 2 and made.shape[1] == self.vocabulary and name not in VIEWS:
            self.most = max(self.most, len(made))
        return made
