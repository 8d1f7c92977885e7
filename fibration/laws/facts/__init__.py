"""Facts that no law states: radius, bounds, continuity, restorative, blocks, second_moment, normaliser, and so on."""
