"""Wrong specs whose laws hold on every small batch with simple numbers. The search must compute a counterexample."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

from fibration import (
    Attribute,
    Decomposition,
    Gate,
    Objective,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    log,
    log_clip_gate,
    log_ratio,
    maximum,
    minimum,
    proportional,
    ratio_deviation,
    residual,
    sqrt,
    tanh,
    uniform,
    where,
    zero_gate,
)
from fibration.language.expressions import Expression
from hierarchies.builders import TG, M, T, W, budget, chain, one, prompt_group, token, trajectory, two, weight, x
from hierarchies.wrong_specs import KERNEL, UPPER, Wrong

far = Parameter("far", lower=10, upper=40)
share = Parameter("share", default=0.5, upper=1)
signed = Attribute("signed", on=trajectory, positive=False)


def far_sizes() -> dict[str, Wrong]:
    def right_while(condition: Expression) -> Wrong:
        return Wrong(two(where(condition, 1 / T, 2 / T)), "reflecting", KERNEL)

    def markov(k: Any) -> Wrong:
        return Wrong(two(k), "markov", KERNEL)

    def objective(weight: Any) -> Wrong:
        return Wrong(two(objective=Objective(weight)), "objective", "weight")

    return {
        "at least a tenth each": Wrong(two(maximum(1 / T, 0.1)), "reflecting", KERNEL),
        "right while a tenth of the length is at most 1": right_while(T * 0.1 <= 1),
        "right while a reciprocal is large": right_while(1 / T >= 0.004),
        "right up to a root": right_while(T * T <= 10**6),
        "right up to a root, by the root": right_while(sqrt(T) < 12.5),
        "right up to an exponential": right_while(log(T) <= 4),
        "right up to a logarithm": right_while(exp(-T / 10) > 0.01),
        "right but for one length": right_while((T - 500) * (T - 502) >= 0),
        "right up to a parameter": right_while(far >= T),
        "right but for a window of a parameter": right_while((share <= 0.3) | (share >= 0.31)),
        "right but for one value of a parameter": right_while((share < 0.123456) | (share > 0.123456)),
        "right up to a far weight": right_while(weight <= 10**9),
        "right but for a window of a weight": right_while((weight <= 5.25) | (weight >= 5.5)),
        "right while groups are small": Wrong(
            chain(uniform(), where(TG * M <= 1000, 1 / M, 2 / M)), "reflecting", UPPER
        ),
        "negative beyond a quotient": markov(where(3 * T > 110, 2 * weight / W - 1 / T, 1 / T)),
        "objective without a value at one length": objective(1 / (0.5 * T - 20.5)),
        "objective without a value beyond a root": objective(log(1000 - T * T)),
        "objective without a value at one value of an attribute": objective(1 / (signed - 1.75)),
    }


def uneven_siblings() -> dict[str, Wrong]:
    own = count(token, over=trajectory)
    rest = TG - own

    def markov(k: Any) -> Wrong:
        return Wrong(chain(uniform(), k), "markov", UPPER)

    return {
        "negative for one long beside two short": markov(2 / M - own / TG),
        "negative for one short beside two long": markov(where((M <= 3) & (M >= 3), 2 / TG * (own - rest / 20), 1 / M)),
        "negative for one long beside three short": markov(
            where(M > 3, 3 / M - 2 * own / TG + where(own < 9, 1, 0) * 2, 1 / M)
        ),
    }


def far_log_ratios() -> dict[str, Wrong]:
    g = gated("")

    def recovery(f: Expression, back: Expression, scale: Any = 1) -> Wrong:
        return Wrong(two(split=Decomposition({"": f}, back, scale)), "recovery", "decomposition")

    return {
        "log ratios cut at 5": recovery(where(x > 5, 5, x), exp(g)),
        "log ratios cut at -40": recovery(maximum(x, -40), exp(g)),
        "a narrow dead zone of F": recovery(where(absolute(x) < 1e-9, 0, x), exp(g)),
        "a window of F": recovery(where((x > 7.25) & (x < 7.5), 0, x), exp(g)),
        "one log ratio lost": recovery(where((x >= 4.125) & (x <= 4.125), 4, x), exp(g)),
        "large ratios cut by R": recovery(expm1(x), 1 + minimum(g, 149)),
        "a scale of R that long trajectories lack": recovery(x / T, where(T > 1000, exp(g), exp(g * T)), 1 / T),
        "a bound of R in tokens": recovery(x / T, where(g * T * T > 70, 2 * exp(g * T), exp(g * T)), 1 / T),
        "a branch of F beyond a ratio": recovery(where(exp(x) > 1000, x + 1, x), exp(g)),
        "the wrong inverse of tanh, far out": recovery(
            tanh(x), where(g > 0.9999, 3000, exp(log((1 + g) / (1 - g)) / 2))
        ),
    }


def gates_beside_0() -> dict[str, Wrong]:
    def gate(g: Any) -> Wrong:
        return Wrong(one(Gate(g), log_ratio()), "identity", "gate on token")

    def inner(g: Any) -> Wrong:
        return Wrong(two(inner=Gate(g)), "identity", "gate on token")

    hair = 1 + Fraction(1, 10**9)
    return {
        "a slope off by a thousand millionth": gate(residual * hair),
        "a slope off in the eleventh digit": gate(residual * (1 + Fraction(1, 10**11))),
        "a quotient with a slope off by a hair": gate(residual * hair / (1 + residual * residual)),
        "tanh with a slope off by a hair": gate(hair * tanh(residual)),
        "a cubic with a slope off by a hair": gate(residual * hair - residual**3),
        "a dead zone far inside": gate(where(absolute(residual) < 1e-15, 0, residual)),
        "a dead zone on one side, farther inside": gate(where((residual < 0) & (residual > -1e-30), 0, residual)),
        "a jump far inside": gate(where((residual > 0) & (residual < 1e-15), 0.1, residual)),
        "a slope off by a hair beside the base": inner(residual * where(density(trajectory) > 0, hair, 1)),
        "one advantage alone": gate(where((advantage >= 77) & (advantage <= 77), 2 * residual, residual)),
        "large advantages": gate(where(advantage * share > 40, residual / 2, residual)),
        "bounds that cross where a parameter is large": gate(clip(residual, -0.3, 0.3 - share)),
        "halved for trajectories beyond a root": inner(where(T * T > 10**6, residual / 2, residual)),
        "halved in a window of a parameter": gate(where((share > 0.625) & (share < 0.65), residual / 2, residual)),
    }


def levels_that_go_below_0() -> dict[str, Wrong]:
    deviations = ratio_deviation(scale=1 / T)
    anyway = {"first_order": "to look at positivity alone", "identity": "likewise"}

    def ratios(outer: Any, inner: Any, split: Decomposition = deviations, **more: Any) -> Wrong:
        return Wrong(two(outer=outer, inner=inner, split=split, **more), "positivity", "hierarchy")

    def rollback(k: Any) -> Wrong:
        return Wrong(two(outer=aggregate_gate(budget, rollback=k)), "positivity", "hierarchy")

    low, high = Parameter("low", default=0.2), Parameter("high", default=0.3, upper=1)
    over_group = {prompt_group: aggregate_gate(budget, rollback=TG - M).per(TG)}
    return {
        "rollback by the length less 1": rollback(T - 1),
        "rollback by the length less 2": rollback(T - 2),
        "rollback by the length less 20": rollback(T - 20),
        "rollback by a parameter that may be 0": rollback(Parameter("loose", default=0.5, lower=-1)),
        "rollback by a count that may be 0": Wrong(
            chain(uniform(), proportional(count(token)), gates=over_group, split=log_ratio(scale=1 / TG)),
            "positivity",
            "hierarchy",
        ),
        "clip of a trajectory's ratio with its bounds swapped": ratios(
            log_clip_gate(low, high), zero_gate(), log_ratio(scale=1 / T), gives_up={"first_order": "y"}
        ),
        "a trajectory's deviation doubled": ratios(Gate(2 * residual), identity_gate(), gives_up=anyway),
        "tokens' deviations doubled": ratios(identity_gate(), Gate(2 * residual), gives_up=anyway),
        "a trajectory's deviation dropped": ratios(zero_gate(), identity_gate(), gives_up={"first_order": "y"}),
        "a trajectory's deviation clipped, its tokens' not": ratios(clip_gate(budget), identity_gate()),
        "a lower bound of tokens below -1": ratios(clip_gate(budget), Gate(clip(residual, -3 / T, 1 / T))),
    }


@functools.cache
def wrong() -> dict[str, Wrong]:
    groups = (far_sizes, uneven_siblings, far_log_ratios, gates_beside_0, levels_that_go_below_0)
    return {name: w for make in groups for name, w in make().items()}
