"""What a user writes: strata, fibrations, kernels, gates, decompositions and objectives, as immutable typed objects.

They print as written and round-trip through JSON. `atoms.py`, `policies.py`, `statistics.py`, `operators.py` and
`expressions.py` are the formulas, `gates.py`, `kernels.py`, `decompositions.py` and `objectives.py` what is built of
them, `strata.py` the shape that fibrations make of strata, `hierarchy.py` the whole, `document.py`, `read_document.py`
and `loading.py` its JSON and files.
Nothing here proves or runs anything; sympy is met in `sympy_bridge.py` and in the rows of `operators.py` alone.

May import: `errors`.
"""
