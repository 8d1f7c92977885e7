"""The values that the trainers' own example scripts set, through the command line: each is read, or its key is named.

The values are those of verl's `examples/` of August 2026 and TRL's of July 2026.
"""

from __future__ import annotations

import pytest
import yaml
from support import invoke

from fibration.configs.specs import as_spec

ROW_MEANS = {"loss_agg_mode": "seq-mean-token-mean"}
SMALL = {"clip_ratio_low": "3e-4", "clip_ratio_high": "4e-4", "clip_ratio_c": 10.0}  # YAML reads 3e-4 as text
WIDE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0}
K3 = {"use_kl_loss": True, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "entropy_coeff": 0}
IN_REWARD = {"use_kl_in_reward": True, "kl_penalty": "kl", "kl_ctrl": {"kl_coef": 0.001}}


def run(algorithm, actor, n, prompts, mini, length=2048, **rollout):
    """A config in verl's nesting."""
    actor = {"ppo_mini_batch_size": mini, "use_dynamic_bsz": True, "optim": {"lr": "1e-6"}, **actor}
    both = {"actor": actor, "rollout": {"name": "vllm", "n": n, **rollout}, "model": {"path": "Qwen/Qwen3-8B"}}
    data = {"train_batch_size": prompts, "max_prompt_length": 1024, "max_response_length": length}
    return {"algorithm": algorithm, "data": data, "actor_rollout_ref": both, "trainer": {"total_epochs": 15}}


GRPO = {"adv_estimator": "grpo", "use_kl_in_reward": False}
# config, the defaults of its parameters, and words of `around`
VERL = {
    "gspo_trainer/run_qwen3_30b_a3b": (
        run(GRPO, {"policy_loss": {"loss_mode": "gspo"}, "use_kl_loss": False, **ROW_MEANS, **SMALL}, 16, 256, 32, 8192),
        {"epsilon_low": 3e-4, "epsilon_high": 4e-4}, "256 prompts takes 8 optimizer steps",
    ),
    "cispo_trainer/run_qwen3_8b": (
        run(GRPO, {"policy_loss": {"loss_mode": "cispo"}, "clip_ratio_low": 10, "clip_ratio_high": 0.2, **K3}, 5, 1024, 256),
        {"epsilon_low": 10, "epsilon_high": 0.2, "beta": 0.001}, "the policy is 3 steps away",
    ),
    "gmpo_trainer/run_qwen3_8b": (
        run(GRPO, {"policy_loss": {"loss_mode": "geo_mean"}, "clip_ratio_low": 0.4, "clip_ratio_high": 0.4, **K3}, 5, 1024, 256),
        {"epsilon_low": 0.4, "epsilon_high": 0.4}, "K times as large",
    ),
    "gpg_trainer/run_qwen3_8b": (
        run({"adv_estimator": "gpg"}, {"policy_loss": {"loss_mode": "gpg"}, "use_kl_loss": False}, 5, 1024, 256), {}, "",
    ),
    "grpo_trainer/run_hy_v3": (
        run(
            GRPO | {"norm_adv_by_std_in_grpo": False}
            | {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_4.0"}},
            {**WIDE, **ROW_MEANS, **K3, "kl_loss_coef": 0.0}, 16, 128, 128, 8192, temperature=0.9, calculate_log_probs=True,
        ),
        {"epsilon_high": 0.28, "ceiling": 10.0}, "No clip ever acts",
    ),
    "grpo_trainer/run_qwen3_vl_30b_a3b": (
        run(
            GRPO | {"rollout_correction": {
                "rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True,
                "rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.6", "bypass_mode": False,
            }},
            {**K3, "kl_loss_coef": 0.01}, 5, 512, 128, calculate_log_probs=True,
        ),
        {"beta": 0.01}, "rollout_rs: advantages, the KL loss and the entropy bonus leave out",
    ),
    "reinforce_plus_plus_trainer/run_qwen3_8b": (
        run({"adv_estimator": "reinforce_plus_plus", **IN_REWARD}, {"use_kl_loss": False}, 8, 1024, 1024), {}, "No clip",
    ),
    "remax_trainer/run_qwen3_8b": (run({"adv_estimator": "remax", **IN_REWARD}, {}, 4, 1024, 256), {}, "4 optimizer"),
    "rloo_trainer/run_qwen3_8b": (run({"adv_estimator": "rloo", **IN_REWARD}, {}, 5, 1024, 256), {}, "4 optimizer"),
    "rollout_correction/run_qwen2_5_7b": (
        run(
            {"adv_estimator": "rloo", "rollout_correction": {
                "rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True,
                "bypass_mode": True, "loss_type": "reinforce",
            }},
            {}, 8, 128, 32, 4096, calculate_log_probs=True,
        ),
        {}, "rollout_is, rollout_rs and loss_type have no effect",
    ),
}  # fmt: skip
# config, and the key that the error names
VERL_REFUSED = {
    "gdpo_trainer/run_qwen3_8b": (
        run({"adv_estimator": "gdpo", "gdpo_reward_keys": ["accuracy_reward", "format_reward"]}, {}, 4, 128, 32),
        "'algorithm.gdpo_reward_keys'",
    ),
    "otb_trainer/run_qwen3_8b": (run({"adv_estimator": "optimal_token_baseline"}, {}, 8, 128, 128), "adv_estimator'"),
    "on_policy_distillation_trainer/run_qwen3_8b": (
        {**run(GRPO, {}, 1, 128, 128), "distillation": {"enabled": True}}, "'distillation.enabled'",
    ),
    "sapo_trainer/run_qwen3_8b": (  # verl reads actor.tau_pos
        run(GRPO, {"policy_loss": {"loss_mode": "sapo", "tau_pos": 1.0, "tau_neg": 1.05}}, 16, 256, 32),
        "fix: write actor_rollout_ref.actor.tau_neg",
    ),
    "router_replay/run_qwen3_30b_a3b": (  # of a later release
        run(GRPO, {"model_engine": "megatron"}, 16, 128, 32), "actor_rollout_ref.actor.model_engine",
    ),
}  # fmt: skip
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}, "log_completions": True, "report_to": "trackio"}
PEFT = {"learning_rate": "1e-5", "dtype": "bfloat16", "use_peft": True, "lora_target_modules": ["q_proj", "v_proj"]}
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.15}
TRL = {
    "scripts/gspo": (
        {**PEFT, "importance_sampling_level": "sequence", "epsilon": "3e-4", "epsilon_high": "4e-4", "beta": 0.0,
         "loss_type": "grpo", "gradient_accumulation_steps": 2, "steps_per_generation": 8, "max_completion_length": 1024},
        {"epsilon_low": 3e-4, "epsilon_high": 4e-4}, "A generation takes 4 optimizer steps",
    ),
    "scripts/grpo_vlm": (
        {**PEFT, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "num_generations": 2},
        {}, "All ratios are exactly 1",
    ),
    "scripts/grpo_agent": ({**VLLM, "push_to_hub": True, "max_steps": 400}, {"most": 3.0}, "All ratios are 1 up to rounding"),
    "scripts/grpo_2048": (
        {**PLAIN, "max_completion_length": 2048, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
         "logging_steps": 1, "num_completions_to_print": 2, "trackio_space_id": "trl-2048"},
        {}, "All ratios are exactly 1",
    ),
    "scripts/openenv/carla": (
        {**PLAIN, "steps_per_generation": 1, "gradient_accumulation_steps": 16, "max_completion_length": 1024},
        {}, "16/1 of its generation's tokens",
    ),
    "scripts/openenv/catch": (
        {**PLAIN, "use_vllm": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 16},
        {"most": 3.0}, "All ratios are 1 up to rounding",
    ),
    "notebooks/openenv_sudoku_grpo": (
        {**PLAIN, **VLLM, "temperature": 0.8, "top_k": 10, "num_generations": 2, "per_device_train_batch_size": 1,
         "gradient_accumulation_steps": 64, "max_completion_length": 16384, "warmup_steps": 20, "max_grad_norm": 1.0},
        {}, "logits divided by 0.8",
    ),
    "notebooks/grpo_trl_lora_qlora": (
        {"model_init_kwargs": {"attn_implementation": "sdpa", "dtype": "float32"}, "optim": "paged_adamw_8bit",
         "use_liger_kernel": True, "learning_rate": 2e-05, "num_generations": 8, "max_completion_length": 256},
        {}, "All ratios are exactly 1",
    ),
}  # fmt: skip
READ = {f"{t}: {n}": (t, *found) for t, all_of in (("verl", VERL), ("trl", TRL)) for n, found in all_of.items()}


