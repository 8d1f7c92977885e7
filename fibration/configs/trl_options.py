"""The options of TRL 1.16 by name: those that touch the loss, with TRL's defaults, and those that do not."""

from __future__ import annotations

from typing import Any

# Options of `GRPOConfig` that decide the loss, or what surrounds it, with TRL's defaults.
DEFAULTS: dict[str, Any] = {
    # the loss of a token
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_pos": 3.0,
    "vespo_lambda_neg": 2.0,
    "max_completion_length": 512,
    # advantages
    "num_generations": 8,
    "reward_funcs": None,
    "reward_model_name_or_path": None,
    "reward_weights": None,
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    # masks and weights
    "mask_truncated_completions": False,
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_cap": None,
    # further terms
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "sync_ref_model": False,
    "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "router_aux_loss_coef": None,
    # which rows share a step, and which policy sampled them
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "vllm_mode": "colocate",
    "vllm_structured_outputs_regex": None,
    # which model is trained, and what is added in its passes
    "model_init_kwargs": None,
    "disable_dropout": False,
    "use_peft": False,
    "lora_dropout": 0.05,
    "neftune_noise_alpha": None,
}

_TRAINING = """
accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon
auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed dataloader_drop_last
dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm do_eval do_predict do_train
enable_jit_checkpoint eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps eval_strategy
eval_use_gather_object fp16 fp16_full_eval fsdp fsdp_config full_determinism gradient_checkpointing
gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
hub_token ignore_data_skip include_for_metrics include_num_input_tokens_seen label_names label_smoothing_factor
learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica
log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps logging_strategy
lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model
num_train_epochs optim optim_args optim_target_modules output_dir overwrite_output_dir parallelism_config
per_device_eval_batch_size prediction_loss_only project push_to_hub remove_unused_columns report_to
restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model
save_safetensors save_steps save_strategy save_total_limit seed skip_memory_metrics tf32 torch_compile
torch_compile_backend torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id
trackio_static_space_id train_sampling_strategy use_cache use_cpu use_liger_kernel warmup_ratio warmup_steps
weight_decay
"""
_GRPO = """
cache_implementation cast_lm_head_to_fp32 chat_template_kwargs ds3_gather_for_generation
log_completions log_completions_hub_repo log_multimodal log_unique_prompts
max_tool_calling_iterations num_completions_to_print num_generations_eval pad_to_multiple_of
shuffle_dataset transformers_continuous_batching_config trust_remote_code use_transformers_continuous_batching
use_transformers_paged vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length
vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
vllm_tensor_parallel_size
"""
# They steer `entropy_coef` where it adapts.
_ENTROPY = "entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target"
# Of `ModelConfig`, `ScriptArguments`, `GRPOScriptArguments`, `DatasetMixtureConfig`, and what `TrlParser` takes itself.
_SCRIPT = """
attn_implementation bnb_4bit_quant_storage bnb_4bit_quant_type config dataset_config dataset_name dataset_streaming
dataset_test_split dataset_train_split datasets dtype env ignore_bias_buffers load_in_4bit load_in_8bit lora_alpha
lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type model_name_or_path
model_revision streaming test_split_size torch_dtype use_bnb_nested_quant use_dora use_rslora
"""
# Options of earlier releases that did not touch the loss either.
_EARLIER = "ddp_bucket_cap max_prompt_length vllm_guided_decoding_regex wandb_log_unique_prompts"
HARMLESS = frozenset(f"{_TRAINING} {_GRPO} {_ENTROPY} {_SCRIPT} {_EARLIER}".split())

# Keys of `model_init_kwargs` with which the same function is computed.
OF_MODEL = frozenset(
    """
    attn_implementation cache_dir code_revision device_map dtype experts_implementation force_download local_files_only
    low_cpu_mem_usage max_memory offload_folder offload_state_dict quantization_config revision subfolder token
    torch_dtype tp_plan trust_remote_code use_cache use_kernels use_safetensors variant
    """.split()
)
