"""Models of `trl_reasoning.py` on other questions: `python docs/examples/held_out.py runs/*/checkpoint-40`

Prints what share of answers is right, of the model that runs began with and of each, to the same questions: those that
come after the ones of a run.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from trl_reasoning import CONFIG, QUESTIONS, TASKS, ask, load_model, stop_tokens

ANSWERS = 4  # to every question


@torch.no_grad()
def right(model, tokenizer, asked: list) -> dict[str, float]:
    """The share of right answers in every domain, sampled as in training."""
    torch.manual_seed(0)
    found = {}
    for name in TASKS:
        mine = [question for domain, question in asked if domain == name for _ in range(ANSWERS)]
        given = tokenizer([q.prompt for q in mine], return_tensors="pt", padding=True, padding_side="left")
        said = model.generate(
            **given,
            max_new_tokens=CONFIG["max_completion_length"],
            do_sample=True,
            top_k=0,
            eos_token_id=stop_tokens(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(said[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        found[name] = sum(q.reward(text) for q, text in zip(mine, texts, strict=True)) / len(mine)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=40, help="of the runs")
    parser.add_argument("--seed", type=int, default=0, help="of the runs")
    parser.add_argument("--questions", type=int, default=32, help="of every domain")
    parser.add_argument("--json", type=Path, help="a file for the shares")
    given = parser.parse_args()
    if given.questions < QUESTIONS or given.questions % QUESTIONS:
        parser.error(
            f"--questions {given.questions}: questions are drawn by {QUESTIONS} of a domain; take a multiple of that"
        )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)  # before the answers, which take minutes
    before = given.steps // CONFIG["num_iterations"]
    asked = ask(before + given.questions // QUESTIONS, given.seed)[before * len(TASKS) * QUESTIONS :]
    model, tokenizer = load_model()
    print("|", *TASKS, "all", sep=" | ", end=" |\n")
    print("|---" * (2 + len(TASKS)) + "|")
    found = {}
    for path in (None, *given.checkpoints):
        read = model if path is None else AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        name = "before" if path is None else path.parent.name
        found[name] = right(read, tokenizer, asked)
        cells = [f"{share:.2f}" for share in (*found[name].values(), sum(found[name].values()) / len(TASKS))]
        print("|", name, "|", " | ".join(cells), "|", flush=True)
    if given.json:
        part = given.json.with_name(given.json.name + ".part")
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(given.json)


if __name__ == "__main__":
    main()
