"""Runs verl on CPUs, by its own registries. Import this before anything of `verl.workers`.

verl has platforms for accelerators alone. Its engine `fsdp2` runs under gloo unchanged. With `fsdp`, torch refuses to
broadcast parameters on CPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_base import PlatformBase


class Cpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "none"
    device_module = SimpleNamespace(
        is_available=lambda: False,
        memory_allocated=lambda: 0,
        memory_reserved=lambda: 0,
        max_memory_allocated=lambda: 0,
        max_memory_reserved=lambda: 0,
        mem_get_info=lambda: (0, 0),
        empty_cache=lambda: None,
        synchronize=lambda: None,
        get_device_name=lambda: "cpu",
    )

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def _nothing(self, *_: Any) -> Any:
        return None

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    get_device_capability = profiler_start = profiler_stop = cudart = _nothing


set_platform(Cpu())
with warnings.catch_warnings():  # of engines that need what is not installed
    warnings.simplefilter("ignore")
    from verl.utils.torch_dtypes import PrecisionType
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(FSDPEngineWithLMHead)


@contextmanager
def of(dtype: torch.dtype) -> Iterator[None]:
    """verl knows no float64: with it, what it calls fp32 is that, and gradients can be compared to the last bits."""
    own = PrecisionType.to_dtype
    PrecisionType.to_dtype = staticmethod(lambda _: dtype)
    try:
        yield
    finally:
        PrecisionType.to_dtype = own
