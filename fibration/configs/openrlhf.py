"""The loss that a config of OpenRLHF trains, as `PolicyLoss` and the experience maker of OpenRLHF 0.11.0 compute it."""

from __future__ import annotations

from typing import Any

from fibration.configs.draft import (
    Draft,
    batch,
    clip_gate,
    estimated_kl,
    generalised_advantage,
    prompt_group,
    token,
    trajectory,
)  # fmt: skip
from fibration.configs.findings import ERROR, NOTE, WARNING
from fibration.configs.options import Option, Options, Table, TrainerLoss, Unfit, flattened, read_table
from fibration.configs.sampling import EngineWeight, Setting, find_sampling, sequence_clip
from fibration.language.atoms import Attribute, count, reward
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression
from fibration.language.gates import log_ratio, zero_gate
from fibration.language.objectives import Penalty, token_mean, trajectory_mean
from fibration.language.operators import clip, exp, maximum, minimum, sqrt
from fibration.language.statistics import after, centred, mean, standardised
from fibration.language.strata import Fibration, uniform

current, old, rollout, reference = policies("current old rollout reference")
MOST = 10.0  # OpenRLHF cuts estimators of a divergence at ±10
EPSILON = 1e-9  # beside deviations of groups
LEAST_VARIANCE = 1e-8  # of advantages of tokens
OF_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
WHITENED = ("gae", "reinforce", "reinforce_baseline")
REST = "baseline of what is left of advantages"  # not decided for formulas that are divided twice
PER_TOKEN = "Rewards are per token [B, T]: the reward of an answer is on its last token, and 0 on the others."


def _pair(value: Any, option: Option) -> tuple[float, float] | None:
    """Two numbers."""
    if value is None and option.default is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise Unfit("two numbers")
    try:
        first, second = (float(each) for each in value)
    except (TypeError, ValueError):
        raise Unfit("two numbers") from None
    if not all(abs(each) <= 1e300 for each in (first, second)):
        raise Unfit("two numbers of a size that float64 holds")
    return first, second


TABLE = Table(read_table("openrlhf"), {"pair": _pair})


def hierarchy_of(config: Any) -> TrainerLoss:
    """Returns the loss that `openrlhf.cli.train_ppo_ray` trains with a config, and what OpenRLHF does around it.

    `config`: a mapping of its options, nested or with dotted names such as `algo.kl.init_coef`. OpenRLHF need not be
    installed. Raises SpecError for an option that is not known, and for a value that OpenRLHF refuses or that cannot be
    declared.
    """
    o = Options(TABLE, flattened(config))
    d = Draft(o)
    by_sequence = o["policy_loss_type"] == "gspo"
    _clip(d, by_sequence)
    weights = _correction(d, by_sequence)
    beta, kind = o["init_coef"], o["kl.estimator"]
    use_loss = o["use_loss"]
    if beta > 0 and use_loss:
        _kl_loss(d, kind, beta, by_sequence)
    _advantages(d, kind, 0 if use_loss else beta)
    _around(d, weights)
    return d.loss("openrlhf" + "_sequence" * by_sequence)


def _clip(d: Draft, by_sequence: bool) -> None:
    o = d.options
    name = "eps_clip" if o.raw("eps_clip_low_high") is None else "eps_clip_low_high"
    low, high = (o[name], o[name]) if name == "eps_clip" else o[name]
    if min(low, high) <= 0:
        raise o.refusal(name, "numbers above 0: how far the ratio may be below and above 1")
    gate = clip_gate(low, high, o["dual_clip"], logs=by_sequence)
    if not by_sequence:
        d.gates = {token: gate}
        d.say("OpenRLHF cuts the log ratio at ±20 before it exponentiates: a token beyond has no gradient there.")
        return
    said = f"{o.said(name)} with policy_loss_type=gspo"
    o.findings += sequence_clip(said, low, high, "actor.eps_clip_low_high=[0.0003,0.0004]")
    d.gates, d.fibrations = {trajectory: gate, token: zero_gate()}, (Fibration(token, trajectory, kernel=uniform()),)
    d.decomposition = log_ratio(scale=1 / count(token, over=trajectory))
    d.objective = trajectory_mean()
    lost = "one ratio per answer, and what its tokens do beside it is lost"
    d.gives_up["first_order"] = o.brief("policy_loss_type", lost)
    d.say("OpenRLHF adds 1e-8 to the lengths of rows that it divides by.")


