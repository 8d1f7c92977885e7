"""The loss that a config of prime-rl trains, as `default_loss_fn` and `ipo_loss_fn` of prime-rl 0.8.0 compute it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fibration.configs.draft import Draft, prompt_group, token, trajectory
from fibration.configs.findings import ERROR, WARNING
from fibration.configs.options import Option, Options, Table, TrainerLoss, Unfit, flattened, read_table
from fibration.configs.sampling import SETTINGS, EngineWeight, Setting, find_sampling
from fibration.errors import SpecError, suggest
from fibration.language.atoms import advantage, reward, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression
from fibration.language.gates import identity_gate
from fibration.language.objectives import Penalty, token_mean
from fibration.language.operators import absolute, exp, where
from fibration.language.statistics import centred, mean

current, old = policies("current old")
EXTRA, HEAT = "orchestrator.train.sampling.extra_body.", "orchestrator.train.sampling.temperature"
OTHERS = {  # algorithms whose loss is not read
    "echo": "it adds a cross-entropy of tokens that the environment wrote",
    "hierarchical_grpo": "its groups are those of roles and of proposed problems",
    "opd": "its signal is that of a teacher: fibration show opd",
    "opsd": "its signal is that of a teacher: fibration show opd",
    "rae": "its baseline is a moving average of earlier batches",
    "sft": "its loss is a cross-entropy",
}


def _sources(value: Any, option: Option) -> list[Any]:
    """Where tasks come from. None may have an algorithm or a way to sample of its own."""
    if not isinstance(value, list | None):
        raise Unfit("a list of sources")
    for source in value or ():
        if not isinstance(source, Mapping):
            raise Unfit("a list of tables")
        if own := next((name for name in ("algo", "sampling") if source.get(name)), ""):
            raise Unfit(f"sources without their own {own}: one loss has one", f"write orchestrator.{own}")
    return value or []


TABLE = Table(read_table("prime"), {"sources": _sources})


def hierarchy_of(config: Any) -> TrainerLoss:
    """Returns the loss that prime-rl's `rl` trains with a config, and what prime-rl does around it.

    `config`: a mapping of its options, nested or with dotted names such as `trainer.loss.kl_tau`. prime-rl need not be
    installed. Raises SpecError for an option that is not known, and for an algorithm or a loss that is not read.
    """
    o = Options(TABLE, flattened(config))
    d = Draft(o, gates={token: identity_gate()})
    kind = o.raw("loss.type")
    if kind == "custom":
        remedy = "fibration audit FILE.py:FUNCTION says which loss a function is"
        raise o.refusal("loss.type", "default or ipo: a function of your own is not read", remedy)
    kind = o.read("loss.type", Option("choice", of=("default", "ipo")))
    counted = None
    if o["filter_zero_advantages"]:
        counted = (advantage > 0) | (advantage < 0)
        why = "a token whose advantage is 0 is left out, and not counted"
        d.keep(counted, "kept", mask_open=o.brief("orchestrator.train.filter_zero_advantages", why))
    bounds = ("ipo_threshold",) if kind == "ipo" else ("dppo_mask_low", "dppo_mask_high")
    closed = ""
    for name in bounds:
        if o[name] == 0:
            why = "a token is dropped as soon as its probability has moved that way"
            closed = d.say(o.brief(f"trainer.loss.{name}", why), ERROR, f"trainer.loss.{name}=0.2")
    moved = exp(log_prob(current)) - exp(log_prob(old))
    if kind == "ipo":
        d.keep(absolute(moved) <= d.parameter("threshold", o["ipo_threshold"]), mask_open=closed)
    else:
        low, high = (d.parameter(f"epsilon_{side}", o[f"dppo_mask_{side}"]) for side in ("low", "high"))
        d.keep(((advantage > 0) & (moved <= high)) | ((advantage <= 0) & (moved >= -low)), mask_open=closed)
    if (scale := o["adv_tau"]) != 1:
        if scale == 0:
            raise o.refusal("adv_tau", "a number above 0: at 0 nothing is learnt from rewards")
        why = d.say(o.brief("trainer.loss.adv_tau", f"the policy gradient is multiplied by {scale:g}"), WARNING)
        d.weigh(d.parameter("adv_tau", scale), agreement=why)
    if kl := o["kl_tau"]:
        term = d.parameter("kl_tau", kl) * token_log_ratio**2
        over = token_mean() if counted is None else token_mean().keep(counted, "kept")
        d.penalties["square"] = Penalty(term, objective=over)  # type: ignore[assignment]
    d.advantages = _advantages(d)
    _around(d)
    return d.loss("prime_rl")


def _advantages(d: Draft) -> Expression:
    o = d.options
    if isinstance(kind := o.raw("algo.type"), str) and kind in OTHERS:
        raise o.refusal("algo.type", f"grpo or max_rl: {OTHERS[kind]}")
    kind = o.read("algo.type", Option("choice", of=("grpo", "max_rl")))
    sizes = [source.get("group_size") or o["group_size"] for source in o["train.source"]] or [o["group_size"]]
    if any(not isinstance(size, int) or size < 2 for size in sizes):
        why = (
            "an answer is compared with itself alone, so that its advantage is 0, unless an episode has several answers"
        )
        d.say(o.brief("orchestrator.group_size", f"{why}."), WARNING, "orchestrator.group_size=8")
    middle = mean(reward, over=prompt_group, of=trajectory)
    if kind == "grpo":
        return centred(reward, over=prompt_group)
    why = "divided by the mean of the group, the answer's own reward among them"
    d.gives_up["baseline"] = f"{o.said('algo.type')}: {why}"
    return where(middle > 0, centred(reward, over=prompt_group) / where(middle > 0, middle, 1), 0)


def _around(d: Draft) -> None:
    """What prime-rl does around the loss, in sentences."""
    o = d.options
    stale, rows, tokens = o["max_off_policy_steps"], o["orchestrator.batch_size"], o["token_batch_size"]
    if rows and tokens:
        raise o.refusal("token_batch_size", "one of batch_size and token_batch_size, as prime-rl requires")
    size = f"at least {tokens} tokens" if tokens else f"{rows or 128} rows"
    d.say(
        "Ratios are to the engine's log-probs, so that `old` of the hierarchy is the policy that sampled: it may be up "
        f"to {stale} optimizer steps older. An optimizer step is one batch ({size}), on all ranks."
    )
    if any("curriculum" in source for source in o["train.source"]):
        d.say("orchestrator.train.source: a curriculum chooses tasks, and drops groups before the loss sees them.")
    heat, settings = o["sampling.temperature"], {}
    for name, value in o.given.items():
        if name.startswith(EXTRA):
            setting = name.removeprefix(EXTRA)
            if setting not in SETTINGS:
                required = "a setting of vLLM"
                raise SpecError(
                    f"prime-rl: the option '{name}' is not known", required=required, remedy=suggest(setting, SETTINGS)
                )
            settings[setting] = Setting(name, value)
    settings.setdefault("temperature", Setting(HEAT, heat))
    o.findings += find_sampling(settings, heat, EngineWeight("the ratio", "token", masks=False), own=HEAT)
    o.say_table()
    o.say_unread(f"{o.said('loss.type')}, {o.said('algo.type')}")
