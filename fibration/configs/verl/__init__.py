"""A config of verl 0.9.1 as a hierarchy: what `ppo_loss` trains with these options, and what verl does around it.

`options.py`: which options touch the loss, and their defaults. `losses.py`: `policy_loss.loss_mode`. `corrections.py`:
`rollout_correction`. `estimators.py`: `algorithm.adv_estimator`. This module puts them together, with `loss_agg_mode`
and the KL loss.
"""

from __future__ import annotations

from typing import Any

from fibration.configs.findings import all_findings
from fibration.configs.options import TrainerLoss
from fibration.configs.parts import counted, estimated_kl, token, trajectory
from fibration.configs.verl.corrections import Weights, masks, weights
from fibration.configs.verl.draft import Draft, together
from fibration.configs.verl.estimators import K3_MOST, advantages, kl_kind
from fibration.configs.verl.losses import LOSSES, MODE, OF_ROWS, ROW_MEAN, gpg, in_rows, vanilla
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
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import where
from fibration.language.penalties import Penalty
from fibration.language.policies import log_prob, policies

__all__ = ["hierarchy_of"]

current, old, rollout, reference = policies("current old rollout reference")
BYPASS, OURS = "bypass_mode", "fibration"
NORM, SCALE = "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor"
MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", ROW_MEAN, NORM)
# Names of parameters that a policy loss needs, which a correction must not take.
TAKEN = {"vanilla": {"ceiling"}, "dppo_tv": {"ceiling"}, "dppo_kl": {"ceiling"}, "clip_cov": {"least", "most"}}
WRONG_KL = {
    "k1": "its expected gradient is 0 on policy, so that it does not keep the policy near the reference",
    "abs": "its gradient is the sign of the log ratio, which is the gradient of no divergence",
    "k3": "its gradient is that of the other divergence, KL(reference‖current)",
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
    legacy = not d.options.flag("trainer.use_v1") or any(n.startswith("async_training.") for n in d.options.given)
    mode = _loss_mode(d, legacy)
    d.names |= TAKEN.get(mode, set())
    sampled = _correction(d)
    own, inner = _policy_loss(d, mode, legacy)
    aggregation = d.options.choice(f"{ACTOR}loss_agg_mode", MEANS)
    mean = d.mean or aggregation
    objective = _objective(d, mean, sampled, own, inner, legacy)
    _terms_of_the_loss(d, mean, sampled)
    _kl_loss(d, mean, aggregation)
    formula, groups = advantages(d)
    _say_around(d, mean, legacy)
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
    return TrainerLoss(hierarchy, all_findings(d.gives_up, d.said))


def _loss_mode(d: Draft, legacy: bool) -> str:
    """The policy loss that verl calls."""
    name = MODE
    if d.options.flag("distillation.enabled"):
        raise d.options.refusal("distillation.enabled", "false: distillation has a loss of its own, from a teacher")
    if d.options[name] == OURS:
        raise d.options.refusal(
            name,
            "a loss of verl: this one is the hierarchy itself",
            f"fibration show {d.options[f'{POLICY_LOSS}hierarchy'] or 'HIERARCHY'}",
        )
    mode = d.options.choice(name, [*LOSSES, BYPASS])
    return BYPASS if legacy and d.options.flag(f"{CORRECTION}bypass_mode") else mode


def _correction(d: Draft) -> Weights | None:
    """The weights and masks that verl makes of rollout log-probs before it trains on a batch."""
    asked = [n for n in ("rollout_is", "rollout_rs") if d.options[f"{CORRECTION}{n}"] is not None]
    if d.options.flag(f"{CORRECTION}bypass_mode"):
        d.say(
            "bypass_mode: old_log_probs are those of the rollout engine, so that ratios are to the policy that sampled."
        )
        return None
    if asked and not d.options.flag(f"{ROLLOUT}calculate_log_probs"):
        d.say(
            f"{' and '.join(asked)} have no effect: with {ROLLOUT}calculate_log_probs=false verl has no log-probs of "
            "the engine."
        )
        return None
    log_ratio = log_prob(old) - log_prob(rollout)
    d.kept, d.by_token = masks(d, CORRECTION, log_ratio)
    return weights(d, CORRECTION, log_ratio)


def _policy_loss(d: Draft, mode: str, legacy: bool) -> tuple[Weights | None, tuple[tuple[Expression, ...], bool]]:
    """Reads the policy loss into `d`. Returns the weights and masks that `bypass_mode` makes of current log-probs."""
    if d.mask is not None and (mode == "kl_cov" or (d.by_token and mode in OF_ROWS)):
        why = (
            "counts the tokens that are left"
            if mode == "kl_cov"
            else "takes means of the tokens that are left in a row"
        )
        raise d.options.refusal(
            f"{CORRECTION}rollout_rs", f"null with loss_mode={mode}, which {why}: no word says that"
        )
    if mode != BYPASS:
        _say_unread(d, legacy)
        LOSSES[mode](d)
        return None, ((), False)
    prefix = CORRECTION if legacy and d.options.flag(f"{CORRECTION}bypass_mode") else OWN_CORRECTION
    kind = d.options.choice(f"{prefix}loss_type", ("ppo_clip", "reinforce"))
    if kind == "ppo_clip":
        d.names |= {"ceiling"}
        vanilla(d)
        if d.options[f"{prefix}rollout_is"] is not None:
            d.say("loss_type=ppo_clip: the weights of rollout_is are logged and not applied.")
        return None, masks(d, prefix, token_log_ratio)
    gpg(d, f"{prefix}loss_type")
    return weights(d, prefix, token_log_ratio), masks(d, prefix, token_log_ratio)


def _say_unread(d: Draft, legacy: bool) -> None:
    unread = [n for n in ("rollout_is", "rollout_rs") if d.options[f"{CORRECTION}{n}"] is not None]
    if (
        d.options.flag(f"{CORRECTION}bypass_mode")
        and not legacy
        and (unread or d.options[f"{CORRECTION}loss_type"] != "ppo_clip")
    ):
        d.say(
            "rollout_is, rollout_rs and loss_type have no effect: with trainer.use_v1=true and bypass_mode=true verl "
            "0.9.1 takes the loss of policy_loss.loss_mode. policy_loss.loss_mode=bypass_mode reads "
            "policy_loss.rollout_correction."
        )


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
                first=True,
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
    d: Draft,
    mean: str,
    sampled: Weights | None,
    own: Weights | None,
    inner: tuple[tuple[Expression, ...], bool],
    legacy: bool,
) -> Objective:
    objective = _reduction(d, mean)
    if d.is_score:
        objective = objective.score()
    if d.condition is not None:
        objective = objective.keep(d.condition)
    for each in (sampled, own):
        if each is not None:
            objective = _weighed(d, objective, each)
    for condition in d.kept:
        objective = objective.keep(condition, "kept" if legacy and mean == "token-mean" else "all")
    for condition in inner[0]:
        objective = objective.keep(condition)
    if mean == ROW_MEAN:
        for conditions, by_token in ((d.kept, d.by_token), inner):
            if by_token:
                share = _per_kept(conditions)
                objective = objective.weigh(share)
                d.gives_up[f"causal of weight {share}"] = LEFT_IN_ROW
    return objective


