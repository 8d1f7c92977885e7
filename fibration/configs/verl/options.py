"""The options of verl 0.9.1: the defaults of those that touch the loss, and which others do not touch it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fibration.configs.findings import NOTE, WARNING, Severity
from fibration.configs.options import Options, flattened
from fibration.errors import SpecError, shown

ACTOR = "actor_rollout_ref.actor."
POLICY_LOSS = f"{ACTOR}policy_loss."
ALGORITHM = "algorithm."
CORRECTION = f"{ALGORITHM}rollout_correction."
OWN_CORRECTION = f"{POLICY_LOSS}rollout_correction."
ROLLOUT = "actor_rollout_ref.rollout."
MODEL = "actor_rollout_ref.model."


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
    **_below(ACTOR, use_kl_loss=False, kl_loss_coef=0.001, kl_loss_type="low_var_kl"),
    **_below(ACTOR, ppo_mini_batch_size=256, ppo_epochs=1),
    **_below(POLICY_LOSS, loss_mode="vanilla", clip_cov_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0),
    **_below(POLICY_LOSS, kl_cov_ratio=0.0002, ppo_kl_coef=0.1, dro_beta=None, hierarchy=""),
    **_below(OWN_CORRECTION, **_NO_CORRECTION | {"rollout_is": "sequence"}),  # of a dataclass: see `_own_correction`
    **_below(CORRECTION, bypass_mode=False, **_NO_CORRECTION),
    **_below(ALGORITHM, adv_estimator="gae", gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=True),
    **_below(ALGORITHM, use_kl_in_reward=False, kl_penalty="kl", use_pf_ppo=False),
    **_below(f"{ALGORITHM}kl_ctrl.", type="fixed", kl_coef=0.001),
    **_below(ALGORITHM, gdpo_reward_keys=None, gdpo_reward_weights=None),
    **_below(f"{ALGORITHM}filter_groups.", enable=False, metric="reward"),
    **_below(ROLLOUT, n=1, calculate_log_probs=True, temperature=1.0, top_p=1.0, top_k=-1, min_p=None),
    **_below(ROLLOUT, logprobs_mode="processed_logprobs"),
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "distillation.enabled": False,
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
}
# `null` in the place of a whole subtree leaves it at its defaults.
SUBTREES = (f"{ALGORITHM}rollout_correction", f"{ALGORITHM}filter_groups")

# By what their names begin with.
_HARMLESS = {
    ACTOR: """
        _target_ calculate_entropy calculate_sum_pi_squared data_loader_seed entropy_checkpointing
        entropy_from_logits_chunk_size entropy_from_logits_with_chunking freeze_vision_tower grad_clip load_weight
        pad_to_length ppo_infer_max_token_len_per_gpu ppo_infer_micro_batch_size_per_gpu ppo_max_token_len_per_gpu
        ppo_micro_batch_size ppo_micro_batch_size_per_gpu rollout_n shuffle strategy ulysses_sequence_parallel_size
        use_dynamic_bsz use_fused_kernels use_prefix_grouper use_remove_padding use_torch_compile checkpoint. engine.
        fsdp_config. global_batch_info. megatron. model_config. optim. profile. profiler. qat. router_replay.
        torchtitan. veomni.
    """,
    POLICY_LOSS: """
        _target_ backend labels labels. metrics parameters parameters. reuse_old_log_probs skip_dead_rows trajectory
        rollout_correction._target_ rollout_correction.bypass_mode
    """,
    ALGORITHM: """
        _target_ rollout_correction._target_ filter_groups._target_ filter_groups.max_num_gen_batches
        filter_groups.max_inflight_gen_batches kl_ctrl._target_ kl_ctrl.horizon kl_ctrl.target_kl pf_ppo.
    """,
    ROLLOUT: """
        _target_ checkpoint_manager_class cudagraph_capture_sizes data_parallel_size disable_log_stats dtype
        enable_chunked_prefill enable_prefix_caching enable_sleep_mode enforce_eager expert_parallel_size
        free_cache_engine full_determinism gpu_memory_utilization layered_summon limit_images load_format
        log_prob_max_token_len_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu
        log_prob_use_dynamic_bsz max_model_len max_num_batched_tokens max_num_seqs mode
        moe_load_balance_metrics_interval moe_tensor_parallel_size mtp multi_stage_wake_up n_gpus_per_node name nnodes
        pipeline_model_parallel_size prompt_length qat response_length router_config_path scheduling_policy seed
        sglang_engine_mode skip_tokenizer_init standalone_gpu_memory_utilization tensor_model_parallel_size agent.
        checkpoint_engine. disaggregation. layer_name_map. mtp. multi_turn. profiler. prometheus. qat. server. trace.
        val_kwargs.
    """,
    MODEL: """
        _target_ architectures custom_chat_template enable_activation_offload enable_gradient_checkpointing
        exclude_modules hf_config_path load_tokenizer local_hf_config_path local_path local_tokenizer_path
        lora_adapter_path lora_alpha model_type override_config.attn_implementation path target_modules
        target_parameters tokenizer_path trust_remote_code use_fused_kernels use_liger use_remove_padding use_shm
        fused_kernel_options. lora. mtp. tiled_mlp.
    """,
    "": """
        actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout actor_rollout_ref.ref. async_training. critic.
        custom_reward_function. data. distillation. global_profiler. hydra. model_engine ray_kwargs. reward.
        reward_manager. reward_model. rollout. sandbox_fusion. skip. trainer. transfer_queue.
    """,
}
HARMLESS = tuple(f"{prefix}{name}" for prefix, names in _HARMLESS.items() for name in names.split())
MEGATRON = f"{ACTOR}megatron.override_transformer_config."
_OF_MEGATRON = (
    r"(recompute|moe_(token_dispatcher|permute|grouped_gemm|shared_expert_overlap|enable_deepep|deepep|router_dtype)"
    r"|deallocate|overlap|tp_comm|persist|num_layers_in|account_for|pipeline|variable_seq)\w*"
    r"|attention_backend|\w*_fusion"
)


@dataclass(frozen=True)
class Said:
    """What verl does with options outside of the loss.

    `names`: their dotted names, a regular expression. `plain`: the values with which verl does nothing, with blanks
    between.
    """

    names: str
    plain: str
    sentence: str
    severity: Severity = NOTE


_NO_EFFECT = "it has no effect"
_DROPOUT = "log-probs of two passes differ by dropout, so that ratios are not 1 on policy"
_CODE = "code of your own makes the answers and says which of their tokens count; it is not read"
_GIVEN_UNREAD = "it is not read, and may change what is sampled or trained"
SAID: tuple[Said, ...] = (
    Said(
        rf"{ACTOR}(\w+\.)?router_replay\.mode|{ROLLOUT}enable_rollout_routing_replay",
        "disabled false",
        "router replay: experts are those that the engine (R3) or the pass for old_log_probs (R2) chose, and the "
        "gradient holds them fixed",
    ),
    Said(
        rf"{MODEL}mtp\.enable_train",
        "false",
        "with model.mtp.enable=true and Megatron, model.mtp.mtp_loss_scaling_factor times the loss of the layers that "
        "predict further tokens is added",
    ),
    Said(
        rf"{MEGATRON}moe_(aux|z)_loss_coeff",
        "null 0 0.0",
        "a loss of the router is added to the gradient (moe_aux_loss_coeff: if moe_router_load_balancing_type is set)",
    ),
    Said(f"{MEGATRON}moe_router_load_balancing_type", "null none", "moe_aux_loss_coeff times its loss is added"),
    Said(f"{MEGATRON}moe_input_jitter_eps", "null 0 0.0", "noise at the router's input: log-probs of passes differ"),
    Said(rf"({MEGATRON}|{MODEL}override_config\.)[\w.]*(dropout|pdrop)\w*", "null 0 0.0", _DROPOUT, WARNING),
    Said(rf"{MODEL}lora\.dropout", "null 0 0.0", _DROPOUT, WARNING),
    Said(
        rf"{MODEL}(lora\.rank|lora_rank)",
        "null 0",
        "only adapters are trained, and the reference is the model without them",
    ),
    Said(
        rf"{ACTOR}(\w+\.)?qat\.enable",
        "false",
        "weights are quantised in each pass, and the gradient takes their rounding for the identity",
    ),
    Said(f"{ACTOR}use_rollout_log_probs", "false", f"{_NO_EFFECT}: verl 0.9.1 does not read it"),
    Said(f"{ROLLOUT}over_sample_rate", "0 0.0", f"{_NO_EFFECT}: verl 0.9.1 does not read it"),
    Said(f"{ROLLOUT}repetition_penalty", "1 1.0", f"{_NO_EFFECT}: verl's agent loop hands 1.0 to the engine", WARNING),
    Said(f"{ROLLOUT}do_sample", "true", f"{_NO_EFFECT}: answers to train on are sampled all the same", WARNING),
    Said(
        f"{ROLLOUT}ignore_eos", "false", "vLLM samples on after the end of an answer, and that is trained too", WARNING
    ),
    Said(
        rf"{ROLLOUT}quantization(_config_file)?",
        "null",
        "the engine samples from quantised weights, whose log-probs differ from the trainer's",
    ),
    Said(rf"{ROLLOUT}multi_turn\.enable", "false", "tokens that tools write are masked: no mean counts them"),
    Said(
        rf"{ROLLOUT}agent\.(default_agent_loop|agent_loop_config_path|agent_loop_manager_class"
        r"|custom_async_server\.(path|name))",
        "null single_turn_agent",
        _CODE,
    ),
    Said("trainer.critic_warmup", "0", "for so many steps only the critic is trained"),
    Said(
        r"trainer\.v1\.sampler\.custom_sampler\.(path|name)",
        "null",
        "code of your own chooses the rows; it is not read",
    ),
    Said(r"skip\.\w+\.enable", "false", "answers come from a dump, which another policy may have sampled", WARNING),
    Said(rf"{MEGATRON}({_OF_MEGATRON})", "", ""),  # how it is computed
    Said(rf"({MEGATRON}|{ACTOR}megatron\.override_mcore_model_config\.).*", "null", _GIVEN_UNREAD),
    Said(f"({ROLLOUT}|{MODEL}).*", "null", _GIVEN_UNREAD),
)
_BELOW = tuple(name for name in HARMLESS if name.endswith("."))
_DATACLASSES = ("verl.trainer.config.RolloutCorrectionConfig", "verl.trainer.config.algorithm.RolloutCorrectionConfig")
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
    defaults = DEFAULTS | _own_correction(config, given)
    for name in SUBTREES:
        if name in given and given[name] is None:
            del given[name]
    said = {name for name in given if said_of(name) is not None}
    read = (n for n in given if n in said or n in DEFAULTS)
    for name in [n for n in read if isinstance(given[n], str) and "${" in given[n]]:
        if made is None:
            raise SpecError(
                f"verl: the option '{name}'",
                required="a value",
                found=f"the interpolation {given[name]}",
                remedy="write its value, or compose the config first: python -m verl.trainer.main_ppo ... --cfg job",
            )
        given[name] = OmegaConf.select(made, name)
    return Options("verl", given, defaults, (*HARMLESS, *said))


def said_of(name: str) -> Said | None:
    """What verl does with an option that is no part of the loss."""
    found = next((each for each in SAID if re.fullmatch(each.names, name)), None)
    is_harmless = name in HARMLESS or name.startswith(_BELOW)
    return None if name in DEFAULTS or (found is SAID[-1] and is_harmless) else found


def _own_correction(config: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The defaults of `policy_loss.rollout_correction` that are not those of verl's dataclass.

    verl makes the dataclass if the mapping is absent, or names it in `_target_`. Any other mapping stays one, of which
    its policy loss reads what is there, and `rollout_is` is null where it is not.
    """
    name = OWN_CORRECTION[:-1]
    target = given.get(f"{OWN_CORRECTION}_target_")
    if target is not None and str(target) not in _DATACLASSES:
        raise SpecError(f"verl: the option '{OWN_CORRECTION}_target_'", required=_DATACLASSES[0], found=shown(target))
    if name in given and given.pop(name) is None and given.get(f"{POLICY_LOSS}loss_mode") == "bypass_mode":
        raise SpecError(
            f"verl: the option '{name}'",
            required="a mapping, or nothing, with loss_mode=bypass_mode: verl raises an error",
            found="null",
            remedy=f"leave {name} out",
        )
    return {} if target is not None or not _has(config, name) else {f"{OWN_CORRECTION}rollout_is": None}


def _has(config: Mapping[Any, Any], name: str) -> bool:
    """Whether a config has a mapping of this name, perhaps an empty one. Dotted names count."""
    return any(
        str(key) == name
        or str(key).startswith(f"{name}.")
        or (name.startswith(f"{key}.") and isinstance(below, Mapping) and _has(below, name.removeprefix(f"{key}.")))
        for key, below in config.items()
    )


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
