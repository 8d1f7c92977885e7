"""Advantages as residuals of the reward density: a reward minus the mean of the rewards that it is compared with.

Advantages are detached expressions of `reward`: `Hierarchy(advantages=centred(reward, over=prompt_group))`.
"""

from __future__ import annotations

from fibration.errors import SpecError
from fibration.language.atoms import ROWS, Where
from fibration.language.expressions import Expression, Operand, as_expression
from fibration.language.statistics import deviation, mean


def centred(formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS) -> Expression:
    """A formula minus its mean over an element of `over`, in which every element of `of` counts once.

    `of`: the rows of the batch by default; `of=token` for tokens. `leave_one_out=True` subtracts the mean of the other
    elements (RLOO). An element without others is then refused.
    """
    return as_expression(formula) - mean(formula, over=over, of=of, others=_said("centred", leave_one_out))


def standardised(
    formula: Operand, over: Where = None, leave_one_out: bool = False, of: Where = ROWS, epsilon: Operand = 1e-6
) -> Expression:
    """`centred`, divided by the standard deviation plus `epsilon` (GRPO); 0 where all values are equal.

    The deviation is that of a sample, with `n - 1`, as in torch.std and the trainers.
    """
    spread = deviation(formula, over=over, of=of) + as_expression(epsilon, "the epsilon of standardised")
    return centred(formula, over, _said("standardised", leave_one_out), of) / spread


def _said(function: str, leave_one_out: object) -> bool:
    if not isinstance(leave_one_out, bool):
        raise SpecError(f"{function}(..., leave_one_out={leave_one_out!r})", required="True or False")
    return leave_one_out
