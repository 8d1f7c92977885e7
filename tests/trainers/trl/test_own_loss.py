"""TRL's loss as a hierarchy trains the same weights: with accumulation, clipping, KL and entropy, off policy."""

import os
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1"}

import pytest
import torch
from recorded_training import dataset, reward, saved, tokenizer
from trl import GRPOConfig, GRPOTrainer

from fibration.trainers.trl import FibrationGRPOTrainer

BOUND = 5e-7  # of weights of order 1, in float32
OPTIONS = {
    "as it comes": {},
    "a bonus for entropy": {"entropy_coef": 0.1},
    "a reference model": {"beta": 0.2, "use_bias_correction_kl": False},
    "truncated completions": {"mask_truncated_completions": True},
}


def trained(kind, folder, options, **ours):
    args = GRPOConfig(
        str(folder / "out"),
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
        **options,
    )
    trainer = kind(
        str(saved(folder / "model", torch.float32)), reward, args, dataset(8), processing_class=tokenizer(), **ours
    )
    before = weights(trainer)
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
