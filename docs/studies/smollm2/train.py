"""The planned runs, in an environment with what docs/examples/trl_reasoning.py needs:

    python docs/studies/smollm2/train.py --worker 0/2 & python docs/studies/smollm2/train.py --worker 1/2

A worker takes every second seed; what is done is not done again, what was broken off goes on from its checkpoint.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
RESULTS = HERE / "results"
LOSSES = "grpo", "fiberpo_domain", "fiberpo_domain_inward"
SEEDS = 1, 2, 3, 4, 5, 6
STEPS, RATE, QUESTIONS = 32, 8e-5, 24


def python(script: str, *arguments: object) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, EXAMPLES / script, *map(str, arguments)], env=env, check=True)


def train(loss: str, seed: int, runs: Path) -> Path:
    """One run to its end; its last checkpoint. Its log is in the results even if it is broken off."""
    out = runs / f"{seed}" / loss
    for checkpoint in out.glob("checkpoint-*"):
        if not (checkpoint / "trainer_state.json").exists():  # which is written last
            shutil.rmtree(checkpoint)
    last = out / f"checkpoint-{STEPS}"
    if last.exists():
        return last
    begun = ["--resume"] if list(out.glob("checkpoint-*")) else []
    given = ["--loss", loss, "--seed", seed, "--steps", STEPS, "--learning-rate", RATE, "--out", out]
    try:
        python("trl_reasoning.py", *given, *begun)
    finally:
        if (out / "log.jsonl").exists():
            copy_log(out / "log.jsonl", RESULTS / f"{loss}_{seed}.jsonl")
    return last


def copy_log(log: Path, to: Path) -> None:
    """What was logged of optimizer steps, without a line that was cut, and without the summary at the end."""
    steps = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    part = to.with_suffix(".part")
    part.write_text("".join(line for line in steps if "loss" in json.loads(line)))
    part.replace(to)


def share(text: str) -> tuple[int, int]:
    """`K/N`: of N workers, numbered from 0, this is K."""
    try:
        me, workers = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not K/N, like 0/2") from None
    if not 0 <= me < workers:
        raise argparse.ArgumentTypeError(
            f"'{text}': workers are numbered from 0, so the last of {workers} is {workers - 1}"
        )
    return me, workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", type=share, default=(0, 1), help="K/N: of N workers, numbered from 0, this is K")
    parser.add_argument("--runs", type=Path, default=HERE.parents[2] / "build/smollm2", help="checkpoints, 1 GB a run")
    given = parser.parse_args()
    me, workers = given.worker
    RESULTS.mkdir(exist_ok=True)
    for seed in SEEDS[me::workers]:
        held_out = RESULTS / f"held_out_{seed}.json"
        if held_out.exists():
            continue
        last = [train(loss, seed, given.runs) for loss in LOSSES]
        asked = ["--steps", STEPS, "--seed", seed, "--questions", QUESTIONS, "--json", held_out]
        python("held_out.py", *last, *asked)
        shutil.rmtree(given.runs / f"{seed}")


if __name__ == "__main__":
    main()
