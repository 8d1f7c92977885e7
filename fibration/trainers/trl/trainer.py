"""`FibrationGRPOTrainer`: TRL's trainer, whose loss gets the coefficients of an optimizer step as advantages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import ProcessorMixin
from trl import GRPOTrainer

from fibration.errors import TrainerError
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.group import agreed, as_group
from fibration.trainers import intake
from fibration.trainers.micro_batches import MicroBatches
from fibration.trainers.scale import Scale
from fibration.trainers.trl import refusals
from fibration.trainers.trl.numbers import ENTROPY, Numbers, RowNumbers
from fibration.trainers.trl.refusals import BY_PROMPT, Labels, check_model, noise_of
from fibration.trainers.trl.step import OLD, Live, Row, ScoringTrainer, Step, shuffled, unmasked, window_given
from fibration.trainers.window import Window, check_metrics, named, warned

ROWS = "fibration_rows"  # our data of every row, in the dictionaries that TRL shuffles and splits


class FibrationGRPOTrainer(ScoringTrainer):
    """`trl.GRPOTrainer` with a hierarchy as its loss: every optimizer step has the gradient of `op.loss` on all of the
    step's rows, over all micro-batches and ranks.

    ```python
    from trl import GRPOConfig
    from fibration.trainers.trl import FibrationGRPOTrainer

    trainer = FibrationGRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=reward,
        args=GRPOConfig("out", gradient_accumulation_steps=4, steps_per_generation=8),
        train_dataset=dataset,  # with the columns "prompt" and "source"
        hierarchy="fiberpo_domain_inward",
        labels={"domain": "source"},
    )
    trainer.train()
    ```

    Positional arguments, and keywords not named here, are those of `trl.GRPOTrainer`.

    `hierarchy`: a Hierarchy, a compiled operator, or a name: `"grpo"`, `"mine.json"`, `"specs.py:mine"`. `backend`: as
    in `fibration.compile`.

    `labels`: for every stratum coarser than trajectories, the dataset's column with its labels, any hashable values.
    `prompt_group` needs none: the completions of one sampled prompt are a group. A stratum of another name for these
    groups has `BY_PROMPT` as its column.

    `attributes`: the source of every attribute of the hierarchy. It is the dataset's column with a number per line;
    `"rewards/NAME"`, what the reward function of this name returned; or `ENTROPY`, for an attribute of tokens: the
    entropy of the distribution that each token was sampled from. An attribute of tokens with the name `entropy` needs
    no source. A rollout function may return a field with a list of one number per token for each completion.

    `policies`: for every policy that the hierarchy reads beside `rollout` and `reference`, a model. It is frozen, and
    scores completions once, when they are sampled: `{"teacher": AutoModelForCausalLM.from_pretrained(...)}`. Or the
    field of a rollout function with a list of one log-prob per token for each completion.

    `parameters`: values of the hierarchy's parameters that differ from its defaults, as in `op.loss`, in the units of
    its gates. The attribute `hierarchy_parameters` has them; a callback may change it between steps, equally on all
    ranks.

    `window`: the rows that make up the hierarchy's batch. `"step"`: those of an optimizer step. TRL shuffles the rows
    of a generation. So if a generation has more slices (`steps_per_generation`) than a step
    (`gradient_accumulation_steps`), a step has parts of prompt groups. `"generation"`: all rows of the generation, so
    that groups are whole. An optimizer step then trains on its own rows' part of that batch's gradient, times the
    number of steps per generation: the mean over these steps is the gradient of the whole. The loss and metrics of a
    row-local loss are then those of the step's own rows.

    `together`: a stratum, such as `"prompt_group"`. The rows of each of its elements then stay next to each other, and
    TRL shuffles elements instead of rows. A loss that couples rows of this stratum needs fewer forward passes.

    `skip_dead_rows`: leave rows whose coefficients are 0 out of the training forward and backward pass. The gradient is
    the same. Metrics of an off-policy step then cover the rows that had a pass, as `fibration/live/...`.
    `fibration/rows_trained` is the share of rows in these passes. All rows are trained on where something else reads
    them, as the log says: penalties, `beta`, an entropy bonus, a router's auxiliary loss, images, layers in which rows
    interact.

    `metrics`: the metrics to log, as in `op.loss`: `"levels"`, `"all"` to include single elements
    (`fibration/domain/+/drift[domain=math]`), or names, `["trajectory", "gated_ratio"]`.

    **Forward passes.** A row-local loss (`trainer.operator.coupling`) needs no extra pass: each micro-batch has its
    coefficients from the log-probs of its own forward pass. A loss that couples rows needs none if the weights that
    sampled a window still train on it, because ratios are 1, or if each micro-batch has whole coupled elements. Any
    other step of it begins with passes without a graph over at most all of its slices but one
    (`fibration.trainers.micro_batches`); `fibration/extra_forwards` counts slices. `fibration/pass/...` reports how far
    the log-probs of both passes of a row differ, in nats, and the share of elements that this moves into another regime
    of their gate. If it exceeds 1 % of a stratum's elements, a UserWarning says so once.

    **What stays TRL's.** The divergence from a reference model, the entropy bonus and auxiliary losses keep their
    scale. vLLM's importance weights move into the advantages, because after the gates they would change the gradient.

    **Rollout policy.** A hierarchy that reads `log_prob(rollout)` gets the log-probs of vLLM or of a rollout function,
    and corrects the mismatch itself; TRL's `vllm_importance_sampling_correction` must be off.

    **Rewards.** A hierarchy with a formula of advantages gets TRL's rewards, the weighted sum of all functions. It
    makes advantages once, when rows are sampled, from all rows that were sampled together, with the parameters of that
    time. A completion that no function scores, or that is fully masked, is excluded from comparisons; its advantage is
    0.

    **Reference.** A hierarchy that reads `log_prob(reference)` gets that of TRL's reference model, which TRL makes as
    it does for `beta`; `beta` must be 0, and TRL adds no divergence.

    **Logs.** The loss is `-J` plus TRL's additional terms. Metrics of the hierarchy are logged as `fibration/...`,
    instead of `clip_ratio/...`, which would be 0. In evaluation, ratios are 1 and the loss is `-J` of each batch; its
    labels need no parameter values, because gates read none there.

    Raises TrainerError at construction for options, models and data that would change gradients, and during training
    for those that show only then. In the first two steps of every length, the scale of TRL's loss is measured too.
    """

    beta: float

    def __init__(
        self,
        *args: Any,
        hierarchy: Hierarchy | Operator | str,
        labels: Mapping[str, str | Labels] | None = None,
        parameters: Mapping[str, Any] | None = None,
        window: str = "step",
        together: str | None = None,
        backend: str | None = None,
        metrics: bool | str | Sequence[str] = "levels",
        skip_dead_rows: bool = True,
        attributes: Mapping[str, str | Numbers] | None = None,
        policies: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        self.operator = intake.as_operator(hierarchy, backend)
        check_metrics(self.operator.hierarchy, metrics)
        known: dict[str, str | Labels] = {"prompt_group": BY_PROMPT}
        self.label_columns = intake.label_sources(self.operator.hierarchy, labels, known, refusals.column_option)
        refusals.check_rows(window, together, self.label_columns)
        used = {} if parameters is None else parameters
        columns = [name for name, column in self.label_columns.items() if not isinstance(column, Labels)]
        intake.check_parameters(self.operator.hierarchy, used, columns)
        self.row_numbers = RowNumbers(self.operator.hierarchy, attributes, policies)
        self.row_numbers.check(given)
        refusals.check(GRPOTrainer, given, self.label_columns, self.operator.hierarchy, used)
        self.hierarchy_parameters = parameters
        self.window_kind, self.together, self.metrics_kind = window, together, metrics
        self._fibration_step: Step | None = None
        self._fibration_steps = 0  # the number of steps begun
        self._fibration_warned = False
        self._fibration_rewards: Tensor | None = None  # of all processes, per function
        config: Any = given.get("args")
        asks = intake.REFERENCE in self.operator.hierarchy.policies
        if asks:  # TRL makes a reference model if `beta` is not 0; `_loss` sets `beta` to 0
            config.beta = 1.0
        try:
            super().__init__(*args, **kwargs)
        finally:
            if asks:
                config.beta = 0.0
        check_model(self)
        self.row_numbers.check_functions(self.reward_func_names)
        self.row_numbers.prepare(self)
        self._fibration_noisy = bool(noise_of(self))
        readers = list(self._readers_of_all_rows()) if skip_dead_rows else []
        self.skips_dead_rows = skip_dead_rows and not readers
        if self.accelerator.is_main_process:
            intake.log_readers(readers)
        self._fibration_scales: dict[int, Scale] = {}  # by the number of micro-batches in a step

    def _readers_of_all_rows(self) -> Iterator[str]:
        """Reasons to train on rows without a gradient of the policy loss."""
        yield from intake.readers_by_loss(self.operator.hierarchy)
        yield from intake.readers_by_model(self.model)
        if isinstance(self.processing_class, ProcessorMixin):
            yield "images are not cut into rows"
        if self.args.beta:
            yield f"beta={self.args.beta:g} adds a divergence from the reference model"
        if self._entropy_bonus_enabled:
            yield "TRL adds an entropy bonus"
        if self.aux_loss_enabled:
            yield f"the router's auxiliary loss reads every token (router_aux_loss_coef={self.router_aux_loss_coef:g})"

    # ------------------------------------------------------------ labels and rewards

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        used = [c for c in self.label_columns.values() if c is not BY_PROMPT] + [*self.row_numbers.columns.values()]
        self._signature_columns += [column for column in used if column not in self._signature_columns]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        each = self.num_generations if self.model.training else self.num_generations_eval
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        assert self._fibration_rewards is not None
        first, group, entropies = self.accelerator.process_index * len(inputs), self._group, self._sampled(output)
        with agreed(None if group is None else as_group(group), "the labels of a generation"):
            output[ROWS] = [
                Row(self._fibration_steps, self._labels(row, (first + i) // each)) for i, row in enumerate(inputs)
            ]
            mine, names = self._fibration_rewards[first : first + len(inputs)], self.reward_func_names
            output |= self.row_numbers.of_rows(inputs, output, entropies, mine, names)
            labels = {stratum: [row.labels[stratum] for row in output[ROWS]] for stratum in self.label_columns}
            self.row_numbers.attributes(output.__getitem__, labels, unmasked(output))  # raises on all ranks
        if self.operator.hierarchy.advantages is not None:
            output["advantages"] = self._advantages(output)
        return output

    def _sampled(self, output: dict[str, Any]) -> Tensor | None:
        """Add the log-probs of what is sampled to a generation, as far as the hierarchy reads them when rows are
        sampled. Returns the entropies `[b, T]`, if the hierarchy reads them.
        """
        hierarchy, at_once = self.operator.hierarchy, self.args.per_device_train_batch_size
        lacks_old = hierarchy.advantages is not None and "old" in hierarchy.policies and output.get(OLD) is None
        entropies = None
        if lacks_old or ENTROPY in self.row_numbers.sources.values():  # the current weights sampled
            log_probs, entropies = self._scores(self.model, output, at_once)
            output |= {OLD: log_probs} if lacks_old else {}
        output |= self.row_numbers.log_probs(lambda model: self._scores(model, output, at_once, entropy=False)[0])
        return entropies

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        stratum = self.together
        with shuffled(None if stratum is None else lambda given: [row.labels[stratum] for row in given[ROWS]]):
            return super()._prepare_inputs(generation_batch)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._fibration_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._fibration_rewards

    def _advantages(self, output: dict[str, Any]) -> Tensor:
        """The hierarchy's advantages from the rewards of all rows that were sampled together."""
        assert self._fibration_rewards is not None
        by_function, rows = self._fibration_rewards, len(output[ROWS])
        mine = by_function[self.accelerator.process_index * rows :][:rows]
        rewards = (mine * self.reward_weights.to(mine)).nansum(1)
        scored = ~mine.isnan().all(1)
        made = self._window([output], rewards=rewards, scored=scored).made_of_rewards()
        shown = made if made.ndim == 1 else made.sum(1) / unmasked(output).sum(1).clamp(min=1)
        logged = self._logs["advantages"]
        for _ in range(min(len(by_function), len(logged))):  # removes TRL's advantages of these rows
            logged.pop()
        logged.extend(self.accelerator.gather(shown).tolist())
        return made

    def _labels(self, row: Mapping[str, Any], group: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stratum, column in self.label_columns.items():
            if isinstance(column, Labels):
                found[stratum] = group
                continue
            if column not in row:
                raise refusals.no_column(f"labels for '{stratum}'", column, row, f"labels={{{stratum!r}: ...}}")
            found[stratum] = intake.as_label(row[column])
            if found[stratum] is None:
                raise refusals.no_label(stratum, column, row[column])
        return found

    # ------------------------------------------------------------ windows

    @property
    def _group(self) -> Any:
        return dist.group.WORLD if self.accelerator.num_processes > 1 else None

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._fibration_step = None  # a new optimizer step begins, even if the last one was interrupted
        for scale in self._fibration_scales.values():
            scale.begin()
        return super().get_batch_samples(*args, **kwargs)

    def _begin(self, model: Any) -> Step:
        """The step whose window begins with this micro-batch, with its coefficients."""
        slices, whole = self.args.steps_per_generation, self.args.steps_per_generation * self.num_iterations
        length, done = self.current_gradient_accumulation_steps, self._step % whole
        if done + length > whole:
            raise TrainerError(
                f"an optimizer step of {length} micro-batches begins {whole - done} micro-batches before completions "
                "are sampled anew",
                required="steps that have all their rows when they begin",
                remedy="training was interrupted within a step: make a new trainer, and resume from a checkpoint",
            )
        trained = [(done + i) % slices for i in range(length)]
        laid = list(range(slices)) if self.window_kind == "generation" else trained
        given = [self._buffered_inputs[i] for i in laid]
        fresh = all(row.steps == self._fibration_steps for piece in given for row in piece[ROWS])
        self._fibration_steps += 1
        kept = given[0].get(OLD) is not None
        if not fresh and not kept:
            raise TrainerError(
                "weights have changed since these rows were sampled, and TRL kept no log-probs from sampling",
                required="old_per_token_logps of every row",
                remedy="make a new trainer, and resume from a checkpoint",
            )
        places = trained if self.window_kind == "generation" else list(range(length))
        scale = slices / length if self.window_kind == "generation" else 1.0
        lacks = fresh and not kept and bool(self.operator.hierarchy.policies)
        # tokens that vLLM has no log-prob of take the old one, so that one has to be known
        passes: dict[int, Tensor] = {}
        if lacks and intake.ROLLOUT in self.operator.hierarchy.policies:
            passes, lacks = {i: self._scores(model, self._buffered_inputs[i])[0] for i in dict.fromkeys(laid)}, False
        window = self._window(given, torch.cat([passes[i] for i in laid]) if passes else None)
        rows = torch.arange(len(window.mask)).split(len(given[0][ROWS]))
        fresh = fresh and not lacks and not (kept and self._fibration_noisy)  # noise moves ratios from 1
        skip = self.skips_dead_rows
        batches = MicroBatches(window, rows, places, fresh=fresh, metrics=self.metrics_kind, skip_dead=skip)
        for place in batches.needed:
            if laid[place] not in passes:
                passes[laid[place]] = self._scores(model, self._buffered_inputs[laid[place]])[0]
            batches.add(place, passes[laid[place]])
        return Step(batches, places, scale, len(passes))

    def _window(self, given: list[dict[str, Any]], computed: Tensor | None = None, **rewarded: Tensor) -> Window:
        """`computed`, and `rewards` with `scored`: see `window_given`."""
        rows = [row for piece in given for row in piece[ROWS]]
        arguments, more = window_given(
            self.operator.hierarchy,
            given,
            {stratum: [row.labels[stratum] for row in rows] for stratum in self.label_columns},
            self.row_numbers,
            computed=computed,
            lacking=refusals.no_sampling_log_probs(self.operator.hierarchy),
            group=self._group,
            parameters=self.hierarchy_parameters,
            **rewarded,
        )
        return Window(self.operator, *arguments, **more)

    # ------------------------------------------------------------ both passes

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            asks = self.operator.hierarchy.policies and inputs.get(OLD) is None
            window = self._window([inputs], self._scores(model, inputs)[0] if asks else None)
            if window.parameters:
                window.parameters = intake.at_ratio_one(window.parameters)
            coef = window.coefficients(None, metrics=False)
            return self._loss(model, inputs, lambda _: (coef.values, coef.objective))
        if self._fibration_step is None or self._fibration_step.batches.done:
            self._fibration_step = self._begin(model)
        step = self._fibration_step
        loss = self._loss(model, inputs, step.coefficients, step.live())
        if step.batches.done:
            self._report(step)
        return loss

    def _loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        coefficients: Callable[[Tensor], tuple[Tensor, Tensor]],
        live: Live | None = None,
    ) -> Tensor:
        """TRL's own loss. Its gradient is that of `coefficients(log_probs)`, its value minus `J`.

        TRL reads the advantages after it has computed the log-probs, so they are set in between. The forward pass takes
        the rows `live`. For TRL the tokens of others are masked, so that its own metrics leave them out.
        """
        ranks, training = self.accelerator.num_processes, self.model.training
        divisor = inputs["num_items_in_batch"].clamp(min=1.0)  # 'dapo' divides the sum over tokens and ranks by it
        if training:
            divisor = divisor * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        given = {name: value for name, value in inputs.items() if name not in (ROWS, OLD, "advantages")}
        if live is not None:
            given["completion_mask"] = inputs["completion_mask"] * live.mask.to(divisor.device)[:, None]
        heard: list[tuple[Tensor, Tensor]] = []  # coefficients, objective

        def hear(log_probs: Tensor) -> None:
            values, objective = coefficients(log_probs)
            values = values if live is None else live.placed(values)
            heard.append((values, objective))
            given["advantages"] = values * divisor
            if training and self._fibration_scale.windows:
                scaler = self.accelerator.scaler  # of gradients in float16
                factor = ranks / divisor * (1.0 if scaler is None else scaler.get_scale())
                given["advantages"] = self._fibration_scale.expects(given["advantages"], factor, unmasked(given))

        if "importance_sampling_ratio" in given:  # already in the advantages
            given["importance_sampling_ratio"] = torch.ones_like(given["importance_sampling_ratio"])
        self._fibration_hears, self._fibration_live, beta = hear, live, self.beta
        try:
            if intake.REFERENCE in self.operator.hierarchy.policies:
                self.beta = 0.0
            loss: Tensor = super()._compute_loss(model, given)
        finally:
            self._fibration_hears, self._fibration_live, self.beta = None, None, beta
        ((values, objective),) = heard
        rest = values.sum() * ranks - objective  # at a ratio of 1 the loss is minus the sum of coefficients
        metrics = self._metrics["train" if training else "eval"]
        if self._entropy_bonus_enabled:
            metrics["policy_loss"][-1] += self.accelerator.gather(rest).mean().item()
        for name in [name for name in metrics if name.startswith("clip_ratio/")]:
            del metrics[name]
        return loss + rest.to(loss.dtype)

    @property
    def _fibration_scale(self) -> Scale:
        """The scale for steps of this length; the last step of an epoch may be shorter, with another divisor."""
        length = self.current_gradient_accumulation_steps
        if length not in self._fibration_scales:
            counts = {"accumulation steps": length, "ranks": self.accelerator.num_processes}
            hidden = self.is_deepspeed_enabled and self.accelerator.mixed_precision == "fp16"  # its scale is not known
            self._fibration_scales[length] = Scale("TRL's loss", windows=0 if hidden else 2, counts=counts)
        return self._fibration_scales[length]

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        if self._fibration_step is not None and self._fibration_step.batches.done:
            self._fibration_scale.checked(self._group)
        return loss

    def _report(self, step: Step) -> None:
        """Put the metrics of a step, and what pass 2 made of it, where TRL logs its own."""
        window = None
        if self.window_kind == "generation" and not step.batches.is_whole:  # of the rows that this step trains on
            slices = self.args.steps_per_generation
            window = self._window([self._buffered_inputs[place % slices] for place in step.places])
        found = {**step.batches.measure(window), "extra_forwards": float(step.forwards)}
        self._fibration_warned = warned(found, self._fibration_warned)
        for name, value in named(found).items():
            self._metrics["train"][name].append(value)
