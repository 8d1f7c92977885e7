"""`FibrationGRPOTrainer`: `trl.GRPOTrainer` with a hierarchy as its loss (`trainer.py`).

Options and data that would change its gradients are refused (`refusals.py`). `audit.py` audits the first steps of
this trainer, or of TRL's own, beside a declared loss.
"""

from importlib.util import find_spec

from fibration.errors import MissingDependency

if find_spec("trl") is None:
    raise MissingDependency(
        "fibration.trainers.trl requires TRL",
        required="the package trl",
        found="it is not installed",
        remedy="install fibration with its extra: pip install '.[trl]' in its checkout",
    )

from fibration.trainers.trl.audit import StepAudits, audit_first_steps
from fibration.trainers.trl.refusals import BY_PROMPT
from fibration.trainers.trl.trainer import FibrationGRPOTrainer

__all__ = ["BY_PROMPT", "FibrationGRPOTrainer", "StepAudits", "audit_first_steps"]
