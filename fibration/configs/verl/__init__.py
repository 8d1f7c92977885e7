"""A config of verl 0.9.1 as a hierarchy: what `ppo_loss` trains with these options, and what verl does around it.

`options.py`: which options touch the loss, and their defaults. `losses.py`: `policy_loss.loss_mode`. `corrections.py`:
`rollout_correction`. `estimators.py`: `algorithm.adv_estimator`. This module puts them together, with `loss_agg_mode`
and the KL loss.
"""

from __future__ import annotations

from typing import Any

from fibration.configs.findings import ERROR, NOTE, WARNING, Finding, all_findings
from fibration.configs.options import TrainerLoss
from fibration.configs.parts import counted, estimated_kl, together, token, trajectory
from fibration.configs.verl.around import NORM, SCALE, say_around
from fibration.configs.verl.corrections import Weights, masks, weights
from fibration.configs.verl.draft import Draft
from fibration.configs.verl.estimators import K3_MOST, advantages, kl_kind
from fibration.configs.verl.losses import LOSSES, MODE, OF_ROWS, ROW_MEAN, gpg, in_rows, vanilla
from fibration.configs.verl.options import ACTOR, CORRECTION, OWN_CORRECTION, POLICY_LOSS, ROLLOUT, options_of
from fibration.language.atoms import count, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import where
from fibration.language.penalties import Penalty
from fibration.language.policies import log_prob, policies

__all__ = ["hierarchy_of"]

current, old, rollout, reference = policies("current old rollout reference")
BYPASS, OURS = "bypass_mode", "fibration"
LOSS_TYPES = ("ppo_clip", "reinforce")
MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", ROW_MEAN, NORM)
# Names of parameters that a policy loss needs, which a correction must not take.
TAKEN = {
    **dict.fromkeys(("vanilla", "dppo_tv", "dppo_kl", BYPASS), frozenset(("ceiling",))),
    "clip_cov": frozenset(("least", "most")),
}
WRONG_KL = {
    "k1": (ERROR, "its expected gradient is 0 on policy, so that it does not keep the policy near the reference"),
    "abs": (WARNING, "its gradient is the sign of the log ratio, which is the gradient of no divergence"),
    "k3": (WARNING, "its gradient is that of the other divergence, KL(reference‖current)"),
}

LEFT_IN_ROW = "rollout_rs: a row is divided by the tokens that are left in it"
LEFT_OF_KL = {  # the rest of the law is not decided for these
    "abs": "its gradient is beta above the reference and -beta below it",
    "k3": f"verl cuts it at {K3_MOST:g}, where its gradient ends",
}


def hierarchy_of(config: Any) -> TrainerLoss:
    """The loss that verl 0.9.1 trains with a config, with the config's numbers as its parameters' defaults.

    `config`: a mapping, nested or with dotted names such as `algorithm.adv_estimator`, or an OmegaConf `DictConfig`.
    Options that it lacks have verl's defaults. verl need not be installed.

    `around` of the result says what verl does beside the hierarchy, a sentence each. Raises SpecError for an option
    that is not known, and for a value that verl refuses or that no hierarchy can say.
    """
    d = Draft(options_of(config))
    mode = _loss_mode(d)
    d.reserved = TAKEN.get(mode, frozenset())
    sampled = _correction(d, mode)
    own, inner = _policy_loss(d, mode)
    aggregation = d.options.choice(f"{ACTOR}loss_agg_mode", MEANS)
    mean = d.mean or aggregation
    objective = _objective(d, mean, sampled, own, inner)
    _terms_of_the_loss(d, mean, sampled)
    _kl_loss(d, mean, aggregation)
    formula, groups = advantages(d)
    say_around(d, mean)
    hierarchy = Hierarchy(
        name="verl",
        fibrations=d.fibrations,
        gates=d.gates,
        decomposition=d.decomposition,
        objective=objective,
        groups=groups,
        advantages=formula,
        penalties=d.penalties,
        gives_up=d.gives_up,
    )
    choices = [Finding(NOTE, why) for why in d.gives_up.values()]
    return TrainerLoss(hierarchy, all_findings(d.gives_up, [*choices, *d.options.findings]))


def _loss_mode(d: Draft) -> str:
    """The policy loss that verl calls."""
    if d.options.flag("distillation.enabled"):
        raise d.options.refusal("distillation.enabled", "false: distillation has a loss of its own, from a teacher")
    if d.options[MODE] == OURS:
        raise d.options.refusal(
            MODE,
            "a loss of verl: this one is the hierarchy itself",
            f"fibration show {d.options[f'{POLICY_LOSS}hierarchy'] or 'HIERARCHY'}",
        )
    return d.options.choice(MODE, [*LOSSES, BYPASS])


