"""The float64 meaning of every scalar operator: one row each, for numbers and for numpy arrays alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fibration.compiler.ir import SCALAR_ARITY


def _sigmoid(x: Any) -> Any:
    # 1/(1 + exp(-x)) without overflow on either side
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


MEANING: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "exp": np.exp, "log": np.log, "expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "sigmoid": _sigmoid,
    "sqrt": np.sqrt, "lt": np.less, "le": np.less_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "select": np.where,
}  # fmt: skip

if MEANING.keys() != SCALAR_ARITY.keys() - {"arg", "const"}:
    raise AssertionError("fibration.compiler.scalars.MEANING lacks a row, or has one too many")


def compute(op: str, *args: float) -> float:
    """One operator on numbers; infinities and NaN come back as such, without a warning."""
    with np.errstate(all="ignore"):
        return float(MEANING[op](*(np.float64(a) for a in args)))
