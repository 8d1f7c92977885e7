"""Pictures: a recorded batch at every level of its hierarchy, gates as curves, the paper's figures.

May import: everything but `bench` and `cli`.
"""
