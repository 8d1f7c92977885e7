"""All that differs between devices.

On the CPU a call may read values. On a GPU, reading a value waits for all queued work, and a CUDA graph cannot record
it. There the code reads no values, and results that are not finite are NaN.
"""

from __future__ import annotations

import torch

from fibration.errors import HierarchyIndexError


def can_sync(device: torch.device) -> bool:
    """Whether a call may read values on this device, to raise errors that depend on them."""
    return device.type == "cpu"


def is_recording() -> bool:
    """Whether a CUDA graph is being recorded, which allows no copy from the host."""
    # `is_available` would count the devices in every call
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def usable(device: torch.device | str) -> torch.device:
    """The device of an index; "cuda" means the current one, such as "cuda:0". Raises HierarchyIndexError if it cannot
    be used.
    """
    try:
        found = device if device == torch.device("cpu") else torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise HierarchyIndexError(f"device={str(device)!r} cannot be used", found=first) from None
    if found.type == "meta":
        raise HierarchyIndexError(
            "an index cannot be on the device 'meta'",
            required="a device whose tensors have values, which an index consists of",
            remedy="build it on the device of the batch: op.index(..., device=...)",
        )
    return found
