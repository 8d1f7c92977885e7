"""A slip: one line of the library, or of a study, and what it becomes.

A slip may have several texts, of which exactly one must be in the tree. `likely` are patterns of the paths under `tests/`
of the files that should notice, in the order in which they are tried.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slip:
    name: str
    texts: tuple[tuple[str, str], ...]
    likely: tuple[str, ...]


def slip(name: str, likely: str, *texts: str) -> Slip:
    """`texts`: old, new, old, new, ...; `likely`: patterns with spaces between."""
    return Slip(name, tuple(zip(texts[::2], texts[1::2], strict=True)), tuple(likely.split()))
