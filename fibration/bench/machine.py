"""Describes the machine: processor, cores, caches, device, versions."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The facts that a reader needs to judge the numbers. None identifies the machine."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "caches": _caches(),
        "memory_bytes": int(_from_file("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) * 1024,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor",
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpp_compiler": _compiler(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
    }


def processor() -> str:
    return _from_file("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _from_file(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def _caches() -> str:
    """The caches as the system reports them: `L1 32K, L2 1024K, L3 32768K`."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (folder / "type").read_text().strip() != "Instruction":
                found[(folder / "level").read_text().strip()] = (folder / "size").read_text().strip()
        except OSError:
            continue
    return ", ".join(f"L{level} {size}" for level, size in sorted(found.items())) or "unknown"


def _compiler() -> str:
    command = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++") or shutil.which("clang++")
    if command is None:
        return "none"
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return "one that does not start"
    return (said.splitlines() or ["unknown"])[0]
