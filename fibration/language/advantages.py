"""Formulas of advantages: a reward minus the mean of its group, and optionally divided by their deviation.

Advantages are detached expressions of `reward`: `Hierarchy(advantages=centred(reward, over=prompt_group))`.
"""

from __future__ import annotations

from fibration.errors import SpecError
from fibration.language.atoms import ROWS, Where
from fibration.language.expressions import Expression, Operand, as_expression
from fibration.language.statistics import deviation, mean


def centred(formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS) -> Expression:
    """Returns a formula minus its mean over an element of `over`, in which every element of `of` counts once.

    - `over`: a stratum such as `prompt_group`.
    - `of`: a stratum. Default: the rows of the batch.
    - `leave_one_out=True`: subtracts the mean of the other elements (RLOO). An element without others is then an error.
    """
    return as_expression(formula) - mean(formula, over=over, of=of, others=_said("centred", leave_one_out))


def standardised(
    formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS, epsilon: Operand = 1e-6
) -> Expression:
    """Returns `centred(...)` divided by the standard deviation plus `epsilon` (GRPO); 0 if all values are equal.

    The deviation divides by `n - 1`, as in torch.std and the trainers.
    """
    spread = deviation(formula, over=over, of=of) + as_expression(epsilon, "the epsilon of standardised")
    return centred(formula, over, _said("standardised", leave_one_out), of) / spread


def _said(function: str, leave_one_out: object) -> bool:
    if not isinstance(leave_one_out, bool):
        raise SpecError(f"{function}(..., leave_one_out={leave_one_out!r})", required="True or False")
    return leave_one_out
