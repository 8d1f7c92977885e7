"""The loss of a config of TRL. TRL's own loss is beside it in tests/trainers/trl/test_config.py."""

import dataclasses
import sys

import pytest
import yaml
from oracles.trl_configs import EVERY, pairs, with_loss

from fibration import equivalent, load
from fibration.configs.files import load_config
from fibration.configs.trl import OTHERS as TRAINERS
from fibration.configs.trl import TABLE, hierarchy_of
from fibration.errors import SpecError

DEFAULTS, HARMLESS = TABLE.defaults, TABLE.harmless


def of(**options):
    return hierarchy_of(options)


def without_rewards(loss):
    return loss.hierarchy.replace(advantages=None, groups=(), gives_up={})


# A config, the shipped loss that it is, and parameters that have another name there.
NONE = dict(scale_rewards=False)
SAME = [
    (dict(loss_type="grpo"), "grpo", {}),
    (dict(), "dapo", {}),
    (dict(loss_type="bnpo"), "dapo", {}),
    (dict(loss_type="bnpo", per_device_train_batch_size=1), "grpo", {}),
    (dict(delta=2.0), "ppo", {}),
    (dict(loss_type="dr_grpo"), "dr_grpo", {}),
    (dict(loss_type="cispo", epsilon_high=5), "cispo_absolute", {}),
    (dict(loss_type="sapo"), "sapo", {}),
    (dict(loss_type="grpo", importance_sampling_level="sequence"), "gspo", {}),
    (dict(loss_type="luspo", importance_sampling_level="sequence"), "luspo", {}),
    (dict(loss_type="grpo", off_policy_mask_threshold=0.1), "opsm", {"delta": "threshold"}),
    (dict(use_vllm=True), "mis", {"ceiling": "most"}),
    (dict(use_vllm=True, vllm_importance_sampling_mode="token_truncate"), "tis", {"ceiling": "most"}),
    (dict(use_vllm=True, vllm_importance_sampling_mode="sequence_truncate"), "sequence_tis", {"ceiling": "most"}),
    (
        dict(use_vllm=True, vllm_importance_sampling_mode="token_mask", vllm_importance_sampling_clip_min=0.5),
        "icepop",
        {},
    ),
]


@pytest.mark.parametrize(("options", "name", "named"), SAME, ids=[f"{s[1]}: {s[0]}" for s in SAME])
def test_a_config_is_the_shipped_loss_that_its_page_names(options, name, named):
    report = equivalent(without_rewards(of(**options)), load(name), parameters=named)
    assert report.verdicts[0].status == "proved", str(report)


FROM_REWARDS = [
    (dict(loss_type="grpo", beta=0.04, use_bias_correction_kl=False), "grpo_k3"),
    (dict(loss_type="dr_grpo", scale_rewards=False), "dr_grpo_rewards"),
]


@pytest.mark.parametrize(("options", "name"), FROM_REWARDS, ids=[s[1] for s in FROM_REWARDS])
def test_a_config_is_the_shipped_loss_from_rewards_on(options, name):
    report = equivalent(of(**options).hierarchy, load(name))
    assert report.verdicts[0].status == "proved", str(report)


def test_the_unbiased_divergence_is_that_of_grpo_rk3():
    one = without_rewards(of(loss_type="grpo", beta=0.04))
    assert equivalent(one, load("grpo_rk3").replace(advantages=None, groups=(), gives_up={})).ok


def test_the_unbiased_divergence_of_sequences_has_the_ratio_of_the_completion():
    kl = of(importance_sampling_level="sequence", beta=0.1).hierarchy.penalties["kl"].formula
    assert "exp(mean(token_log_ratio, over=trajectory))" in str(kl)
    assert "exp(token_log_ratio)" in str(of(beta=0.1).hierarchy.penalties["kl"].formula)


def test_trls_deviation_has_another_epsilon_than_grpo_rewards():
    assert not equivalent(of(loss_type="grpo").hierarchy, load("grpo_rewards")).ok


NUMBERS = [
    (dict(epsilon=0.1), {"epsilon_low": 0.1, "epsilon_high": 0.1}),
    (dict(epsilon=0.1, epsilon_high=0.3), {"epsilon_low": 0.1, "epsilon_high": 0.3}),
    (dict(delta=2), {"ceiling": 2}),
    (dict(loss_type="dr_grpo", max_completion_length=64), {"length": 64}),
    (dict(loss_type="sapo", sapo_temperature_pos=2, sapo_temperature_neg=3), {"tau_pos": 2, "tau_neg": 3}),
    (
        dict(loss_type="vespo", vespo_k_pos=1, vespo_k_neg=4, vespo_lambda_pos=5, vespo_lambda_neg=6),
        {"k_pos": 1, "k_neg": 4, "lambda_pos": 5, "lambda_neg": 6},
    ),
    (dict(beta="1e-3"), {"beta": 1e-3}),
    (dict(off_policy_mask_threshold=0.5), {"threshold": 0.5}),
    (dict(use_vllm=True), {"most": 3}),
    (dict(use_vllm=True, vllm_importance_sampling_cap=2), {"most": 2}),
]


