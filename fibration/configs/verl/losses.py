"""verl's policy losses, by their `loss_mode`: the gate, the decomposition, and terms of their own."""

from __future__ import annotations

from collections.abc import Callable

from fibration.configs.draft import batch, mean_of, sapo_gate, token, trajectory
from fibration.configs.findings import WARNING
from fibration.configs.verl.corrections import Draft
from fibration.configs.verl.options import ACTOR
from fibration.configs.weights import GSPO, sequence_clip
from fibration.language.atoms import Parameter, advantage, count, density, gated, residual, token_log_ratio
from fibration.language.decompositions import decomposition, log_ratio
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, dual_clip_gate, identity_gate, pessimistic_clip_gate, zero_gate
from fibration.language.kernels import Fibration, uniform
from fibration.language.operators import absolute, clip, exp, log, log1p, maximum, minimum, stop, where
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import mean, quantile

current, old = policies("current old")
CUT = "verl cuts the log ratio at ±20 before it exponentiates: a token beyond has no gradient there."
ROW_MEAN = "seq-mean-token-mean"
SCORE = "a score estimator: its value is not the objective"


def clip_range(d: Draft, upper: float | None = 1.0, law: str = "") -> tuple[Parameter, Parameter]:
    """`clip_ratio_low` and `clip_ratio_high`, or `clip_ratio` where they are null.

    `upper`: the bound of the lower one. `law`: what the loss gives up if it is not below.
    """
    o, found, values = d.options, [], []
    for side in ("low", "high"):
        source = "clip_ratio" if o.raw(f"clip_ratio_{side}") is None else f"clip_ratio_{side}"
        if (value := o[source]) is None or value <= 0:
            raise o.refusal(source, "a number above 0: it is how far the ratio may be below or above 1")
        found.append(d.parameter(f"epsilon_{side}", value, upper=upper if side == "low" else None))
        values.append(value)
        if side == "low" and upper is not None and value >= upper:
            why = "a ratio is never below 0, so that no low one is clipped"
            why = d.blame(source, why, WARNING, f"{ACTOR}{source}=0.2")
            d.gives_up |= {law: why} if law else {}
    both, (low, high) = o["clip_ratio"], values
    is_ignored = o.raw("clip_ratio_low") is not None and o.raw("clip_ratio_high") is not None
    if both is not None and is_ignored and both not in (0.2, low, high):
        d.say(
            f"{o.said('clip_ratio')} has no effect: verl reads clip_ratio_low and clip_ratio_high "
            f"({low:g} and {high:g}), unless they are null.",
            WARNING,
            f"{ACTOR}clip_ratio_low={both:g} {ACTOR}clip_ratio_high={both:g}",
        )
    return found[0], found[1]


def _ceiling(d: Draft) -> Parameter:
    return d.parameter("ceiling", d.options["clip_ratio_c"], lower=1)


def vanilla(d: Draft) -> None:
    d.gates = {token: dual_clip_gate(*clip_range(d), _ceiling(d))}
    d.say(CUT)


