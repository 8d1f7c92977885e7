"""fibration: declare the loss of a language model for RL, prove its laws, compile it, and train with it.

Declarations and laws load at once. The names in `_LAZY`, most of which need torch, load on first use, and so does
`fibration.head`.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from fibration.errors import (
    AuditError,
    BackendError,
    BatchError,
    FibrationError,
    HierarchyIndexError,
    LawError,
    MissingDependency,
    NoHierarchy,
    ParameterError,
    PrecisionWarning,
    RanksError,
    RolloutsError,
    SpecError,
    TrainerError,
)
from fibration.language.advantages import centred, standardised
from fibration.language.assumptions import balanced, populated
from fibration.language.atoms import (
    Attribute,
    Parameter,
    Stratum,
    advantage,
    channel_sign,
    count,
    density,
    gated,
    mass,
    pull,
    residual,
    reward,
    strata,
    token_log_ratio,
)
from fibration.language.conditions import equal, on_policy, one, same
from fibration.language.decompositions import Decomposition, decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.language.gates import (
    Gate,
    aggregate_gate,
    clip_gate,
    dual_clip_gate,
    identity_gate,
    log_clip_gate,
    pessimistic_clip_gate,
    zero_gate,
)
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, MarkovKernel, proportional, uniform
from fibration.language.objectives import Objective, constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import (
    absolute,
    atan,
    clip,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    sigmoid,
    sign,
    softplus,
    sqrt,
    stop,
    tanh,
    where,
)
from fibration.language.order import after, before, position
from fibration.language.penalties import Penalty
from fibration.language.policies import Policy, log_prob, policies
from fibration.language.report import Report
from fibration.language.statistics import deviation, largest, mean, quantile, some, total
from fibration.laws.equivalent.decide import equivalent
from fibration.laws.verify import verify as _verify  # noqa: F401  (gives Hierarchy its `verify`)

if TYPE_CHECKING:
    from fibration import head as head
    from fibration.auditing import Audit, StepAudit, audit, audit_step
    from fibration.cli.run import run
    from fibration.language.loading import load
    from fibration.pipeline import compile
    from fibration.rollouts.file import Rollouts, load_rollouts
    from fibration.runtime.operator import Operator

_LAZY = {
    "Audit": "fibration.auditing",
    "audit": "fibration.auditing",
    "StepAudit": "fibration.auditing",
    "audit_step": "fibration.auditing",
    "compile": "fibration.pipeline",
    "load": "fibration.language.loading",
    "Operator": "fibration.runtime.operator",
    "Rollouts": "fibration.rollouts",
    "load_rollouts": "fibration.rollouts",
    "run": "fibration.cli.run",
}

__all__ = [
    "Attribute", "Audit", "AuditError", "BackendError", "BatchError", "Decomposition", "Fibration", "FibrationError",
    "Gate", "Hierarchy", "HierarchyIndexError", "LawError", "MarkovKernel", "MissingDependency", "NoHierarchy",
    "Objective", "Operator", "Parameter", "ParameterError", "Penalty", "Policy", "PrecisionWarning", "RanksError",
    "Report", "Rollouts", "RolloutsError", "SpecError", "StepAudit", "Stratum", "TrainerError", "absolute", "advantage",
    "after", "aggregate_gate", "atan", "audit", "audit_step", "balanced", "before", "centred", "channel_sign", "clip",
    "clip_gate", "compile", "constant_normaliser", "count", "decomposition", "density", "deviation", "dual_clip_gate",
    "equal", "equivalent", "exp", "expm1", "gated", "identity_gate", "largest", "load", "load_rollouts", "log", "log1p",
    "log_clip_gate", "log_prob", "log_ratio", "mass", "maximum", "mean", "minimum", "on_policy", "one",
    "pessimistic_clip_gate", "policies", "populated", "position", "proportional", "pull", "quantile", "ratio_deviation",
    "residual", "reward", "run", "same", "sigmoid", "sign", "signed_log_ratio", "softplus", "some", "sqrt",
    "standardised", "stop", "strata", "tanh", "token_log_ratio", "token_mean", "total", "trajectory_mean", "uniform",
    "where", "zero_gate",
]  # fmt: skip


def _shown_by(function: str) -> Any:
    """Returns a method for notebooks. It loads `fibration.printing.notebooks` when it is called."""
    return lambda self: getattr(import_module("fibration.printing.notebooks"), function)(self)


Hierarchy._repr_markdown_ = _shown_by("hierarchy")  # type: ignore[attr-defined]
Hierarchy._repr_latex_ = _shown_by("formulas")  # type: ignore[attr-defined]
Report._repr_markdown_ = _shown_by("report")  # type: ignore[attr-defined]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("fibration")
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name == "head":  # a room; importing it makes it an attribute
        return import_module("fibration.head")
    raise AttributeError(f"module 'fibration' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
