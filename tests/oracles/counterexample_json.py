"""Reads counterexamples from JSON into Fractions, without the objects that wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration import Hierarchy, Stratum
from fibration.language.atoms import Component
from fibration.language.report import Verdict


@dataclass(frozen=True)
class Batch:
    """Who lies over whom, and the values of attributes and parameters."""

    size: dict[Stratum, int]
    maps: dict[tuple[Stratum, Stratum], tuple[int, ...]]
    attributes: dict[Any, tuple[Fraction, ...]]
    parameters: dict[Any, Fraction]


@dataclass(frozen=True)
class Read:
    """A counterexample that was read."""

    data: dict[str, Any]
    concrete: Batch | None
    values: dict[str, Any]

    def __str__(self) -> str:
        return self.data["text"]

    def to_dict(self) -> dict[str, Any]:
        return self.data


NAMES = ("stratum", "gate", "leaf", "over", "part", "what", "channel", "changed")  # what is no number


def from_json(h: Hierarchy, verdict: Verdict) -> Verdict:
    """The verdict, with its counterexample as JSON alone gives it."""
    if verdict.counterexample is None:
        return verdict
    data = json.loads(json.dumps(verdict.to_dict()))["counterexample"]
    values = {k: v if k in NAMES else number(v) for k, v in data["values"].items()}
    found = data.get("hierarchy")
    return replace(verdict, counterexample=Read(data, found and batch(h, found), values))


def number(value: Any) -> Any:
    """Numbers are whole, or exact in text; lists of them too. None is what has no value."""
    if isinstance(value, list):
        return tuple(number(v) for v in value)
    assert value is None or isinstance(value, (int, str)), f"{value!r} is no exact number"
    return Fraction(value) if isinstance(value, str) else value


def batch(h: Hierarchy, found: dict[str, Any]) -> Batch:
    named = {str(p): p for p in h.parameters.values()}
    named |= {str(c): c for p in h.parameters.values() for c in (Component(p, s) for s in h.decomposition.channels)}
    size = {Stratum(s): n for s, n in found["sizes"].items()}
    maps = {(Stratum(s), Stratum(t)): tuple(row) for s, rows in found["parents"].items() for t, row in rows.items()}
    for (s, t), row in maps.items():
        assert len(row) == size[s]
        assert all(0 <= b < size[t] for b in row)
    attributes = {h.attributes[name]: tuple(map(Fraction, row)) for name, row in found["attributes"].items()}
    return Batch(size, maps, attributes, {named[p]: Fraction(v) for p, v in found["parameters"].items()})
