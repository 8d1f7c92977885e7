"""verl's training worker, with coefficients of the whole mini-batch in place of advantages.

A mini-batch is one optimizer step: all data-parallel ranks call `train_batch` at once, each with its rows. The policy
loss (`loss.py`) takes a micro-batch's coefficients where verl has its log-probs. If the loss couples rows, the worker
computes the log-probs of other micro-batches before. Ranks of one sequence-parallel group have the same rows and
compute the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import MAGIC_ATTR, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from fibration.errors import TrainerError, listed
from fibration.language.hierarchy import adds_up_tokens
from fibration.runtime.noise import rates
from fibration.runtime.ranks.group import agreed, as_group
from fibration.trainers.intake import ROLLOUT, log_readers, readers_by_loss, readers_by_model
from fibration.trainers.micro_batches import MicroBatches
from fibration.trainers.scale import Scale
from fibration.trainers.verl import fields
from fibration.trainers.verl.known import Known
from fibration.trainers.verl.loss import HERE, NAME, Step, opened
from fibration.trainers.verl.settings import Settings, loss_terms, own_loss, settings_of
from fibration.trainers.window import Window, named, warned

ROWS = "fibration_rows"  # our field: the places of a micro-batch's rows in the mini-batch
STRATEGIES = ("fsdp", "fsdp2")


def as_verls(method: Callable[..., Any]) -> Callable[..., Any]:
    """Register a method with verl's controller as verl's own method is: same dispatch, same collection of results."""
    decorate: Callable[..., Any] = register(**getattr(method, MAGIC_ATTR))
    return decorate


@contextmanager
def replaced(holder: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """While the body runs, an object has another method of this name."""
    own = vars(holder).get(name)
    setattr(holder, name, method)
    try:
        yield
    finally:
        if own is None:
            delattr(holder, name)  # that of its class
        else:
            setattr(holder, name, own)


class FibrationTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """The actor's worker for a config with `loss_mode=fibration`; with any other loss it is verl's own."""

    loss_fn: Any
    settings: Settings | None = None
    _own_readers: tuple[str, ...]  # of all rows: terms of the loss, and layers
    _scale: Scale
    _known: Known
    _warned = False  # whether the user was warned that the passes differ
    _told = False  # whether the user was warned that the rollout policy is the old policy
    _made = False  # whether advantages are already the hierarchy's, of all mini-batches
    _readers: tuple[str, ...] = ()  # logged reasons to train on dead rows

    @as_verls(TrainingWorker.set_loss_fn)
    def set_loss_fn(self, loss_fn: Any) -> None:
        super().set_loss_fn(loss_fn)
        self.settings, self._scale, self._known = settings_of(loss_fn), Scale("verl's engine"), Known()
        if self.settings is not None:
            self.loss_fn = own_loss(loss_fn)
        if self.settings is not None and self.engine_config.strategy not in STRATEGIES:
            raise TrainerError(
                f"actor.strategy={self.engine_config.strategy} with policy_loss.loss_mode={NAME}",
                required=" or ".join(STRATEGIES),
                remedy="other engines rescale the loss for their schedules, or have log-probs on some ranks only",
            )
        if self.settings is not None and self.settings.reuse_old_log_probs and self._sequence_parallel > 1:
            raise TrainerError(
                f"{HERE}.reuse_old_log_probs with ulysses_sequence_parallel_size={self._sequence_parallel}",
                required="log-probs on the ranks that computed them: verl keeps them on one rank per set of rows",
                remedy=f"{HERE}.reuse_old_log_probs=false, which takes one more forward pass",
            )
        if self.settings is not None:
            _refuse_noise(self.engine.module, self.settings)
            hierarchy, module = self.settings.operator.hierarchy, self.engine.module
            self._own_readers = (*readers_by_loss(hierarchy), *readers_by_model(module), *loss_terms(loss_fn))

    @property
    def _sequence_parallel(self) -> int:
        return int(self.engine_config.get("ulysses_sequence_parallel_size", 1))

    @as_verls(TrainingWorker.infer_batch)
    def infer_batch(self, data: TensorDict) -> TensorDict:
        """verl's own; remembers the old log-probs, if they may be reused."""
        own = not tu.get(data, key="no_lora_adapter", default=False)  # without the adapter it is the reference model
        output = super().infer_batch(data)
        if self.settings is not None and self.settings.reuse_old_log_probs and own and "log_probs" in output:
            log_probs = no_padding_2_padding(output["log_probs"], data)
            self._known.add(self.engine.module, _temperature(data), log_probs)
        return output

    @as_verls(TrainingWorker.train_mini_batch)
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """verl's own; the hierarchy's advantages come from the rewards of all mini-batches, in whole groups."""
        if self.settings is None or self.settings.operator.hierarchy.advantages is None:
            return super().train_mini_batch(data)
        data, self._made = self._with_advantages(data), True
        try:
            return super().train_mini_batch(data)
        finally:
            self._made = False

    @as_verls(TrainingWorker.train_batch)
    def train_batch(self, data: TensorDict) -> TensorDict:
        """verl's own, on coefficients; adds the hierarchy's metrics under `fibration/`."""
        if self.settings is None:
            return super().train_batch(data)
        self._scale.begin()
        data = data.copy()  # the caller keeps its advantages
        if self.settings.operator.hierarchy.advantages is not None and not self._made:
            data = self._with_advantages(data)
        self._complete(data)
        with self.engine.train_mode(disable_auto_offload=tu.get(data, key="disable_auto_offload", default=False)):
            tu.assign_non_tensor(data, disable_auto_offload=True)  # the model is loaded
            window, found = self._window(data), dict[str, float]()
            batches = self._micro_batches(window, data)
            step = self._step(batches, lambda: found.update(batches.measure()))
            data[ROWS] = torch.arange(len(data))
            own, self.loss_fn = self.loss_fn, partial(_seen, step, self.loss_fn)
            try:
                with opened(step), self._live_rows(batches):
                    output = super().train_batch(data)
            finally:
                self.loss_fn = own
                self._known.forget()
            _refuse_left_out(batches)
            self._scale.checked(window.ranks)
            self._warned = warned(found, self._warned)
        if output is not None:
            tu.get(output, key="metrics").update(named({**found, "extra_forwards": float(len(batches.needed))}))
        return output

    @contextmanager
    def _live_rows(self, batches: MicroBatches) -> Iterator[None]:
        """While the body runs, the engine's trained passes take the live rows of each micro-batch."""
        own = self.engine.forward_step

        def forward_step(micro_batch: TensorDict, *args: Any, **kwargs: Any) -> Any:
            live = batches.live(micro_batch[ROWS])
            if not live.all():
                micro_batch = tu.index_select_tensor_dict(micro_batch, live.nonzero()[:, 0])
            return own(micro_batch, *args, **kwargs)

        with replaced(self.engine, "forward_step", forward_step):
            yield

    def _skips_dead_rows(self, data: TensorDict) -> bool:
        """Whether trained passes leave dead rows out: nothing else reads them. Logs what does, once."""
        assert self.settings is not None
        if not self.settings.skip_dead_rows:
            return False
        found = (*self._own_readers, *_readers_of_all_rows(data))
        if found != self._readers and self.rank == 0:
            log_readers(found)
        self._readers = found
        return not found

    def _complete(self, data: TensorDict) -> None:
        """Add the data that verl's `train_batch` adds, before pass 1, because they decide how rows are packed."""
        known = {
            "use_remove_padding": self.model_config.get("use_remove_padding", False),
            "use_dynamic_bsz": self.engine_config.use_dynamic_bsz,
            "max_token_len_per_gpu": self.engine_config.max_token_len_per_gpu,
            "micro_batch_size_per_gpu": self.engine_config.micro_batch_size_per_gpu,
            "use_fused_kernels": self.engine_config.use_fused_kernels,
        }
        tu.assign_non_tensor(data, **{key: value for key, value in known.items() if key not in data})

    def _is_known(self, window: Window, data: TensorDict) -> bool:
        """Whether the current weights gave the old log-probs of the whole mini-batch, on all ranks."""
        assert self.settings is not None and window.ranks is not None and window.old_log_probs is not None
        if not self.settings.reuse_old_log_probs:
            return False
        known = self._known.has(self.engine.module, _temperature(data), window.old_log_probs, window.mask)
        return bool(window.ranks.all_gather(torch.tensor([int(known)]), "whether old log-probs are known").all())

    def _micro_batches(self, window: Window, data: TensorDict) -> MicroBatches:
        """The micro-batches of this rank, with the log-probs that they need beforehand."""
        assert self.settings is not None
        fresh = self._is_known(window, data)
        rows = None if fresh or window.is_row_local else self._rows(data)
        skip = self._skips_dead_rows(data)
        batches = MicroBatches(window, rows, fresh=fresh, metrics=self.settings.metrics, skip_dead=skip)
        for place in batches.needed:
            assert rows is not None
            batches.add(place, self._log_probs(data, rows[place]))
        return batches

    def _rows(self, data: TensorDict) -> list[Tensor]:
        """The rows of each micro-batch that verl's engine will make of the mini-batch, in its order."""
        data = data.copy()
        data[ROWS] = torch.arange(len(data))
        tu.assign_non_tensor(data, sp_size=self._sequence_parallel)
        group = self.engine.get_data_parallel_group()
        made, _ = prepare_micro_batches(data=data, dp_group=group, same_micro_num_in_dp=True)
        return [micro_batch[ROWS].cpu() for micro_batch in made]

    def _log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        """log π of the responses `[b, t]` of a micro-batch, without a graph, in the mode of the trained pass.

        With activation offloading it runs in evaluation mode, because verl's hooks count layers forwards and backwards
        in training, and this pass has no backward.
        """
        if self.model_config.get("enable_activation_offload", False):
            self.engine.module.eval()
        data = tu.index_select_tensor_dict(data, rows)
        tu.assign_non_tensor(data, calculate_entropy=False, calculate_sum_pi_squared=False)
        tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=len(rows))  # it is not cut again
        output = self.engine.infer_batch(data)
        return no_padding_2_padding(output["model_output"]["log_probs"], data)

    def _with_advantages(self, data: TensorDict) -> TensorDict:
        """The data with the hierarchy's advantages, made from rewards."""
        window, data = self._window(data, rewarded=True), data.copy()
        made = window.made_of_rewards()
        made = torch.where(window.mask, made if made.ndim == 2 else made[:, None], 0)
        fields.replace_advantages(data, made)
        return data

    def _rewards(self, data: TensorDict, mask: Tensor) -> Tensor:
        """Rewards per row [B], summed over its tokens; per token [B, T] if the hierarchy adds up tokens."""
        assert self.settings is not None
        hierarchy, found = (
            self.settings.operator.hierarchy,
            [name for name in (fields.REWARDS, *fields.SCORES) if name in data],
        )
        if not found:
            raise TrainerError(
                f"'{hierarchy.name}' makes advantages of rewards, and the mini-batch has none",
                required=f"one of the fields {listed((fields.REWARDS, *fields.SCORES))}",
                found=listed(sorted(data.keys())),
                remedy="hierarchy.replace(advantages=None), which takes verl's advantages",
            )
        rewards = fields.as_floats(fields.padded(data, found[0]).to(self.device_name))
        if not adds_up_tokens(hierarchy):
            return rewards.sum(1)
        lost = (rewards != 0) & ~mask & mask.any(1, keepdim=True)
        if lost.any():
            raise TrainerError(
                f"token {lost.nonzero()[0].tolist()} has a reward, and is masked",
                required=f"rewards at trained tokens: '{hierarchy.name}' adds them up",
                remedy="give the reward to the last token that the model sampled",
            )
        return rewards

    def _window(self, data: TensorDict, rewarded: bool = False) -> Window:
        """The window of this rank's rows. `rewarded`: with rewards in place of advantages."""
        assert self.settings is not None
        old = fields.as_floats(fields.padded(data, "old_log_probs").to(self.device_name))
        mask = fields.padded(data, "response_mask").to(self.device_name).bool()
        weights = None
        if "rollout_is_weights" in data and not rewarded:
            weights = fields.padded(data, "rollout_is_weights").to(self.device_name)
        group = self.engine.get_data_parallel_group()
        ranks, sessions = as_group(group), ["uid", "session_id"]
        with agreed(ranks, "the labels of a mini-batch"):
            rows, sources = self.settings.operator.hierarchy.rows.name, self.settings.sources().items()
            used = [row for row, unmasked in enumerate(mask.any(1).tolist()) if unmasked]
            labels = {
                stratum: fields.column(data, source, stratum, stratum == rows, used) for stratum, source in sources
            }
            asked = self.settings.trajectory is None and all(name in data for name in sessions)
            found = fields.column(data, sessions, rows, True, used) if asked else ()
            policies, attributes = self._policies(data), fields.attributes_of(data, self.settings, labels, mask)
        if self.settings.trajectory is None:
            keys = {row: found[row] for row in used} if asked else {}
            fields.refuse_several(ranks.all_gather_object(keys, "sessions of a mini-batch"))
        return Window(
            self.settings.operator,
            mask,
            old,
            None if rewarded else fields.padded(data, "advantages").to(self.device_name),
            labels,
            rewards=self._rewards(data, mask) if rewarded else None,
            weights=weights,
            policies=policies,
            group=group,
            parameters=self.settings.parameters or None,
            attributes=attributes,
        )

    def _policies(self, data: TensorDict) -> dict[str, Tensor]:
        """Log-probs of the further policies that the hierarchy reads. verl's old policy may be a recomputed proximal
        one.
        """
        assert self.settings is not None
        found, hierarchy = fields.policies_of(data, self.settings, self.device_name), self.settings.operator.hierarchy
        if ROLLOUT in found and not self._told and fields.is_sampled_by_old(data):
            self._told = True
            warnings.warn(
                f"'{hierarchy.name}' reads log_prob({ROLLOUT}), but on every token '{fields.SAMPLED}' equals "
                "old_log_probs, as with algorithm.rollout_correction.bypass_mode=true: there is no mismatch to "
                "correct, and drift from the rollout policy counts against the budgets",
                UserWarning,
                stacklevel=2,
            )
        return found

    def _step(self, batches: MicroBatches, finish: Callable[[], None]) -> Step:
        ranks, scaler = as_group(self.engine.get_data_parallel_group()).size, getattr(self.engine, "scaler", None)
        expected = ranks if scaler is None else ranks * scaler.get_scale()  # gradients are averaged, then unscaled
        self._scale.counts = {"ranks": ranks}

        def watched(coefficients: Tensor, mask: Tensor) -> Tensor:
            return self._scale.expects(coefficients, expected, mask)

        return Step(batches, ranks, watched, finish)


