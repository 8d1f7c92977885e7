"""Hierarchies that keep every law, however unusual, and ones that keep first-order agreement on a subspace."""

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    atan,
    clip,
    clip_gate,
    constant_normaliser,
    count,
    decomposition,
    density,
    dual_clip_gate,
    exp,
    expm1,
    gated,
    identity_gate,
    load,
    log,
    log1p,
    log_clip_gate,
    log_ratio,
    maximum,
    minimum,
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    sign,
    signed_log_ratio,
    softplus,
    sqrt,
    strata,
    tanh,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from hierarchies import builders
from hierarchies.builders import INWARD, TG, T, W, budget, epsilon, one, trajectory, two, weight, x

SHIPPED = ("ppo", "grpo", "dapo", "dr_grpo", "gspo", "fiberpo", "fiberpo_domain")
token, _, prompt_group, domain = builders.token, builders.trajectory, builders.prompt_group, builders.domain
M = count(trajectory, over=prompt_group)


def kernels(*made, levels=(token, trajectory, prompt_group, domain), gates=None, split=None, **more):
    """A chain with these kernels, finest first; identity gates unless given."""
    levels = levels[: len(made) + 1]
    ready = [MarkovKernel(k) if not isinstance(k, MarkovKernel) else k for k in made]
    return Hierarchy(
        name="right",
        fibrations=[Fibration(a, b, kernel=k) for a, b, k in zip(levels, levels[1:], ready, strict=False)],
        gates={s: (gates or {}).get(s, identity_gate()) for s in levels},
        decomposition=split or log_ratio(scale=1 / count(token, over=levels[1])),
        objective=more.pop("objective", trajectory_mean()),
        **more,
    )


def right_kernels():
    price = Attribute("price", on=trajectory)
    share = Parameter("share", default=0.5, upper=1)
    five = strata("token turn trajectory prompt_group domain")
    per_turn = 1 / count(five[0], over=five[1])
    gates = {
        s: aggregate_gate(Parameter(f"C_{s.name}", default=0.1), rollback=count(token)).per(count(token))
        for s in five[2:]
    }
    mass = total(price, over=prompt_group)
    return {
        "five levels": kernels(uniform(), proportional(count(token)), uniform(), proportional(count(trajectory)), levels=five),
        "five gated levels": kernels(
            uniform(), uniform(), proportional(count(token)), proportional(count(five[2])), levels=five,
            gates={**gates, five[1]: clip_gate(epsilon), five[0]: clip_gate(epsilon).per(per_turn)}, gives_up=INWARD,
        ),
        "by an attribute": kernels(proportional(total(weight)), proportional(total(weight)), split=log_ratio(scale=weight / W)),
        "by an attribute of trajectories": kernels(uniform(), proportional(total(price))),
        "by tokens at the upper levels": kernels(
            uniform(), proportional(count(token)), proportional(count(token)), split=signed_log_ratio(),
            gates={prompt_group: clip_gate(budget).per(count(token))},
        ),
        "uniform by hand": two(1 / T),
        "uniform by a roundabout way": two(1 / (2 * T - T)),
        "uniform as a share of a constant": two((T * 3) / (T * T) / 3),
        "uniform as a power": two(1 / T + (T - T) ** 2),
        "uniform by exponentials": two(exp(-log(T))),
        "uniform by a square root": two(sqrt(T * T) / (T * T)),
        "uniform in two right branches": two(where(T <= 3, 1 / T, W / (W * T))),
        "branches by an attribute below": kernels(uniform(), where(mass > 5, 1 / M, count(token, over=trajectory) / TG)),
        "half uniform, half by weight": two(0.5 / T + 0.5 * weight / W),
        "mixture by a parameter": two(share / T + (1 - share) * weight / W),
        "mixture of three": kernels(uniform(), 0.2 / M + 0.3 * price / mass + 0.5 * count(token, over=trajectory) / TG),
        "mixture by a coarse attribute": two(
            1 / (1 + Attribute("trust", on=trajectory)) / T
            + Attribute("trust", on=trajectory) / (1 + Attribute("trust", on=trajectory)) * weight / W
        ),
        "average of a weight and a count": two((1 + weight) / (T + W)),
        "tokens and trajectories": kernels(uniform(), (count(token, over=trajectory) + 1) / (TG + M)),
        "a parameter that one gate reads too": kernels(
            uniform(), share * count(token, over=trajectory) / TG + (1 - share) / M, gates={trajectory: clip_gate(share)}
        ),
    }  # fmt: skip


