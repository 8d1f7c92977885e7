"""A config of verl as a hierarchy, without verl: which options are read, what is refused, and which shipped loss it is."""

import math
import re
import subprocess
import sys

import pytest
from oracles.verl_configs import random_configs
from thorough import ALL

from fibration import SpecError, equivalent, load
from fibration.configs.verl import hierarchy_of
from fibration.configs.verl.estimators import BY_POSITION, ESTIMATORS
from fibration.configs.verl.losses import LOSSES, MASKS
from fibration.configs.verl.options import (
    ACTOR,
    ALGORITHM,
    CORRECTION,
    KL_NAMES,
    OWN_CORRECTION,
    POLICY_LOSS,
    ROLLOUT,
    TABLE,
)

DEFAULTS, MEGATRON = TABLE.defaults, f"{ACTOR}megatron.override_transformer_config."

MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
GROUPS = {f"{ALGORITHM}adv_estimator": "grpo", f"{ROLLOUT}n": 8}
KL = {f"{ACTOR}use_kl_loss": True}
IN_REWARD = {f"{ALGORITHM}use_kl_in_reward": True}
PROMPTS = "data.train_batch_size"
MODE, ESTIMATOR = f"{POLICY_LOSS}loss_mode", f"{ALGORITHM}adv_estimator"
IS = {f"{CORRECTION}rollout_is": "token"}
RS = {f"{CORRECTION}rollout_rs": "token_k3", f"{CORRECTION}rollout_rs_threshold": 0.1}
BYPASS = {MODE: "bypass_mode", f"{OWN_CORRECTION}loss_type": "reinforce", f"{OWN_CORRECTION}rollout_is": "sequence"}
NEEDS = {
    "clip_cov": {f"{POLICY_LOSS}clip_cov_ratio": 1.0},
    "dro": {f"{POLICY_LOSS}dro_beta": 0.2},
    "gdpo": {f"{ALGORITHM}gdpo_reward_keys": ["acc"]},
}


def read(*parts, **options):
    """The loss of some mappings of dotted names."""
    return hierarchy_of({k: v for part in (*parts, options) for k, v in part.items()})


def refusal(*parts):
    with pytest.raises(SpecError) as refused:
        read(*parts)
    return str(refused.value)


# ---------------------------------------------------------------- every option is read

