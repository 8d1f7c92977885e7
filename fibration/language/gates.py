"""Atomic gates (object 3 of def:fgh): a scalar function of the residual density at one element.

To add a gate, write one function here and decorate it; its law checks, derivative tests and backend tests follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fibration.errors import SpecError, shown
from fibration.language.atoms import advantage, channel_sign, pull, residual
from fibration.language.cancel import cancel
from fibration.language.expressions import Expression, Number, Operand, as_expression
from fibration.language.operators import absolute, clip, log1p, maximum, minimum, sign, where
from fibration.language.registry import Written, constructor
from fibration.language.traversal import substitute

PULL = pull


class Gate(Written):
    """A scalar formula of `residual`, and of whatever else the law of locality allows at the element.

    A gate may read parameters, counts, the element's own attributes, `advantage`, `density(stratum, channel)` of
    coarser strata, statistics of tokens, and on tokens log-probs of frozen policies. Its derivative at a breakpoint is
    that of the branch that holds there.
    """

    METHODS: ClassVar = ("per", "inward")
    expression: Expression

    def __init__(self, expression: object, **data: Any) -> None:
        value = as_expression(expression, "a gate")
        if value.is_condition:
            raise SpecError(
                f"a gate cannot be the condition {value}", required="a number", remedy="use where(condition, a, b)"
            )
        super().__init__(expression=value, **{"written": f"Gate({value})", **data})  # type: ignore[call-arg]

    def per(self, scale: object) -> Gate:
        """`scale · g(residual / scale)`: the same gate for a density that is `scale` times as large."""
        factor = as_expression(scale, "the scale of gate.per")
        inner = substitute(self.expression, {residual: residual / factor})
        return Gate(factor * inner, written=f"{self.written}.per({factor})")

    def inward(self, ceiling: Operand | None = None, pull: Operand = pull) -> Gate:
        """The same gate where the pull moves the residual further from 0; elsewhere the residual passes.

        Past a budget, the gradient may bring a residual back by itself: where the advantage is negative and the ratio
        above 1, for instance. A roll-back reverses that gradient, a zero loses it. PPO's `min` and `inward` keep it.

        - `ceiling` bounds the residuals that pass.
        - `pull` is a formula whose sign is the direction of the pull (see `Hierarchy.pull`).

        Under a coarser level, a residual is the distance from that level's mean, not from the old policy. A move away
        from the mean may bring a token back to the old policy; the gate acts on it nonetheless.
        """
        by = as_expression(pull, "what pulls an element")
        outward = ((by > 0) & (residual > 0)) | ((by < 0) & (residual < 0))
        passed = residual if ceiling is None else clip(residual, -as_expression(ceiling), as_expression(ceiling))
        given = {"ceiling": ceiling, "pull": None if by == PULL else by}
        said = ", ".join(f"{k}={as_expression(v)}" for k, v in given.items() if v is not None)
        return Gate(where(outward, self.expression, passed), written=f"{self.written}.inward({said})")


class GatePerChannel(Gate):
    """A gate for each channel of a decomposition split by sign; declared, printed and stored in JSON as a mapping."""

    plus: Gate
    minus: Gate

    def __init__(self, plus: Gate, minus: Gate) -> None:
        super().__init__(
            where(channel_sign > 0, plus.expression, minus.expression),
            plus=plus,
            minus=minus,
            written=f'{{"+": {plus}, "-": {minus}}}',
        )

    def per(self, scale: object) -> Gate:
        return GatePerChannel(self.plus.per(scale), self.minus.per(scale))

    def inward(self, ceiling: Operand | None = None, pull: Operand = pull) -> Gate:
        return GatePerChannel(self.plus.inward(ceiling, pull), self.minus.inward(ceiling, pull))


def as_gate(value: object, what: str) -> object:
    """Returns one gate for a mapping of two, `{"+": gate, "-": gate}`; a value that is no mapping stays as it is.

    Raises a SpecError that names `what` for any other mapping.
    """
    if not isinstance(value, Mapping):
        return value
    whole = [g for g in value.values() if isinstance(g, Gate) and not isinstance(g, GatePerChannel)]
    if set(value) != {"+", "-"} or len(whole) != 2:
        raise SpecError(f"{what} is {shown(value)}", required='one gate, or a mapping of two: {"+": gate, "-": gate}')
    return GatePerChannel(value["+"], value["-"])


@constructor(Gate, examples=("aggregate_gate(C, rollback=k)",))
def aggregate_gate(budget: Expression, rollback: Expression) -> Gate:
    """`g_agg` (eq:gagg_main): pass up to the budget, roll back with slope `-rollback`, then zero.

    `budget` is the trust-region radius of the drift (in nats for log-ratio coordinates), `rollback` the slope, usually
    a number of tokens. The formula is a distance from the budget, because `(k + 1)·C - k·s` loses every digit in
    float32 when `k` is a million.
    """
    drift = absolute(residual)
    beyond = budget - rollback * (drift - budget)
    return Gate(
        where(drift <= budget, residual, where(drift < (1 + 1 / rollback) * budget, sign(residual) * beyond, 0))
    )


def _distances(gate: str, **bounds: Expression) -> None:
    """Raises SpecError for a bound that is a number below 0."""
    for name, bound in bounds.items():
        if isinstance(number := cancel(bound), Number) and number.value < 0:
            raise SpecError(
                f"{gate}: {name} is {bound}",
                required="a number above 0: each bound is a distance from residual 0",
                remedy="leave its minus sign out; the gate puts it before the lower bound",
            )


TWO_BOUNDS = "of two bounds are pessimistic_clip_gate(low, high), which is PPO's, and Gate(clip(residual, -low, high))"


@constructor(Gate, examples=("clip_gate(bound)",), remedy=TWO_BOUNDS)
def clip_gate(bound: Expression) -> Gate:
    """Limit the residual to `[-bound, bound]` (eq:logclip in log-ratio coordinates)."""
    _distances("clip_gate", bound=bound)
    return Gate(clip(residual, -bound, bound))


@constructor(Gate, examples=("pessimistic_clip_gate(low, high)",))
def pessimistic_clip_gate(low: Expression, high: Expression) -> Gate:
    """PPO's `min(r·A, clip(r, 1-low, 1+high)·A)`: only the bound that the advantage pushes against is active."""
    _distances("pessimistic_clip_gate", low=low, high=high)
    return Gate(where(advantage >= 0, minimum(residual, high), maximum(residual, -low)))


@constructor(Gate, examples=("dual_clip_gate(low, high, ceiling)",))
def dual_clip_gate(low: Expression, high: Expression, ceiling: Expression) -> Gate:
    """`pessimistic_clip_gate` with a second bound: for negative advantages the ratio stays below `ceiling`."""
    _distances("dual_clip_gate", low=low, high=high)
    lower = minimum(maximum(residual, -low), ceiling - 1)
    return Gate(where(advantage >= 0, minimum(residual, high), lower))


@constructor(Gate, examples=("log_clip_gate(low, high)",))
def log_clip_gate(low: Expression, high: Expression) -> Gate:
    """`pessimistic_clip_gate` for a log ratio, with the bounds `1-low` and `1+high` for its exponential."""
    _distances("log_clip_gate", low=low, high=high)
    return Gate(where(advantage >= 0, minimum(residual, log1p(high)), maximum(residual, log1p(-low))))


@constructor(Gate, examples=("identity_gate()",))
def identity_gate() -> Gate:
    """Let the residual pass unchanged."""
    return Gate(residual)


@constructor(Gate, examples=("zero_gate()",))
def zero_gate() -> Gate:
    """Remove the level. First-order agreement fails at that level, and `verify` reports it."""
    return Gate(as_expression(0))
