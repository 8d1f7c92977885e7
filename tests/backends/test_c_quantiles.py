"""The C code that finds quantiles: exact for every order of the values, in work that is linear in their number."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from fibration.backends.c import build
from fibration.backends.c.language import PARTS
from fibration.errors import BackendError

Vector = NDArray[np.float64]
LEVELS = (0.0, 1e-4, 0.05, 0.37, 0.5, 0.95, 0.999, 1.0)
SIZES = (1, 2, 7, 8, 9, 16, 17, 31, 65, 300, 1000)
BEYOND_MANY = 70_000  # values in a large sample, and in pieces
# what visits all n values of a search, with the line that the test adds to count them
VISITS = {
    "    int64_t kept = 0, reach = 0, k = 0;\n": 1,
    "    int64_t more = 0;\n": 1,
    "    int64_t found = 0;\n": 1,
}
ENTRY = """
double find(const double *x, int64_t n, double level, int threads, int64_t *steps)
{
    double *room = __builtin_malloc((size_t)(2 * n + 1) * sizeof(double));
    visited = 0;
    const double found = quantile(x, room, n, level, threads);
    __builtin_free(room);
    *steps = visited;
    return found;
}
"""


@functools.cache
def library(vectors: bool) -> ctypes.CDLL:
    """The selection alone, as vector code of this machine or as plain C."""
    storage = PARTS["storage"].read_text().replace("{variants}", "").replace("{functions}", "")
    quantiles = PARTS["quantiles"].read_text()
    for line, times in VISITS.items():
        assert quantiles.count(line) == times, line
        quantiles = quantiles.replace(line, f'{line}\n_Pragma("omp atomic")\nvisited += n;\n')
    parts = [PARTS["math"].read_text(), storage, "static int64_t visited;", quantiles, ENTRY]
    plain = "" if vectors else "#undef __AVX512F__\n"
    try:
        found = ctypes.CDLL(str(build.build(plain + "\n".join(parts), {})))
    except BackendError as error:
        if "no C compiler" in str(error):
            pytest.skip("no C compiler")
        raise
    found.find.restype = ctypes.c_double
    return found


@pytest.fixture(params=[True, False], ids=["vectors", "plain"])
def select(request):
    def find(x: Vector, level: float, threads: int = 1) -> tuple[float, int]:
        steps, before = ctypes.c_int64(), x.tobytes()
        found = library(request.param).find(
            ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(len(x)), ctypes.c_double(level), threads, ctypes.byref(steps)
        )
        assert x.tobytes() == before, "the values are read by others too"
        return found, steps.value

    return find


def interpolated(x: Vector, level: float) -> float:
    """The definition: the sorted values next to the place, and the line between them from the nearer end."""
    if np.isnan(x).any():
        return math.nan
    values = np.sort(x)
    place = level * float(len(values) - 1)
    k = int(place)
    values = [float(values[k]), float(values[min(k + 1, len(x) - 1)])]
    a, b, t = values[0] + 0.0, values[1] + 0.0, place - k
    if t == 0 or a == b:
        return a
    if b - a == math.inf:
        return a * (1 - t) + b * t
    return a + (b - a) * t if t < 0.5 else b - (b - a) * (1 - t)


def same(a: float, b: float) -> bool:
    """Equal bits; 0 and -0 differ, NaN equals NaN."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def random(n: int) -> Vector:
    return np.random.default_rng(n).normal(size=n)


def coins(n: int, share: float) -> NDArray[np.bool_]:
    return np.random.default_rng(n + 1).random(n) < share


def powers(n: int, low: int, high: int) -> Vector:
    return 2.0 ** np.random.default_rng(n + 2).integers(low, high, n)


