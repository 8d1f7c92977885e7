"""The language of declarations: strata, fibrations, kernels, gates and the rest of a loss, as immutable typed objects.

The objects print as written and round-trip through JSON. The modules:

- formulas: `atoms.py`, `policies.py`, `statistics.py`, `operators.py`, `expressions.py`
- objects made of formulas: `gates.py`, `kernels.py`, `decompositions.py`, `objectives.py`
- the graph of strata and fibrations: `strata.py`; the whole declaration: `hierarchy.py`
- its JSON and files: `document.py`, `read_document.py`, `loading.py`

Nothing here proves or runs anything. Only `sympy_bridge.py` uses sympy.

May import: `escaping`, `errors`, `files`.
"""
