"""What is kept of a verification: in memory for equal hierarchies, and on disk for other processes.

It is kept under all that it depends on, so that nothing is ever found that the laws would not say again: every field of
the hierarchy, the sources of the language and the laws, and the versions of what proofs are computed with.
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

import mpmath
import sympy

from fibration import cache
from fibration.language.fingerprint import fingerprint
from fibration.language.hierarchy import Hierarchy
from fibration.laws import LAWS

T = TypeVar("T")


class Kept(Generic[T]):
    """Values that belong to hierarchies, the last `most` of them. `write` and `read` turn one into JSON and back."""

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
        """The value of a hierarchy: from memory, else from disk, else what `find` finds, which is then kept.

        What `find` raises is raised, and nothing kept.
        """
        key = key_of(hierarchy)
        if key is None:
            return find()
        return self._recent.get(key, lambda: self._noted(f"{self._name}-{key}", hierarchy, find))

    def forget(self, hierarchy: Hierarchy) -> None:
        """What is in memory of a hierarchy."""
        if key := key_of(hierarchy):
            self._recent.forget(key)

    def _noted(self, name: str, hierarchy: Hierarchy, find: Callable[[], T]) -> T:
        if self._write is None or self._read is None or not SOURCES:
            return find()
        noted = cache.recall(name)
        if noted is not None:
            return self._read(noted, hierarchy)
        found = find()
        cache.keep(name, self._write(found))
        return found


# ---------------------------------------------------------------- the key


def key_of(hierarchy: Hierarchy) -> str | None:
    """The key of a hierarchy, or None where a class in it or a law is the user's own: no key says what it does."""
    asked = fingerprint(hierarchy)
    if asked is None or tuple(LAWS.items()) != OURS:
        return None
    return hashlib.sha256(json.dumps([asked, SOURCES, versions()]).encode()).hexdigest()


@functools.cache
def versions() -> list[object]:
    return [metadata.version("fibration"), sympy.__version__, mpmath.__version__, *sys.version_info[:2]]


def sources() -> str:
    """A digest of the language and the laws; '' where their sources are not at hand, and nothing is kept on disk."""
    package = Path(__file__).parents[1]
    rooms = [f for room in ("language", "laws") for f in (package / room).rglob("*.py")]
    files = sorted([package / "errors.py", *rooms])
    try:
        digests = {str(f.relative_to(package)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


SOURCES = sources()  # when they are imported: what is edited later is not what this process runs
OURS = tuple(LAWS.items())  # by these very functions: one that wraps a law's decisions says what it likes
