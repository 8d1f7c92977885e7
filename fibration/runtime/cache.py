"""Built things on disk: keyed by all that they were made of, written whole or not at all, checked when read.

An entry is a folder named by its key, with the files and their SHA-256. It is made under another name and renamed, so
processes that start at once never see half of one, and the last of them to finish finds the work done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fibration.errors import BackendError

CONTENTS = "contents.json"


def folder() -> Path:
    """`FIBRATION_CACHE`, or `fibration` in the user's cache folder."""
    chosen = os.environ.get("FIBRATION_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fibration"


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """The folder of an entry; `make(folder)` writes its files if there is none, or a damaged one."""
    place = folder() / key
    if _is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
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
