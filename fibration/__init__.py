"""fibration: declare hierarchies of importance-ratio gates, prove their laws, compile them, train with them.

Declarations are imported at once; everything that needs torch or sympy is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fibration.decomposition import Decomposition, decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.errors import (
    BackendError,
    BatchError,
    FibrationError,
    HierarchyIndexError,
    LawError,
    MissingDependency,
    ParameterError,
    RolloutsError,
    SpecError,
)
from fibration.expressions import (
    absolute,
    clip,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    sigmoid,
    sign,
    sqrt,
    tanh,
    where,
)
from fibration.gates import (
    Gate,
    aggregate_gate,
    clip_gate,
    dual_clip_gate,
    identity_gate,
    log_clip_gate,
    pessimistic_clip_gate,
    zero_gate,
)
from fibration.kernels import MarkovKernel, proportional, uniform
from fibration.objective import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.spec import Fibration, Hierarchy
from fibration.symbols import (
    Attribute,
    Parameter,
    Stratum,
    advantage,
    count,
    density,
    gated,
    residual,
    strata,
    token_log_ratio,
    total,
)

if TYPE_CHECKING:
    from fibration.compiler import compile
    from fibration.loading import load
    from fibration.rollouts import Rollouts, load_rollouts

__all__ = [
    "Decomposition",
    "Fibration",
    "Hierarchy",
    "MarkovKernel",
    "Objective",
    "Rollouts",
    "compile",
    "constant_normaliser",
    "decomposition",
    "load",
    "load_rollouts",
    "log_ratio",
    "proportional",
    "ratio_deviation",
    "signed_log_ratio",
    "token_mean",
    "trajectory_mean",
    "uniform",
]

_LAZY = {
    "compile": "fibration.compiler",
    "load": "fibration.loading",
    "Rollouts": "fibration.rollouts",
    "load_rollouts": "fibration.rollouts",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fibration' has no attribute {name!r}")
