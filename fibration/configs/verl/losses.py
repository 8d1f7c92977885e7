"""verl's policy losses, by their `loss_mode`: the gate, the decomposition, and terms of their own."""

from __future__ import annotations

from collections.abc import Callable

from fibration.configs.findings import WARNING
from fibration.configs.parts import batch, mean_of, token, trajectory
from fibration.configs.verl.draft import SCORE, Draft
from fibration.configs.verl.options import ACTOR, POLICY_LOSS
from fibration.configs.weights import GSPO, sequence_clip
from fibration.language.atoms import Parameter, advantage, count, density, gated, residual, token_log_ratio
from fibration.language.decompositions import decomposition, log_ratio
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, dual_clip_gate, identity_gate, pessimistic_clip_gate, zero_gate
from fibration.language.kernels import Fibration, uniform
from fibration.language.operators import absolute, clip, exp, log, log1p, maximum, minimum, sigmoid, stop, where
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import mean, quantile

current, old = policies("current old")
CUT = "verl cuts the log ratio at ±20 before it exponentiates: a token beyond has no gradient there."
ROW_MEAN = "seq-mean-token-mean"
MODE = f"{POLICY_LOSS}loss_mode"


def clip_range(d: Draft, upper: float | None = 1.0, law: str = "") -> tuple[Parameter, Parameter]:
    """`clip_ratio_low` and `clip_ratio_high`, or `clip_ratio` where they are null.

    `upper`: the bound of the lower one. `law`: what the loss gives up if it is not below.
    """
    found, options = {}, {side: f"{ACTOR}clip_ratio_{side}" for side in ("low", "high")}
    for side, name in options.items():
        source = f"{ACTOR}clip_ratio" if d.options[name] is None else name
        value = d.options.number(source, 0, "a number above 0: it is how far the ratio may be below or above 1")
        found[side] = d.parameter(f"epsilon_{side}", value, upper=upper if side == "low" else None)
        if side == "low" and upper is not None and value >= upper:
            why = "a ratio is never below 0, so that no low one is clipped"
            d.gives_up |= dict.fromkeys([law] * bool(law), d.blame(source, why, WARNING, f"{source}=0.2"))
    both = d.options.number_or_none(f"{ACTOR}clip_ratio")
    is_ignored = all(d.options[name] is not None for name in options.values())
    low, high = map(value_of, found.values())
    if both is not None and is_ignored and both not in (0.2, low, high):
        d.say(
            f"{d.known(f'{ACTOR}clip_ratio')} has no effect: verl reads clip_ratio_low and clip_ratio_high "
            f"({low:g} and {high:g}), unless they are null.",
            WARNING,
            f"{ACTOR}clip_ratio_low={both:g} {ACTOR}clip_ratio_high={both:g}",
        )
    return found["low"], found["high"]


def value_of(parameter: Parameter) -> float:
    """The number of the config that a parameter has."""
    assert isinstance(parameter.default, int | float)
    return float(parameter.default)


def ceiling_of(d: Draft) -> Expression:
    why = "a number above 1: it is the largest ratio at a negative advantage"
    return d.parameter("ceiling", d.options.number(f"{ACTOR}clip_ratio_c", 1, why), lower=1)


def vanilla(d: Draft) -> None:
    low, high = clip_range(d)
    d.gates = {token: dual_clip_gate(low, high, ceiling_of(d))}
    d.say(CUT)