def misleading(n: int) -> Vector:
    """The first sample reads nothing but the same large number."""
    x = random(n)
    x[(2 * np.arange(16) + 1) * n // 32] = 1e9
    return x


def worst_for_samples(n: int) -> Vector:
    """Whatever a search for the median reads is above it, so that a round drops few values."""
    x, left, k = np.full(n, -1.0), np.arange(n), (n - 1) // 2
    for round in range(n // 40):
        read = left[(2 * np.arange(16) + 1) * len(left) // 32]
        new = read[x[read] < 0]
        x[new] = n - round - np.arange(len(new)) / 32
        left = left[x[left] <= np.sort(x[read])[max(k * 16 // len(left) - 2, 0)]]
    return x


# values in orders and with ties that are bad for pivots
ORDERS: dict[str, Callable[[int], Vector]] = {
    "random": random,
    "ordered": lambda n: np.sort(random(n)),
    "reversed": lambda n: np.sort(random(n))[::-1].copy(),
    "organ pipe": lambda n: np.minimum(np.arange(float(n)), np.arange(float(n))[::-1]),
    "saw": lambda n: np.resize(np.arange(37.0), n),
    "denormal": lambda n: random(n) * 5e-324 * powers(n, 0, 60),
    "exponential": lambda n: 2.0 ** -(np.arange(n) % 1000),
    "equal": lambda n: np.full(n, -0.25),
    "two values": lambda n: np.where(coins(n, 0.5), 1.0, 2.0),
    "halves": lambda n: np.where(np.arange(n) < n // 2, 1e-3, 0.0),
    "seven values": lambda n: np.random.default_rng(n).permutation(np.resize(np.arange(7.0), n)),
    "mostly one": lambda n: np.where(coins(n, 0.1), random(n), 0.0),
    "one away": lambda n: np.where(np.arange(n) == n // 2, 1.0, 0.0),
    "zeros": lambda n: np.where(coins(n, 0.5), 0.0, -0.0),
    "every order of magnitude": lambda n: random(n) * powers(n, -1060, 900),
    "infinities": lambda n: np.where(coins(n, 0.3), np.copysign(np.inf, random(n)), random(n)),
    "extremes": lambda n: np.where(coins(n, 0.5), -1.7e308, 1.7e308),
    "sample misleads": misleading,
    "worst for samples": worst_for_samples,
}
SPREAD = [o for o in list(ORDERS)[:7] if o != "saw"]  # for these, samples halve what is left


@pytest.mark.sampled
@pytest.mark.parametrize("order", ORDERS)
def test_a_quantile_is_exact_for_every_order(order: str, select) -> None:
    for n in SIZES:
        x = ORDERS[order](n)
        for level in LEVELS:
            found, _ = select(x, level)
            assert same(found, interpolated(x, level)), (n, level)


@pytest.mark.sampled
@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_share_many_values_find_the_same(order: str, select) -> None:
    x = ORDERS[order](BEYOND_MANY if order != "worst for samples" else 2000)
    for level in (0.0, 0.37, 0.95):
        said = interpolated(x, level)
        for threads in (1, 3):
            assert same(select(x, level, threads)[0], said), (level, threads)


@pytest.mark.sampled
@pytest.mark.parametrize(("n", "order"), [
    *((3000 if order == "worst for samples" else 30_000, order) for order in ORDERS), *((2**20, order) for order in ("random", "organ pipe", "two values"))
])  # fmt: skip
def test_the_work_is_linear_for_every_order(n: int, order: str, select) -> None:
    """Counted in visits of values: at most 80 passes over all of them, and few where values are spread out.

    Where samples never help, the search bisects.
    """
    x = ORDERS[order](n)
    for level in (0.05, 0.5, 0.95):
        found, steps = select(x, level)
        assert same(found, interpolated(x, level))
        assert steps <= (6 if order in SPREAD else 80) * n, (level, steps / n)


def places_of_nan(n: int) -> Iterator[Vector]:
    for place in (0, 1, n // 2, n - 1):
        x = np.random.default_rng(n).normal(size=n)
        x[place] = np.nan
        yield x
    yield np.full(n, np.nan)
    yield np.where(np.arange(n) % 2 == 0, np.nan, 1.0)
    yield np.where(np.arange(n) == n - 1, np.nan, 1.0)


@pytest.mark.parametrize("n", [2, 16, 33, 500, 100_000])
def test_a_nan_anywhere_makes_the_quantile_nan(n: int, select) -> None:
    for x in places_of_nan(n):
        for level in (0.0, 0.5, 1.0):
            assert math.isnan(select(x, level)[0])


def test_of_no_values_it_is_zero(select) -> None:
    assert select(np.empty(0), 0.5)[0] == 0
