"""Two labels are the same on different ranks exactly if a dictionary of one process holds them as one key."""

import datetime as dt
import os
import subprocess
import sys
from collections import namedtuple
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from itertools import product
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import ALL, examples

from fibration.runtime.ranks.merge import canonical, keys_of


class Colour(Enum):
    RED = 1
    BLUE = 2


class Shade(Enum):
    RED = 1


class Access(Flag):
    READ = 1
    WRITE = 2


class Word(StrEnum):
    ONE = "1"


class Number(IntEnum):
    ONE = 1


Pair = namedtuple("Pair", "a b")
NOON = dt.datetime(2026, 1, 1, 12)
LABELS = [
    0, 1, True, False, 1.0, -0.0, -1, np.int64(1), np.uint8(1), np.float32(1), np.float16(0.1), np.float64(0.1), 0.1,
    np.float32(0.1), float(np.float32(0.1)), np.bool_(True), Fraction(1), Fraction(1, 10), Fraction(1, 2), 0.5, Decimal("0.5"),
    Decimal("0.1"), Decimal(1), 1 + 0j, 1j, np.complex64(1), np.complex64(1j), 2**64, 2.0**64, 2**64 + 1, 10**5000, 1e300,
    float("inf"), -float("inf"), Decimal("Infinity"), "1", "a", "", "é", "e\u0301", "\ud800", "a\0", np.str_("1"), np.str_("a"), b"1", b"",
    b"a", np.bytes_(b"1"), (), (1,), (True,), ("1",), (1, 2), ((1,), 2), (1, (2,)), ("a", "b"), ("ab",), ("a:1", "b"), ("a", ":1b"),
    Pair(1, 2), (None, 1), (1, None), frozenset(), frozenset([1, 2]), frozenset([2, True]), frozenset([(1, 2)]), Colour.RED,
    Colour.BLUE, Shade.RED, Word.ONE, Number.ONE, "RED", UUID(int=1), UUID(int=2), str(UUID(int=1)), UUID(int=1).bytes,
    dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), "2026-01-01", NOON, NOON.replace(fold=1), NOON.replace(tzinfo=dt.UTC),
    NOON.replace(tzinfo=ZoneInfo("Europe/Zurich")), dt.datetime(2026, 1, 1, 11, tzinfo=dt.UTC), NOON.replace(microsecond=1),
    complex("inf"), complex("-inf"), Access(0), Access.READ, Access.READ | Access.WRITE,
]  # fmt: skip


def same(a, b):
    if any(isinstance(x, Decimal) for x in (a, b)):  # which numpy's scalars cannot be compared with
        a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))
    return len({a, b}) == 1


def test_labels_have_equal_bytes_exactly_if_they_are_equal():
    written = list(map(canonical, LABELS))
    for i, j in product(range(len(LABELS)), repeat=2):
        assert (written[i] == written[j]) == same(LABELS[i], LABELS[j]), (i, j)


numbers = (
    st.integers(-3, 3) | st.booleans() | st.floats(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
)
flat = numbers | st.text(max_size=3) | st.binary(max_size=3) | st.datetimes() | st.dates() | st.uuids()
nested = st.recursive(flat, lambda s: st.tuples(s) | st.tuples(s, s) | st.frozensets(s, max_size=2), max_leaves=4)


@given(st.lists(nested, max_size=8), st.data())
@examples(100)
def test_random_labels_have_equal_keys_if_equal(drawn, data):
    for a, b in product(drawn, drawn):
        assert (canonical(a) == canonical(b)) == same(a, b)
    different = list(dict.fromkeys(drawn))
    order = data.draw(st.permutations(range(len(different))))
    found = keys_of("domain", different)
    assert len(set(found)) == len(different)
    assert keys_of("domain", [different[i] for i in order]) == [found[i] for i in order]


@pytest.mark.thorough
def test_keys_are_the_same_in_every_process():
    """Whatever Python's hash is seeded with; and a million of them are nothing to wait for."""
    n = 10**6 if ALL else 10**4
    program = f"""
from hashlib import blake2b
from fibration.runtime.ranks.merge import keys_of
labels = [*(f"prompt-{{i}}" for i in range({n})), 1, "1", 2.5, (1, "a"), frozenset("abcdefg"), None or b"1"]
keys = keys_of("domain", labels)
print(hash("a"), *map(bytes.hex, keys[-8:]), blake2b(b"".join(keys)).hexdigest())
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        )
        .stdout.decode()
        .split()
        for seed in ("1", "2")
    ]
    assert said[0][0] != said[1][0] and said[0][1:] == said[1][1:] and len(said[0]) == 10


def test_keys_equal_the_recorded_ones():
    """Recorded: numbers of elements by keys rest on them."""
    assert keys_of("domain", ["math", 1, (1, "a")]) == [b"smath", b"n1", b"(2:n12:sa"]


class Anything:
    def __repr__(self):
        return "Anything()"