def _correction(d: Draft, mode: str) -> Weights | None:
    """The weights and masks that verl makes of rollout log-probs before it trains on a batch."""
    asked = [n for n in ("rollout_is", "rollout_rs") if d.options[f"{CORRECTION}{n}"] is not None]
    loss_type = d.options.choice(f"{CORRECTION}loss_type", LOSS_TYPES) != "ppo_clip"
    if d.options.flag(f"{CORRECTION}bypass_mode"):
        d.say(
            "bypass_mode: old_log_probs are those of the rollout engine, so that ratios are to the policy that sampled."
        )
        if asked or loss_type:
            d.say(
                "rollout_is, rollout_rs and loss_type have no effect: with bypass_mode=true verl 0.9.1 takes the loss "
                "of policy_loss.loss_mode (trainer.use_v1=false changes it after the workers have read it). "
                "policy_loss.loss_mode=bypass_mode reads policy_loss.rollout_correction.",
                WARNING,
                "" if mode == BYPASS else f"{MODE}={BYPASS}",
            )
        return None
    if loss_type:
        d.say(f"{d.known(f'{CORRECTION}loss_type')} has no effect.", WARNING)
    if asked and not d.options.flag(f"{ROLLOUT}calculate_log_probs"):
        d.say(
            f"{' and '.join(asked)} have no effect: with {ROLLOUT}calculate_log_probs=false verl has no log-probs of "
            "the engine.",
            ERROR,
            f"{ROLLOUT}calculate_log_probs=true",
        )
        return None
    log_ratio = log_prob(old) - log_prob(rollout)
    d.kept, d.by_token = masks(d, CORRECTION, log_ratio)
    if mode == BYPASS and "rollout_is" in asked:
        d.say(
            f"{d.known(f'{CORRECTION}rollout_is')} has no effect: loss_mode=bypass_mode has the weights of "
            "policy_loss.rollout_correction alone.",
            WARNING,
            f"{CORRECTION}rollout_is=null",
        )
        return None
    return weights(d, CORRECTION, log_ratio)


def _policy_loss(d: Draft, mode: str) -> tuple[Weights | None, tuple[tuple[Expression, ...], bool]]:
    """Reads the policy loss into `d`. Returns the weights and masks that `bypass_mode` makes of current log-probs."""
    if d.mask is not None and (mode == "kl_cov" or (d.by_token and mode in OF_ROWS)):
        does = (
            "counts the tokens that are left"
            if mode == "kl_cov"
            else "takes means of the tokens that are left in a row"
        )
        required = f"null with loss_mode={mode}, which {does}: no word says that"
        raise d.options.refusal(f"{CORRECTION}rollout_rs", required)
    if mode != BYPASS:
        LOSSES[mode](d)
        return None, ((), False)
    prefix, left = OWN_CORRECTION, d.mask if d.by_token else None
    kind, own = d.options.choice(f"{prefix}loss_type", LOSS_TYPES), None
    if kind == "ppo_clip":
        vanilla(d)
        if d.options[f"{prefix}rollout_is"] is not None:
            d.say("loss_type=ppo_clip: the weights of rollout_is are logged and not applied.")
    else:
        gpg(d, f"{prefix}loss_type")
        own = weights(d, prefix, token_log_ratio, left)
    return own, masks(d, prefix, token_log_ratio, left)


# ---------------------------------------------------------------- weights of tokens


def _reduction(d: Draft, mean: str) -> Objective:
    """`agg_loss` over a whole mini-batch on all ranks."""
    if mean == NORM:
        factor = d.options.number_or_none(SCALE)
        if factor is None:
            factor = d.options.number("data.max_response_length")
            d.say(
                "loss_scale_factor=null: verl divides each micro-batch by its own width, its longest response. So its "
                "micro-batches do not add up to one loss, and their scale changes from step to step. Here the number "
                f"is {factor:g}, data.max_response_length{d.default('data.max_response_length')}. "
                f"loss_scale_factor={factor:g} makes verl divide by it.",
                WARNING,
                f"{SCALE}={factor:g}",
            )
        if factor <= 0:
            raise d.options.refusal(SCALE, "a number of tokens, above 0")
        return constant_normaliser(d.parameter("length", factor))
    if mean == "token-mean":
        return token_mean()
    if mean == "token-sum":
        return Objective(1)
    return trajectory_mean() if mean == ROW_MEAN else constant_normaliser(1)


def _objective(
    d: Draft, mean: str, sampled: Weights | None, own: Weights | None, inner: tuple[tuple[Expression, ...], bool]
) -> Objective:
    objective = _kept(d, mean)
    if d.is_score:
        objective = objective.score()
    if d.condition is not None:
        objective = objective.keep(d.condition)
    for each in (sampled, own):
        if each is not None:
            objective = _weighed(d, objective, each)
    for condition in inner[0]:
        objective = objective.keep(condition)
    if mean == ROW_MEAN and (d.by_token or inner[1]):
        share = _per_kept((*d.kept, *inner[0]))
        objective = objective.weigh(share)
        d.gives_up[f"causal of weight {share}"] = LEFT_IN_ROW
        if d.closed:
            d.gives_up[f"agreement of weight {share}"] = d.closed
    return objective


