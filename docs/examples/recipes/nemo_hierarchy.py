"""Coefficients of a hierarchy in NeMo-RL: docs/trainers/others.md says how to use this file."""

import torch
from nemo_rl.algorithms import grpo
from nemo_rl.models.policy.lm_policy import Policy

import fibration
from fibration.trainers.advantages import coefficients_as_advantages
from fibration.trainers.window import Window

op = fibration.compile(fibration.load("fiberpo_domain_inward"))
labels = {}


class Labelled:
    """An advantage estimator that records the labels of its rows."""

    def __init__(self, estimator):
        self.estimator = estimator

    def compute_advantage(self, prompt_ids, repeated_batch, **more):
        labels.update(
            prompt_group=[tuple(ids) for ids in prompt_ids.tolist()], domain=list(repeated_batch["task_name"])
        )
        return self.estimator.compute_advantage(prompt_ids=prompt_ids, repeated_batch=repeated_batch, **more)


make = grpo._create_advantage_estimator
grpo._create_advantage_estimator = lambda config: Labelled(make(config))


class HierarchicalPolicy(Policy):
    def train(self, data, loss_fn, eval_mode=False, gbs=None, mbs=None, **more):
        size = gbs or self.cfg["train_global_batch_size"]
        for first in range(0, data.size, size):
            step = data.select_indices(torch.arange(first, first + size))
            mask = step["token_mask"] * step["sample_mask"][:, None]
            of_rows = {name: given[first : first + size] for name, given in labels.items()}
            window = Window(op, mask, step["prev_logprobs"], step["advantages"], of_rows)
            c = window.coefficients(self.get_logprobs(step)["logprobs"]).values
            step["advantages"] = coefficients_as_advantages(c, mask, reduction="token-mean", count=window.tokens)
            result = super().train(step, loss_fn, eval_mode, gbs, mbs, **more)
        return result
