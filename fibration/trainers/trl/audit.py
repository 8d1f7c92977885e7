"""Audits the first optimizer steps of a GRPOTrainer, TRL's own or ours, beside a declared loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from fibration.auditing.beside import StepAudit, beside
from fibration.auditing.recorded import Recorded, as_found
from fibration.auditing.step import declared_gradients
from fibration.errors import TrainerError, listed
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.noise import silenced
from fibration.runtime.operator import Operator
from fibration.trainers.intake import REFERENCE, as_operator, check_parameters, wanted
from fibration.trainers.trl.numbers import RowNumbers, further
from fibration.trainers.trl.step import scores, window_given
from fibration.trainers.trl.trainer import ROWS, FibrationGRPOTrainer
from fibration.trainers.window import Window

GROUPS = "fibration_groups"  # our prompt group of every row, in the dictionaries that TRL shuffles and splits
READ = "before the optimizer's step: after clipping and unscaling"


def audit_first_steps(
    trainer: GRPOTrainer,
    hierarchy: Hierarchy | Operator | str | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    steps: int = 2,
    raises: bool = True,
) -> StepAudits:
    """A callback, added to `trainer`, that audits its first optimizer steps. Call it before `trainer.train()`.

    ```python
    audits = audit_first_steps(trainer, "dapo")
    trainer.train()
    print(audits.found[0])
    ```

    `hierarchy`: the loss that the trainer should have, in any form that `FibrationGRPOTrainer` takes. Default for that
    trainer: its own. `parameters`: values that differ from its defaults, such as `{"epsilon_high": 0.28}`. `raises`:
    whether a wrong step raises AuditError, before the optimizer's step.

    The gradient is read after clipping to `max_grad_norm`. The declared one is that of all rows of the step, over all
    micro-batches and ranks, with the trainer's advantages, masks and log-probs of other policies. During the audited
    steps dropout is off. An audited step takes two more forward passes and one more backward pass.

    Raises TrainerError for what no hierarchy has (`beta` without a reference in the hierarchy, an entropy bonus, a
    router's loss), for strata other than prompt groups in TRL's own trainer, and for DeepSpeed and FSDP.
    """
    given = hierarchy if hierarchy is not None else getattr(trainer, "operator", None)
    if given is None:
        raise TrainerError(
            "audit_first_steps has no loss to compare with",
            required="the loss that TRL's trainer should have",
            remedy='audit_first_steps(trainer, "dapo")',
        )
    op = as_operator(given, None)
    values = parameters if parameters is not None else getattr(trainer, "hierarchy_parameters", None)
    check_parameters(op.hierarchy, values or {})
    _check(trainer, op.hierarchy)
    found = StepAudits(trainer, op, values, steps, raises)
    trainer.add_callback(found)
    return found


class StepAudits(TrainerCallback):  # type: ignore[misc]
    """The audits of a trainer's first optimizer steps: `found`. Made by `audit_first_steps`."""

    def __init__(
        self, trainer: GRPOTrainer, op: Operator, parameters: Mapping[str, Any] | None, steps: int, raises: bool
    ) -> None:
        self.trainer, self.operator, self.parameters = trainer, op, parameters
        self.steps, self.raises = steps, raises
        self.found: list[StepAudit] = []
        self._slices: list[dict[str, Any]] = []
        self._first: list[tuple[Tensor, Tensor]] = []  # the ids of a slice, and its advantages when it came first
        self._generations = 0
        self._recorded: Recorded | None = None
        self._open = ExitStack()
        self._own_loss, trainer._compute_loss = trainer._compute_loss, self._loss
        if not isinstance(trainer, FibrationGRPOTrainer):
            self._own_generate = trainer._generate_and_score_completions
            trainer._generate_and_score_completions = self._generate

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._end()  # of a step that was interrupted

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        recorded = self._recorded
        if recorded is None:
            return
        recorded.read()
        slices = self._slices
        self._end()
        found = self._audit(recorded, slices)
        self.found.append(found)
        if self.raises:
            found.raise_for_status()

    def _end(self) -> None:
        self._open.close()
        self._recorded, self._slices = None, []

    @property
    def model(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    def _generate(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's own, with the prompt group of each row."""
        output: dict[str, Any] = self._own_generate(inputs)
        each = self.trainer.num_generations if self.trainer.model.training else self.trainer.num_generations_eval
        first = self.trainer.accelerator.process_index * len(inputs)
        self._generations += 1
        output[GROUPS] = [(self._generations, (first + i) // each) for i in range(len(inputs))]
        return output

    def _loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """TRL's own loss of a micro-batch; keeps the rows of a step that is audited."""
        if self.trainer.model.training and len(self.found) < self.steps:
            if self._recorded is None:
                self._open.enter_context(silenced(self.model))
                self._recorded = self._open.enter_context(Recorded(self.model))
            self._slices.append({**inputs, "advantages": self._advantages(inputs)})
        return self._own_loss(model, inputs)

    def _advantages(self, inputs: Mapping[str, Any]) -> Tensor:
        """The advantages of a slice as they were when it came first: a trainer may change them in place."""
        for ids, advantages in self._first:
            if ids is inputs["completion_ids"]:
                return advantages
        made: Tensor = inputs["advantages"].detach().clone()
        self._first.append((inputs["completion_ids"], made))
        return made

    def _audit(self, recorded: Recorded, slices: list[dict[str, Any]]) -> StepAudit:
        trainer, group = self.trainer, dist.group.WORLD if self.trainer.accelerator.num_processes > 1 else None
        with as_found(self.model), torch.enable_grad(), trainer.compute_loss_context_manager():
            labels = {name: self._labels(slices, name) for name in wanted(self.operator.hierarchy)}
            more: dict[str, Any] = {"group": group, "parameters": self.parameters}
            given, more = window_given(self.operator.hierarchy, slices, labels, self._numbers(), **more)
            window = Window(self.operator, *given, **more)
            with torch.no_grad():
                now = torch.cat([scores(trainer, self.model, piece)[0] for piece in slices])
            values = window.coefficients(now, metrics=False).values
            each = values.split([len(piece["completion_ids"]) for piece in slices])

            def parts() -> Iterator[Tensor]:
                for piece, c in zip(slices, each, strict=True):
                    said = scores(trainer, self.model, piece)[0]
                    yield -(c.to(said) * said.where(c != 0, 0)).sum()

            declared = declared_gradients(self.model, parts, group)
        return beside(recorded, declared, group=group, max_grad_norm=trainer.args.max_grad_norm or None, read=READ)

    def _numbers(self) -> RowNumbers:
        """The sources of the audited loss's attributes and further policies: those of our trainer."""
        given = getattr(self.trainer, "row_numbers", None)
        h = self.operator.hierarchy
        sources = {} if given is None else {name: given.sources[name] for name in h.attributes}
        return RowNumbers(h, sources, {name: given.policies[name] for name in further(h)} if given else {})

    def _labels(self, slices: list[dict[str, Any]], stratum: str) -> list[Any]:
        if isinstance(self.trainer, FibrationGRPOTrainer):
            return [row.labels[stratum] for piece in slices for row in piece[ROWS]]
        return [group for piece in slices for group in piece[GROUPS]]


def _check(trainer: Any, hierarchy: Hierarchy) -> None:
    ours = isinstance(trainer, FibrationGRPOTrainer)
    others: dict[str, Callable[[], Any]] = {
        f"beta={trainer.beta:g}": lambda: trainer.beta and REFERENCE not in hierarchy.policies,
        "an entropy bonus": lambda: trainer._entropy_bonus_enabled,
        "a router's auxiliary loss": lambda: trainer.aux_loss_enabled,
        'window="generation"': lambda: ours and trainer.window_kind == "generation",
        "DeepSpeed": lambda: trainer.is_deepspeed_enabled,
        "FSDP": lambda: trainer.is_fsdp_enabled,
    }
    found = [name for name, asked in others.items() if asked()]
    if found:
        raise TrainerError(
            f"audit_first_steps beside '{hierarchy.name}' with {listed(found)}",
            required="a gradient that is that of the hierarchy alone, in one process or under DDP",
            remedy="audit a short run without it; declare a KL term as a penalty of the hierarchy",
        )
    known = {*trainer.row_numbers.sources, *trainer.row_numbers.policies} if ours else set()
    if lacking := [name for name in (*hierarchy.attributes, *further(hierarchy)) if name not in known]:
        raise TrainerError(
            f"audit_first_steps beside '{hierarchy.name}', which reads {listed(lacking)}",
            required="a loss whose attributes and policies the trainer has",
            found=f"a trainer with {listed(known or ('none of either',))}",
            remedy="give them to FibrationGRPOTrainer(attributes=, policies=), or name a loss without them",
        )
    strata = [s for s in wanted(hierarchy) if s != "prompt_group"]
    if not ours and (strata or hierarchy.advantages is not None):
        raise TrainerError(
            f"audit_first_steps of TRL's own trainer beside '{hierarchy.name}'",
            required="a loss of TRL's advantages, with no strata above trajectories but prompt groups",
            found=f"labels of {listed(strata)}" if strata else "advantages made of rewards",
            remedy="hierarchy.replace(advantages=None)" if not strata else "name a loss without these strata",
        )