def _kept(d: Draft, mean: str) -> Objective:
    """`agg_loss` of what `rollout_rs` leaves. The older trainers count the tokens that are left, v1 all."""
    objective = _reduction(d, mean)
    for condition in d.kept:
        objective = objective.keep(condition, "kept" if d.is_legacy and mean == "token-mean" else "all")
    return objective


def _weighed(d: Draft, objective: Objective, each: Weights) -> Objective:
    formula = each.formula
    if d.weighs_rows:
        formula = in_rows(formula, each.condition)
        d.say("geo_mean adds 1e-10 to weights before it takes their logarithm.")
        if each.scaled:
            d.gives_up[f"agreement of weight {formula}"] = each.scaled
        d.give_up(f"causal of weight {formula}", MODE, "a row has the geometric mean of its tokens' weights")
        return objective.weigh(formula)
    if each.why:
        d.gives_up[f"causal of weight {formula}"] = each.why
    objective, condition = objective.weigh(formula), each.condition
    if each.scaled:
        what = f"agreement of weight {formula}" if condition is None else f"mask_open of condition {condition}"
        d.gives_up[what] = each.scaled
    if condition is not None and each.of_rows:
        d.gives_up[f"causal of condition {condition}"] = "rollout_is=sequence: a row is dropped whole"
    return objective if condition is None else objective.keep(condition)


def _per_kept(conditions: tuple[Expression, ...]) -> Expression:
    """The tokens of a row, for each of those that are left in it."""
    return count(token, over=trajectory) / counted(together(conditions), trajectory)


# ---------------------------------------------------------------- penalties


def _terms_of_the_loss(d: Draft, mean: str, sampled: Weights | None) -> None:
    """Weights and masks reach the terms that a policy loss has of its own."""
    for name, term in d.penalties.items():
        if sampled is not None:
            weighed = sampled.formula * term
            term = weighed if sampled.condition is None else where(sampled.condition, weighed, 0)
        d.penalties[name] = _masked(d, term, mean)
        if name == "square" and (sampled is not None or d.mask is not None):
            for law in ("kl_gradient of square", "kl_gradient of what is left of square"):
                d.give_up(law, MODE, "the square has the weight and the mask of rollout_correction")


def _masked(d: Draft, term: Expression, mean: str) -> Expression:
    if d.mask is None:
        return term
    return where(d.mask, term * _per_kept(d.kept) if d.by_token and mean == ROW_MEAN else term, 0)


def _kl_loss(d: Draft, mean: str, aggregation: str) -> None:
    name, size = f"{ACTOR}kl_loss_type", f"{ACTOR}kl_loss_coef"
    if not d.options.flag(f"{ACTOR}use_kl_loss"):
        return
    kind, coef = kl_kind(d, name), d.options.number(size)
    if coef == 0:
        d.say("kl_loss_coef=0: verl computes the KL loss and subtracts nothing.", WARNING)
        return
    x = log_prob(current) - log_prob(reference)
    beta = d.parameter("beta", coef, otherwise="kl_loss_coef")
    term = beta * x**2 / 2 if kind == "k2" else beta * estimated_kl(kind, x, K3_MOST)  # as `grpo_k2` writes it
    term = _masked(d, term, aggregation)
    d.penalties["kl"] = term if mean == aggregation else Penalty(term, objective=_kept(d, aggregation))  # type: ignore[assignment]
    if kind == "abs":
        d.say("Where a log-prob equals the reference's exactly, the slope of kl_loss_type=abs is 0 in verl.")
    main, rest = "kl_gradient of kl", "kl_gradient of what is left of kl"
    if coef < 0:
        why = "a penalty below 0 drives the policy away from the reference"
        laws = (main,) if kind == "k1" and d.mask is None else (main, rest)  # such a k1 has no gradient to turn
        d.gives_up |= dict.fromkeys(laws, d.blame(size, why, ERROR, f"{size}={-coef:g}"))
        return
    if kind in WRONG_KL:
        severity, why = WRONG_KL[kind]
        d.gives_up[main] = f"kl_loss_type={d.options[name]} ({kind}) in the loss: {why}"
        d.say(d.gives_up[main], severity, f"{name}=mse")
    elif d.by_token and aggregation == ROW_MEAN:
        d.gives_up |= dict.fromkeys((main, rest), LEFT_IN_ROW)
    if kind == "k1" and d.mask is not None:
        d.gives_up[rest] = "rollout_rs drops tokens of the KL loss, by what was sampled"
    elif kind in LEFT_OF_KL:
        d.gives_up[rest] = f"kl_loss_type={d.options[name]} ({kind}): {LEFT_OF_KL[kind]}"
