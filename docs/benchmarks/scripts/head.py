"""Time and memory of a head and its loss, forward and backward: `fibration.head` beside full logits, torch and TRL.

python docs/benchmarks/scripts/head.py [--rounds 5] [--threads 1] [--json FILE.json]

All candidates take turns in one process. The peak memory of each is that of a process of its own, above what its inputs
take. TRL's candidate needs an environment with TRL 1.16.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import fibration
from fibration.bench.machine import describe_machine
from fibration.files import write_file

WIDTH, ROWS, LENGTH, CHUNK = 576, 4, 128, 128
VOCABULARIES = (49_152, 152_064)
CLIPPED = (0.5, 0.22)
FULL, HEAD, TORCH, TORCH_CHUNKS, TRL = (
    "full logits", "fibration.head", "linear_cross_entropy", "linear_cross_entropy, in chunks", "TRL",
)  # fmt: skip


class Case:
    """A batch of GRPO with a head, of which a share of the tokens is clipped."""

    def __init__(self, vocabulary: int, clipped: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.op = fibration.compile(fibration.load("grpo"))
        self.hidden = torch.randn(ROWS, LENGTH, WIDTH, generator=generator).requires_grad_()
        self.weight = torch.randn(vocabulary, WIDTH, generator=generator).mul_(0.02).requires_grad_()
        self.targets = torch.randint(vocabulary, (ROWS, LENGTH), generator=generator)
        self.advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
        self.index = self.op.index(mask=torch.ones(ROWS, LENGTH, dtype=torch.bool))
        with torch.no_grad():
            none = torch.full((ROWS, LENGTH), -1.0)
            given = (self.hidden, self.weight, self.targets, none, self.advantages, self.index)
            log_probs = fibration.head.loss(self.op, *given, chunk=16, metrics=False).log_probs
        outside = torch.rand(ROWS, LENGTH, generator=generator) < clipped
        self.old = log_probs - 0.5 * outside * self.advantages.sign()[:, None]

    def loss(self, log_probs: Tensor) -> Tensor:
        return self.op.loss(log_probs, self.old, self.advantages, self.index, metrics=False).loss

    def full(self) -> Tensor:
        logits = self.hidden @ self.weight.T
        return self.loss(logits.log_softmax(-1).gather(-1, self.targets[..., None]).squeeze(-1))

    def head(self) -> Tensor:
        given = (self.hidden, self.weight, self.targets, self.old, self.advantages, self.index)
        return fibration.head.loss(self.op, *given, chunk=CHUNK, metrics=False).loss

    def torch_loss(self, in_chunks: bool = False) -> Tensor:
        options = None
        if in_chunks:
            options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)
        flat = self.hidden.flatten(0, 1), self.weight, self.targets.flatten()
        return self.loss(
            -torch.nn.functional.linear_cross_entropy(*flat, reduction="none", options=options).view(ROWS, LENGTH)
        )

    def trl(self) -> Tensor:
        from trl.trainer import utils

        flat = self.hidden.flatten(0, 1), self.weight, None, self.targets.flatten()
        found = utils._ChunkedLogProbFunction.apply(*flat, 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ())
        return self.loss(found[0].view(ROWS, LENGTH))

    def candidates(self) -> dict[str, Callable[[], Tensor]]:
        found: dict[str, Callable[[], Tensor]] = {FULL: self.full, HEAD: self.head}
        if hasattr(torch.nn.functional, "linear_cross_entropy"):
            found |= {TORCH: self.torch_loss, TORCH_CHUNKS: lambda: self.torch_loss(in_chunks=True)}
        try:
            import trl.trainer.utils  # noqa: F401  # before memory is measured
        except ImportError:
            return found
        return found | {TRL: self.trl}

    def run(self, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        self.hidden.grad = self.weight.grad = None
        loss().backward()
        return self.hidden.grad, self.weight.grad


def seconds(case: Case, rounds: int) -> dict[str, list[float]]:
    """Of every candidate, in turns. All have the same gradients."""
    candidates = case.candidates()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    wanted = case.run(candidates[FULL])
    for _ in range(rounds):
        for name, loss in candidates.items():
            start = time.perf_counter()
            found = case.run(loss)
            taken[name].append(time.perf_counter() - start)
            for got, expected in zip(found, wanted, strict=True):
                far = float((got - expected).abs().max() / expected.abs().max())
                assert far < 1e-4, f"{name} has other gradients: {far:g} of the largest"
    return taken


def resident(word: str) -> int:
    """Bytes: VmRSS, now; VmHWM, at most since the process began."""
    (kib,) = re.findall(rf"{word}:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(kib) * 1024


def peak(vocabulary: int, clipped: float, name: str) -> int:
    """The bytes above the inputs' that one candidate needs, gradients included. In a process that measures once."""
    case = Case(vocabulary, clipped)
    loss = case.candidates()[name]
    before = resident("VmRSS")
    case.run(loss)
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        vocabulary, clipped, name = given.peak
        print("peak", peak(int(vocabulary), float(clipped), name))
        return
    results = {"machine": describe_machine(torch.device("cpu")), "tokens": ROWS * LENGTH, "width": WIDTH,
               "chunk": CHUNK, "dtype": "float32", "cases": []}  # fmt: skip
    print(f"{'V':>7} {'clipped':>8}  {'':32} {'/ full':>7} {'s':>7} {'peak MiB':>9}")
    for vocabulary in VOCABULARIES:
        for clipped in CLIPPED:
            taken = seconds(Case(vocabulary, clipped), given.rounds)
            for name, times in taken.items():
                asked = [sys.executable, __file__, "--threads", str(given.threads), "--peak", str(vocabulary)]
                said = subprocess.run([*asked, str(clipped), name], capture_output=True, text=True, check=True).stdout
                most = int(said.rpartition("peak ")[2])
                ratio = median(t / f for t, f in zip(times, taken[FULL], strict=True))
                print(
                    f"{vocabulary:7} {clipped:8.0%}  {name:32} {ratio:7.2f} {median(times):7.2f} {most / 2**20:9.0f}",
                    flush=True,
                )
                results["cases"].append({"vocabulary": vocabulary, "clipped": clipped, "candidate": name,
                                         "seconds": times, "peak_bytes": most})  # fmt: skip
    if given.json:
        write_file(given.json, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
