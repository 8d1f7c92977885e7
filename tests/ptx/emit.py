"""Kernels of a generated module as PTX, specialised as the just-in-time compiler would for the arguments of a launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from fibration.backends.triton.aot import CLEARED

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}


class Emitter:
    """A process that compiles, started when there is something to compile. `folder` may be shared with others'."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.made: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.communicate()

    def ptx(
        self, path: str, kernel: Any, arguments: Sequence[object], constants: Mapping[str, object], warps: int
    ) -> tuple[str, int]:
        """The PTX of a kernel in the file `path`, and how many bytes of shared memory it takes."""
        names = kernel.arg_names
        given = {**dict(zip(names, arguments, strict=False)), **constants}
        fixed = {n: v for n, v in given.items() if n in constants or v is None}
        types = {n: "constexpr" if n in fixed else _type(given[n]) for n in names}
        request = json.dumps(
            {
                "path": path,
                "kernel": kernel.__name__,
                "signature": types,
                "constants": fixed,
                "aligned": [n for n, v in given.items() if isinstance(v, torch.Tensor) and v.data_ptr() % 16 == 0],
                "options": {"num_warps": warps},
            }
        )
        if request not in self.made:
            self.made[request] = self._ask(request)
        return self.made[request]

    def _ask(self, request: str) -> tuple[str, int]:
        if self.process is None:
            environment = {k: v for k, v in os.environ.items() if k not in CLEARED}
            environment |= {"TRITON_CACHE_DIR": str(self.folder), "TRITON_DISABLE_LINE_INFO": "1"}
            command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdin and self.process.stdout
        print(request, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "the compiler died"}')
        if "error" in answer:
            raise RuntimeError(f"{request} does not compile: {answer['error']}")
        return answer["ptx"], answer["shared"]


def _type(value: object) -> str:
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
