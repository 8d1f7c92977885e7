"""Fields of verl's mini-batches: values per token, padded or nested, and labels per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from fibration.errors import TrainerError, listed, shown, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.trainers import intake
from fibration.trainers.verl.loss import HERE
from fibration.trainers.verl.settings import Settings


def replace_advantages(data: TensorDict, values: Tensor) -> None:
    """Replace the advantages by values `[B, T]`, in the same layout."""
    given = data["advantages"]
    values = values.to(given.device)
    data["advantages"] = response_to_nested(values, given) if given.is_nested else values


def padded(data: TensorDict, key: str) -> Tensor:
    """A field `[B, T]`, padded with 0: verl's v1 trainers nest it, v0 pads it."""
    if key not in data:
        raise TrainerError(
            f"the mini-batch has no field '{key}'",
            required="what verl's ppo_loss reads",
            found=listed(sorted(data.keys())),
        )
    given: Tensor = data[key]
    return given.to_padded_tensor(0) if given.is_nested else given


def column(
    data: TensorDict, source: str | Sequence[str], stratum: str, keys: bool, used: Sequence[int]
) -> Sequence[Any]:
    """A label or key per row; every row in `used` must have one."""
    if not isinstance(source, str):
        return list(zip(*(column(data, one, stratum, keys, used) for one in source), strict=True))
    option = f"+{HERE}.trajectory=[FIELD]" if keys else f"+{HERE}.labels.{stratum}=FIELD"
    if source not in data:
        raise TrainerError(
            f"the field '{source}' for labels of '{stratum}' is missing in the mini-batch",
            required="a field with one label per row",
            found=f"fields of labels: {listed(sorted(k for k, field in data.items() if _has_labels(field))) or 'none'}",
            remedy=f"give the data set a column '{source}', or name another: {option}",
        )
    found = of_each_row(data, source, f"for labels of '{stratum}'", "one label per row", option)
    for row in used:
        if intake.as_label(found[row]) is None:
            raise TrainerError(
                f"row {row} has {shown(found[row])} in the field '{source}' for labels of '{stratum}'",
                required="one text or number per row, and no NaN",
                remedy=f"give such rows a label in the data set, or drop them; or name another field: {option}",
            )
    return found


def of_each_row(data: TensorDict, field: str, use: str, required: str, fix: str) -> list[Any]:
    """One value per row of a field. `use`: what it is for, in errors."""
    found = tu.get(data, key=field)
    if isinstance(found, Tensor):
        if found.is_nested or found.reshape(len(data), -1).shape[1] != 1:
            raise TrainerError(f"the field '{field}' {use} has several numbers per row", required=required, remedy=fix)
        return list(found.reshape(-1).tolist())
    if not isinstance(data.get(field), NonTensorStack):
        return [found] * len(data)  # verl stores values that are equal in all rows once
    return list(found)


def _has_labels(field: Any) -> bool:
    """Whether a field has one label or number per row."""
    return isinstance(field, NonTensorStack) or (isinstance(field, Tensor) and not field.is_nested and field.ndim == 1)


def refuse_several(sessions: Sequence[Mapping[int, Any]]) -> None:
    """Refuse several rows of one session without `trajectory`: only the user knows whether they are one trajectory."""
    met: dict[Any, tuple[int, int]] = {}
    for rank, keys in enumerate(sessions):
        for row, key in keys.items():
            first, other = met.setdefault(key, (rank, row)), (rank, row)
            if first != other:
                where = [f"row {n} of rank {of}" for of, n in (first, other)]
                raise TrainerError(
                    f"{f'rows {first[1]} and {row}' if first[0] == rank else listed(where)} are outputs of one session",
                    required="trajectory=: several outputs of an agent loop are one trajectory, or one each",
                    found=f"uid and session_id {key} on rank {rank}",
                    remedy=f"+{HERE}.trajectory=[uid,session_id] makes them one, =[] makes each its own",
                )


# ---------------------------------------------------------------- numbers

SAMPLED = "rollout_log_probs"  # verl's field of the rollout engine's log-probs
REFERRED = "ref_log_prob"  # verl's field of the reference model's log-probs
REWARDS, SCORES = "token_level_rewards", ("token_level_scores", "rm_scores")  # with and without verl's KL penalty
FIX = "give such rows a number in the data set or in the reward function, or drop them"


def as_floats(log_probs: Tensor) -> Tensor:
    return log_probs if log_probs.dtype == torch.float64 else log_probs.float()


def policies_of(data: TensorDict, settings: Settings, device: Any) -> dict[str, Tensor]:
    """Log-probs `[B, T]` of the policies that the hierarchy reads, beside the current and the old one."""
    hierarchy, found = settings.operator.hierarchy, {}
    if intake.REFERENCE in hierarchy.policies:
        found[intake.REFERENCE] = _reference(data, hierarchy)
    if intake.ROLLOUT in hierarchy.policies:
        found[intake.ROLLOUT] = _sampled(data, hierarchy)
    for name, field in settings.policies.items():
        found[name] = of_tokens(data, field, f"log-probs of the policy '{name}'", f"+{HERE}.policies.{name}=FIELD")
    return {name: as_floats(values.to(device)) for name, values in found.items()}


def is_sampled_by_old(data: TensorDict) -> bool:
    """Whether the rollout engine's log-probs equal the old ones on every token."""
    sampled, old = (padded(data, key) for key in (SAMPLED, "old_log_probs"))
    mask = padded(data, "response_mask").bool()
    return bool(mask.any()) and torch.equal(sampled[mask], old[mask])


