"""Building blocks of the losses of trainers' configs: parameters, estimators of a divergence, whitened advantages."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from fibration.language.atoms import Parameter, count, strata
from fibration.language.expressions import Expression
from fibration.language.operators import absolute, exp, maximum, minimum, sqrt, stop, where
from fibration.language.statistics import deviation, mean, total

token, trajectory, prompt_group, batch = strata("token trajectory prompt_group batch")


def together(conditions: Sequence[Expression]) -> Expression:
    return functools.reduce(operator.and_, conditions)


def bounded(name: str, value: float, lower: float | None = 0.0, upper: float | None = None) -> Parameter:
    """A parameter with this default, and with those of the bounds that the default lies strictly inside of."""
    least = lower if lower is not None and value > lower else None
    most = upper if upper is not None and value < upper else None
    return Parameter(name, default=value, lower=least, upper=most)


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
