"""Small concrete batches, evaluated in exact rationals. Searches for counterexamples use them; nothing here uses sympy.

`shapes.py` lists who may lie over whom, `concrete.py` puts values on shapes, `search.py` lists candidates from the
smallest on. `direct_operator.py` evaluates the operator by its definition, `tokens.py` what is read at each token,
`coefficients.py` the coefficients of a loss, `first_update.py` those at ratio 1.
"""
