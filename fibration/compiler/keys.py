"""Keys of what a program computes, and the names that they are printed as: identifiers, no two of them equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fibration.language.decompositions import CHANNEL_WORD


class Key(NamedTuple):  # read for every metric of every call, and a tuple's hash is the quickest
    """`word` says what a vector is, the rest of what: of which level or leaf, and over what its numbers are added up.

    A key is what a vector is known by. Its text is only what it is called as long as nothing else is called so.
    """

    word: str
    stratum: str = ""
    channel: str = ""
    over: str = ""

    def __str__(self) -> str:
        level = f"_{self.stratum}{CHANNEL_WORD[self.channel]}" if self.stratum else ""
        return self.word + level + (f"_over_{self.over}" if self.over else "")


class Names:
    """Identifiers, each of which is given away once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def free(self, wish: str, *endings: str) -> str:
        """`wish`, or else `wish_2`, `wish_3`, ...: what is not taken yet, with any of these endings."""
        found, number = wish, 1
        while any(found + ending in self.taken for ending in endings or ("",)):
            number += 1
            found = f"{wish}_{number}"
        self.taken.update(found + ending for ending in endings or ("",))
        return found
