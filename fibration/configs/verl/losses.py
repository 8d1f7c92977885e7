"""verl's policy losses, by their `loss_mode`, and `rollout_correction`: weights and masks of tokens.

A policy loss is a gate, a decomposition, and terms of its own, which it puts into a `Draft`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fibration.configs.draft import Draft as AnyDraft
from fibration.configs.draft import batch, mean_of, sapo_gate, together, token, trajectory
from fibration.configs.findings import ERROR, WARNING, Severity
from fibration.configs.sampling import GSPO, EngineWeight, sequence_clip
from fibration.configs.verl.options import ACTOR, CORRECTION
from fibration.language.atoms import Parameter, advantage, count, density, gated, residual, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import (
    Gate,
    decomposition,
    dual_clip_gate,
    identity_gate,
    log_ratio,
    pessimistic_clip_gate,
    zero_gate,
)
from fibration.language.operators import absolute, clip, exp, log, log1p, maximum, minimum, stop, where
from fibration.language.statistics import largest, mean, quantile, total
from fibration.language.strata import Fibration, uniform


@dataclass
class Draft(AnyDraft):
    """What is known of the loss.

    - `is_score`: the policy loss is `w·A·log π`. `condition`: tokens that the policy loss drops.
    - `mean`: the `loss_agg_mode` that the policy loss has, whatever the option says.
    - `kept`: what every token of the response mask meets after `rollout_rs`; `by_token`: it drops single tokens.
    - `weighs_rows`: a row has the geometric mean of the weights of its tokens.
    - `closed`: why `rollout_rs` drops tokens of which engine and trainer agree, or "".
    """

    is_score: bool = False
    condition: Expression | None = None
    mean: str = ""
    kept: tuple[Expression, ...] = ()
    by_token: bool = False
    weighs_rows: bool = False
    closed: str = ""

    @property
    def is_async(self) -> bool:
        return any(name.startswith("async_training.") for name in self.options.given)

    @property
    def is_legacy(self) -> bool:
        """Whether one of verl's older trainers runs it."""
        return not self.options["use_v1"] or self.is_async

    @property
    def mask(self) -> Expression | None:
        """The conditions of `kept` together; None where `rollout_rs` drops nothing."""
        return together(self.kept) if self.kept else None

    def give_up(self, law: str, option: str, why: str) -> None:
        """Gives a law up, as verl's own choice: `loss_mode=cispo: why`."""
        self.gives_up[law] = self.options.brief(option, why)

    def blame(self, option: str, why: str, severity: Severity, change: str) -> str:
        """Says `clip_ratio_low=1.5: why`, and returns it."""
        return self.say(self.options.brief(option, why), severity, change)

    def blame_outside(self, option: str) -> str:
        """Says that a condition does not hold where engine and trainer agree, and returns it."""
        why = "1 does not lie inside, so that tokens of which engine and trainer agree are dropped"
        return self.blame(option, why, ERROR, f"{option}=0.5_2.0")


current, old = policies("current old")
CUT = "verl cuts the log ratio at ±20 before it exponentiates: a token beyond has no gradient there."
ROW_MEAN = "seq-mean-token-mean"
SCORE = "a score estimator: its value is not the objective"
MASKS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
OF: dict[str, Literal["token", "answer", "mean"]] = {"token": "token", "seq_sum": "answer", "seq_mean": "mean"}


@dataclass(frozen=True)
class Weights:
    """The weight of a token, and the condition outside of which it is 0.

    - `why`: why the weight of a token depends on later ones, or "". `of_rows`: a condition is one of whole rows.
    - `scaled`: why the weight, with the condition, is not 1 where the two policies agree, or "".
    """

    formula: Expression
    condition: Expression | None = None
    why: str = ""
    of_rows: bool = False
    scaled: str = ""


