"""fibration: declare hierarchies of importance-ratio gates, prove their laws, compile them, train with them.

Declarations are imported at once; everything that needs torch or sympy is imported when it is first used.
"""

from __future__ import annotations

from fibration.decomposition import Decomposition, decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.errors import FibrationError, LawError, SpecError
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
from fibration.symbols import Attribute, Parameter, Stratum, advantage, count, density, gated, residual, strata, token_log_ratio, total

