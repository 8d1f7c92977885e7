"""Facts, certified beside the laws: radius, bounds, amplification, second moment, normaliser, restorative."""
