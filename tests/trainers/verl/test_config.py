"""`hierarchy_of(config)` against verl's own functions with the same config: value and gradient, in float64, off policy.

The config goes through verl's YAML and dataclasses. A batch goes through `apply_kl_penalty`, the rollout correction,
`compute_advantage` and `ppo_loss`, as in verl's trainers.
"""

import copy
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
from oracles.verl_configs import BASE, MEANS, NEEDS, OPTIONS, random_configs
from support import packed
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    compute_rollout_correction_and_add_to_batch,
)
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import get_tensordict, make_iterator
from verl.workers.utils import losses

from fibration.configs.verl.estimators import BY_POSITION, ESTIMATORS
from fibration.configs.verl.losses import LOSSES, MASKS
from fibration.configs.verl.options import ACTOR, ALGORITHM, CORRECTION, OWN_CORRECTION, POLICY_LOSS, ROLLOUT, TABLE
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
GENERATED = OmegaConf.load(CONFIGS / "_generated_ppo_trainer.yaml")


def composed(config):
    """The config as verl has it, with its own defaults."""
    made = copy.deepcopy(GENERATED)
    for name, value in config.items():
        OmegaConf.update(made, name, value, force_add=True)
    return made


def batch(seed, config):
    """Rows off policy. Rewards are per answer, for `gae` per token."""
    b = rows("grpo_k3", seed)
    apart = b.log_prob - 1e-6 * torch.arange(b.mask.numel()).view(
        b.mask.shape
    )  # kl_cov takes the largest of unequal ones
    b = replace(b, log_prob=apart, at=apart.clone())
    b = replace(b, reference=b.reference - 0.01)  # nowhere equal to the policy: `abs` has no slope there
    draw = torch.Generator().manual_seed(seed)
    if config[f"{ALGORITHM}adv_estimator"] == "grpo_vectorized":  # where rewards are equal it rounds, as `around` says
        return replace(b, rewards=b.rewards + torch.randn(len(b.mask), 1, generator=draw, dtype=torch.float64))
    discounts = config[f"{ALGORITHM}adv_estimator"] == "reinforce_plus_plus" and config.get(f"{ALGORITHM}gamma", 1) != 1
    if config[f"{ALGORITHM}adv_estimator"] == "gae" or discounts:
        return replace(b, rewards=torch.randn(b.mask.shape, generator=draw, dtype=torch.float64))
    return b


class MiniBatch(dict):
    """Tensors, and the numbers that verl's engine adds."""

    def select(self, *fields):
        return TensorDict({f: self[f] for f in fields}, batch_size=len(self["response_mask"]))


def theirs(config, b, monkeypatch, **output):
    """verl's objective and its gradient in the log-probs of the tokens. `output`: what the model returns beside them."""
    made = composed(config)
    actor, algorithm = omega_conf_to_dataclass(made.actor_rollout_ref.actor), made.algorithm
    correction, mask = algorithm.rollout_correction, b.mask.double()
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
    groups = b.prompt_group if made.actor_rollout_ref.rollout.n > 1 else range(len(mask))
    labels = {"uid": np.array([str(g) for g in groups], dtype=object), "acc": b.rewards[:, 0].numpy()}
    data = DataProto.from_dict(tensors=tensors, non_tensors={k: v.astype(object) for k, v in labels.items()})
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    if algorithm.use_kl_in_reward:
        data, _ = apply_kl_penalty(data, core_algos.get_kl_controller(algorithm.kl_ctrl), algorithm.kl_penalty)
    if not correction.bypass_mode and made.actor_rollout_ref.rollout.calculate_log_probs:
        data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    normed = {"norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo, "config": algorithm}
    data = compute_advantage(data, algorithm.adv_estimator, algorithm.gamma, algorithm.lam, **normed)
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
    allowed = bound(config, found.around)
    if allowed == BOUND and slope.any():
        slopes = difference(values, slope)
    else:  # a small slope may be the difference of large ones, each rounded
        slopes = np.abs(values - slope).max() / max(np.abs(slope).max(), 1e-9)
    return max(abs(value - objective) / (abs(objective) + 0.1), slopes), allowed, slope


def same(config, monkeypatch, seed=1):
    worst, allowed, slope = apart(config, monkeypatch, seed)
    assert np.abs(slope).max() > 1e-6, "a batch that shows something"
    assert worst < allowed


# ---------------------------------------------------------------- every value of every option


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_of_an_option_trains_what_verl_trains(name, monkeypatch):
    same({**BASE, **OPTIONS[name]}, monkeypatch)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(10))
