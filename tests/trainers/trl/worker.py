"""Runs all cases of `test_trainer.py` in one process of a group, under torchrun: `worker.py FOLDER`.

One run has all cases, because a process takes ten seconds to start. Each rank writes its results to
`FOLDER/RANK.json`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
import torch.distributed as dist
from cases import CASES, FAR, PER_DEVICE, SOFT, Case
from planted_mistakes import PLANTS
from recorded_training import (
    Rollouts,
    all_equal,
    brevity,
    dataset,
    distance,
    equal,
    everyone,
    model,
    rank,
    reward,
    saved,
    sometimes,
    teacher,
    tokenizer,
    watched,
)
from refused_options import ALLOWED, REFUSED
from sharded_policies import under_fsdp
from transformers import MixtralConfig, MixtralForCausalLM
from trl import GRPOConfig, GRPOTrainer

from fibration.trainers.intake import as_operator
from fibration.trainers.trl import FibrationGRPOTrainer

RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def precise(
    self: Any, policy: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *_: Any, **more: Any
) -> Any:
    """In the precision of the model, where the trainer's own kernel computes in float32."""
    logits = policy(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1] / self.temperature
    likely = logits[:, -logits_to_keep:].log_softmax(-1)
    said = likely.gather(-1, input_ids[:, -logits_to_keep:, None])[..., 0]
    return said, -(likely.exp() * likely).sum(-1) if more.get("compute_entropy") else None, None


def configuration(case: Case, folder: Path, **more: Any) -> GRPOConfig:
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": PER_DEVICE,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": case.accumulation,
        "steps_per_generation": case.slices,
        "num_iterations": case.iterations,
        "num_generations": case.samples[RANKS],
        "num_generations_eval": 4,
        "max_completion_length": 8,
        "temperature": 0.9,
        "learning_rate": 0.003,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0,  # gradients are looked at as they are
        "bf16": False,
        "use_cpu": True,
        "activation_checkpointing": False,
        "remove_unused_columns": False,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "ddp_timeout": 60,
        **({"max_steps": case.steps} if case.steps else {"num_train_epochs": 2}),
        **case.config,
        **more,
    }
    return GRPOConfig(**given)


def make(case: Case, folder: Path, base: type = FibrationGRPOTrainer, policy: Any = None, **more: Any) -> Any:
    dtype = torch.float64 if case.exact else torch.float32
    words = tokenizer()
    policy = model(dtype, attention_dropout=case.noise) if policy is None else policy
    op = as_operator(case.hierarchy)
    if case.config.get("beta") or "reference" in op.hierarchy.policies:
        policy.config._name_or_path = str(saved(folder.parent / "saved"))
    ours = {"hierarchy": case.hierarchy, "labels": {"domain": "domain"}, "parameters": case.budgets, **case.trainer}
    if "domain" not in map(str, (*op.hierarchy.strata, *op.hierarchy.groups)):
        del ours["labels"]
    if case.teacher:
        ours["policies"] = {"teacher": teacher(dtype) if case.teacher == "model" else "taught"}
    args = configuration(case, folder, **more)
    scored = {"half": equal, "all": all_equal}.get(case.equal, sometimes if case.unscored else reward)
    data = dataset(case.prompts(RANKS) * (2 if case.steps else 1), twice=case.twice)
    trainer = watched(base)(
        policy,
        [scored, brevity] if case.two_rewards else scored,
        args,
        train_dataset=data.to_iterable_dataset() if case.stream else data,
        eval_dataset=elsewhere(8) if args.eval_strategy != "no" else None,
        processing_class=words,
        rollout_func=None
        if case.sampled
        else Rollouts(words, case.holes, case.endless, case.unknown, case.teacher == "field"),
        op=op,
        budgets=case.budgets,
        of_generations=case.trainer.get("window") == "generation",
        noisy=bool(case.noise),
        **(ours if issubclass(base, FibrationGRPOTrainer) else {}),
    )
    if case.weights:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = (
            True  # but no engine: rollouts say its log-probs
        )
        trainer.vllm_importance_sampling_mode, trainer.vllm_importance_sampling_clip_max = case.weights, 1.4
        trainer.vllm_importance_sampling_clip_min, trainer._last_loaded_step = None, -1
        trainer.vllm_generation = Engine()
    return trainer


def elsewhere(number: int) -> Any:
    """Data of which some lines are of a domain that no budget is given for."""
    return dataset(number).map(lambda row: {"domain": "atlases" if row["domain"] == "maps" else row["domain"]})


class Engine:
    def sync_weights(self) -> None:
        """Nothing to do: completions are drawn without the policy."""


