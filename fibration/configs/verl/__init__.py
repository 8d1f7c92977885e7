"""A config of verl 0.9.1 as a hierarchy: what `ppo_loss` trains with these options, and what verl does around it.

`options.py`: which options touch the loss, and their defaults. `losses.py`: `policy_loss.loss_mode`,
`rollout_correction`. `estimators.py`: `algorithm.adv_estimator`. This module puts them together, with `loss_agg_mode`,
the KL loss, and what surrounds the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fibration.configs.draft import counted, estimated_kl, together, token, trajectory
from fibration.configs.findings import ERROR, WARNING
from fibration.configs.options import Option, TrainerLoss, written
from fibration.configs.sampling import Setting, answer_weight, find_sampling
from fibration.configs.verl.estimators import K3_MOST, set_advantages
from fibration.configs.verl.losses import (
    LOSSES,
    OF_ROWS,
    ROW_MEAN,
    Draft,
    Weights,
    gpg,
    in_rows,
    masks,
    vanilla,
    weights,
)  # fmt: skip
from fibration.configs.verl.options import (
    ACTOR,
    ALGORITHM,
    CORRECTION,
    OWN_CORRECTION,
    POLICY_LOSS,
    ROLLOUT,
    options_of,
)
from fibration.language.atoms import count, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression
from fibration.language.objectives import Objective, Penalty, constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import where

__all__ = ["hierarchy_of"]

current, old, rollout, reference = policies("current old rollout reference")
MODE, BYPASS, OURS = f"{POLICY_LOSS}loss_mode", "bypass_mode", "fibration"
NORM = "seq-mean-token-sum-norm"
PROCESSED = f"{ROLLOUT}logprobs_mode=processed_logprobs"
# Options that another part of verl reads.
NOT_OF_LOSSES = (
    "max_response_length", "train_batch_size", "trainer_mode", "filter_groups.metric", "calculate_log_probs",
    "hierarchy",
)  # fmt: skip
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
Inner = tuple[tuple[Expression, ...], bool]  # the conditions of a policy loss's own masks, and whether they cut rows


def hierarchy_of(config: Any) -> TrainerLoss:
    """The loss that verl 0.9.1 trains with a config, with the config's numbers as its parameters' defaults.

    `config`: a mapping, nested or with dotted names such as `algorithm.adv_estimator`, or an OmegaConf `DictConfig`.
    Options that it lacks have verl's defaults. verl need not be installed.

    `around` of the result says what verl does beside the hierarchy, a sentence each. Raises SpecError for an option
    that is not known, and for a value that verl refuses or that no hierarchy can say.
    """
    o = options_of(config)
    d = Draft(o)
    if o["distillation.enabled"]:
        raise o.refusal("distillation.enabled", "false: distillation has a loss of its own, from a teacher")
    if o.raw(MODE) == OURS:
        remedy = f"fibration show {o['hierarchy'] or 'HIERARCHY'}"
        raise o.refusal(MODE, "a loss of verl: this one is the hierarchy itself", remedy)
    mode = o.read(MODE, Option("choice", of=(*LOSSES, BYPASS)))
    d.reserved = TAKEN.get(mode, frozenset())
    sampled = _correction(d, mode)
    own, inner = _policy_loss(d, mode)
    aggregation = o["loss_agg_mode"]
    mean = d.mean or aggregation
    d.objective = _kept(d, mean)
    _weigh(d, mean, [each for each in (sampled, own) if each is not None], inner)
    _terms_of_the_loss(d, mean, sampled)
    _kl_loss(d, mean, aggregation)
    set_advantages(d)
    _say_around(d, mean)
    return d.loss("verl")


def _correction(d: Draft, mode: str) -> Weights | None:
    """The weights and masks that verl makes of rollout log-probs before it trains on a batch."""
    o = d.options
    asked = [n for n in ("rollout_is", "rollout_rs") if o.raw(f"{CORRECTION}{n}") is not None]
    loss_type = o[f"{CORRECTION}loss_type"] != "ppo_clip"
    if o["bypass_mode"]:
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
        d.say(f"{o.said(f'{CORRECTION}loss_type')} has no effect.", WARNING)
    if asked and not o["calculate_log_probs"]:
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
            f"{o.said(f'{CORRECTION}rollout_is')} has no effect: loss_mode=bypass_mode has the weights of "
            "policy_loss.rollout_correction alone.",
            WARNING,
            f"{CORRECTION}rollout_is=null",
        )
        return None
    return weights(d, CORRECTION, log_ratio)


def _policy_loss(d: Draft, mode: str) -> tuple[Weights | None, Inner]:
    """Reads the policy loss into `d`. Returns the weights and masks that `bypass_mode` makes of current log-probs."""
    o = d.options
    if d.mask is not None and (mode == "kl_cov" or (d.by_token and mode in OF_ROWS)):
        does = (
            "counts the tokens that are left"
            if mode == "kl_cov"
            else "takes means of the tokens that are left in a row"
        )
        raise o.refusal(f"{CORRECTION}rollout_rs", f"null with loss_mode={mode}, which {does}: no word says that")
    if mode != BYPASS:
        LOSSES[mode](d)
        return None, ((), False)
    prefix, left, own = OWN_CORRECTION, d.mask if d.by_token else None, None
    if o[f"{prefix}loss_type"] == "ppo_clip":
        vanilla(d)
        if o.raw(f"{prefix}rollout_is") is not None:
            d.say("loss_type=ppo_clip: the weights of rollout_is are logged and not applied.")
    else:
        gpg(d, f"{prefix}loss_type")
        own = weights(d, prefix, token_log_ratio, left)
    return own, masks(d, prefix, token_log_ratio, left)


# ---------------------------------------------------------------- weights of tokens


def _reduction(d: Draft, mean: str) -> Objective:
    """`agg_loss` over a whole mini-batch on all ranks."""
    if mean == NORM:
        o = d.options
        if (factor := o["loss_scale_factor"]) is None:
            factor = o["max_response_length"]
            default = "" if o.is_given("max_response_length") else " (the default)"
            d.say(
                "loss_scale_factor=null: verl divides each micro-batch by its own width, its longest response. So its "
                "micro-batches do not add up to one loss, and their scale changes from step to step. Here the number "
                f"is {factor:g}, data.max_response_length{default}. "
                f"loss_scale_factor={factor:g} makes verl divide by it.",
                WARNING,
                f"{ACTOR}loss_scale_factor={factor:g}",
            )
        return constant_normaliser(d.parameter("length", factor))
    if mean == "token-mean":
        return token_mean()
    if mean == "token-sum":
        return Objective(1)
    return trajectory_mean() if mean == ROW_MEAN else constant_normaliser(1)


def _kept(d: Draft, mean: str) -> Objective:
    """`agg_loss` of what `rollout_rs` leaves. The older trainers count the tokens that are left, v1 all."""
    objective = _reduction(d, mean)
    for condition in d.kept:
        objective = objective.keep(condition, "kept" if d.is_legacy and mean == "token-mean" else "all")
    return objective


def _weigh(d: Draft, mean: str, factors: Sequence[Weights], inner: Inner) -> None:
    """Puts the weights and masks of the policy loss into the objective."""
    if d.is_score:
        d.objective = d.objective.score()
    if d.condition is not None:
        d.keep(d.condition)
    for each in factors:
        condition = each.condition
        if d.weighs_rows:
            d.say("geo_mean adds 1e-10 to weights before it takes their logarithm.")
            why = d.options.brief(MODE, "a row has the geometric mean of its tokens' weights")
            d.weigh(in_rows(each.formula, condition), agreement=each.scaled, causal=why)
            continue
        d.weigh(each.formula, causal=each.why, agreement=each.scaled if condition is None else "")
        if condition is not None:
            dropped = "rollout_is=sequence: a row is dropped whole" if each.of_rows else ""
            d.keep(condition, mask_open=each.scaled, causal=dropped)
    for condition in inner[0]:
        d.keep(condition)
    if mean == ROW_MEAN and (d.by_token or inner[1]):
        d.weigh(_per_kept((*d.kept, *inner[0])), causal=LEFT_IN_ROW, agreement=d.closed)


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
    o = d.options
    if not o["use_kl_loss"]:
        return
    kind, coef = o["kl_loss_type"], o["kl_loss_coef"]
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
        name = f"{ACTOR}kl_loss_coef"
        why = d.blame(name, "a penalty below 0 drives the policy away from the reference", ERROR, f"{name}={-coef:g}")
        laws = (main,) if kind == "k1" and d.mask is None else (main, rest)  # such a k1 has no gradient to turn
        d.gives_up |= dict.fromkeys(laws, why)
        return
    said = f"kl_loss_type={written(o.raw('kl_loss_type'))} ({kind})"
    if kind in WRONG_KL:
        severity, why = WRONG_KL[kind]
        d.gives_up[main] = d.say(f"{said} in the loss: {why}", severity, f"{ACTOR}kl_loss_type=mse")
    elif d.by_token and aggregation == ROW_MEAN:
        d.gives_up |= dict.fromkeys((main, rest), LEFT_IN_ROW)
    if kind == "k1" and d.mask is not None:
        d.gives_up[rest] = "rollout_rs drops tokens of the KL loss, by what was sampled"
    elif kind in LEFT_OF_KL:
        d.gives_up[rest] = f"{said}: {LEFT_OF_KL[kind]}"


# ---------------------------------------------------------------- around the loss


def _say_around(d: Draft, mean: str) -> None:
    """Call it last: the options that nobody has read by then have no effect."""
    o = d.options
    prompts, answers = o["ppo_mini_batch_size"], o["n"]
    adds_up = not d.weighs_rows and not (mean == NORM and o["loss_scale_factor"] is None)
    d.say(
        f"An optimizer step is a mini-batch of {prompts} prompts with {answers} answers each, on all ranks."
        + " Its micro-batches add up to its loss, however they are cut." * adds_up
    )
    _say_steps(d, prompts)
    if mean.startswith("seq-mean") and not d.weighs_rows:
        d.say(
            f"verl divides by {prompts} × {answers} = {prompts * answers} rows, the size of a mini-batch, also where a "
            "row has no token, or where the last mini-batch has fewer rows; here empty rows do not count."
        )
    _say_sampling(d)
    if mean == ROW_MEAN:
        d.say("verl adds 1e-8 to the lengths of rows that it divides by.")
    if bonus := o["entropy_coeff"]:
        d.say(
            f"entropy_coeff={bonus:g} adds the exact entropy of each token's distribution to the objective, averaged "
            f"as {o.said('loss_agg_mode')}. It needs the whole vocabulary, so that the model has to add it."
        )
    if o["filter_groups.enable"]:
        d.say(
            f"filter_groups: groups of answers whose '{o['filter_groups.metric']}' are all equal are replaced before "
            "the loss sees them."
        )
    if d.kept:
        d.say("rollout_rs: advantages, the KL loss and the entropy bonus leave out the tokens that it drops too.")
    o.say_table()
    chosen = (
        o.said(name).removeprefix(at)
        for name, at in (("loss_mode", f"{ACTOR}policy_loss."), ("adv_estimator", ALGORITHM))
    )
    o.say_unread(" and ".join(chosen), NOT_OF_LOSSES)


def _say_sampling(d: Draft) -> None:
    """What answers are sampled from, and what the weights do where that is not the trainer's distribution."""
    o = d.options
    if (heat := o["rollout.temperature"]) != 1:
        d.say(f"rollout.temperature={heat:g}: all log-probs are those of logits divided by {heat:g}.")
    mode = o["logprobs_mode"]
    if mode.endswith("logits") and d.engine:
        d.say(f"{o.said('logprobs_mode')}: rollout_log_probs are logits, and no log-probs.", ERROR, PROCESSED)
    # SGLang's log-probs are taken after the temperature and before the cuts, whatever logprobs_mode says.
    is_sglang = o.given.get(f"{ROLLOUT}name") == "sglang"
    names = ("top_p", "top_k", "min_p", *["temperature"] * (not is_sglang or heat == 0))
    settings = {name: Setting(f"{ROLLOUT}{name}", o[name]) for name in names}
    for weight in d.engine or (None,):
        is_raw = is_sglang or mode == "raw_logprobs"
        o.findings += find_sampling(settings, 1.0 if is_sglang else heat, weight, is_raw, PROCESSED)
        if weight is not None and not weight.masks:
            option = weight.said.partition("=")[0]
            o.findings += answer_weight(weight, o["max_response_length"], f"{option}=token")