def weights(d: Draft, prefix: str, log_ratio: Expression, left: Expression | None = None) -> Weights | None:
    """What `rollout_is` multiplies losses by.

    - `prefix`: where the options are, with a dot at the end.
    - `left`: the condition that the tokens meet of which verl takes sums. None: all tokens meet it.
    """
    o, name, bounds = d.options, f"{prefix}rollout_is", f"{prefix}rollout_is_threshold"
    if o.raw(name) is None or o.raw(bounds) is None:
        return None
    whole = o[name] == "sequence"
    rho = exp(total(_of(log_ratio, left), over=trajectory) if whole else log_ratio)
    *below, upper = _numbers(d, bounds, str(o.raw(bounds)))  # `2.0` is an upper bound, `"0.5_5.0"` are two
    lower = below[0] if below else None
    condition, scaled = None, ""
    if lower is None:
        size = formula = minimum(rho, _above(d, "ceiling", upper, "rollout_ceiling"))
    else:
        condition = _within(d, rho, "least", lower, "most", upper, "rollout_")
        formula, size = rho, where(condition, rho, 0)
    if reads_engine(d, prefix):
        level: Literal["answer", "token"] = "answer" if whole else "token"
        d.engine.append(EngineWeight(f"{name}={o.raw(name)}", level, bool(lower), lower, upper))
    why = f"rollout_is={o.raw(name)}: a row is weighed whole" if whole else ""
    if is_normed := o[f"{prefix}rollout_is_batch_normalize"]:
        if d.mask is not None and prefix != CORRECTION:
            raise o.refusal(
                f"{prefix}rollout_is_batch_normalize",
                f"false with {CORRECTION}rollout_rs: no word says what is left in the batch",
            )
        average = mean(size, over=batch, of=trajectory if whole else None)
        formula = formula / (average if condition is None else where(average > 1e-8, average, 1))
        why = "rollout_is_batch_normalize: weights are divided by their mean over the batch"
        d.say(
            "rollout_is_batch_normalize divides by the mean weight of all rows that verl sampled for a training step; "
            "here it is that of the batch at hand, a mini-batch. verl adds 1e-8 to what it counts."
        )
    d.say("verl cuts log ratios to the rollout engine at ±20 before it exponentiates them.")
    if lower is None and upper < 1 and not is_normed:
        scaled = f"where engine and trainer agree, the weight is {upper:g}, not 1"
        scaled = d.blame(bounds, scaled, ERROR, f"{bounds}=2.0")
    elif lower is not None and not lower < 1 < upper:
        scaled = d.blame_outside(bounds)
    return Weights(formula, condition, why, whole, scaled)


def reads_engine(d: Draft, prefix: str) -> bool:
    """Whether the ratios of a correction are those of trainer and engine."""
    return prefix == CORRECTION or bool(d.options["bypass_mode"])


def masks(
    d: Draft, prefix: str, log_ratio: Expression, left: Expression | None = None
) -> tuple[tuple[Expression, ...], bool]:
    """The conditions of `rollout_rs` that a kept token meets, and whether one of them drops single tokens."""
    name, bounds = f"{prefix}rollout_rs", f"{prefix}rollout_rs_threshold"
    if d.options.raw(name) is None:
        return (), False
    modes = list(dict.fromkeys(_parts(d.options.raw(name))))
    if not modes or not set(modes) <= set(MASKS):
        raise d.options.refusal(name, f"some of {', '.join(MASKS)}, with commas between")
    conditions = []
    for mode, (lower, upper) in zip(modes, _thresholds(d, bounds, modes), strict=True):
        condition = _condition(d, mode, lower, upper, log_ratio, left, len(modes) > 1)
        conditions.append(condition)
        if mode.startswith("seq"):
            d.gives_up[f"causal of condition {condition}"] = f"rollout_rs={mode}: a row is dropped whole"
        if lower is not None and reads_engine(d, prefix):
            d.engine.append(EngineWeight(f"rollout_rs={mode}", OF[mode[:-3]], True, 1 / upper, 1 / lower))
        if lower is not None and not lower < 1 < upper:
            d.closed = d.gives_up[f"mask_open of condition {condition}"] = d.blame_outside(bounds)
    if any("_mean_" in mode for mode in modes):
        d.say("verl adds 1e-8 to the lengths of rows that it divides by, in the means of rollout_rs too.")
    return tuple(conditions), any(mode.startswith("token") for mode in modes)