# A value of each option that is not its default, and the options beside which it counts.
CHANGES = {
    f"{ACTOR}clip_ratio": (0.1, {f"{ACTOR}clip_ratio_low": None}),
    f"{ACTOR}clip_ratio_low": (0.1, {}),
    f"{ACTOR}clip_ratio_high": (0.28, {}),
    f"{ACTOR}clip_ratio_c": (10.0, {}),
    f"{ACTOR}tau_pos": (2.0, {MODE: "sapo"}),
    f"{ACTOR}tau_neg": (2.0, {MODE: "sapo"}),
    f"{ACTOR}loss_agg_mode": ("token-sum", {}),
    f"{ACTOR}loss_scale_factor": (16, {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}),
    f"{ACTOR}entropy_coeff": (0.01, {}),
    f"{ACTOR}use_kl_loss": (True, {}),
    f"{ACTOR}kl_loss_coef": (0.1, KL),
    f"{ACTOR}kl_loss_type": ("mse", KL),
    f"{ACTOR}ppo_mini_batch_size": (64, {}),
    f"{ACTOR}ppo_epochs": (2, {}),
    PROMPTS: (512, {}),
    "trainer.v1.trainer_mode": ("separate_async", {}),
    f"{POLICY_LOSS}loss_mode": ("cispo", {}),
    f"{POLICY_LOSS}clip_cov_ratio": (1.0, {MODE: "clip_cov"}),
    f"{POLICY_LOSS}clip_cov_lb": (0.5, {MODE: "clip_cov", f"{POLICY_LOSS}clip_cov_ratio": 1.0}),
    f"{POLICY_LOSS}clip_cov_ub": (2.0, {MODE: "clip_cov", f"{POLICY_LOSS}clip_cov_ratio": 1.0}),
    f"{POLICY_LOSS}kl_cov_ratio": (0.1, {MODE: "kl_cov"}),
    f"{POLICY_LOSS}ppo_kl_coef": (1.0, {MODE: "kl_cov"}),
    f"{POLICY_LOSS}dro_beta": (0.1, {MODE: "dro"}),
    f"{POLICY_LOSS}hierarchy": ("dapo", {MODE: "fibration"}),
    f"{OWN_CORRECTION}loss_type": ("reinforce", {MODE: "bypass_mode"}),
    f"{OWN_CORRECTION}rollout_is": ("token", BYPASS),
    f"{OWN_CORRECTION}rollout_is_threshold": (4.0, BYPASS),
    f"{OWN_CORRECTION}rollout_is_batch_normalize": (True, BYPASS),
    f"{OWN_CORRECTION}rollout_rs": ("token_k3", {**BYPASS, f"{OWN_CORRECTION}rollout_rs_threshold": 0.1}),
    f"{OWN_CORRECTION}rollout_rs_threshold": (0.2, {**BYPASS, f"{OWN_CORRECTION}rollout_rs": "token_k3"}),
    f"{CORRECTION}rollout_is": ("sequence", {}),
    f"{CORRECTION}rollout_is_threshold": ("0.5_5.0", IS),
    f"{CORRECTION}rollout_is_batch_normalize": (True, IS),
    f"{CORRECTION}rollout_rs": ("seq_mean_k1", {f"{CORRECTION}rollout_rs_threshold": 2.0}),
    f"{CORRECTION}rollout_rs_threshold": ("0.5_2.0", {f"{CORRECTION}rollout_rs": "token_k1"}),
    f"{CORRECTION}bypass_mode": (True, {}),
    f"{CORRECTION}loss_type": ("reinforce", {f"{CORRECTION}bypass_mode": True, "trainer.use_v1": False}),
    f"{ALGORITHM}adv_estimator": ("rloo", {}),
    f"{ALGORITHM}gamma": (0.9, {ESTIMATOR: "gae"}),
    f"{ALGORITHM}lam": (0.9, {ESTIMATOR: "gae"}),
    f"{ALGORITHM}norm_adv_by_std_in_grpo": (False, {}),
    f"{ALGORITHM}use_kl_in_reward": (True, {}),
    f"{ALGORITHM}kl_penalty": ("low_var_kl", IN_REWARD),
    f"{ALGORITHM}use_pf_ppo": (True, {ESTIMATOR: "gae"}),
    f"{ALGORITHM}kl_ctrl.type": ("adaptive", IN_REWARD),
    f"{ALGORITHM}kl_ctrl.kl_coef": (0.1, IN_REWARD),
    f"{ALGORITHM}gdpo_reward_keys": (["acc"], {ESTIMATOR: "gdpo"}),
    f"{ALGORITHM}gdpo_reward_weights": ([2.0], {ESTIMATOR: "gdpo", f"{ALGORITHM}gdpo_reward_keys": ["acc"]}),
    f"{ALGORITHM}filter_groups.enable": (True, {}),
    f"{ALGORITHM}filter_groups.metric": ("acc", {f"{ALGORITHM}filter_groups.enable": True}),
    f"{ROLLOUT}n": (1, {}),
    f"{ROLLOUT}calculate_log_probs": (False, IS),
    f"{ROLLOUT}temperature": (0.7, {}),
    f"{ROLLOUT}top_p": (0.9, {}),
    f"{ROLLOUT}top_k": (20, {}),
    f"{ROLLOUT}min_p": (0.1, {}),
    f"{ROLLOUT}logprobs_mode": ("raw_logprobs", {f"{ROLLOUT}top_p": 0.9, **IS}),
    "data.max_response_length": (2048, {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}),
    "distillation.enabled": (True, {}),
    "trainer.use_v1": (False, RS),
}


def outcome(config):
    try:
        return hierarchy_of(config)
    except SpecError as error:
        return str(error)


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_option_that_touches_the_loss_changes_what_is_read(name):
    value, beside = CHANGES[name]
    without = {**GROUPS, **beside}
    assert outcome({**without, name: value}) != outcome(without)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DEFAULTS)
def test_a_value_of_another_kind_is_refused_or_changes_nothing_silently(name):
    """An option that is read refuses an object that no YAML of verl has there."""
    _, beside = CHANGES[name]
    text = outcome({**GROUPS, **beside, name: {1, 2}})
    if name in (f"{POLICY_LOSS}hierarchy", f"{ALGORITHM}filter_groups.metric"):  # any text
        return
    assert isinstance(text, str) and name in text


