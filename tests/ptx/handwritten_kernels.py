"""Small kernels written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptx.launch import launch
from ptx.memory import Memory
from ptx.parse import parse

KERNEL = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_1,
	.param .u64 .ptr .global .align 1 kernel_param_2
)
.reqntid {threads}
{{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	ld.param.b64 	%rd1, [kernel_param_0];
	mov.u32 	%r1, %tid.x;                    // a comment; of two parts
	mov.u32 	%r2, %ctaid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;               // a place for each thread
	setp.eq.b32 	%p1, %r1, 0;
{body}
	ret;
}}
"""
PLACE, SIZE = 256, 2048  # of memory, in bytes
WAIT = "bar.sync \t0;"


def run(
    body: str,
    *,
    threads: int = 64,
    blocks: int = 1,
    seed: int = 0,
    shared: int = 1024,
    given: Sequence[int] | None = None,
    more: Sequence[int] = (),
    functions: str = "",
) -> np.ndarray:
    """What a kernel leaves in memory, as uint32: at first `given`, else nothing that anybody has written."""
    memory = Memory(2 * PLACE + SIZE, "global")
    memory.allocated[PLACE : PLACE + SIZE] = True
    if given is not None:
        content = np.asarray(given, np.uint32).view(np.uint8)
        memory.bytes[PLACE : PLACE + len(content)] = content
        memory.written[PLACE : PLACE + len(content)] = True
    kernel = parse(KERNEL.format(body=body, threads=threads) + functions)
    launch(kernel, blocks, [PLACE, *more], memory, shared, seed)
    return memory.bytes[PLACE : PLACE + SIZE].view(np.uint32)
