"""Gates, and the decompositions whose densities they gate (objects 3 and 4 of def:fgh).

A gate is a scalar function of the residual density at one element. To add one, write one function here and decorate
it; its law checks, derivative tests and backend tests follow. A decomposition turns ratios into densities on the leaf
stratum, and its recovery turns them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fibration.errors import SpecError, shown
from fibration.language.atoms import advantage, channel_sign, gated, pull, residual, token_log_ratio
from fibration.language.expressions import Expression, Number, Operand, as_expression, as_number
from fibration.language.grammar import Written, constructor
from fibration.language.operators import absolute, clip, exp, expm1, log1p, maximum, minimum, sign, where
from fibration.language.traversal import cancel, substitute

CHANNEL_ARGUMENT = {"": "density", "+": "plus", "-": "minus"}


class Decomposition(Written):
    """`F`: one density per channel, as formulas of `token_log_ratio`; `R`: the ratio, as a formula of `gated(channel)`.

    The channels are `("",)` or `("+", "-")`. `scale` is the factor of the densities: a formula of counts, such as
    `1/count(token, over=trajectory)`. If the kernels spread the same measure, `scale` cancels. Residuals are then
    reported without it: for log ratios in nats.
    """

    densities: tuple[tuple[str, Expression], ...]
    recovery: Expression
    scale: Expression

    def __init__(self, densities: object, recovery: object, scale: object = 1, **data: Any) -> None:
        items = densities.items() if isinstance(densities, dict) else densities
        pairs = tuple((str(c), as_expression(e, f"the density of channel {c!r}")) for c, e in items)  # type: ignore[attr-defined]
        names = tuple(c for c, _ in pairs)
        if names not in (("",), ("+", "-")):
            raise SpecError(f"a decomposition has the channels {names}", required="one channel '' or the two '+', '-'")
        back, factor = as_expression(recovery, "a recovery"), as_expression(scale, "a scale")
        formulas = {"recovery": back, **{CHANNEL_ARGUMENT[c]: e for c, e in pairs}, "scale": factor}
        if factor == as_expression(1):
            del formulas["scale"]
        written = f"decomposition({', '.join(f'{k}={v}' for k, v in formulas.items())})"
        data = {"written": written, **data}
        super().__init__(densities=pairs, recovery=back, scale=factor, **data)  # type: ignore[call-arg]

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(c for c, _ in self.densities)

    def __getitem__(self, channel: str) -> Expression:
        return dict(self.densities)[channel]


@constructor(Decomposition, examples=('decomposition(density=token_log_ratio, recovery=exp(gated("")))',))
def decomposition(
    *,
    recovery: Expression,
    density: Expression | None = None,
    plus: Expression | None = None,
    minus: Expression | None = None,
    scale: Expression | None = None,
) -> Decomposition:
    """Returns a decomposition from formulas: `density=` for one channel, or `plus=` and `minus=` for two.

    `recovery` is the inverse, a formula of `gated("")`, or of `gated("+")` and `gated("-")`.
    """
    if (density is None) == (plus is None) or (plus is None) != (minus is None):
        given = [name for name, e in (("density", density), ("plus", plus), ("minus", minus)) if e is not None]
        raise SpecError(
            "a decomposition needs density=, or both plus= and minus=",
            required="density=, or plus= and minus=",
            found=", ".join(f"{name}=" for name in given) or "none of them",
            remedy='decomposition(density=token_log_ratio, recovery=exp(gated("")))',
        )
    densities = {"": density} if plus is None else {"+": plus, "-": minus}
    return Decomposition(densities, recovery, 1 if scale is None else scale)


@constructor(Decomposition, examples=("signed_log_ratio()", "signed_log_ratio(scale=1/count(token, over=trajectory))"))
def signed_log_ratio(scale: Expression | None = None) -> Decomposition:
    """Splits the log ratio by sign: `F_± = scale·max(±x, 0)`, `R = exp((σ_+ - σ_-)/scale)`.

    A token with `x = 0` belongs to `+` alone, so the slope there is 1: the first update after a rollout learns.
    """
    s = as_expression(1) if scale is None else scale
    x = token_log_ratio
    return Decomposition(
        {"+": where(x >= 0, s * x, 0), "-": where(x >= 0, 0, -(s * x))},
        exp((gated("+") - gated("-")) / s),
        s,
    )


@constructor(Decomposition, examples=("log_ratio()", "log_ratio(scale=1/count(token, over=trajectory))"))
def log_ratio(scale: Expression | None = None) -> Decomposition:
    """Takes the log ratio, on one channel: `F = scale·x`, `R = exp(σ/scale)`."""
    s = as_expression(1) if scale is None else scale
    return Decomposition({"": s * token_log_ratio}, exp(gated("") / s), s)


@constructor(Decomposition, examples=("ratio_deviation()",))
def ratio_deviation(scale: Expression | None = None) -> Decomposition:
    """Takes the deviation of the ratio from 1, as in PPO: `F = scale·(r - 1)`, `R = 1 + σ/scale`."""
    s = as_expression(1) if scale is None else scale
    return Decomposition({"": s * expm1(token_log_ratio)}, 1 + gated("") / s, s)


CHANNEL_WORD = {"": "", "+": "_plus", "-": "_minus"}


PULL = pull


class Gate(Written):
    """A formula of an element's `residual` that returns the gated residual.

    It may also read parameters, counts, the element's attributes, `advantage`, `density(stratum, channel)` of coarser
    strata and statistics of tokens. On tokens it may read log-probs of frozen policies. The law of locality refuses
    everything else. At a breakpoint the derivative is that of the branch that holds there.
    """

    METHODS: ClassVar = ("per", "inward")
    expression: Expression

    def __init__(self, expression: object, **data: Any) -> None:
        value = as_number(expression, "a gate", "use where(condition, a, b)")
        super().__init__(expression=value, **{"written": f"Gate({value})", **data})  # type: ignore[call-arg]

    def per(self, scale: object) -> Gate:
        """Returns the gate `scale · g(residual / scale)`, for densities that are `scale` times as large."""
        factor = as_expression(scale, "the scale of gate.per")
        inner = substitute(self.expression, {residual: residual / factor})
        return Gate(factor * inner, written=f"{self.written}.per({factor})")

    def inward(self, ceiling: Operand | None = None, pull: Operand = pull) -> Gate:
        """Returns this gate, acting only where the pull moves the residual further from 0. Other residuals pass.

        Beyond a budget, the gradient may bring a residual back by itself, such as at a negative advantage and a ratio
        above 1. A gate that rolls back reverses that gradient, and a zero drops it. `inward` keeps it, as PPO's `min`
        does.

        - `ceiling` bounds the residuals that pass.
        - `pull` is a formula whose sign is the direction of the pull (see `Hierarchy.pull`).

        Under a coarser level, a residual is the distance from that level's mean, not from the old policy. The gate also
        acts on a token that moves away from the mean but back to the old policy.
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
    """Passes residuals up to the budget, rolls back with slope `-rollback` beyond it, then returns 0 (eq:gagg_main).

    - `budget`: the trust-region radius of the residual, in nats for log ratios.
    - `rollback`: the slope `k`, usually a number of tokens.

    The code writes `C - k·(s - C)`, because `(k + 1)·C - k·s` loses every digit in float32 for large `k`.
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
    """Limits the residual to `[-bound, bound]` (eq:logclip for log ratios)."""
    _distances("clip_gate", bound=bound)
    return Gate(clip(residual, -bound, bound))


@constructor(Gate, examples=("pessimistic_clip_gate(low, high)",))
def pessimistic_clip_gate(low: Expression, high: Expression) -> Gate:
    """Clips as PPO does, `min(r·A, clip(r, 1-low, 1+high)·A)`: above for A > 0, below for A < 0.

    For `ratio_deviation()`.
    """
    _distances("pessimistic_clip_gate", low=low, high=high)
    return Gate(where(advantage >= 0, minimum(residual, high), maximum(residual, -low)))


@constructor(Gate, examples=("dual_clip_gate(low, high, ceiling)",))
def dual_clip_gate(low: Expression, high: Expression, ceiling: Expression) -> Gate:
    """Clips as `pessimistic_clip_gate`, and limits the ratio to `ceiling` for negative advantages (dual-clip PPO)."""
    _distances("dual_clip_gate", low=low, high=high)
    lower = minimum(maximum(residual, -low), ceiling - 1)
    return Gate(where(advantage >= 0, minimum(residual, high), lower))


@constructor(Gate, examples=("log_clip_gate(low, high)",))
def log_clip_gate(low: Expression, high: Expression) -> Gate:
    """Clips as `pessimistic_clip_gate`, for `log_ratio()`: the ratio has the bounds `1-low` and `1+high`."""
    _distances("log_clip_gate", low=low, high=high)
    return Gate(where(advantage >= 0, minimum(residual, log1p(high)), maximum(residual, log1p(-low))))


@constructor(Gate, examples=("identity_gate()",))
def identity_gate() -> Gate:
    """Returns the residual unchanged."""
    return Gate(residual)


@constructor(Gate, examples=("zero_gate()",))
def zero_gate() -> Gate:
    """Returns 0, which removes the level. The law `first_order` then fails at this level."""
    return Gate(as_expression(0))