@pytest.mark.sampled
@pytest.mark.parametrize("name", DEFAULTS)
def test_each_reason_begins_with_the_option_that_breaks_the_law(name):
    value, beside = CHANGES[name]
    found = outcome({**GROUPS, **beside, name: value})
    options = {each.rpartition(".")[2] for each in DEFAULTS}
    for law, why in () if isinstance(found, str) else found.hierarchy.gives_up.items():
        assert re.match(r"\w+", why)[0] in options, (law, why)


# ---------------------------------------------------------------- every value is read


@pytest.mark.parametrize("mode", LOSSES)
def test_every_policy_loss_is_read(mode):
    found = read(GROUPS, {MODE: mode}, NEEDS.get(mode, {})).hierarchy
    assert found.name == "verl" and found.advantages is not None


@pytest.mark.parametrize("mode", MEANS)
def test_every_reduction_is_read(mode):
    found = read(GROUPS, {f"{ACTOR}loss_agg_mode": mode}).hierarchy
    own = {"token-mean": "token_mean()", "seq-mean-token-mean": "trajectory_mean()", "token-sum": "Objective(1)"}
    assert found.objective.written == own.get(mode, f"constant_normaliser({'length' if 'norm' in mode else 1})")


@pytest.mark.parametrize("kind", KL_NAMES)
def test_every_estimator_of_the_divergence_is_read(kind):
    assert "kl" in read(GROUPS, KL, {f"{ACTOR}kl_loss_type": kind}).hierarchy.penalties
    shaped = read(GROUPS, IN_REWARD, {f"{ALGORITHM}kl_penalty": kind}).hierarchy
    assert "log_prob(reference)" in str(shaped.advantages) and not shaped.penalties


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_of_advantages_is_read(name):
    found = read(GROUPS, {ESTIMATOR: name}, NEEDS.get(name, {})).hierarchy
    assert (found.groups != ()) is (name not in ("gae", "reinforce_plus_plus", "remax"))


@pytest.mark.parametrize("mode", MASKS)
def test_every_mask_is_read(mode):
    found = read(GROUPS, {f"{CORRECTION}rollout_rs": mode, f"{CORRECTION}rollout_rs_threshold": 2.0})
    (kept,) = found.hierarchy.objective.kept
    assert kept.normaliser == "all" and "rollout" in found.hierarchy.policies


def test_the_numbers_of_the_config_are_the_defaults():
    found = read(GROUPS, KL, IS, {f"{ACTOR}clip_ratio_high": "2.8e-1", f"{ACTOR}kl_loss_coef": 0.02}).hierarchy
    assert {p.name: p.default for p in found.parameters.values()} == {
        "epsilon_low": 0.2, "epsilon_high": 0.28, "ceiling": 3.0, "rollout_ceiling": 2.0, "beta": 0.02,
    }  # fmt: skip


# ---------------------------------------------------------------- forms of a config


def test_nested_dotted_and_composed_configs_are_the_same():
    nested = {"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {"rollout": {"n": 8}}}
    mixed = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref": {"rollout.n": 8}}
    whole = {
        **{k: v for k, v in DEFAULTS.items() if v is not None and not k.startswith(OWN_CORRECTION)},
        **GROUPS,
        "data.train_files": "x",
        "trainer.nnodes": 2,
    }
    for config in (nested, mixed, whole):
        assert hierarchy_of(config) == read(GROUPS)


def test_the_defaults_are_verls_ppo():
    found = hierarchy_of({})
    assert "value" in found.hierarchy.attributes
    assert read(GROUPS, {"algorithm.rollout_correction": None}) == read(GROUPS)


def test_files_of_hydra_that_are_not_verls_are_refused():
    assert hierarchy_of({"defaults": ["ppo_trainer", "_self_"], "hydra": {"searchpath": []}, **GROUPS}) == read(GROUPS)
    assert hierarchy_of({"defaults": [{"actor@actor_rollout_ref.actor": "dp_actor"}], **GROUPS}) == read(GROUPS)
    assert "'my_base'" in refusal({"defaults": ["my_base"]})
    assert "'my_actor'" in refusal({"defaults": [{"actor@actor_rollout_ref.actor": "my_actor"}]})


def test_an_interpolation_in_an_option_that_counts_is_refused():
    assert "${oc.env:EPS}" in refusal({f"{ACTOR}clip_ratio_low": "${oc.env:EPS}"})
    read({f"{ACTOR}use_fused_kernels": "${oc.select:actor_rollout_ref.model.use_fused_kernels,false}"})


def test_verl_need_not_be_installed():
    code = (
        "from fibration.trainers.verl import hierarchy_of; hierarchy_of({}); import sys; print('verl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("nested", [True, False])
def test_a_part_of_a_correction_of_bypass_mode_has_no_weights_unless_it_names_the_dataclass(nested):
    def weights(**own):
        part = {OWN_CORRECTION[:-1]: own} if nested else {f"{OWN_CORRECTION}{k}": v for k, v in own.items()}
        return read(GROUPS, {MODE: "bypass_mode"}, part).hierarchy.objective.weighed

    whole = {"loss_type": "reinforce", "_target_": "verl.trainer.config.RolloutCorrectionConfig"}
    assert weights(**whole) == weights(loss_type="reinforce", rollout_is="sequence") != weights(loss_type="reinforce")
    null = {f"{OWN_CORRECTION[:-1]}": None}
    assert "verl raises an error" in refusal({**GROUPS, MODE: "bypass_mode", **null})
    assert read(GROUPS, null) == read(GROUPS)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        (f"{ACTOR}clip_ration", f"{ACTOR}clip_ratio"),
        (f"{POLICY_LOSS}loss_mod", MODE),
        (f"{CORRECTION}rollout_iss", f"{CORRECTION}rollout_is"),
        ("algorithm.adv_estimater", ESTIMATOR),
        ("algoritm.gamma", f"{ALGORITHM}gamma"),
    ],
)
def test_an_unknown_option_is_refused_with_the_likely_one(name, likely):
    text = refusal({name: 1})
    assert f"'{name}'" in text and re.search(rf"(did you mean '|write ){re.escape(likely)}\b", text)