def test_random_configs_train_what_verl_trains(seed, monkeypatch):
    """What differs is refused, or `around` says it."""
    wrong, compared = [], 0
    for config in random_configs(30, seed):
        try:
            worst, allowed, _ = apart(config, monkeypatch, seed)
        except (SpecError, ZeroDivisionError):  # the latter is verl's: its metrics of weights that are all 0
            continue
        if any("NaN" in sentence for sentence in hierarchy_of(config).around) and not np.isfinite(worst):
            continue
        compared += 1
        wrong += [] if worst < allowed else [(worst, config)]
    assert not wrong and compared > 15


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


class Queue:
    """verl's transfer queue: of a batch its trainer gets the fields that it asks for, and no others."""

    def __init__(self, stored):
        self.stored = stored

    def kv_batch_get(self, keys, partition_id, select_fields):
        return get_tensordict({name: value for name, value in self.stored.items() if name in select_fields})

    def kv_batch_put(self, keys, partition_id, fields):
        self.advantages = fields["advantages"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_v1_fetches_what_an_estimator_reads_unless_the_config_has_an_error(name, monkeypatch):
    def rows(*values):
        return torch.nested.as_nested_tensor([torch.tensor(each) for each in values], layout=torch.jagged)

    floats = rows([0.5, 1.0], [0.0, 0.2, 0.0], [1.0], [0.0, 0.5])
    stored = {"uid": list("aabb"), **dict.fromkeys(("rm_scores", "old_log_probs", "values"), floats)}
    stored |= {"response_mask": rows([1, 1], [1, 1, 1], [1], [1, 1]), "prompts": rows(*[[1, 1]] * 4)}
    stored |= {"reward_baselines": torch.zeros(4), "acc": [1.0, 0.0, 1.0, 0.5]}
    config = {**BASE, **OPTIONS[f"adv_estimator={name}"]}
    monkeypatch.setattr(trainer_base, "tq", queue := Queue(stored))
    batch = KVBatchMeta(keys=[f"{uid}_{n}_0" for n, uid in enumerate("aabb")], partition_id="train", tags=[{}] * 4)
    try:
        PPOTrainer._compute_advantage(SimpleNamespace(config=composed(config)), batch, {})
        fetched = len(queue.advantages) == 4
    except (KeyError, TypeError):
        fetched = False
    assert fetched is not any("does not fetch" in f.sentence for f in hierarchy_of(config).findings)


# ---------------------------------------------------------------- tables


def test_the_values_of_every_option_are_those_that_verl_registers():
    assert {*LOSSES, "bypass_mode", "fibration"} == {*core_algos.POLICY_LOSS_REGISTRY, "fibration"}
    assert {*ESTIMATORS, *BY_POSITION} == {e.value for e in core_algos.AdvantageEstimator}
    assert set(MASKS) == SUPPORTED_ROLLOUT_RS_OPTIONS


def test_the_defaults_are_verls():
    made = composed({})
    absent = {f"{ALGORITHM}gdpo_reward_keys", f"{ALGORITHM}gdpo_reward_weights", f"{POLICY_LOSS}hierarchy"}
    absent |= {f"{ROLLOUT}min_p"}
    own = omega_conf_to_dataclass(composed(BASE).actor_rollout_ref.actor).policy_loss.rollout_correction
    for name, value in TABLE.defaults.items():
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
