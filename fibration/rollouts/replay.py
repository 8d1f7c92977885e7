"""A recorded batch, gated: who lies over whom, what the operator says, and how far that is from the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.interpret import interpret
from fibration.compiler.ir import Input, Matrix, part
from fibration.compiler.keys import Key
from fibration.errors import RolloutsError, listed
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.language.policies import OLD
from fibration.language.rewards import adds_up_tokens
from fibration.rollouts.file import Rollouts
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator
from fibration.runtime.results import Coefficients, Levels
from fibration.runtime.weights import Weights, weights_of


@dataclass(frozen=True)
class Gated:
    """A recorded batch, and everything that an operator says about it. Per-token arrays are float64 `[N]`."""

    op: Operator
    index: Index
    rollouts: Rollouts
    parameters: Mapping[str, Any]
    policies: Mapping[str, Tensor]  # log-probs of those beside current and old that the hierarchy reads
    log_ratio: Tensor
    advantages: Tensor  # [n] or [N]; recorded, or made of the rewards where the hierarchy has a formula
    ratio: Tensor
    result: Coefficients
    levels: Levels

    @cached_property
    def weights(self) -> Weights:
        """What every unmasked token's term is multiplied by, and whether it is kept."""
        return weights_of(self.op.hierarchy, self.index, self.inputs("evaluate"))

    def inputs(self, program: str) -> dict[Input | Matrix, NDArray[np.float64]]:
        """What the operator gives to one of its programs, for the interpreter."""
        now, old = (torch.from_numpy(x).double() for x in (self.rollouts.log_probs, self.rollouts.old_log_probs))
        values = self.op.inputs(
            self.index, self.log_ratio, self.advantages, self.parameters, program, (now, old), self.policies
        )
        return {k: v.cpu().numpy() for k, v in values.items()}


def passed_policies(hierarchy: Hierarchy, rollouts: Rollouts) -> dict[str, Tensor]:
    """Log-probs of the policies that a hierarchy reads beside the current and the old one, in float64."""
    for name, policy in hierarchy.policies.items():
        if policy.is_passed and name not in rollouts.policies:
            raise RolloutsError(
                f"the rollouts have no log-probs of the policy '{name}', which '{hierarchy.name}' reads",
                required=f"policies={{'{name}': log_probs}}: float32, one for each of the {rollouts.n_tokens} tokens",
                found=f"those of {listed(('current', 'old', *rollouts.policies))}",
                remedy=f"add them with save_rollouts(path, replace(rollouts, policies={{'{name}': log_probs}}))"
                + ("; fibration record --engine bfloat16 records a batch that has them" if name == "rollout" else ""),
            )
    read = [name for name, policy in hierarchy.policies.items() if policy.is_passed]
    return {name: torch.from_numpy(rollouts.policies[name]).double() for name in read}


def build_index(op: Operator, rollouts: Rollouts) -> Index:
    """Who lies over whom, from the labels that recorded rollouts have; those that the hierarchy lacks are left out."""
    h = op.hierarchy
    known = rollouts.all_labels
    have = f"labels for {', '.join(known)}; every segment is one {h.rows}"
    add = "add them with save_rollouts(path, replace(rollouts, {}))"
    leaves = [s.name for s in h.leaves] if len(h.leaves) > 1 else []
    if len([leaf for leaf in leaves if leaf not in rollouts.masks]) > 1:  # the last one has what is left
        raise RolloutsError(
            f"the rollouts do not say which tokens of '{h.name}' are which",
            required=f"masks for {', '.join(leaves)}: every token is an element of one of these leaves",
            found=f"masks for {', '.join(rollouts.masks) or 'none'}; {have}",
            remedy=add.format("masks={" + ", ".join(f"{leaf!r}: mask" for leaf in leaves) + "}"),
        )
    wanted = [s.name for s in (*h.order, *h.groups) if s not in (*h.leaves, h.rows) and s.name != BATCH]
    for name in (n for n in wanted if n not in known):
        raise RolloutsError(
            f"the rollouts say nothing about the stratum '{name}' of '{h.name}'",
            required=f"labels for {', '.join(wanted)}",
            found=have,
            remedy=add.format(f"labels={{'{name}': Labels(of, names)}}"),
        )
    if adds_up_tokens(h):
        raise RolloutsError(
            f"the rollouts say nothing about the rewards of tokens, which '{h.name}' adds up",
            required="advantages of one reward per trajectory",
            found=f"advantages={h.advantages}",
            remedy="from Python, op.loss(..., rewards=...) takes one per token",
        )
    for name in h.attributes:
        raise RolloutsError(
            f"the rollouts say nothing about the attribute '{name}' of '{h.name}'",
            required="no attributes",
            found=have,
            remedy="from Python, op.index(..., attributes=...) takes them",
        )
    given: dict[str, Any] = {name: known[name] for name in wanted}
    given |= {leaf: rollouts.masks[leaf] for leaf in leaves if leaf in rollouts.masks}
    return op.index(offsets=rollouts.offsets, **given)


def gate(op: Operator, index: Index, rollouts: Rollouts, parameters: Mapping[str, Any]) -> Gated:
    """Run the operator on recorded log-probs, in float64 so that rounding can be told from error."""
    h, columns = op.hierarchy, (rollouts.log_probs, rollouts.old_log_probs, rollouts.advantages, rollouts.rewards)
    now, old, advantages, rewards = (torch.from_numpy(column).double() for column in columns)
    log_ratio, policies = now - old, passed_policies(h, rollouts)
    frozen = {**policies, **({OLD: old} if OLD in h.policies else {})}
    if h.advantages is not None:
        advantages = op.advantages(rewards, index, parameters, policies=frozen)
    return Gated(
        op,
        index,
        rollouts,
        parameters,
        policies,
        log_ratio,
        advantages,
        ratio=op.gate(log_ratio, index, parameters, advantages=advantages, policies=frozen),
        result=op.coefficients(now, old, advantages, index, parameters, policies=policies),
        levels=op.levels(log_ratio, index, parameters, advantages=advantages, policies=frozen),
    )


def disagreement(gated: Gated) -> dict[str, float]:
    """How far the compiled operator is from the float64 meaning of its IR, relative to the size of what is compared."""

    def oracle(program: str) -> dict[Key, NDArray[np.float64]]:
        p = gated.op.programs[program]
        return interpret(p, gated.inputs(program), gated.index.sizes(p.edges))

    truth = {**oracle("gate"), **oracle("objective")}
    leaves = gated.index.leaves
    for word, nothing in (("gated_ratio", 1.0), ("coefficients", 0.0)):
        whole = np.full(gated.index.shape, nothing)
        for leaf in leaves:
            whole[gated.index.positions_of(leaf).numpy()] = truth[part(word, leaf, leaves)]
        truth[Key(word)] = whole
    ratio, expected, objective = (truth[Key(word)] for word in ("gated_ratio", "coefficients", "objective"))
    coefficients = gated.result.values.numpy()
    # J is a sum of terms of either sign and may cancel, so its error is measured against the sum of their sizes.
    terms = max(abs(float(objective[0])), float(np.abs(expected).sum()))
    return {
        "ratio": _relative(gated.ratio.numpy() - ratio, ratio.max()),
        "coefficients": _relative(coefficients - expected, np.abs(expected).max()),
        "objective": _relative(float(gated.result.objective) - objective, terms),
    }


def _relative(error: Any, size: float) -> float:
    largest = float(np.abs(error).max())
    return largest / size if size else largest
