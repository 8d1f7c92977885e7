"""The result of each opcode in every lane, by the opcode's complete name. Other opcodes are unknown and a fault.

Registers hold bits: unsigned numpy arrays, and bools for predicates. `read` and `bits` convert between bits and
numbers. Approximations (`ex2.approx`, ...) are rounded correctly, except where generated code has to refine a coarse
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx.fault import Fault

Lanes = NDArray[Any]
SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
BITS, REALS, HALVES = ("b16", "b32", "b64"), ("f32", "f64"), ("f16", "bf16")


def width(kind: str) -> int:
    """In bits."""
    return 1 if kind == "pred" else int(kind.lstrip("subf"))


DTYPES = {
    "pred": np.dtype(bool),
    **{k: np.dtype(f"i{width(k) // 8}") for k in SIGNED},
    **{k: np.dtype(f"u{width(k) // 8}") for k in (*UNSIGNED, *BITS, "bf16")},
    **{k: np.dtype(f"f{width(k) // 8}") for k in (*REALS, "f16")},
}


def read(held: Lanes, kind: str) -> Lanes:
    """Numbers of a kind, from a register's bits."""
    if held.dtype.itemsize != DTYPES[kind].itemsize or (held.dtype == bool) != (kind == "pred"):
        raise Fault(f"a register of {held.dtype} is read as {kind}")
    if kind == "bf16":
        return (held.astype(np.uint32) << 16).view(np.float32)
    return held.view(DTYPES[kind])


def bits(numbers: Lanes, kind: str) -> Lanes:
    """A register's bits, from numbers."""
    if kind == "pred":
        return np.asarray(numbers, bool)
    if kind == "bf16":  # to nearest, ties to even
        wide = np.asarray(numbers, np.float32).view(np.uint32)
        rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
        return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16)
    return np.asarray(numbers, DTYPES[kind]).view(f"u{DTYPES[kind].itemsize}")


@dataclass(frozen=True)
class Opcode:
    """`compute` takes numbers of the kinds `reads`, and gives numbers of the kind `writes`."""

    reads: tuple[str, ...]
    writes: str
    compute: Callable[..., Lanes]


# ------------------------------------------------------------ rounding


