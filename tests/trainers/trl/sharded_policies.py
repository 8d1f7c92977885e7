"""FSDP for the model of a policy, on CPUs: accelerate has FSDP on accelerators alone, so the trained model is under DDP.

The library calls TRL's own `prepare_fsdp`, and torch makes the shards under gloo. Version 1 of FSDP refuses CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule

from fibration.trainers.trl import numbers


@contextmanager
def under_fsdp() -> Iterator[None]:
    """While the body runs, trainers place the models of policies as with FSDP."""
    own = numbers._placed

    def placed(trainer: Any, name: str, model: Any) -> Any:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        state = patch.dict(trainer.accelerator.state.__dict__, {"fsdp_plugin": plugin})
        with state, patch.object(trainer, "is_fsdp_enabled", True):
            found = own(trainer, name, model)
        assert isinstance(found, FSDPModule)
        return found

    with patch.object(numbers, "_placed", placed):
        yield
