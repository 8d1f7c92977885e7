"""Laws of gates near ratio 1: identity, first_order, gradient.

These laws use `at_ratio_one.py`, the operator at ratio 1, and `levels_together.py`, the gates of all levels near it.
"""
