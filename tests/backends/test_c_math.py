"""The scalar functions of generated C against wider arithmetic, in units in the last place, and its 16-bit storage."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fibration.backends.c import language

HEADER = Path(__file__).parents[2] / "backends" / "c" / "math.h"
COMPILER = shutil.which("cc")
STRICT = ["-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
BUILDS = {"native": ["-O3", "-march=native", *STRICT], "plain": ["-O1", *STRICT]}

# Bounds in ulp for double and float, and a range with most of what is neither overflow nor underflow.
FUNCTIONS: dict[str, tuple[float, float, tuple[float, float], tuple[float, float]]] = {
    "exp": (1.1, 2.0, (-708.39, 709.78), (-87.33, 88.72)),
    "expm1": (2.0, 2.0, (-50.0, 709.78), (-20.0, 88.72)),
    "log": (1.1, 1.1, (0.0, 4.0), (0.0, 4.0)),
    "log1p": (1.6, 1.6, (-1.0, 4.0), (-1.0, 4.0)),
    "tanh": (3.0, 3.0, (-20.0, 20.0), (-10.0, 10.0)),
    "sigmoid": (3.0, 3.0, (-708.3, 40.0), (-87.3, 20.0)),
    "sqrt": (0.5001, 0.5001, (0.0, 4.0), (0.0, 4.0)),
    "softplus": (2.0, 2.0, (-708.3, 40.0), (-87.3, 20.0)),
    "atan": (2.0, 2.0, (-20.0, 20.0), (-20.0, 20.0)),
}
UNBOUNDED = {"log", "sqrt", "log1p", "atan"}
STORAGE = {
    "from_bf16": ("uint16_t", "float"),
    "from_f16": ("uint16_t", "float"),
    "to_bf16": ("float", "uint16_t"),
    "to_f16": ("float", "uint16_t"),
}
C_NAMES = {np.dtype(np.float64): ("double", "f64"), np.dtype(np.float32): ("float", "f32")}
Function = Callable[[np.ndarray], np.ndarray]


def test_every_function_of_the_backend_has_its_bound() -> None:
    assert FUNCTIONS.keys() == SPECIALS.keys() == set(language.FUNCTIONS)


def loops() -> dict[str, tuple[str, str]]:
    """Every function with the types of its argument and of its result."""
    return {f"{name}_{suffix}": (kind, kind) for name in FUNCTIONS for kind, suffix in C_NAMES.values()} | STORAGE


def compile_loops(folder: Path, flags: list[str]) -> tuple[ctypes.CDLL, str]:
    if COMPILER is None:
        pytest.skip("no C compiler")
    source, library = folder / "loops.c", folder / "loops.so"
    lines = [
        f"void all_{name}(long n, const {of} *restrict x, {to} *restrict y) {{\n"
        f"#pragma omp simd\n  for (long i = 0; i < n; i++) y[i] = {name}(x[i]);\n}}\n"
        for name, (of, to) in loops().items()
    ]
    source.write_text(HEADER.read_text() + "".join(lines))
    command = [COMPILER, "-std=c11", "-shared", "-fPIC", *flags, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library)), done.stderr


@pytest.fixture(scope="module", params=list(BUILDS))
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    library, _ = compile_loops(tmp_path_factory.mktemp("c"), BUILDS[request.param])

    def apply(name: str, x: np.ndarray, result: Any = None) -> np.ndarray:
        if result is None:
            name, result = f"{name}_{C_NAMES[x.dtype][1]}", x.dtype
        x = np.ascontiguousarray(x)
        y = np.empty(x.shape, result)
        getattr(library, f"all_{name}")(
            ctypes.c_long(x.size), x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p)
        )
        return y

    return apply


def sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def softplus(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def reference(name: str) -> Function:
    function: Function = {"sigmoid": sigmoid, "softplus": softplus, "atan": np.arctan}.get(name) or getattr(np, name)
    return function


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance to `exact`, which is wider than `result`, in places of the latter; at most half where it rounds to that."""
    info = np.finfo(result.dtype)
    _, exponent = np.frexp(exact)
    place = np.ldexp(np.ones_like(exact), np.maximum(exponent - 1, info.minexp) - info.nmant)
    with np.errstate(over="ignore"):
        same = result == exact.astype(result.dtype)
    with np.errstate(invalid="ignore"):
        distance = np.abs(result - exact) / place
    rounded: np.ndarray = np.where(same, np.minimum(distance, 0.5), distance)
    return rounded


