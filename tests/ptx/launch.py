"""Runs the blocks of a launch in random order, some at a time, interleaved wherever one may wait for another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ptx.block import Block
from ptx.fault import Fault
from ptx.memory import Memory
from ptx.opcodes import Lanes
from ptx.parse import Kernel

RESIDENT = 6  # blocks that are on the chip at once


def launch(
    kernel: Kernel, blocks: int, arguments: Sequence[int], memory: Memory, shared: int, seed: int
) -> Counter[str]:
    """Run a grid of blocks; how often each opcode was executed. A parameter that lacks an argument is a null pointer."""
    given = [*arguments, *[0] * (len(kernel.parameters) - len(arguments))]
    if len(given) != len(kernel.parameters):
        raise Fault(f"{kernel.name} has {len(kernel.parameters)} parameters, and is given {len(given)}")
    held: dict[str, Lanes] = {
        name: np.array([number & (2 ** int(kind[1:]) - 1)], f"u{int(kind[1:]) // 8}")
        for (name, kind), number in zip(kernel.parameters.items(), given, strict=True)
    }
    memory.forget()
    choose = random.Random(seed)
    waiting = [Block(kernel, number, blocks, held, memory, shared, seed) for number in range(blocks)]
    choose.shuffle(waiting)
    executed: Counter[str] = Counter()
    resident = [(block, block.run()) for block in waiting[:RESIDENT]]
    del waiting[:RESIDENT]
    with np.errstate(all="ignore"):  # both sides of a choice are computed
        while resident:
            one = choose.choice(resident)
            try:
                next(one[1])
            except StopIteration:
                resident.remove(one)
                executed += one[0].executed
                if waiting:
                    block = waiting.pop()
                    resident.append((block, block.run()))
    return executed
