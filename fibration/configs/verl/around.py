"""What verl does around a loss that no hierarchy says, in sentences."""

from __future__ import annotations

from fibration.configs.findings import ERROR
from fibration.configs.sampling import Setting, find_sampling
from fibration.configs.verl.draft import Draft, written
from fibration.configs.verl.estimators import ESTIMATOR
from fibration.configs.verl.losses import MODE, ROW_MEAN
from fibration.configs.verl.options import ACTOR, ALGORITHM, CORRECTION, POLICY_LOSS, ROLLOUT, said_of
from fibration.configs.weights import answer_weight
from fibration.errors import listed

NORM, SCALE = "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor"
LOGPROBS = ("processed_logprobs", "raw_logprobs", "processed_logits", "raw_logits")
PROCESSED = f"{ROLLOUT}logprobs_mode=processed_logprobs"
# Options that another part of verl reads.
NOT_OF_LOSSES = (
    *("data.max_response_length", "data.train_batch_size", "trainer.v1.trainer_mode"),
    *(f"{ALGORITHM}filter_groups.metric", f"{ROLLOUT}calculate_log_probs", f"{POLICY_LOSS}hierarchy"),
)


def say_around(d: Draft, mean: str) -> None:
    """Call it last: the options that nobody has read by then have no effect."""
    prompts, answers = (d.options.whole(n) for n in (f"{ACTOR}ppo_mini_batch_size", f"{ROLLOUT}n"))
    adds_up = not d.weighs_rows and not (mean == NORM and d.options.number_or_none(SCALE) is None)
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
    for name, value in d.options.given.items():
        said = said_of(name)
        if said is not None and said.sentence and written(value).casefold() not in said.plain.split():
            d.say(f"{name}={written(value)}: {said.sentence}.", said.severity)
    if unused := [name for name in d.options.unread() if name not in NOT_OF_LOSSES]:
        has = "have" if len(unused) > 1 else "has"
        chosen = " and ".join(d.known(name).rpartition(".")[2] for name in (MODE, ESTIMATOR))
        d.say(f"{listed(map(d.known, unused))} {has} no effect with {chosen} and the other options.")


def _say_sampling(d: Draft) -> None:
    """What answers are sampled from, and what the weights do where that is not the trainer's distribution."""
    heat = d.options.number(f"{ROLLOUT}temperature")
    if heat != 1:
        d.say(f"rollout.temperature={heat:g}: all log-probs are those of logits divided by {heat:g}.")
    mode = d.options.choice(f"{ROLLOUT}logprobs_mode", LOGPROBS)
    if mode.endswith("logits") and d.engine:
        d.say(
            f"{d.known(f'{ROLLOUT}logprobs_mode')}: rollout_log_probs are logits, and no log-probs.", ERROR, PROCESSED
        )
    # SGLang's log-probs are taken after the temperature and before the cuts, whatever logprobs_mode says.
    is_sglang = d.options.given.get(f"{ROLLOUT}name") == "sglang"
    names = ("top_p", "top_k", "min_p", *["temperature"] * (not is_sglang or heat == 0))
    values = {name: d.options.number_or_none(f"{ROLLOUT}{name}") for name in names}
    settings = {name: Setting(f"{ROLLOUT}{name}", value) for name, value in values.items()}
    for weight in d.engine or (None,):
        is_raw = is_sglang or mode == "raw_logprobs"
        d.options.findings += find_sampling(settings, 1.0 if is_sglang else heat, weight, is_raw, PROCESSED)
        if weight is not None and not weight.masks:
            length, option = d.options.whole("data.max_response_length"), weight.said.partition("=")[0]
            d.options.findings += answer_weight(weight, length, f"{option}=token")


def _say_steps(d: Draft, mini_batch: int) -> None:
    """How many optimizer steps a batch of prompts takes, and how far the policy moves from the one that sampled."""
    name, epochs = "data.train_batch_size", d.options.whole(f"{ACTOR}ppo_epochs")
    prompts, mode = d.options.whole(name, least=0), d.options["trainer.v1.trainer_mode"]
    if not isinstance(mode, str):
        raise d.options.refusal("trainer.v1.trainer_mode", "the name of a trainer")
    if prompts == 0 or any(n.startswith("async_training.") for n in d.options.given):
        d.say("async_training: answers are sampled while the policy trains, so that they may be of earlier weights.")
        return
    if d.is_legacy and prompts % mini_batch:
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
    if not d.is_legacy and mode != "sync":
        d.say(f"trainer_mode={mode}: answers may be of older weights, which ratios to old_log_probs do not count.")
