"""Time and memory of a head and its loss, forward and backward: `fibration.head` beside full logits, torch and TRL.

python docs/benchmarks/scripts/head.py [--rounds 5] [--threads 1] [--device cuda] [--json FILE.json]

All candidates take turns in one process. The peak memory of each is above what its inputs take; on a CPU
it is that of a process of its own. On a GPU the batch is larger and bfloat16. TRL's candidate needs an environment
with TRL 1.16.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import fibration
from fibration.bench.measure import describe_machine
from fibration.files import write_file

VOCABULARIES = (49_152, 152_064)
CLIPPED = (0.5, 0.22)
FULL, HEAD, TORCH, TORCH_CHUNKS, TRL = (
    "full logits", "fibration.head", "linear_cross_entropy", "linear_cross_entropy, in chunks", "TRL",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A batch of rows of equal length, hidden states of `width` numbers.

    `chunk`: in tokens; None is the default. `far`: how far gradients may be from those of full logits.
    """

    device: str
    dtype: torch.dtype
    rows: int
    length: int
    width: int
    chunk: int | None
    far: float


SETTINGS = {
    "cpu": Setting("cpu", torch.float32, 4, 128, 576, 128, 1e-4),
    "cuda": Setting("cuda", torch.bfloat16, 16, 512, 3584, None, 0.05),  # full logits are rounded to bfloat16
}


class Case:
    """A batch of GRPO with a head, of which a share of the tokens is clipped."""

    def __init__(self, setting: Setting, vocabulary: int, clipped: float) -> None:
        self.setting, shape = setting, (setting.rows, setting.length)
        place = {"device": setting.device, "generator": torch.Generator(setting.device).manual_seed(0)}
        self.op = fibration.compile(fibration.load("grpo"))
        narrow = {"dtype": setting.dtype, **place}
        self.hidden = torch.randn(*shape, setting.width, **narrow).requires_grad_()
        self.weight = torch.randn(vocabulary, setting.width, **narrow).mul_(0.02).requires_grad_()
        self.targets = torch.randint(vocabulary, shape, **place)
        self.advantages = torch.tensor([1.0, -1.0], device=setting.device).repeat(setting.rows // 2)
        self.index = self.op.index(mask=torch.ones(shape, dtype=torch.bool), device=setting.device)
        with torch.no_grad():
            none = torch.full(shape, -1.0, device=setting.device)
            given = (self.hidden, self.weight, self.targets, none, self.advantages, self.index)
            log_probs = fibration.head.loss(self.op, *given, chunk=16, metrics=False).log_probs
        outside = torch.rand(shape, **place) < clipped
        self.old = log_probs - 0.5 * outside * self.advantages.sign()[:, None]

    def loss(self, log_probs: Tensor) -> Tensor:
        return self.op.loss(log_probs, self.old, self.advantages, self.index, metrics=False).loss

    def full(self) -> Tensor:
        logits = (self.hidden @ self.weight.T).float()
        return self.loss(logits.log_softmax(-1).gather(-1, self.targets[..., None]).squeeze(-1))

    def head(self) -> Tensor:
        given = (self.hidden, self.weight, self.targets, self.old, self.advantages, self.index)
        return fibration.head.loss(self.op, *given, chunk=self.setting.chunk, metrics=False).loss

    def torch_loss(self, in_chunks: bool = False) -> Tensor:
        options = None
        if in_chunks:
            options = torch.nn.LinearCrossEntropyOptions(
                batch_chunk_size=self.setting.chunk or 1024, chunking_method=None
            )
        flat = self.hidden.flatten(0, 1), self.weight, self.targets.flatten()
        lost = torch.nn.functional.linear_cross_entropy(*flat, reduction="none", options=options)
        return self.loss(-lost.view(self.targets.shape).float())

    def trl(self) -> Tensor:
        from trl.trainer import utils

        flat = self.hidden.flatten(0, 1), self.weight, None, self.targets.flatten()
        found = utils._ChunkedLogProbFunction.apply(*flat, 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ())
        return self.loss(found[0].view(self.targets.shape))

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
            wait(case.setting)
            start = time.perf_counter()
            found = case.run(loss)
            wait(case.setting)
            taken[name].append(time.perf_counter() - start)
            for got, expected in zip(found, wanted, strict=True):
                far = float((got - expected).abs().max() / expected.abs().max())
                assert far < case.setting.far, f"{name} has other gradients: {far:g} of the largest"
    return taken


def wait(setting: Setting) -> None:
    if setting.device == "cuda":
        torch.cuda.synchronize()


def resident(word: str) -> int:
    """Bytes: VmRSS, now; VmHWM, at most since the process began."""
    (kib,) = re.findall(rf"{word}:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(kib) * 1024


def peak(setting: Setting, vocabulary: int, clipped: float, name: str) -> int:
    """The bytes above the inputs' that one candidate needs, gradients included. On a CPU a process measures once."""
    case = Case(setting, vocabulary, clipped)
    loss = case.candidates()[name]
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.run(loss)
        return torch.cuda.max_memory_allocated() - before
    before = resident("VmRSS")
    case.run(loss)
    return resident("VmHWM") - before


def peak_apart(vocabulary: int, clipped: float, name: str, threads: int) -> int:
    """`peak` on a CPU, in a process of its own."""
    asked = [sys.executable, __file__, "--threads", str(threads), "--peak", str(vocabulary), str(clipped), name]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return int(said.rpartition("peak ")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=SETTINGS, default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    setting = SETTINGS[given.device]
    if given.peak:
        vocabulary, clipped, name = given.peak
        print("peak", peak(setting, int(vocabulary), float(clipped), name))
        return
    results = {"machine": describe_machine(torch.device(given.device)), "tokens": setting.rows * setting.length,
               "width": setting.width, "chunk": setting.chunk, "dtype": str(setting.dtype).removeprefix("torch."),
               "cases": []}  # fmt: skip
    print(f"{'V':>7} {'clipped':>8}  {'':32} {'/ full':>7} {'s':>8} {'peak MiB':>9}")
    for vocabulary in VOCABULARIES:
        for clipped in CLIPPED:
            taken = seconds(Case(setting, vocabulary, clipped), given.rounds)
            for name, times in taken.items():
                if given.device == "cpu":
                    most = peak_apart(vocabulary, clipped, name, given.threads)
                else:
                    most = peak(setting, vocabulary, clipped, name)
                ratio = median(t / f for t, f in zip(times, taken[FULL], strict=True))
                print(
                    f"{vocabulary:7} {clipped:8.0%}  {name:32} {ratio:7.2f} {median(times):8.4f} {most / 2**20:9.0f}",
                    flush=True,
                )
                results["cases"].append({"vocabulary": vocabulary, "clipped": clipped, "candidate": name,
                                         "seconds": times, "peak_bytes": most})  # fmt: skip
    if given.json:
        write_file(given.json, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
