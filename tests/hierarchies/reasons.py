"""Hierarchies that keep every law for a reason that single terms do not show, and neighbours of theirs that break one.

A neighbour differs in one number, so that the reason just fails; the law that is named must not prove it.
"""

from fibration import (
    Gate,
    Parameter,
    absolute,
    clip,
    clip_gate,
    decomposition,
    exp,
    expm1,
    gated,
    identity_gate,
    log1p,
    ratio_deviation,
    residual,
    sqrt,
    tanh,
    uniform,
    where,
)
from fibration.language.atoms import mass
from hierarchies.right import M
from hierarchies.zoo import T, budget, chain, epsilon, one, two, x

g = gated("")
half, other = Parameter("half", default=0.3, upper=0.5), Parameter("other", default=0.2, upper=0.5)
high = Parameter("high", default=0.4)


# ---------------------------------------------------------------- recoveries


def recoveries():
    clipped, tanh_half = clip_gate(epsilon), tanh(x / 2)
    ratio = exp(x)
    softsign, back = x / (1 + absolute(x)), exp(g / (1 - absolute(g)))
    steeper = where(x > 0, 2 * x, x)
    yield "half a hyperbolic tangent", one(clipped, decomposition(density=tanh_half, recovery=(1 + g) / (1 - g)))
    yield "one that passes", one(identity_gate(), decomposition(density=tanh_half, recovery=(1 + g) / (1 - g)))
    yield "a root", one(clipped, decomposition(density=tanh(x), recovery=sqrt((1 + g) / (1 - g))))
    yield "logarithms", one(clipped, decomposition(density=tanh(x), recovery=exp((log1p(g) - log1p(-g)) / 2)))
    yield "difference by sum", one(clipped, decomposition(density=expm1(x) / (ratio + 1), recovery=(1 + g) / (1 - g)))
    yield "inverse ratio", one(clipped, decomposition(density=1 - exp(-x), recovery=1 / (1 - g)))
    yield "square of the ratio", one(clipped, decomposition(density=expm1(2 * x), recovery=sqrt(1 + g)))
    yield "softsign", one(clipped, decomposition(density=softsign, recovery=back))
    yield "softsign that passes", one(identity_gate(), decomposition(density=softsign, recovery=back))
    yield "two slopes", one(clipped, decomposition(density=steeper, recovery=where(g > 0, exp(g / 2), exp(g))))
    yield (
        "another slope further on",
        one(clipped, decomposition(density=where(x > 1, 2 * x - 1, x), recovery=exp(where(g > 1, (g + 1) / 2, g)))),
    )


def lost():
    clipped = clip_gate(epsilon)
    yield "a whole hyperbolic tangent", one(clipped, decomposition(density=tanh(x), recovery=(1 + g) / (1 - g)))
    yield "the other root", one(clipped, decomposition(density=exp(2 * x) - 1, recovery=-sqrt(1 + g)))
    turned = exp(where(g > 1, g / 2, g))
    yield "slopes that do not meet", one(clipped, decomposition(density=where(x > 1, 2 * x - 1, x), recovery=turned))


# ---------------------------------------------------------------- deviations over several levels


def deviations():
    def two_levels(outer, inner):
        return two(outer=outer, inner=inner, split=ratio_deviation(scale=1 / T))

    def three_levels(*bounds):
        levels = dict(zip((*chain(uniform(), uniform()).order,), bounds, strict=True))
        gates = {s: clip_gate(b).per(mass) for s, b in levels.items()}
        return chain(uniform(), uniform(), gates=gates, split=ratio_deviation(scale=1 / (T * M)))

    def below(upper, level):
        return Parameter(f"c_{level}", default=0.1, upper=upper)

    return {
        "bounds below a half": two_levels(clip_gate(half).per(1 / T), clip_gate(other).per(1 / T)),
        "a token's bound below 1": two_levels(clip_gate(budget).per(1 / T), clip_gate(epsilon).per(1 / T)),
        "a coarse level that passes": two_levels(identity_gate(), clip_gate(other).per(1 / T)),
        "bounds that share a budget": two_levels(
            clip_gate(half).per(1 / T), Gate(clip(residual, -(1 - half) * epsilon / T, high / T))
        ),
        "three levels": three_levels(below(0.3, 1), below(0.3, 2), below(0.4, 3)),
    }, {
        "a token's bound above 1": two_levels(
            clip_gate(budget).per(1 / T), clip_gate(Parameter("c", default=0.2, upper=1.01)).per(1 / T)
        ),
        "a level that moves twice as far": two_levels(Gate(2 * residual), clip_gate(other).per(1 / T)),
        "three levels, bounds beyond 1": three_levels(below(0.3, 1), below(0.6, 2), below(0.5, 3)),
    }


# ---------------------------------------------------------------- all

_positive, _not_positive = deviations()
KEPT = {**dict(recoveries()), **_positive}
BROKEN = {
    **{name: (h, "recovery") for name, h in lost()},
    **{name: (h, "positivity") for name, h in _not_positive.items()},
}
