"""Facts beside the laws: radius, bounds, continuity, restorative, blocks, second_moment, normaliser, amplification."""
