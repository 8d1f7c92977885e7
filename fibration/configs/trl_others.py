"""Trainers of TRL 1.16, and of earlier releases, other than GRPOTrainer: their losses are not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fibration.errors import SpecError, shown

# Options of other trainers that GRPOTrainer does not have, by the name of the trainer.
_TRAINERS = {
    "A2POTrainer": "beta1 beta2 filter_all_incorrect num_value_samples",
    "AsyncDistillationTrainer": """add_tail_bucket heartbeat_stale_after_s log_completions_steps max_inflight_tasks
        max_staleness queue_maxsize request_timeout teacher_server_urls teacher_temperature teacher_top_k token_budget
        weight_sync_steps weight_sync_timeout""",
    "AsyncGRPOTrainer": """fork_threshold_tokens heartbeat_stale_after_s max_inflight_tasks max_staleness queue_maxsize
        request_timeout token_budget weight_sync_steps weight_sync_timeout""",
    "CPOTrainer": """alpha cpo_alpha dataset_num_proc generate_during_eval is_encoder_decoder label_smoothing
        max_length simpo_gamma""",
    "DistillationTrainer": "teacher_model_init_kwargs teacher_model_name_or_path teacher_model_revision",
    "DPOTrainer": """activation_offloading dataset_num_proc discopop_tau f_alpha_divergence_coef f_divergence_type
        label_smoothing ld_alpha loss_weights max_length pad_token padding_free precompute_ref_batch_size
        precompute_ref_log_probs truncation_mode use_weighting""",
    "GKDTrainer": "lmbda max_new_tokens seq_kd teacher_model_init_kwargs teacher_model_name_or_path",
    "GOLDTrainer": """lmbda log_completions_steps seq_kd teacher_model_init_kwargs teacher_model_name_or_path
        teacher_model_revision teacher_tokenizer_name_or_path uld_crossentropy_weight uld_distillation_weight
        uld_hybrid_matched_weight uld_hybrid_unmatched_weight uld_skip_student_eos uld_skip_teacher_eos
        uld_student_temperature uld_teacher_temperature uld_token_merge_strategy uld_use_hybrid_loss use_extended_uld
        use_uld_loss vllm_sync_frequency callbacks""",
    "IWOPDTrainer": """distillation_objective iw_opd_epsilon iw_opd_gamma lmbda log_completions_steps loss_add_tail
        loss_top_k max_length reverse_kl_top_1_mode teacher_model_init_kwargs teacher_model_name_or_path
        teacher_model_revision teacher_model_server_url use_teacher_server vllm_sync_frequency""",
    "KTOTrainer": """activation_offloading dataset_num_proc desirable_weight max_length precompute_ref_batch_size
        precompute_ref_log_probs undesirable_weight""",
    "OnlineDPOTrainer": "max_length max_new_tokens missing_eos_penalty reward_model_path",
    "ORPOTrainer": "dataset_num_proc generate_during_eval is_encoder_decoder max_length padding_value",
    "PPOTrainer": """cliprange cliprange_value gamma kl_estimator lam missing_eos_penalty num_ppo_epochs
        reward_model_path vf_coef whiten_rewards""",
    "RewardTrainer": """activation_offloading center_rewards_coefficient chat_template_path dataset_num_proc eos_token
        max_length pad_token""",
    "RLOOTrainer": "normalize_advantages reward_clip_range rloo_k token_level_kl",
    "SDFTTrainer": """distillation_add_tail distillation_alpha distillation_is_clip distillation_mode
        distillation_topk generate_from_teacher num_loss_tokens_to_skip teacher_model_kind teacher_prompt_template
        teacher_sync_steps teacher_update_rate use_teacher_server""",
    "SDPOTrainer": """diagnostics_flat_tolerance diagnostics_warning_interval distillation_add_tail distillation_alpha
        distillation_is_clip distillation_mode distillation_topk distillation_weight dont_reprompt_on_self_success
        environment_feedback_only_without_solution feedback_template include_environment_feedback max_reprompt_len
        remove_thinking_from_demonstration reprompt_template solution_template success_reward_threshold
        teacher_model_kind teacher_sync_steps teacher_update_rate use_successful_as_teacher use_teacher_server""",
    "ServerDistillationTrainer": """loss_add_tail loss_top_k reverse_kl_top_1_mode teacher_model_init_kwargs
        teacher_model_name_or_path teacher_model_revision teacher_model_server_url""",
    "SFTTrainer": """activation_offloading assistant_only_loss chat_template_path completion_only_loss dataset_kwargs
        dataset_num_proc dataset_text_field eos_token eval_packing max_length max_seq_length packing packing_strategy
        pad_token padding_free truncation_mode""",
    "TPOTrainer": "dataset_num_proc label_smoothing max_length tpo_alpha tpo_l_gamma truncation_mode",
    "Unsloth's GRPOTrainer": """max_seq_length unsloth_grpo_mini_batch unsloth_logit_chunk_multiplier
        unsloth_num_chunks vllm_sampling_params""",
}
OTHERS = {trainer: frozenset(names.split()) for trainer, names in _TRAINERS.items()}
# Their values of `loss_type`.
_LOSSES = {
    "CPOTrainer": "alphapo simpo",
    "DPOTrainer": """aot aot_unpaired apo_down apo_zero bco_pair discopop exo_pair hinge ipo nca_pair robust sft sigmoid
        sigmoid_norm sppo_hard""",
    "KTOTrainer": "apo_zero_unpaired kto",
    "SFTTrainer": "chunked_nll dft nll",
    "TPOTrainer": "tpo-l",
}
LOSSES = {trainer: frozenset(names.split()) for trainer, names in _LOSSES.items()}


REMEDY = "fibration audit FILE.py:FUNCTION says which loss a function is, whichever trainer calls it"


def refuse_others(config: Mapping[str, Any]) -> None:
    """Raises SpecError for a config of another trainer: it has options, or a `loss_type`, that GRPOTrainer lacks."""
    kinds = config.get("loss_type")
    losses = {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])}
    scores = {
        trainer: sum(name in config for name in names) + bool(losses & LOSSES.get(trainer, frozenset()))
        for trainer, names in OTHERS.items()
    }
    if not (most := max(scores.values())):
        return
    trainers = [trainer for trainer, score in scores.items() if score == most]
    option = next(
        name for name in (*config, "loss_type") if any(name in OTHERS[t] for t in trainers) or name == "loss_type"
    )
    raise another(
        f"the option '{option}' is not known to GRPOTrainer",
        " or ".join(trainers),
        f"{option} = {shown(config[option])}",
    )


def another(what: str, trainer: str, found: str = "") -> SpecError:
    """The error for a config of another trainer."""
    return SpecError(
        f"TRL: {what}: this is a config of {trainer}, whose loss is not read",
        required="a config of TRL's GRPOTrainer",
        found=found,
        remedy=REMEDY,
    )
