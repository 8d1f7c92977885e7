"""Exact values of formulas: with derivatives, between bounds, and near a point. Nothing here uses sympy.

Proofs and searches both read these modules. They import neither.
"""
