"""Fibration decomposition and recovery (object 4 of def:fgh): ratios to densities on the leaf stratum, and back."""

from __future__ import annotations

from typing import Any

from fibration.errors import SpecError
from fibration.language.atoms import gated, token_log_ratio
from fibration.language.expressions import Expression, as_expression
from fibration.language.operators import exp, expm1, where
from fibration.language.registry import Written, constructor

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
