"""A declared loss on the batches of an audit."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fibration.auditing.batch import Batch
from fibration.auditing.function import Found, Function
from fibration.errors import BatchError, FibrationError, HierarchyIndexError
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report
from fibration.pipeline import emit, load, programs
from fibration.runtime.operator import Operator

ARGUMENT_OF = {"reference": "ref_log_probs", "rollout": "rollout_log_probs"}  # of a policy
LABELLED = {"prompt_group"}  # strata whose labels are `group_ids`


def lacks(h: Hierarchy, function: Function) -> str:
    """What a loss reads and a function is not given; '' if nothing."""
    roles = function.roles
    for policy in sorted(set(h.policies) - {"current", "old"}):
        if ARGUMENT_OF.get(policy) not in roles:
            return f"log-probs of the policy '{policy}'"
    if h.advantages is None and function.reads_rewards:
        return "advantages"
    if h.advantages is not None and not function.reads_rewards and not h.penalties:
        return "rewards"  # with advantages in their place it is a loss without its name
    strata = (*h.strata, *h.groups) if function.reads_rewards else h.strata
    for s in strata:
        known = s in h.leaves or s == h.rows or s.name == "batch"
        if not known and not (s.name in LABELLED and "group_ids" in roles):
            return f"labels of {s.name}"
    if len(h.leaves) > 1:
        return f"which tokens are of {h.leaves[0]}"
    if h.attributes:
        return f"the attribute '{next(iter(h.attributes))}'"
    return ""


@functools.lru_cache(128)
def operator(h: Hierarchy) -> Operator:
    """An operator of a loss that may break a law: its numbers are asked, no proof."""
    made = emit(h, "torch", programs(h))
    return Operator(h, Report(h, ()), "torch", made.source, made.programs, load(made))


@dataclass
class Reference:
    """A hierarchy, with the indexes of the batches that it was asked for."""

    op: Operator
    from_rewards: bool
    _indexes: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, h: Hierarchy, function: Function) -> Reference:
        return cls(operator(h), function.reads_rewards)

    @property
    def hierarchy(self) -> Hierarchy:
        return self.op.hierarchy

    def takes(self, batch: Batch) -> bool:
        """Whether the batch has what the loss needs, such as two rows in each group."""
        try:
            self._evaluate(batch, {})
        except (HierarchyIndexError, BatchError):
            return False
        except FibrationError:  # a parameter without a default
            return True
        return True

    def evaluate(self, batch: Batch, parameters: Mapping[str, Any] = MappingProxyType({})) -> Found | None:
        """Its loss and coefficients; None if it does not take the batch or the parameters."""
        try:
            return self._evaluate(batch, parameters)
        except FibrationError:
            return None

    def _evaluate(self, batch: Batch, parameters: Mapping[str, Any]) -> Found:
        h = self.hierarchy
        groups = tuple(r.group for r in batch.rows)
        key = batch.lengths, groups
        if key not in self._indexes:
            labels: dict[str, Any] = {s.name: list(groups) for s in (*h.strata, *h.groups) if s.name in LABELLED}
            self._indexes[key] = self.op.index(offsets=np.cumsum([0, *batch.lengths]), **labels)
        numbers = [r.reward if self.from_rewards else r.advantage for r in batch.rows]
        given = torch.tensor(numbers, dtype=torch.float64)
        found = self.op.coefficients(
            torch.from_numpy(batch.of("log_probs")),
            torch.from_numpy(batch.of("old_log_probs")),
            None if self.from_rewards else given,
            self._indexes[key],
            dict(parameters),
            rewards=given if self.from_rewards else None,
            policies={p: torch.from_numpy(batch.of(a)) for p, a in ARGUMENT_OF.items() if p in h.policies},
            metrics=False,
        )
        return Found(-float(found.objective), found.values.numpy(), np.zeros(0))
