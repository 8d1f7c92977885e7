"""A hierarchy as torchrl's GRPO loss: `HierarchyLoss` takes the place of `torchrl.objectives.llm.GRPOLoss`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from fibration.errors import MissingDependency, TrainerError, listed
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.group import agreed, as_group
from fibration.trainers.intake import as_operator, check_mapping
from fibration.trainers.window import check_metrics, named

try:
    from tensordict import NestedKey, TensorDictBase
    from torchrl.objectives.llm import GRPOLoss
except ModuleNotFoundError as missing:
    raise MissingDependency(
        "fibration.trainers.torchrl requires torchrl",
        required="the package torchrl",
        found=f"{missing.name} is not installed",
        remedy="install fibration with its extra: pip install '.[torchrl]' in its checkout",
    ) from missing

UNUSED = ("clip_epsilon", "kl_mask_threshold", "aggregation", "reduction", "clip_value")  # the hierarchy decides these
COEFFICIENTS, SHARE = ("fibration", "coefficients"), ("fibration", "share")  # keys that `prepare` adds


class HierarchyLoss(GRPOLoss):  # type: ignore[misc]
    """`GRPOLoss` with a hierarchy in the place of its clipped objective. Its entropy and KL terms stay.

    - `actor_network`: as in `GRPOLoss`.
    - `hierarchy`: a Hierarchy, a compiled operator, or a name: `"gspo"`, `"mine.json"`, `"specs.py:mine"`.
    - `labels`: for each stratum coarser than trajectories, the key of the tensordict that has one label per row, such
      as `{"prompt_group": "query"}`.
    - `policies`: for each further policy that the hierarchy reads, the key of its log-probs.
    - `gate_parameters`: as `parameters` in `op.loss`. `metrics`: as in `op.loss`.
    - `group`: the ranks whose gradients are averaged, as DDP does, each with rows of its own of the step: a group as in
      `op.index`, such as `torch.distributed.group.WORLD`. All ranks make the same calls. The mean over ranks of
      `loss_objective` is then `-J` of all their rows, and the mean of its gradients that of the step.
    - All other arguments are those of `GRPOLoss`. Those in `UNUSED` are refused: the hierarchy has their place.

    A call takes all rows of an optimizer step, and `loss_objective` is `-J` of these rows. `prepare` serves steps that
    are trained on in pieces. `scalars` has the metrics of the last step, under the names that trainers log.

    Raises TrainerError for options that would have no effect, and without a `group` where torch.distributed has several
    ranks; BatchError for labels or policies that are no mapping. Errors of a batch are those of `op.index` and
    `op.loss`.
    """

    def __init__(
        self,
        actor_network: Any,
        hierarchy: Hierarchy | Operator | str,
        *,
        labels: Mapping[str, NestedKey] | None = None,
        policies: Mapping[str, NestedKey] | None = None,
        gate_parameters: Mapping[str, Any] | None = None,
        metrics: bool | str | Sequence[str] = True,
        group: Any = None,
        **given: Any,
    ) -> None:
        op = as_operator(hierarchy)
        check_metrics(op.hierarchy, metrics)
        if unused := [name for name in UNUSED if name in given]:
            raise TrainerError(
                f"{listed(unused)} of GRPOLoss, beside the hierarchy '{op.hierarchy.name}'",
                required="the bounds, masks and means of the hierarchy",
                remedy=f"leave {listed(unused)} out; bounds are gate_parameters={{...}}",
            )
        if op.hierarchy.advantages is not None:
            raise TrainerError(
                f"'{op.hierarchy.name}' makes advantages of rewards, and torchrl's MCAdvantage makes them too",
                required="one of them",
                remedy="hierarchy.replace(advantages=None)",
            )
        check_mapping("labels", labels, "{'prompt_group': 'query'}, the key of each stratum's labels")
        check_mapping("policies", policies, "{'reference': ('next', 'ref_log_probs', 'full')}, the key of log-probs")
        super().__init__(actor_network, **given)
        self.op, self.gate_parameters, self.metrics = op, gate_parameters, metrics
        self.labels, self.policies, self.group = dict(labels or {}), dict(policies or {}), group
        self.scalars: dict[str, float] = {}

    @torch.no_grad()
    def prepare(self, step: TensorDictBase, rows: int) -> TensorDictBase:
        """Returns the rows of an optimizer step with their coefficients, so that it may be trained on in any pieces.

        The `loss_objective` of pieces that have every row once add up to `-J`, and their gradients to that of the step.
        Log-probs come from forward passes without a graph, of `rows` rows at a time.
        """
        passes = [self._log_probs(part.copy()) for part in step.split(rows)]
        width = max(mask.shape[1] for _, mask in passes)
        now, mask = (torch.cat([pad(x, (width - x.shape[1], 0)) for x in some]) for some in zip(*passes, strict=True))
        given = self._given(step, mask)
        coef = self.op.coefficients(now, **given)
        self.scalars = named(coef.scalars())
        prepared = step.copy()
        prepared[COEFFICIENTS] = coef.values * given["index"].gradient_scale
        prepared[SHARE] = (coef.objective / len(mask)).repeat(len(mask))
        return prepared

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        found = super()._log_weight(tensordict, adv_shape)
        self._rows = tensordict, found[3]  # `_compute_policy_objective` gets neither
        return found

    def _log_probs(self, rows: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The current log-probs and the mask of trained tokens, `[B, T]`, padded on the left."""
        mask = self._log_weight(rows, None)[3]
        return rows["_cur_log_prob"], mask

    def _compute_policy_objective(self, log_weight: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """`-J`, or the share of a prepared piece in it; and the share of clipped tokens, NaN if it is not measured."""
        rows, mask = self._rows
        del self._rows
        now = rows["_cur_log_prob"]
        with torch.autocast(now.device.type, enabled=False):
            if COEFFICIENTS in rows:
                loss = -(rows[COEFFICIENTS][:, -now.shape[1] :] * (now - now.detach())).sum() - rows[SHARE].sum()
            else:
                given = self._given(rows, mask)
                result = self.op.loss(now, **given)
                loss, self.scalars = result.loss * given["index"].gradient_scale, named(result.scalars())
        return loss, log_weight.new_tensor(self.scalars.get("fibration/token/clipped", torch.nan))

    def _given(self, rows: TensorDictBase, mask: Tensor) -> dict[str, Any]:
        """The arguments of `op.loss` after the log-probs. With a group, all ranks call it."""
        if self.group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise TrainerError(
                f"torch.distributed has {dist.get_world_size()} ranks, and this loss has no group",
                required="the ranks whose gradients are averaged: their mean is no gradient of one loss if each rank "
                "has normalisers and elements of its own",
                remedy="HierarchyLoss(..., group=torch.distributed.group.WORLD), or the group of DDP; "
                "group=fibration.trainers.window.Alone() if nothing averages gradients",
            )

        def padded(key: NestedKey) -> Tensor:
            values = rows.get(key, as_padded_tensor=True, padding_side="left")
            if values is None:
                raise TrainerError(f"the tensordict has no {key!r}", found=listed(map(repr, rows.keys(True, True))))
            return (values.squeeze(-1) if values.ndim == 3 else values).expand(mask.shape)

        def column(key: NestedKey) -> list[Any]:
            values = rows.get(key)
            if values is None:
                raise TrainerError(f"the tensordict has no {key!r}", found=listed(map(repr, rows.keys(True))))
            return values.reshape(len(mask)).tolist()

        with agreed(None if self.group is None else as_group(self.group), "the rows of a step"):
            labels: dict[str, Any] = {stratum: column(key) for stratum, key in self.labels.items()}
            given = {
                "old_log_probs": padded(self.tensor_keys.sample_log_prob),
                "advantages": padded(self.tensor_keys.advantage),
                "parameters": self.gate_parameters,
                "policies": {name: padded(key) for name, key in self.policies.items()},
                "metrics": self.metrics,
            }
        return {**given, "index": self.op.index(mask=mask, group=self.group, **labels)}

    def _aggregate_loss_value(self, value: Tensor, mask: Tensor, tensordict: TensorDictBase | None = None) -> Tensor:
        return value if value.ndim == 0 else super()._aggregate_loss_value(value, mask, tensordict)