@pytest.mark.parametrize(
    "name", ["data.x", "trainer.x.y", "critic.optim.lr", f"{ROLLOUT}gpu_memory_utilization", f"{ACTOR}optim.lr"]
)
def test_options_that_do_not_touch_the_loss_are_not_read(name):
    assert read(GROUPS, {name: object()}) == read(GROUPS)


CANNOT = [
    ({MODE: "clip_cov"}, "at random"),
    ({MODE: "fibration", f"{POLICY_LOSS}hierarchy": "dapo"}, "fibration show dapo"),
    ({MODE: "dro"}, "dro_beta"),
    ({MODE: "gspoo"}, "'gspo'"),
    ({f"{ACTOR}clip_ratio_c": 1.0}, "above 1"),
    ({f"{ACTOR}clip_ratio_low": 0}, "above 0"),
    ({f"{ACTOR}loss_agg_mode": "token_mean"}, "'token-mean'"),
    ({**KL, f"{ACTOR}kl_loss_type": "full"}, "no code for 'full'"),
    ({**IN_REWARD, f"{ALGORITHM}kl_penalty": "k4"}, "low_var_kl"),
    ({PROMPTS: 300, "trainer.use_v1": False}, "a multiple of ppo_mini_batch_size=256"),
    ({PROMPTS: -1}, "at least 0"),
    ({ESTIMATOR: "gdpo"}, "gdpo_reward_keys"),
    ({ESTIMATOR: "gdpo", f"{ALGORITHM}gdpo_reward_keys": ["a", "b"]}, "one reward"),
    ({ESTIMATOR: "gae", f"{ALGORITHM}gamma": 1.1}, "from 0 to 1"),
    ({ESTIMATOR: "gae", f"{ALGORITHM}lam": 0.0}, "above 0"),
    ({ESTIMATOR: "grpo_passk", f"{ROLLOUT}n": 1}, "2 or more"),
    ({ESTIMATOR: "rloo_vectorized", f"{ROLLOUT}n": 1}, "advantage 0"),
    ({"distillation.enabled": True}, "teacher"),
    ({f"{CORRECTION}rollout_is": "row"}, "token, sequence"),
    ({**IS, f"{CORRECTION}rollout_is_threshold": "5_0.5"}, "lower bound"),
    ({**IS, f"{CORRECTION}rollout_is_threshold": "a"}, "above 0"),
    ({f"{CORRECTION}rollout_rs": "token_k1"}, "rollout_rs_threshold"),
    ({f"{CORRECTION}rollout_rs": "seq_max_k1", f"{CORRECTION}rollout_rs_threshold": 1}, "seq_max_k2"),
    ({f"{CORRECTION}rollout_rs": "token_k2", f"{CORRECTION}rollout_rs_threshold": "0.5_2"}, "one upper bound"),
    ({f"{CORRECTION}rollout_rs": "token_k1,token_k2,token_k3", f"{CORRECTION}rollout_rs_threshold": "1,2"}, "or 3"),
    ({**RS, MODE: "gspo"}, "loss_mode=gspo"),
    ({**RS, MODE: "kl_cov"}, "loss_mode=kl_cov"),
    ({**RS, ESTIMATOR: "gae"}, "masks of whole rows"),
    *(({ESTIMATOR: name}, "each position") for name in BY_POSITION),
]