def _correction(d: Draft, by_sequence: bool) -> list[EngineWeight]:
    """Weights and masks of the probability of a token at the trainer, by that at vLLM."""
    o = d.options
    if not o["is_correction_enable"]:
        return []
    if by_sequence:
        d.say(
            "is_correction_enable with policy_loss_type=gspo: ratios are to vLLM's log-probs, so that `old` of the "
            "hierarchy is the policy of vLLM."
        )
        return [EngineWeight("the ratio", "mean", masks=False)]
    kind, (low, high) = o["is_correction_type"], o["is_correction_threshold"]
    name = TABLE.full["is_correction_threshold"]
    if not 0 < low <= high:
        raise o.refusal(name, "two numbers above 0, the lower one first")
    least = d.parameter("least", low, upper=1) if low < 1 else low
    most = d.parameter("most", high, lower=1) if high > 1 else high
    apart = log_prob(old) - log_prob(rollout)
    rho, closed, said = exp(apart), "", f"is_correction_type={kind}"
    if not low < 1 < high and (kind != "tis" or not low <= 1 <= high):
        what = "the weight is not 1" if kind == "tis" else "tokens are dropped"
        closed = d.say(
            o.brief(name, f"1 does not lie inside: {what} where vLLM and the trainer agree"), ERROR, f"{name}=[0.5,5.0]"
        )
    if kind == "tis":
        d.weigh(minimum(maximum(rho, least), most), agreement=closed)
        return [EngineWeight(said, "token", False, low, high)]
    d.weigh(rho)
    if kind == "icepop":
        d.keep((rho >= least) & (rho <= most), mask_open=closed)
        return [EngineWeight(said, "token", True, low, high)]
    whole = exp(mean(apart, over=trajectory))
    dropped = f"{said}: an answer is dropped whole"
    d.keep((whole >= least) & (whole <= most), causal=dropped, mask_open=closed)
    return [EngineWeight(said, "token", False), EngineWeight(said, "mean", True, low, high)]


def _divergence(kind: str, x: Expression) -> Expression:
    return clip(x, -MOST, MOST) if kind == "k1" else minimum(estimated_kl(kind, x), MOST)


def _kl_loss(d: Draft, kind: str, beta: float, by_sequence: bool) -> None:
    """`algo.kl.use_loss`. Its mean is always over tokens."""
    term = d.parameter("beta", beta) * _divergence(kind, log_prob(current) - log_prob(reference))
    d.penalties["kl"] = Penalty(term, objective=token_mean()) if by_sequence else term  # type: ignore[assignment]
    wrong = {
        "k1": (ERROR, "its expected gradient is 0 on policy, so that it does not keep the policy near the reference"),
        "k2": (NOTE, f"OpenRLHF cuts it at {MOST:g}, where its gradient ends"),
        "k3": (WARNING, "its gradient is that of the other divergence, KL(reference‖current)"),
    }
    severity, why = wrong[kind]
    said = d.say(f"algo.kl.estimator={kind} with use_loss: {why}", severity, "algo.kl.estimator=k2" * (kind != "k2"))
    d.gives_up |= {"kl_gradient of kl": said, "kl_gradient of what is left of kl": said}


# ---------------------------------------------------------------- advantages


