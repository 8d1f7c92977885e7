"""The frozen sums of a step: what a micro-batch reads of other rows, and the current policy does not move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fibration.compiler.program import Program
from fibration.errors import BatchError, listed
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.parameters import Values, parameter_values

KEY = "frozen sums"


@dataclass(frozen=True)
class Frozen:
    """`sums`: float64 per element of the whole step, by the name of the prologue's output. `parameters`: as it read."""

    sums: Mapping[str, Tensor]
    parameters: Values


def frozen_sums(h: Hierarchy, prologue: Program, index: MicroIndex, given: Any) -> Mapping[str, Tensor]:
    """What `op.freeze` kept for the step, at the elements of a micro-batch: float64 [elements].

    Raises BatchError without it, and if parameters differ.
    """
    frozen: Frozen | None = index.whole.told(KEY)
    over = listed(list(index.coupling.frozen))
    if frozen is None:
        raise BatchError(
            f"a micro-batch of '{h.name}' reads sums over {over} of the whole step, and they are not computed",
            required="op.freeze(...) once per step, before its micro-batches",
            remedy="op.freeze(old_log_probs, advantages, index, policies=...) with the tensors of all rows",
        )
    now = parameter_values(h, prologue, index.whole, {} if given is None else given)
    for node, numbers in frozen.parameters.items():
        if not np.array_equal(numbers, now[node]):
            raise BatchError(
                f"parameter '{node.key[0]}' of '{h.name}' is {now[node].tolist()} in a micro-batch, and was "
                f"{numbers.tolist()} in op.freeze(...)",
                required="the same parameters in a whole step",
                remedy="pass the same parameters= to both",
            )
    over_of = {str(key): node.stratum for key, node in prologue.outputs.items()}
    return {name: index.taken(total, over_of[name]) for name, total in frozen.sums.items()}


# What needs a whole step, and what to do instead; all other calls take the index of the whole step.
INSTEAD = {
    "metrics": "at the end of the step, op.coefficients(...) with the log-probs of all rows and the step's index",
    "rewards": "advantages = op.advantages(rewards, index) of the whole step, then advantages[rows]",
    "live rows": "live = op.live(advantages, index) of the whole step, then live[rows]: advantages elsewhere may "
    "decide",
}


def of_whole_step(h: Hierarchy, what: str) -> BatchError:
    return BatchError(
        f"{what} of a micro-batch of '{h.name}'",
        required="the whole step: an element may have tokens in several micro-batches",
        remedy=INSTEAD.get(what, "call it with the index of the whole step"),
    )
