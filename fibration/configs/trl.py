"""The loss that a config of TRL's GRPOTrainer trains, as `GRPOTrainer._compute_loss` of TRL 1.16 computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from fibration.configs.findings import ERROR, WARNING, all_findings
from fibration.configs.options import Options, TrainerLoss
from fibration.configs.parts import batch, estimated_kl, prompt_group, together, token, trajectory
from fibration.configs.trl_around import find_around
from fibration.configs.trl_loss import SCORES, advantages_of, token_loss, vespo_log_weight
from fibration.configs.trl_options import DEFAULTS, HARMLESS
from fibration.configs.trl_others import another, refuse_others
from fibration.configs.weights import EngineWeight
from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Parameter, advantage, token_log_ratio
from fibration.language.expressions import Expression, Operand
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import exp, maximum, minimum
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import mean, quantile, total

TRL = "TRL"
# How each `loss_type` adds up tokens.
BY_ROWS, BY_TOKENS = ("grpo", "sapo"), ("cispo", "dapo", "vespo")
LOSS_TYPES = (*BY_ROWS, *BY_TOKENS, "bnpo", "dr_grpo", "luspo")
MODE = "vllm_importance_sampling_mode"
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")

current, old, rollout, reference = policies("current old rollout reference")


def hierarchy_of(config: Any) -> TrainerLoss:
    """Returns the loss that a config of TRL trains, and what TRL does around it.

    `config`: a `trl.GRPOConfig`, or a mapping of its options, as `yaml.safe_load` returns it. A mapping may have the
    options of models and scripts that `TrlParser` takes. TRL does not have to be installed.

    The hierarchy takes rewards, `op.loss(..., rewards=...)`, and makes TRL's advantages of them. Its parameters have
    the config's numbers as defaults. Laws that the loss breaks are given up, with the option that breaks each.

    Raises SpecError for an option that is unknown, for a value that TRL refuses, and for a loss that cannot be
    declared.
    """
    options = _options(config)
    built = _Loss(options)
    built.add_masks()
    built.add_weights()
    built.add_divergence()
    hierarchy = built.hierarchy()
    find_around(options, built.engine_weight())
    return TrainerLoss(hierarchy, all_findings(hierarchy.gives_up, options.findings))


def _options(config: Any) -> Options:
    if isinstance(config, Mapping):
        refuse_others(config)
        options = Options(TRL, config, DEFAULTS, HARMLESS)
        if all(options[name] is not None for name in ("steps_per_generation", "generation_batch_size")):
            raise options.refusal(
                "generation_batch_size", "nothing beside steps_per_generation, as TRL requires", "leave one of them out"
            )
        return options
    kinds = [base.__name__ for base in type(config).__mro__]
    if "GRPOConfig" not in kinds or not is_dataclass(config):
        raise SpecError(
            f"a {type(config).__name__} is no config of TRL's GRPOTrainer",
            required="a trl.GRPOConfig, or a mapping of its options",
            remedy="hierarchy_of(GRPOConfig(...)), or hierarchy_of(yaml.safe_load(text))",
        )
    made = type(config)
    if made.__name__ != "GRPOConfig" and (made.__module__.startswith("trl.") or "Unsloth" in made.__name__):
        raise another(f"a {made.__name__} changes the loss of GRPOTrainer", made.__name__.replace("Config", "Trainer"))
    given = {name: value for name in DEFAULTS if (value := getattr(config, name, DEFAULTS[name])) != DEFAULTS[name]}
    # A field of a subclass, or of another release, may touch the loss.
    others = [each for each in fields(config) if each.name not in DEFAULTS and each.name not in HARMLESS]
    given |= {each.name: value for each in others if (value := getattr(config, each.name)) != each.default}
    given.pop("generation_batch_size", None)  # GRPOConfig has made it, or steps_per_generation of it
    return Options(TRL, given, DEFAULTS, HARMLESS)


@dataclass
class _Loss:
    """A loss as it is put together from options. `reasons`: the laws that it breaks, by key of `gives_up`."""

    options: Options
    reasons: dict[str, str] = field(default_factory=dict)
    penalties: dict[str, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        o = self.options
        self.kind = o.choice("loss_type", LOSS_TYPES)
        self.by_sequence = o.choice("importance_sampling_level", ("token", "sequence")) == "sequence"
        self.uses_vllm = o.flag("use_vllm")
        self.corrects = self.uses_vllm and o.flag("vllm_importance_sampling_correction")
        self.apart = log_prob(old) - log_prob(rollout)  # of a token: the log of what vLLM's weight is made of
        self.token = token_loss(o, self.kind, self.by_sequence, self._log_of_weight(), self._edge())
        self.reasons |= self.token.reasons
        self.objective = self._normalised()
        if self.kind in SCORES:
            self.objective = self.objective.score()
        for weight, reason in self.token.weights:
            self.weigh(weight, reason)

    def _normalised(self) -> Objective:
        """`μ`. Rows without a token are counted by TRL and not by `μ`: `around` says so where a config makes them."""
        if self.kind in BY_ROWS or (self.kind == "bnpo" and self.options.whole("per_device_train_batch_size") == 1):
            return trajectory_mean()
        if self.kind == "dr_grpo":
            return constant_normaliser(Parameter("length", default=self.options.whole("max_completion_length")))
        return constant_normaliser(1) if self.kind == "luspo" else token_mean()

    # ------------------------------------------------------------ masks and weights

    def weigh(self, formula: Expression, looks_ahead: str) -> None:
        """Multiplies every token's term. `looks_ahead`: why the weight reads later tokens, or ""."""
        self.objective = self.objective.weigh(formula)
        if looks_ahead:
            self.reasons[f"causal of weight {formula}"] = looks_ahead

    def keep(self, condition: Expression, looks_ahead: str, drops_on_policy: str = "") -> None:
        """Drops tokens, which stay counted in `μ`."""
        self.objective = self.objective.keep(condition)
        if looks_ahead:
            self.reasons[f"causal of condition {condition}"] = looks_ahead
        if drops_on_policy:
            self.reasons[f"mask_open of condition {condition}"] = drops_on_policy

    def add_masks(self) -> None:
        o = self.options
        threshold = o.number_or_none("off_policy_mask_threshold", above=0)
        if threshold is not None:
            away = log_prob(rollout) - log_prob(current) if self.uses_vllm else -token_log_ratio
            condition = (advantage >= 0) | (mean(away, over=trajectory) <= Parameter("threshold", default=threshold))
            self.keep(condition, f"{o.said('off_policy_mask_threshold')}: a completion is dropped whole")
        share = o.number("top_entropy_quantile")
        if not 0 <= share <= 1:
            raise o.refusal("top_entropy_quantile", "a number from 0 to 1")
        if share < 1:
            entropy = Attribute("entropy", on=token, positive=False, lower=0)
            why = o.said("top_entropy_quantile")
            self.keep(
                entropy >= quantile(entropy, 1 - share, over=batch),
                f"{why}: the bound is a quantile of all tokens of the batch, also of later ones",
                o.find(f"{why}: tokens of low entropy have no gradient, from the first update on"),
            )

    def _cap(self) -> tuple[float | None, float | None]:
        """The least and the most of vLLM's weight, or None for no bound."""
        o = self.options
        lowest, cap = "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap"
        least = o.number_or_none(lowest)
        name = cap if o[cap] is not None else "vllm_importance_sampling_clip_max"
        most = o.number_or_none(name)
        if most is not None and most < 1:
            raise o.refusal(name, "at least 1: below, no token keeps its weight of 1 where vLLM and the trainer agree")
        if least is not None and least > 1:
            raise o.refusal(lowest, "at most 1, the weight where vLLM and the trainer agree")
        mode = o.choice(MODE, MODES)
        if least is not None and most is not None and not least < most:
            raise o.refusal(lowest, f"less than {name}={most:g}")
        if mode.endswith("truncate") and least is None and most is None:
            raise o.refusal("vllm_importance_sampling_clip_max", f"a bound, for vllm_importance_sampling_mode={mode}")
        return (None if least is not None and least <= 0 else least), most

    def engine_weight(self) -> EngineWeight | None:
        """vLLM's weight, or None where the loss ignores vLLM's log-probs."""
        if not self.corrects:
            return None
        mode, (least, most), said = self.options.choice(MODE, MODES), self._cap(), self.options.said(MODE)
        if self.kind == "vespo":
            return EngineWeight(f"{self.options.said('loss_type')} with {said}", "answer", masks=False)
        level: Literal["token", "answer"] = "answer" if mode.startswith("sequence") else "token"
        return EngineWeight(said, level, mode.endswith("mask"), least, most)

    def _bounds(self) -> tuple[Operand | None, Operand | None]:
        """The bounds of vLLM's weight as parameters, or as numbers where they are 1."""
        least, most = self._cap()
        return (
            least if least in (None, 1) else Parameter("least", default=least, upper=1),
            most if most in (None, 1) else Parameter("most", default=most, lower=1),
        )

    def _edge(self) -> str:
        """Why a mask of vLLM's weight drops tokens where vLLM and the trainer nearly agree, or ""."""
        o = self.options
        if not self.corrects or not str(o[MODE]).endswith("mask") or 1 not in self._cap():
            return ""
        said = f"{o.said('vllm_importance_sampling_mode')}: a bound of 1 drops tokens"
        most = "cap=3.0" if o["vllm_importance_sampling_cap"] is not None else "clip_max=3.0"
        change = f"vllm_importance_sampling_{most if self._cap()[1] == 1 else 'clip_min=null'}"
        return o.find(f"{said} where vLLM and the trainer nearly agree", ERROR, change)

    def _log_of_weight(self) -> Expression | None:
        """The log of vLLM's weight of a token, which `vespo` takes into its own weight. None for other losses."""
        if not self.corrects or self.kind != "vespo":
            return None
        mode = self.options.choice(MODE, MODES)
        if mode.startswith("sequence"):
            raise self.options.refusal(MODE, "token_truncate or token_mask with loss_type=vespo, as TRL requires")
        return vespo_log_weight(self.apart, *self._bounds(), masks=mode == "token_mask")

    def add_weights(self) -> None:
        """vLLM's importance weights, which multiply every token's term but those of `beta`."""
        if not self.corrects or self.kind == "vespo":
            return
        o = self.options
        mode, (least, most) = o.choice(MODE, MODES), self._bounds()
        whole = mode.startswith("sequence")
        said = o.said(MODE)
        ratio = exp(total(self.apart, over=trajectory) if whole else self.apart)
        inside = [] if least is None else [ratio >= least]
        inside += [] if most is None else [ratio <= most]
        if mode.endswith("truncate"):
            ratio = ratio if most is None else minimum(ratio, most)
            ratio = ratio if least is None else maximum(ratio, least)
        self.weigh(ratio, f"{said}: a completion is weighed whole" * whole)
        if mode.endswith("mask") and inside:
            self.keep(together(inside), f"{said}: a completion is dropped whole" * whole, self._edge())

    # ------------------------------------------------------------ the reference model

    def add_divergence(self) -> None:
        """k3 to the reference model, by default times the ratio: `beta`."""
        o = self.options
        beta = o.number("beta")
        if beta == 0:
            return
        if beta < 0:
            raise o.refusal("beta", "0 or more: below, the policy is pushed away from the reference model")
        k3 = estimated_kl("k3", log_prob(current) - log_prob(reference))
        kl: Expression = Parameter("beta", default=beta)
        said = f"{o.said('beta')} with {o.said('use_bias_correction_kl')}"
        if not o.flag("use_bias_correction_kl"):
            self.reasons["kl_gradient"] = o.find(
                f"{said}: k3 in the loss: its gradient is that of the other divergence, KL(reference ‖ current)",
                WARNING,
                "use_bias_correction_kl=true",
            )
        elif self.by_sequence:
            kl = kl * exp(mean(token_log_ratio, over=trajectory))
            why = (
                f"{said}: with {o.said('importance_sampling_level')} k3 is multiplied by the ratio of the whole "
                "completion. Its gradient is not shown to be a divergence's"
            )
            o.find(why, WARNING)
            self.reasons |= {
                "kl_gradient": why,
                "kl_gradient of what is left of kl": o.find(f"{why}, nor to pull towards the reference", WARNING),
            }
        else:
            kl = kl * exp(token_log_ratio)
        self.penalties["kl"] = kl * k3

    # ------------------------------------------------------------ the whole

    def hierarchy(self) -> Hierarchy:
        advantages, reasons = advantages_of(self.options)
        return Hierarchy(
            name=f"trl_{self.kind}" + "_sequence" * (self.by_sequence and self.kind != "vespo"),
            fibrations=self.token.fibrations,
            gates=self.token.gates,
            decomposition=self.token.decomposition,
            objective=self.objective,
            groups=[prompt_group],
            advantages=advantages,
            penalties=self.penalties,
            gives_up=self.reasons | reasons,
        )
