"""How far each search for a counterexample goes.

Candidates come smallest first, so a cap cuts off large batches alone. A search pays its full cap only where a law is
neither proved nor refuted. A batch costs more the more is computed on it, so its cap is lower:

| on each batch | batches |
|---|---|
| a weight per element | all: the budgets of `search.py` bound them |
| masses along all paths, or residuals of each token | 1001 |
| a gate at a few elements; gated ratios between bounds | 401 |
| a formula of tokens, with several values of log-probs and advantages | 201 |
| the operator, or coefficients, at several log ratios | 41 to 81 |
"""

from __future__ import annotations

from typing import NamedTuple


class Caps(NamedTuple):
    """The candidates that a search tries: at most `batches`, and of them those of at most `tokens` tokens.

    The first `few` are searched more closely: on more values, around changes of branch, or beside ratio 1.
    """

    batches: int | None = None
    tokens: int | None = None
    few: int = 0

    @property
    def of_any_size(self) -> Caps:
        """The same number of batches, with any number of tokens."""
        return self._replace(tokens=None)

    def allow(self, tokens: int) -> bool:
        """Whether a batch of this size is tried."""
        return self.tokens is None or tokens <= self.tokens


ALL = Caps()  # of weights, which are quick to evaluate at any size
COHERENT = Caps(1001)
ORTHOGONALITY = Caps(1001)
IDENTITY = Caps(401)
POSITIVITY = Caps(401)  # of a batch of more than 6 tokens, two values of parameters are tried
POSITIVITY_OF_ONE_TOKEN = Caps(201)
RECOVERY = Caps(201)
RECOVERY_IN_ORDER = Caps(201, tokens=3)  # sums over the tokens before each one are short
TOKEN_FORMULAS = Caps(201, tokens=6, few=12)
COINCIDING = Caps(201, tokens=6)  # a formula of one token is read at larger batches too
CAUSAL = Caps(201, tokens=4, few=6)  # the number of pairs of tokens grows with the square
FIRST_UPDATE = Caps(81, few=12)  # coefficients of at most 16 tokens; beside ratio 1 of at most 3
FIRST_ORDER = Caps(81, tokens=6)  # two directions more for each token
INWARD = Caps(41, tokens=4)  # many sizes of drift for each direction
STATES = Caps(61, tokens=3)  # one state, after at most two tokens, in a batch of one row
BASELINE = Caps(3000, tokens=4, few=60)  # batches without rows to compare cost nothing; `few` with them, of each size
RISING = Caps(3000, tokens=5)
