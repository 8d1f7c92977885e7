"""Small concrete batches, evaluated in exact rationals. Searches for counterexamples use them; nothing here uses sympy.

`shapes.py` lists shapes, `concrete.py` puts values on them, `search.py` lists candidates, smallest first.
`direct_operator.py` evaluates the operator by its definition, `tokens.py` what is read at each token, `coefficients.py`
the coefficients of a loss, `first_update.py` the coefficients at ratio 1. `caps.py` says how far each search goes, and
`words.py` describes what was found.
"""
