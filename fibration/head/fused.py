"""Log-probs of the targets and the gradient of the logits on a GPU: the logits are read once in each direction.

`logits.py` says what is computed, in one operation of torch after the other, each of which reads and writes all logits.
These kernels serve float32 logits of a head without bias and softcap, as nearly all models have.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

from fibration.head.logits import FLOOR, Shape, Statistics, blocks

BLOCK = 2048  # logits that a program has in registers
WARPS = 8


def fits(z: Tensor, shape: Shape) -> bool:
    """Whether these kernels take the place of `logits.measure` and `logits.differentiate`."""
    return shape.bias is None and shape.softcap is None and z.dtype == torch.float32 and runs_on(z.device)


@cache
def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def measure(z: Tensor, targets: Tensor, shape: Shape, found: Statistics) -> None:
    """As `logits.measure`, but leaves the products `z` as they are."""
    from fibration.head.kernels import measure_rows

    chosen, weighted = torch.empty_like(found.total), torch.empty_like(found.total)
    with torch.cuda.device_of(z):
        measure_rows[(len(z),)](
            z, targets, found.largest, found.total, chosen, weighted, z.shape[1], shape.temperature, FLOOR,
            BLOCK=BLOCK, WITH_ENTROPY=found.entropy is not None, num_warps=WARPS,
        )  # fmt: skip
    log_total = found.total.log()
    torch.sub(chosen, log_total, out=found.log_probs)
    if found.entropy is not None:
        torch.sub(log_total, weighted.div_(found.total), out=found.entropy)


def differentiate(
    z: Tensor,
    which: Tensor | None,
    targets: Tensor,
    coefficients: Tensor,
    bonus: float,
    shape: Shape,
    known: Statistics,
    into: Tensor,
) -> Tensor:
    """As `logits.differentiate`, of products `z`: `into[:n]`, `[n, V]`."""
    from fibration.head.kernels import differentiate_rows

    n, columns = len(targets), z.shape[1]
    aliased = which is not None and into.data_ptr() == z.data_ptr()
    for rows in blocks(n, columns, z.device) if aliased else (slice(0, n),):
        here, c, stats = which if which is None else which[rows], coefficients[rows], known.of(rows)
        source = z
        if aliased:  # programs write rows that others still have to read
            assert here is not None
            source, here = z.index_select(0, here), None
        offsets, made = stats.offsets(c, bonus), into[rows]
        with torch.cuda.device_of(z):
            differentiate_rows[(len(made), -(-columns // BLOCK))](
                source, source if here is None else here, targets[rows], c, offsets, stats.largest, stats.total, made,
                columns, bonus, shape.temperature, FLOOR,
                BLOCK=BLOCK, CHOSEN=here is not None, WITH_BONUS=bool(bonus), num_warps=WARPS,
            )  # fmt: skip
    return into[:n]
