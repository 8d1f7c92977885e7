"""Advantages from rewards by definition (`fuzz.world`): statistics in fractions, roots to fifty digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fuzz.points import of_rows
from fuzz.world import World
from support import Batch

from fibration import Hierarchy


@dataclass(frozen=True)
class Rewards:
    """One batch: `rewards` per token, which are those of rows where rows have them."""

    h: Hierarchy
    batch: Batch
    rewards: Any
    log_probs: Mapping[str, Any] = field(default_factory=dict)

    def advantages(self) -> np.ndarray:
        """Of every token, rounded once."""
        world = World(self.h, of_rows(self.h, self.batch, self.log_probs, self.rewards), exact=True)
        return np.array([float(world.advantage(i)) for i in range(world.n)])