def flushed(compute: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """`.ftz`: numbers below the normal ones are 0, read or written."""

    def flush(x: Lanes) -> Lanes:
        return np.where(np.abs(x) < np.finfo(x.dtype).smallest_normal, np.copysign(x.dtype.type(0), x), x)

    return lambda *operands: flush(compute(*map(flush, operands)))


def fma(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """The product is exact for float32 and has 64 bits for float64; so has the sum, before it has the result's."""
    return (x.astype(np.longdouble) * y + z).astype(x.dtype)


def of_both_halves(kind: str, compute: Callable[..., Lanes], x: Lanes, y: Lanes) -> Lanes:
    """Of two numbers in the halves of a register."""
    low, high = (
        bits(compute(*(read((z >> shift & 0xFFFF).astype(np.uint16), kind) for z in (x, y))), kind).astype(np.uint32)
        for shift in (0, 16)
    )
    return low | high << 16


def half_reciprocal(x: Lanes) -> Lanes:
    """Of the upper half of the bits of a double, and only the upper half of the result's."""
    upper = np.uint64(0xFFFFFFFF00000000)
    return ((1 / (x.view(np.uint64) & upper).view(np.float64)).view(np.uint64) & upper).view(np.float64)


def whole(kind: str, rounded: Callable[[Lanes], Lanes], x: Lanes) -> Lanes:
    """To whole numbers: the nearest there is to what lies beyond, 0 for NaN."""
    dtype = DTYPES[kind]
    ends = np.iinfo(dtype)
    x = rounded(x.astype(np.longdouble))
    return np.where(np.isnan(x), 0, np.clip(x, ends.min, ends.max)).astype(dtype)


# ------------------------------------------------------------ whole numbers


def left(x: Lanes, by: Lanes) -> Lanes:
    most = 8 * x.itemsize - 1
    return np.where(by > most, 0, x << np.minimum(by, most).astype(x.dtype)).astype(x.dtype)


def right(x: Lanes, by: Lanes) -> Lanes:
    most = 8 * x.itemsize - 1
    inside = x >> np.minimum(by, most).astype(x.dtype)
    return np.where((by > most) & (x.dtype.kind == "u"), 0, inside).astype(x.dtype)


def field(x: Lanes, first: Lanes, length: Lanes) -> Lanes:
    """`length` bits from the bit `first` on."""
    return right(x, first) & (left(np.ones_like(x), length) - np.ones_like(x))


def signed_field(x: Lanes, first: Lanes, length: Lanes) -> Lanes:
    """The same as a number with a sign: that of its last bit, and of `x` for bits that `x` has not."""
    width = np.asarray(8 * x.itemsize, first.dtype)
    unused = width - np.minimum(width, first + length)
    return np.where(length == 0, 0, right(left(x, unused), first + unused)).astype(x.dtype)


def bytes_of(x: Lanes, y: Lanes, places: Lanes) -> Lanes:
    """Four bytes of `y` and `x`, by the digits of `places`. No digit may ask for a sign."""
    both = np.stack(np.broadcast_arrays(x, y), -1).astype("<u4").view(np.uint8)
    digits = np.broadcast_to(places, both.shape[:-1])[..., None].astype(int) >> np.arange(0, 16, 4) & 15
    return np.take_along_axis(both, digits, -1).view("<u4")[..., 0]


def long_product(kind: str, x: Lanes, y: Lanes) -> Lanes:
    return x.astype(DTYPES[kind]) * y.astype(DTYPES[kind])


# ------------------------------------------------------------ comparisons

COMPARED: dict[str, Callable[..., Lanes]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def comparisons(kind: str, several: str = "") -> Iterator[tuple[str, Callable[..., Lanes]]]:
    """Of whole numbers or bits; of reals, with one that a NaN fails and one that it passes (`u`)."""
    if kind in BITS:
        yield from ((name, COMPARED[name]) for name in ("eq", "ne"))
        return
    if kind in (*SIGNED, *UNSIGNED):
        yield from COMPARED.items()
        return

    def lacking(x: Lanes, y: Lanes) -> Lanes:
        return np.isnan(x) | np.isnan(y)

    for name, compare in COMPARED.items():
        yield name, lambda x, y, compare=compare: compare(x, y) & ~lacking(x, y)
        yield f"{name}u", lambda x, y, compare=compare: compare(x, y) | lacking(x, y)
    yield "num", lambda x, y: ~lacking(x, y)
    yield "nan", lacking


# ------------------------------------------------------------ the table


def _rows() -> Iterator[tuple[str, Opcode]]:
    for k in (*SIGNED, *UNSIGNED, *REALS):
        for name, compute in (("add", np.add), ("sub", np.subtract)):
            yield f"{name}.{k}", Opcode((k, k), k, compute)
        least, most = (np.fmin, np.fmax) if k in REALS else (np.minimum, np.maximum)
        yield f"min.{k}", Opcode((k, k), k, least)
        yield f"max.{k}", Opcode((k, k), k, most)
    for k in (*SIGNED, *REALS):
        yield f"neg.{k}", Opcode((k,), k, np.negative)
        yield f"abs.{k}", Opcode((k,), k, np.abs)
    yield "abs.ftz.f32", Opcode(("f32",), "f32", flushed(np.abs))
    for k in REALS:
        for name, compute in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)):
            yield f"{name}.rn.{k}", Opcode((k, k), k, compute)
        yield f"mul.{k}", Opcode((k, k), k, np.multiply)
        yield f"fma.rn.{k}", Opcode((k, k, k), k, fma)
        yield f"sqrt.rn.{k}", Opcode((k,), k, np.sqrt)
    for k, (name, compute) in product(HALVES, (("min", np.fmin), ("max", np.fmax))):
        yield f"{name}.{k}", Opcode((k, k), k, compute)
        yield f"{name}.{k}x2", Opcode(("b32", "b32"), "b32", partial(of_both_halves, k, compute))
    yield "prmt.b32", Opcode(("b32", "b32", "b32"), "b32", bytes_of)
    yield "div.full.f32", Opcode(("f32", "f32"), "f32", np.divide)
    yield "ex2.approx.f32", Opcode(("f32",), "f32", np.exp2)
    yield "ex2.approx.ftz.f32", Opcode(("f32",), "f32", flushed(np.exp2))
    yield "lg2.approx.f32", Opcode(("f32",), "f32", np.log2)
    yield "rcp.approx.ftz.f64", Opcode(("f64",), "f64", half_reciprocal)
    for k in (*SIGNED, *UNSIGNED):
        yield f"mul.lo.{k}", Opcode((k, k), k, np.multiply)
        yield f"mad.lo.{k}", Opcode((k, k, k), k, lambda x, y, z: x * y + z)
        yield f"shr.{k}", Opcode((k, "u32"), k, right)
    for k, long in (("s32", "s64"), ("u32", "u64")):
        yield f"mul.wide.{k}", Opcode((k, k), long, partial(long_product, long))
        yield f"mad.wide.{k}", Opcode((k, k, long), long, lambda x, y, z, long=long: long_product(long, x, y) + z)
    for k in ("pred", *BITS):
        for name, compute in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
            yield f"{name}.{k}", Opcode((k, k), k, compute)
        yield f"not.{k}", Opcode((k,), k, np.bitwise_not)
    for k in BITS:
        yield f"shl.{k}", Opcode((k, "u32"), k, left)
    for k in ("u32", "u64"):
        yield f"bfe.{k}", Opcode((k, "u32", "u32"), k, field)
    for k in ("s32", "s64"):
        yield f"bfe.{k}", Opcode((k, "u32", "u32"), k, signed_field)
    for k in (*SIGNED, *UNSIGNED, *BITS, *REALS, *HALVES):
        for name, compute in comparisons(k):
            yield f"setp.{name}.{k}", Opcode((k, k), "pred", compute)
    for k in (*SIGNED, *UNSIGNED, *BITS, *REALS):
        yield f"selp.{k}", Opcode((k, k, "pred"), k, lambda x, y, p: np.where(p, x, y))
    yield from _conversions()


def _conversions() -> Iterator[tuple[str, Opcode]]:
    def becomes(kind: str) -> Callable[[Lanes], Lanes]:
        return lambda x: x.astype(DTYPES[kind])

    for k, to in product((*SIGNED, *UNSIGNED), repeat=2):
        yield f"cvt.{to}.{k}", Opcode((k,), to, becomes(to))
    for k, to in product((*SIGNED, *UNSIGNED), REALS):
        yield f"cvt.rn.{to}.{k}", Opcode((k,), to, becomes(to))
        yield f"cvt.rzi.{k}.{to}", Opcode((to,), k, partial(whole, k, np.trunc))
    for k in REALS:
        for name, compute in (("rmi", np.floor), ("rpi", np.ceil), ("rzi", np.trunc), ("rni", np.rint)):
            yield f"cvt.{name}.{k}.{k}", Opcode((k,), k, compute)
        for half in HALVES:
            yield f"cvt.{k}.{half}", Opcode((half,), k, becomes(k))
            yield f"cvt.rn.{half}.{k}", Opcode((k,), half, lambda x: x)
    yield "cvt.rmi.ftz.f32.f32", Opcode(("f32",), "f32", flushed(np.floor))
    yield "cvt.f64.f32", Opcode(("f32",), "f64", becomes("f64"))
    yield "cvt.rn.f32.f64", Opcode(("f64",), "f32", becomes("f32"))


OPCODES = dict(_rows())
