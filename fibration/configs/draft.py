"""The loss of a config while it is read: its parts, the laws that it gives up, what the trainer does around it.

And what the losses of several trainers are made of: parameters, estimators of a divergence, whitened advantages.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fibration.configs.findings import NOTE, Finding, Severity, all_findings
from fibration.configs.options import Options, TrainerLoss
from fibration.configs.sampling import EngineWeight
from fibration.language.atoms import Parameter, Stratum, advantage, count, residual, strata
from fibration.language.expressions import Expression
from fibration.language.gates import (
    Decomposition,
    Gate,
    dual_clip_gate,
    log_clip_gate,
    pessimistic_clip_gate,
    ratio_deviation,
)
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Normaliser, Objective, token_mean
from fibration.language.operators import absolute, exp, log, log1p, maximum, minimum, sigmoid, sqrt, stop, where
from fibration.language.statistics import after, deviation, mean, total
from fibration.language.strata import Fibration

token, trajectory, prompt_group, batch = strata("token trajectory prompt_group batch")


@dataclass
class Draft:
    """What is known of the loss.

    - `engine`: what the trainer makes of trainer/engine, the ratio of its and the engine's probability of a token.
    - `reserved`: names of parameters that a later part needs.
    """

    options: Options
    gates: Mapping[Stratum, Gate] = field(default_factory=dict)
    decomposition: Decomposition = field(default_factory=ratio_deviation)
    fibrations: tuple[Fibration, ...] = ()
    objective: Objective = field(default_factory=token_mean)
    advantages: Expression | None = None
    groups: tuple[object, ...] = (prompt_group,)
    penalties: dict[str, Expression] = field(default_factory=dict)
    gives_up: dict[str, str] = field(default_factory=dict)
    engine: list[EngineWeight] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    reserved: frozenset[str] = frozenset()

    def parameter(
        self, name: str, value: float, lower: float | None = 0.0, upper: float | None = None, otherwise: str = ""
    ) -> Parameter:
        """A parameter whose default is a number of the config, with those bounds that it lies strictly inside of.

        It is called `otherwise` if `name` is taken or reserved, and has a number at its end if that is taken too.
        """
        taken = self.names | self.reserved if otherwise else self.names
        names = itertools.chain((name, otherwise or name), (f"{otherwise or name}_{n}" for n in itertools.count(2)))
        free = next(each for each in names if each not in taken)
        self.names.add(free)
        least = lower if lower is not None and value > lower else None
        most = upper if upper is not None and value < upper else None
        return Parameter(free, default=value, lower=least, upper=most)

    def say(self, sentence: str, severity: Severity = NOTE, change: str = "") -> str:
        """Says what the trainer does around the loss, or grades a reason of `gives_up`. Returns the sentence."""
        return self.options.find(sentence, severity, change)

    def weigh(self, formula: Expression, **why: str) -> None:
        """Multiplies every token's term. `why`: the laws that the weight breaks, with a reason or ""."""
        self.objective = self.objective.weigh(formula)
        self.gives_up |= {f"{law} of weight {formula}": reason for law, reason in why.items() if reason}

    def keep(self, condition: Expression, counts: Normaliser = "all", **why: str) -> None:
        """Drops the other tokens, which stay counted in `μ` unless `counts` is "kept"."""
        self.objective = self.objective.keep(condition, counts)
        self.gives_up |= {f"{law} of condition {condition}": reason for law, reason in why.items() if reason}

    def loss(self, name: str, notes: bool = True) -> TrainerLoss:
        """`notes`: a reason of `gives_up` that nobody grades is the trainer's own choice, and a note."""
        choices = [Finding(NOTE, why) for why in self.gives_up.values()] if notes else []
        hierarchy = Hierarchy(
            name=name,
            fibrations=self.fibrations,
            gates=self.gates,
            decomposition=self.decomposition,
            objective=self.objective,
            groups=self.groups,
            advantages=self.advantages,
            penalties=self.penalties,
            gives_up=self.gives_up,
        )
        return TrainerLoss(hierarchy, all_findings(hierarchy.gives_up, [*choices, *self.options.findings]))


def together(conditions: Sequence[Expression]) -> Expression:
    return functools.reduce(operator.and_, conditions)


