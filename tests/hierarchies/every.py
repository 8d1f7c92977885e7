"""All hierarchies that the modules of this folder hold, and random families by seed: for what is true of any hierarchy."""

from __future__ import annotations

import dataclasses
import pkgutil
import random
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz.random_hierarchies import whole
from support import random_hierarchy

from fibration import Hierarchy
from hierarchies import advantage_formulas, baselines, divergences, random_chains, random_quivers
from hierarchies.random_levels import random_levels
from hierarchies.random_order import with_order
from hierarchies.random_penalties import with_penalties
from hierarchies.random_token_formulas import with_words

# the modules that hold no hierarchies
WITHOUT = ("additive_kernels", "batch_of_every_regime", "builders", "every", "levels")
MODULES = tuple(
    m.name
    for m in pkgutil.iter_modules([str(Path(__file__).parent)])
    if m.name not in WITHOUT and "random" not in m.name
)
CALLED = ("right", "wrong", "wrong_pushes", "undecidable", "subspaces", "interleaved")  # they return hierarchies


def hierarchies_of(module: str) -> Iterator[Hierarchy]:
    """Every hierarchy in the variables of a module, at any depth, and in what its functions `CALLED` return."""
    found = vars(import_module(f"hierarchies.{module}"))
    seen: list[Hierarchy] = []
    made = [found[name]() for name in CALLED if name in found]
    if module == "baselines":
        made += [baselines.spec(c.formula) for each in (baselines.RIGHT, baselines.WRONG) for c in each.values()]
    if module == "advantage_formulas":
        made += [advantage_formulas.rewarded(formula) for formula in advantage_formulas.FIELD.values()]
    for value in [*found.values(), *made]:
        for h in hierarchies_in(value):
            if not any(h is other for other in seen):
                seen.append(h)
                yield h


def hierarchies_in(value: Any) -> Iterator[Hierarchy]:
    """Every hierarchy in a value, at any depth."""
    if isinstance(value, Hierarchy):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from hierarchies_in(inner)
    elif isinstance(value, divergences.Term):
        yield value.hierarchy
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from hierarchies_in(getattr(value, field.name))


def _structure(seed: int) -> Hierarchy:
    odd = seed % 2
    return random_quivers.quiver(seed // 2 % random_quivers.COUNT) if odd else random_chains.chain(seed)


FAMILIES: dict[str, Callable[[int], Hierarchy]] = {
    "chains of few parts": random_hierarchy,
    "chains": random_chains.chain,
    "linear chains": random_chains.linear_chain,
    "trees and quivers": lambda seed: random_quivers.quiver(seed % random_quivers.COUNT),
    "levels": lambda seed: random_levels(random.Random(seed)),
    "token formulas": lambda seed: with_words(_structure(seed), seed),
    "order": lambda seed: with_order(_structure(seed), seed),
    "penalties": lambda seed: with_penalties(_structure(seed), seed),
    "advantages": lambda seed: advantage_formulas.with_formula(_structure(seed), seed),
    "anything": lambda seed: whole(random.Random(seed)),
}
