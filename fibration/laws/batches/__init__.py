"""Small concrete batches, evaluated in exact rationals. Searches for counterexamples use them; nothing here uses sympy.

`shapes.py` lists shapes, `concrete.py` puts values on them, `search.py` lists candidates, smallest first.
`coefficients.py` evaluates the IR in exact numbers: formulas and coefficients of a loss on a batch; `first_update.py`
tells wrong ones at ratio 1. `caps.py` says how far each search goes.
"""
