"""Wrong specs, each with the law that refutes it and the object that the law names."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    channel_sign,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    dual_clip_gate,
    exp,
    expm1,
    gated,
    identity_gate,
    largest,
    log,
    log1p,
    log_clip_gate,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    pessimistic_clip_gate,
    policies,
    proportional,
    pull,
    residual,
    sigmoid,
    sign,
    signed_log_ratio,
    sqrt,
    token_log_ratio,
    token_mean,
    total,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression
from hierarchies.builders import (
    TG,
    M,
    T,
    W,
    budget,
    chain,
    domain,
    epsilon,
    one,
    prompt_group,
    signed,
    token,
    trajectory,
    turn,
    two,
    weight,
    x,
)


@dataclass(frozen=True)
class Wrong:
    """A spec that must be refused, the law it breaks, and on what."""

    hierarchy: Hierarchy
    law: str
    subject: str


def polynomial(n: Expression, roots: int) -> Expression:
    """Vanishes at 1, 2, ..., roots."""
    result: Expression = n - 1
    for k in range(2, roots + 1):
        result = result * (n - k)
    return result


KERNEL, UPPER = "kernel token → trajectory", "kernel trajectory → prompt_group"


def wrong_kernels() -> dict[str, Wrong]:
    padded = Attribute("padded", on=trajectory)
    piece = Attribute("piece", on=prompt_group)
    share = Parameter("share", default=0.5, upper=1)
    loose = Parameter("loose", default=1.0, lower=None)

    def reflecting(k: Any) -> Wrong:
        return Wrong(two(k), "reflecting", KERNEL)

    def upper(k: Any) -> Wrong:
        return Wrong(chain(uniform(), k), "reflecting", UPPER)

    def markov(k: Any) -> Wrong:
        return Wrong(two(k), "markov", KERNEL)

    signed_total = total(signed, over=trajectory)
    return {
        "one too many in the denominator": reflecting(1 / (T + 1)),
        "padded length": reflecting(1 / padded),
        "twice too much": reflecting(2 / T),
        "half": reflecting(0.5 / T),
        "zero": reflecting(T - T),
        "constant": reflecting(0.25 + 0 * T),
        "unnormalised measure": reflecting(weight),
        "an attribute for its total": reflecting(proportional(weight)),
        "squared share": reflecting((weight / W) ** 2),
        "square over the total": reflecting(weight**2 / W),
        "share of the square": reflecting(weight * weight / (W * W)),
        "root of a share": reflecting(sqrt(weight / W)),
        "plain mean of weights": reflecting(weight / T),
        "mixture that adds to more than 1": reflecting(0.5 / T + weight / W),
        "normalised per piece": upper(count(token, over=trajectory) / piece),
        "tokens over trajectories": upper(count(token, over=trajectory) / M),
        "each trajectory like the whole": upper(1 / count(token, over=trajectory)),
        "wrong level": upper(1 / TG),
        "right at equal sizes only": upper(T * T * M / (TG * TG)),
        "right at equal sizes only, inverse": upper(TG / (M * M * T)),
        "right for pairs only": upper(1 - T / TG),
        "right for pairs only, by the count": upper(1 / (M * M) + 1 / (2 * M)),
        "right up to 5": reflecting(where(T <= 5, 1 / T, 1 / (T - 1))),
        "right up to 1000": reflecting(where(T <= 1000, 1 / T, 2 / T)),
        "right from 8 on": reflecting(where(T < 8, where(T < 7, 1 / T, 1 / 8 + 0 * T), 1 / T)),
        "polynomial vanishing at 1 to 5": reflecting(1 / T + polynomial(T, 5) * polynomial(T, 5) / T),
        "polynomial vanishing at 1 to 8": reflecting(1 / T + polynomial(T, 8) * polynomial(T, 8) / T),
        "right while a weight is small": reflecting(where(weight <= 50, 1 / T, 2 / T)),
        "right while all weigh the same": reflecting(weight * weight * T / (W * W)),
        "right at the default of a parameter": reflecting((1 + (share - 0.5) ** 2) / T),
        "a parameter for a weight": reflecting(share / T),
        "mixture that does not add up": reflecting(share / T + share * weight / W),
        "softmax without its sum": reflecting(exp(weight) / T),
        "negative for long": markov((2 - T) / T),
        "negative by an attribute": markov(signed / signed_total),
        "negative by a difference": markov(2 / T - weight / W),
        "negative by a denominator": markov(1 / ((share - 1) * T)),
        "negative by a square": markov(1 / T + (1 - T) * (weight - W / T)),
        "negative by a parameter": markov(1 / T + (loose - loose * T * weight / W) / T),
        "division by 0 at length 1": markov(1 / (T - 1)),
        "division by 0 always": markov(1 / (T - T)),
        "division by a literal 0": markov(1 / (T * 0)),
        "division by a parameter that may be 0": markov(loose / loose / T),
        "logarithm that cancels, of what may be negative": markov((1 + log(loose) - log(loose)) / T),
        "root that cancels, of what may be negative": markov((1 + sqrt(loose) * sqrt(loose) - loose) / T),
        "undefined condition": markov(where(1 / (T - 1) > 0, 1 / T, 1 / T)),
    }  # fmt: skip


def wrong_gates() -> dict[str, Wrong]:
    over = density(trajectory)
    loose = Parameter("loose", default=0.5, lower=-1)
    count_attribute = Attribute("bonus", on=token, positive=False)

    def token_gate(g: Any, law: str = "identity") -> Wrong:
        return Wrong(one(g, log_ratio()), law, "gate on token" if law == "identity" else "hierarchy")

    def inner(g: Any) -> Wrong:
        return Wrong(two(inner=Gate(g)), "identity", "gate on token")

    return {
        "residual against the gated base": inner(residual + over / T - clip(over, -budget, budget) / T),
        "gated base beside 0 alone": inner(where(absolute(residual) > 0, residual + over, residual)),
        "the base twice": inner(residual + over / T),
        "base that is taken back where it is not clipped": inner(clip(residual + over / T, -1, 1) - over / T),
        "does not vanish": token_gate(residual + 0.01),
        "does not vanish by a hair": token_gate(residual + 1 / Fraction(10**25)),
        "exponential for a logarithm": token_gate(exp(residual)),
        "sigmoid that is not centred": token_gate(4 * sigmoid(residual)),
        "vanishes except at 0": token_gate(where((residual <= 0) & (residual >= 0), 1, residual)),
        "a constant that the channels take from each other": Wrong(
            two(outer=Gate(residual + 0.1)), "identity", "gate on trajectory"
        ),
        "constants that two levels take from each other": Wrong(
            two(outer=Gate(residual + 0.1), inner=Gate(residual - 0.1 / T), split=log_ratio(scale=1 / T)),
            "identity",
            "gate on trajectory",
        ),
        "a constant far from on-policy": inner(where(over > 0.05, residual + 0.1, residual)),
        "slope 2": token_gate(2 * residual),
        "slope 2 above": token_gate(where(residual > 0, 2 * residual, residual)),
        "slope 2 below": token_gate(where(residual < 0, 2 * residual, residual)),
        "slope 0": token_gate(residual * residual),
        "sigmoid of the wrong slope": token_gate(sigmoid(residual) - 0.5),
        "root of a square": token_gate(residual + sqrt(residual * residual)),
        "root of a square in a condition": token_gate(
            where((sqrt(residual * residual) - residual < 0) | (residual <= 0), residual, 2 * residual)
        ),
        "removable singularity": token_gate(residual * residual / residual),
        "singularity that sympy removes": token_gate(residual * expm1(residual) / expm1(residual)),
        "no value below 0": token_gate(residual + residual * sqrt(residual)),
        "scaled by a parameter that may be 0": token_gate(clip_gate(epsilon).per(loose)),
        "slope 2 at 0 alone": token_gate(where((residual <= 0) & (residual >= 0), 2 * residual, residual)),
        "slope 0 at 0 alone": token_gate(where(residual >= 0, where(residual <= 0, 0, residual), residual)),
        "no slope at 0: sign(0) is 0": token_gate(sign(residual) * log1p(absolute(residual))),
        "a signed root, which has no slope at 0": token_gate(sqrt(residual * residual) * sign(residual)),
        "a root that has no slope at 0": token_gate(
            where(residual >= 0, sqrt(residual) * sqrt(residual), -sqrt(-residual) * sqrt(-residual))
        ),
        "slope of an attribute": token_gate(residual * (1 + count_attribute)),
        "advantage in the value": token_gate(residual + 0.1 * advantage),
        "one sign of the advantage": token_gate(where(advantage >= 0, residual, 0.5 * residual)),
        "advantage exactly 0": token_gate(where((advantage >= 0) & (advantage <= 0), 0, residual)),
        "long trajectories": inner(where(T > 6, 0.5 * residual, residual)),
        "budget that may be negative": Wrong(two(outer=clip_gate(loose)), "identity", "gate on trajectory"),
        "aggregate budget that may be negative": Wrong(
            two(outer=aggregate_gate(loose, rollback=count(token))), "identity", "gate on trajectory"
        ),
        "clip between a positive bound and another": token_gate(clip(residual, 0.1, 0.2)),
        "bound on the wrong side": token_gate(clip(residual, -epsilon, -epsilon / 2)),
        "zero gate undeclared": Wrong(two(inner=zero_gate()), "identity", "gate on token"),
        "zero gate breaks first order": Wrong(two(outer=zero_gate()), "first_order", "hierarchy"),
        "truly-ppo rollback with ratios": Wrong(
            one(where(residual > epsilon, epsilon - 0.3 * (residual - epsilon), residual)), "positivity", "hierarchy"
        ),
        "lower clip above 1 with a fall": Wrong(
            one(where(residual < -Parameter("low", default=0.2), -Parameter("low", default=0.2) * 2, residual)),
            "positivity",
            "hierarchy",
        ),
        "a step to ratio 0": Wrong(one(where(residual < -0.5, -1, residual)), "positivity", "hierarchy"),
        "amplified fall": Wrong(one(where(residual < -0.5, 3 * residual + 1, residual)), "positivity", "hierarchy"),
        "dip between breakpoints": Wrong(
            one(where(absolute(residual) <= 0.5, residual - 1000 * residual**2 * (0.25 - residual**2), residual)),
            "positivity",
            "hierarchy",
        ),
        "logarithm of ratios": Wrong(one(log1p(residual)), "positivity", "hierarchy"),
        "logarithm of log ratios": token_gate(log1p(residual), "positivity"),
    }  # fmt: skip


def wrong_decompositions() -> dict[str, Wrong]:
    def recovery(d: Decomposition) -> Wrong:
        return Wrong(two(split=d), "recovery", "decomposition")

    plus, minus = gated("+"), gated("-")
    up, down = where(x >= 0, x, 0) / T, where(x >= 0, 0, -x) / T
    return {
        "recovery without its scale": recovery(Decomposition({"": x / T}, exp(gated("")), 1 / T)),
        "recovery with the wrong scale": recovery(Decomposition({"": x / T}, exp(gated("") * T * T), 1 / T)),
        "recovery scaled twice over": recovery(Decomposition({"": x}, exp(gated("") * 2))),
        "swapped channel sign": recovery(Decomposition({"+": up, "-": down}, exp((minus - plus) * T), 1 / T)),
        "channels added": recovery(Decomposition({"+": up, "-": down}, exp((plus + minus) * T), 1 / T)),
        "minus channel lost": recovery(Decomposition({"+": up, "-": down}, exp(plus * T), 1 / T)),
        "first order of the exponential": recovery(Decomposition({"": x / T}, 1 + gated("") * T, 1 / T)),
        "deviation for a log ratio": recovery(Decomposition({"": x}, 1 + gated(""))),
        "scale that may be 0": recovery(log_ratio(scale=signed)),
        "signed scale that may be 0": recovery(signed_log_ratio(scale=signed)),
        "removable singularity of R": recovery(Decomposition({"": x}, exp(gated("") * gated("") / gated("")))),
        "dead zone of F": recovery(Decomposition({"": where(absolute(x) < 0.05, 0, x)}, exp(gated("")))),
        "large ratios cut": recovery(Decomposition({"": where(x > 2, 2, x)}, exp(gated("")))),
        "both channels own 0": Wrong(
            two(split=Decomposition({"+": where(x >= 0, x, 0) / T, "-": where(x <= 0, -x, 0) / T}, exp((plus - minus) * T), 1 / T)),
            "first_order",
            "decomposition",
        ),
        "neither channel owns 0": Wrong(
            two(split=Decomposition({"+": where(x > 0, x, 0) / T, "-": where(x < 0, -x, 0) / T}, exp((plus - minus) * T), 1 / T)),
            "first_order",
            "decomposition",
        ),
        "who owns 0 depends on an attribute": Wrong(
            two(
                split=Decomposition(
                    {"+": where(weight > 1, where(x >= 0, x, 0), where(x > 0, x, 0)), "-": where(x >= 0, 0, -x)}, exp(plus - minus)
                )
            ),
            "first_order",
            "decomposition",
        ),
    }  # fmt: skip


def wrong_gradients() -> dict[str, Wrong]:
    """What giving up first order, or recovery, must not hide."""
    plus, minus = gated("+"), gated("-")
    tau = Parameter("tau", default=1.0)
    kept = dict(outer=identity_gate(), inner=zero_gate())
    given_up = {"first_order": "on purpose"}

    def score(gate: Any) -> Wrong:
        return Wrong(one(gate, gives_up=given_up).replace(objective=token_mean().score()), "gradient", "hierarchy")

    def ratio(h: Hierarchy, subject: str = "hierarchy", **more: str) -> Wrong:
        return Wrong(h.replace(gives_up={**given_up, **more}), "gradient", subject)

    def cut(inside: Any, back: Any) -> Hierarchy:
        return two(split=Decomposition({"": clip(inside, -0.4, 0.4) / T}, back, 1 / T), **kept)

    def owners(up: Any, down: Any) -> Hierarchy:
        split = Decomposition({"+": where(up, x, 0) / T, "-": where(down, -x, 0) / T}, exp((plus - minus) * T), 1 / T)
        return two(split=split, **kept)

    return {
        "score doubled on policy": score(clip(residual, -1, epsilon) + 1),
        "score of a sigmoid": score(4 / tau * sigmoid(tau * residual) - 1),
        "score that jumps beside 1": score(where(residual > 0, residual + 1, residual)),
        "soft gate of half the slope": ratio(one(2 / tau * sigmoid(tau * residual) - 1)),
        "soft gate without its scale": ratio(one(sigmoid(residual))),
        "one ratio per trajectory, doubled": ratio(two(outer=Gate(2 * residual), inner=zero_gate())),
        "one ratio per trajectory, never below 1": ratio(
            two(outer=Gate(clip(residual, 0, 0.2)), inner=zero_gate(), split=log_ratio(scale=1 / T))
        ),
        "trajectories that follow their group": ratio(chain(uniform(), uniform(), gates={trajectory: zero_gate(), token: zero_gate()})),
        "tokens above their mean": ratio(two(outer=identity_gate(), inner=Gate(where(residual >= 0, residual, 0)))),
        "sums that weigh what means are taken of": ratio(
            two(weight / W, split=log_ratio(scale=weight / W), **kept)
        ),
        "a scale that is not undone": ratio(cut(x, exp(gated(""))), "decomposition", recovery="large ratios are cut"),
        "a ratio that is twice itself": ratio(cut(x, 2 * exp(gated("") * T)), "decomposition", recovery="large ratios are cut"),
        "both own 0, given up": ratio(owners(x >= 0, x <= 0), "decomposition"),
        "neither owns 0, given up": ratio(owners(x > 0, x < 0), "decomposition"),
    }  # fmt: skip


def wrong_reading() -> dict[str, Wrong]:
    per = Parameter("per", default={"+": 0.1, "-": 0.2}, per_channel=True)
    on_token = Parameter("on_token", default=0.5, upper=1, on=token)
    current, old, rollout = policies("current old rollout")

    def gate(stratum: Stratum, g: Any) -> Wrong:
        gates = {stratum: g if isinstance(g, Gate) else Gate(g)}
        return Wrong(chain(uniform(), uniform(), gates=gates), "locality", f"gate on {stratum}")

    def kernel(k: Any) -> Wrong:
        return Wrong(two(k), "locality", KERNEL)

    return {
        "its own density": gate(trajectory, residual + density(trajectory) - density(trajectory)),
        "a finer density": gate(trajectory, clip(residual, -density(token), density(token))),
        "a finer density at the root": gate(prompt_group, residual * (1 + density(trajectory))),
        "a raw log ratio": gate(token, token_log_ratio),
        "the recovered density": gate(token, gated("")),
        "an attribute of a finer stratum": gate(trajectory, residual * weight),
        "a count over a finer stratum": gate(prompt_group, clip(residual, -T, T)),
        "a sibling's count": gate(prompt_group, clip_gate(count(token, over=trajectory))),
        "advantage on a prompt group": gate(prompt_group, pessimistic_clip_gate(epsilon, budget)),
        "a channel that is not there": gate(token, residual * (1 + 0 * density(trajectory, "+"))),
        "a parameter per token at the root": gate(prompt_group, clip_gate(on_token)),
        "per-channel on one channel": Wrong(
            two(outer=clip_gate(per), split=log_ratio(scale=1 / T)), "locality", "gate on trajectory"
        ),
        "advantage over unknown rows": Wrong(
            Hierarchy(
                name="rows_outside",
                fibrations=[Fibration(token, prompt_group, kernel=uniform())],
                gates={prompt_group: log_clip_gate(epsilon, budget), token: identity_gate()},
                decomposition=log_ratio(scale=1 / TG),
                objective=token_mean(),
            ),
            "locality",
            "gate on prompt_group",
        ),
        "kernel reads a residual": kernel(residual / T),
        "kernel reads the advantage": kernel(advantage / T),
        "kernel reads a density": kernel(1 / (T + density(trajectory) - density(trajectory))),
        "kernel reads a per-channel parameter": kernel(per / (per * T)),
        "kernel mixes by a parameter per source": kernel(on_token * weight / W + (1 - on_token) / T),
        "kernel reads a count over itself's finer": Wrong(
            chain(uniform(), MarkovKernel(weight / total(weight, over=prompt_group))), "locality", UPPER
        ),
        "kernel reads a log-prob": kernel((1 + 0 * log_prob(rollout)) / T),
        "kernel reads a statistic": kernel(1 / (T + mean(0 * advantage, over=trajectory))),
        "kernel reads the sign of a channel": kernel(channel_sign / (channel_sign * T)),
        "the current policy's log-prob": gate(token, clip(residual, log_prob(current), -log_prob(current))),
        "a token's log-prob below it": gate(trajectory, clip(residual, log_prob(old), -log_prob(old))),
        "a statistic of what lies over it": gate(prompt_group, clip_gate(1 + mean(log_prob(old), over=trajectory) ** 2)),
        "decomposition reads a per-channel parameter": Wrong(
            two(split=decomposition(density=x * per, recovery=exp(gated("") / per))), "locality", "decomposition"
        ),
        "decomposition reads a log-prob": Wrong(
            two(split=decomposition(density=x + 0 * log_prob(old), recovery=exp(gated("")))), "locality", "decomposition"
        ),
        "decomposition reads a statistic": Wrong(
            two(split=decomposition(density=x + 0 * mean(x, over=trajectory), recovery=exp(gated("")))),
            "locality", "decomposition",
        ),
        "decomposition reads what pulls": Wrong(
            two(split=decomposition(density=x + 0 * pull, recovery=exp(gated("")))), "locality", "decomposition"
        ),
        "scale reads the advantage": Wrong(two(split=log_ratio(scale=advantage**2 / T)), "locality", "recovery"),
        "decomposition reads a density": Wrong(
            two(split=decomposition(density=x + density(trajectory), recovery=exp(gated("")))), "locality", "decomposition"
        ),
        "recovery reads the log ratio": Wrong(
            two(split=decomposition(density=x, recovery=exp(token_log_ratio + 0 * gated("")))), "locality", "recovery"
        ),
        "recovery reads a per-channel parameter": Wrong(
            two(split=decomposition(density=x, recovery=exp(gated("")) + 0 * per)), "locality", "recovery"
        ),
        "recovery reads a log-prob": Wrong(
            two(split=decomposition(density=x, recovery=exp(gated("")) + 0 * log_prob(rollout))), "locality", "recovery"
        ),
        "recovery reads a statistic": Wrong(
            two(split=decomposition(density=x, recovery=exp(gated("")) + 0 * largest(x, over=trajectory))),
            "locality", "recovery",
        ),
    }  # fmt: skip


def wrong_structure() -> dict[str, Wrong]:
    def broken(fibrations: list[Fibration], **more: Any) -> Wrong:
        met = dict.fromkeys(s for f in fibrations for s in (f.source, f.target))
        return Wrong(
            Hierarchy(
                name="broken",
                fibrations=fibrations,
                gates=dict.fromkeys(met, identity_gate()),
                decomposition=log_ratio(),
                objective=token_mean(),
                **more,
            ),
            "structure",
            "hierarchy",
        )

    def edge(a: Stratum, b: Stratum) -> Fibration:
        return Fibration(a, b, kernel=uniform())

    apart = Hierarchy(
        name="apart",
        gates={token: identity_gate(), trajectory: identity_gate()},
        decomposition=log_ratio(),
        objective=token_mean(),
    )
    return {
        "self-loop": broken([edge(token, token)]),
        "cycle of two": broken([edge(token, trajectory), edge(trajectory, token)]),
        "cycle of three": broken([edge(token, trajectory), edge(trajectory, domain), edge(domain, token)]),
        "cycle above a tail": broken([edge(turn, token), edge(token, trajectory), edge(trajectory, token)]),
        "two parts": broken([edge(token, trajectory), edge(prompt_group, domain)]),
        "no fibration between two": Wrong(apart, "structure", "hierarchy"),
        "declared twice": broken([edge(token, trajectory), edge(token, trajectory)]),
        "rows without tokens over them": broken([edge(token, trajectory)], rows=token),
    }


def wrong_objectives() -> dict[str, Wrong]:
    bonus = Attribute("bonus", on=trajectory, positive=False)
    free = Parameter("free", default=1.0, lower=-1, upper=2)
    rows = count(trajectory, over=Stratum("batch"))

    def objective(weight: Any, **more: Any) -> Wrong:
        return Wrong(two(objective=Objective(weight), **more), "objective", "weight")

    return {
        "objective that divides by 0 at length 1": objective(1 / (T - 1)),
        "objective that divides by 0 at length 3": objective(1 / (T * T - 2 * T - 3)),
        "objective that divides by 0 in a batch of two rows": objective(T / (rows - 2)),
        "objective with a logarithm of 0 at length 1": objective(log(T - 1)),
        "objective that divides by an attribute that may be 0": objective(1 / bonus),
        "objective that divides by a parameter that may be 0": objective(1 / free),
        "objective with an undefined condition": objective(where(1 / (T - 1) > 0, 1, 1)),
        "objective of a loss that gives up first order": objective(1 / (T - 1), inner=zero_gate(), gives_up={"first_order": "y"}),
    }  # fmt: skip


def wrong_promises() -> dict[str, Wrong]:
    def promise(h: Hierarchy, law: str) -> Wrong:
        return Wrong(h, "given_up", f"law '{law}'")

    return {
        "gives up first order, which holds": promise(two(gives_up={"first_order": "habit"}), "first_order"),
        "gives up positivity, which holds": promise(two(gives_up={"positivity": "habit"}), "positivity"),
        "gives up recovery, which holds": promise(two(gives_up={"recovery": "habit"}), "recovery"),
        "gives up identity, which holds": promise(one(dual_clip_gate(epsilon, budget, 3 + budget), gives_up={"identity": "habit"}), "identity"),
        "gives up orthogonality, which holds": promise(two(gives_up={"orthogonality": "habit"}), "orthogonality"),
    }  # fmt: skip


@functools.cache
def wrong() -> dict[str, Wrong]:
    groups = (
        wrong_kernels,
        wrong_gates,
        wrong_decompositions,
        wrong_gradients,
        wrong_reading,
        wrong_structure,
        wrong_promises,
        wrong_pushes,
    )
    return {name: w for make in (*groups, wrong_objectives) for name, w in make().items()}


def wrong_pushes() -> dict[str, Wrong]:
    def pushes(gate: Gate) -> Wrong:
        return Wrong(two(outer=gate, split=log_ratio(scale=1 / T)), "inward", "gate on trajectory")

    strip = aggregate_gate(budget, rollback=count(token))
    wide, far = absolute(residual) <= budget, absolute(residual) < 2 * budget
    zone = where(wide, residual, where(far, sign(residual) * budget, residual - sign(residual) * budget))
    kept_low, kept_high = maximum(residual, -budget), minimum(residual, budget)
    return {
        "a roll-back that looks at drift alone": pushes(strip),
        "a roll-back of ratios that pull the other way": pushes(strip.inward(pull=-advantage)),
        "a roll-back where the advantage is negative": pushes(Gate(where(advantage < 0, strip.expression, residual))),
        "clips that stop what comes back": pushes(Gate(where(advantage >= 0, kept_low, kept_high))),
        "a stop that opens again": pushes(Gate(zone)),
    }


@functools.cache
def undecidable() -> dict[str, Wrong]:
    """What this version can neither prove nor refute: it must say so, and refuse. All but those marked are wrong."""
    far = 10**9
    fourth = residual - expm1(residual) + residual**2 / 2 + residual**3 / 6  # -residual**4/24, to rounding
    never = where(fourth > residual**4, 2 * residual, residual)
    share = Parameter("share", default=0.5, upper=1)
    return {
        "wrong beyond a thousand million tokens": Wrong(two(where(far >= T, 1 / T, 2 / T)), "reflecting", KERNEL),
        "wrong for one far length": Wrong(two(where((far <= T) & (far >= T), 0, 1 / T)), "reflecting", KERNEL),
        "negative beyond a far length": Wrong(two(where(far >= T, 1 / T, 2 * weight / W - 1 / T)), "markov", KERNEL),
        "0 for an only token": Wrong(two((T - 1) / T), "markov", KERNEL),  # no case of it is negative: m would be 0
        "wrong in the fortieth digit": Wrong(two((1 + exp(0 * T - 100)) / T), "reflecting", KERNEL),
        "right, but not to this procedure: a sum of logarithms": Wrong(
            two((1 + log(2 + 0 * T) + log(3 + 0 * T) - log(6 + 0 * T)) / T), "reflecting", KERNEL
        ),
        "right, but not to this procedure: a fourth order": Wrong(one(never, log_ratio()), "identity", "gate on token"),
        "right, but not to this procedure: beside a far density": Wrong(
            two(inner=Gate(where(density(trajectory) > 0.05, residual / 2, never))),
            "identity",
            "gate on token",
        ),
        "wrong for an advantage that is no fraction": Wrong(
            one(where((advantage**2 >= 2) & (advantage**2 <= 2), 2 * residual, residual), log_ratio()), "identity", "gate on token"
        ),
        "a root of the base that has no slope at 0": Wrong(
            two(inner=Gate(residual * (1 + sqrt(density(trajectory))))), "identity", "gate on token"
        ),
        "F without a slope at 0": Wrong(
            one(
                clip_gate(share / 10),
                decomposition(
                    density=where(x >= 0, sqrt(x), -sqrt(-x)),
                    recovery=exp(where(gated("") >= 0, gated("") * gated(""), -(gated("") * gated("")))),
                ),
            ),
            "first_order",
            "hierarchy",
        ),
        "slope 2 on only children, who have no residual": Wrong(
            two(inner=Gate(where(T < 2, 2 * residual, residual))), "identity", "gate on token"
        ),
        "slope 2 below 0, where the root of a channel never is": Wrong(
            two(outer=Gate(where(residual < 0, 2 * residual, residual))), "identity", "gate on trajectory"
        ),
        "right, but not to this procedure: equal branches by the weight": Wrong(
            two(where(weight > 1, 1 / T, 1 / T)), "reflecting", KERNEL
        ),
        "F that jumps at 1": Wrong(
            one(
                clip_gate(share / 10),
                decomposition(
                    density=where(x > 0, x + 1, x), recovery=exp(where(gated("") <= 0.5, gated(""), gated("") - 1))
                ),
            ),
            "first_order",
            "hierarchy",
        ),
        "a pole far out": Wrong(
            one(where(absolute(residual) < 1, residual, -3 * residual / (residual * residual - 4)), log_ratio()),
            "positivity",
            "hierarchy",
        ),
    }  # fmt: skip
