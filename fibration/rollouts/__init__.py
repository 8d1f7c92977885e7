"""Recorded batches: their file format, and replaying through an operator.

May import: `errors`, `files`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`.
"""

from fibration.rollouts.file import Rollouts, load_rollouts, save_rollouts
from fibration.rollouts.labels import Labels

__all__ = ["Labels", "Rollouts", "load_rollouts", "save_rollouts"]
