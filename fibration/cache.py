"""The cache: built kernels (entries) and results of proofs (notes) on disk, and recently used values in memory.

An entry is a folder with files and their SHA-256. Its name is a key of everything that the files depend on. It is built
under another name and then renamed: processes that start at once never see half an entry, and the last to finish finds
it there. The files are executed, so an entry that anybody but this user or root may have written is refused. A process
locks the folder in which it builds, and the next use of the cache removes unlocked ones, whose processes were killed.

A note is a JSON file in the folder `notes`. It saves work and is never needed. A note that is lost, damaged, or in a
folder that other users can write, reads as none.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import shutil
import stat
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
WORK = ".fibration-work-"  # prefix of folders in which entries are built
T = TypeVar("T")


class Unusable(BackendError):
    """A cache folder that is not known, cannot be written, or is not safe to run code from."""


def folder() -> Path:
    """Returns `FIBRATION_CACHE`, or `fibration` in the user's cache folder. Raises Unusable if the user has no home."""
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
    """Makes a folder and its missing parents with mode 0755: the group cannot write, even with a umask of 002."""
    missing = [p for p in (place, *place.parents) if not p.exists()]
    for part in reversed(missing or [place]):
        part.mkdir(mode=0o755, exist_ok=True)


# ---------------------------------------------------------------- entries


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder of an entry. If the entry is missing or damaged, `make(folder)` writes its files.

    Raises BackendError if other users may have written the entry, if `FIBRATION_CACHE` cannot be written, or if other
    users can write it. If the user's default folder cannot be used, the function warns and uses a temporary folder.
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
        _remove_abandoned(home)
        if _is_whole(place):
            return place
        make_folder(home)
        _refuse(home)  # another process may just have made it
        workshop, lock = _locked_workshop(home)
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
        os.close(lock)
    return place


def _locked_workshop(home: Path) -> tuple[Path, int]:
    """Makes a folder and locks it while its handle is open. The lock ends with this process, however that ends."""
    while True:
        workshop = Path(tempfile.mkdtemp(prefix=WORK, dir=home))
        with suppress(FileNotFoundError):  # removed by another process before it was locked: make another one
            handle = os.open(workshop, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nobody removes the folder either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.exists(workshop):
                return workshop, handle
            os.close(handle)


def _remove_abandoned(home: Path) -> None:
    """Removes the folders in which processes were building that have ended without removing them."""
    with suppress(OSError):
        for place in [p for p in home.iterdir() if p.name.startswith(WORK)]:
            with suppress(OSError):
                handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(place, ignore_errors=True)
                finally:
                    os.close(handle)


@functools.cache
def _temporary() -> Path:
    """Makes a temporary folder, which is removed when this process ends."""
    place, process = Path(tempfile.mkdtemp(prefix="fibration-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked process inherits this function
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    return place


def _refuse(home: Path) -> None:
    doubt = doubt_of(home)
    if doubt:
        raise Unusable(
            f"the cache folder '{home}' is not safe, and its files are run",
            required="a folder that only you and root can write or replace",
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
            with suppress(OSError):  # damaged: move it away, unless another process does
                aside = Path(tempfile.mkdtemp(prefix=WORK, dir=place.parent))
                place.rename(aside / place.name)
                shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{place} is damaged and cannot be replaced")


def _is_whole(place: Path) -> bool:
    """Returns whether the files of an entry are as they were written. BackendError if others may have written them.

    Digests guard against accidents. Owners and modes guard against people: whoever can write as this user can write
    digests too.
    """
    try:
        parts = {part: part.lstat() for part in (place, *place.iterdir())}
    except OSError:
        return False
    doubts = [doubt_of_one(part, info) for part, info in parts.items()]
    for doubt in filter(None, doubts):
        raise BackendError(
            f"other users may have written the files in '{place}', which would be run",
            required="files that only you and root can write",
            found=doubt.found,
            remedy=f"remove it to build it again: rm -r '{place}'",
        )
    try:
        files = {part.name for part, info in parts.items() if stat.S_ISREG(info.st_mode)}
        contents = json.loads((place / CONTENTS).read_text()) if CONTENTS in files else {}
        return bool(contents) and contents.keys() <= files and all(_digest(place / n) == contents[n] for n in contents)
    except (OSError, ValueError, AttributeError, RecursionError):
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
    """Returns the JSON value of a note. None if the note is missing or damaged, or if other users can write there."""
    try:
        place = folder() / NOTES
        if not is_ours(place):
            return None
        never_waits = os.O_NOFOLLOW | os.O_NONBLOCK
        with open(place / f"{key}.json", "rb", opener=lambda path, flags: os.open(path, flags | never_waits)) as file:
            if doubt_of_one(place, os.fstat(file.fileno())):
                return None
            seal, _, text = file.read().partition(b"\n")
        return json.loads(text) if seal == _seal(key, text) else None
    except (OSError, Unusable, ValueError, RecursionError):  # ValueError: an invalid path
        return None


def keep(key: str, value: Any) -> None:
    """Writes a note, whole or not at all. Does nothing if the folder cannot be written, or other users can write it."""
    text = json.dumps(value).encode()
    with suppress(OSError, Unusable, ValueError):
        place = folder() / NOTES
        make_folder(place.parent)
        place.mkdir(mode=0o700, exist_ok=True)
        if not is_ours(place):
            return
        handle, unfinished = tempfile.mkstemp(prefix=".", dir=place)  # mode 0600
        try:
            with open(handle, "wb") as file:
                file.write(_seal(key, text) + b"\n" + text)
            os.replace(unfinished, place / f"{key}.json")
        except OSError:
            Path(unfinished).unlink()
            raise


def is_ours(place: Path) -> bool:
    """Returns whether only this user or root can have written into a folder. False on systems without owners."""
    place.stat()  # circular links raise OSError
    return hasattr(os, "getuid") and doubt_of(place) is None


def _seal(key: str, text: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + text).hexdigest().encode()


# ---------------------------------------------------------------- in memory


class Recent(Generic[T]):
    """The `most` values that were used last. Two threads that find the value of one key at once get one object.

    An exception from `find` propagates, and nothing is stored.
    """

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, dict[str, T](), threading.Lock()

    def get(self, key: str, find: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)  # most recent last
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
