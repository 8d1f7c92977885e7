"""The config of a trainer as a hierarchy: `trl:FILE`, `verl:FILE`, `openrlhf:FILE` or `prime:FILE` on the command line.

No trainer has to be installed. `NAME.toml` is the table of a trainer's options: default, meaning and severity.
`options.py` keeps account of the keys: one that touches the loss is read or is an error. `trl.py`, `openrlhf.py`,
`prime.py` and `verl/` make a loss of them, in a `Draft`.

May import: `errors`, `files`, `language`.
"""

from fibration.configs.findings import Finding
from fibration.configs.options import TrainerLoss

__all__ = ["Finding", "TrainerLoss"]