def dppo_tv(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    moved = exp(log_prob(current)) - exp(log_prob(old))
    _dppo(d, (advantage > 0) & (moved <= high), (advantage <= 0) & (moved >= -low))


def dppo_kl(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    p, q = exp(log_prob(current)), exp(log_prob(old))
    kl = q * (log_prob(old) - log_prob(current)) + (1 - q) * log((1 - q + 1e-8) / (1 - p + 1e-8))
    _dppo(d, (advantage > 0) & ((kl <= high) | (p <= q)), (advantage <= 0) & ((kl <= low) | (p >= q)))


def _dppo(d: Draft, above: Expression, below: Expression) -> None:
    d.condition = above | below
    _score(d, Gate(minimum(residual, ceiling_of(d) - 1)))
    d.say(CUT)


def _score(d: Draft, gate: Gate, chosen_by: str = MODE, why: str = SCORE) -> None:
    d.gates, d.is_score = {token: gate}, True
    d.give_up("first_order", chosen_by, why)


def gspo(d: Draft) -> None:
    low, high = clip_range(d, law="inward of token")
    tokens = count(token, over=trajectory)
    mean_x = density(trajectory)
    x = tokens * residual + mean_x  # the token's own log ratio
    below, above = value_of(low), value_of(high)
    said = f"clip_ratio_low={below:g} and clip_ratio_high={above:g} with loss_mode=gspo"
    change = f"{ACTOR}clip_ratio_low={GSPO[0]} {ACTOR}clip_ratio_high={GSPO[1]}"
    d.options.findings += sequence_clip(said, below, above, change)
    binds = low.upper is not None  # from 1 on it never does
    least = maximum(mean_x, log1p(-low)) if binds else mean_x
    clipped = where(advantage >= 0, minimum(mean_x, log1p(high)), least)
    kept = (advantage < 0) & (mean_x >= log1p(-low)) if binds else advantage < 0
    passes = ((advantage >= 0) & (mean_x <= log1p(high))) | kept
    d.fibrations = (Fibration(token, trajectory, kernel=uniform()),)
    d.gates = {trajectory: zero_gate(), token: Gate((stop(clipped) + where(passes, x - stop(x), 0)) / tokens)}
    d.decomposition = log_ratio(scale=1 / tokens)
    d.give_up("first_order", MODE, "in value a token has the ratio of its trajectory")
    d.say("verl cuts the mean log ratio of a row at 10: a row beyond has no gradient there.")


def geo_mean(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    tokens = count(token, over=trajectory)
    x = where(advantage >= 0, minimum(token_log_ratio, high), maximum(token_log_ratio, -low))
    d.fibrations = (Fibration(token, trajectory, kernel=uniform()),)
    d.gates = {trajectory: identity_gate(), token: zero_gate()}
    d.decomposition = decomposition(density=x / tokens, recovery=exp(tokens * gated("")), scale=1 / tokens)
    d.give_up("recovery", MODE, "tokens are clipped before their mean is taken")
    d.give_up("first_order", MODE, "one ratio per trajectory: what single tokens do beyond their mean is dropped")
    d.mean, d.weighs_rows = ROW_MEAN, True
    d.say(
        "geo_mean does not read loss_agg_mode: it averages over the rows of a micro-batch, and verl adds up the "
        "micro-batches. With K micro-batches in a mini-batch its gradient is K times as large; with one it is this."
    )


def sapo(d: Draft) -> None:
    def temperature(name: str) -> Parameter:
        return d.parameter(name, d.options.number(f"{ACTOR}{name}", 0, "a number above 0: it is a temperature"))

    tau = where(advantage > 0, temperature("tau_pos"), temperature("tau_neg"))
    d.gates = {token: Gate(4 / tau * sigmoid(tau * residual) - 1)}
    d.give_up("first_order", MODE, "the value at r = 1 is 2/tau")
    d.mean = ROW_MEAN
    if d.options[f"{ACTOR}loss_agg_mode"] != ROW_MEAN:
        d.say(
            f"sapo averages tokens as {ROW_MEAN}, whatever loss_agg_mode says; KL and entropy terms are averaged as "
            f"{d.known(f'{ACTOR}loss_agg_mode')}."
        )
    d.say(CUT)


def gpg(d: Draft, chosen_by: str = MODE) -> None:
    """`chosen_by`: the option that chooses this loss."""
    _score(d, zero_gate(), chosen_by, "a score estimator without a ratio")


def cispo(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    _score(d, Gate(clip(residual, -low, high)))
    d.say(CUT)


def clip_cov(d: Draft) -> None:
    name = f"{POLICY_LOSS}clip_cov_ratio"
    share = d.options.number_or_none(name)
    if share is None:
        raise d.options.refusal(name, "1: null is 0.0002, a part of the tokens at random", f"{name}=1 drops them all")
    if share < 1:
        raise d.options.refusal(
            name,
            "1: verl drops a part of the tokens between clip_cov_lb and clip_cov_ub at random, and no hierarchy draws "
            "at random",
            f"{name}=1 drops them all, as the shipped loss clip_cov",
        )
    low, high = clip_range(d)
    least = d.parameter("least", d.options.number(f"{POLICY_LOSS}clip_cov_lb"), lower=None)
    most = d.parameter("most", d.options.number(f"{POLICY_LOSS}clip_cov_ub"), lower=None)
    r = exp(token_log_ratio)
    closed = ((advantage > 0) & (r > 1 + high)) | ((advantage < 0) & (r < 1 - low))
    cov = covariance(d.mask)
    d.gates = {token: pessimistic_clip_gate(low, high)}
    d.condition = closed | (cov <= least) | (cov >= most)
    d.give_up(f"mask_open of condition {d.condition}", MODE, "covariances are large on policy too")
    d.give_up(f"causal of condition {d.condition}", MODE, "means are of the whole batch")
    d.say(
        "clip_cov takes means of advantages and log-probs over a micro-batch of one rank; here they are of the batch."
    )


def kl_cov(d: Draft) -> None:
    name = f"{POLICY_LOSS}kl_cov_ratio"
    share = d.options.number(name)
    if not 0 < 1 - share < 1:
        raise d.options.refusal(name, "a share of the tokens, between 0 and 1")
    coef = d.parameter("coef", d.options.number(f"{POLICY_LOSS}ppo_kl_coef"))
    level = d.parameter("level", 1 - share, upper=1)
    cov = covariance(d.mask)
    d.gates = {token: identity_gate()}
    chosen = cov > quantile(cov, level, over=batch)
    d.penalties["kl_cov"] = where(chosen, coef * absolute(token_log_ratio), 0)
    d.say(
        "kl_cov takes the int(kl_cov_ratio·tokens) largest covariances of a micro-batch of one rank, one at least; "
        "here they are those above a quantile of the batch, which can be one token more."
    )
    d.say("Where a token's ratio is exactly 1, the slope of |log r| is 0 in verl.")


def covariance(kept: Expression | None) -> Expression:
    def apart(x: Expression) -> Expression:
        return x - mean_of(x, batch, kept)

    return apart(advantage) * apart(log_prob(current))


def dro(d: Draft) -> None:
    name, why = f"{POLICY_LOSS}dro_beta", "a number above 0, as verl does with loss_mode=dro"
    beta = d.options.number_or_none(name, 0, why)
    if beta is None:
        raise d.options.refusal(name, why)
    _score(d, zero_gate())
    d.penalties["square"] = d.parameter("beta", beta) / 2 * token_log_ratio**2


_BY_NAME = (vanilla, dppo_tv, dppo_kl, gspo, sapo, gpg, clip_cov, kl_cov, geo_mean, dro, cispo)
LOSSES: dict[str, Callable[[Draft], None]] = {loss.__name__: loss for loss in _BY_NAME}
OF_ROWS = ("gspo", "geo_mean")  # their ratio is that of a whole row


def in_rows(formula: Expression, condition: Expression | None) -> Expression:
    """The geometric mean of the weights of a row's tokens, as geo_mean takes it. A weight of 0 counts as 1e-10."""
    return exp(mean(log(formula if condition is None else where(condition, formula, 1e-10)), over=trajectory))