def right_gates():
    over = density(trajectory)
    trust = Attribute("trust", on=trajectory)
    low, high = Parameter("low", default=0.2), Parameter("high", default=0.4)
    below_one = Parameter("below_one", default=0.2, upper=1)
    split = signed_log_ratio(scale=1 / T)
    return {
        "tanh": one(epsilon * tanh(residual / epsilon), log_ratio()),
        "arc tangent": one(epsilon * atan(residual / epsilon), log_ratio()),
        "centred softplus": one(2 * epsilon * (softplus(residual / epsilon) - log(2)), log_ratio()),
        "bell": one(residual * exp(-residual * residual), log_ratio(), gives_up=INWARD),
        "softsign": one(residual / (1 + abs(residual)), log_ratio()),
        "softer sign": one(residual / sqrt(1 + residual * residual / (epsilon * epsilon)), log_ratio()),
        "centred sigmoid": one(4 * sigmoid(residual) - 2, log_ratio()),
        "exponential less one": one(where(residual <= 1, expm1(residual), expm1(1 + 0 * epsilon)), log_ratio()),
        "logarithm, tempered": one(where(residual >= 0, log1p(abs(residual)), -log1p(abs(residual))), log_ratio()),
        "cubic": one(where(abs(residual) <= 0.5, residual - residual**3, sign(residual) * 0.375), log_ratio()),
        "asymmetrical clip": one(clip(residual, -low, high), log_ratio()),
        "one-sided clip": one(minimum(residual, high), log_ratio()),
        "clip by hand": one(where(residual > high, high, where(residual < -high, -high, residual)), log_ratio()),
        "nested clips": one(maximum(minimum(residual, high), -minimum(low, high)), log_ratio()),
        "either bound": one(where((residual > high) | (residual < -high), 0, residual), log_ratio()),
        "inside both bounds": one(where((residual <= high) & ~(residual < -high), residual, 0), log_ratio()),
        "at most an advantage": one(where(advantage > 0, minimum(residual, high), maximum(residual, -low)), log_ratio()),
        "budget of an attribute": two(outer=clip_gate(trust)),
        "budget of an attribute below": two(inner=Gate(clip(residual, -trust, trust))),
        "budget of a count": two(outer=clip_gate(1 / T)),
        "two gates in one": two(outer=Gate(where(T > 100, clip(residual, -low, low), residual))),
        "budget that shrinks with the trajectory's drift": two(
            inner=Gate(clip(residual, -epsilon / (1 + over * over), epsilon / (1 + over * over)))
        ),
        "budget that widens with the trajectory's drift": two(
            inner=Gate(clip(residual, -epsilon - abs(over), epsilon + abs(over))), split=log_ratio(scale=1 / T)
        ),
        "shut where the trajectory drifts": two(inner=Gate(where(abs(over) > 0.3, 0, residual))),
        "drift counted once": two(
            inner=Gate(clip(residual, -maximum(budget - abs(over), 0), maximum(budget - abs(over), 0)))
        ),
        "damped by the trajectory": two(inner=Gate(residual / (1 + over * over)), split=log_ratio(scale=1 / T)),
        "both channels read": two(
            inner=Gate(residual / (1 + density(trajectory, "+") + density(trajectory, "-"))), split=split
        ),
        "rollback of a coarse density": two(outer=aggregate_gate(budget, rollback=count(token)).per(1), gives_up=INWARD),
        "state budget of APC": two(
            outer=zero_gate(), split=ratio_deviation(scale=1),
            inner=Gate(clip(residual, -maximum(T * budget - abs(over) + abs(residual), 0), maximum(T * budget - abs(over) + abs(residual), 0))),
            gives_up={
                **dict.fromkeys(("first_order", "gradient"), "the state's own drift is dropped"),
                "positivity": "not decided for deviations over two levels",
                "inward": "a token that rises against its state makes its own budget wider",
            },
        ),
        "pessimistic clip, ratios": one(pessimistic_clip_gate(below_one, high)),
        "dual clip, ratios": one(dual_clip_gate(below_one, high, Parameter("ceiling", default=3.0, lower=1))),
        "lower clip at ratios, unbounded": one(clip_gate(low)),
        "lower clip at minus one": one(where(advantage >= 0, residual, maximum(residual, -1))),
        "lower clip of ratios by hand": one(where(residual < -below_one, -below_one, residual)),
        "halved fall of ratios": one(where(residual < -0.5, (residual - 0.5) / 2, residual)),
        "a logarithm that cannot fail": one(where(residual > 0.5, 0.5 + log1p(residual - 0.5), residual)),
        "a logarithm of what is clipped above -1": two(inner=Gate(log1p(clip(residual, -0.5, 1)))),
        "a budget that grows with a row, and is above 0": two(inner=clip_gate(maximum(epsilon - 1 / T, 1e-6))),
        "scaled twice": one(clip_gate(epsilon).per(3).per(2), log_ratio()),
        "the log-ratio clip of ratios": one(log_clip_gate(below_one, high), log_ratio()),
    }  # fmt: skip


