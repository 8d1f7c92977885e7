"""`FibrationGRPOTrainer`: `trl.GRPOTrainer` with a hierarchy as its loss (`trainer.py`).

Options, data and models that would change its gradients are refused (`refusals.py`). `audit.py` audits the first steps
of this trainer, or of TRL's own, beside a declared loss. `hierarchy_of` reads a config of TRL, and does not need TRL.
The other names raise MissingDependency where TRL is not installed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fibration.configs.trl import hierarchy_of
from fibration.errors import MissingDependency

if TYPE_CHECKING:
    from fibration.trainers.trl.audit import StepAudits, audit_first_steps
    from fibration.trainers.trl.numbers import ENTROPY
    from fibration.trainers.trl.refusals import BY_PROMPT
    from fibration.trainers.trl.trainer import FibrationGRPOTrainer

__all__ = ["BY_PROMPT", "ENTROPY", "FibrationGRPOTrainer", "StepAudits", "audit_first_steps", "hierarchy_of"]

_WITH_TRL = {
    "BY_PROMPT": "refusals",
    "ENTROPY": "numbers",
    "FibrationGRPOTrainer": "trainer",
    "StepAudits": "audit",
    "audit_first_steps": "audit",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TRL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("trl") is None:
        raise MissingDependency(
            f"fibration.trainers.trl.{name} requires TRL",
            required="the package trl",
            found="it is not installed",
            remedy="install fibration with its extra: pip install '.[trl]' in its checkout",
        )
    return getattr(import_module(f"{__name__}.{_WITH_TRL[name]}"), name)
