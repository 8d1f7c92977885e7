"""The further policies whose log-probs a trainer passes to a hierarchy."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.errors import TrainerError, listed
from fibration.language.hierarchy import Hierarchy

# Names of trainers' policies in hierarchies, beside the current and the old one.
ROLLOUT = "rollout"  # the engine that samples
REFERENCE = "reference"  # the frozen model of a KL penalty


def passed(hierarchy: Hierarchy) -> tuple[str, ...]:
    """The policies whose log-probs a call takes beside those that all calls take."""
    return tuple(name for name, policy in hierarchy.policies.items() if policy.is_passed)


def check_policies(hierarchy: Hierarchy, known: Mapping[str, str]) -> None:
    """Raise TrainerError if a hierarchy reads a policy of which the trainer has no log-probs.

    `known`: the trainer's policies, hierarchy name → description.
    """
    for name in passed(hierarchy):
        if name not in known:
            raise TrainerError(
                f"'{hierarchy.name}' reads log_prob({name}), and the trainer has no log-probs of a policy '{name}'",
                required=f"{listed(f'{own!r}, {what}' for own, what in known.items())}, beside current and old",
                remedy=f"name it {ROLLOUT} if it sampled, {REFERENCE} if it is the trainer's reference model; "
                "otherwise call the operator in a loop of your own",
            )


def kept_near_twice(hierarchy: Hierarchy, found: str, remedy: str) -> TrainerError:
    """The error for a trainer's own divergence from its reference model, if the hierarchy reads that model."""
    return TrainerError(
        f"'{hierarchy.name}' reads log_prob({REFERENCE}), and {found}: two penalties would keep the policy near it",
        required="one of them",
        remedy=remedy,
    )


def corrected_twice(hierarchy: Hierarchy, found: str, remedy: str) -> TrainerError:
    """The error for a trainer's own weights for the rollout mismatch, if the hierarchy reads the rollout policy."""
    return TrainerError(
        f"'{hierarchy.name}' reads log_prob({ROLLOUT}), and {found}: the rollout mismatch would be corrected twice",
        required="one of them",
        remedy=remedy,
    )
