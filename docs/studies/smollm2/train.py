"""The runs of [plan.md](plan.md), in an environment with what docs/examples/trl_reasoning.py needs:

    python docs/studies/smollm2/run.py --worker 0/2 & python docs/studies/smollm2/run.py --worker 1/2

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


def python(script: str, *arguments) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, EXAMPLES / script, *map(str, arguments)], env=env, check=True)


def train(loss: str, seed: int, runs: Path) -> Path:
    """One run to its end; the last checkpoint. Its log goes to the results while it runs."""
    out = runs / f"{seed}" / loss
    last = out / f"checkpoint-{STEPS}"
    if not last.exists():
        begun = ["--resume"] if list(out.glob("checkpoint-*")) else []
        given = ["--loss", loss, "--seed", seed, "--steps", STEPS, "--learning-rate", RATE, "--out", out]
        python("trl_reasoning.py", *given, *begun)
    log = RESULTS / f"{loss}_{seed}.jsonl"
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    written = log.with_suffix(".part")
    written.write_text("".join(json.dumps(line) + "\n" for line in lines if "loss" in line))
    written.replace(log)
    return last


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", default="0/1", help="K/N: of N workers, numbered from 0, this is K")
    parser.add_argument("--runs", type=Path, default=HERE.parents[2] / "build/smollm2", help="checkpoints, 1 GB a run")
    given = parser.parse_args()
    me, workers = map(int, given.worker.split("/"))
    if not 0 <= me < workers:
        parser.error(f"--worker {given.worker}: workers are numbered from 0, so the last of {workers} is {workers - 1}")
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
