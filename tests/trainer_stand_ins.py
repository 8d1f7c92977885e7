"""Stand-ins for five trainers: the modules that the recipes of `docs/trainers/others.md` import, and a training step.

They follow the trainers' sources at the versions that the page names. So a step is cut into micro-batches and ranks,
reduced and scaled as in the trainer. Ranks are threads, or a driver's loop over them. Models have a few weights. An
optimizer step records its gradient and is plain gradient descent.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from reductions import clipped
from thread_ranks import ThreadGroup
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

WORDS = 997
RATE = 1.0


def features() -> Tensor:
    return torch.randn(WORDS, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


class Model(nn.Module):
    """Log-probs of tokens, from a policy that reads each token alone."""

    def __init__(self, group: ThreadGroup | None = None) -> None:
        super().__init__()
        self.features, self.group, self.forwards = features(), group, 0
        self.weights = nn.Parameter(torch.linspace(-0.4, 0.5, 6, dtype=torch.float64))
        self.steps: list[tuple[Tensor, Tensor]] = []  # weights before each step, and its gradient
        self.logged: dict[str, float] = {}

    def forward(self, tokens: Tensor) -> Tensor:
        self.forwards += not torch.is_grad_enabled()
        return -nn.functional.softplus(self.features[tokens] @ self.weights)

    def step(self) -> None:
        """Average gradients over ranks, as DDP, FSDP, DeepSpeed and Megatron do, and descend."""
        grad = self.weights.grad if self.weights.grad is not None else torch.zeros_like(self.weights)
        if self.group is not None:
            everyone = self.group.all_gather(grad.clone())
            grad = sum(everyone[1:], everyone[0]) / len(everyone)
        self.steps.append((self.weights.detach().clone(), grad.clone()))
        with torch.no_grad():
            self.weights -= RATE * grad
        self.weights.grad = None


@dataclass
class Data:
    """Rows of several optimizer steps: `[B, T]`, unmasked tokens on the left of each."""

    tokens: Tensor
    mask: Tensor
    old: Tensor
    advantages: Tensor
    prompt_group: list[int]
    domain: list[str]
    rollout: Tensor  # log-probs of the sampling engine

    def __len__(self) -> int:
        return len(self.tokens)

    def lengths(self) -> list[int]:
        """Sampled tokens of every row, up to its last unmasked one; 2 for a row without one."""
        return [max(1, int(row.nonzero().amax()) + 1) if row.any() else 2 for row in self.mask]


local = threading.local()  # the rank's group and pipeline stage, per thread


def given_modules(**named: dict[str, Any]) -> dict[str, ModuleType]:
    """Modules with the given members, and their parent packages. `__` in a name stands for a dot."""
    found: dict[str, ModuleType] = {}
    for name, members in named.items():
        path = name.split("__")
        for i in range(1, len(path) + 1):
            module = found.setdefault(".".join(path[:i]), ModuleType(".".join(path[:i])))
            if i > 1:
                setattr(found[".".join(path[: i - 1])], path[i - 1], module)
        vars(found[".".join(path)]).update(members)
    return found


def awaited(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    return done.value.value


class Imported:
    """A context in which imports find the stand-ins."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.modules = modules

    def __enter__(self) -> None:
        self.before = {name: sys.modules.get(name) for name in self.modules}
        sys.modules.update(self.modules)

    def __exit__(self, *_: object) -> None:
        for name, module in self.before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


# ---------------------------------------------------------------- SkyRL


class TensorBatch(dict[str, Any]):
    metadata: dict[str, Any]

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        found = TensorBatch({name: value[key] for name, value in self.items()})
        found.metadata = self.metadata
        return found


