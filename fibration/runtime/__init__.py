"""Batches, and the operator on them: index, inputs, parameters, the call of a generated function, metrics.

May import: `errors`, `files`, `cache`, `language`, `compiler`.
"""
