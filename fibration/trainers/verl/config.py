"""The policy loss's config with the hierarchy's options; building it replaces verl's worker by ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Optional

from verl.trainer.config import RolloutCorrectionConfig
from verl.workers.config import PolicyLossConfig

from fibration.errors import TrainerError, located, shown
from fibration.runtime.operator import Operator
from fibration.trainers.intake import REFERENCE, ROLLOUT, as_operator, check_parameters, check_policies
from fibration.trainers.verl.loss import HERE, NAME
from fibration.trainers.verl.settings import KNOWN, Settings
from fibration.trainers.window import check_metrics

KNOWN_POLICIES = {
    ROLLOUT: "the rollout engine's policy (rollout_log_probs)",
    REFERENCE: "its reference model (ref_log_prob)",
}
MAPPINGS = {
    "parameters": "{name: value}",
    "labels": "{stratum: field}",
    "attributes": "{attribute: field}",
    "policies": "{policy: field}",
}


@dataclass
class FibrationPolicyLossConfig(PolicyLossConfig, Settings):  # type: ignore[misc]
    """`actor_rollout_ref.actor.policy_loss`, with `_target_: fibration.trainers.verl.FibrationPolicyLossConfig`.

    On a command line, options that verl's YAML lacks take a `+`:
    `+actor_rollout_ref.actor.policy_loss.hierarchy=grpo`.

    - `loss_mode`: `fibration`.
    - `hierarchy`: a shipped name (`grpo`), `/path/to/file.py:NAME` or `/path/to/file.json`. The path must exist on
      every node; best use an absolute one.
    - `parameters`: values of the hierarchy's parameters, as in `op.coefficients(parameters=)`: `{epsilon: 0.05,
      C_domain: {math: {+: 0.3, -: 0.2}, code: 0.1}}`. verl's `clip_ratio` and similar options are refused.
    - `labels`: `{stratum: field}`, the field of verl's data with one label per row. Defaults: `prompt_group: uid` and
      `domain: data_source`. Several fields, `[a, b]`, make tuples.
    - `attributes`: `{attribute: field}`, the field of verl's data with one number per row, or per token of the
      response. `extra_fields.reward_extra_info.NAME` reads a key of dictionaries. Defaults, by name: `entropy:
      entropy`, `value: values`, `sum_pi_squared: sum_pi_squared` of tokens, `greedy_reward: reward_baselines` of rows.
    - `policies`: `{policy: field}`, the field with the log-probs of every token, for policies that the hierarchy reads
      beside `rollout` and `reference`.
    - `trajectory`: the fields that name a trajectory of several rows: `[uid, session_id]` for agent loops with several
      outputs; `[]`: every row is its own trajectory, whatever its fields.
    - `reuse_old_log_probs`: ratios are exactly 1, and no pass is needed before the trained one, if this worker computed
      the old log-probs with its current weights, as for the first mini-batch of each batch. verl computes them in other
      micro-batches and in evaluation mode; `actor/fibration/pass/...` reports how far the trained pass differs.
    - `backend`: as in `fibration.compile`. `metrics`: as in `op.loss`: `levels`, `all` to include single domains, or
      names, `[trajectory, ratio]`.
    - `skip_dead_rows`: leave rows whose coefficients are 0 out of the training forward and backward pass. The gradient
      is the same. All rows are trained on where something else reads them, as the log says.

    Building it checks the hierarchy and its parameters before a model is loaded, and makes our worker this process's
    actor.
    """

    loss_mode: str = NAME
    hierarchy: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    trajectory: Optional[list[str]] = None  # noqa: UP045  (omegaconf reads this annotation)
    reuse_old_log_probs: bool = False
    backend: Optional[str] = None  # noqa: UP045
    metrics: Any = "levels"
    skip_dead_rows: bool = True

    def __post_init__(self) -> None:
        if self.loss_mode != NAME:
            bypass = (
                "bypass_mode replaces this loss by its own; algorithm.rollout_correction.bypass_mode=true with "
                f"loss_mode={NAME} gates ratios to the rollout engine's policy, without rollout_is and rollout_rs, "
                "which belong to verl's loss"
            )
            raise TrainerError(
                f"{HERE}.loss_mode={self.loss_mode} with the config of '{NAME}'",
                required=f"loss_mode={NAME}",
                remedy=bypass if self.loss_mode == "bypass_mode" else "or leave _target_ at verl's value",
            )
        if not self.hierarchy:
            raise TrainerError(
                f"{HERE}.hierarchy is not set",
                required="a shipped name, path.py:NAME or path.json",
                remedy=f"+{HERE}.hierarchy=fiberpo_domain_inward",
            )
        if self.rollout_correction != RolloutCorrectionConfig():
            raise TrainerError(
                f"{HERE}.rollout_correction={shown(self.rollout_correction)} with loss_mode={NAME}",
                required="verl's default: only verl's loss bypass_mode reads it",
                remedy=f"leave it out; algorithm.rollout_correction.rollout_is and rollout_rs work with {NAME}, "
                "if bypass_mode=false",
            )
        for option, pairs in MAPPINGS.items():
            if not isinstance(self[option], Mapping):
                raise TrainerError(
                    f"{HERE}.{option}={shown(self[option])}",
                    required=f"a mapping of {pairs}",
                    remedy="leave it out, or {}",
                )
            for name, given in self[option].items() if option in ("attributes", "policies") else ():
                if not isinstance(given, str) or not given:
                    own = "; the field of verl's own teacher is teacher_logprobs" if option == "policies" else ""
                    raise TrainerError(
                        f"{HERE}.{option}.{name}={' '.join(shown(given).split())}",
                        required="the name of a field of verl's data, of numbers that verl computed before the update",
                        remedy=f"+{HERE}.{option}.{name}=FIELD{own}",
                    )
        with located(HERE):
            hierarchy = self.operator.hierarchy
            check_metrics(hierarchy, self.metrics, f"{HERE}.metrics")
            if hierarchy.rows.name in self.labels:
                raise TrainerError(
                    f"labels for '{hierarchy.rows.name}', the rows",
                    required="their keys under trajectory",
                    remedy=f"+{HERE}.trajectory={self.labels[hierarchy.rows.name]}",
                )
            found = self.sources(lambda stratum: f"+{HERE}.labels.{stratum}=FIELD")
            _refuse_coarse_rows(found, hierarchy.rows.name)
            check_parameters(hierarchy, self.parameters or {})
            self.attribute_sources(lambda name: f"+{HERE}.attributes.{name}=FIELD")
            check_policies(hierarchy, KNOWN_POLICIES, self.policies, lambda name: f"+{HERE}.policies.{name}=FIELD")
            if self.trajectory and hierarchy.ordered:
                raise TrainerError(
                    f"{HERE}.trajectory=[{','.join(self.trajectory)}] with '{hierarchy.name}', which reads "
                    f"{hierarchy.ordered[0]}",
                    required="trajectories of one row: verl does not order the rows of a trajectory",
                    remedy=f"+{HERE}.trajectory=[] if every row is its own {hierarchy.rows.name}",
                )
        install()

    @property
    def operator(self) -> Operator:  # type: ignore[override]
        """The compiled hierarchy, compiled once per process."""
        return _compiled(self.hierarchy, self.backend)


def _names(stratum: str, source: Any) -> frozenset[str]:
    """The fields of labels or keys."""
    names = [source] if isinstance(source, str) else source
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise TrainerError(
            f"the labels of '{stratum}' are in {shown(source)}",
            required="the name of a field, or [several]",
        )
    return frozenset(names)


def _refuse_coarse_rows(found: Mapping[str, Any], rows: str) -> None:
    """Refuse keys of rows that a coarser stratum's label includes: each of its elements would be one trajectory."""
    strata = {stratum: _names(stratum, source) for stratum, source in found.items()}
    keys = strata.pop(rows, None)
    for stratum, names in [*strata.items(), *((stratum, frozenset([name])) for stratum, name in KNOWN.items())]:
        if keys is not None and keys <= names:
            raise TrainerError(
                f"{HERE}.trajectory=[{','.join(sorted(keys))}], which names a {stratum}: all its samples would be one "
                f"{rows}",
                required="fields that name one sample",
                remedy=f"+{HERE}.trajectory=[uid,session_id], or =[] if every row is its own {rows}",
            )


@lru_cache(maxsize=8)
def _compiled(hierarchy: str, backend: str | None) -> Operator:
    return as_operator(hierarchy, backend)


def install() -> None:
    """Make our worker the actor of this process, and register the policy loss, even if verl loads no plugins."""
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    from fibration.trainers.verl.plugin import register
    from fibration.trainers.verl.worker import FibrationTrainingWorker

    register()
    found = ActorRolloutRefWorker.actor_worker_cls
    if issubclass(found, FibrationTrainingWorker):
        return
    if found is not TrainingWorker:
        raise TrainerError(
            f"the actor's worker is already {found.__module__}.{found.__qualname__}",
            required="verl's TrainingWorker, or a class derived from fibration.trainers.verl.FibrationTrainingWorker",
            remedy="derive that class from ours",
        )
    ActorRolloutRefWorker.actor_worker_cls = FibrationTrainingWorker