def _weighed(d: Draft, objective: Objective, each: Weights) -> Objective:
    formula = each.formula
    if d.weighs_rows:
        formula = in_rows(formula, each.condition)
        d.say("geo_mean adds 1e-10 to weights before it takes their logarithm.")
        d.give_up(f"causal of weight {formula}", MODE, "a row has the geometric mean of its tokens' weights")
        return objective.weigh(formula)
    if each.why:
        d.gives_up[f"causal of weight {formula}"] = each.why
    objective = objective.weigh(formula)
    if each.condition is None:
        return objective
    if each.of_rows:
        d.gives_up[f"causal of condition {each.condition}"] = "rollout_is=sequence: a row is dropped whole"
    return objective.keep(each.condition)


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
        d.say("kl_loss_coef=0: verl computes the KL loss and subtracts nothing.")
        return
    x = log_prob(current) - log_prob(reference)
    beta = d.parameter("beta", coef, otherwise="kl_loss_coef")
    term = beta * x**2 / 2 if kind == "k2" else beta * estimated_kl(kind, x, K3_MOST)  # as `grpo_k2` writes it
    term = _masked(d, term, aggregation)
    d.penalties["kl"] = term if mean == aggregation else Penalty(term, objective=_reduction(d, aggregation))  # type: ignore[assignment]
    if kind in WRONG_KL:
        d.gives_up["kl_gradient of kl"] = f"kl_loss_type={d.options[name]} ({kind}) in the loss: {WRONG_KL[kind]}"
    elif d.by_token and aggregation == ROW_MEAN:
        d.gives_up |= {"kl_gradient of kl": LEFT_IN_ROW, "kl_gradient of what is left of kl": LEFT_IN_ROW}
    if kind == "k1" and d.mask is not None:
        d.gives_up["kl_gradient of what is left of kl"] = "rollout_rs drops tokens of the KL loss, by what was sampled"
    elif kind in LEFT_OF_KL:
        d.gives_up["kl_gradient of what is left of kl"] = f"kl_loss_type={d.options[name]} ({kind}): {LEFT_OF_KL[kind]}"
    if kind == "abs":
        d.say("Where a log-prob equals the reference's exactly, the slope of kl_loss_type=abs is 0 in verl.")


