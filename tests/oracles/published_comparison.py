"""Compares the library's losses with their sources' formulas (`published*.py`) on random ragged batches off policy."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from support import Batch, Layout, operator, packed, padded, spec

from fibration import Hierarchy
from fibration.runtime.operator import Operator
from oracles.published import PUBLISHED, Rows, m2po_threshold
from oracles.published_objectives import OBJECTIVES, Scored

SOURCES = {**PUBLISHED, **OBJECTIVES}

SEEDS = range(3)
LENGTHS = (1, 4, 9, 2, 6, 5, 3, 12)
# Rows have prompts and domains in no order; one group has equal rewards.
PROMPTS, DOMAINS = (0, 1, 0, 2, 1, 2, 0, 2), (0, 0, 0, 1, 0, 1, 0, 1)
OTHER_PROMPTS = {"pass_at_k": (1, 0, 1, 1, 1, 0, 1, 1), "kimi_k15": (0, 0, 1, 1, 1, 1, 0, 0)}
LABELS = {"ppo_gae": "per token", **dict.fromkeys(("pass_at_k", "real", "maxrl"), "right or wrong")}
PER_TOKEN = {
    *("gspo_token", "reinforce", "cispo", "cispo_absolute", "grpo", "dapo", "ppo", "dr_grpo", "sapo", "clip_cov"),
    *("ppo_entropy", "ppo_nll", "dro", "prime_rl", "kl_cov", "ctpo", "fipo", "prefix_is"),
}
# How far tokens and rows drift, and parameters by which both sides of every bound are met.
DRIFT = {
    "dcpo": (1.5, 0.3),
    "ppo": (0.8, 0.2),
    "ce_gppo": (0.4, 0.2),
    "dppo_tv": (1.0, 0.5),
    "dppo_kl": (1.0, 0.5),
    "vespo": (0.1, 0.1),
    "aspo": (0.6, 0.3),
    "prime_rl": (1.0, 0.5),
    "ppo_entropy": (0.15, 0.1),
    "ctpo": (0.1, 0.1),
    "fipo": (0.5, 0.3),
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
    **{name: {"length": 16.0} for name in ("dr_grpo_rewards", "hierarchical_grpo")},
    **{name: {"beta": 0.3} for name in ("rloo_kl", "reinforce_pp", "grpo_k3", "grpo_k2", "grpo_rk3", "dro")},
    "ppo_gae": {"gamma": 0.9, "lam": 0.8},
    "gdpo": {"weight_1": 0.7, "weight_2": 1.3},
    **{name: {"beta": 0.3} for name in ("opd", "opd_reward")},
    "entropy_mask": {"level": 0.5},
    "ppo_entropy": {"bonus": 0.2},
    "prime_rl": {"low": 0.1, "high": 0.1, "tau": 0.3},
    "kl_cov": {"level": 0.81},
    "ctpo": {"ceiling": 0.08},
    "fipo": {"ceiling": 2.5, "safety": 1.6, "gamma": 0.7},
    "prefix_is": {"ceiling": 1.2},
    **{f"attenuated_{s}": {"C_high": 0.24, "C_low": 0.2} for s in ("trajectory", "group", "domain")},
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
    rows = Rows(*made, torch.from_numpy(mask))
    return scored(name, rows, draw, near(old, 0.3, 0.2)) if name in OBJECTIVES else rows


def scored(name: str, b: Rows, draw: np.random.Generator, reference: np.ndarray) -> Scored:
    """The same rows, with what else an objective needs."""
    prompts, count = OTHER_PROMPTS.get(name, PROMPTS), len(LENGTHS)
    rewards = draw.normal(0, 1, (count, 1)) + np.zeros(b.mask.shape)
    rewards[np.array(prompts) == 1] = 0.3
    if LABELS.get(name) == "per token":
        rewards = draw.normal(0, 1, b.mask.shape)
    elif LABELS.get(name):
        rewards = (draw.permutation(count) < count // 4)[:, None] + np.zeros(b.mask.shape)
    names = ("reference", "rewards", "values", "greedy", "teacher", "entropy")
    others = [reference, rewards, draw.normal(0, 1, b.mask.shape), draw.normal(0, 1, count)]
    teacher = b.old.numpy() + draw.normal(0, 0.5, b.mask.shape)
    others += [np.minimum(teacher, -1e-3), draw.exponential(1.0, b.mask.shape)]
    return Scored(
        **vars(b),
        **dict(zip(names, map(torch.from_numpy, others), strict=True)),
        prompt_group=prompts,
        domain=DOMAINS,
    )


def parameters(name: str, b: Rows) -> dict:
    defaults = {p.name: p.default for p in spec(name).parameters.values()}
    found = {"threshold": m2po_threshold(b, 0.04)} if name == "m2po" else {}
    return {**defaults, **PARAMETERS.get(name, {}), **found}


def published(name: str, b: Rows, given: dict):
    """J and its gradient in the log-probs of the tokens, both from the source's formula."""
    log_prob = b.log_prob.clone().requires_grad_()
    objective, branches = SOURCES[name](replace(b, log_prob=log_prob), given)
    (slope,) = torch.autograd.grad(objective, log_prob)
    return float(objective.detach()), slope[b.mask].numpy(), [c.expand_as(b.mask)[b.mask].numpy() for c in branches]


