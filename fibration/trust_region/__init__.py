"""Trust regions for sampled tokens: divergences and their estimates, TRPO's radius, TV-TRPO's maximiser, APC-Obj.

The functions take tensors over tokens; nothing here is declared or compiled. They compute and return float64 on the
device of the inputs, for inputs of any floating dtype.

May import: `errors`.
"""

from fibration.trust_region.apc import (
    Regime,
    apc_gate,
    apc_gated_ratio,
    apc_maximiser,
    apc_objective,
    apc_objective_discounted,
    apc_projected_objective,
    apc_regimes,
    apc_surrogate,
    retract,
)
from fibration.trust_region.divergences import (
    exact_kl,
    exact_max,
    exact_mean,
    exact_tv,
    kl_max,
    kl_mean,
    kl_per_state,
    kl_per_trajectory,
    kl_trajectory_mean,
    tv_max,
    tv_mean,
    tv_per_state,
    tv_per_trajectory,
    tv_trajectory_mean,
)
from fibration.trust_region.maximiser import (
    TvTrpoMaximiser,
    UnitMaximiser,
    apc_radius,
    centred,
    tv_trpo_maximiser,
    tv_trpo_objective,
    unit_maximiser,
)
from fibration.trust_region.radius import gspo_radius, gspo_threshold, trpo_radius
from fibration.trust_region.tokens import PerElement, steps, trajectories

__all__ = [
    "PerElement",
    "Regime",
    "TvTrpoMaximiser",
    "UnitMaximiser",
    "apc_gate",
    "apc_gated_ratio",
    "apc_maximiser",
    "apc_objective",
    "apc_objective_discounted",
    "apc_projected_objective",
    "apc_radius",
    "apc_regimes",
    "apc_surrogate",
    "centred",
    "exact_kl",
    "exact_max",
    "exact_mean",
    "exact_tv",
    "gspo_radius",
    "gspo_threshold",
    "kl_max",
    "kl_mean",
    "kl_per_state",
    "kl_per_trajectory",
    "kl_trajectory_mean",
    "retract",
    "steps",
    "trajectories",
    "trpo_radius",
    "tv_max",
    "tv_mean",
    "tv_per_state",
    "tv_per_trajectory",
    "tv_trajectory_mean",
    "tv_trpo_maximiser",
    "tv_trpo_objective",
    "unit_maximiser",
]
