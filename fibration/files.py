"""Writes files whole or not at all, and checks that a path can be written.

All commands and functions that write a file for the user use `write_file`. A regular file, or a path where nothing is,
is replaced whole. A link is followed: the file that it leads to is replaced. A device, FIFO or socket is never replaced
but opened and written to. `-` is stdout.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from fibration.errors import BackendError
from fibration.escaping import unguarded

STDOUT = Path("-")
PATIENCE = 10.0  # seconds that a FIFO may lack a reader: `cat` would wait for ever, and a job of CI must not


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


def standard_stream(path: Path) -> TextIO | None:
    """Returns stdout or stderr if `path` leads to it, as `-`, `/dev/stdout` and the terminal's own path do; else None.

    A file to which stdout is redirected is written through stdout, since what stdout gets later would be lost in a
    replaced file.
    """
    if path == STDOUT:
        return sys.stdout
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return stream
    return None


def write_file(path: Path, contents: str | bytes) -> None:
    """Writes a file whole or not at all, and makes its missing folders. A replaced file keeps its mode.

    Raises OSError with `path` if it cannot be written, or is a FIFO that gets no reader within `PATIENCE` seconds.
    """
    stream = standard_stream(path)
    if stream is not None:
        out = unguarded(stream)
        out.flush()
        out.write(contents) if isinstance(contents, str) else out.buffer.write(contents)
        out.flush()
        return
    data = as_bytes(contents)
    try:
        if _is_replaced(path):
            _replace(Path(os.path.realpath(path)), data)
        else:
            _write_to(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the temporary name


def _is_replaced(path: Path) -> bool:
    """Returns whether a path leads to a file with a name (or a folder), or to nothing: all else is written to."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    # A file that is open and deleted can be reached as /proc/self/fd/N alone.
    return stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and os.path.exists(os.path.realpath(path)))


def _replace(place: Path, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".fibration-{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as file:  # x: never a file or link that another user put there
            file.write(data)
            file.flush()
            with suppress(FileNotFoundError):
                old = place.stat()
                with suppress(PermissionError):  # only root gives files away
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), old.st_mode & 0o777)
            os.fsync(file.fileno())
        os.replace(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_to(path: Path, data: bytes) -> None:
    """Writes to a device, FIFO or socket."""
    mode = path.stat().st_mode
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(str(path))
            return peer.sendall(data)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(mode):
                raise
            if time.monotonic() > deadline:
                raise OSError(error.errno, f"no process has opened this FIFO to read it in {PATIENCE:g} s") from error
            time.sleep(0.02)
    os.set_blocking(handle, True)
    with open(handle, "wb") as file:
        file.write(data)


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

    `in_folder`: its folder has to exist. A name says nothing about stdout, a device, a FIFO or a socket.
    """
    if path is None:
        return
    found = unwritable(path, file=True)
    is_named = standard_stream(path) is None and (bool(found) or _is_replaced(path))
    if in_folder and is_named and not path.absolute().parent.exists():
        raise BackendError(
            f"'{path}' cannot be written",
            required="a file in a folder that exists",
            found=f"no folder '{path.parent}'",
            remedy=f"mkdir -p '{path.parent}', or name another file",
        )
    if found:
        raise BackendError(
            f"'{path}' cannot be written",
            required="a file in a folder that can be written",
            found=found,
            remedy="name another file",
        )
    if is_named and path.suffix != suffix and suffix:
        raise BackendError(
            f"'{path}' cannot be written",
            required=f"a file that ends in {suffix}",
            remedy=f"write {path.with_suffix(suffix)}",
        )


def unwritable(path: Path, file: bool = False) -> str:
    """Returns why a folder, or with `file` a file, cannot be written at `path`; "" if it can."""
    if file and standard_stream(path) is not None:
        return ""
    if path == STDOUT:
        return "'-' is stdout"
    try:
        if file and not _is_replaced(path):
            return "" if os.access(path, os.W_OK) else f"'{path}' is read-only"
        target = Path(os.path.realpath(path))
        place = next(p for p in (target, *target.parents) if p.exists())
    except OSError as error:
        return f"{path}: {error.strerror}"
    is_file = file and place == target
    if place.is_dir() == is_file:
        return f"'{place}' is {'a folder' if is_file else 'a file'}"
    if is_file and not os.access(place, os.W_OK):
        return f"'{place}' is read-only"
    folder = place.parent if is_file else place  # the temporary file goes there
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"'{folder}' is read-only"
