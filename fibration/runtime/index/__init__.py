"""The index of a batch: labels become element numbers, numbers become an `Index`, and assumptions are checked on it.

An `Index` (index.py) has the elements that backends use, with labels, counts and words for errors.
`build.py` builds an index, `spread.py` that of a batch over ranks. `labels.py` reads the user's labels, `assumed.py`
checks assumptions, `projection.py` computes the matrices of crossed strata, `micro.py` takes micro-batches of a step.

May import: `errors`, `language`, `compiler`, and the modules of `runtime` below it.
"""

import fibration.runtime.index.micro  # noqa: F401  # defines `index.micro(rows)`