def right_decompositions():
    plus, minus = gated("+"), gated("-")
    return {
        "0 belongs to minus": two(
            split=Decomposition({"+": where(x > 0, x, 0) / T, "-": where(x > 0, 0, -x) / T}, exp((plus - minus) * T), 1 / T)
        ),
        "signed minus channel": two(
            split=Decomposition({"+": where(x >= 0, x, 0) / T, "-": where(x >= 0, 0, x) / T}, exp((plus + minus) * T), 1 / T)
        ),
        "two halves": two(
            split=Decomposition({"+": x / 2 / T, "-": -x / 2 / T}, exp((plus - minus) * T), 1 / T),
            outer=Gate(clip(residual, -budget / 10, budget)),
        ),
        "doubled": one(clip_gate(epsilon), Decomposition({"": 2 * x}, exp(gated("") / 2))),
        "in bits": one(clip_gate(epsilon), Decomposition({"": x / log(2)}, exp(gated("") * log(2)))),
        "scaled by an attribute": one(clip_gate(epsilon), log_ratio(scale=weight)),
        "unscaled over three levels": kernels(uniform(), uniform(), split=signed_log_ratio()),
        "scaled against another measure": kernels(uniform(), proportional(count(token))),
        "maximum for a channel": two(
            split=Decomposition({"+": maximum(x, 0) / T, "-": where(x >= 0, 0, -x) / T}, exp((plus - minus) * T), 1 / T)
        ),
        "R of hyperbolic tangents": one(
            identity_gate(), decomposition(density=x, recovery=(1 + tanh(gated("") / 2)) / (1 - tanh(gated("") / 2)))
        ),
        "R in branches": one(identity_gate(), decomposition(density=x, recovery=where(gated("") >= 0, exp(gated("")), exp(gated(""))))),
    }  # fmt: skip


def gspo_like(**changes):
    base = load("gspo")
    return base.replace(**changes)


def subspaces():
    """Hierarchies that hold first-order agreement only for advantages constant on a stratum: spec, stratum or None."""
    drop = {"first_order": "what is finer is dropped on purpose"}
    wrong = {**drop, "gradient": "rows do not get what they are due, on purpose"}
    levels = (token, trajectory, prompt_group)

    def three(gates, upper, gives_up=wrong, **more):
        return kernels(uniform(), upper, levels=levels, gates=gates, gives_up=gives_up, **more)

    def over(inner, gives_up=wrong):
        return two(inner=inner, split=log_ratio(scale=1 / T), gives_up=gives_up, outer=identity_gate())

    half = Gate(0.5 * residual)
    kinked = Gate(where(residual >= 0, residual, 0))
    own = Parameter("own", default=0.5, on=trajectory)
    return {
        "gspo": (load("gspo"), trajectory),
        "gspo with the mean over tokens": (gspo_like(objective=token_mean()), trajectory),
        "gspo with a constant length": (gspo_like(objective=constant_normaliser(1024)), trajectory),
        "gspo over prompt groups, mean of means": (three({token: zero_gate()}, uniform(), drop), trajectory),
        "one ratio per group": (three({token: zero_gate(), trajectory: zero_gate()}, uniform()), prompt_group),
        "one ratio per group, by tokens": (
            three({token: zero_gate(), trajectory: zero_gate()}, proportional(count(token)), split=log_ratio(), objective=token_mean()),
            prompt_group,
        ),
        "one ratio per group, μ against the measure": (
            three({token: zero_gate(), trajectory: zero_gate()}, uniform(), objective=token_mean()), None,
        ),
        "scale against the kernels": (
            three({token: zero_gate(), trajectory: zero_gate()}, proportional(count(token)), objective=token_mean()), None,
        ),
        "measure of an attribute, μ of counts": (
            two(weight / W, inner=zero_gate(), outer=identity_gate(), split=log_ratio(scale=weight / W), objective=token_mean(), gives_up=wrong),
            None,
        ),
        "half of each token": (over(half, drop), trajectory),
        "above the mean only": (over(kinked), None),
        "by an attribute of the token": (over(Gate(weight * residual)), None),
        "by an attribute of the trajectory": (over(Gate(Attribute("trust", on=trajectory) * residual), drop), trajectory),
        "by a parameter per trajectory, over groups": (
            three({trajectory: Gate(own * residual), token: zero_gate()}, uniform()), None,
        ),
        "by a parameter per trajectory": (over(Gate(own * residual), drop), trajectory),
        "by the sign of the advantage": (over(Gate(where(advantage > 0, residual, 0)), {**drop, **INWARD}), trajectory),
        "by the length of the trajectory": (over(Gate(where(T > 6, residual / 2, residual)), drop), trajectory),
        "by the weight of the token": (over(Gate(where(weight > 1, residual / 2, residual))), None),
        "root of a square": (over(Gate(sqrt(residual * residual)), {**wrong, **INWARD}), None),
        "the token's base moves it": (over(Gate(where(absolute(residual) > 0, density(trajectory), 0))), None),
    }  # fmt: skip


RIGHT = {**right_kernels(), **right_gates(), **right_decompositions()}
SUBSPACES = subspaces()
