"""Hierarchies whose laws hold only for several terms together, and similar ones that break a law.

A wrong hierarchy differs from a right one in one number. The law that it names must not be proved.
"""

from fractions import Fraction

from fibration import (
    Attribute,
    Gate,
    MarkovKernel,
    Objective,
    Parameter,
    absolute,
    clip,
    clip_gate,
    count,
    decomposition,
    exp,
    expm1,
    gated,
    identity_gate,
    log,
    log1p,
    log_ratio,
    maximum,
    minimum,
    ratio_deviation,
    residual,
    sqrt,
    tanh,
    total,
    uniform,
    where,
)
from fibration.language.atoms import mass
from hierarchies.builders import INWARD, TG, T, budget, chain, epsilon, one, token, trajectory, two, weight, x
from hierarchies.quivers import image, make, text
from hierarchies.right import M

g = gated("")
half, other = Parameter("half", default=0.3, upper=0.5), Parameter("other", default=0.2, upper=0.5)
high = Parameter("high", default=0.4)
signed = Attribute("signed", on=token, positive=False)
mood = Attribute("mood", on=trajectory, positive=False)
probability = Attribute("old_probability", on=token, upper=1)
level = Attribute("level", on=token, positive=False, lower=-0.5, upper=0)
IMAGES = count(image, over=trajectory)


# ---------------------------------------------------------------- whole numbers, squares, roots, ranges


def cut(condition):
    """Tokens of which those in some trajectories do not pass."""
    inner = Gate(where(condition, 0, residual))
    return two(inner=inner, outer=identity_gate(), split=log_ratio(scale=1 / T))


def over_groups(gate):
    return chain(uniform(), uniform(), gates={trajectory: gate}, split=log_ratio(scale=1 / (T * M)))


def bounded(bound):
    return one(clip_gate(bound), log_ratio())


def modal(gates):
    """Text and images over a trajectory, either of which may be absent."""
    kernel = MarkovKernel(1 / (count(text, over=trajectory) + IMAGES))
    return make(
        (text, trajectory, kernel), (image, trajectory, kernel),
        gates=gates, decomposition=log_ratio(scale=1 / (count(text, over=trajectory) + IMAGES)),
    )  # fmt: skip


def dcpo(low, high_, probability):
    """Bounds that widen where the old probability is small (arXiv 2509.02333)."""
    below, above = sqrt(maximum(1 - 4 * low / probability, 0)), sqrt(1 + 4 * high_ / probability)
    return one(clip(residual, (below - 1) / 2, (above - 1) / 2))


def dppo(old):
    """Masked where the divergence of a token's old from its gated probability is large (verl's `dppo_kl`)."""
    now = minimum(old * (1 + residual), 1)
    divergence = old * log(old / (now + TINY)) + (1 - old) * log((1 - old + TINY) / (1 - now + TINY))
    return one(where(maximum(divergence, absolute(residual)) > high, 0, residual))