def _sampled(data: TensorDict, hierarchy: Hierarchy) -> Tensor:
    if "rollout_is_weights" in data:
        raise intake.read_twice(
            hierarchy,
            intake.ROLLOUT,
            "the mini-batch has verl's 'rollout_is_weights'",
            "algorithm.rollout_correction.rollout_is=null, which leaves the correction to the hierarchy",
        )
    if SAMPLED not in data:
        raise TrainerError(
            f"'{hierarchy.name}' reads log_prob({intake.ROLLOUT}), and the mini-batch has no field '{SAMPLED}'",
            required="rollout log-probs of every token",
            remedy="actor_rollout_ref.rollout.calculate_log_probs=true, and "
            "algorithm.rollout_correction.bypass_mode=false; with bypass_mode they replace the old ones",
        )
    return padded(data, SAMPLED)


def _reference(data: TensorDict, hierarchy: Hierarchy) -> Tensor:
    if REFERRED not in data:
        raise TrainerError(
            f"'{hierarchy.name}' reads log_prob({intake.REFERENCE}), and the mini-batch has no field '{REFERRED}'",
            required="log-probs of the reference model, of every token",
            remedy="actor_rollout_ref.actor.use_kl_loss=true, with kl_loss_coef=0, which adds no divergence",
        )
    scores = next((name for name in SCORES if name in data), None)
    if REWARDS in data and scores is not None and not torch.equal(padded(data, REWARDS), padded(data, scores)):
        raise intake.read_twice(
            hierarchy,
            intake.REFERENCE,
            f"'{REWARDS}' differ from '{scores}': verl subtracts its divergence from the reference model",
            "algorithm.use_kl_in_reward=false",
        )
    return padded(data, REFERRED)


def attributes_of(
    data: TensorDict, settings: Settings, labels: Mapping[str, Sequence[Any]], mask: Tensor
) -> dict[str, Any]:
    """What `op.index(attributes=...)` takes. `mask`: bool `[B, T]`. `labels`: by stratum, of every row."""
    hierarchy, used = settings.operator.hierarchy, mask.any(1).nonzero()[:, 0].tolist()
    numbers: dict[str, Tensor] = {}
    for name, field in settings.attribute_sources().items():
        attribute, fix = hierarchy.attributes[name], f"+{HERE}.attributes.{name}=FIELD"
        what = f"the attribute '{name}'"
        if intake.is_per_token(hierarchy, attribute):
            values = of_tokens(data, field, what, fix)
            numbers[name] = intake.numbers_of_tokens(attribute, values, mask, f"the field '{field}'", FIX)
        else:
            given = of_rows(data, field, what, fix)
            numbers[name] = intake.numbers_of_rows(attribute, given, used, f"the field '{field}'", FIX)
    return intake.indexed(hierarchy, numbers, labels, mask)


def of_rows(data: TensorDict, field: str, what: str, fix: str) -> Sequence[Any]:
    """One value per row of a field. `a.b.c` reads the key `c` of the key `b` of the dictionaries in the field `a`."""
    name, *keys = [field] if field in data else field.split(".")
    if name not in data:
        raise _no_field(data, name, what, "one number per row", fix)
    values = of_each_row(data, name, f"for {what}", "one number per row", fix)
    for key in keys:
        known = {str(k) for value in values if isinstance(value, Mapping) for k in value}
        if key not in known:
            raise TrainerError(
                f"no row has the key '{key}' of the field '{field}', the source of {what}",
                required="one number per row",
                found=f"keys {listed(sorted(known))}" if known else "no keys",
                remedy=suggest(key, known) or f"name another field: {fix}",
            )
        values = [value.get(key) if isinstance(value, Mapping) else None for value in values]
    return values


def of_tokens(data: TensorDict, field: str, what: str, fix: str) -> Tensor:
    """A field with one number per token of the responses, or per token of prompts and responses, as `[B, T]`.

    verl's values of prompts and responses are those of the next token, as its model outputs are.
    """
    if field not in data or not isinstance(data[field], Tensor):
        raise _no_field(data, field, what, "a tensor with one number per token of the responses", fix)
    given, like = data[field], padded(data, "old_log_probs")
    rule = f"one number per token: {list(like.shape)}"
    if given.is_nested:
        lengths, inputs = given.offsets().diff(), data["input_ids"]
        if inputs.is_nested and torch.equal(lengths, inputs.offsets().diff().to(lengths.device)):
            given = no_padding_2_padding(given, data)
            given = given.flatten(1) if given.shape[2:].numel() == 1 else given  # verl's teacher has its one best token
        else:
            rows, mask = data["old_log_probs"], padded(data, "response_mask").bool()
            last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)  # of the tokens that train
            wanted = (rows.offsets().diff() if rows.is_nested else last).to(lengths.device)
            wrong = lengths != wanted if rows.is_nested else lengths < wanted
            if wrong.any():
                row = int(wrong.nonzero()[0])
                raise TrainerError(
                    f"row {row} of the field '{field}', the source of {what}, has {int(lengths[row])} numbers",
                    required=f"one for each of its {int(wanted[row])} tokens",
                    remedy=fix,
                )
            given = given.to_padded_tensor(0)
    if given.shape != like.shape:
        raise TrainerError(
            f"the field '{field}', the source of {what}, has shape {list(given.shape)}", required=rule, remedy=fix
        )
    return given


def _no_field(data: TensorDict, field: str, what: str, required: str, fix: str) -> TrainerError:
    has = f"has no field '{field}'" if field not in data else f"has {shown(tu.get(data, key=field))} in '{field}'"
    return TrainerError(
        f"the mini-batch {has}, the source of {what}",
        required=required,
        found=f"fields {listed(sorted(data.keys()))}",
        remedy=f"name another field: {fix}; or let the data set, the reward function or the agent loop add this one",
    )