@pytest.mark.parametrize(("config", "words"), CANNOT, ids=lambda v: v if isinstance(v, str) else ", ".join(v))
def test_what_no_hierarchy_can_say_is_refused_with_option_and_reason(config, words):
    text = refusal({**GROUPS, **config})
    assert words in text and text.startswith("verl: the option '")


@pytest.mark.parametrize("config", [None, 3, "run.yaml", ["algorithm"]])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(SpecError, match="no config"):
        hierarchy_of(config)


# ---------------------------------------------------------------- around


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({f"{ACTOR}entropy_coeff": 0.01}, "entropy_coeff=0.01"),
        ({f"{ACTOR}clip_ratio": 0.3}, "clip_ratio=0.3 has no effect"),
        ({f"{ALGORITHM}filter_groups.enable": True}, "filter_groups"),
        ({**IS, f"{ROLLOUT}calculate_log_probs": False}, "rollout_is have no effect"),
        ({**IS, f"{CORRECTION}bypass_mode": True}, "have no effect: with bypass_mode=true"),
        ({**IS, MODE: "bypass_mode"}, "rollout_is=token has no effect: loss_mode=bypass_mode has the weights of"),
        ({f"{ACTOR}tau_pos": 3}, "tau_pos=3 has no effect with loss_mode=vanilla and adv_estimator=grpo"),
        *(
            ({ESTIMATOR: name, **NEEDS.get(name, {}), f"{ALGORITHM}norm_adv_by_std_in_grpo": False}, "has no effect")
            for name in ESTIMATORS
            if name not in ("grpo", "grpo_passk")
        ),
        ({ESTIMATOR: "gdpo", **NEEDS["gdpo"]}, "verl 0.9.1 does not fetch the rewards of gdpo_reward_keys"),
        ({ESTIMATOR: "remax"}, "verl 0.9.1 does not fetch reward_baselines"),
        ({f"{ACTOR}megatron.router_replay.mode": "R3"}, "router replay"),
        ({f"{ACTOR}router_replay.mode": "R2"}, "router replay"),
        ({f"{ROLLOUT}enable_rollout_routing_replay": True}, "router replay"),
        ({"actor_rollout_ref.model.mtp.enable_train": True}, "predict further tokens"),
        ({f"{MEGATRON}moe_aux_loss_coeff": 0.01}, "a loss of the router"),
        ({f"{MEGATRON}hidden_dropout": 0.1}, "dropout"),
        ({"actor_rollout_ref.model.override_config.attention_dropout": 0.1}, "dropout"),
        ({"actor_rollout_ref.model.lora_rank": 8}, "only adapters are trained"),
        ({f"{ACTOR}fsdp_config.qat.enable": True}, "weights are quantised"),
        ({f"{ROLLOUT}repetition_penalty": 1.1}, "hands 1.0 to the engine"),
        ({f"{ROLLOUT}engine_kwargs.vllm.generation_config": "auto"}, "it is not read"),
        ({f"{ROLLOUT}new_option": 1}, "rollout.new_option=1: it is not read"),
        ({"actor_rollout_ref.model.new_option": 1}, "it is not read"),
        ({f"{MEGATRON}new_option": 1}, "it is not read"),
        ({MODE: "geo_mean"}, "K times as large"),
        ({MODE: "sapo"}, "whatever loss_agg_mode says"),
        ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "each micro-batch by its own width"),
        ({f"{ROLLOUT}n": 1}, "compared with no other"),
        ({f"{ACTOR}ppo_mini_batch_size": 64}, "64 prompts with 8 answers"),
        ({ESTIMATOR: "gae"}, "critic"),
        ({PROMPTS: 256}, "takes one optimizer step (train_batch_size=256, ppo_mini_batch_size=256, ppo_epochs=1): all"),
        ({PROMPTS: 256}, "No clip ever acts"),
        ({f"{ACTOR}ppo_epochs": 2}, "takes 8 optimizer steps"),
        ({f"{ACTOR}ppo_epochs": 2}, "the policy is 7 steps away from the one that sampled"),
        ({PROMPTS: 512}, "the policy is 1 step away"),
        ({PROMPTS: 300}, "fills 300 prompts up to 512"),
        (
            {PROMPTS: 256, f"{CORRECTION}bypass_mode": True},
            "ratios differ from 1 as far as engine and trainer disagree",
        ),
        ({"trainer.v1.trainer_mode": "separate_async"}, "answers may be of older weights"),
        ({PROMPTS: 0}, "async_training"),
        ({"async_training.staleness_threshold": 0.5}, "async_training"),
    ],
    ids=lambda v: v if isinstance(v, str) else next(reversed(v)),
)
def test_what_verl_does_beside_the_hierarchy_is_said(config, words):
    assert any(words in sentence for sentence in read({**GROUPS, **config}).around)
    assert not any(words in sentence for sentence in read(GROUPS).around)


