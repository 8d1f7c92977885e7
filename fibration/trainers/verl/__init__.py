"""verl 0.9 with a hierarchy as its policy loss: exact coefficients of every mini-batch, nothing forked.

```yaml
actor_rollout_ref:
  actor:
    policy_loss:
      _target_: fibration.trainers.verl.FibrationPolicyLossConfig
      loss_mode: fibration
      hierarchy: fiberpo_domain_inward
```

verl builds the config in every process that has an actor, and building it puts our worker in the place of verl's
(`config.py`). A mini-batch is one optimizer step: the worker takes log-probs of all its rows, computes the coefficients
over all ranks, and gives them to verl as advantages (`worker.py`), of which the policy loss is a plain sum (`loss.py`).
verl loads `plugin.py` by itself, which registers that loss by its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fibration.trainers.verl.config import FibrationPolicyLossConfig
    from fibration.trainers.verl.worker import FibrationTrainingWorker

_LAZY = {"FibrationPolicyLossConfig": "config", "FibrationTrainingWorker": "worker"}

__all__ = ["FibrationPolicyLossConfig", "FibrationTrainingWorker"]


def __getattr__(name: str) -> object:
    """verl loads the plugin while it is imported itself, so nothing here may import verl at once."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
