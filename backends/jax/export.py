"""The files that `fibration compile -o` writes for the jax backend."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.backends.standalone import Export
from fibration.compiler.schedule import Schedule
from fibration.errors import BackendError


def export(
    name: str, header: str, source: str, schedules: Mapping[str, Schedule], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The generated module, which imports only jax. Raises BackendError for an `arch`."""
    if arch:
        raise BackendError("the jax backend compiles for no architecture", remedy="leave --arch out")
    return Export({f"{name}_jax.py": source})