@pytest.mark.parametrize("name", READ)
def test_the_values_of_an_example_are_read_from_a_file(name, tmp_path):
    trainer, config, defaults, words = READ[name]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    spec = f"{trainer}:{tmp_path / 'run.yaml'}"
    found = as_spec(spec).load()
    assert {n: found.hierarchy.parameters[n].default for n in defaults} == pytest.approx(defaults)
    assert words in " ".join(found.around)
    code, output = invoke("show", spec)
    assert code == 0 and words in " ".join(output.split())


@pytest.mark.parametrize("name", VERL_REFUSED)
def test_an_example_that_no_hierarchy_says_is_refused_by_its_key(name, tmp_path):
    config, key = VERL_REFUSED[name]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    code, output = invoke("show", f"verl:{tmp_path / 'run.yaml'}")
    assert code == 2 and key in " ".join(output.split()) and "Traceback" not in output


def test_the_words_of_a_script_may_follow_a_file(tmp_path):
    """As on verl's command line, with `+` before a key and a number that YAML reads as text."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(VERL["gspo_trainer/run_qwen3_30b_a3b"][0]))
    words = ["actor_rollout_ref.actor.clip_ratio_low=1e-3", "+trainer.x=1", "actor_rollout_ref.actor.ppo_epochs=2"]
    found = as_spec([f"verl:{tmp_path / 'run.yaml'}", *words]).load()
    assert found.hierarchy.parameters["epsilon_low"].default == 1e-3
    assert "takes 16 optimizer steps" in " ".join(found.around)
