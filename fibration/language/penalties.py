"""Penalties: terms of the loss that are not multiplied by an advantage, KL and entropy among them."""

from __future__ import annotations

from typing import Any

from fibration.errors import SpecError
from fibration.language.atoms import Stratum
from fibration.language.declared import Declared
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.objectives import Objective
from fibration.language.statistics import within


class Penalty(Declared):
    """A term that is taken off the objective: `J - Σ_i μ_i·formula_i`, through which gradients flow.

    `formula` is read at every token: log-probs of any policies, log ratios, counts, attributes, parameters, statistics;
    advantages decide which tokens it is of, and are no part of its value. `objective` weighs its tokens; without one
    `μ` of the hierarchy's own does, without what that weighs and keeps beside. `over`: the formula is read at the
    elements of a stratum instead, and its mean over them is taken; sums and means of tokens that it reads pass
    gradients on, as in `log(1 + total(exp(x), over=prompt_group))`.
    """

    formula: Expression
    objective: Objective | None = None
    over: Stratum | None = None

    def __init__(self, formula: object, objective: object = None, over: object = None, **data: Any) -> None:
        value = as_expression(formula, "a penalty")
        if value.is_condition:
            remedy = "write where(condition, 1, 0)"
            raise SpecError(f"a penalty cannot be the condition {value}", required="a number", remedy=remedy)
        if objective is not None and not isinstance(objective, Objective):
            raise SpecError(f"the penalty {value} is weighed by {objective!r}", required="an objective: token_mean()")
        if isinstance(objective, Objective) and objective.estimator == "score":
            required = "weights: a penalty has its own gradient"
            raise SpecError(
                f"the penalty {value} is weighed by {objective.written}",
                required=required,
                remedy="leave .score() out, or the objective",
            )
        if over is not None and not isinstance(over, Stratum):
            remedy = f"write over=Stratum({over!r})" if isinstance(over, str) else ""
            raise SpecError(f"the penalty {value} is read over {over!r}", required="a Stratum", remedy=remedy)
        if over is not None and objective is not None:
            raise SpecError(
                f"the penalty {value} is read over {over}, and weighed by {objective.written}",
                required="an objective for tokens, or over= for elements, whose mean is taken",
                remedy="leave one of the two out",
            )
        super().__init__(formula=value, objective=objective, over=over, **data)  # type: ignore[call-arg]

    @property
    def has_root(self) -> bool:
        """Whether it may have a value, and no slope: a root has none at 0."""
        return any(map(_has_root, within(self.formula)))

    def __repr__(self) -> str:
        said = {"objective": self.objective, "over": self.over}
        rest = "".join(f", {k}={v!r}" for k, v in said.items() if v is not None)
        return f"Penalty({self.formula}{rest})" if rest else str(self.formula)


def _has_root(formula: Expression) -> bool:
    return isinstance(formula, Apply) and (formula.operator == "sqrt" or any(map(_has_root, formula.arguments)))


def as_penalty(value: object) -> Penalty:
    """What stands in a mapping of penalties: a formula, or a Penalty."""
    return value if isinstance(value, Penalty) else Penalty(value)