# ---------------------------------------------------------------- shipped losses, and laws


def of_policy(config):
    """The loss without its advantages, as most shipped losses are."""
    h = read(GROUPS, config).hierarchy
    return h.replace(advantages=None, groups=(), gives_up={k: v for k, v in h.gives_up.items() if k != "baseline"})


ROWS = {f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"}
SUMS = {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum", MODE: "gpg"}
SHIPPED = {
    "ppo": (of_policy, {}),
    "cispo": (of_policy, {MODE: "cispo"}),
    "reinforce": (of_policy, {MODE: "gpg"}),
    "sapo": (of_policy, {MODE: "sapo"}),
    "dro": (of_policy, {MODE: "dro", **NEEDS["dro"]}),
    "dppo_tv": (of_policy, {MODE: "dppo_tv"}),
    "gspo_token": (of_policy, {MODE: "gspo", **ROWS}),
    "gmpo": (of_policy, {MODE: "geo_mean"}),
    "rloo": (lambda c: read(GROUPS, c).hierarchy, {**SUMS, ESTIMATOR: "rloo"}),
    "opo": (lambda c: read(GROUPS, c).hierarchy, {**SUMS, ESTIMATOR: "opo"}),
    "rloo_kl": (lambda c: read(GROUPS, c).hierarchy, {**SUMS, ESTIMATOR: "rloo", **IN_REWARD}),
    "remax": (lambda c: read(GROUPS, c).hierarchy, {**SUMS, ESTIMATOR: "remax"}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SHIPPED)
def test_a_config_is_equivalent_to_the_shipped_loss(name):
    made, config = SHIPPED[name]
    assert equivalent(made(config), load(name)).ok


def test_a_config_is_not_equivalent_to_another_shipped_loss():
    assert not equivalent(of_policy(ROWS), load("ppo")).ok


LAWS = {
    **{f"loss_mode={m}": {MODE: m, **NEEDS.get(m, {})} for m in LOSSES},
    **{
        f"kl_loss_type={k}": {**KL, f"{ACTOR}kl_loss_type": k} for k in ("kl", "abs", "mse", "low_var_kl", "kl+", "k3+")
    },
    **{f"adv_estimator={m}": {ESTIMATOR: m, **NEEDS.get(m, {})} for m in ESTIMATORS},
    "discounts": {ESTIMATOR: "gae", f"{ALGORITHM}gamma": 0.99, f"{ALGORITHM}lam": 0.95},
    "token weights": IS,
    "weights of rows": {f"{CORRECTION}rollout_is": "sequence"},
    "IcePop": {**IS, f"{CORRECTION}rollout_is_threshold": "0.5_5.0"},
    "IcePop of rows": {f"{CORRECTION}rollout_is": "sequence", f"{CORRECTION}rollout_is_threshold": "0.5_5.0"},
    "normalised weights": {**IS, f"{CORRECTION}rollout_is_batch_normalize": True},
    "a mask of tokens": {**RS, **KL, f"{ACTOR}kl_loss_type": "mse"},
    "a mask of tokens, averaged by rows": {**RS, **ROWS},
    "a mask of rows": {f"{CORRECTION}rollout_rs": "seq_mean_k1", f"{CORRECTION}rollout_rs_threshold": "0.9_1.1"},
    "bypass": {**BYPASS, f"{OWN_CORRECTION}rollout_is": "token"},
    "bypass of rows": BYPASS,
    "normalised IcePop": {
        **IS,
        f"{CORRECTION}rollout_is_batch_normalize": True,
        f"{CORRECTION}rollout_is_threshold": "0.5_2",
    },
    **{f"rollout_is_threshold={t}": {**IS, f"{CORRECTION}rollout_is_threshold": t} for t in (0.9, 1, "1_2", "0.5_0.9")},
    "a mask below 1": {f"{CORRECTION}rollout_rs": "token_k1", f"{CORRECTION}rollout_rs_threshold": "0.5_0.9"},
    "gspo without a low clip": {MODE: "gspo", f"{ACTOR}clip_ratio_low": 1.5},
    **{f"negative {k}": {**KL, f"{ACTOR}kl_loss_coef": -0.1, f"{ACTOR}kl_loss_type": k} for k in ("mse", "k3", "k1", "k1+")},
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAWS)
def test_every_law_holds_or_is_given_up_in_verls_words(name):
    report = read(GROUPS, LAWS[name]).hierarchy.verify()
    assert report.ok, str(report)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
def test_no_law_of_a_random_config_is_refused(seed):
    """A trainer's choice breaks laws; the config that makes it is read, and `compile` takes its loss."""
    for config in random_configs(2, 1000 + seed):
        if isinstance(found := outcome(config), str):
            assert re.match(r"verl: the option '[\w.]+'", found)
        else:
            assert found.hierarchy.verify().ok, config


ODD = (0, -1, 1, 1e-12, 1e300, 1e-310, math.inf, math.nan, "x", "", "0.5_2", "nan", "1,2", None, True, [], ["a", 2], {})


@pytest.mark.parametrize("start", range(4))
def test_an_odd_value_is_read_or_refused_with_its_option(start):
    for name in list(DEFAULTS)[start::4]:
        for value in ODD if ALL else ODD[len(name) % 3 :: 3]:
            found = outcome({**GROUPS, **CHANGES[name][1], name: value})
            assert not isinstance(found, str) or re.match(r"verl: the option '[\w.]+'", found), (name, value, found)


GRAVE = [
    (
        {**IS, f"{CORRECTION}rollout_is_threshold": 0.9},
        "rollout_is_threshold=0.9",
        f"{CORRECTION}rollout_is_threshold=2.0",
    ),
    ({**KL, f"{ACTOR}kl_loss_type": "kl"}, "kl_loss_type=kl (k1)", f"{ACTOR}kl_loss_type=mse"),
    ({**KL, f"{ACTOR}kl_loss_coef": -1}, "kl_loss_coef=-1", f"{ACTOR}kl_loss_coef=1"),
    ({ESTIMATOR: "remax"}, "does not fetch", "trainer.use_v1=false"),
    ({f"{ROLLOUT}temperature": 0.0}, "the likeliest token", f"{ROLLOUT}temperature=1"),
    ({f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_p": 0.9}, "0.9^T at least", f"{ROLLOUT}top_p=1"),
    (
        {ESTIMATOR: "gdpo", **NEEDS["gdpo"], f"{ALGORITHM}norm_adv_by_std_in_grpo": False},
        "norm_adv_by_std_in_grpo=false has no effect",
        f"{ESTIMATOR}=grpo",
    ),
]


@pytest.mark.parametrize(("config", "words", "change"), GRAVE)
def test_an_error_has_the_line_to_change(config, words, change):
    found = read(GROUPS, config).findings
    assert any(f.severity == "error" and words in f.sentence and f.change == change for f in found), found


def test_sglang_and_raw_log_probs_do_not_have_the_mass_that_is_kept():
    cut = {f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_p": 0.9}
    for more in ({f"{ROLLOUT}name": "sglang"}, {f"{ROLLOUT}logprobs_mode": "raw_logprobs"}):
        assert "rollout_is=sequence does not see it" in " ".join(read(GROUPS, cut, more).around)


def test_verify_says_in_verls_words_what_is_off():
    text = str(read(GROUPS, KL).hierarchy.verify())
    assert "kl_loss_type=low_var_kl (k3) in the loss: its gradient is that of the other divergence" in text


@pytest.mark.parametrize(("factor", "adds_up"), [(None, False), (1024, True)])
def test_micro_batches_divided_by_their_own_widths_do_not_add_up(factor, adds_up):
    config = {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": factor}
    around = " ".join(hierarchy_of(config).around)
    assert ("however they are cut" in around) is adds_up
    assert ("do not add up" in around) is not adds_up
