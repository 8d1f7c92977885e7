"""The base class of all declarations, the rule for their names, an immutable dictionary, and policies."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fibration.errors import SpecError, declare
from fibration.language.expressions import Expression, Spelled, spell
from fibration.language.operators import CALLED

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")
# the words of a formula; text in quotes is one word, and the keyword before `=` is none
WORDS = re.compile(r"""'[^']*'|"[^"]*"|\b[A-Za-z_]\w*\b(?!\s*=[^=])""")

# Words of the expression grammar, and of the generated code, that a user's object may not take.
RESERVED = frozenset({
    *CALLED, "and", "or", "not",
    "residual", "advantage", "token_log_ratio", "mass", "gated", "density", "count", "total", "source", "target",
    "channel_sign", "pull", "current", "old", "mean", "largest", "some", "quantile", "deviation",
    "reward", "penalty", "before", "after", "position", "centred", "standardised", "True", "False",
    "objective", "coefficients", "log_ratio", "log_prob", "old_log_prob", "cotangent", "torch",
})  # fmt: skip
NAME_RULE = "a letter, then letters, digits or underscores, at most 63, and no word of the language"


def check_name(name: object, what: str) -> str:
    """Returns a valid name; SpecError for another. Names become identifiers of generated code."""
    if not isinstance(name, str) or not NAME.match(name) or keyword.iskeyword(name) or name in RESERVED or "__" in name:
        raise SpecError(f"{what} cannot be called {name!r}", required=NAME_RULE, remedy="choose another name")
    return name


Name = Annotated[str, BeforeValidator(lambda v: check_name(v, "an object of a hierarchy"))]


class Declared(BaseModel):
    """A frozen, validated declaration that prints as it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __str__(self) -> str:
        return repr(self)


class FrozenMap(dict[Any, Any]):
    """A hashable dictionary that keeps its order and cannot be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle and deepcopy would fill it item by item
        return type(self), (dict(self),)

    def _readonly(self, *args: object, **kwargs: object) -> None:
        raise TypeError("what is declared is immutable: declare another, or use hierarchy.replace(...)")

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _readonly  # type: ignore[assignment]
    __ior__ = _readonly  # type: ignore[assignment]


def several(names: object, function: str, example: str) -> list[str]:
    """Returns the names given to a function such as `strata`. SpecError for no names, or one given twice."""
    given: object = names.replace(",", " ").split() if isinstance(names, str) else names
    words = list(given) if isinstance(given, Iterable) else []
    if not words or len(set(map(str, words))) != len(words):
        raise SpecError(
            f"{function}({names!r})", required="one or more different names", remedy=f"{function}({example!r})"
        )
    return words


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

    def spelled(self) -> Spelled:
        return spell("log_prob", self.policy)


def log_prob(policy: Policy) -> LogProb:
    """Returns log π of the token under a policy, in nats.

    `exp(log_prob(old) - log_prob(rollout))` is a ratio of two policies.
    """
    if not isinstance(policy, Policy):
        raise SpecError(f"log_prob takes a policy, not {policy!r}", remedy=declare("policies", policy, "reference"))
    return LogProb(policy)
