"""Coefficients of a hierarchy in slime: docs/trainers/others.md says how to use this file."""

import torch
from megatron.core import mpu
from slime.backends.megatron_utils.data import DataIterator
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.backends.megatron_utils.model import forward_only
from torch.nn.utils.rnn import pad_sequence

import fibration
from fibration.trainers.advantages import coefficients_as_advantages
from fibration.trainers.window import Window

op = fibration.compile(fibration.load("fiberpo_domain_inward"))
forward = ("tokens", "loss_masks", "multimodal_train_inputs", "total_lengths", "response_lengths")
rollout = {}


def keep(args, rollout_id, rollout_data):
    rollout["data"] = rollout_data


def before_step(args, rollout_id, step_id, model, optimizer, scheduler):
    data, now = rollout["data"], None
    first = sum(data["num_microbatches"][:step_id])
    schedule = data["micro_batch_indices"][first : first + data["num_microbatches"][step_id]]
    rows = [i for micro_batch in schedule for i in micro_batch]
    if step_id > 0:
        part = {name: [data[name][i] for i in rows] for name in forward if data.get(name) is not None}
        order = [numbers.tolist() for numbers in torch.arange(len(rows)).split([len(m) for m in schedule])]
        now = forward_only(get_log_probs_and_entropy, args, model, [DataIterator(part, order)], [len(order)])
    if not mpu.is_pipeline_last_stage():
        return
    if "log_probs" in data:
        data["old"] = data.pop("log_probs")
    mask, a = (pad_sequence([data[name][i] for i in rows], batch_first=True) for name in ("loss_masks", "advantages"))
    old = pad_sequence([data["old"][i] for i in rows], batch_first=True) if "old" in data else None
    groups = [data["sample_indices"][i] // args.n_samples_per_prompt for i in rows]
    labels = {"prompt_group": groups, "domain": [data["source_names"][i] for i in rows]}
    window = Window(op, mask, old, a, labels, group=mpu.get_data_parallel_group())
    c = window.coefficients(None if now is None else pad_sequence(now["log_probs"], batch_first=True)).values
    counts = {"count": data["global_batch_sizes"][step_id], "lengths": data["rollout_mask_sums"][rows]}
    a = coefficients_as_advantages(c, mask, reduction="sequence-mean", **counts)
    for i, mine in zip(rows, a, strict=True):
        data["advantages"][i] = mine[: len(data["advantages"][i])]
