"""What is kept: built and proved things on disk, keyed by all that they were made of, and the last few in memory.

An entry is a folder named by its key, with the files and their SHA-256. It is made under another name and renamed, so
processes that start at once never see half of one, and the last of them to finish finds the work done. What lies in it
is run, so it is refused where anybody but this user and root may have put it.

A note is a file of JSON in the folder `notes`. It saves work and is never needed: one that is lost, damaged, or where
somebody else could have written it, reads as none.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from fibration.errors import BackendError
from fibration.owners import doubt_of, doubt_of_one

CONTENTS = "contents.json"
NOTES = "notes"
T = TypeVar("T")


class Unusable(BackendError):
    """A folder in which nothing can be kept, or nothing that would be safe to run."""


def folder() -> Path:
    """`FIBRATION_CACHE`, or `fibration` in the user's cache folder. Raises Unusable for a user without a home."""
    chosen, own = os.environ.get("FIBRATION_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(chosen).expanduser() if chosen else Path(own or Path.home() / ".cache") / "fibration").absolute()
    except RuntimeError as error:
        raise Unusable(
            "there is no cache folder",
            required="a home, or a folder in FIBRATION_CACHE",
            found=f"FIBRATION_CACHE={chosen}" if chosen else str(error),
            remedy="set FIBRATION_CACHE to a folder",
        ) from error


def make_folder(place: Path) -> None:
    """With what is missing on the way, for this user alone to write, whatever their umask leaves to a group."""
    missing = [p for p in (place, *place.parents) if not p.exists()]
    for part in reversed(missing or [place]):
        part.mkdir(mode=0o755, exist_ok=True)


# ---------------------------------------------------------------- built things


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """The folder of an entry; `make(folder)` writes its files if there is none, or a damaged one.

    Raises BackendError for an entry that others may have written, and for a `FIBRATION_CACHE` that cannot be written,
    or by others too. Where the user's own folder is such a one, a warning says so, and the process has a temporary one.
    """
    try:
        return _entry(folder(), key, make)
    except Unusable as error:
        if os.environ.get("FIBRATION_CACHE"):
            raise
        try:
            home = _temporary()
        except OSError:
            raise error from None
        warnings.warn(f"kernels are built for this process alone: {error}", RuntimeWarning, stacklevel=2)
        return _entry(home, key, make)


def _entry(home: Path, key: str, make: Callable[[Path], None]) -> Path:
    place = home / key
    try:
        _refuse(home)
        if _is_whole(place):
            return place
        make_folder(home)
        _refuse(home)  # which somebody may just have made
        workshop = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=home))
    except OSError as error:
        raise _unusable(home, error) from error
    try:
        make(workshop)
        contents = {p.name: _digest(p) for p in sorted(workshop.iterdir())}
        (workshop / CONTENTS).write_text(json.dumps(contents))
        for made in workshop.iterdir():
            made.chmod(0o644)
        workshop.chmod(0o755)
        _install(workshop, place)
    except OSError as error:
        raise _unusable(home, error) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return place


@functools.cache
def _temporary() -> Path:
    """A folder of this process, which it takes along."""
    place, process = Path(tempfile.mkdtemp(prefix="fibration-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a fork has it too
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    return place


def _refuse(home: Path) -> None:
    doubt = doubt_of(home)
    if doubt:
        raise Unusable(
            f"the cache folder '{home}' is not safe: what lies there is run",
            required="a folder that you and root alone can write or put in its place",
            found=doubt.found,
            remedy=f"{doubt.remedy}set FIBRATION_CACHE to another folder",
        )


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
    """Whether the files of an entry are there as they were written.

    Digests are against accidents. Against people there are owners and modes: whoever could write as this user could
    write digests too.
    """
    try:
        doubts = [doubt_of_one(part, part.lstat()) for part in (place, *place.iterdir())]
    except OSError:
        return False
    for doubt in filter(None, doubts):
        raise BackendError(
            f"what is kept in '{place}' may be somebody else's, and would be run",
            required="files that you and root alone can write",
            found=doubt.found,
            remedy=f"remove it, and it is built anew: rm -r '{place}'",
        )
    try:
        contents = json.loads((place / CONTENTS).read_text())
        return bool(contents) and all(_digest(place / name) == digest for name, digest in contents.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _unusable(home: Path, error: OSError) -> BackendError:
    return Unusable(
        f"the cache folder '{home}' cannot be written",
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
            if doubt_of_one(place, os.fstat(file.fileno())):
                return None
            seal, _, text = file.read().partition(b"\n")
        return json.loads(text) if seal == _seal(key, text) else None
    except (OSError, Unusable, ValueError):  # ValueError: a name that is none
        return None


def keep(key: str, value: Any) -> None:
    """Write a note, whole or not at all, where only this user may write; else nothing is written, and nothing said."""
    text = json.dumps(value).encode()
    with suppress(OSError, Unusable, ValueError):
        place = folder() / NOTES
        make_folder(place.parent)
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
    """Whether what lies in a folder was surely put there by this user or root; not where no owner is known."""
    place.stat()  # links that lead in a circle are an OSError
    return hasattr(os, "getuid") and doubt_of(place) is None


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
