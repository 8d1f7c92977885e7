"""FiberPO with the rollback slope `k` as a parameter of its own, which the paper's figures choose freely.

In `fiberpo` itself the slope is the number of tokens, `count(token)`.
"""

from fibration import Parameter, aggregate_gate, load

_fiberpo = load("fiberpo")
budget = _fiberpo.parameters["C_trajectory"]
k = Parameter("k", default=2)

fiberpo_k = _fiberpo.replace(
    name="fiberpo_k", gates={**_fiberpo.gates, _fiberpo.rows: aggregate_gate(budget, rollback=k)}
)
