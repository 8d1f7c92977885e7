"""Batches of `World` from rows of tokens, and as the exact points of the laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import support

from fibration import Hierarchy
from fibration.language.atoms import Component
from fibration.language.outline import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fuzz.world import Batch, World

F = Fraction


def of_rows(
    h: Hierarchy, batch: support.Batch, log_probs: Mapping[str, Any] | None = None, rewards: Any = None
) -> Batch:
    """A batch of rows of tokens; of attributes and parameters that it does not give, the default. Rewards are per token."""
    n, row = batch.tokens, batch.row.tolist()

    def label(s: Any) -> list[Any]:
        if s == h.rows:
            return list(row)
        return list(batch.token_labels.get(s.name) or (batch.labels[s.name][r] for r in row))

    leaf = [next(s for s in h.leaves if len(h.leaves) == 1 or batch.token_labels[s.name][i]) for i in range(n)]
    labels = {s.name: label(s) for s in (*h.strata, h.rows, *h.groups) if s not in h.leaves and s.name != "batch"}
    for s in h.strata:
        if s.name in labels:
            labels[s.name] = [e if s in h.coarser(leaf[i]) else None for i, e in enumerate(labels[s.name])]
    made = Batch(leaf, labels, _exact(batch.x), _exact(batch.advantages), {"old": [F(-1)] * n})
    made.policies |= {p: _exact(v) for p, v in {**batch.policies, **(log_probs or {})}.items()}
    world, given = World(h, made), {"weight": batch.weights, **batch.attributes}
    for a in h.attributes.values():
        values, elements = given[a.name], world.elements(a.on.name)
        if not isinstance(values, Mapping):
            first = [world.over[a.on.name][e][0] for e in elements]
            values = {e: values[i if len(values) == n else k] for k, (i, e) in enumerate(zip(first, elements, strict=True))}
        made.attributes[a.name] = {e: F(float(values[e])) for e in elements}
    made.parameters = {p.name: _numbers(batch.parameters.get(p.name, p.default)) for p in h.parameters.values()}
    made.rewards, made.by_token = None if rewards is None else dict(enumerate(_exact(rewards))), True
    return made


def _exact(values: Any) -> list[Fraction]:
    return [F(float(v)) for v in values]


def _numbers(value: Any) -> Any:
    return {k: _numbers(v) for k, v in value.items()} if isinstance(value, Mapping) else F(float(value))


def one_value_each(batch: support.Batch) -> support.Batch:
    """Without values per element."""
    given = batch.parameters.items()
    return replace(batch, parameters={k: v for k, v in given if not isinstance(v, Mapping) or set(v) <= {"+", "-"}})


def point(h: Hierarchy, b: Batch) -> tuple[Point, list[int]]:
    """A batch as the laws see it, and the places of its tokens in the batch."""
    shape, world = whole_batch(h), World(h, b, exact=True)
    elements = {s: world.elements(s.name) for s in shape.strata}
    number = {s: {e: k for k, e in enumerate(es)} for s, es in elements.items()}
    maps = {
        (f.source, f.target): tuple(number[f.target][world.below(f.source.name, e, f.target.name)] for e in elements[f.source])
        for f in shape.fibrations
    }
    parameters: dict[Any, Any] = {}
    for p in h.parameters.values():
        each = [b.parameters[p.name]] if p.on is None else [b.parameters[p.name][e] for e in elements[p.on]]
        for c in ("+", "-") if p.per_channel else ("",):
            values = tuple(v[c] if isinstance(v, Mapping) else v for v in each)
            parameters[Component(p, c) if c else p] = values[0] if p.on is None else values
    attributes = {a: tuple(b.attributes[a.name][e] for e in elements[a.on]) for a in h.attributes.values()}
    places = [i for leaf in h.leaves for i in elements[leaf]]

    def placed(values: Any) -> tuple[Any, ...]:
        return tuple(values[i] for i in places)

    rewards = placed([b.rewards[i if b.by_token else world.label[h.rows.name][i]] for i in range(world.n)]) if b.rewards else ()
    advantages = [world.advantage(i) for i in range(world.n)]
    log_probs = {p: placed(v) for p, v in b.policies.items()}
    concrete = Concrete(shape, maps, attributes, parameters)
    return Point(h, concrete, placed(b.x), placed(advantages), log_probs=log_probs, rewards=rewards), places
