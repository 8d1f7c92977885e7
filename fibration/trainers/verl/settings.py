"""The options that the worker reads from the policy loss's config, and where verl passes that config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

from verl.trainer.distillation import distillation_ppo_loss
from verl.workers.utils.losses import ppo_loss

from fibration.errors import TrainerError
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.operator import Operator
from fibration.trainers import intake
from fibration.trainers.clip_range import in_its_place
from fibration.trainers.verl.loss import HERE, NAME, TARGET

# Options of verl's other losses, which have no effect with a hierarchy.
UNREAD = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
CLIP_RANGE = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
UNREAD_LOSS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
UNREAD_TERMS = ("loss_agg_mode", "loss_scale_factor")
UNREAD_DISTILLATION = (
    "use_task_rewards", "distillation_loss_coef", "loss_max_clamp", "use_policy_gradient", "policy_loss_mode",
    "clip_ratio", "clip_ratio_low", "clip_ratio_high",
)  # fmt: skip
KNOWN = {"prompt_group": "uid", "domain": "data_source"}  # verl's own fields of labels
# verl's fields of attributes, by the names of attributes: per token, and per row.
OF_TOKENS = {"entropy": "entropy", "value": "values", "sum_pi_squared": "sum_pi_squared"}
OF_ROWS = {"greedy_reward": "reward_baselines"}
TEACHER = "teacher_logprobs"  # verl's field of the log-probs of its teacher


class Settings:
    """What the worker reads of `FibrationPolicyLossConfig`, or of the declared loss of an audit."""

    operator: Operator
    parameters: Mapping[str, Any]
    labels: Mapping[str, Any]  # per stratum, the user's fields of labels
    attributes: Mapping[str, str]
    policies: Mapping[str, str]
    trajectory: list[str] | None = None
    reuse_old_log_probs: bool = False
    metrics: Any = False
    skip_dead_rows: bool = False

    def sources(self, say: Callable[[str], str] = intake.label_option) -> dict[str, Any]:
        """Per stratum, the fields that have its labels; for the rows their keys, if any."""
        keys = {self.operator.hierarchy.rows.name: self.trajectory} if self.trajectory else {}
        return intake.label_sources(self.operator.hierarchy, {**self.labels, **keys}, KNOWN, say)

    def attribute_sources(self, say: Callable[[str], str] = intake.attribute_option) -> dict[str, str]:
        """Per attribute, the field that has its numbers."""
        return intake.attribute_sources(self.operator.hierarchy, self.attributes, OF_TOKENS, OF_ROWS, say)


def settings_of(loss_fn: Any) -> Settings | None:
    """Our config in verl's loss function, or None for another loss. Raises TrainerError if they do not fit."""
    config: Any = getattr(loss_fn, "keywords", {}).get("config")
    given = getattr(config, "policy_loss", None)
    if given is None or given.get("loss_mode") != NAME:
        return None
    if not isinstance(getattr(given, "operator", None), Operator):
        raise TrainerError(
            f"{HERE}.loss_mode={NAME} with the config {type(given).__qualname__}",
            required="the config that has the hierarchy",
            remedy=f"{HERE}._target_={TARGET}",
        )
    if loss_fn.func is distillation_ppo_loss and TEACHER in given.policies.values():
        _check_distillation(loss_fn.keywords["distillation_config"].distillation_loss)
    elif loss_fn.func is not ppo_loss:
        raise TrainerError(
            f"{HERE}.loss_mode={NAME} inside of {loss_fn.func.__name__}",
            required="verl's ppo_loss itself; or distillation with a hierarchy that reads the teacher's log-probs",
            remedy="leave distillation out: its own policy gradient would have no coefficients; or "
            f"+{HERE}.hierarchy=opd and +{HERE}.policies.teacher={TEACHER}",
        )
    hierarchy = given.operator.hierarchy
    if intake.REFERENCE in hierarchy.policies and config.use_kl_loss and config.kl_loss_coef:
        raise intake.read_twice(
            hierarchy,
            intake.REFERENCE,
            f"actor.use_kl_loss=true with kl_loss_coef={config.kl_loss_coef} adds verl's own divergence from it",
            "actor.kl_loss_coef=0; verl still computes ref_log_prob",
        )
    where: str
    options: Any
    for where, options, names in (("actor", config, UNREAD), (HERE, given, UNREAD_LOSS)):
        for option in fields(options):
            if option.name in names and option.default is not MISSING and options[option.name] != option.default:
                raise TrainerError(
                    f"{where}.{option.name}={options[option.name]} with loss_mode={NAME}",
                    required=f"verl's default, {option.default}: the hierarchy alone decides what is clipped",
                    remedy=_own_bounds(config, hierarchy)
                    if option.name in CLIP_RANGE
                    else f"leave it out, and say it in {HERE}.parameters",
                )
    if not (config.use_kl_loss or config.entropy_coeff):
        for option in fields(config):
            if option.name in UNREAD_TERMS and config[option.name] != option.default:
                raise TrainerError(
                    f"actor.{option.name}={config[option.name]} with loss_mode={NAME}, without KL and entropy losses",
                    required=f"verl's default, {option.default}: only KL and entropy losses read it",
                    remedy="leave it out",
                )
    found: Settings = given
    return found


def own_loss(loss_fn: Any) -> Any:
    """verl's loss function without its distillation, which the hierarchy replaces."""
    return partial(ppo_loss, config=loss_fn.keywords["config"]) if loss_fn.func is distillation_ppo_loss else loss_fn


def _check_distillation(given: Any) -> None:
    """Raise TrainerError for options of verl's distillation that would have no effect, or give no log-probs."""
    if not given.loss_settings.use_estimator:
        raise TrainerError(
            f"distillation.distillation_loss.loss_mode={given.loss_mode} with policy_loss.loss_mode={NAME}",
            required="a mode for which verl's teacher scores the sampled tokens",
            remedy="distillation.distillation_loss.loss_mode=k1",
        )
    for option in fields(given):
        if option.name in UNREAD_DISTILLATION and given[option.name] != option.default:
            raise TrainerError(
                f"distillation.distillation_loss.{option.name}={given[option.name]} with policy_loss.loss_mode={NAME}",
                required=f"verl's default, {option.default}: the hierarchy alone says what the teacher's log-probs do",
                remedy=f"leave it out, and say it in {HERE}.hierarchy",
            )


def _own_bounds(config: Any, hierarchy: Hierarchy) -> str:
    """What to set in place of verl's clip range."""
    defaults = {option.name: option.default for option in fields(config)}
    both, below, above = (config[name] if config[name] != defaults[name] else None for name in CLIP_RANGE)

    def write(values: Mapping[str, float]) -> str:
        return " ".join(f"+{HERE}.parameters.{name}={value:g}" for name, value in values.items())

    return in_its_place(hierarchy, both if below is None else below, both if above is None else above, write)


def loss_terms(loss_fn: Any) -> Iterator[str]:
    """verl's own terms of the loss, which rows get without an advantage too."""
    config: Any = loss_fn.keywords["config"]
    if config.use_kl_loss:
        yield f"actor.use_kl_loss=true adds or logs verl's divergence of all rows (kl_loss_coef={config.kl_loss_coef})"
    if config.entropy_coeff:
        yield f"actor.entropy_coeff={config.entropy_coeff} adds an entropy bonus"
