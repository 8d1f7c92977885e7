"""Steps of shipped and random hierarchies: rows, labels and log-probs of all policies, off policy; and those of a head.

The gradients of a head are in closed form, in float64 and without autograd.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hierarchies import random_chains, random_quivers
from hierarchies.random_order import with_order
from hierarchies.random_penalties import with_penalties
from support import operator, packed, spec
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fibration
from fibration.language.loading import shipped
from fibration.runtime.operator import Operator

VOCABULARY, WIDTH = 23, 6
VIEWS = ("aten::t", "aten::transpose", "aten::permute", "aten::detach", "aten::alias")  # of a head's weight
SPECS = sorted(shipped())
RANDOM = {
    **{f"chain {s}": functools.partial(random_chains.chain, s) for s in range(24)},
    **{f"quiver {s}": functools.partial(random_quivers.quiver, s) for s in range(24)},
    **{f"order {s}": lambda s=s: with_order(random_chains.chain(s), s) for s in range(8)},
    **{f"penalty {s}": lambda s=s: with_penalties(random_chains.chain(s), s) for s in range(8)},
}


class Step:
    """A step of a hierarchy: random rows, labels, attributes and log-probs of all its policies, off policy."""

    def __init__(self, op: Operator, seed: int, layout=packed) -> None:
        h, self.op = op.hierarchy, op
        drawn = (
            random_chains if h.shape.is_chain and not h.groups and "state" not in map(str, h.strata) else random_quivers
        )
        batch = drawn.batch_for(h, seed, **({"smooth": True} if drawn is random_chains else {"zeros": "none"}))
        generator = np.random.default_rng(seed)
        self.layout = layout(op, batch)
        self.index, self.parameters = self.layout.index, batch.parameters
        rows, n = len(batch.lengths), batch.tokens
        scale = generator.choice([0.3, 1.0, 3.0]) / (
            1 + max(batch.lengths) // 20
        )  # every branch of a gate, by some seed
        self.old = self.layout.tensor(-generator.exponential(size=n) - 0.01)
        self.new = self.old + self.layout.tensor(scale * batch.x / (np.abs(batch.x).max() + 1e-9))
        frozen = [p for p in h.policies if p not in ("current", "old")]
        self.policies = {p: self.old + self.layout.tensor(generator.normal(size=n) * 0.3) for p in frozen}
        self.advantages = torch.from_numpy(generator.normal(size=rows))

    def coefficients(self, new=None, **more):
        return self.op.coefficients(
            self.new if new is None else new, self.old, self.advantages, self.index, self.parameters,
            policies=self.policies, **more,
        )  # fmt: skip

    def freeze(self):
        self.op.freeze(self.old, self.advantages, self.index, self.parameters, policies=self.policies)

    def places(self, rows):
        """The places of some rows in the tensors of the step."""
        bounds = self.index.bounds
        return torch.from_numpy(np.concatenate([np.arange(bounds[r], bounds[r + 1]) for r in rows] or [np.arange(0)]))

    def of(self, tensor, rows):
        """A tensor's part at some rows."""
        if len(self.index.shape) == 2:
            return tensor[torch.as_tensor(rows, dtype=torch.int64)]
        return tensor[self.places(rows)]

    def loss(self, rows, new):
        """The loss of a micro-batch of these rows, from the step's log-probs `new`."""
        part = self.index.micro(rows)
        policies = {name: self.of(t, rows) for name, t in self.policies.items()}
        a = self.advantages[torch.as_tensor(rows, dtype=torch.int64)]
        return self.op.loss(self.of(new, rows), self.of(self.old, rows), a, part, self.parameters, policies=policies)

    def elements(self, stratum):
        """The elements of a stratum that each row has tokens of: a set per row."""
        found = [set() for _ in range(len(self.index))]
        for leaf in self.index.leaves_over(stratum):
            for e, place in zip(
                self.index.parent(leaf, stratum).tolist(), self.index.positions_of(leaf).tolist(), strict=True
            ):
                found[int(np.searchsorted(self.index.bounds, place, side="right")) - 1].add(e)
        return found

    def closed(self):
        """The finest cut into micro-batches: the rows that share an element of the coupling, together."""
        left, parts = list(range(len(self.index))), []
        shared = [self.elements(s) for s in self.op.coupling.strata]
        while left:
            mine = {left[0]}
            while more := {r for r in left if any(of[r] & of[m] for of in shared for m in mine)} - mine:
                mine |= more
            parts.append(sorted(mine))
            left = [r for r in left if r not in mine]
        return parts


def made(name):
    h = RANDOM[name]() if name in RANDOM else spec(name)
    return operator(h, "torch")


# ---------------------------------------------------------------- a head on hidden states


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
            hidden, old, targets = (self.of(t, rows) for t in (hidden, old, targets))
            policies = {name: self.of(t, rows) for name, t in policies.items()}
            a = a[torch.as_tensor(rows, dtype=torch.int64)]
        if index is None:  # an index without rows is false
            index = self.index if rows is None else self.index.micro(rows)
        more = {"bias": bias[0] if bias else None, "policies": policies, "parameters": self.parameters} | more
        return fibration.head.loss(self.op, hidden, weight, targets, old, a, index, **self.head, **more)

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
