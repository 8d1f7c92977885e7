"""Runs the compiled operator on a batch of the fuzz, to compare its coefficients with those of `World`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from support import operator

from fibration import Hierarchy
from fibration.language.atoms import BATCH
from fuzz.world import Batch


def coefficients(h: Hierarchy, batch: Batch, backend: str = "torch") -> np.ndarray:
    """`∂J/∂log π` of every token, by a backend in float64."""
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
    parameters = {n: _plain(v) for n, v in batch.parameters.items()}
    more: dict[str, Any] = {"policies": passed} if passed else {}
    advantages: Any = floats([float(v) for v in batch.advantages])
    if h.advantages is not None:
        assert batch.rewards is not None
        keys = range(batch.size) if batch.by_token else rows
        more["rewards"], advantages = floats([float(batch.rewards[k]) for k in keys]), None
    return op.coefficients(now, old, advantages, index, parameters, **more).values.numpy()  # type: ignore[no-any-return]


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
