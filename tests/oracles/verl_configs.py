"""Configs of verl: every value of every option that touches the loss, and random ones of several together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from fibration.configs.verl.estimators import ESTIMATORS
from fibration.configs.verl.losses import LOSSES, MASKS
from fibration.configs.verl.options import ACTOR, ALGORITHM, CORRECTION, KL_NAMES, OWN_CORRECTION, POLICY_LOSS, ROLLOUT

Config = dict[str, Any]
BASE: Config = {
    f"{ALGORITHM}adv_estimator": "grpo",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}use_dynamic_bsz": True,
    f"{ACTOR}clip_ratio_low": 0.1,
    f"{ACTOR}clip_ratio_high": 0.15,
    f"{ACTOR}clip_ratio_c": 1.5,
}
MEANS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL = {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.3}
IN_REWARD = {f"{ALGORITHM}use_kl_in_reward": True, f"{ALGORITHM}kl_ctrl.kl_coef": 0.3}
DATACLASS = "verl.trainer.config.RolloutCorrectionConfig"
SCALED = {f"{ACTOR}loss_scale_factor": 16}
# What an option needs beside it.
NEEDS: dict[str, Config] = {
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


def correction(prefix: str = CORRECTION, **options: Any) -> Config:
    return {f"{prefix}{name}": value for name, value in options.items()}


OPTIONS: dict[str, Config] = {
    **{f"loss_mode={m}": {f"{POLICY_LOSS}loss_mode": m, **NEEDS.get(m, {})} for m in LOSSES},
    **{f"loss_agg_mode={m}": {f"{ACTOR}loss_agg_mode": m, **NEEDS.get(m, {})} for m in MEANS},
    **{f"kl_loss_type={m}": {**KL, f"{ACTOR}kl_loss_type": m} for m in KL_NAMES},
    **{f"kl_penalty={m}": {**IN_REWARD, f"{ALGORITHM}kl_penalty": m} for m in KL_NAMES},
    **{f"adv_estimator={m}": {f"{ALGORITHM}adv_estimator": m, **NEEDS.get(m, {})} for m in ESTIMATORS},
    **{
        f"{m} without the deviation": {
            f"{ALGORITHM}adv_estimator": m, **NEEDS.get(m, {}), f"{ALGORITHM}norm_adv_by_std_in_grpo": False,
        }
        for m in ESTIMATORS
    },
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
    **{
        f"normalised weights, {level}, {bounds}": correction(
            rollout_is=level, rollout_is_threshold=bounds, rollout_is_batch_normalize=True
        )
        for level in ("token", "sequence")
        for bounds in (1.2, 0.9, "0.5_1.5")
    },
    **{f"rollout_is_threshold={t}": correction(rollout_is="token", rollout_is_threshold=t) for t in (1, 0.9, "1.1_2")},
    "no log-probs of the engine": {
        **correction(rollout_is="token", rollout_is_threshold=1.2),
        f"{ROLLOUT}calculate_log_probs": False,
    },
    **{f"rollout_rs={m}": correction(rollout_rs=m, rollout_rs_threshold=t) for m, t in RS.items()},
    "two masks": correction(rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="0.8_1.2,0.1"),
    "one bound of k1": correction(rollout_rs="token_k1", rollout_rs_threshold=1.2),
    "k1 below 1": correction(rollout_rs="token_k1", rollout_rs_threshold="0.5_1"),
    "the legacy trainer": {**correction(rollout_rs="token_k1", rollout_rs_threshold=1.2), "trainer.use_v1": False},
    "bypass": correction(bypass_mode=True),
    "bypass in the legacy trainer": {
        **correction(bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_threshold=1.2),
        "trainer.use_v1": False,
    },
    **{
        f"loss_mode=bypass_mode, {loss}": {
            f"{POLICY_LOSS}loss_mode": "bypass_mode",
            **correction(OWN_CORRECTION, loss_type=loss, rollout_is="token", rollout_is_threshold=1.2),
            **correction(OWN_CORRECTION, rollout_rs="token_k3", rollout_rs_threshold=0.03),
        }
        for loss in ("ppo_clip", "reinforce")
    },
    **{
        f"loss_mode=bypass_mode, {name}": {f"{POLICY_LOSS}loss_mode": "bypass_mode", **own}
        for name, own in {
            "no mapping": {},
            "an empty mapping": {OWN_CORRECTION[:-1]: {}},
            "a part of a mapping": correction(OWN_CORRECTION, loss_type="reinforce"),
            "a part of a dataclass": correction(OWN_CORRECTION, loss_type="reinforce", _target_=DATACLASS),
            "weights of the outer one": correction(rollout_is="token", rollout_is_threshold=1.2),
            "masks of both": {
                **correction(rollout_rs="token_k1", rollout_rs_threshold=1.2),
                **correction(OWN_CORRECTION, rollout_rs="seq_mean_k2", rollout_rs_threshold=0.05),
            },
        }.items()
    },
}  # fmt: skip

_RS = [correction(rollout_rs=m, rollout_rs_threshold=t) for m, t in RS.items()]
# Of each group a random config takes one at most; later groups override earlier ones.
GROUPS: list[list[Config]] = [
    [OPTIONS[f"adv_estimator={m}"] for m in ESTIMATORS],
    [OPTIONS[f"loss_mode={m}"] for m in LOSSES]
    + 2 * [{f"{POLICY_LOSS}loss_mode": "bypass_mode", **own} for own in (
        {},
        correction(OWN_CORRECTION, loss_type="reinforce"),
        correction(OWN_CORRECTION, loss_type="reinforce", _target_=DATACLASS),
        correction(OWN_CORRECTION, rollout_is_threshold=1.1),
        correction(OWN_CORRECTION, loss_type="reinforce", rollout_is="token", rollout_is_threshold="0.8_1.3"),
        correction(OWN_CORRECTION, loss_type="reinforce", rollout_is="sequence", rollout_is_batch_normalize=True),
        correction(OWN_CORRECTION, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.8_1.3"),
        correction(OWN_CORRECTION, loss_type="reinforce", rollout_rs="token_k1,token_k2", rollout_rs_threshold="0.8_1.3,.1"),
    )],
    [{f"{ACTOR}loss_agg_mode": m, **SCALED} for m in MEANS],
    [{f"{ACTOR}clip_ratio_low": low, f"{ACTOR}clip_ratio_high": high} for low, high in (
        (0.05, 0.3), (1.0, 0.1), (1.5, 2.0), (None, 0.05), (0.1, None), (1e-3, 1e-3)
    )],
    [{f"{ACTOR}clip_ratio_c": c} for c in (1.01, 1.1, 20)],
    [{f"{ACTOR}tau_pos": 3.0, f"{ACTOR}tau_neg": 0.1}],
    [{**KL, f"{ACTOR}kl_loss_type": m, f"{ACTOR}kl_loss_coef": c} for m in KL_NAMES for c in (0.3, 0.0, -0.2)],
    [{f"{ALGORITHM}norm_adv_by_std_in_grpo": False}],
    [{f"{ALGORITHM}{name}": value for name in ("gamma", "lam")} for value in (1.0, 0.9)],
    [{**IN_REWARD, f"{ALGORITHM}kl_penalty": m, f"{ALGORITHM}kl_ctrl.kl_coef": c} for m in KL_NAMES for c in (0.3, -1)],
    [correction(rollout_is=level, rollout_is_threshold=bounds, rollout_is_batch_normalize=normed)
        for level in ("token", "sequence")
        for bounds in (0.9, 1, 1.05, 2.0, "0.8_1.3", "1_1.3", "0.5_0.95", "1.02_3")
        for normed in (False, True)],
    [*_RS, *_RS, *({**a, **correction(
        rollout_rs=f"{a[CORRECTION + 'rollout_rs']},{b[CORRECTION + 'rollout_rs']}",
        rollout_rs_threshold=f"{a[CORRECTION + 'rollout_rs_threshold']},{b[CORRECTION + 'rollout_rs_threshold']}",
    )} for a, b in zip(_RS, _RS[3:] + _RS[:3], strict=True)),
        OPTIONS["one bound of k1"], correction(rollout_rs="seq_mean_k1", rollout_rs_threshold="1.001_2")],
    [{"trainer.use_v1": False}],
    [correction(bypass_mode=True), correction(bypass_mode=True, loss_type="reinforce")],
    [{f"{ROLLOUT}calculate_log_probs": False}],
    [{f"{ROLLOUT}n": 1}],
]  # fmt: skip
OFTEN = (0.9, 0.9, 0.6, 0.4, 0.3, 0.2, 0.4, 0.4, 0.4, 0.3, 0.4, 0.3, 0.2, 0.1, 0.05, 0.1)


def random_configs(count: int, seed: int = 0) -> Iterator[Config]:
    draw = random.Random(seed)
    for _ in range(count):
        made = dict(BASE)
        for group, often in zip(GROUPS, OFTEN, strict=True):
            if draw.random() < often:
                made |= draw.choice(group)
        yield made
