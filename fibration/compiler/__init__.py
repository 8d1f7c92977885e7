"""From a hierarchy to a plan: lower, instrument, adjoint, optimise, schedule or fuse. No tensors, no backend.

`ir.py` is the IR on one page, `interpret.py` its meaning in float64, `rules.py` the rewrites of scalars,
`diagnostics.py` what metrics are made of, `plan.py` what an emitter gets, `arguments.py` how what it writes is called.
Every stage takes a program and returns one; `pipeline.py` calls them in their order.

May import: `errors`, `language`.
"""
