"""fibration: declare the loss of a language model for RL, prove its laws, compile it, and train with it.

Every name loads on first use, and with it what it needs: proofs need sympy, operators need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fibration import head as head
    from fibration.auditing import Audit, StepAudit, audit, audit_step, lift
    from fibration.cli.run import run
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
    from fibration.language.declared import Policy, log_prob, policies
    from fibration.language.gates import (
        Decomposition,
        Gate,
        aggregate_gate,
        clip_gate,
        decomposition,
        dual_clip_gate,
        identity_gate,
        log_clip_gate,
        log_ratio,
        pessimistic_clip_gate,
        ratio_deviation,
        signed_log_ratio,
        zero_gate,
    )
    from fibration.language.hierarchy import Hierarchy
    from fibration.language.loading import load
    from fibration.language.objectives import Objective, Penalty, constant_normaliser, token_mean, trajectory_mean
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
    from fibration.language.report import Report
    from fibration.language.statistics import (
        after,
        before,
        centred,
        deviation,
        largest,
        mean,
        position,
        quantile,
        some,
        standardised,
        total,
    )
    from fibration.language.strata import Fibration, MarkovKernel, balanced, populated, proportional, uniform
    from fibration.laws.equivalent.decide import equivalent
    from fibration.pipeline import compile
    from fibration.rollouts.file import Rollouts, load_rollouts
    from fibration.runtime.operator import Operator

# The module of every name.
_NAMES = {
    "auditing": "Audit StepAudit audit audit_step lift",
    "cli.run": "run",
    "errors": "AuditError BackendError BatchError FibrationError HierarchyIndexError LawError "
    "MissingDependency NoHierarchy ParameterError PrecisionWarning RanksError "
    "RolloutsError SpecError TrainerError",
    "language.atoms": "Attribute Parameter Stratum advantage channel_sign count density gated mass pull "
    "residual reward strata token_log_ratio",
    "language.conditions": "equal on_policy one same",
    "language.declared": "Policy log_prob policies",
    "language.gates": "Decomposition Gate aggregate_gate clip_gate decomposition dual_clip_gate identity_gate "
    "log_clip_gate log_ratio pessimistic_clip_gate ratio_deviation signed_log_ratio zero_gate",
    "language.hierarchy": "Hierarchy",
    "language.loading": "load",
    "language.objectives": "Objective Penalty constant_normaliser token_mean trajectory_mean",
    "language.operators": "absolute atan clip exp expm1 log log1p maximum minimum sigmoid sign softplus sqrt "
    "stop tanh where",
    "language.report": "Report",
    "language.statistics": "after before centred deviation largest mean position quantile some standardised total",
    "language.strata": "Fibration MarkovKernel balanced populated proportional uniform",
    "laws.equivalent.decide": "equivalent",
    "pipeline": "compile",
    "rollouts": "Rollouts load_rollouts",
    "runtime.operator": "Operator",
}  # fmt: skip
_MODULES = {name: f"fibration.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Attribute", "Audit", "AuditError", "BackendError", "BatchError", "Decomposition", "Fibration", "FibrationError",
    "Gate", "Hierarchy", "HierarchyIndexError", "LawError", "MarkovKernel", "MissingDependency", "NoHierarchy",
    "Objective", "Operator", "Parameter", "ParameterError", "Penalty", "Policy", "PrecisionWarning", "RanksError",
    "Report", "Rollouts", "RolloutsError", "SpecError", "StepAudit", "Stratum", "TrainerError", "absolute", "advantage",
    "after", "aggregate_gate", "atan", "audit", "audit_step", "balanced", "before", "centred", "channel_sign", "clip",
    "clip_gate", "compile", "constant_normaliser", "count", "decomposition", "density", "deviation", "dual_clip_gate",
    "equal", "equivalent", "exp", "expm1", "gated", "identity_gate", "largest", "lift", "load", "load_rollouts", "log",
    "log1p", "log_clip_gate", "log_prob", "log_ratio", "mass", "maximum", "mean", "minimum", "on_policy", "one",
    "pessimistic_clip_gate", "policies", "populated", "position", "proportional", "pull", "quantile", "ratio_deviation",
    "residual", "reward", "run", "same", "sigmoid", "sign", "signed_log_ratio", "softplus", "some", "sqrt",
    "standardised", "stop", "strata", "tanh", "token_log_ratio", "token_mean", "total", "trajectory_mean", "uniform",
    "where", "zero_gate",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("fibration")
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if name in ("head", "errors"):  # importing a module makes it an attribute
        return import_module(f"fibration.{name}")
    raise AttributeError(f"module 'fibration' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
