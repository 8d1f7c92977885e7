"""The language of declarations: strata, fibrations, kernels, gates and the rest of a loss, as immutable typed objects.

The objects print as written and round-trip through JSON. The modules:

- formulas: `atoms.py`, `statistics.py`, `operators.py`, `expressions.py`; their text: `grammar.py`
- objects made of formulas: `gates.py`, `objectives.py`
- fibrations with their kernels, and the graph of their strata: `strata.py`; the whole declaration: `hierarchy.py`
- its JSON and files: `document.py`, `loading.py`
- what a comparison of two needs: `pairs.py`, `conditions.py`, `fixed.py`, `roles.py`

Nothing here proves or runs anything. Only `sympy_bridge.py` uses sympy.

May import: `escaping`, `errors`, `files`.
"""