def arguments(name: str, dtype: Any, count: int) -> np.ndarray:
    """Uniform over the range, uniform near 0, and of every magnitude down to the subnormal ones."""
    rng = np.random.default_rng(7)
    info = np.finfo(dtype)
    _, _, double, single = FUNCTIONS[name]
    low, high = double if dtype == np.float64 else single
    magnitude = np.exp2(rng.uniform(info.minexp - info.nmant + 1, info.maxexp, 2 * count).astype(np.longdouble))
    some = np.concatenate(
        [
            rng.uniform(low, high, 2 * count),
            rng.uniform(max(low, -1), 1, count),
            rng.uniform(max(low, -0.01), 0.01, count),
        ]
    )
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate([some, magnitude * rng.choice([-1, 1], magnitude.size)]).astype(dtype)
    limit = info.max if name in UNBOUNDED else high
    inside: np.ndarray = x[(x > low) & (x < limit) & (x != 0)]
    return inside


WIDER = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [pytest.param(0, marks=WIDER, id="double"), pytest.param(1, id="float")])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_is_within_its_bound(call: Callable[..., np.ndarray], name: str, kind: int) -> None:
    dtype, wider, count = ((np.float64, np.longdouble, 40_000), (np.float32, np.float64, 200_000))[kind]
    x = arguments(name, dtype, count)
    with np.errstate(all="ignore"):
        error = ulps(call(name, x), reference(name)(x.astype(wider)))
    worst = int(error.argmax())
    assert error[worst] <= FUNCTIONS[name][kind], (float(x[worst]).hex(), error[worst])


