"""TRL's losses as hierarchies train the same weights: with accumulation, clipping, KL and entropy, off policy.

Beside TRL's default loss, its GDPO (several rewards) and its mask of entropies, against the shipped losses of these
names: the gradient of every optimizer step.
"""

import os
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1"}

import pytest
import torch
from recorded_training import brevity, dataset, reward, saved, tokenizer
from transformers import LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from worker import precise

from fibration.trainers.trl import FibrationGRPOTrainer

BOUND = 5e-7  # of weights of order 1, in float32
OPTIONS = {
    "as it comes": {},
    "a bonus for entropy": {"entropy_coef": 0.1},
    "a reference model": {"beta": 0.2, "use_bias_correction_kl": False},
    "truncated completions": {"mask_truncated_completions": True},
}


class Gradients(TrainerCallback):
    """The gradient of every optimizer step."""

    def __init__(self) -> None:
        self.of_steps: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.of_steps.append(torch.cat([p.grad.detach().clone().reshape(-1) for p in model.parameters()]))


def trained(kind, folder, options, rewards=reward, **ours):
    given = dict(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_generations=4,
        max_completion_length=7,
        max_steps=6,
        learning_rate=0.001,
        max_grad_norm=0,  # clipped gradients would not tell a factor
        lr_scheduler_type="constant",
        optim="sgd",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    args, seen = GRPOConfig(str(folder / "out"), **{**given, **options}), Gradients()
    dtype = torch.get_default_dtype()
    model = LlamaForCausalLM.from_pretrained(saved(folder / "model", dtype), dtype=dtype)
    trainer = kind(model, rewards, args, dataset(8), processing_class=tokenizer(), callbacks=[seen], **ours)
    trainer.gradients, before = seen.of_steps, weights(trainer)
    trainer.train()
    return trainer, before, weights(trainer)


def weights(trainer):
    return torch.cat([values.detach().clone().reshape(-1) for values in trainer.model.parameters()])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_hierarchy_of_trls_own_loss_trains_the_same_weights(tmp_path: Path, options):
    """TRL divides by the tokens of a generation, in equal parts: of a batch that is the generation, it is their mean."""
    bounds = {"epsilon_low": 0.2, "epsilon_high": 0.2}
    ours = {"hierarchy": "dapo", "parameters": bounds, "window": "generation"}
    _, before, theirs = trained(GRPOTrainer, tmp_path, options)
    trainer, _, found = trained(FibrationGRPOTrainer, tmp_path, options, **ours)
    name = "fibration/token/clipped"  # a step whose completions are all truncated has none
    clipped = [logged[name] for logged in trainer.state.log_history if name in logged]
    assert max(clipped) > 0.1, "no token is clipped"
    assert (theirs - before).abs().max() > 1000 * BOUND, "nothing was learned"
    assert (found - theirs).abs().max() <= BOUND


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def bound(request, monkeypatch):
    """How near gradients are. In float64 so are rewards, and log-probs, which TRL's kernel computes in float32.

    Entropies are float32 numbers, as in TRL's quantile: tokens with equal entropies are kept or dropped together.
    """

    def scored(*given: Any, **more: Any) -> Any:
        log_probs, entropies, aux_loss = precise(*given, **more)
        return log_probs, None if entropies is None else entropies.float().to(entropies.dtype), aux_loss

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", scored)
    torch.set_default_dtype(request.param)
    yield 1e-6 if request.param == torch.float32 else 1e-12
    torch.set_default_dtype(torch.float32)


def same_gradients(theirs, ours, bound):
    """Of every step; some of which are off policy, with clipped tokens."""
    clipped = [logged.get("fibration/token/clipped", 0) for logged in ours.state.log_history]
    assert max(clipped) > 0.05, "no token is clipped"
    assert len(theirs.gradients) == len(ours.gradients) > 3
    for expected, found in zip(theirs.gradients, ours.gradients, strict=True):
        assert expected.norm() > 1e-3
        assert (found - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 1.75)], ids=str)
def test_gdpo_has_the_gradients_of_trls_sum_of_normalised_rewards(tmp_path, weights, bound):
    of_trl = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": list(weights)}
    theirs, _, _ = trained(GRPOTrainer, tmp_path, of_trl, [reward, brevity])
    ours = {
        "hierarchy": "gdpo",
        "attributes": {"reward_1": "rewards/reward", "reward_2": "rewards/brevity"},
        "parameters": dict(zip(("weight_1", "weight_2"), weights, strict=True)),
        "window": "generation",
    }
    same_gradients(theirs, trained(FibrationGRPOTrainer, tmp_path, {}, [reward, brevity], **ours)[0], bound)


@pytest.mark.parametrize("share", [0.2, 0.35])
def test_the_mask_of_entropies_has_the_gradients_of_trls(tmp_path, share, bound):
    """TRL takes the entropies of each update and the quantile of each micro-batch, the library those of sampling and of
    the step. They keep the same tokens in steps of one micro-batch, if weights move little.
    """
    step = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    step |= {"learning_rate": 1e-5}
    of_trl = {"top_entropy_quantile": share, "epsilon": 0.001}
    theirs, _, _ = trained(GRPOTrainer, tmp_path, step | of_trl)
    bounds = {"level": 1 - share, "epsilon_low": 0.001, "epsilon_high": 0.001}
    ours = {"hierarchy": "entropy_mask", "parameters": bounds}
    trainer, _, _ = trained(FibrationGRPOTrainer, tmp_path, step, **ours)
    kept = [logged["fibration/kept"] for logged in trainer.state.log_history if "fibration/kept" in logged]
    assert kept and max(kept) < share + 0.1
    same_gradients(theirs, trainer, bound)