class Dispatch:
    """Pads a mini-batch to a multiple of the ranks with rows without tokens, and cuts it into one part per rank."""

    def __init__(self, model: Model, ranks: int, loss: Callable[..., Any]) -> None:
        self.model, self.ranks, self.loss = model, ranks, loss

    def stage_data(self, _: str, data: TensorBatch, boundaries: Sequence[tuple[int, int]]) -> list[list[TensorBatch]]:
        staged = []
        for start, end in boundaries:
            rows = torch.arange(start, end)
            more = -len(rows) % self.ranks
            rows = torch.cat([rows, rows[:1].expand(more)])
            step = TensorBatch({name: value[rows].clone() for name, value in data.items()})
            step["loss_mask"][len(rows) - more :] = 0
            step.metadata = data.metadata
            size = len(rows) // self.ranks
            staged.append([step[i : i + size] for i in range(0, len(rows), size)])
        return staged

    def forward_from_staged(self, _: str, parts: list[TensorBatch]) -> SimpleNamespace:
        with torch.no_grad():
            rows = [row.tolist() for part in parts for row in self.model(part["sequences"])]
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row} for row in rows])

    def forward_backward_from_staged(self, _: str, parts: list[TensorBatch]) -> SimpleNamespace:
        for part in parts:
            for i in range(0, len(part["sequences"]), 3):
                b = part[i : i + 3]
                loss, _metrics = self.loss(
                    self.model(b["sequences"]), b["action_log_probs"], b["advantages"], None, loss_mask=b["loss_mask"]
                )
                (loss * self.ranks / self.ranks).backward()
        return SimpleNamespace(metrics={"final_loss": 0.0})

    def optim_step(self, _: str) -> None:
        self.model.step()


def skyrl() -> dict[str, ModuleType]:
    class RayPPOTrainer:
        def __init__(self, cfg: Any, dispatch: Dispatch) -> None:
            self.cfg, self.dispatch, self.all_metrics = cfg, dispatch, dispatch.model.logged

        async def generate(self, input_batch: Any) -> Any:
            return input_batch

        def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> Any:
            return generator_output

        def _execute_training_step(self, model: str, data: Any) -> Any:
            return {"critic": True}

    registered: dict[str, Any] = {}

    def to_tensor(outputs: list[dict[str, Any]], key: str) -> Tensor:
        return pad_sequence([torch.tensor(o[key], dtype=torch.float64) for o in outputs], batch_first=True)

    return given_modules(
        ray={"remote": lambda **_: lambda run: run, "get": None},
        skyrl__backends__skyrl_train__distributed__dispatch={"loss_fn_outputs_to_tensor": to_tensor},
        skyrl__backends__skyrl_train__utils__ppo_utils={
            "PolicyLossRegistry": SimpleNamespace(register=registered.__setitem__, registered=registered)
        },
        skyrl__train__config={"SkyRLTrainConfig": None},
        skyrl__train__entrypoints__main_base={"BasePPOExp": object, "validate_cfg": None},
        skyrl__train__trainer={"RayPPOTrainer": RayPPOTrainer},
        skyrl__train__utils={"initialize_ray": None},
    )


def run_skyrl(scope: dict[str, Any], model: Model, data: Data, size: int, ranks: int) -> None:
    loss = sys.modules["skyrl.backends.skyrl_train.utils.ppo_utils"].PolicyLossRegistry.registered["coefficients"]
    cfg = SimpleNamespace(trainer=SimpleNamespace(update_epochs_per_batch=2))
    trainer = scope["Experiment"]().get_trainer(cfg=cfg, dispatch=Dispatch(model, ranks, loss))
    uids = [str(group) for group in data.prompt_group]
    ids = [SimpleNamespace(instance_id=uid) for uid in uids]
    prompts = {"trajectory_ids": ids, "env_extras": [{"data_source": name} for name in data.domain]}
    assert awaited(trainer.generate(prompts)) is prompts
    batch = TensorBatch(
        sequences=data.tokens,
        loss_mask=data.mask.double(),
        action_log_probs=data.old,
        rollout_logprobs=data.rollout,
        advantages=data.advantages[:, None].expand(data.mask.shape).clone(),
    )
    batch.metadata = {"policy_mini_batch_boundaries": [(i, i + size) for i in range(0, len(data), size)]}
    batch = trainer.convert_to_training_input(batch, uids)
    assert trainer._execute_training_step("critic", batch) == {"critic": True}
    assert trainer._execute_training_step("policy", batch) == {"final_loss": 0.0}


