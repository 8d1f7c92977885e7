"""Keys of the vectors that a program computes, and their printed names: unique identifiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fibration.language.decompositions import CHANNEL_WORD


class Key(NamedTuple):  # a tuple has the fastest hash, and every metric of every call hashes its key
    """Identifies a vector: what it is (`word`), of which level or leaf, and `over` which stratum it is added up.

    The text of a key is the vector's name, unless another vector has that name.
    """

    word: str
    stratum: str = ""
    channel: str = ""
    over: str = ""

    def __str__(self) -> str:
        level = f"_{self.stratum}{CHANNEL_WORD[self.channel]}" if self.stratum else ""
        return self.word + level + (f"_over_{self.over}" if self.over else "")


def without_macros(word: str) -> str:
    """Returns a word that is no macro of C or constant of Triton: they have no small letter, or begin as `DTYPE_`."""
    first = word.partition("_")[0]
    return word.lower() if word.isupper() or (first.isupper() and len(first) > 1) else word


class Names:
    """Gives out identifiers, each only once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def free(self, wish: str, *endings: str) -> str:
        """`wish`, or `wish_2`, `wish_3`, ...: the first word that is not taken with any of `endings`."""
        found, number = wish, 1
        while any(found + ending in self.taken for ending in endings or ("",)):
            number += 1
            found = f"{wish}_{number}"
        self.taken.update(found + ending for ending in endings or ("",))
        return found
