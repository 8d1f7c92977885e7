"""verl's worker of an actor, whose first optimizer steps are audited beside a declared loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from fibration.auditing.beside import Declared, StepAudit, beside
from fibration.auditing.recorded import Recorded, as_found
from fibration.errors import TrainerError
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.noise import silenced
from fibration.runtime.operator import Operator
from fibration.trainers.intake import as_operator, check_parameters, check_policies
from fibration.trainers.verl.config import KNOWN_POLICIES
from fibration.trainers.verl.settings import Settings
from fibration.trainers.verl.worker import ROWS, STRATEGIES, FibrationTrainingWorker, as_verls, replaced

READ = "before the engine's optimizer step: before clipping"


@dataclass
class _Asked(Settings):
    """The declared loss, in the form of the options of our policy loss."""

    operator: Operator
    parameters: Mapping[str, Any]
    labels: Mapping[str, Any]
    attributes: Mapping[str, str]
    policies: Mapping[str, str]


def audited_worker(
    hierarchy: Hierarchy | Operator | str | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
    attributes: Mapping[str, str] | None = None,
    policies: Mapping[str, str] | None = None,
    steps: int = 2,
    raises: bool = True,
) -> type[FibrationTrainingWorker]:
    """A class of workers for an actor, which audit their first optimizer steps.

    verl makes its workers in processes of its own. Put these lines into a module, and name the module in
    `actor_rollout_ref.model.external_lib`, which each process imports before it makes its actor:

    ```python
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from fibration.trainers.verl import audited_worker

    ActorRolloutRefWorker.actor_worker_cls = audited_worker("dapo")
    ```

    `hierarchy`: the loss that the actor should have: a Hierarchy, an operator or a name. Default with
    `loss_mode=fibration`: the config's. `parameters`, `labels`, `attributes`, `policies`: as in the config of that
    loss. `raises`: whether a wrong step raises AuditError, before the optimizer's step. Rank 0 logs each report. The
    worker keeps them in `audits`.

    The gradient is read before the engine clips it. The declared one is that of the mini-batch on all ranks, through
    the same engine, with verl's advantages, masks and log-probs of other policies. Each rank compares the parts of
    parameters that it has. During the audited steps dropout is off. An audited step takes two more forward passes and
    one more backward pass.

    The worker raises TrainerError if there is no loss to compare with, with verl's KL and entropy losses, and in other
    engines than fsdp and fsdp2.
    """
    asked = None
    if hierarchy is not None:
        asked = _Asked(as_operator(hierarchy), parameters or {}, labels or {}, attributes or {}, policies or {})
        check_parameters(asked.operator.hierarchy, asked.parameters)
        check_policies(asked.operator.hierarchy, KNOWN_POLICIES, policies)
        asked.attribute_sources()

    class AuditedTrainingWorker(_Audited):
        pass

    AuditedTrainingWorker.asked, AuditedTrainingWorker.steps, AuditedTrainingWorker.raises = asked, steps, raises
    return AuditedTrainingWorker


class _Audited(FibrationTrainingWorker):
    """Made by `audited_worker`."""

    asked: Settings | None = None
    steps = 2
    raises = True
    audits: list[StepAudit]

    @as_verls(TrainingWorker.set_loss_fn)
    def set_loss_fn(self, loss_fn: Any) -> None:
        super().set_loss_fn(loss_fn)
        self.audits = []
        config: Any = getattr(loss_fn, "keywords", {}).get("config")
        if self.asked is None and self.settings is None:
            raise TrainerError(
                "audited_worker has no loss to compare with",
                required="the loss that verl's actor should have",
                remedy='audited_worker("dapo")',
            )
        terms = [name for name in ("use_kl_loss", "entropy_coeff") if config is not None and config.get(name)]
        if terms or self.engine_config.strategy not in STRATEGIES:
            raise TrainerError(
                f"audited_worker with actor.{terms[0]}={config.get(terms[0])}"
                if terms
                else f"audited_worker with actor.strategy={self.engine_config.strategy}",
                required="a gradient that is that of the declared loss alone, in verl's engines fsdp and fsdp2",
                remedy="audit a short run without it",
            )

    @as_verls(TrainingWorker.train_batch)
    def train_batch(self, data: TensorDict) -> TensorDict:
        if len(self.audits) >= self.steps:
            return super().train_batch(data)
        given = data.copy()
        with silenced(self.engine.module), Recorded(self.engine.module) as recorded, self._reading(recorded, given):
            output = super().train_batch(data)
        if self.raises:
            self.audits[-1].raise_for_status()
        return output

    @contextmanager
    def _reading(self, recorded: Recorded, data: TensorDict) -> Iterator[None]:
        """While the body runs, the engine's optimizer steps begin with an audit."""
        own = self.engine.optimizer_step

        def optimizer_step(*args: Any, **kwargs: Any) -> Any:
            recorded.read()
            recorded.__exit__()
            found = self._audit(recorded, data)
            self.audits.append(found)
            if self.rank == 0:
                logging.getLogger(__name__).log(logging.INFO if found.ok else logging.ERROR, "%s", found)
            if self.raises:
                found.raise_for_status()
            return own(*args, **kwargs)

        with replaced(self.engine, "optimizer_step", optimizer_step):
            yield

    def _audit(self, recorded: Recorded, data: TensorDict) -> StepAudit:
        own, self.settings = self.settings, self.asked or self.settings
        assert self.settings is not None
        try:
            if self.settings.operator.hierarchy.advantages is not None and not self._made:
                data = self._with_advantages(data)
            self._complete(data)
            data[ROWS] = torch.arange(len(data))
            window = self._window(data)
        finally:
            self.settings = own
        tu.assign_non_tensor(data, calculate_entropy=False, calculate_sum_pi_squared=False)
        count = 0
        with as_found(self.engine.module), _unwrapped(self.engine):
            said = self.engine.infer_batch(data.copy())["model_output"]["log_probs"]
            coefficients = window.coefficients(no_padding_2_padding(said, data), metrics=False).values

            def loss(model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
                nonlocal count
                count += 1
                now = no_padding_2_padding(model_output["log_probs"], data)
                c = coefficients[data[ROWS].to(coefficients.device)][:, : now.shape[1]].to(now)
                return -(c * now.where(c != 0, 0)).sum() * data["dp_size"], {}  # the engine averages over ranks

            self.engine.forward_backward_batch(data.copy(), loss, forward_only=False)
            wanted = Recorded(self.engine.module)
            wanted.read()
        ranks = window.ranks.size if window.ranks is not None else 1
        return beside(recorded, Declared(wanted.found, [], {}), read=READ, counts=(count, ranks))


@contextmanager
def _unwrapped(engine: Any) -> Iterator[None]:
    """While the body runs, the engine's passes are those of its class: ours count micro-batches and leave out rows."""
    own = {name: vars(engine).pop(name) for name in ("forward_step", "forward_backward_batch") if name in vars(engine)}
    try:
        yield
    finally:
        vars(engine).update(own)