def _advantages(d: Draft, kind: str, beta: float) -> None:
    o = d.options
    estimator, answers, (low, high) = o["advantage.estimator"], o["n_samples_per_prompt"], o["clip_range"]
    if low > high:
        raise o.refusal("clip_range", "two numbers, the lower one first")
    if estimator in OF_GROUPS and answers < 2:
        required = f"2 or more, as OpenRLHF requires with {o.said('advantage.estimator')}"
        raise o.refusal("n_samples_per_prompt", required, "rollout.n_samples_per_prompt=8")
    score: Expression = reward
    if estimator == "group_norm":
        score = standardised(reward, over=prompt_group, epsilon=EPSILON)
        why = "groups whose rewards differ less count for more"
        d.gives_up["baseline"] = o.brief("algo.advantage.estimator", why)
    elif estimator in OF_GROUPS:
        score = centred(reward, over=prompt_group, leave_one_out=estimator == "rloo")
    if estimator in OF_GROUPS:
        score = clip(score, low, high)
        d.gives_up["baseline"] = (
            f"reward.clip_range=[{low:g}, {high:g}]: rewards are cut after their baseline is subtracted"
        )
    else:
        d.groups = ()
        d.say(f"reward.clip_range: `reward` is what the reward function gives, cut to [{low:g}, {high:g}].")
    kl = None
    if beta > 0:
        kl = d.parameter("beta", beta) * _divergence(kind, log_prob(old) - log_prob(reference))
    rest = ""
    gamma, lam = (_discount(d, name) for name in ("gamma", "lambd"))
    if estimator in ("gae", "reinforce") and (estimator == "gae" or gamma != 1):
        d.say(PER_TOKEN)
        of_token = score if kl is None else score - kl
        if estimator == "gae":
            if lam == 0 and gamma != 0:
                raise o.refusal("lambd", "a number above 0: at 0 an advantage is one step of the next value")
            d.say(
                "gae: the attribute 'value' of a token is what the critic says of it. The critic's own loss is no part."
            )
            value = Attribute("value", on=token, positive=False)
            d.advantages = generalised_advantage(of_token, value, gamma, lam)
            rest = "sums of rewards and values" if gamma != 0 else ""
        else:
            d.advantages = of_token if gamma == 0 else of_token + after(of_token, over=trajectory, discount=gamma)
            rest = "discounted sums" if gamma != 0 else ""
    else:
        if gamma != 1:
            d.say(f"{o.said('gamma')} has no effect with {o.said('advantage.estimator')}: OpenRLHF takes 1.", WARNING)
        d.advantages = score if kl is None else score - (kl + after(kl, over=trajectory))
        if kl is not None and estimator == "reinforce_baseline" and not o["no_std_norm"]:
            why = "a reward is cut after its baseline is subtracted, and divided by a deviation with the KL terms"
            d.gives_up["baseline of what is left of hierarchy"] = o.brief("algo.advantage.estimator", why)
    if estimator in WHITENED:
        _whiten(d, rest)


def _discount(d: Draft, name: str) -> Expression | float:
    """0 and 1 are numbers, since bounds of parameters are strict."""
    value = d.options[name]
    return int(value) if value in (0, 1) else d.parameter({"lambd": "lam"}.get(name, name), value, upper=1)


def _whiten(d: Draft, rest: str) -> None:
    """Advantages minus their mean over tokens, and divided by their deviation unless `no_std_norm` is set."""
    o, given = d.options, d.advantages
    assert given is not None
    d.say(
        "Advantages are normalised over the tokens of all rows that OpenRLHF sampled for a training step; here over "
        "those of the batch at hand."
    )
    centre = given - mean(given, over=batch)
    why = "the mean over all tokens"
    if not o["no_std_norm"]:
        variance = mean(centre**2, over=batch)
        centre, why = centre / sqrt(maximum(variance, LEAST_VARIANCE)), "a mean and a deviation of all tokens"
        if rest:
            d.gives_up[REST] = o.brief("algo.advantage.estimator", f"{rest}, divided by their deviation")
    d.gives_up["baseline"] = o.brief("algo.advantage.estimator", f"{why}, the answer's own among them")
    d.advantages = centre


# ---------------------------------------------------------------- around the loss


def _around(d: Draft, weights: list[EngineWeight]) -> None:
    o = d.options
    prompts, answers, size, epochs = (
        o[name] for name in ("rollout.batch_size", "n_samples_per_prompt", "train.batch_size", "max_epochs")
    )
    rows = prompts * answers
    steps = rows // size * epochs
    options = (
        f"rollout.batch_size={prompts}, n_samples_per_prompt={answers}, train.batch_size={size}, max_epochs={epochs}"
    )
    to_engine = o["is_correction_enable"] and o["policy_loss_type"] == "gspo"  # ratios, 1 where both agree
    if steps <= 1 and not to_engine:
        d.say(
            f"{rows} sampled rows take at most one optimizer step ({options}): all ratios are 1 up to rounding, so "
            "that no clip ever acts."
        )
    elif steps > 1:
        d.say(
            f"{rows} sampled rows take {steps} optimizer steps ({options}): in the last, the policy is {steps - 1} "
            f"{'step' if steps == 2 else 'steps'} away from the one that sampled."
        )
    heat = o["rollout.temperature"]
    settings = {name: Setting(f"rollout.{name}", o[f"rollout.{name}"]) for name in ("temperature", "top_p")}
    for weight in weights or (None,):
        o.findings += find_sampling(settings, heat, weight)
    for name in ("max_new_tokens", "partial_rollout_enable"):
        o[name]
    o.say_table()
    o.say_unread(f"{o.said('policy_loss_type')}, {o.said('advantage.estimator')}", ("dynamic_filtering_range",))
