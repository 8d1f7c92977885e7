"""The batch of a counterexample, to evaluate it again by definition."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fibration import Hierarchy, Stratum
from fibration.language.declared import CURRENT, OLD
from fuzz.dual_numbers import Numbers, value_of
from fuzz.world import Batch, World

CLOSE = Fraction(1, 10**25)


class Ties(Numbers):
    """A witness lies on a breakpoint: numbers that differ in their last digits alone are equal there."""

    def less(self, a: Any, b: Any, or_equal: bool) -> bool:
        x, y = value_of(a), value_of(b)
        if abs(x - y) < Fraction(1, 10**40) * max(1, abs(x), abs(y)):
            return or_equal
        return bool(x < y)


def world_of(h: Hierarchy, witness: Any) -> World:
    """A hierarchy on the batch of a counterexample, in fractions of fifty digits."""
    world = World(h, batch_of(h, witness), exact=True)
    world.by = Ties(exact=True)
    return world


def batch_of(h: Hierarchy, witness: Any) -> Batch:
    """The batch that a counterexample says; what it does not say is on policy, with advantages of 1."""
    c, values = witness.concrete, witness.values
    places = [(leaf, i) for leaf in h.leaves for i in range(c.size[leaf])]
    if isinstance(values.get("tokens"), list):
        named = (t.split() for t in values["tokens"])
        places = [(Stratum(s), int(number) - 1) for s, number in named]
    coarse = [s for s in c.size if s not in h.leaves]
    labels = {s.name: [_below(c.maps, leaf, i, s) for leaf, i in places] for s in coarse}
    number = {place: k for k, place in enumerate(places)}
    attributes = {
        a.name: {number.get((a.on, i), i) if a.on in h.leaves else i: v for i, v in enumerate(vs)}
        for a, vs in c.attributes.items()
    }
    parameters: dict[str, Any] = {}
    own = h.parameters.values()  # of a pair the other loss may have one of the same name
    for p, v in sorted(c.parameters.items(), key=lambda item: getattr(item[0], "parameter", item[0]) in own):
        each = dict(enumerate(v)) if isinstance(v, tuple) else v
        if hasattr(p, "channel"):
            parameters.setdefault(p.parameter.name, {})[p.channel] = each
        else:
            parameters[p.name] = each
    xs = values["log_ratios"] if "log_ratios" in values else _logarithms(values.get("ratios", [1] * len(places)))
    said = {n.removeprefix("log_probs of "): list(v) for n, v in values.items() if n.startswith("log_probs of ")}
    for name, given in values.items():
        if name.startswith("probabilities of "):
            said[name.removeprefix("probabilities of ")] = _logarithms(given)
    old = said.setdefault(OLD, [-1 - max(x, Fraction(0)) for x in xs])
    policies = {p: said.get(p, old) for p in (OLD, *h.policies) if p != CURRENT}
    given = values.get("advantages", [Fraction(1)] * len(places))
    rewards = dict(enumerate(values["rewards"])) if "rewards" in values else None
    return Batch(
        [leaf for leaf, _ in places], labels, list(xs), list(given), policies, attributes, parameters, rewards, by_token=True
    )  # fmt: skip


def _below(maps: Mapping[Any, Any], source: Stratum, element: int, target: Stratum) -> Any:
    """The element of a stratum that an element lies over; None where there is no way."""
    if source == target:
        return element
    ways = (_below(maps, t, row[element], target) for (s, t), row in maps.items() if s == source)
    return next((e for e in ways if e is not None), None)


def _logarithms(values: Any) -> list[Fraction]:
    return [Numbers(exact=True).call("log", Fraction(v)) for v in values]


def are_close(mine: Any, yours: Any) -> bool:
    return all(abs(a - b) <= CLOSE * max(1, abs(a), abs(b)) for a, b in zip(mine, yours, strict=True))
