"""What is kept: built and proved things on disk, keyed by all that they were made of, and the last few in memory.

An entry is a folder named by its key, with the files and their SHA-256. It is made under another name and renamed, so
processes that start at once never see half of one, and the last of them to finish finds the work done.

A note is a file of JSON in the folder `notes`. It saves work and is never needed: one that is lost, damaged, or where
somebody else could have written it, reads as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from fibration.errors import BackendError

CONTENTS = "contents.json"
NOTES = "notes"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
T = TypeVar("T")


def folder() -> Path:
    """`FIBRATION_CACHE`, or `fibration` in the user's cache folder."""
    chosen = os.environ.get("FIBRATION_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fibration"


def _make_folder() -> None:
    """A folder that somebody chose is made as their umask says; the user's own is theirs to write alone."""
    mode = 0o777 if os.environ.get("FIBRATION_CACHE") else 0o755
    folder().mkdir(mode=mode, parents=True, exist_ok=True)


# ---------------------------------------------------------------- built things


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """The folder of an entry; `make(folder)` writes its files if there is none, or a damaged one."""
    place = folder() / key
    if _is_whole(place):
        return place
    try:
        _make_folder()
        workshop = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=place.parent))
    except OSError as error:
        raise _unusable(error) from error
    try:
        make(workshop)
        contents = {p.name: _digest(p) for p in sorted(workshop.iterdir())}
        (workshop / CONTENTS).write_text(json.dumps(contents))
        workshop.chmod(0o755)
        _install(workshop, place)
    except OSError as error:
        raise _unusable(error) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return place


def _install(workshop: Path, place: Path) -> None:
    for _ in range(10):
        try:
            workshop.rename(place)
            return
        except OSError:
            if not place.exists():
                raise
            if _is_whole(place):
                return  # another process was faster
            with suppress(OSError):  # damaged: out of the way, unless another process is at it too
                aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=place.parent))
                place.rename(aside / place.name)
                shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{place} is damaged and cannot be replaced")


def _is_whole(place: Path) -> bool:
    try:
        contents = json.loads((place / CONTENTS).read_text())
        return bool(contents) and all(_digest(place / name) == digest for name, digest in contents.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _unusable(error: OSError) -> BackendError:
    return BackendError(
        f"the cache folder {folder()} cannot be written",
        required="a folder for built kernels, with some space left",
        found=error.strerror or str(error),
        remedy="set FIBRATION_CACHE to another folder",
    )


# ---------------------------------------------------------------- notes


def recall(key: str) -> Any:
    """The JSON value of a note, or None: there is none, it is damaged, or others may write where it lies."""
    try:
        place = folder() / NOTES
        if not is_ours(place):
            return None
        with open(place / f"{key}.json", "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            info = os.fstat(file.fileno())
            if not _owned(info) or info.st_mode & OTHERS_MAY_WRITE:
                return None
            seal, _, text = file.read().partition(b"\n")
        return json.loads(text) if seal == _seal(key, text) else None
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a user without a home; ValueError: a name that is none
        return None


def keep(key: str, value: Any) -> None:
    """Write a note, whole or not at all, where only this user may write; else nothing is written, and nothing said."""
    text = json.dumps(value).encode()
    with suppress(OSError, RuntimeError, ValueError):
        place = folder() / NOTES
        _make_folder()
        place.mkdir(mode=0o700, exist_ok=True)
        if not is_ours(place):
            return
        handle, unfinished = tempfile.mkstemp(prefix=".", dir=place)  # which nobody else may read or write
        try:
            with open(handle, "wb") as file:
                file.write(_seal(key, text) + b"\n" + text)
            os.replace(unfinished, place / f"{key}.json")
        except OSError:
            Path(unfinished).unlink()
            raise


def is_ours(place: Path) -> bool:
    """Whether what lies in a folder was put there by this user or root: as ssh asks of its keys.

    Everything on the way, and what a link on the way leads to, is owned by one of them, and writable by nobody else;
    on the way, a folder like `/tmp` may be, in which only an owner renames.
    """
    place.stat()  # links that lead in a circle are an OSError
    return hasattr(os, "getuid") and _is_ours(place.absolute(), last=True)


def _is_ours(place: Path, last: bool) -> bool:
    for part in (*reversed(place.parents), place):
        end = last and part == place
        info = part.lstat()
        if not _owned(info):
            return False
        if stat.S_ISLNK(info.st_mode):
            if not _is_ours(part.parent / part.readlink(), end):
                return False
        elif info.st_mode & OTHERS_MAY_WRITE and (end or not info.st_mode & stat.S_ISVTX):
            return False
    return True


def _owned(info: os.stat_result) -> bool:
    return info.st_uid in (0, os.getuid())


def _seal(key: str, text: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + text).hexdigest().encode()


# ---------------------------------------------------------------- in memory


class Recent(Generic[T]):
    """The last `most` values that were asked for. Two threads may find the same one at once; they get one object.

    What `find` raises is raised, and nothing kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, dict[str, T](), threading.Lock()

    def get(self, key: str, find: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)  # the latest is the last
                return self._values[key]
        found = find()
        with self._lock:
            found = self._values.setdefault(key, found)
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
        return found

    def forget(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)
