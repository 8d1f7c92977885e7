"""What the laws refute with: small hierarchies, evaluated in exact rationals. Nothing here uses sympy.

`shapes.py` lists who may lie over whom, `batches.py` puts values on shapes, `definition.py` evaluates the operator
there.

May import: `errors`, `language`.
"""
