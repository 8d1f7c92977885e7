"""The further policies whose log-probs a trainer passes to a hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fibration.errors import TrainerError, listed, shown, suggest
from fibration.language.hierarchy import Hierarchy

# Names of trainers' policies in hierarchies, beside the current and the old one.
ROLLOUT = "rollout"  # the engine that samples
REFERENCE = "reference"  # the frozen model of a KL penalty


def passed(hierarchy: Hierarchy) -> tuple[str, ...]:
    """The policies whose log-probs a call takes beside those that all calls take."""
    return tuple(name for name, policy in hierarchy.policies.items() if policy.is_passed)


def policy_option(name: str) -> str:
    """The Python argument that gives a policy's log-probs."""
    return f"policies={{{name!r}: MODEL}}"


def check_policies(
    hierarchy: Hierarchy,
    known: Mapping[str, str],
    given: Mapping[str, Any] | None = None,
    say: Callable[[str], str] = policy_option,
) -> None:
    """Raise TrainerError if a hierarchy reads a policy of which the trainer has no log-probs, and if the user gives a
    policy that the hierarchy does not read, or that the trainer has itself.

    `known`: the trainer's policies, hierarchy name → description. `given`: the user's policies, by name. `say`: the
    option that gives a policy, for errors.
    """
    given, reads = {} if given is None else given, passed(hierarchy)
    further = [name for name in reads if name not in known]
    if not isinstance(given, Mapping):
        raise TrainerError(
            f"policies are {shown(given)}",
            required="a mapping from the name of a policy to what gives its log-probs",
            remedy=next(map(say, further), "leave policies out"),
        )
    for name in further:
        if name not in given:
            raise TrainerError(
                f"'{hierarchy.name}' reads log_prob({name}), and the trainer has no log-probs of a policy '{name}'",
                required=f"{listed(f'{own!r}, {what}' for own, what in known.items())}, beside current and old; or "
                "log-probs that you give",
                remedy=f"{say(name)}; or name it {ROLLOUT} if it sampled, {REFERENCE} if it is the trainer's reference "
                "model",
            )
    for name in given:
        if name not in further:
            raise TrainerError(
                f"log-probs of the policy '{name}', which '{hierarchy.name}' does not read"
                if name not in reads
                else f"log-probs of the policy '{name}', which the trainer has: {known[name]}",
                required=f"log-probs of {listed(further)}"
                if further
                else f"none: '{hierarchy.name}' reads no further policy",
                remedy=suggest(str(name), further) or f"leave {name!r} out of policies"
                if name not in reads
                else f"leave it out, or read another name in the hierarchy: log_prob(second_{name})",
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
