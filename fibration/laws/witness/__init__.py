"""What the laws refute with: small hierarchies, evaluated in exact rationals. Nothing here uses sympy.

`shapes.py` lists who may lie over whom, `batches.py` puts values on shapes, `tokens.py` has what a call gives for every
token, `definition.py` evaluates the operator there; `crowds.py` has batches of any size, of tokens that are alike.

May import: `errors`, `language`.
"""
