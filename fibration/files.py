"""Writes files whole or not at all, and checks that a path can be written."""

from __future__ import annotations

import os
from pathlib import Path

from fibration.errors import BackendError


def as_bytes(contents: str | bytes) -> bytes:
    return contents.encode() if isinstance(contents, str) else contents


def read_bytes(path: Path, most: int) -> bytes:
    """Returns the contents of a regular file. Raises OSError for anything else, and for more than `most` bytes."""
    if path.exists() and not path.is_file():
        raise OSError(f"'{path}' is {'a directory' if path.is_dir() else 'a device, a pipe or a socket'}, and no file")
    with path.open("rb") as file:
        found = file.read(most + 1)  # of a file whose size the system does not know, too
    if len(found) > most:
        raise OSError(f"more than {most} bytes, and at most so many are read")
    return found


def write_file(path: Path, contents: str | bytes) -> None:
    """Writes a file whole or not at all, and makes its missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(as_bytes(contents))
        os.replace(unfinished, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the temporary name
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(folder: Path, option: str, what: str = "the pictures") -> None:
    """Raises BackendError unless `folder` can be written or made; makes nothing. `option`: its command-line option."""
    found = unwritable(folder)
    if found:
        raise BackendError(
            f"{what} cannot go to '{folder}'",
            required="a folder that can be written",
            found=found,
            remedy=f"name another with {option}",
        )


def check_writable_file(path: Path | None, suffix: str = "", in_folder: bool = False) -> None:
    """Raises BackendError unless the file can be written and its name ends in `suffix`; makes nothing.

    `in_folder`: its folder has to exist.
    """
    if path is None:
        return
    if in_folder and not path.absolute().parent.exists():
        raise BackendError(
            f"'{path}' cannot be written",
            required="a file in a folder that exists",
            found=f"no folder '{path.parent}'",
            remedy=f"mkdir -p '{path.parent}', or name another file",
        )
    if path.suffix != suffix and suffix:
        raise BackendError(
            f"'{path}' cannot be written",
            required=f"a file that ends in {suffix}",
            remedy=f"write {path.with_suffix(suffix)}",
        )
    found = unwritable(path, file=True)
    if found:
        raise BackendError(
            f"'{path}' cannot be written",
            required="a file in a folder that can be written",
            found=found,
            remedy="name another file",
        )


def unwritable(path: Path, file: bool = False) -> str:
    """Returns why a folder, or with `file` a file, cannot be written at `path`; "" if it can."""
    place = next(p for p in (path, *path.absolute().parents) if p.exists())
    is_file = file and place == path
    if place.is_dir() == is_file:
        return f"'{place}' is {'a folder' if is_file else 'a file'}"
    return "" if os.access(place, os.W_OK if is_file else os.W_OK | os.X_OK) else f"'{place}' is read-only"