@pytest.mark.parametrize(("options", "numbers"), NUMBERS, ids=[str(n[0]) for n in NUMBERS])
def test_the_numbers_of_a_config_are_defaults_of_parameters(options, numbers):
    found = of(**options).hierarchy.parameters
    assert {name: found[name].default for name in numbers} == numbers


# ---------------------------------------------------------------- laws

LAWFUL = {**{name: with_loss(name, options) for name, options in EVERY.items()}, **pairs(12)}


@pytest.mark.sampled
@pytest.mark.parametrize("options", LAWFUL.values(), ids=LAWFUL)
def test_the_laws_that_a_config_breaks_are_given_up_and_no_others(options):
    report = hierarchy_of(options).hierarchy.verify()
    assert report.ok, str(report)


SAID = [
    (
        dict(loss_type="grpo", beta=0.04, use_bias_correction_kl=False),
        "kl_gradient",
        "use_bias_correction_kl=False: k3",
    ),
    (
        dict(loss_type="cispo"),
        "gradient",
        "epsilon=0.2 (the default) in the place of epsilon_high: loss_type=cispo reads it",
    ),
    (dict(loss_type="grpo", importance_sampling_level="sequence"), "first_order", "importance_sampling_level=sequence"),
    (dict(top_entropy_quantile=0.2), "mask_open", "top_entropy_quantile=0.2"),
    (dict(use_vllm=True), "causal", "vllm_importance_sampling_mode=sequence_mask (the default)"),
    (dict(), "baseline", "scale_rewards=group (the default)"),
]


@pytest.mark.parametrize(("options", "law", "words"), SAID, ids=[s[1] for s in SAID])
def test_a_broken_law_is_said_with_the_option_that_breaks_it(options, law, words):
    assert law in {law for finding in of(**options).findings if words in finding.sentence for law in finding.laws}


# ---------------------------------------------------------------- findings