def _refuse_noise(module: torch.nn.Module, settings: Settings) -> None:
    reason = _reads_other_passes(settings)
    for name, word, value, *_ in rates(module) if reason else ():
        raise TrainerError(
            f"the model has dropout or jitter: {name}.{word}={value:g}, and {reason}",
            required="a model without noise, or a row-local loss (fibration show) without reuse_old_log_probs, whose "
            "coefficients come from the trained pass: another pass has other noise",
            remedy=f"set it to 0: +actor_rollout_ref.model.override_config.{word.removeprefix('config.')}=0, or by the "
            "name in the model's config",
        )


def _reads_other_passes(settings: Settings) -> str:
    """Why coefficients may come from other passes than the trained one; empty if none do."""
    hierarchy, coupling = settings.operator.hierarchy, settings.operator.coupling
    if not coupling.is_row_local:
        return f"'{hierarchy.name}' {coupling}"
    if settings.reuse_old_log_probs:
        return f"{HERE}.reuse_old_log_probs=true takes the ratios of a fresh mini-batch as 1"
    if settings.trajectory and coupling.within:
        return f"'{hierarchy.name}' couples the tokens of a {hierarchy.rows.name}, which has several rows"
    return ""


def _readers_of_all_rows(data: TensorDict) -> Iterator[str]:
    """Reasons in a mini-batch to train on dead rows too."""
    if tu.get(data, key="calculate_entropy", default=False):
        yield "verl logs the entropy of all rows"
    if tu.get(data, key="return_model_output", default=False):
        yield "the caller takes the outputs of all rows"
    if "multi_modal_inputs" in data or data["position_ids"].dim() > 2:
        yield "images are not cut into rows"


def _refuse_left_out(batches: MicroBatches) -> None:
    if not batches.seen.all():
        raise TrainerError(
            f"verl trained on {int(batches.seen.sum())} of the {len(batches.seen)} rows of a mini-batch",
            required="all of them: the coefficients belong to the whole mini-batch",
            remedy="leave the worker's loss function and the engine as verl has them",
        )


def _seen(step: Step, own: Callable[..., Any], model_output: Any, data: TensorDict, dp_group: Any = None) -> Any:
    step.rows = data[ROWS]
    return own(model_output=model_output, data=data, dp_group=dp_group)


def _temperature(data: TensorDict) -> Any:
    found = tu.get(data, key="temperature")
    return tuple(found.tolist()) if isinstance(found, Tensor) else found
