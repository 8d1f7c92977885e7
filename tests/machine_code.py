"""Counts instructions in the machine code of NVIDIA kernels, read by the disassembler that the package triton carries.

Only innermost loops are counted as loops. Subroutines, such as the slow path of a division, are left out.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import triton

DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
LOOP = 4  # a backward branch over fewer instructions is the endless loop that pads a kernel's end


@dataclass(frozen=True)
class Code:
    """The instructions of one loop, or of a kernel's code outside loops: how often each opcode occurs."""

    opcodes: Counter[str]

    def count(self, *names: str) -> int:
        """The number of instructions whose opcode begins with one of `names`; of all instructions without names."""
        return sum(n for opcode, n in self.opcodes.items() if opcode.startswith(names or ("",)))

    @property
    def fills(self) -> bool:
        """Whether it stores and neither loads nor computes, as the loop that fills the places before the first row."""
        return self.count("ST") > 0 and self.count("LD", "FADD", "FMUL", "FFMA") == 0


def loops_and_rest(binary: bytes, folder: Path) -> tuple[list[Code], Code]:
    """The innermost loops of a kernel in order, and its other instructions."""
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    command = [str(DISASSEMBLER), "-c", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in map(str.strip, lines):
        if label := re.match(r"(\.L_x_\d+|\$[\w$]+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*(.+?)\s*;", line):
            code += [instruction[1]] if instruction[1] != "NOP" else []  # only fills the last line of the cache
    code = code[: min([n for label, n in labels.items() if label.startswith("$")], default=None)]
    spans = list(_innermost(code, labels))
    inside = {i for start, stop in spans for i in range(start, stop)}
    return (
        [_counted(code[start:stop]) for start, stop in spans],
        _counted([text for i, text in enumerate(code) if i not in inside]),
    )


def _innermost(code: list[str], labels: dict[str, int]) -> Iterator[tuple[int, int]]:
    found = []
    for number, text in enumerate(code):
        target = re.match(r"BRA.* `\((\.L_x_\d+)\)", text)
        if target and labels[target[1]] + LOOP < number + 1 <= len(code):
            found.append((labels[target[1]], number + 1))
    yield from (s for s in found if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in found))


def _counted(code: list[str]) -> Code:
    return Code(Counter(text.split(" ")[0] for text in code))