# ---------------------------------------------------------------- OpenRLHF


@dataclass
class Experience:
    sequences: Tensor
    attention_mask: Tensor
    action_mask: Tensor
    action_log_probs: Tensor
    advantages: Tensor
    prompts: list[str]

    def to_device(self, device: torch.device) -> Experience:
        return self


class PolicyLoss(nn.Module):
    def forward(
        self, new: Tensor, old: Tensor, advantages: Tensor, action_mask: Tensor, dp_size: int, batch_num_tokens: float
    ) -> Tensor:
        loss = clipped(new, old, advantages, action_mask)
        return (loss * action_mask).sum() / batch_num_tokens * dp_size


class Actor(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(sequences[:, -action_mask.shape[1] :])


def step_norm(batches: Iterator[Experience], group: ThreadGroup, k: int) -> Iterator[tuple[Experience, dict[str, Any]]]:
    """Yields each micro-batch with its window's tokens on all ranks over `k`; the loss is divided by `k` too."""
    while window := list(itertools.islice(batches, k)):
        tokens = torch.stack(group.all_gather(sum(b.action_mask.sum() for b in window).double())).sum()
        for batch in window:
            yield batch, {"dp_size": group.size, "batch_num_tokens": tokens / k}


def run_openrlhf(scope: dict[str, Any], model: Model, data: Data, size: int, group: ThreadGroup) -> None:
    k = size // group.size // 2
    scope["domains"].update({str(g): name for g, name in zip(data.prompt_group, data.domain, strict=True)})
    mesh = {"dp": SimpleNamespace(get_group=lambda: group)}
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(accumulated_gradient=k, ds_device_mesh=mesh),
        actor=Actor(model),
        actor_loss_fn=PolicyLoss(),
    )
    mine = [i for start in range(0, len(data), size) for i in range(start + group.rank, start + size, group.size)]
    batches = []
    for rows in (mine[i : i + 2] for i in range(0, len(mine), 2)):
        width = max(data.lengths()[i] for i in rows)
        cut = {name: t[rows][:, :width] for name, t in (("m", data.mask), ("o", data.old), ("s", data.tokens))}
        a = data.advantages[rows][:, None].expand(-1, width)
        prompt = torch.zeros(len(rows), 3, dtype=torch.long)
        tokens = torch.cat([prompt, cut["s"]], 1)
        names = [str(data.prompt_group[i]) for i in rows]
        batches.append(Experience(tokens, tokens >= 0, cut["m"], cut["o"], a, names))
    before = [b.advantages for b in batches]
    for step, (b, info) in enumerate(step_norm(scope["windows"](trainer, iter(batches)), group, k)):
        new = trainer.actor(b.sequences, b.action_mask, attention_mask=b.attention_mask)
        loss = trainer.actor_loss_fn(new, b.action_log_probs, b.advantages, action_mask=b.action_mask, **info)
        (loss / k).backward()  # DeepSpeed
        if (step + 1) % k == 0:
            model.step()
    assert all(b.advantages.shape == a.shape for a, b in zip(before, batches, strict=True))
    assert not trainer.actor_loss_fn._forward_pre_hooks  # the next rollout registers its own hooks


# ---------------------------------------------------------------- slime


class DataIterator:
    def __init__(self, rollout_data: dict[str, Any], micro_batch_indices: list[list[int]]) -> None:
        self.rollout_data, self.micro_batch_indices, self.offset = rollout_data, micro_batch_indices, 0

    def get_next(self, keys: Sequence[str]) -> dict[str, Any]:
        rows = self.micro_batch_indices[self.offset]
        self.offset += 1
        return {k: [self.rollout_data[k][i] for i in rows] if k in self.rollout_data else None for k in keys}


