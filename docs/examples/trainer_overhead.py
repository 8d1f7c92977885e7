"""What an optimizer step takes in TRL with a hierarchy for its loss, beside TRL's own: `trainer_overhead.py --rounds 7`

Trainers of one process take turns, in an order that changes from round to round. Each samples the same answers, since
its learning rate is 0, and takes a fresh step on them, and one that is not. Sampling and scoring, and the pass
that gives old log-probs, are timed apart. `--equal 0.5` gives the answers of each second question equal rewards, and
different ones to all others.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from transformers import TrainerCallback, set_seed
from trl_reasoning import ANSWERS, CONFIG, ask, make_trainer

KINDS = ("fresh", "off policy")


class Clock(TrainerCallback):
    """Seconds of each optimizer step, with its update, and of what it waited for its rows."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.waits: list[float] = []
        self.rows: list[float] = []  # the share of rows in the trained passes

    def watch(self, trainer) -> None:
        own = trainer._prepare_inputs

        def prepare(inputs):
            start = time.perf_counter()
            found = own(inputs)
            self.waits[-1] += time.perf_counter() - start
            return found

        trainer._prepare_inputs = prepare

    def on_step_begin(self, args, state, control, **kwargs):
        self.waits.append(0.0)
        self.steps.append(-time.perf_counter())

    def on_step_end(self, args, state, control, **kwargs):
        self.steps[-1] += time.perf_counter()

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs:
            self.rows.append(logs.get("fibration/rows_trained", 1.0))


def rewards(equal: float, asked: int):
    """A reward function: equal for that share of the questions, spread evenly. Other answers have no advantage of 0."""

    def reward(completions, number, **columns):
        dead = [int((k + 1) * equal) > int(k * equal) for k in range(asked)]
        return [0.5 if dead[k] else float(i % ANSWERS) ** 2 for i, k in enumerate(number)]

    return reward


def times(trainer, clock: Clock) -> dict[str, float]:
    """Seconds of two steps on the same answers, and of sampling these."""
    clock.steps.clear()
    clock.waits.clear()
    clock.rows.clear()
    set_seed(0)
    trainer.train()
    found = {kind: step - wait for kind, step, wait in zip(KINDS, clock.steps, clock.waits, strict=True)}
    rows = {f"{kind}: rows trained": share for kind, share in zip(KINDS, clock.rows, strict=True)}
    return {**found, **rows, "sampling": sum(clock.waits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--losses", nargs="+", default=["trl", "grpo", "fiberpo_domain"], help="the first is beside the others"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--equal", type=float, help="share of questions with equal rewards; default: as scored")
    parser.add_argument("--json", type=Path, help="where all samples go")
    given = parser.parse_args()
    trainers, asked = {}, ask(1, seed=0)
    with tempfile.TemporaryDirectory() as out:
        for loss in given.losses:
            clock = Clock()
            changes = dict(output_dir=out, max_steps=CONFIG["num_iterations"], learning_rate=0.0, save_strategy="no")
            trainers[loss] = make_trainer(loss, asked, given.layers, [clock], disable_tqdm=True, **changes), clock
            clock.watch(trainers[loss][0])
            if given.equal is not None:
                trainers[loss][0].reward_funcs[0] = rewards(given.equal, len(asked))
            times(*trainers[loss])  # allocations and caches
        samples = []
        for k in range(given.rounds):
            for loss in given.losses if k % 2 else reversed(given.losses):
                samples.append({"round": k, "loss": loss, **times(*trainers[loss])})
    beside = given.losses[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.rounds} rounds\n")
    print(f"| | {' | '.join(f'{kind}, s | / {beside} | rows trained' for kind in KINDS)} | sampling, s |")
    print("|---" * (2 + 3 * len(KINDS)) + "|")
    by_loss = {loss: [s for s in samples if s["loss"] == loss] for loss in given.losses}
    for loss, mine in by_loss.items():
        cells = []
        for kind in KINDS:
            ratio = median(s[kind] / b[kind] for s, b in zip(mine, by_loss[beside], strict=True))
            cells += [f"{median(s[kind] for s in mine):.2f}", f"{ratio:.3f}", f"{mine[0][f'{kind}: rows trained']:.2f}"]
        print("|", loss, "|", " | ".join(cells), "|", f"{median(s['sampling'] for s in mine):.2f}", "|")
    if given.json:
        given.json.write_text(json.dumps({"threads": torch.get_num_threads(), "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
