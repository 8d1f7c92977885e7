"""A hierarchy as a custom loss of Tinker's client, for `TrainingClient.forward_backward_custom`.

The client gets the log-probs of all data from the service and calls the loss on them. It sends `-dC/dlogp` back, as the
weights of the service's cross-entropy. These weights are the coefficients. Nothing here imports the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fibration.errors import TrainerError, listed
from fibration.language.declared import OLD
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.operator import Operator
from fibration.trainers.intake import as_operator, check_mapping
from fibration.trainers.window import Alone, named

MASK, ADVANTAGES, LOG_PROBS = "mask", "advantages", "logprobs"  # fields of a datum's `loss_fn_inputs`

CustomLoss = Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]


def custom_loss(
    op: Operator | Hierarchy | str,
    labels: Mapping[str, Sequence[Any]] | None = None,
    *,
    rewards: Sequence[float] | None = None,
    policies: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    metrics: bool | str | Sequence[str] = True,
) -> CustomLoss:
    """Returns the loss to pass to `forward_backward_custom(data, loss)`: `(data, log_probs) -> (-J, metrics)`.

    One call covers one optimizer step: `J` is of all data of the call.

    - `op`: an operator from `fibration.compile`, a hierarchy, or the name of a loss.
    - `labels`: per stratum, one label for each datum, such as `{"prompt_group": groups}`. If several data are pieces of
      one trajectory, `{"trajectory": keys}`.
    - `rewards`: one for each datum, for a hierarchy with a formula of advantages, which requires them.
    - `policies`: the field of `loss_fn_inputs` that has a policy's log-probs. Default: `{"old": "logprobs"}`, those of
      the sampler. `{"old": "old_logprobs", "rollout": "logprobs"}` for a hierarchy that reads `log_prob(rollout)`.
    - `attributes`: one number per datum, or the field of `loss_fn_inputs` that has one per token, such as
      `{"entropy": "entropies"}`. An attribute of a coarser stratum takes a mapping from its labels to numbers.
    - `parameters`, `metrics`: as in `op.loss`.

    Each datum has in `loss_fn_inputs`, beside `target_tokens` and of its length: `"mask"`, 1 on sampled tokens and 0 on
    the prompt's; the log-probs of `policies`; without `rewards`, `"advantages"`. Values under the mask are never read.

    The loss computes in float64. The client rounds the weights to float32, which the service takes. Raises TrainerError
    for missing rewards, and for a field that is missing or has another length; BatchError for labels, policies or
    attributes that are no mapping. Other errors of the batch are those of `op.index` and `op.loss`.
    """
    op = as_operator(op)
    if op.hierarchy.advantages is not None and rewards is None:
        raise TrainerError(
            f"'{op.hierarchy.name}' makes its own advantages, and those of the data would take their place",
            required="the rewards that its formula reads, one for each datum",
            remedy="rewards=[...], or zeros if the formula reads none (`opd`); or hierarchy.replace(advantages=None)",
        )
    check_mapping("labels", labels, "{'prompt_group': [...]}, one label for each datum; {} for a loss of tokens")
    check_mapping("policies", policies, "{'old': 'logprobs'}, a field of loss_fn_inputs for each policy")
    check_mapping("attributes", attributes, "{'entropy': 'entropies'}, numbers or a field for each attribute")
    fields = {OLD: LOG_PROBS, **(policies or {})}
    indexed: dict[str, Any] = dict(labels or {})
    if indexed.get(op.hierarchy.rows.name) is not None:
        indexed["group"] = Alone()  # without a group, equal keys are an error

    def loss(data: Sequence[Any], log_probs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        def packed(field: str) -> Tensor:
            return torch.cat([_field(place, row, field, data[place]) for place, row in enumerate(log_probs)]).double()

        offsets = torch.tensor([0, *accumulate(map(len, log_probs))])
        given = {name: packed(x) if isinstance(x, str) else x for name, x in (attributes or {}).items()}
        index = op.index(offsets=offsets, mask=packed(MASK) != 0, attributes=given or None, **indexed)
        old, *others = (packed(field) for field in fields.values())
        made = op.loss(
            torch.cat(list(log_probs)).double(),
            old,
            None if rewards is not None else packed(ADVANTAGES),
            index,
            parameters,
            rewards=None if rewards is None else torch.as_tensor(rewards, dtype=torch.float64),
            policies=dict(zip([name for name in fields if name != OLD], others, strict=True)),
            metrics=metrics,
        )
        return made.loss, named({name: x for name, x in made.scalars().items() if name != "loss"})

    return loss


def _field(place: int, log_probs: Tensor, field: str, datum: Any) -> Tensor:
    """A field of one datum, in the shape of its log-probs `[T]`."""
    given = datum.loss_fn_inputs
    if field not in given:
        raise TrainerError(
            f"datum {place} has no loss_fn_inputs['{field}']",
            required="1 on sampled tokens and 0 on the prompt's" if field == MASK else "a number for each target token",
            found=listed(map(repr, given)),
            remedy=f"loss_fn_inputs={{..., '{field}': torch.tensor(...)}}",
        )
    values: Tensor = given[field].to_torch()
    if log_probs.ndim != 1 or values.shape != log_probs.shape:
        raise TrainerError(
            f"loss_fn_inputs['{field}'] of datum {place} has shape {list(values.shape)}",
            required="one number for each target token, [T]",
            found=f"log-probs of shape {list(log_probs.shape)}",
            remedy=f"give '{field}' one number for each number of target_tokens",
        )
    return values