def forward_only(
    f: str, args: Any, model: list[Model], iterators: list[DataIterator], num_microbatches: list[int]
) -> dict[str, list[Tensor]]:
    """Log-probs in the order of micro-batches, or of the rows with a dynamic batch size."""
    assert f == "log-probs"
    found: list[Tensor] = []
    with torch.no_grad():
        for _ in range(sum(num_microbatches)):
            batch = iterators[0].get_next(["tokens", "loss_masks", "total_lengths", "response_lengths"])
            found += [model[0](t)[-n:] for t, n in zip(batch["tokens"], batch["response_lengths"], strict=True)]
    if args.use_dynamic_batch_size:
        places = list(itertools.chain(*iterators[0].micro_batch_indices))
        found = [found[places.index(i)] for i in range(len(found))]
    return {"log_probs": found} if local.last else {}


def slime() -> dict[str, ModuleType]:
    mpu = SimpleNamespace(get_data_parallel_group=lambda: local.group, is_pipeline_last_stage=lambda: local.last)
    return given_modules(
        megatron__core={"mpu": mpu},
        slime__backends__megatron_utils__data={"DataIterator": DataIterator},
        slime__backends__megatron_utils__loss={"get_log_probs_and_entropy": "log-probs"},
        slime__backends__megatron_utils__model={"forward_only": forward_only},
    )