def _say_steps(d: Draft, mini_batch: int) -> None:
    """How many optimizer steps a batch of prompts takes, and how far the policy moves from the one that sampled."""
    o = d.options
    epochs, prompts, mode = o["ppo_epochs"], o["train_batch_size"], o["trainer_mode"]
    if not isinstance(mode, str):
        raise o.refusal("trainer_mode", "the name of a trainer")
    if prompts == 0 or d.is_async:
        d.say("async_training: answers are sampled while the policy trains, so that they may be of earlier weights.")
        return
    if d.is_legacy and prompts % mini_batch:
        raise o.refusal("train_batch_size", f"a multiple of ppo_mini_batch_size={mini_batch}, as verl does")
    steps, missing = -(-prompts // mini_batch) * epochs, -prompts % mini_batch
    bypass = o["bypass_mode"]
    first = (
        "ratios differ from 1 as far as engine and trainer disagree" if bypass else "all ratios are 1 up to rounding"
    )
    options = f"train_batch_size={prompts}, ppo_mini_batch_size={mini_batch}, ppo_epochs={epochs}"
    if steps == 1:
        d.say(f"A batch of {prompts} prompts takes one optimizer step ({options}): {first}.")
        if not bypass:
            d.say("No clip ever acts. A smaller ppo_mini_batch_size or ppo_epochs=2 makes more steps.")
    else:
        d.say(
            f"A batch of {prompts} prompts takes {steps} optimizer steps ({options}). In the first, {first}; in "
            f"the last, the policy is {steps - 1} {'step' if steps == 2 else 'steps'} away from the one that sampled."
        )
    if missing:
        d.say(f"verl fills {prompts} prompts up to {prompts + missing}, whole mini-batches, with rows without tokens.")
    if not d.is_legacy and mode != "sync":
        d.say(f"trainer_mode={mode}: answers may be of older weights, which ratios to old_log_probs do not count.")
