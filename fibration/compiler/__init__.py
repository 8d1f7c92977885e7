"""Compiles a hierarchy to a plan: lower, instrument, adjoint, optimise, schedule or fuse. No tensors, no backend.

`ir.py` defines the IR, `interpret.py` its meaning in float64, `rules.py` the rewrites of scalars, `diagnostics.py` the
metrics, `plan.py` the input of an emitter, and `arguments.py` the arguments of the emitted functions.
`lower` returns a program, and later stages change it, until `schedule` or `fuse`. `pipeline.py` calls the stages.

May import: `errors`, `language`.
"""
