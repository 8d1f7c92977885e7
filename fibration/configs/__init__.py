"""The config of a trainer as a hierarchy: `trl:FILE`, `verl:FILE` and `openrlhf:FILE` on the command line.

Neither trainer has to be installed. `options.py` keeps account of the keys: one that touches the loss is read or is an
error. `trl.py` and `verl/` say what the keys of their trainer mean.

May import: `errors`, `files`, `language`.
"""

from fibration.configs.findings import Finding
from fibration.configs.options import TrainerLoss

__all__ = ["Finding", "TrainerLoss"]
