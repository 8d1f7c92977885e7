"""Times an optimizer step of verl with a hierarchy for its loss, beside verl's own: `overhead.py --rounds 7`

Workers of one process, on CPUs, take turns in an order that changes from round to round. Each takes two steps on the
same rows with learning rate 0. The first is fresh: the worker has just computed its old log-probs, which is not timed.
The second counts as off policy. `--equal 0.5` gives each second prompt group the advantage 0. verl's own loss is the
same in both steps, so its difference shows the noise of the machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import recorded_worker  # before anything of verl.workers
import rollouts
import torch
import torch.distributed as dist
from rollouts import Row
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from fibration.trainers.micro_batches import MicroBatches
from fibration.trainers.verl.worker import FibrationTrainingWorker

KINDS = ("fresh", "off policy")
SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
PROMPT, RESPONSE, GROUPS, SAMPLES = 32, 64, 8, 4
SETTING = {"actor.optim.lr": 0.0, "actor.ppo_micro_batch_size_per_gpu": 8, "model.use_remove_padding": False}
VERL = "verl"  # its own loss, in its own worker
OWN = "own, s per step"
ADAPTER: dict[type, tuple[str, ...]] = {
    FibrationTrainingWorker: ("_complete", "_micro_batches", "_window", "_with_advantages", "_skips_dead_rows"),
    MicroBatches: ("coefficients", "measure", "live"),
}


def rows(equal: float) -> list[Row]:
    """`equal`: the share of prompt groups without an advantage, spread evenly."""
    draw = random.Random(0)

    def text(length: int) -> list[int]:
        return [draw.randrange(2, rollouts.WORDS) for _ in range(length)]

    found = []
    for group in range(GROUPS):
        prompt = text(PROMPT)
        dead = int((group + 1) * equal) > int(group * equal)
        for sample in range(SAMPLES):
            n, advantage = draw.randint(RESPONSE // 4, RESPONSE), draw.uniform(-1, 1) * (not dead)
            values = {"advantages": [advantage] * n, "old": [0.0] * n, "ref": [0.0] * n, "weights": [1.0] * n}
            row = Row(
                len(found),
                f"prompt {group}",
                sample,
                f"domain {group // 2}",
                prompt,
                text(n),
                [1] * n,
                shift=[0.0] * n,
                **values,
            )
            found.append(row)
    return found


def made(model: Path, loss: str) -> ActorRolloutRefWorker:
    fibration = {"actor.policy_loss.hierarchy": loss, "actor.policy_loss.reuse_old_log_probs": True}
    fibration["actor.policy_loss.backend"] = "auto"
    plain: dict[str, Any] = {"_target_": "verl.workers.config.PolicyLossConfig", "loss_mode": "vanilla"}
    plain |= dict.fromkeys(("hierarchy", "backend"))
    own = {f"actor.policy_loss.{key}": value for key, value in plain.items()} | {
        "actor.loss_agg_mode": "seq-mean-token-mean"
    }
    worker = ActorRolloutRefWorker(
        config=recorded_worker.options(model, SETTING | (own if loss == VERL else fibration)), role="actor"
    )
    if loss == VERL:
        with patch.object(ActorRolloutRefWorker, "actor_worker_cls", TrainingWorker):
            worker.init_model()
    else:
        worker.init_model()
    return worker


def times(worker: ActorRolloutRefWorker, given: list[Row]) -> dict[str, Any]:
    """Seconds of both steps, and how many further forward passes each took."""
    data = rollouts.nested(given, torch.float32)
    tu.assign_non_tensor(data, temperature=1.0, compute_loss=False, calculate_entropy=False)
    computed = no_padding_2_padding(tu.get(worker.compute_log_prob(data), "log_probs"), data).tolist()
    given = [replace(row, old=old[: len(row.mask)]) for row, old in zip(given, computed, strict=True)]
    found: dict[str, Any] = {}
    for kind in KINDS:
        data = rollouts.nested(given, torch.float32)
        tu.assign_non_tensor(
            data,
            temperature=1.0,
            global_batch_size=len(given),
            mini_batch_size=len(given),
            epochs=1,
            seed=1,
            compute_loss=True,
            calculate_entropy=False,
            dataloader_kwargs={"shuffle": False},
        )
        start = time.perf_counter()
        output = worker.update_actor(data)
        found[kind] = time.perf_counter() - start
        metrics = tu.get(output, "metrics")
        found[f"{kind}: extra forwards"] = sum(metrics.get("fibration/extra_forwards", []))
        found[f"{kind}: rows trained"] = median(metrics.get("fibration/rows_trained", [1.0]))
    return found


class OwnTime:
    """The CPU time of this thread in functions of the adapter; those that they call count once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0
        for owner, names in ADAPTER.items():
            for name in names:
                setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*given: Any, **named: Any) -> Any:
            start = time.thread_time()
            self._depth += 1
            try:
                return plain(*given, **named)
            finally:
                self._depth -= 1
                self.seconds += (time.thread_time() - start) * (not self._depth)

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", nargs="+", default=[VERL, "grpo", "fiberpo_domain"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--equal", type=float, default=0.0, help="share of prompt groups with equal rewards")
    parser.add_argument("--own", action="store_true", help="also the CPU time of the adapter's own functions")
    parser.add_argument("--json", type=Path, help="where all samples go")
    said = parser.parse_args()
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29513",
    }
    dist.init_process_group("gloo")
    given, samples = rows(said.equal), []
    own = OwnTime() if said.own else None
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        rollouts.save(model)
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=8192, max_position_embeddings=256, **SIZES)).save_pretrained(model)
        workers = {loss: made(model, loss) for loss in said.losses}
        for worker in workers.values():
            times(worker, given)  # allocations and caches
        for k in range(said.rounds):
            for loss in said.losses if k % 2 else reversed(said.losses):
                before = own.seconds if own else 0.0
                samples.append({"round": k, "loss": loss, **times(workers[loss], given)})
                if own:
                    samples[-1][OWN] = (own.seconds - before) / len(KINDS)
    dist.destroy_process_group()
    beside = said.losses[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {said.rounds} rounds\n")
    print(f"| | {' | '.join(f'{kind}, s | / {beside} | extra forwards | rows trained' for kind in KINDS)} |")
    print("|---" * (1 + 4 * len(KINDS)) + "|")
    by_loss = {loss: [s for s in samples if s["loss"] == loss] for loss in said.losses}
    for loss, mine in by_loss.items():
        cells = []
        for kind in KINDS:
            ratio = median(s[kind] / b[kind] for s, b in zip(mine, by_loss[beside], strict=True))
            cells += [
                f"{median(s[kind] for s in mine):.2f}",
                f"{ratio:.3f}",
                f"{mine[0][f'{kind}: extra forwards']:.0f}",
                f"{mine[0][f'{kind}: rows trained']:.2f}",
            ]
        print("|", loss, "|", " | ".join(cells), "|")
    for loss, mine in by_loss.items() if own else ():
        print(f"{loss}: the adapter's own functions, ms of CPU per step: {1e3 * median(s[OWN] for s in mine):.0f}")
    if said.json:
        said.json.write_text(json.dumps({"threads": torch.get_num_threads(), "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