TINY = Fraction(1, 10**8)
DECIDED = {
    "no whole number between 3 and 4": cut((T - 3) * (T - 4) < 0),
    "none between 1000 and 1001": cut((T - 1000) * (T - 1001) < 0),
    "none between 5/2 and 3": cut((2 * T - 5) * (T - 3) < 0),
    "three roots in a row": cut((T - 1) * (T - 2) * (T - 3) < 0),
    "a kernel of two branches": two(where((T - 3) * (T - 4) < 0, 2 / T, 1 / T)),
    "odd numbers are not 0": two((2 * T - 3) / ((2 * T - 3) * T)),
    "no whole difference of two counts": over_groups(Gate(where((TG - M) * (TG - M - 1) < 0, 0, residual))),
    "a square and 1": cut(T * T - 4 * T + 5 <= 0),
    "a bound with a square in it": two(inner=clip_gate(epsilon * (T * T - 4 * T + 5)).per(1 / T)),
    "an objective with a square in it": two(objective=Objective(1 / (T * T - 5 * T + 7))),
    "a denominator with a square in it": one(
        residual / (1 - residual + residual * residual), log_ratio(), gives_up=INWARD
    ),
    "a square of two counts": over_groups(clip_gate(epsilon * ((TG - 3 * M) ** 2 + 1))),
    "a square of a count and a mood": two(inner=clip_gate(epsilon * (mood * mood - 2 * mood * T + T * T + 1))),
    "a square of a parameter": bounded(epsilon * epsilon - epsilon + 0.26),
    "a square and whole numbers": over_groups(Gate(where((T - M) ** 2 + (T - 2) * (T - 3) < 0, 0, residual))),
    "a power of a mood": bounded(epsilon * (signed**4 - signed + 1)),
    "a root of more than 1": bounded((sqrt(1 + 4 * epsilon) - 1) / 2),
    "a root of less than 1": bounded(1 - sqrt(1 - epsilon)),
    "two roots": bounded(sqrt(1 + 4 * epsilon / weight) - sqrt(1 + epsilon / weight)),
    "a root above what it is of": bounded(sqrt(1 + signed * signed) - signed),
    "bounds by a probability": dcpo(epsilon, high, probability),
    "divergence by a probability": dppo(Attribute("old_probability", on=token, upper=0.999999)),
    "what is left of a probability": bounded(1 + epsilon - probability),
    "a step by less than a probability": one(where(residual < -probability / 2, -epsilon * probability, residual)),
    "a range below 0": bounded(epsilon - level),
    "weights that are at most 1": two(inner=clip_gate(epsilon + T - total(probability, over=trajectory)).per(1 / T)),
}
TREES = {
    "at least one image": modal({trajectory: clip_gate(epsilon / maximum(IMAGES, 1))}),
    "at least one image, at a text": modal({text: clip_gate(epsilon / maximum(IMAGES, 1))}),
    "images where there are some": modal({text: clip_gate(where(IMAGES > 0, epsilon / IMAGES, epsilon))}),
}
MISSED = {
    "a whole number between 3 and 5": (cut((T - 3) * (T - 5) < 0), "identity"),
    "one between 5/2 and 7/2": (cut((2 * T - 5) * (2 * T - 7) < 0), "identity"),
    "even numbers may be 0": (two((2 * T - 4) / ((2 * T - 4) * T)), "markov"),
    "a whole difference of two counts": (
        over_groups(Gate(where((TG - M) * (TG - M - 2) < 0, 0, residual))), "identity"
    ),
    "a square alone": (cut(T * T - 4 * T + 4 <= 0), "identity"),
    "a square less 1": (two(objective=Objective(1 / (T * T - 5 * T + 6))), "objective"),
    "a denominator that touches 0": (one(residual / (1 - residual + residual * residual / 4), log_ratio()), "positivity"),
    "a square of a parameter alone": (bounded(epsilon * epsilon - epsilon + 0.25), "identity"),
    "at least no image": (modal({text: clip_gate(epsilon / maximum(IMAGES, 0))}), "identity"),
    "a root of 1": (bounded(sqrt(1 + 0 * epsilon) - 1), "identity"),
    "a root of what may be less": (bounded(sqrt(1 + signed) - 1), "identity"),
    "what is left of a probability of 1": (bounded(1 - probability), "identity"),
    "a range that reaches 0, alone": (bounded(half + level), "identity"),
    "a step by a probability": (one(where(residual < -probability / 2, -probability, residual)), "positivity"),
}  # fmt: skip


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
    yield "hyperbolic sine", one(clipped, decomposition(density=(ratio - 1 / ratio) / 2, recovery=g + sqrt(1 + g * g)))
    mixed = decomposition(density=where(x > 0, expm1(x), x), recovery=where(g > 0, 1 + g, exp(g)))
    yield "ratios above 1, log ratios below", one(clipped, mixed)
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

# Right, and not proved.
LEFT = {
    "divergence by a probability of 1": dppo(probability),  # at 1 a branch holds beside 0 that at no other does
    "no square is twice another": chain((T * T - 2 * M * M) / ((T * T - 2 * M * M) * T), uniform()),
    "tanh on two levels": two(
        split=decomposition(density=tanh(x / 2) / T, recovery=(1 + g * T) / (1 - g * T), scale=1 / T),
        outer=clip_gate(half), inner=clip_gate(other).per(1 / T),
    ),
}  # fmt: skip

DEVIATIONS, _not_positive = deviations()
KEPT = {**DECIDED, **dict(recoveries()), **DEVIATIONS}
BROKEN = {
    **MISSED,
    **{name: (h, "recovery") for name, h in lost()},
    **{name: (h, "positivity") for name, h in _not_positive.items()},
}