@dataclass(frozen=True)
class Placed:
    """A loss on a backend, and rows that are laid out for it in some way."""

    op: Operator
    layout: Layout
    b: Rows
    given: dict
    policies: dict

    def tensor(self, values):
        return self.layout.tensor(values[self.b.mask].numpy())

    @property
    def rewards(self):
        """One per row, if all of its places have the same."""
        per_row = bool((self.b.rewards == self.b.rewards[:, :1]).all())
        return self.b.of_row if per_row else self.tensor(self.b.rewards)

    def arguments(self):
        advantages = self.op.hierarchy.advantages is None
        more = {"advantages": self.tensor(self.b.advantages)} if advantages else {"rewards": self.rewards}
        more |= {"policies": {k: v for k, v in self.policies.items() if k in self.op.hierarchy.policies}}
        return (self.tensor(self.b.at), self.tensor(self.b.old)), more | {
            "index": self.layout.index,
            "parameters": self.given,
        }


def placed(h: Hierarchy, backend: str, b: Rows, given: dict, place) -> Placed:
    op = operator(h, backend)
    labels = {"prompt_group": [r // 2 for r in range(len(LENGTHS))], "domain": [r // 4 for r in range(len(LENGTHS))]}
    others, attributes = {"rollout": b.rollout}, {}
    if isinstance(b, Scored):
        labels = {"prompt_group": list(b.prompt_group), "domain": list(b.domain)}
        others |= {"reference": b.reference, "teacher": b.teacher}
        attributes = {"value": b.values[b.mask].numpy(), "greedy_reward": b.greedy}
        attributes |= {"reward_1": b.of_row, "reward_2": b.greedy, "entropy": b.entropy[b.mask].numpy()}
    drift, a = ((v[b.mask]).numpy() for v in (b.held, b.advantages))
    layout = place(op, Batch(LENGTHS, drift, a, labels, attributes=attributes))
    return Placed(op, layout, b, given, {k: layout.tensor(v[b.mask].numpy()) for k, v in others.items()})


def compiled(h: Hierarchy, backend: str, b: Rows, given: dict, place):
    """The loss, J and coefficients of tokens as the library has them."""
    at = placed(h, backend, b, given, place)
    tensors, more = at.arguments()
    found = at.op.coefficients(*tensors, **more)
    return float(at.op.loss(*tensors, **more).loss), float(found.objective), at.layout.read(found.values)


def shown(h: Hierarchy, backend: str, b: Scored, given: dict, place) -> np.ndarray:
    """The advantages of tokens, as the library makes them of rewards."""
    at = placed(h, backend, b, given, place)
    (_, old), more = at.arguments()
    index, read = more["index"], {p for p in h.policies if p in str(h.advantages)}
    known = {k: v for k, v in (more["policies"] | {"old": old}).items() if k in read}
    found = at.op.advantages(at.rewards, index, given, policies=known)
    return np.repeat(found.numpy(), LENGTHS) if tuple(found.shape) != tuple(index.shape) else at.layout.read(found)


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
            loss, own, values = compiled(spec(name), backend, b, given, place)
            apart = max(abs(own - objective), abs(loss + objective)) / (abs(objective) + 0.1)
            worst = max(worst, apart, difference(values, slope))
    return worst
