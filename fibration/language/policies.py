"""Policies, and the log-probability of a sampled token under one of them."""

from __future__ import annotations

from dataclasses import dataclass

from fibration.errors import SpecError, declare
from fibration.language.declared import Declared, check_name, several
from fibration.language.expressions import Expression

CURRENT, OLD = "current", "old"


class Policy(Declared):
    """A policy whose log-probs of the sampled tokens a call takes. `current` is trained, all others are frozen.

    Every call takes `current` and `old`. Others are passed by name: `policies={"rollout": log_probs}`.
    """

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(name=name if name in (CURRENT, OLD) else check_name(name, "a policy"))  # type: ignore[call-arg]

    @property
    def is_frozen(self) -> bool:
        return self.name != CURRENT

    @property
    def is_passed(self) -> bool:
        """Whether a call must pass its log-probs in `policies=`: true for all but `current` and `old`."""
        return self.name not in (CURRENT, OLD)

    def __repr__(self) -> str:
        return self.name


def policies(names: str) -> tuple[Policy, ...]:
    """Returns one policy per name: `current, old, rollout = policies("current old rollout")`.

    `current` is the policy that is trained. `old` is the denominator of ratios. Every other name is yours, such as
    `rollout` for the rollout engine, or `reference`.
    """
    return tuple(Policy(n) for n in several(names, "policies", "current old rollout"))


@dataclass(frozen=True, repr=False)
class LogProb(Expression):
    """The log-probability of a sampled token under a policy, in nats; never above 0. Written `log_prob(policy)`."""

    policy: Policy

    def text(self) -> str:
        return f"log_prob({self.policy!r})"


def log_prob(policy: Policy) -> LogProb:
    """Returns log π of the token under a policy, in nats.

    `exp(log_prob(old) - log_prob(rollout))` is a ratio of two policies.
    """
    if not isinstance(policy, Policy):
        raise SpecError(f"log_prob takes a policy, not {policy!r}", remedy=declare("policies", policy, "reference"))
    return LogProb(policy)
