"""What `fibration compile -o` writes for this backend."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.backends.standalone import Export
from fibration.compiler.schedule import Schedule
from fibration.errors import BackendError


def export(
    name: str, header: str, source: str, schedules: Mapping[str, Schedule], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The module as it is: it imports torch alone."""
    if arch:
        raise BackendError("the torch backend compiles for no architecture", remedy="leave --arch out")
    return Export({f"{name}_torch.py": source})
