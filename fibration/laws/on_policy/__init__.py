"""Laws of gates near ratio 1: identity, first_order, gradient.

These laws use `expansion.py`, the operator at ratio 1 to first order.
"""
