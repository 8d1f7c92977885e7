"""verl 0.9 with a hierarchy as its policy loss: exact coefficients of every mini-batch, without a fork of verl.

```yaml
actor_rollout_ref:
  actor:
    policy_loss:
      _target_: fibration.trainers.verl.FibrationPolicyLossConfig
      loss_mode: fibration
      hierarchy: fiberpo_domain_inward
```

verl builds the config in every process with an actor; building it replaces verl's worker by ours (`config.py`). A
mini-batch is one optimizer step. The worker computes log-probs of all its rows, then coefficients over all ranks, and
passes them to verl as advantages (`worker.py`). The policy loss sums them (`loss.py`). verl imports `plugin.py`, which
registers that loss by name. `audit.py` audits the first steps of an actor, with verl's loss or ours.

`hierarchy_of(config)` returns the loss that verl itself trains with a config, and needs no verl.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fibration.configs.verl import hierarchy_of
    from fibration.trainers.verl.audit import audited_worker
    from fibration.trainers.verl.config import FibrationPolicyLossConfig
    from fibration.trainers.verl.worker import FibrationTrainingWorker

_LAZY = {
    "FibrationPolicyLossConfig": "fibration.trainers.verl.config",
    "FibrationTrainingWorker": "fibration.trainers.verl.worker",
    "audited_worker": "fibration.trainers.verl.audit",
    "hierarchy_of": "fibration.configs.verl",
}

__all__ = ["FibrationPolicyLossConfig", "FibrationTrainingWorker", "audited_worker", "hierarchy_of"]


def __getattr__(name: str) -> object:
    """Import lazily: verl imports the plugin during its own import, so this module must not import verl."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
