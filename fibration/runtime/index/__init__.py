"""Who lies over whom in a batch: labels become codes, codes an `Index`, and what a hierarchy assumes is measured on it.

`build.py` is the way in, and `spread.py` that of a batch over ranks; `labels.py` reads what users pass, `assumed.py`
checks it, `projection.py` computes the matrices of crossed strata, `micro.py` takes micro-batches of a step.

May import: `errors`, `language`, `compiler`, and of `runtime` what an index is made of.
"""

import fibration.runtime.index.micro  # noqa: F401  # gives an index its `index.micro(rows)`