def run_slime(scope: dict[str, Any], model: Model, data: Data, size: int, group: ThreadGroup) -> None:
    """Run slime's step: a rollout has two samples, and micro-batches have 1 to 3 rows in their own order."""
    local.group, local.last = group, True
    lengths, steps = data.lengths(), len(data) // size
    mine = [i for s in range(steps) for i in range(s * size + group.rank, (s + 1) * size, group.size)]
    per_step = len(mine) // steps
    schedule = [
        list(reversed(part.tolist()))
        for s in range(steps)
        for part in torch.arange(s * per_step, (s + 1) * per_step).split([3, 1] + [2] * ((per_step - 4) // 2))
    ]
    both = data.mask.sum(1).reshape(-1, 2).sum(1).repeat_interleave(2).double()
    cut = lambda t: [t[i][: lengths[i]].clone() for i in mine]  # noqa: E731
    rollout_data = {
        "tokens": cut(data.tokens),
        "loss_masks": cut(data.mask.int()),
        "total_lengths": [lengths[i] for i in mine],
        "response_lengths": [lengths[i] for i in mine],
        "log_probs": cut(data.old),
        "advantages": [data.advantages[i].expand(lengths[i]) for i in mine],
        "sample_indices": list(mine),
        "source_names": [data.domain[i] for i in mine],
        "rollout_mask_sums": both[mine],
        "global_batch_sizes": [size // 2] * steps,
        "num_microbatches": [len(schedule) // steps] * steps,
        "micro_batch_indices": schedule,
    }
    args = SimpleNamespace(n_samples_per_prompt=4, use_dynamic_batch_size=True)
    scope["keep"](args, 0, rollout_data)
    iterator = DataIterator(rollout_data, schedule)
    for step_id in range(steps):
        scope["before_step"](args, 0, step_id, [model], None, None)
        k, rollouts = rollout_data["num_microbatches"][step_id], rollout_data["global_batch_sizes"][step_id]
        for _ in range(k):
            names = ("tokens", "loss_masks", "log_probs", "advantages", "rollout_mask_sums", "response_lengths")
            b = iterator.get_next(names)
            loss = torch.zeros((), dtype=torch.float64)
            for i, tokens in enumerate(b["tokens"]):
                new = model(tokens)[-b["response_lengths"][i] :]
                old = b["log_probs"][i] if b["log_probs"] else new.detach()
                one = clipped(new, old, b["advantages"][i], b["loss_masks"][i].bool())
                loss = loss + (one * b["loss_masks"][i]).sum() / b["rollout_mask_sums"][i].clamp(min=1)
            (loss * k / rollouts * group.size / k).backward()  # Megatron applies the `/ k`
        model.step()
    local.last = False  # other stages of a pipeline run the forward pass alone
    before = model.forwards
    scope["before_step"](args, 0, steps - 1, [model], None, None)
    assert model.forwards == before + per_step


# ---------------------------------------------------------------- AReaL


def areal() -> dict[str, ModuleType]:
    class FSDPPPOActor:
        """AReaL's actor, which packs rows into micro-batches of 3."""

        model: Model
        data_parallel_group: ThreadGroup

        def micro_batches(self, input_: dict[str, Tensor]) -> Iterator[tuple[dict[str, Tensor], list[int]]]:
            lengths = input_["attention_mask"].sum(1).tolist()
            for i in range(0, len(lengths), 3):
                n = lengths[i : i + 3]
                yield (
                    {
                        name: torch.cat([row[:m] for row, m in zip(t[i : i + 3], n, strict=True)])
                        for name, t in input_.items()
                    },
                    n,
                )

        def forward_batch(self, input_: dict[str, Tensor]) -> Tensor:
            rows = [r for b, n in self.micro_batches(input_) for r in self.model(b["input_ids"]).split(n)]
            return pad_sequence(rows, batch_first=True)

        def train_batch(self, input_: dict[str, Tensor], loss_fn: Any, loss_weight_fn: Any) -> dict[str, float]:
            total = sum(loss_weight_fn(b) for b, _ in self.micro_batches(input_)).double()
            total = torch.stack(self.data_parallel_group.all_gather(total)).sum()
            for b, _ in self.micro_batches(input_):
                weight = loss_weight_fn(b)
                if weight:
                    loss = loss_fn(self.model(b["input_ids"]), torch.zeros(()), b, vocab_min_logits=None)
                    (loss * weight / total * self.data_parallel_group.size).backward()
            self.model.step()
            return {"lr": 0.0}

    class RLVRWorkflow:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Tensor]:
            return {"input_ids": data["sampled"][None]}

    return given_modules(
        areal__engine__fsdp_engine={"FSDPPPOActor": FSDPPPOActor},
        areal__workflow__rlvr={"RLVRWorkflow": RLVRWorkflow},
    )


def areal_loss(logprobs: Tensor, entropy: Tensor, data: dict[str, Tensor], **_: Any) -> Tensor:
    mask = data["loss_mask"].bool()
    loss = clipped(logprobs, data["prox_logp"], data["advantages"], mask)
    return torch.where(mask, loss, 0).sum() / (mask.count_nonzero() or 1)


def run_areal(scope: dict[str, Any], model: Model, data: Data, size: int, group: ThreadGroup) -> None:
    assert sys.modules["areal.engine"].FSDPPPOActor.__name__ == "HierarchicalActor"
    actor = scope["HierarchicalActor"]()
    actor.model, actor.data_parallel_group = model, group
    numbers = {name: i for i, name in enumerate(dict.fromkeys(data.domain))}
    for start in range(0, len(data), size):
        mine = list(range(start + group.rank, start + size, group.size))
        lengths = torch.tensor(data.lengths())[mine]
        batch = {
            "input_ids": data.tokens[mine],
            "attention_mask": torch.arange(data.mask.shape[1]) < lengths[:, None],
            "loss_mask": data.mask[mine].float(),
            "logprobs": data.old[mine],
            "prox_logp": data.old[mine] + 0.1,
            "advantages": data.advantages[mine][:, None].expand(-1, data.mask.shape[1]).clone(),
        }
        labelled = []
        for i in mine:
            row = {
                "sampled": data.tokens[i],
                "prompt_number": data.prompt_group[i],
                "domain_number": numbers[data.domain[i]],
            }
            labelled.append(awaited(scope["Labelled"]().arun_episode(None, row)))
        batch |= {name: torch.cat([row[name] for row in labelled]) for name in ("prompt_number", "domain_number")}
        actor.train_batch(batch, areal_loss, lambda b: b["loss_mask"].count_nonzero())


# ---------------------------------------------------------------- NeMo-RL


class BatchedDataDict(dict[str, Any]):
    @property
    def size(self) -> int:
        return len(self["input_ids"])

    def select_indices(self, rows: Tensor) -> BatchedDataDict:
        return BatchedDataDict({name: t[rows] for name, t in self.items()})


@dataclass
class NeMoPolicy:
    model: Model
    ranks: int
    cfg: dict[str, int] = field(default_factory=dict)

    def get_logprobs(self, data: BatchedDataDict) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"logprobs": self.shifted(data["input_ids"])}

    def shifted(self, tokens: Tensor) -> Tensor:
        """Log-probs of all tokens, 0 for the first."""
        return torch.cat([torch.zeros(len(tokens), 1, dtype=torch.float64), self.model(tokens[:, 1:])], 1)

    def train(
        self,
        data: BatchedDataDict,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
        **_: Any,
    ) -> dict[str, float]:
        size = gbs or self.cfg["train_global_batch_size"]
        for start in range(0, data.size, size):
            rows = torch.arange(start, start + size)
            step = data.select_indices(rows)
            tokens = (step["token_mask"][:, 1:] * step["sample_mask"][:, None]).sum()
            for mine in rows.split(size // self.ranks):
                for part in mine.split(3):
                    b = data.select_indices(part)
                    loss = loss_fn(self.shifted(b["input_ids"])[:, 1:], b, tokens)
                    (loss * self.ranks / self.ranks).backward()
            self.model.step()
        return {"loss": 0.0}


def nemo_loss(new: Tensor, data: BatchedDataDict, tokens: Tensor) -> Tensor:
    """NeMo-RL's loss with `disable_ppo_ratio`."""
    mask = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
    loss = torch.maximum(-data["advantages"][:, 1:] * new, -data["advantages"][:, 1:] * new)
    return (loss * mask).sum() / (tokens + 1e-8)


def nemo() -> dict[str, ModuleType]:
    class Estimator:
        def compute_advantage(self, prompt_ids: Tensor, rewards: Tensor, mask: Tensor, **more: Any) -> Tensor:
            assert set(more) == {"repeated_batch"}
            return rewards[:, None].expand(mask.shape)

    return given_modules(
        nemo_rl__algorithms__grpo={"_create_advantage_estimator": lambda config: Estimator()},
        nemo_rl__models__policy__lm_policy={"Policy": NeMoPolicy},
    )


def run_nemo(scope: dict[str, Any], model: Model, data: Data, size: int, ranks: int) -> None:
    estimator = sys.modules["nemo_rl.algorithms.grpo"]._create_advantage_estimator(None)
    first = torch.zeros(len(data), 1, dtype=torch.long)
    mask = torch.cat([first, data.mask], 1)
    kept = torch.ones(len(data), dtype=torch.float64)
    kept[[3, size + 7]] = 0  # dropped samples; the token mask still keeps their tokens
    data.mask[kept == 0] = False
    batch = BatchedDataDict(
        input_ids=torch.cat([first, data.tokens], 1),
        token_mask=mask.double(),
        sample_mask=kept,
        prev_logprobs=torch.cat([first.double(), data.old], 1),
        generation_logprobs=torch.cat([first.double(), data.rollout], 1),
    )
    batch["advantages"] = estimator.compute_advantage(
        prompt_ids=torch.tensor(data.prompt_group)[:, None].expand(-1, 2),
        rewards=data.advantages,
        mask=mask,
        repeated_batch={"task_name": data.domain},
    )
    policy = scope["HierarchicalPolicy"](model, ranks, {"train_global_batch_size": size})
    assert policy.train(batch, nemo_loss, timer=None) == {"loss": 0.0}
