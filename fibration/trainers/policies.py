"""Which policies' log-probs a hierarchy is given by a trainer, beside the current and the old ones."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.errors import TrainerError, listed
from fibration.language.hierarchy import Hierarchy

# What hierarchies call the policies that trainers have, beside the current and the old one.
ROLLOUT = "rollout"  # that of an engine that samples
REFERENCE = "reference"  # a frozen one, to which a divergence is kept small


def passed(hierarchy: Hierarchy) -> tuple[str, ...]:
    """Names of the policies that a call is given beside the log-probs that all calls take."""
    return tuple(name for name, policy in hierarchy.policies.items() if policy.is_passed)


def check_policies(hierarchy: Hierarchy, known: Mapping[str, str]) -> None:
    """Raise TrainerError where a hierarchy reads a policy that a trainer has no log-probs of.

    `known`: what a trainer calls those that it has, by the names under which hierarchies read them.
    """
    for name in passed(hierarchy):
        if name not in known:
            raise TrainerError(
                f"'{hierarchy.name}' reads log_prob({name}), and the trainer has no log-probs of a policy '{name}'",
                required=f"{listed(f'{own!r}, {what}' for own, what in known.items())}, beside current and old",
                remedy=f"call it {ROLLOUT} if it is what sampled, and {REFERENCE} if it is the trainer's reference "
                "model; else call the operator in a loop of your own",
            )


def kept_near_twice(hierarchy: Hierarchy, found: str, remedy: str) -> TrainerError:
    """The error for a trainer's own divergence from its reference model, beside a hierarchy that reads this model."""
    return TrainerError(
        f"'{hierarchy.name}' reads log_prob({REFERENCE}), and {found}: the policy would be kept near it twice",
        required="one of both",
        remedy=remedy,
    )


def corrected_twice(hierarchy: Hierarchy, found: str, remedy: str) -> TrainerError:
    """The error for a trainer's own weights of what sampled, beside a hierarchy that reads it."""
    return TrainerError(
        f"'{hierarchy.name}' reads log_prob({ROLLOUT}), and {found}: what sampled would be corrected for twice",
        required="one of both",
        remedy=remedy,
    )
