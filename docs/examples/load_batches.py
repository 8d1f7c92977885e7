"""Batches of TRL, verl, lines of JSON and parquet as `Rollouts`: docs/rollouts.md."""

import json

import torch

from fibration import Rollouts


def from_trl(steps, **labels):
    """Of the micro-batches of an optimizer step, as (inputs, per_token_logps), of any widths."""
    rows = {"log_probs": [], "old_log_probs": [], "mask": [], "rollout": [], "ids": []}
    for inputs, per_token_logps in steps:
        old = inputs["old_per_token_logps"]  # there where a step is not the first on its rollouts
        sampled = inputs.get("sampling_per_token_logps")  # of vLLM, with NaN where it knows none
        sampled = old if sampled is None else torch.where(sampled.isnan(), old, sampled)
        tools = inputs.get("tool_mask")
        mask = inputs["completion_mask"] if tools is None else inputs["completion_mask"] * tools
        for name, tensor in zip(rows, (per_token_logps, old, mask, sampled, inputs["completion_ids"]), strict=True):
            rows[name] += tensor.detach().cpu().unbind()
    kept = {
        f"{stratum}": [row.labels[stratum] for inputs, _ in steps for row in inputs["fibration_rows"]]
        for stratum in (steps[0][0]["fibration_rows"][0].labels if "fibration_rows" in steps[0][0] else ())
    }
    return Rollouts.from_batch(
        rows["log_probs"],
        rows["old_log_probs"],
        torch.cat([inputs["advantages"] for inputs, _ in steps]),
        mask=rows["mask"],
        policies={"rollout": rows["rollout"]},
        token_ids=rows["ids"],
        **kept,
        **labels,
    )


LABELS = {"prompt_group": "uid", "domain": "data_source"}  # the field of verl for each stratum


def from_verl(data, log_probs, labels=LABELS):
    """Of the trainer's `DataProto` after advantages are computed."""
    batch = data.batch
    given = batch.keys()  # a TensorDict has no `in`
    optional = {
        name: batch[name] if name in given else None
        for name in ("rollout_log_probs", "ref_log_prob", "token_level_rewards", "responses")
    }
    return Rollouts.from_batch(
        log_probs,
        batch["old_log_probs"],
        batch["advantages"],
        mask=batch["response_mask"],  # [B, T] each
        rewards=optional["token_level_rewards"],
        token_ids=optional["responses"],
        policies={"rollout": optional["rollout_log_probs"], "reference": optional["ref_log_prob"]},
        **{stratum: data.non_tensor_batch[key] for stratum, key in labels.items()},
    )


def from_jsonl(path):
    """Each line is a trajectory; values per token are lists."""
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]

    def column(name):
        return [row.get(name) for row in rows] if any(name in row for row in rows) else None

    return Rollouts.from_batch(
        column("log_probs"),
        column("old_log_probs"),
        column("advantage"),
        rewards=column("reward"),
        prompt_group=column("prompt"),
        domain=column("source"),
        turn=column("turns"),
        provenance={"file": str(path)},
    )


def from_parquet(path):
    """pandas reads the file, if pyarrow is installed."""
    import pandas

    return from_table(pandas.read_parquet(path))


def from_table(table):
    """Of a table with a row per trajectory and columns of lists, such as a data frame."""
    return Rollouts.from_batch(
        table["log_probs"],
        table["old_log_probs"],
        table["advantage"],
        prompt_group=table["prompt"],
        domain=table["source"],
    )
