"""The cache: built kernels (entries) and results of proofs (notes) on disk, and recently used values in memory.

An entry is a folder with files and their SHA-256. Its name is a key of everything that the files depend on. It is built
in a work folder and then renamed: processes that start at once never see half an entry, and the last to finish finds it
there. The files are executed, so what anybody but this user or root may have written is refused.

A note is an entry with JSON, in the folder `notes`. It saves work and is never needed. A note that is lost, damaged, or
in a folder that other users can write, reads as none.
"""

from __future__ import annotations

import atexit
import functools
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from fibration.errors import BackendError

DIGEST = "digest"
NOTES, NOTE = "notes", "note.json"
WORK = ".fibration-work-"  # prefix of the folders in which entries and notes are made
ABANDONED = 24 * 3600  # seconds after which a work folder is one that a killed process has left
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


# ---------------------------------------------------------------- who else can write


def make_private(place: Path) -> None:
    """Makes a folder and its missing parents, closed to all other users. Raises Unusable where `check` does."""
    check(place)
    for part in reversed([p for p in (place, *place.parents) if not p.exists()] or [place]):
        part.mkdir(mode=0o700, exist_ok=True)
    check(place)  # another process may just have made it


def check(place: Path) -> None:
    """Raises Unusable unless only this user and root can have written into a folder, as ssh requires.

    - This user or root owns all parts of the path, and of the targets of links on it. Nobody else can write them.
    - A folder above `place` may be like `/tmp`: others can write it, but only owners rename in it.
    - The check begins at the user's home: whoever can replace the home needs no cache.
    - A part that does not exist yet is no reason for doubt.
    - The check goes down the path, and each part is known to stay before the next: nobody else can change the answer.
    """
    last = None
    with suppress(FileNotFoundError, NotADirectoryError):
        last = place.stat()  # circular links raise OSError
    for part, info in _on_the_way(place):
        if doubt := _doubt(part, info, above=last is None or not os.path.samestat(info, last)):
            own = f"chmod go-w '{part}', or " if info.st_uid == os.geteuid() else ""
            raise Unusable(
                f"the cache folder '{place}' is not safe, and its files are run",
                required="a folder that only you and root can write or replace",
                found=doubt,
                remedy=f"{own}set FIBRATION_CACHE to another folder",
            )


def _on_the_way(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields every folder and link that leads to a folder, from the user's home or else from `/`, as far as they go."""
    homes, parts = set[Path](), [*reversed(place.parents), place]
    with suppress(RuntimeError):
        homes = {Path.home(), Path.home().resolve()}
    with suppress(FileNotFoundError, NotADirectoryError):
        for part in parts[max((parts.index(home) for home in homes & {*parts}), default=0) :]:
            info = part.lstat()
            yield part, info
            if stat.S_ISLNK(info.st_mode):
                yield from _on_the_way(part.parent / part.readlink())


def _doubt(part: Path, info: os.stat_result, above: bool = False) -> str:
    """Why others may have written a file or folder, or ''. `above`: a link will be followed, and sticky is enough."""
    is_link = stat.S_ISLNK(info.st_mode)
    if is_link and not above:
        return f"'{part}' is a link"
    if info.st_uid not in (0, os.geteuid()):
        return f"'{part}' belongs to another user, {named(pwd.getpwuid, info.st_uid)}"
    writers = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    fine = (above and info.st_mode & stat.S_ISVTX) or (writers == stat.S_IWGRP and _is_private(info.st_gid))
    if fine or is_link or not writers:
        return ""
    who = "everybody" if writers & stat.S_IWOTH else f"the group {named(grp.getgrgid, info.st_gid)}"
    return f"'{part}' can be written by {who} (mode {stat.S_IMODE(info.st_mode):04o})"


def _is_private(group: int) -> bool:
    """Returns whether a group holds this user alone, as on systems with a default umask of 002. False for root."""
    try:
        user, its = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    alone = {*its.gr_mem} <= {user.pw_name}
    return user.pw_uid != 0 and user.pw_gid == group and user.pw_name == its.gr_name and alone


def named(find: Callable[[int], Any], number: int) -> str:
    """Returns the name and number of a user or group; `find` is `pwd.getpwuid` or `grp.getgrgid`."""
    with suppress(KeyError):
        return f"{find(number)[0]} ({number})"
    return str(number)


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


def _entry(home: Path, key: str, make: Callable[[Path], object]) -> Path:
    place = home / key
    try:
        check(home)
        if not _is_whole(place):
            make_private(home)
            with _workshop(home) as workshop:
                made = workshop / key
                made.mkdir()
                make(made)
                (made / DIGEST).write_text(_digest(made))
                for file in made.iterdir():
                    file.chmod(0o644)
                made.chmod(0o755)
                _install(made, place)
    except OSError as error:
        raise Unusable(
            f"the cache folder '{home}' cannot be written",
            required="a folder for built kernels, with some space left",
            found=error.strerror or str(error),
            remedy="set FIBRATION_CACHE to another folder",
        ) from error
    return place


@contextmanager
def _workshop(home: Path) -> Iterator[Path]:
    """A new folder, removed at the end. Removes those that killed processes have left too."""
    for old in home.glob(f"{WORK}*"):
        with suppress(OSError):
            if time.time() - old.lstat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=WORK, dir=home, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _install(made: Path, place: Path) -> None:
    for attempt in range(10):
        with suppress(OSError):
            made.rename(place)
            return
        if _is_whole(place):
            return  # another process was faster
        with suppress(OSError):  # damaged: move it away, unless another process does
            place.rename(made.with_name(f"damaged-{attempt}"))
    made.rename(place)  # raises why it cannot be


@functools.cache
def _temporary() -> Path:
    """Makes a temporary folder, which is removed when this process ends."""
    place, process = Path(tempfile.mkdtemp(prefix="fibration-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked process inherits this function
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    return place


def _is_whole(place: Path) -> bool:
    """Returns whether the files of an entry are as they were written. BackendError if others may have written them.

    The digest guards against accidents. Owners and modes guard against people: whoever can write as this user can write
    the digest too.
    """
    with suppress(OSError, ValueError):
        parts = {part: part.lstat() for part in (place, *place.iterdir())}
        for doubt in filter(None, (_doubt(part, info) for part, info in parts.items())):
            raise BackendError(
                f"other users may have written the files in '{place}', which would be run",
                required="files that only you and root can write",
                found=doubt,
                remedy=f"remove it to build it again: rm -r '{place}'",
            )
        are_files = all(stat.S_ISREG(info.st_mode) for part, info in parts.items() if part != place)
        return are_files and (place / DIGEST).read_text() == _digest(place)
    return False


def _digest(place: Path) -> str:
    """Returns the SHA-256 of the names and contents of an entry's files, and of its own name."""
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in place.iterdir() if p.name != DIGEST}
    return hashlib.sha256(json.dumps([place.name, sorted(files.items())]).encode()).hexdigest()


# ---------------------------------------------------------------- notes


def recall(key: str) -> Any:
    """Returns the JSON value of a note. None if the note is missing or damaged, or if other users can write there."""
    with suppress(OSError, BackendError, ValueError, RecursionError):  # ValueError: an invalid path
        place = folder() / NOTES / key
        check(place.parent)
        return json.loads((place / NOTE).read_text()) if _is_whole(place) else None


def keep(key: str, value: Any) -> None:
    """Writes a note, whole or not at all. Does nothing if the folder cannot be written, or other users can write it."""
    text = json.dumps(value)
    with suppress(OSError, BackendError, ValueError):
        _entry(folder() / NOTES, key, lambda made: (made / NOTE).write_text(text))


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