def estimated_kl(kind: str, x: Expression, most: float | None = None) -> Expression:
    """An estimator of KL(π‖q) from one sample, of `x = log π - log q`.

    - `kind`: `k1`, `abs`, `k2`, `k3`. With a `+` at its end it has the value of the estimator and the gradient of k2.
    - `most`: k3 is cut at this value.
    """
    square = x**2 / 2
    if kind.endswith("+"):
        return square if kind == "k2+" else stop(estimated_kl(kind[:-1], x, most)) + square - stop(square)
    if kind == "k3":
        k3 = exp(-x) + x - 1
        return k3 if most is None else minimum(k3, most)
    return {"k1": x, "abs": absolute(x), "k2": square}[kind]


def mean_of(formula: Expression, over: object, kept: Expression | None = None) -> Expression:
    """The mean over the tokens of an element of `over`, or over those of them on which `kept` holds."""
    if kept is None:
        return mean(formula, over=over)  # type: ignore[arg-type]
    # No total: a formula that adds up rewards of tokens would need one reward per token.
    share = count(token, over=over) / counted(kept, over)  # type: ignore[arg-type]
    return mean(where(kept, formula, 0), over=over) * share  # type: ignore[arg-type]


def counted(kept: Expression, over: object) -> Expression:
    """How many tokens of an element of `over` meet the condition, and 1 where none does."""
    return maximum(total(where(kept, 1, 0), over=over), 1)  # type: ignore[arg-type]


def whitened(formula: Expression, epsilon: float, kept: Expression | None = None) -> Expression:
    """A formula minus its mean over the tokens of the batch, divided by `sqrt(deviation² + epsilon)`.

    `kept`: both are of the tokens that meet this condition.
    """
    middle = mean_of(formula, batch, kept)
    if kept is None:
        return (formula - middle) / sqrt(deviation(formula, over=batch) ** 2 + epsilon)
    # Dropped tokens count with the mean of the others, so that they add nothing to the sum of squares.
    variance = deviation(where(kept, formula, middle), over=batch) ** 2
    scale = (count(token, over=batch) - 1) / maximum(counted(kept, batch) - 1, 1)
    return (formula - middle) / sqrt(variance * scale + epsilon)


def sapo_gate(above: Parameter, below: Parameter) -> Gate:
    """SAPO's gate, with a temperature for A > 0 and one for the others."""
    tau = where(advantage > 0, above, below)
    return Gate(4 / tau * sigmoid(tau * residual) - 1)


def clip_gate(low: float, high: float, ceiling: float | None, logs: bool, caps_gains: bool = False) -> Gate:
    """PPO's clip from `1 - low` to `1 + high`, with `ceiling` as the largest ratio at A < 0.

    - `logs`: the residual is a log ratio, else a ratio minus 1.
    - `caps_gains`: `ceiling` is the bound at A ≥ 0, and `1 + high` the largest ratio at A < 0.
    """
    upper: Expression = Parameter("epsilon_high", default=high)
    # From 1 on, the lower bound never binds.
    lower = Parameter("epsilon_low", default=low, upper=1) if low < 1 else None
    top = None if ceiling is None else Parameter("ceiling", default=ceiling, lower=1)
    if lower is not None and top is None:
        return log_clip_gate(lower, upper) if logs else pessimistic_clip_gate(lower, upper)
    if lower is not None and top is not None and not caps_gains and not logs:
        return dual_clip_gate(lower, upper, top)
    most = log1p(upper) if logs else upper
    raised = residual if lower is None else maximum(residual, log1p(-lower) if logs else -lower)
    if top is None:
        return Gate(where(advantage >= 0, minimum(residual, most), raised))
    above, below = (most, log(top) if logs else top - 1)[:: -1 if caps_gains else 1]
    return Gate(where(advantage >= 0, minimum(residual, above), minimum(raised, below)))


def generalised_advantage(
    of_token: Expression, value: Expression, gamma: Expression | float, lam: Expression | float
) -> Expression:
    """GAE of rewards per token, where `lam` is above 0 or `gamma` is 0."""
    if gamma == 0:
        return of_token - value
    # What a value is worth at later tokens telescopes, as in the shipped loss ppo_gae.
    later = of_token if lam == 1 else of_token + (1 - lam) / lam * value
    return of_token - value + after(later, over=trajectory, discount=gamma * lam)
