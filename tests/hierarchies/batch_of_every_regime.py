"""A batch in which every level of `fiberpo_domain` passes, rolls back and zeroes some of its elements."""

import numpy as np
from support import Batch

# Triton takes 4 rows and 32 tokens at once.
LENGTHS = (9, 1, 17, 8, 40, 6, 12, 3, 9, 14, 2, 11, 8, 5, 1, 10, 4, 12, 9, 7)


def batch_of_every_regime() -> Batch:
    """Domains, prompt groups and trajectories that went some way each, tokens around them."""
    generator = np.random.default_rng(28)
    rows, n = len(LENGTHS), sum(LENGTHS)
    group = np.arange(rows) // 2
    drift = generator.choice([0.02, 0.08, 0.3, 0.6], 10)[group] * generator.choice([1, 1, 1, 2.0], rows)
    x = generator.normal(0.3, 1, n) * np.repeat(drift, LENGTHS)
    labels = {"prompt_group": [f"group {g}" for g in group], "domain": [f"domain {g // 2}" for g in group]}
    return Batch(LENGTHS, x, generator.normal(size=n), labels)
