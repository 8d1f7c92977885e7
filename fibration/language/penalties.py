"""Penalties: terms of the loss that are not multiplied by an advantage, such as KL and entropy."""

from __future__ import annotations

from typing import Any

from fibration.errors import SpecError
from fibration.language.atoms import Stratum
from fibration.language.declared import Declared
from fibration.language.expressions import Expression, as_expression
from fibration.language.objectives import Objective
from fibration.language.statistics import within
from fibration.language.traversal import applications


class Penalty(Declared):
    """A term that is subtracted from the objective: `J - Σ_i μ_i·formula_i`. Gradients flow through it.

    - `formula`: read at every token. It may have log-probs of any policies, log ratios, counts, attributes, parameters
      and statistics. Advantages may appear in conditions only.
    - `objective`: the weights of the tokens. Default: the hierarchy's `μ` with each `keep(..., normaliser="kept")`,
      without its `weigh` and every other `keep`.
    - `over`: the formula is read at the elements of this stratum instead, and the term is its mean over them. Gradients
      flow through sums, means and order of tokens, as in `log(1 + total(exp(x), over=prompt_group))`.
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
        """Whether the formula has a square root, which has a value and no slope at 0."""
        return any(applications(e, "sqrt") for e in within(self.formula))

    def __repr__(self) -> str:
        said = {"objective": self.objective, "over": self.over}
        rest = "".join(f", {k}={v!r}" for k, v in said.items() if v is not None)
        return f"Penalty({self.formula}{rest})" if rest else str(self.formula)


def as_penalty(value: object) -> Penalty:
    """Returns a Penalty from an entry of `penalties=`: a formula, or a Penalty."""
    return value if isinstance(value, Penalty) else Penalty(value)