VLLM = {"use_vllm": True}
TOKENS = {**VLLM, "vllm_importance_sampling_mode": "token_truncate"}
LONG = {"max_completion_length": 8192}
GRAVE = [  # options, the gravest findings: severity and words
    ({}, "note", "groups whose rewards differ less"),
    (dict(loss_type="cispo", epsilon=0.2), "error", "the gradient is 0.2 of the policy gradient"),
    (dict(loss_type="cispo", epsilon_high=0.28, importance_sampling_level="sequence"), "error", "is 0.28 of the policy"),
    (dict(loss_type="cispo", epsilon_high=5), "note", "a score estimator"),
    (dict(importance_sampling_level="sequence"), "warning", "667 times those of GSPO"),
    (dict(importance_sampling_level="sequence", epsilon=0.2, epsilon_high=0.28), "warning", "epsilon_high=0.28: the clip"),
    (dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4), "note", "sequence"),
    (dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3, epsilon_high=2.5e-3), "note", "sequence"),
    (dict(beta=0.04, use_bias_correction_kl=False), "warning", "KL(reference ‖ current)"),
    (dict(top_entropy_quantile=0.2), "note", "tokens of low entropy"),
    (VLLM, "warning", "at most √3·b^T"),
    ({**VLLM, **LONG}, "warning", "exp(-T/3200): at most 0.13 for T = 8192"),
    ({**VLLM, "vllm_importance_sampling_clip_max": None}, "warning", "no upper bound"),
    ({**VLLM, "vllm_importance_sampling_mode": "sequence_truncate"}, "warning", "it is cut at 3, so that it shrinks"),
    ({**VLLM, "vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_min": 0.5}, "warning", "lower bound is 0.5"),
    (TOKENS, "note", "baseline"),
    ({**VLLM, "vllm_importance_sampling_correction": False}, "note", "baseline"),
    ({**VLLM, "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": 1}, "error", "a bound of 1 drops"),
    ({**VLLM, "loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_cap": 1}, "error", "a bound of 1 drops"),
    ({**VLLM, "loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 1}, "error", "a bound of 1 drops"),
    ({**VLLM, "loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"}, "note", "weighed whole"),
    # what the engine samples from, for each use of its log-probs
    (dict(top_p=0.9), "warning", "no weight makes up for it"),
    ({**VLLM, "vllm_importance_sampling_correction": False, "top_k": 20}, "warning", "no weight makes up for it"),
    ({**TOKENS, "top_p": 0.9}, "warning", "as a factor, from 0.9 to 1"),
    ({**TOKENS, "min_p": 0.1}, "warning", "the mass that is kept there as a factor."),
    ({**TOKENS, "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5, "top_p": 0.4}, "warning", "below 0.5, the token is dropped"),
    ({**VLLM, "top_p": 0.9}, "error", "0.9^T at least for T tokens, 3e-05 for 100"),
    ({**VLLM, "top_k": 20}, "error", "which falls with its length"),
    ({**VLLM, "vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_min": 0.5, "top_p": 0.9}, "error", "Below 0.5 it counts 0.5"),
    ({**VLLM, "vllm_importance_sampling_clip_min": 0.5, "top_p": 0.9}, "error", "Below 0.5 it is dropped"),
    ({**TOKENS, "loss_type": "vespo", "top_p": 0.9}, "error", "loss_type=vespo with"),
    ({**TOKENS, "vllm_structured_outputs_regex": "a+"}, "warning", "vllm_structured_outputs_regex=a+"),
    ({**TOKENS, "generation_kwargs": {"top_p": 0.9}}, "warning", "generation_kwargs.top_p=0.9"),
    (dict(top_p=0.9, generation_kwargs={"top_p": 1}), "note", "baseline"),
    (dict(generation_kwargs='{"min_p": 0.1}'), "warning", "generation_kwargs.min_p=0.1"),
    (dict(generation_kwargs={"temperature": 0.6}), "warning", "temperature=0.6 beside temperature=1"),
    ({**VLLM, "generation_kwargs": {"temperature": 0.6}}, "warning", "an answer's weight is the product of them"),
    (dict(generation_kwargs={"temperature": 0.6}, temperature=0.6), "note", "baseline"),
    (dict(generation_kwargs={"do_sample": False}), "error", "all answers to a prompt are the same"),
    (dict(generation_kwargs={"temperature": 0}), "error", "all answers to a prompt are the same"),
    (dict(top_k=1), "error", "all answers to a prompt are the same"),
    (dict(repetition_penalty=1.1), "warning", "repetition_penalty=1.1"),
    (dict(generation_kwargs={"presence_penalty": 0.5, "num_beams": 4}), "warning", "presence_penalty=0.5 and"),
    (dict(generation_kwargs={"max_tokens": 64, "stop": ["x"], "seed": 1}), "note", "baseline"),
    # dropout
    (dict(num_iterations=2, use_peft=True), "warning", "lora_dropout=0.05"),
    (dict(num_iterations=2, model_init_kwargs={"attention_dropout": 0.1}), "warning", "attention_dropout=0.1"),
    (dict(model_init_kwargs={"attention_dropout": 0.1}), "note", "baseline"),
    (dict(num_iterations=2, use_peft=True, disable_dropout=True), "note", "baseline"),
    (dict(neftune_noise_alpha=5), "warning", "noise is added"),
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize(("options", "severity", "words"), GRAVE, ids=[str(g[0]) for g in GRAVE])
def test_a_config_has_findings_of_this_severity(options, severity, words):
    found = of(**options).findings
    assert found[0].severity == severity, found
    grave = [str(finding) for finding in found if finding.severity == severity]
    assert any(words in finding for finding in grave), grave


def test_a_finding_is_gone_with_its_change(tmp_path):
    """What a finding proposes are words `KEY=VALUE` after the config."""
    several = [*EVERY.values(), *pairs(12).values(), *(options for options, *_ in GRAVE)]
    changes = 0
    for options in several:
        (tmp_path / "grpo.yaml").write_text(yaml.safe_dump({**options, "learning_rate": 1e-6}))
        found = of(**options).findings
        for finding in found:
            assert finding.change or finding.severity != "error"
            if finding.change:
                left = load_config(f"trl:{tmp_path / 'grpo.yaml'}", finding.change.split()).findings
                assert finding not in left
                assert {x for x in left if x.severity == "error"} <= set(found)
                changes += 1
    assert changes > 50


# ---------------------------------------------------------------- what surrounds the loss

AROUND = [
    (dict(), "All ratios are exactly 1"),
    (dict(use_vllm=True), "All ratios are 1 up to rounding"),
    (dict(num_iterations=2), "A generation takes 2 optimizer steps (num_iterations=2, "),
    (dict(num_iterations=3), "the policy is 2 steps away from the one that sampled"),
    (dict(gradient_accumulation_steps=2, steps_per_generation=3), "takes 1.5 optimizer steps"),
    (dict(gradient_accumulation_steps=4, steps_per_generation=7), "the policy is 2 steps away"),  # not always aligned
    (dict(num_iterations=2), None),
    (dict(gradient_accumulation_steps=2, steps_per_generation=4), "2/4 of its generation's tokens"),
    (
        dict(loss_type="grpo", gradient_accumulation_steps=2, steps_per_generation=4),
        "rewards are compared within whole",
    ),
    (dict(generation_batch_size=64), "the number of processes decides"),
    (dict(loss_type="bnpo"), "divided by its own tokens"),
    (dict(loss_type="grpo", mask_truncated_completions=True), "TRL divides by all rows"),
    (dict(mask_truncated_completions=True), "has no token in the loss"),
    (dict(entropy_coef=0.01), "minus 0.01 times the mean"),
    (
        dict(use_adaptive_entropy=True),
        "use_adaptive_entropy=True changes the factor after every step, to 0 above entropy_target",
    ),
    (dict(router_aux_loss_coef=0.1), "load balancing"),
    (dict(beta=0.1, sync_ref_model=True), "every 512 steps the reference model moves"),
    (dict(temperature=0.7), "logits divided by 0.7"),
    (dict(top_p=0.9, top_k=5), "top_p=0.9 and top_k=5"),
    (dict(min_p=0.1), "min_p=0.1"),
    (dict(repetition_penalty=1.1), "repetition_penalty=1.1"),
    (dict(reward_weights=[1, 2]), "weighed by reward_weights=[1.0, 2.0]"),
    (dict(multi_objective_aggregation="normalize_then_sum"), "each minus its mean"),
    (dict(top_entropy_quantile=0.2), "the quantile of one micro-batch"),
    (dict(loss_type="vespo", epsilon=0.3, delta=2), "epsilon=0.3 and delta=2 have no effect"),
    (dict(vllm_importance_sampling_mode="token_mask"), "vllm_importance_sampling_mode=token_mask has no effect"),
    (
        dict(multi_objective_aggregation="normalize_then_sum", scale_rewards="batch"),
        "scale_rewards=batch has no effect",
    ),
]


@pytest.mark.parametrize(("options", "words"), AROUND, ids=[str(a[0]) for a in AROUND])
def test_what_no_hierarchy_says_is_said_in_a_sentence(options, words):
    found = of(**options).around
    assert all(sentence.endswith(".") for sentence in found)
    if words is None:
        assert not any("All ratios" in sentence for sentence in found)
    else:
        assert any(words in sentence for sentence in found), found


def test_nothing_else_surrounds_a_plain_config():
    plain = of(loss_type="grpo", num_iterations=2, reward_funcs=["accuracy_reward"])
    (steps,) = plain.around
    assert steps.startswith("A generation takes 2 optimizer steps")


# ---------------------------------------------------------------- refusals

WRONG = [
    dict(loss_type="grpo_"), dict(loss_type=None), dict(importance_sampling_level="turn"), dict(epsilon=0),
    dict(epsilon="a"), dict(epsilon_high=-0.1), dict(delta=1), dict(delta=0.5), dict(loss_type="sapo", sapo_temperature_pos=0),
    dict(beta=-0.1), dict(beta=None), dict(scale_rewards="std"), dict(scale_rewards=2), dict(multi_objective_aggregation="sum"),
    dict(reward_weights=[]), dict(reward_weights=["a"]), dict(reward_weights=3), dict(reward_weights=[float("nan")]),
    dict(num_generations=1), dict(off_policy_mask_threshold=0), dict(off_policy_mask_threshold=-1), dict(top_entropy_quantile=1.5),
    dict(use_vllm="perhaps"), dict(use_vllm=True, vllm_importance_sampling_mode="row_mask"),
    dict(use_vllm=True, vllm_importance_sampling_clip_max=0.5), dict(use_vllm=True, vllm_importance_sampling_clip_min=1.5),
    dict(use_vllm=True, vllm_importance_sampling_clip_max=1, vllm_importance_sampling_clip_min=1),
    dict(use_vllm=True, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=None),
    dict(use_vllm=True, loss_type="vespo", vllm_importance_sampling_mode="sequence_mask"), dict(loss_type="dr_grpo", max_completion_length=None),
    dict(generation_batch_size=8, steps_per_generation=2), dict(steps_per_generation=0), dict(gradient_accumulation_steps=1.5),
    dict(generation_kwargs={"top": 1}), dict(generation_kwargs="top_p"), dict(model_init_kwargs=3), dict(temperature=0),
    dict(num_iterations=0), dict(entropy_coef="much"), dict(mask_truncated_completions=2),
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG, ids=map(str, WRONG))
def test_a_value_that_cannot_be_read_is_an_error_that_names_its_option(options):
    with pytest.raises(SpecError, match="TRL: the option '") as error:
        of(**options)
    assert any(f"'{name}" in error.value.what for name in options)


OTHERS = [
    (dict(normalize_advantages=True, beta=0.05), "RLOOTrainer"),
    (dict(max_staleness=3, token_budget=2, fork_threshold_tokens=1), "AsyncGRPOTrainer"),
    (dict(teacher_model_name_or_path="x", teacher_model_server_url="y"), "IWOPDTrainer or ServerDistillationTrainer"),
    (dict(teacher_model_revision="x"), "DistillationTrainer"),
    (dict(unsloth_num_chunks=-1), "Unsloth's GRPOTrainer"),
    (dict(loss_type="sigmoid"), "DPOTrainer"),
    (dict(loss_type=["sigmoid", "sft"]), "DPOTrainer"),
    (dict(vf_coef=0.1), "PPOTrainer"),
    (dict(loss_type="dapo", distillation_weight=1), "SDPOTrainer"),
]


@pytest.mark.parametrize(("options", "trainer"), OTHERS, ids=[o[1] for o in OTHERS])
def test_a_config_of_another_trainer_is_named_and_nothing_is_to_be_left_out(options, trainer):
    with pytest.raises(SpecError, match=f"is not known to GRPOTrainer: this is a config of .*{trainer}") as error:
        of(**options)
    assert "leave" not in str(error.value)


def test_no_option_of_grpo_is_one_of_another_trainer():
    assert not frozenset().union(*TRAINERS.values()) & (HARMLESS | DEFAULTS.keys())


@pytest.mark.parametrize("name", ["use_liger_loss", "kl_coef", "epsilon_hi", "max_prompt_len"])
def test_an_unknown_option_is_an_error(name):
    with pytest.raises(SpecError, match=f"'{name}' is not known"):
        of(**{name: 1})


@pytest.mark.parametrize(
    "name", ["learning_rate", "model_name_or_path", "lora_r", "dataset_name", "max_prompt_length", "env"]
)
def test_an_option_that_does_not_touch_the_loss_changes_nothing(name):
    assert of(**{name: 1}) == of()


def test_no_option_is_both_read_and_ignored():
    assert not HARMLESS & DEFAULTS.keys()


# ---------------------------------------------------------------- objects

GRPOConfig = dataclasses.make_dataclass(
    "GRPOConfig", [(name, object, dataclasses.field(default=value)) for name, value in DEFAULTS.items()]
)


def test_a_config_object_is_read_by_attribute():
    made = GRPOConfig(loss_type="grpo", epsilon=0.1, steps_per_generation=1, generation_batch_size=8)
    assert hierarchy_of(made) == of(loss_type="grpo", epsilon=0.1, steps_per_generation=1)


def test_a_field_of_a_subclass_is_an_error_where_it_is_set():
    mine = dataclasses.make_dataclass(
        "Mine", [("my_bound", float, dataclasses.field(default=0.0))], bases=(GRPOConfig,)
    )
    assert hierarchy_of(mine()) == of()
    with pytest.raises(SpecError, match="'my_bound' is not known"):
        hierarchy_of(mine(my_bound=1.0))


@pytest.mark.parametrize("module", ["trl.experimental.gmpo.gmpo_config", "unsloth_compiled_cache"])
def test_a_config_object_of_a_trainer_that_changes_the_loss_is_an_error(module):
    name = "GMPOConfig" if "trl" in module else "UnslothGRPOConfig"
    made = dataclasses.make_dataclass(name, [], bases=(GRPOConfig,), namespace={"__module__": module})
    with pytest.raises(SpecError, match=f"a {name} changes the loss of GRPOTrainer"):
        hierarchy_of(made())


@pytest.mark.parametrize("config", [None, "grpo.yaml", 3, object(), GRPOConfig])
def test_what_is_no_config_is_an_error(config):
    with pytest.raises(SpecError, match=r"is no config of TRL's GRPOTrainer"):
        hierarchy_of(config)


def test_trl_is_not_imported():
    assert "trl" not in sys.modules