INF, NAN = math.inf, math.nan
SPECIALS: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e30, INF), (-1e30, 0.0), (5e-30, 1.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e30, INF), (-1e30, -1.0), (-60.0, -1.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (-1.0, NAN), (-1e-40, NAN), (1.0, 0.0)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (-1.0, -INF), (-1.5, NAN), (-1e30, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e30, 1.0), (-1e30, -1.0), (30.0, 1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0), (-1e30, 0.0), (50.0, 1.0)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (4.0, 2.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e30, 1e30), (-1e30, 0.0), (50.0, 50.0), (0.0, math.log(2)), (-0.0, math.log(2))],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2), (1e30, math.pi / 2), (-1e30, -math.pi / 2)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_have_exact_results(call: Callable[..., np.ndarray], name: str, dtype: Any) -> None:
    x, expected = np.array(SPECIALS[name], dtype).T
    result = call(name, x)
    np.testing.assert_array_equal(result, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(expected[number]))
    word: Any = np.uint64 if dtype == np.float64 else np.uint32
    payloads = np.arange(1000, dtype=word)
    for nan in (np.array([NAN], dtype), np.array([-NAN], dtype)):
        assert np.isnan(call(name, (nan.view(word) | payloads).view(dtype))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_special_values_do_not_change_their_neighbours_in_a_vector(call: Callable[..., np.ndarray], dtype: Any) -> None:
    """Whole vectors: a special lane must not spoil the lanes beside it."""
    specials = np.array([0.0, -0.0, INF, -INF, NAN, -1.0, 1e30, -1e30], dtype)
    for name in FUNCTIONS:
        ordinary = arguments(name, dtype, 100)[:256]
        mixed = np.stack([ordinary, np.resize(specials, 256)], 1).ravel()
        np.testing.assert_array_equal(call(name, mixed)[::2], call(name, ordinary))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exp_is_accurate_at_the_ends_of_its_range(call: Callable[..., np.ndarray], dtype: Any) -> None:
    info = np.finfo(dtype)
    wide = np.longdouble if dtype == np.float64 else np.float64
    for edge in (np.log(wide(info.max)), np.log(wide(info.smallest_normal))):
        word: Any = np.int64 if dtype == np.float64 else np.int32
        around = np.arange(-2000, 2001, dtype=word)
        x = (np.full(around.shape, edge, dtype).view(word) + around).view(dtype)
        with np.errstate(all="ignore"):
            exact = np.exp(x.astype(wide))
            rounded = exact.astype(dtype)
        result = call("exp", x)
        normal = (rounded >= info.smallest_normal) & np.isfinite(rounded)
        np.testing.assert_array_equal(result[np.isinf(rounded)], INF)
        assert (np.isfinite(result) | np.isinf(rounded)).all()
        assert (ulps(result[normal], exact[normal]) <= FUNCTIONS["exp"][0 if dtype == np.float64 else 1]).all()
        below = rounded < info.smallest_normal
        assert ((result[below] == 0) | (result[below] >= info.smallest_normal * wide(0.99))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exp_outside_its_range_is_zero_or_infinite(call: Callable[..., np.ndarray], dtype: Any) -> None:
    info = np.finfo(dtype)
    factors = np.concatenate([np.linspace(1.001, 3, 2000), np.geomspace(3, 1e30, 2000)])
    assert (call("exp", (np.log(info.smallest_normal) * factors).astype(dtype)) == 0).all()
    assert (call("exp", (np.log(info.max) * factors).astype(dtype)) == INF).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tiny_arguments_have_exact_results(call: Callable[..., np.ndarray], dtype: Any) -> None:
    least = np.finfo(dtype).smallest_subnormal
    x = np.concatenate([np.arange(-2000, 2001) * least, np.ldexp(np.array([-1.5, 1.5], dtype), -100)]).astype(dtype)
    for name in ("expm1", "log1p", "tanh", "atan"):
        np.testing.assert_array_equal(call(name, x), x)


def torch_floats(patterns: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(patterns.view(np.int16)).view(dtype).float().numpy()


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_every_16_bit_pattern_is_read_as_in_torch(
    call: Callable[..., np.ndarray], name: str, dtype: torch.dtype
) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    result, expected = call(f"from_{name}", patterns, np.float32), torch_floats(patterns, dtype)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(result), ~number)
    np.testing.assert_array_equal(result[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_float_is_rounded_to_16_bits_as_in_torch(
    call: Callable[..., np.ndarray], name: str, dtype: torch.dtype
) -> None:
    """At all values that 16 bits hold, halfway between them and a place beside, and at random."""
    exact = torch_floats(np.arange(65536, dtype=np.uint16), dtype).view(np.uint32)
    steps = np.array([0, 1, -1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], np.int64)
    bits = (exact[:, None].astype(np.int64) + steps).ravel().astype(np.uint32)
    ties = np.arange(0, 4097, dtype=np.float32) * np.float32(2.0**-26)  # halves and quarters of subnormal f16
    ends = np.array([65504, 65519.996, 65520, 65536, 3.4e38, INF, NAN], np.float32)
    random = np.random.default_rng(3).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), ties, -ties, ends, -ends, random.view(np.float32)])
    result = call(f"to_{name}", x, np.uint16)
    number = ~np.isnan(x)
    expected = torch.from_numpy(x).to(dtype).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(result[number], expected[number])
    assert np.isnan(torch_floats(result[~number], dtype)).all()


@pytest.mark.thorough
def test_the_compiler_vectorises_every_loop(tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("no C compiler")
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("the report of vectorised loops is gcc's")
    _, report = compile_loops(tmp_path, [*BUILDS["native"], "-fopt-info-vec"])
    lines = {line.split(":")[1] for line in report.splitlines() if "loop vectorized" in line}
    assert len(lines) == len(loops()), report
