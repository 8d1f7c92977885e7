"""`hierarchy_of(config)` against verl's own functions with the same config: value and gradient, in float64, off policy.

The config goes through verl's YAML and dataclasses. A batch goes through `apply_kl_penalty`, the rollout correction,
`compute_advantage` and `ppo_loss`, as in verl's trainers.
"""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import verl
import yaml
from omegaconf import OmegaConf
from oracles.published_comparison import compiled, difference, rows
from support import packed
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    compute_rollout_correction_and_add_to_batch,
)
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import make_iterator
from verl.workers.utils import losses

from fibration.configs.verl.corrections import MASKS
from fibration.configs.verl.estimators import BY_POSITION, ESTIMATORS, KL_NAMES
from fibration.configs.verl.losses import LOSSES
from fibration.configs.verl.options import ACTOR, ALGORITHM, CORRECTION, DEFAULTS, OWN_CORRECTION, POLICY_LOSS, ROLLOUT
from fibration.errors import SpecError
from fibration.trainers.verl import hierarchy_of

CONFIGS = Path(verl.__file__).parent / "trainer" / "config"
WRITTEN = [
    *sorted(CONFIGS.glob("*ppo_*.yaml")),
    *sorted((CONFIGS.parents[1] / "experimental").glob("*/config/*.yaml")),
]
BOUND = 1e-9
ROUNDED = 1e-7  # verl adds 1e-8 to numbers of tokens that it divides by, as `around` says
SINGLE = 1e-4  # gdpo and grpo_vectorized compute in float32, as `around` says
BASE = {
    f"{ALGORITHM}adv_estimator": "grpo",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}use_dynamic_bsz": True,
    f"{ACTOR}clip_ratio_low": 0.1,
    f"{ACTOR}clip_ratio_high": 0.15,
    f"{ACTOR}clip_ratio_c": 1.5,
}


def composed(config):
    """The config as verl has it, with its own defaults."""
    made = OmegaConf.load(CONFIGS / "_generated_ppo_trainer.yaml")
    for name, value in config.items():
        OmegaConf.update(made, name, value, force_add=True)
    return made


def batch(seed, config):
    """Rows off policy. Rewards are per answer, for `gae` per token."""
    b = rows("grpo_k3", seed)
    b = replace(b, reference=b.reference - 0.01)  # nowhere equal to the policy: `abs` has no slope there
    draw = torch.Generator().manual_seed(seed)
    if config[f"{ALGORITHM}adv_estimator"] == "grpo_vectorized":  # where rewards are equal it rounds, as `around` says
        return replace(b, rewards=b.rewards + torch.randn(len(b.mask), 1, generator=draw, dtype=torch.float64))
    if config[f"{ALGORITHM}adv_estimator"] == "gae" or config.get(f"{ALGORITHM}gamma", 1) != 1:
        return replace(b, rewards=torch.randn(b.mask.shape, generator=draw, dtype=torch.float64))
    return b


class MiniBatch(dict):
    """Tensors, and the numbers that verl's engine adds."""

    def select(self, *fields):
        return TensorDict({f: self[f] for f in fields}, batch_size=len(self["response_mask"]))