def run(case: Case, folder: Path, base: type = FibrationGRPOTrainer) -> dict[str, Any]:
    exact = patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", precise) if case.exact else nullcontext()
    shards = under_fsdp() if case.sharded else nullcontext()
    with exact, shards, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        if case.resume:
            make(case, folder, base, save_strategy="steps", save_steps=1, max_steps=case.resume).train()
        trainer = make(case, folder, base)
        if case.broken:
            break_off(trainer)
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{case.resume}") if case.resume else None)
        if case.again:
            trainer.args.max_steps = case.again
            trainer.train()
    return {
        "updates": [asdict(update) for update in trainer.updates],
        "evaluations": trainer.evaluations,
        "history": trainer.state.log_history,
        "warnings": [str(w.message) for w in said if "fibration" in w.filename or "pass" in str(w.message)],
    }


def ten_steps(folder: Path) -> dict[str, Any]:
    """With dead rows left out and without: how far weights are apart, and the rows in trained passes."""
    weights, rows = [], []
    for skip in (True, False):
        case = replace(CASES["equal rewards"], steps=10, trainer={"skip_dead_rows": skip})
        with patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", precise):
            trainer = make(case, folder)
            trainer.train()
        weights.append([p.detach() for p in trainer.policy.parameters()])
        rows.append([update.rows for update in trainer.updates])
    return {"apart": distance(*weights), "moved": distance(weights[0], list(model().parameters())), "rows": rows}


def experts(folder: Path) -> dict[str, Any]:
    """A mixture of experts, whose router has a loss of its own."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MixtralConfig(vocab_size=31, num_local_experts=2, num_key_value_heads=2, router_aux_loss_coef=0.1, **sizes)
    trainer = make(replace(CASES["equal rewards"], exact=False, steps=2), folder, policy=MixtralForCausalLM(config))
    trainer.train()
    return {"rows": [update.rows for update in trainer.updates], "logged": trainer.updates[-1].logged}


def unloaded(folder: Path) -> dict[str, Any]:
    """A teacher that has weights on the first rank alone, as FSDP's cpu_ram_efficient_loading has it."""

    whole = teacher(torch.float64)
    loaded = whole.to("meta") if rank() else whole
    with patch(f"{__name__}.teacher", lambda dtype: loaded), under_fsdp():
        make(CASES["rows alone, a teacher in shards"], folder)
    return {"raised": "nothing"}


def break_off(trainer: Any) -> None:
    """Within its first micro-batch, after the forward pass; then it has no memory of it."""
    with patch.object(trainer.accelerator, "backward", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        trainer.train()
    trainer.counting, trainer.forwards = False, 0
    trainer.window, trainer.passes, trainer.values, trainer.passed = [], [], [], []


def planted(name: str, folder: Path) -> dict[str, Any]:
    plant = PLANTS[name]
    with plant.how():
        return run(plant.into, folder)


def refused(name: str, folder: Path) -> dict[str, Any]:
    """As a user has it: without a memory, and with completions of its own."""
    of = {**REFUSED, **ALLOWED}[name]
    args = configuration(CASES["two iterations"], folder, **of.config)
    data = of.rows(dataset(24).remove_columns([of.without] if of.without else []))
    ours = {"hierarchy": SOFT, "labels": {"domain": "domain"}, "parameters": FAR, **of.trainer}
    with of.how(args):
        policy, rows = model(torch.float32, **of.model), data.to_iterable_dataset() if of.streamed else data
        trainer = FibrationGRPOTrainer(policy, reward, args, train_dataset=rows, processing_class=tokenizer(), **ours)
        if of.trains:
            trainer.train()
    return {"raised": "nothing"}


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it found; of an error, what it says. Where one rank raises, all do, or none can go on."""
    try:
        return work()
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def main() -> None:
    torch.set_num_threads(1)
    folder, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    works = {name: partial(run, case) for name, case in CASES.items() if RANKS in case.ranks}
    works |= {name: partial(planted, name) for name, plant in PLANTS.items() if RANKS in plant.ranks}
    works |= {"ten steps": ten_steps}
    if RANKS == 2:
        works |= {"a teacher without weights on a rank": unloaded}
    if RANKS == 1:
        works |= {"experts": experts}
        works |= {name: partial(refused, name) for name in (*REFUSED, *ALLOWED)}
    found = {}
    for number, (name, work) in enumerate(works.items()):
        if not chosen or name in chosen:
            found[name] = attempt(partial(work, folder / str(number)))
            (folder / f"{rank()}.json").write_text(json.dumps(found))
    everyone(None)
    if dist.is_initialized():
        gc.collect()  # DDP modules are cycles, and have threads of the group
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
