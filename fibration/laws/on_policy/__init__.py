"""Laws of gates near ratio 1: identity, first_order, gradient.

`at_ratio_one.py` has the operator at ratio 1 and `levels_together.py` the gates of all levels near it.
"""
