"""What differs between devices, all of it.

On the CPU a value can be looked at. Elsewhere looking at one waits for all that was asked for before it, and cannot be
recorded in a CUDA graph: nothing is looked at there, and results say themselves what is wrong with them, as NaN.
"""

from __future__ import annotations

import torch

from fibration.errors import HierarchyIndexError


def may_look(device: torch.device) -> bool:
    """Whether a call may read values of this device back, to refuse wrong ones in words."""
    return device.type == "cpu"


def is_recording() -> bool:
    """Whether a CUDA graph is being recorded, into which nothing can be copied from the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def usable(device: torch.device | str) -> torch.device:
    """A device on which an index may lie; "cuda" means the current one: "cuda:0"."""
    try:
        found = torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise HierarchyIndexError(f"device={str(device)!r} cannot be used", found=first) from None
    if found.type == "meta":
        raise HierarchyIndexError(
            "an index cannot lie on the device 'meta'",
            required="a device that has numbers: an index is made of them",
            remedy="build it where the batch is, op.index(..., device=...)",
        )
    return found
