"""Batches and the operator on them: index, inputs, parameters, calls of generated functions, metrics.

May import: `errors`, `files`, `cache`, `language`, `compiler`.
"""
