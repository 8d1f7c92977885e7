"""Fibration Policy Optimization: a budget for every level of a hierarchy."""
