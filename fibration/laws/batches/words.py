"""Counterexamples in words: elements, batches, and the `Witness` that a search returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.numerals import plural, written


def lies(concrete: Concrete, stratum: Stratum) -> str:
    """`trajectories 1 to 3 lie over domains 1, 1, 2 and modalities 1, 2, 1`; '' for one, or for many."""
    n = concrete.size[stratum]
    if not 1 < n <= 8:
        return ""
    over = [
        f"{plural(f.target.name)} {', '.join(str(b + 1) for b in concrete.maps[stratum, f.target])}"
        for f in concrete.shape.below(stratum)
    ]
    return f"{plural(stratum.name)} 1 to {n} lie over {' and '.join(over)}"


def in_batch(h: Hierarchy, concrete: Concrete) -> str:
    """`in a trajectory of 3 tokens`; of several rows, `in a batch of 2 trajectories with 1 and 2 tokens`."""
    return f"in {concrete.describe(h.rows if concrete.size[h.rows] == 1 else Stratum(BATCH))}"


def settings(concrete: Concrete) -> str:
    """The values of parameters and attributes, in parentheses."""
    parts = list(concrete.settings)
    parts += [f"{a.name} = {', '.join(map(str, v[:6]))}" for a, v in concrete.attributes.items()]
    return f" ({'; '.join(parts)})" if parts else ""


@dataclass(frozen=True)
class Witness:
    """A counterexample: a sentence, and everything needed to check it without this library.

    `has_no_value`: a formula has no value there, where others have a wrong one.
    """

    text: str
    concrete: Concrete | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    has_no_value: bool = False

    @classmethod
    def on(cls, concrete: Concrete, text: str, values: Mapping[str, Any]) -> Witness:
        """A witness whose sentence ends with the values of parameters and attributes."""
        return cls(text + settings(concrete), concrete, values)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        hierarchy = {} if self.concrete is None else {"hierarchy": self.concrete.to_dict()}
        return {"text": self.text, **hierarchy, "values": {k: written(v) for k, v in self.values.items()}}