# ---------------------------------------------------------------- around


def _say_around(d: Draft, mean: str, legacy: bool) -> None:
    prompts, answers = (d.options.whole(n) for n in (f"{ACTOR}ppo_mini_batch_size", f"{ROLLOUT}n"))
    adds_up = not d.weighs_rows and not (mean == NORM and d.options.number_or_none(SCALE) is None)
    d.say(
        f"An optimizer step is a mini-batch of {prompts} prompts with {answers} answers each, on all ranks."
        + " Its micro-batches add up to its loss, however they are cut." * adds_up
    )
    _say_steps(d, prompts, legacy)
    if mean.startswith("seq-mean") and not d.weighs_rows:
        d.say(
            f"verl divides by {prompts} × {answers} = {prompts * answers} rows, the size of a mini-batch, also where a "
            "row has no token, or where the last mini-batch has fewer rows; here empty rows do not count."
        )
    if (heat := d.options.number(f"{ROLLOUT}temperature")) != 1:
        d.say(f"rollout.temperature={heat:g}: all log-probs are those of logits divided by {heat:g}.")
    if mean == ROW_MEAN:
        d.say("verl adds 1e-8 to the lengths of rows that it divides by.")
    if d.options.number(f"{ACTOR}entropy_coeff"):
        d.say(
            f"entropy_coeff={d.options.number(f'{ACTOR}entropy_coeff'):g} adds the exact entropy of each token's "
            f"distribution to the objective, averaged as {d.known(f'{ACTOR}loss_agg_mode')}. It needs the whole "
            "vocabulary, so that the model has to add it."
        )
    if d.options.flag(f"{ALGORITHM}filter_groups.enable"):
        d.say(
            "filter_groups: groups of answers whose "
            f"'{d.options[f'{ALGORITHM}filter_groups.metric']}' are all equal are replaced before the loss sees them."
        )
    if d.kept:
        d.say("rollout_rs: advantages, the KL loss and the entropy bonus leave out the tokens that it drops too.")


def _say_steps(d: Draft, mini_batch: int, legacy: bool) -> None:
    """How many optimizer steps a batch of prompts takes, and how far the policy moves from the one that sampled."""
    name, epochs = "data.train_batch_size", d.options.whole(f"{ACTOR}ppo_epochs")
    prompts, mode = d.options.whole(name, least=0), d.options["trainer.v1.trainer_mode"]
    if not isinstance(mode, str):
        raise d.options.refusal("trainer.v1.trainer_mode", "the name of a trainer")
    if prompts == 0 or any(n.startswith("async_training.") for n in d.options.given):
        d.say("async_training: answers are sampled while the policy trains, so that they may be of earlier weights.")
        return
    if legacy and prompts % mini_batch:
        raise d.options.refusal(name, f"a multiple of ppo_mini_batch_size={mini_batch}, as verl does")
    steps, missing = -(-prompts // mini_batch) * epochs, -prompts % mini_batch
    bypass = d.options.flag(f"{CORRECTION}bypass_mode")
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
    if not legacy and mode != "sync":
        d.say(f"trainer_mode={mode}: answers may be of older weights, which ratios to old_log_probs do not count.")
