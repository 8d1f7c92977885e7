"""Coefficients of a hierarchy in OpenRLHF: docs/trainers/others.md says how to use this file."""

from itertools import islice

import torch
from torch.nn.utils.rnn import pad_sequence

import fibration
from fibration.trainers.advantages import coefficients_as_advantages
from fibration.trainers.window import Window

op = fibration.compile(fibration.load("fiberpo_domain_inward"))
domains = {}  # the domain of each prompt, by its text


def at_ratio_one(loss, given, named):
    return (given[0], given[0].detach(), given[2]), named


def join(parts):
    return pad_sequence([row for part in parts for row in part], batch_first=True)


def windows(trainer, micro_batches):
    hook = trainer.actor_loss_fn.register_forward_pre_hook(at_ratio_one, with_kwargs=True)
    strategy, micro_batches = trainer.strategy, iter(micro_batches)
    while step := list(islice(micro_batches, strategy.accumulated_gradient)):
        for batch in step:
            batch.to_device(next(trainer.actor.parameters()).device)
        with torch.no_grad():
            now = join(trainer.actor(b.sequences, b.action_mask, b.attention_mask) for b in step)
        mask, old, a = (
            join(getattr(b, name) for b in step) for name in ("action_mask", "action_log_probs", "advantages")
        )
        prompts = [prompt for b in step for prompt in b.prompts]
        labels = {"prompt_group": prompts, "domain": [domains[prompt] for prompt in prompts]}
        window = Window(op, mask, old, a, labels, group=strategy.ds_device_mesh["dp"].get_group())
        c = window.coefficients(now).values
        a = coefficients_as_advantages(c, mask, reduction="token-mean", count=window.tokens)
        for b, mine in zip(step, a.split([len(b.prompts) for b in step]), strict=True):
            b.advantages = mine[:, : b.action_mask.shape[1]]
        yield from step
    hook.remove()
