"""What differs between devices, all of it.

On the CPU a value can be looked at. Elsewhere looking at one waits for all that was asked for before it, and cannot be
recorded in a CUDA graph: nothing is looked at there, and results say themselves what is wrong with them, as NaN.
"""

from __future__ import annotations

import torch


def may_look(device: torch.device) -> bool:
    """Whether a call may read values of this device back, to refuse wrong ones in words."""
    return device.type == "cpu"


def is_recording() -> bool:
    """Whether a CUDA graph is being recorded, into which nothing can be copied from the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
