"""The options of verl 0.9.1: the defaults of those that touch the loss, and which others do not touch it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fibration.configs.options import Options, flattened
from fibration.errors import SpecError, shown

ACTOR = "actor_rollout_ref.actor."
POLICY_LOSS = f"{ACTOR}policy_loss."
ALGORITHM = "algorithm."
CORRECTION = f"{ALGORITHM}rollout_correction."
OWN_CORRECTION = f"{POLICY_LOSS}rollout_correction."
ROLLOUT = "actor_rollout_ref.rollout."


def _below(prefix: str, **defaults: Any) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in defaults.items()}


_NO_CORRECTION = dict(
    rollout_is=None,
    rollout_is_threshold=2.0,
    rollout_is_batch_normalize=False,
    rollout_rs=None,
    rollout_rs_threshold=None,
    loss_type="ppo_clip",
)
DEFAULTS: dict[str, Any] = {
    **_below(ACTOR, clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, tau_pos=1.0),
    **_below(ACTOR, tau_neg=1.05, loss_agg_mode="token-mean", loss_scale_factor=None, entropy_coeff=0),
    **_below(
        ACTOR, use_kl_loss=False, kl_loss_coef=0.001, kl_loss_type="low_var_kl", ppo_mini_batch_size=256, ppo_epochs=1
    ),
    **_below(POLICY_LOSS, loss_mode="vanilla", clip_cov_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0),
    **_below(POLICY_LOSS, kl_cov_ratio=0.0002, ppo_kl_coef=0.1, dro_beta=None, hierarchy=""),
    **_below(OWN_CORRECTION, **{**_NO_CORRECTION, "rollout_is": "sequence"}),  # what its dataclass says
    **_below(CORRECTION, bypass_mode=False, **_NO_CORRECTION),
    **_below(ALGORITHM, adv_estimator="gae", gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=True),
    **_below(ALGORITHM, use_kl_in_reward=False, kl_penalty="kl", use_pf_ppo=False),
    **_below(f"{ALGORITHM}kl_ctrl.", type="fixed", kl_coef=0.001),
    **_below(ALGORITHM, gdpo_reward_keys=None, gdpo_reward_weights=None),
    **_below(f"{ALGORITHM}filter_groups.", enable=False, metric="reward"),
    **_below(ROLLOUT, n=1, calculate_log_probs=True, temperature=1.0),
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "distillation.enabled": False,
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
}
# `null` in the place of a whole subtree leaves it at its defaults.
SUBTREES = (f"{ALGORITHM}rollout_correction", f"{ALGORITHM}filter_groups")

_OF_ACTOR = """
    _target_ calculate_entropy calculate_sum_pi_squared data_loader_seed entropy_checkpointing
    entropy_from_logits_chunk_size entropy_from_logits_with_chunking freeze_vision_tower grad_clip load_weight
    pad_to_length ppo_infer_max_token_len_per_gpu ppo_infer_micro_batch_size_per_gpu
    ppo_max_token_len_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu rollout_n shuffle strategy
    ulysses_sequence_parallel_size use_dynamic_bsz use_fused_kernels use_prefix_grouper use_remove_padding
    use_rollout_log_probs use_torch_compile checkpoint. engine. fsdp_config. global_batch_info. megatron.
    model_config. optim. profile. profiler. qat. router_replay. torchtitan. veomni.
"""
_OF_POLICY_LOSS = """
    _target_ backend labels labels. metrics parameters parameters. reuse_old_log_probs skip_dead_rows trajectory
    rollout_correction._target_ rollout_correction.bypass_mode
"""
_OF_ALGORITHM = """
    _target_ rollout_correction._target_ filter_groups._target_ filter_groups.max_num_gen_batches
    filter_groups.max_inflight_gen_batches kl_ctrl._target_ kl_ctrl.horizon kl_ctrl.target_kl pf_ppo.
"""
_ELSEWHERE = """
    actor_rollout_ref.hybrid_engine actor_rollout_ref.model. actor_rollout_ref.nccl_timeout
    actor_rollout_ref.ref. actor_rollout_ref.rollout. async_training. critic. custom_reward_function. data.
    distillation. global_profiler. hydra. model_engine ray_kwargs. reward. reward_manager. reward_model. rollout.
    sandbox_fusion. skip. trainer. transfer_queue.
"""
HARMLESS: tuple[str, ...] = (
    *(f"{ACTOR}{name}" for name in _OF_ACTOR.split()),
    *(f"{POLICY_LOSS}{name}" for name in _OF_POLICY_LOSS.split()),
    *(f"{ALGORITHM}{name}" for name in _OF_ALGORITHM.split()),
    *_ELSEWHERE.split(),
)
# Files of verl whose values are the defaults above, as Hydra's `defaults:` names them.
_OWN_FILES = re.compile(
    r"_self_|legacy_reward_impl|rollout_correction|ppo(_\w+)?_trainer|((dp|megatron|torchtitan|veomni)_)?actor|"
    r"\$\{.*\}_actor"
)
_OWN_GROUPS = ("actor", "algorithm")


def options_of(config: Any) -> Options:
    """The options of a config: a mapping, nested or with dotted names, or an OmegaConf `DictConfig`.

    Raises SpecError for an option that is not known, for an interpolation in an option that touches the loss, and for
    a file in Hydra's `defaults` that is not verl's own.
    """
    made = None
    if type(config).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        made, config = config, OmegaConf.to_container(config, resolve=False)
    if not isinstance(config, Mapping):
        raise SpecError(
            "verl: this is no config",
            required="a mapping of options, or an OmegaConf DictConfig",
            found=shown(config),
            remedy='write hierarchy_of({"algorithm": {"adv_estimator": "grpo"}})',
        )
    given = flattened(config)
    _check_files(given.pop("defaults", None))
    for name in SUBTREES:
        if name in given and given[name] is None:
            del given[name]
    for name in (n for n, value in given.items() if n in DEFAULTS and isinstance(value, str) and "${" in value):
        if made is None:
            raise SpecError(
                f"verl: the option '{name}'",
                required="a value",
                found=f"the interpolation {given[name]}",
                remedy="write its value, or compose the config first: python -m verl.trainer.main_ppo ... --cfg job",
            )
        given[name] = OmegaConf.select(made, name)
    return Options("verl", given, DEFAULTS, HARMLESS)


def _check_files(files: Any) -> None:
    """Refuses files that Hydra would read beside this one, unless they have verl's own defaults."""
    for entry in files if isinstance(files, list) else ():
        pairs: Iterable[tuple[Any, Any]] = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for group, file in pairs:
            touches = not group or str(group).partition("@")[0] in _OWN_GROUPS
            if touches and not _OWN_FILES.fullmatch(str(file)):
                raise SpecError(
                    f"verl: the file '{file}' in 'defaults' is not read",
                    required="one file with all options, or verl's own files in 'defaults'",
                    remedy="compose the config first: python -m verl.trainer.main_ppo ... --cfg job > run.yaml",
                )