def _condition(
    d: Draft,
    mode: str,
    lower: float | None,
    upper: float,
    log_ratio: Expression,
    left: Expression | None,
    several: bool,
) -> Expression:
    kind, level = mode[-2:], mode[:-3]
    least, most = (f"{mode}_least", f"{mode}_most") if several else ("least", "most")
    x = {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": exp(log_ratio) - 1 - log_ratio}[kind]
    if level == "seq_mean":
        x = mean_of(x, trajectory, left)
    elif level != "token":
        x = (total if level == "seq_sum" else largest)(_of(x, left), over=trajectory)
    if lower is not None:  # the statistic of k1 is -log ρ, between the logarithms of the bounds
        return _within(d, exp(x), least, 1 / upper, most, 1 / lower, f"{mode}_")
    return x <= d.parameter(most, upper, otherwise=f"{mode}_most")


def _of(formula: Expression, left: Expression | None) -> Expression:
    """A formula, and 0 at the tokens that are dropped."""
    return formula if left is None else where(left, formula, 0)


def _above(d: Draft, name: str, value: float, otherwise: str) -> Expression:
    """An upper bound: a parameter above 1, or the number."""
    return d.parameter(name, value, lower=1, otherwise=otherwise) if value > 1 else as_expression(value, name)


def _within(d: Draft, rho: Expression, least: str, lower: float, most: str, upper: float, otherwise: str) -> Expression:
    """Whether a ratio is between two bounds, called `least` and `most`. A lower one below 1 is a parameter."""
    is_below = lower < 1
    low = d.parameter(least, lower, upper=1, otherwise=f"{otherwise}least") if is_below else as_expression(lower, least)
    return (rho >= low) & (rho <= _above(d, most, upper, f"{otherwise}most"))


# ---------------------------------------------------------------- thresholds


def _parts(value: object) -> list[str]:
    return [part.strip() for part in str(value).split(",") if part.strip()]


def _thresholds(d: Draft, name: str, modes: list[str]) -> list[tuple[float | None, float]]:
    """The bounds of each mask. One threshold is that of all; a single bound of k1 has its inverse below."""
    if d.options.raw(name) is None:
        raise d.options.refusal(name, "a threshold, since rollout_rs is set", f"{name}=0.5_2.0")
    texts = _parts(d.options.raw(name))
    if len(texts) not in (1, len(modes)):
        raise d.options.refusal(name, f"one threshold, or {len(modes)}: one for each of {', '.join(modes)}")
    bounds: list[tuple[float | None, float]] = []
    for mode, text in zip(modes, texts * len(modes) if len(texts) == 1 else texts, strict=True):
        found = _numbers(d, name, text)
        if len(found) == 2 and not mode.endswith("k1"):
            raise d.options.refusal(name, f"one upper bound for {mode}")
        lower = found[0] if len(found) == 2 else 1 / found[0]
        if mode.endswith("k1") and lower > found[-1]:
            raise d.options.refusal(name, f"for {mode} an upper bound of 1 or more, whose inverse is the lower one")
        bounds.append((lower if mode.endswith("k1") else None, found[-1]))
    return bounds


def _numbers(d: Draft, name: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split("_", 1))
    except ValueError:
        found = ()
    if not found or isinstance(d.options.raw(name), bool) or not all(1e-300 <= x <= 1e300 for x in found):
        raise d.options.refusal(name, 'a number above 0, or two as "0.5_2.0"')
    if found[0] > found[-1]:
        raise d.options.refusal(name, "a lower bound that is at most the upper one")
    return found


# ---------------------------------------------------------------- policy losses


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
