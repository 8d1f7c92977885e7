"""Inside TRL: `FibrationGRPOTrainer`, which is `trl.GRPOTrainer` with a hierarchy for its loss (`trainer.py`).

Options and data under which its gradients would be others are refused (`refusals.py`).
"""

from importlib.util import find_spec

from fibration.errors import MissingDependency

if find_spec("trl") is None:
    raise MissingDependency(
        "there is no trainer of TRL to build on",
        required="the package trl",
        found="it is not installed",
        remedy="install fibration with its extra: pip install '.[trl]' in its checkout",
    )

from fibration.trainers.trl.refusals import BY_PROMPT
from fibration.trainers.trl.trainer import FibrationGRPOTrainer

__all__ = ["BY_PROMPT", "FibrationGRPOTrainer"]
