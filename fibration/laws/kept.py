"""The cache of verdicts and facts: in memory for equal hierarchies, and on disk for other processes.

The key covers all that a result depends on, so that the laws would give every cached result again: every field of the
hierarchy, the sources of `ROOMS`, and the versions of Python and of the libraries that proofs use.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from fibration import cache
from fibration.language.hierarchy import Hierarchy, fingerprint

T = TypeVar("T")
ROOMS = "language", "compiler", "laws"


class Kept(Generic[T]):
    """The values of the last `most` hierarchies. `write` and `read` turn a value into JSON and back, for the disk."""

    def __init__(
        self,
        most: int,
        name: str = "",
        write: Callable[[T], Any] | None = None,
        read: Callable[[Any, Hierarchy], T] | None = None,
    ) -> None:
        self._recent: cache.Recent[T] = cache.Recent(most)
        self._name, self._write, self._read = name, write, read

    def of(self, hierarchy: Hierarchy, find: Callable[[], T]) -> T:
        """The value of a hierarchy: from memory, else from disk, else from `find()`, which is then cached.

        An exception of `find` is passed on, and nothing is cached.
        """
        key = key_of(hierarchy)
        if key is None:
            return find()
        return self._recent.get(key, lambda: self._noted(f"{self._name}-{key}", hierarchy, find))

    def forget(self, hierarchy: Hierarchy) -> None:
        """Remove the value of a hierarchy from memory."""
        if key := key_of(hierarchy):
            self._recent.forget(key)

    def _noted(self, name: str, hierarchy: Hierarchy, find: Callable[[], T]) -> T:
        if self._write is None or self._read is None or not SOURCES:
            return find()
        noted = cache.recall(name)
        if noted is not None:
            return self._read(noted, hierarchy)
        found = find()
        if are_unedited():
            cache.keep(name, self._write(found))
        return found


# ---------------------------------------------------------------- the key


def key_of(hierarchy: Hierarchy) -> str | None:
    """The key of a hierarchy; None if it has a class of the user's, or a law is replaced: no key covers their code."""
    asked = fingerprint(hierarchy)
    laws = sys.modules.get("fibration.laws.catalogue")  # until it is loaded, nobody can have replaced a law
    if asked is None or (laws and tuple(laws.LAWS.items()) != laws.OURS):
        return None
    return hashlib.sha256(json.dumps([asked, SOURCES, versions()]).encode()).hexdigest()


@functools.cache
def versions() -> list[object]:
    return [*map(metadata.version, ("fibration", "sympy", "mpmath")), *sys.version_info[:2]]


def sources() -> str:
    """A digest of the sources of `ROOMS`; '' if they cannot be read: then nothing goes to disk."""
    package = Path(__file__).parents[1]
    rooms = [f for room in ROOMS for f in (package / room).rglob("*.py")]
    files = sorted([*(package / f"{word}.py" for word in ("errors", "escaping", "files")), *rooms])
    try:
        digests = {str(f.relative_to(package)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


SOURCES = sources()


@functools.cache
def are_unedited(before: str = SOURCES) -> bool:
    """Whether the laws, which load at the first `find`, are those whose sources were read at import."""
    return sources() == before
