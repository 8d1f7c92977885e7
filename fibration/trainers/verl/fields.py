"""Fields of verl's mini-batches: values per token, padded or nested, and labels per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

from fibration.errors import TrainerError, listed, shown
from fibration.trainers.labels import as_label
from fibration.trainers.verl.loss import HERE


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
        if as_label(found[row]) is None:
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
