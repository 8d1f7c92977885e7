"""The library's losses beside their sources' formulas (`published.py`), on random ragged batches off policy."""

import numpy as np
import torch
from support import Batch, operator, packed, padded, spec

from oracles.published import PUBLISHED, Rows, m2po_threshold

SEEDS = range(3)
LENGTHS = (1, 4, 9, 2, 6, 5, 3, 12)
PER_TOKEN = {"gspo_token", "reinforce", "cispo", "cispo_absolute", "grpo", "dapo", "ppo", "dr_grpo", "sapo", "clip_cov"}
# How far tokens and rows drift, and parameters by which both sides of every bound are met.
DRIFT = {
    "dcpo": (1.5, 0.3),
    "ppo": (0.8, 0.2),
    "ce_gppo": (0.4, 0.2),
    "dppo_tv": (1.0, 0.5),
    "dppo_kl": (1.0, 0.5),
    "vespo": (0.1, 0.1),
    "aspo": (0.6, 0.3),
}
PARAMETERS = {
    "cispo": {"epsilon_low": 0.3},
    "cispo_absolute": {"ceiling": 1.5},
    "aspo": {"ceiling": 1.4, "epsilon_low": 0.5, "epsilon_high": 0.5},
    "dcpo": {"ceiling": 4.0, "epsilon_low": 0.02},
    "bapo": {"c_low": 0.8},
    "ppo": {"ceiling": 1.5},
    "dr_grpo": {"length": 16.0},
    **{name: {"epsilon_low": 0.05, "epsilon_high": 0.06} for name in ("gspo", "gspo_token", "luspo")},
    "dhpo": {"epsilon_low_sequence": 0.05, "epsilon_high_sequence": 0.06, "share": 0.3},
    "gmpo": {"epsilon_low": 0.1, "epsilon_high": 0.2},
    "fspo": {"band": 0.2},
    **{name: {"ceiling": 1.2} for name in ("tis", "sequence_tis", "mis", "minirl", "aipo", "fiberpo_tis")},
    "icepop": {"least": 0.8, "most": 1.3},
    **{name: {"least": 0.9, "most": 1.1} for name in ("geometric_mask", "seq_mask_tis")},
    "token_veto": {"least": 0.68, "most": 1.6},
    "dppo_tv": {"ceiling": 1.5, "epsilon_low": 0.1, "epsilon_high": 0.1},
    "dppo_kl": {"ceiling": 1.5},
    "clip_cov": {"least": 0.3, "most": 0.8},
}  # fmt: skip


def rows(name: str, seed: int) -> Rows:
    """Rows of log-probs of three policies, left-aligned."""
    draw = np.random.default_rng([seed, *name.encode()])
    shape, mask = (len(LENGTHS), max(LENGTHS)), np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    tokens, whole = DRIFT.get(name, (0.25, 0.15))

    def near(log_prob, by_token, by_row):
        moved = draw.normal(0, by_token, shape) + draw.normal(0, by_row, (shape[0], 1))
        return np.minimum(log_prob + moved, -1e-3)

    old = -draw.exponential(1.0, shape) - 0.02
    new, rollout = near(old, tokens, whole), near(old, 0.2, 0.1)
    advantages = draw.normal(0, 1, shape if name in PER_TOKEN else (shape[0], 1)) + np.zeros(shape)
    made = [torch.from_numpy(v) for v in (new, new.copy(), old, rollout, advantages)]
    return Rows(*made, torch.from_numpy(mask))


def parameters(name: str, b: Rows) -> dict:
    defaults = {p.name: p.default for p in spec(name).parameters.values()}
    found = {"threshold": m2po_threshold(b, 0.04)} if name == "m2po" else {}
    return {**defaults, **PARAMETERS.get(name, {}), **found}


def published(name: str, b: Rows, given: dict):
    """J and its gradient in the log-probs of the tokens, both from the source's formula."""
    log_prob = b.log_prob.clone().requires_grad_()
    objective, branches = PUBLISHED[name](Rows(log_prob, b.at, b.old, b.rollout, b.advantages, b.mask), given)
    (slope,) = torch.autograd.grad(objective, log_prob)
    return float(objective.detach()), slope[b.mask].numpy(), [c.expand_as(b.mask)[b.mask].numpy() for c in branches]


def compiled(name: str, backend: str, b: Rows, given: dict, place):
    """J and coefficients of tokens as the library has them, from rows that are laid out in some way."""
    op = operator(spec(name), backend)
    old, new, rollout, a = (v[b.mask].numpy() for v in (b.old, b.at, b.rollout, b.advantages))
    labels = {"prompt_group": [r // 2 for r in range(len(LENGTHS))], "domain": [r // 4 for r in range(len(LENGTHS))]}
    layout = place(op, Batch(LENGTHS, new - old, a, labels))
    more = {"policies": {"rollout": layout.tensor(rollout)}} if "rollout" in spec(name).policies else {}
    tensors = [layout.tensor(v) for v in (new, old, a)]
    found = op.coefficients(*tensors, layout.index, given, **more)
    loss = op.loss(*tensors, layout.index, given, **more).loss
    return float(loss), float(found.objective), layout.read(found.values)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative difference of any token; what is 0 in one is 0 in the other, or as good as."""
    return float(np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 1e-9 * np.abs(expected).max())))


def agreement(name: str, backend: str, seeds=SEEDS, places=(packed, padded)) -> float:
    """The largest relative difference of values and of gradients over all batches."""
    worst = 0.0
    for seed in seeds:
        b = rows(name, seed)
        given = parameters(name, b)
        objective, slope, _ = published(name, b, given)
        for place in places:
            loss, own, values = compiled(name, backend, b, given, place)
            apart = max(abs(own - objective), abs(loss + objective)) / (abs(objective) + 0.1)
            worst = max(worst, apart, difference(values, slope))
    return worst
