"""Writing files whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from fibration.errors import BackendError


def as_bytes(contents: str | bytes) -> bytes:
    return contents.encode() if isinstance(contents, str) else contents


def write_file(path: Path, contents: str | bytes) -> None:
    """Write a file whole or not at all; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(as_bytes(contents))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(folder: Path, option: str) -> None:
    """Whether `folder` is there or can be made; nothing is made yet. `option` names it on the command line."""
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise BackendError(
            f"the pictures cannot go to '{folder}'",
            required="a folder that can be written",
            found=f"'{place}' is {'read-only' if place.is_dir() else 'a file'}",
            remedy=f"name another with {option}",
        )
