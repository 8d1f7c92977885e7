"""Runs the compiled operator on a batch of the fuzz, to compare its values with those of `World`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support import operator

from fibration import Hierarchy
from fibration.language.atoms import BATCH
from fibration.runtime.operator import Operator
from fuzz.world import Batch


@dataclass
class Call:
    """An operator and its inputs on one batch, in float64. `rewards`: advantages are made of them."""

    op: Operator
    index: Any
    log_probs: torch.Tensor
    old: torch.Tensor
    advantages: Any
    parameters: dict[str, Any]
    policies: dict[str, torch.Tensor]
    batch: Batch
    rewards: Any = None

    def closed(self) -> list[list[int]]:
        """The smallest sets of rows that share no element of the coupling with others."""
        of, found = self.batch.labels[self.op.hierarchy.rows.name], list[set[Any]]()
        for row in dict.fromkeys(of):
            mine = {("row", row)}
            for s in self.op.coupling.strata:
                labels = self.batch.labels.get(s, [0] * len(of))
                mine |= {(s, e) for e, r in zip(labels, of, strict=True) if r == row and e is not None}
            mine = mine.union(*(m for m in found if m & mine))
            found = [*(m for m in found if not m & mine), mine]
        number = {r: i for i, r in enumerate(dict.fromkeys(of))}
        return [sorted(number[e] for s, e in m if s == "row") for m in found]

    def whole(self, a: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The loss of the whole step and its gradient. `a`: the advantages of tokens."""
        now = self.log_probs.clone().requires_grad_()
        loss = self.op.loss(now, self.old, a, self.index, self.parameters, policies=self.policies or None).loss
        return float(loss.detach()), torch.autograd.grad(loss, now)[0]

    def coefficients(self) -> Any:
        more = {"rewards": self.rewards} if self.rewards is not None else {}
        advantages = None if more else self.advantages
        given = self.log_probs, self.old, advantages, self.index, self.parameters
        return self.op.coefficients(*given, policies=self.policies or None, **more)

    def parts(self, a: torch.Tensor) -> Iterator[tuple[torch.Tensor, float, torch.Tensor]]:
        """The tokens, the loss and its gradient of the smallest micro-batches that the coupling allows.

        `a`: the advantages of tokens.
        """
        policies = self.policies or None
        self.op.freeze(self.old, a, self.index, self.parameters, policies=policies)
        bounds = self.index.bounds
        for rows in self.closed():
            at = torch.from_numpy(np.concatenate([np.arange(bounds[r], bounds[r + 1]) for r in rows]))
            now = self.log_probs[at].requires_grad_()
            others = {name: values[at] for name, values in self.policies.items()} or None
            part = self.index.micro(rows)
            loss = self.op.loss(now, self.old[at], a[at], part, self.parameters, policies=others).loss
            (gradient,) = torch.autograd.grad(loss, now)
            yield at, float(loss.detach()), gradient


def coefficients(h: Hierarchy, batch: Batch, backend: str = "torch") -> np.ndarray:
    """`∂J/∂log π` of every token, by a backend in float64."""
    return call(h, batch, backend).coefficients().values.numpy()  # type: ignore[no-any-return]


def call(h: Hierarchy, batch: Batch, backend: str = "torch") -> Call:
    op = operator(h, backend)
    rows = list(dict.fromkeys(batch.labels[h.rows.name]))
    lengths = [batch.labels[h.rows.name].count(r) for r in rows]
    first = [batch.labels[h.rows.name].index(r) for r in rows]
    given: dict[str, Any] = {}
    for s in dict.fromkeys((*h.strata, *h.groups)):
        if s.name in (h.rows.name, BATCH):
            continue
        if s in h.leaves:
            if len(h.leaves) > 1:
                given[s.name] = torch.tensor([own == s for own in batch.leaf])
            continue
        labels = batch.labels[s.name]
        of_row = s in h.groups or (h.rows in h.strata and s in h.coarser(h.rows))
        given[s.name] = [labels[i] for i in first] if of_row else labels
    attributes = {a.name: _attribute(h, a, batch, first) for a in h.attributes.values()}
    index = op.index(offsets=torch.tensor([0, *np.cumsum(lengths)]), attributes=attributes or None, **given)
    floats = functools.partial(torch.tensor, dtype=torch.float64)
    old = floats([float(v) for v in batch.policies["old"]])
    now = old + floats([float(v) for v in batch.x])
    passed = {p.name: floats([float(v) for v in batch.policies[p.name]]) for p in h.policies.values() if p.is_passed}
    whole = {p.name for p in h.parameters.values() if p.on is not None and p.on.name == BATCH}  # it has no labels
    parameters = {n: _plain(next(iter(v.values())) if n in whole else v) for n, v in batch.parameters.items()}
    made = Call(op, index, now, old, floats([float(v) for v in batch.advantages]), parameters, passed, batch)
    if h.advantages is not None:
        assert batch.rewards is not None
        keys = range(batch.size) if batch.by_token else rows
        made.rewards = floats([float(batch.rewards[k]) for k in keys])
    return made


def _attribute(h: Hierarchy, a: Any, batch: Batch, first: list[int]) -> Any:
    given = batch.attributes[a.name]
    if a.on in h.leaves and len(h.leaves) == 1:
        return torch.tensor([float(given[i]) for i in range(batch.size)], dtype=torch.float64)
    if a.on == h.rows:
        return torch.tensor([float(given[batch.labels[a.on.name][i]]) for i in first], dtype=torch.float64)
    return {k: float(v) for k, v in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return float(value)