def dppo_tv(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    moved = exp(log_prob(current)) - exp(log_prob(old))
    _dppo(d, moved <= high, moved >= -low)


def dppo_kl(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    p, q = exp(log_prob(current)), exp(log_prob(old))
    kl = q * (log_prob(old) - log_prob(current)) + (1 - q) * log((1 - q + 1e-8) / (1 - p + 1e-8))
    _dppo(d, (kl <= high) | (p <= q), (kl <= low) | (p >= q))


def _dppo(d: Draft, above: Expression, below: Expression) -> None:
    d.condition = ((advantage > 0) & above) | ((advantage <= 0) & below)
    _score(d, Gate(minimum(residual, _ceiling(d) - 1)))
    d.say(CUT)


def _score(d: Draft, gate: Gate, chosen_by: str = "loss_mode", why: str = SCORE) -> None:
    d.gates, d.is_score = {token: gate}, True
    d.give_up("first_order", chosen_by, why)


def gspo(d: Draft) -> None:
    low, high = clip_range(d, law="inward of token")
    tokens = count(token, over=trajectory)
    mean_x = density(trajectory)
    x = tokens * residual + mean_x  # the token's own log ratio
    below, above = (p.default for p in (low, high))
    said = f"clip_ratio_low={below:g} and clip_ratio_high={above:g} with loss_mode=gspo"
    change = f"{ACTOR}clip_ratio_low={GSPO[0]} {ACTOR}clip_ratio_high={GSPO[1]}"
    d.options.findings += sequence_clip(said, below, above, change)  # type: ignore[arg-type]
    binds = low.upper is not None  # from 1 on it never does
    least = maximum(mean_x, log1p(-low)) if binds else mean_x
    clipped = where(advantage >= 0, minimum(mean_x, log1p(high)), least)
    kept = (advantage < 0) & (mean_x >= log1p(-low)) if binds else advantage < 0
    passes = ((advantage >= 0) & (mean_x <= log1p(high))) | kept
    d.fibrations = (Fibration(token, trajectory, kernel=uniform()),)
    d.gates = {trajectory: zero_gate(), token: Gate((stop(clipped) + where(passes, x - stop(x), 0)) / tokens)}
    d.decomposition = log_ratio(scale=1 / tokens)
    d.give_up("first_order", "loss_mode", "in value a token has the ratio of its trajectory")
    d.say("verl cuts the mean log ratio of a row at 10: a row beyond has no gradient there.")


def geo_mean(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    tokens = count(token, over=trajectory)
    x = where(advantage >= 0, minimum(token_log_ratio, high), maximum(token_log_ratio, -low))
    d.fibrations = (Fibration(token, trajectory, kernel=uniform()),)
    d.gates = {trajectory: identity_gate(), token: zero_gate()}
    d.decomposition = decomposition(density=x / tokens, recovery=exp(tokens * gated("")), scale=1 / tokens)
    d.give_up("recovery", "loss_mode", "tokens are clipped before their mean is taken")
    d.give_up(
        "first_order", "loss_mode", "one ratio per trajectory: what single tokens do beyond their mean is dropped"
    )
    d.mean, d.weighs_rows = ROW_MEAN, True
    d.say(
        "geo_mean does not read loss_agg_mode: it averages over the rows of a micro-batch, and verl adds up the "
        "micro-batches. With K micro-batches in a mini-batch its gradient is K times as large; with one it is this."
    )


def sapo(d: Draft) -> None:
    above, below = (d.parameter(name, d.options[name]) for name in ("tau_pos", "tau_neg"))
    d.gates = {token: sapo_gate(above, below)}
    d.give_up("first_order", "loss_mode", "the value at r = 1 is 2/tau")
    d.mean = ROW_MEAN
    if d.options.raw("loss_agg_mode") != ROW_MEAN:
        d.say(
            f"sapo averages tokens as {ROW_MEAN}, whatever loss_agg_mode says; KL and entropy terms are averaged as "
            f"{d.options.said('loss_agg_mode')}."
        )
    d.say(CUT)


def gpg(d: Draft, chosen_by: str = "loss_mode") -> None:
    """`chosen_by`: the option that chooses this loss."""
    _score(d, zero_gate(), chosen_by, "a score estimator without a ratio")


def cispo(d: Draft) -> None:
    low, high = clip_range(d, upper=None)
    _score(d, Gate(clip(residual, -low, high)))
    d.say(CUT)


def clip_cov(d: Draft) -> None:
    name = "clip_cov_ratio"
    if (dropped := d.options[name]) is None or dropped < 1:
        why = (
            "1: null is 0.0002, a part of the tokens at random"
            if dropped is None
            else "1: verl drops a part of the tokens between clip_cov_lb and clip_cov_ub at random, and no hierarchy "
            "draws at random"
        )
        as_shipped = ", as the shipped loss clip_cov" * (dropped is not None)
        raise d.options.refusal(name, why, f"{d.options.table.full[name]}=1 drops them all{as_shipped}")
    low, high = clip_range(d)
    least, most = (d.parameter(n, d.options[f"clip_cov_{b}"], lower=None) for n, b in (("least", "lb"), ("most", "ub")))
    r, cov = exp(token_log_ratio), covariance(d.mask)
    closed = ((advantage > 0) & (r > 1 + high)) | ((advantage < 0) & (r < 1 - low))
    d.gates = {token: pessimistic_clip_gate(low, high)}
    d.condition = closed | (cov <= least) | (cov >= most)
    d.give_up(f"mask_open of condition {d.condition}", "loss_mode", "covariances are large on policy too")
    d.give_up(f"causal of condition {d.condition}", "loss_mode", "means are of the whole batch")
    d.say(
        "clip_cov takes means of advantages and log-probs over a micro-batch of one rank; here they are of the batch."
    )


def kl_cov(d: Draft) -> None:
    share = d.options["kl_cov_ratio"]
    if not 0 < 1 - share < 1:
        raise d.options.refusal("kl_cov_ratio", "a share of the tokens, between 0 and 1")
    coef, level = d.parameter("coef", d.options["ppo_kl_coef"]), d.parameter("level", 1 - share, upper=1)
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
    if (beta := d.options["dro_beta"]) is None:
        raise d.options.refusal("dro_beta", "a number above 0, as verl does with loss_mode=dro")
    _score(d, zero_gate())
    d.penalties["square"] = d.parameter("beta", beta) / 2 * token_log_ratio**2


_BY_NAME = (vanilla, dppo_tv, dppo_kl, gspo, sapo, gpg, clip_cov, kl_cov, geo_mean, dro, cispo)
LOSSES: dict[str, Callable[[Draft], None]] = {loss.__name__: loss for loss in _BY_NAME}
OF_ROWS = ("gspo", "geo_mean")  # their ratio is that of a whole row


def in_rows(formula: Expression, condition: Expression | None) -> Expression:
    """The geometric mean of the weights of a row's tokens, as geo_mean takes it. A weight of 0 counts as 1e-10."""
    return exp(mean(log(formula if condition is None else where(condition, formula, 1e-10)), over=trajectory))