def theirs(config, b, monkeypatch, **output):
    """verl's objective and its gradient in the log-probs of the tokens. `output`: what the model returns beside them."""
    made = composed(config)
    actor, algorithm = (omega_conf_to_dataclass(c) for c in (made.actor_rollout_ref.actor, made.algorithm))
    correction, mask = RolloutCorrectionConfig(**algorithm.rollout_correction), b.mask.double()
    last = b.mask & (b.mask.cumsum(-1) == b.length)
    per_row = bool((b.rewards == b.rewards[:, :1]).all())
    tensors = {
        "response_mask": mask,
        "token_level_scores": torch.where(last if per_row else b.mask, b.rewards, 0.0),
        "old_log_probs": b.rollout if correction.bypass_mode else b.old,
        "rollout_log_probs": b.rollout,
        "ref_log_prob": b.reference,
        "values": b.values,
        **({"reward_baselines": b.greedy} if algorithm.adv_estimator == "remax" else {}),
        "prompts": torch.zeros(len(mask), 2),
        "attention_mask": torch.cat([torch.ones(len(mask), 2), mask], 1).long(),
    }
    labels = {"uid": np.array([str(g) for g in b.prompt_group], dtype=object), "acc": b.rewards[:, 0].numpy()}
    data = DataProto.from_dict(tensors=tensors, non_tensors={k: v.astype(object) for k, v in labels.items()})
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    if algorithm.use_kl_in_reward:
        data, _ = apply_kl_penalty(data, core_algos.get_kl_controller(algorithm.kl_ctrl), algorithm.kl_penalty)
    if not correction.bypass_mode and made.actor_rollout_ref.rollout.calculate_log_probs:
        data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    normed = {"norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo, "config": algorithm}
    data = compute_advantage(data, algorithm.adv_estimator, algorithm.gamma, algorithm.lam, **normed)
    if correction.bypass_mode and not made.trainer.use_v1:  # as apply_bypass_mode does
        chosen = replace(actor.policy_loss, loss_mode="bypass_mode", rollout_correction=correction)
        actor = replace(actor, policy_loss=chosen)
    counted = mask if made.trainer.use_v1 else data.batch["response_mask"]  # v1 keeps `loss_mask` as it was sampled
    known = {"dp_size": 1, "batch_num_tokens": counted.sum().item(), "global_batch_size": len(mask)}
    monkeypatch.setattr(losses, "no_padding_2_padding", lambda tensor, _: tensor)
    log_prob = b.log_prob.clone().requires_grad_()
    value, _ = losses.ppo_loss(actor, {"log_probs": log_prob, **output}, MiniBatch({**data.batch, **known}))
    (slope,) = torch.autograd.grad(value, log_prob)
    return -float(value.detach()), -slope[b.mask].numpy()


def bound(config, around):
    if any("float32" in sentence for sentence in around):
        return SINGLE
    return ROUNDED if any("1e-8" in sentence for sentence in around) else BOUND


def apart(config, monkeypatch, seed=1):
    """The largest relative difference of value and gradient, and how large the bound is."""
    found = hierarchy_of(config)
    b = batch(seed, config)
    objective, slope = theirs(config, b, monkeypatch)
    own = replace(b, old=b.rollout) if config.get(f"{CORRECTION}bypass_mode") else b
    _, value, values = compiled(found.hierarchy, "torch", own, {}, packed)
    assert np.isfinite(slope).all() and np.abs(slope).max() > 1e-6, "a batch that shows something"
    return max(abs(value - objective) / (abs(objective) + 0.1), difference(values, slope)), bound(config, found.around)


def same(config, monkeypatch, seed=1):
    worst, allowed = apart(config, monkeypatch, seed)
    assert worst < allowed


# ---------------------------------------------------------------- every value of every option

MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL = {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.3}
IN_REWARD = {f"{ALGORITHM}use_kl_in_reward": True, f"{ALGORITHM}kl_ctrl.kl_coef": 0.3}
SCALED = {f"{ACTOR}loss_scale_factor": 16}
# What an option needs beside it.
NEEDS = {
    "clip_cov": {
        f"{POLICY_LOSS}clip_cov_ratio": 1.0,
        f"{POLICY_LOSS}clip_cov_lb": 0.3,
        f"{POLICY_LOSS}clip_cov_ub": 0.8,
    },
    "kl_cov": {f"{POLICY_LOSS}kl_cov_ratio": 5.1 / 42, f"{POLICY_LOSS}ppo_kl_coef": 0.7},
    "dro": {f"{POLICY_LOSS}dro_beta": 0.3},
    "gdpo": {f"{ALGORITHM}gdpo_reward_keys": ["acc"], f"{ALGORITHM}gdpo_reward_weights": [2.0]},
    "gae": {f"{ALGORITHM}gamma": 0.9, f"{ALGORITHM}lam": 0.8},
    "seq-mean-token-sum-norm": SCALED,
}
THRESHOLDS = {"k1": "0.85_1.1", "k2": 0.05, "k3": 0.05}
SEQUENCES = {"seq_sum_k1": "0.5_1.5", "seq_sum_k2": 0.2, "seq_sum_k3": 0.2}
RS = {mode: SEQUENCES.get(mode, THRESHOLDS[mode[-2:]]) for mode in MASKS}


def correction(prefix=CORRECTION, **options):
    return {f"{prefix}{name}": value for name, value in options.items()}


OPTIONS = {
    **{f"loss_mode={m}": {f"{POLICY_LOSS}loss_mode": m, **NEEDS.get(m, {})} for m in LOSSES},
    **{f"loss_agg_mode={m}": {f"{ACTOR}loss_agg_mode": m, **NEEDS.get(m, {})} for m in MEANS},
    **{f"kl_loss_type={m}": {**KL, f"{ACTOR}kl_loss_type": m} for m in KL_NAMES},
    **{f"kl_penalty={m}": {**IN_REWARD, f"{ALGORITHM}kl_penalty": m} for m in KL_NAMES},
    **{f"adv_estimator={m}": {f"{ALGORITHM}adv_estimator": m, **NEEDS.get(m, {})} for m in ESTIMATORS},
    "without the deviation": {f"{ALGORITHM}norm_adv_by_std_in_grpo": False},
    "gamma=lam=1": {f"{ALGORITHM}adv_estimator": "gae"},
    "gamma=0": {f"{ALGORITHM}adv_estimator": "gae", f"{ALGORITHM}gamma": 0.0},
    "lam=1": {f"{ALGORITHM}adv_estimator": "gae", f"{ALGORITHM}gamma": 0.9},
    "discounted returns": {f"{ALGORITHM}adv_estimator": "reinforce_plus_plus", f"{ALGORITHM}gamma": 0.9},
    "clip_ratio alone": {f"{ACTOR}clip_ratio_low": None, f"{ACTOR}clip_ratio_high": None, f"{ACTOR}clip_ratio": 0.12},
    "temperatures": {f"{POLICY_LOSS}loss_mode": "sapo", f"{ACTOR}tau_pos": 0.7, f"{ACTOR}tau_neg": 1.7},
    "adaptive": {**IN_REWARD, f"{ALGORITHM}kl_ctrl.type": "adaptive"},
    "TIS by tokens": correction(rollout_is="token", rollout_is_threshold=1.2),
    "TIS by rows": correction(rollout_is="sequence", rollout_is_threshold=1.2),
    "IcePop": correction(rollout_is="token", rollout_is_threshold="0.8_1.3"),
    "IcePop by rows": correction(rollout_is="sequence", rollout_is_threshold="0.5_1.5"),
    "normalised weights": correction(rollout_is="token", rollout_is_threshold=1.2, rollout_is_batch_normalize=True),
    "normalised weights of rows": correction(
        rollout_is="sequence", rollout_is_threshold=1.2, rollout_is_batch_normalize=True
    ),
    "no log-probs of the engine": {
        **correction(rollout_is="token", rollout_is_threshold=1.2),
        f"{ROLLOUT}calculate_log_probs": False,
    },
    **{f"rollout_rs={m}": correction(rollout_rs=m, rollout_rs_threshold=t) for m, t in RS.items()},
    "two masks": correction(rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="0.8_1.2,0.1"),
    "one bound of k1": correction(rollout_rs="token_k1", rollout_rs_threshold=1.2),
    "the legacy trainer": {**correction(rollout_rs="token_k1", rollout_rs_threshold=1.2), "trainer.use_v1": False},
    "bypass": correction(bypass_mode=True),
    **{
        f"bypass in the legacy trainer, {loss}": {
            **correction(bypass_mode=True, loss_type=loss, rollout_is="token", rollout_is_threshold=1.2),
            **correction(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.9_1.2"),
            "trainer.use_v1": False,
        }
        for loss in ("ppo_clip", "reinforce")
    },
    **{
        f"loss_mode=bypass_mode, {loss}": {
            f"{POLICY_LOSS}loss_mode": "bypass_mode",
            **correction(OWN_CORRECTION, loss_type=loss, rollout_is="token", rollout_is_threshold=1.2),
            **correction(OWN_CORRECTION, rollout_rs="token_k3", rollout_rs_threshold=0.03),
        }
        for loss in ("ppo_clip", "reinforce")
    },
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_of_an_option_trains_what_verl_trains(name, monkeypatch):
    same({**BASE, **OPTIONS[name]}, monkeypatch)


def pairs(count):
    """Pairs with masks that estimators read, then random pairs; in each, the two agree where they share a key."""
    draw = random.Random(7)
    masked = ("gdpo", "gae", "opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
    made = [("rollout_rs=seq_mean_k1", f"adv_estimator={name}") for name in masked]
    while len(made) < count:
        first, second = draw.sample(sorted(OPTIONS), 2)
        config = {**OPTIONS[first], **OPTIONS[second]}
        if all(config[k] == v for k, v in OPTIONS[first].items()) and (first, second) not in made:
            made.append((first, second))
    return made


PAIRS = pairs(60)


@pytest.mark.sampled
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[" and ".join(pair) for pair in PAIRS])
def test_two_options_together_train_what_verl_trains(first, second, monkeypatch):
    config = {**BASE, **OPTIONS[first], **OPTIONS[second]}
    try:
        hierarchy_of(config)
    except SpecError as error:
        pytest.skip(f"refused: {error}")
    same(config, monkeypatch, seed=2)


# ---------------------------------------------------------------- what `around` says


@pytest.mark.parametrize("mode", MEANS)
def test_the_entropy_bonus_is_averaged_as_around_says(mode, monkeypatch):
    config = {**BASE, **NEEDS.get(mode, {}), f"{ACTOR}loss_agg_mode": mode}
    b = batch(1, config)
    said = " ".join(hierarchy_of({**config, f"{ACTOR}entropy_coeff": 0.3}).around)
    assert "entropy_coeff=0.3 adds the exact entropy of each token's distribution" in said
    assert f"averaged as {ACTOR}loss_agg_mode={mode}" in said
    entropy = b.log_prob.detach().abs()
    (with_bonus, _), (without, _) = (
        theirs({**config, f"{ACTOR}entropy_coeff": coef}, b, monkeypatch, entropy=entropy) for coef in (0.3, 0.0)
    )
    lengths, width = b.mask.sum(-1), 16
    per_row = (entropy * b.mask).sum(-1)
    expected = {
        "token-mean": per_row.sum() / lengths.sum(),
        "token-sum": per_row.sum(),
        "seq-mean-token-sum": per_row.mean(),
        "seq-mean-token-mean": (per_row / lengths).mean(),
        "seq-mean-token-sum-norm": per_row.mean() / width,
    }[mode]
    assert with_bonus - without == pytest.approx(0.3 * float(expected), rel=1e-6)


@pytest.mark.parametrize(("prompts", "mini", "epochs"), [(8, 8, 1), (8, 2, 1), (8, 8, 3), (8, 4, 2), (10, 4, 1)])
def test_a_batch_takes_the_steps_that_around_says(prompts, mini, epochs):
    options = {f"{ACTOR}ppo_mini_batch_size": mini, f"{ACTOR}ppo_epochs": epochs, "data.train_batch_size": prompts}
    made = composed({**BASE, **options})
    trainer = SimpleNamespace(use_critic=False, config=made, global_steps=1)
    multiple, answers = PPOTrainer._get_required_batch_multiple(trainer, 1), made.actor_rollout_ref.rollout.n
    filled = -(-prompts * answers // multiple) * multiple
    data = TensorDict({"row": torch.arange(filled)}, batch_size=filled)
    steps = len(list(make_iterator(data, mini * answers, epochs)))  # as the worker's train_mini_batch
    said = " ".join(hierarchy_of({**BASE, **options}).around)
    if steps == 1:
        assert f"{prompts} prompts takes one optimizer step" in said and "No clip ever acts" in said
    else:
        assert f"{prompts} prompts takes {steps} optimizer steps" in said and f"is {steps - 1} step" in said
    assert (f"verl fills {prompts} prompts up to {filled // answers}," in said) is (filled > prompts * answers)


# ---------------------------------------------------------------- tables


def test_the_values_of_every_option_are_those_that_verl_registers():
    assert {*LOSSES, "bypass_mode", "fibration"} == {*core_algos.POLICY_LOSS_REGISTRY, "fibration"}
    assert {*ESTIMATORS, *BY_POSITION} == {e.value for e in core_algos.AdvantageEstimator}
    assert set(MASKS) == SUPPORTED_ROLLOUT_RS_OPTIONS


def test_the_defaults_are_verls():
    made = composed({})
    absent = {f"{ALGORITHM}gdpo_reward_keys", f"{ALGORITHM}gdpo_reward_weights", f"{POLICY_LOSS}hierarchy"}
    own = omega_conf_to_dataclass(composed(BASE).actor_rollout_ref.actor).policy_loss.rollout_correction
    for name, value in DEFAULTS.items():
        if name.startswith(OWN_CORRECTION):
            assert own[name.removeprefix(OWN_CORRECTION)] == value
        elif name not in absent:
            assert OmegaConf.select(made, name, throw_on_missing=True) == value, name


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_configs_that_verl_ships_are_read(path):
    config = yaml.safe_load(path.read_text())
    assert hierarchy_of(config).hierarchy.name == "verl"
    assert hierarchy_of(OmegaConf.load(path)).hierarchy == hierarchy_of(config).hierarchy


def test_a_composed_config_is_read_as_a_partial_one():
    assert hierarchy_of(composed(BASE)) == hierarchy_of(BASE)
