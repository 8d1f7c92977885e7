"""Total variation and KL divergence (app:divergences): estimated from sampled tokens, and exact for tabulated policies.

All divergences go from the old policy to the new one. A log ratio is `log π_new(a|s) - log π_old(a|s)`, in nats.

The code follows the paper as it is written. Two consequences:

- **No ½.** The paper's TV estimators average `|r - 1|`, while `eq:dtv_def` and `eq:dtv_ratio` carry a ½. So the
  estimators estimate *twice* the total variation. All radii of APC-Obj and TV-TRPO are in the estimators' units; the
  radius of GSPO (`gspo_radius`) is in those of `eq:dtv_def`.
- **Random lengths.** Estimates are unbiased if actions are drawn from the old policy independently of the number of
  samples: a fixed number of samples at a state, or trajectories of fixed length. Where an action ends the trajectory
  (an end-of-sequence token), the length depends on the actions, and only the first form of
  `eq:dbar_tj_as_expectation` holds. The mean over trajectories is then an unbiased estimate of
  `E_τ[mean over t of f(r_t)]`. That is not `E_s[E_a[f(r)]]` with the state distribution of app:mdp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fibration.errors import BatchError
from fibration.trust_region.tokens import FLOATS, PerElement, Tokens

Integrand = Callable[[Tokens, Tensor], Tensor]


def _tv(tokens: Tokens, log_ratio: Tensor) -> Tensor:
    return tokens.deviations(log_ratio).abs()


def _kl(tokens: Tokens, log_ratio: Tensor) -> Tensor:
    return -tokens.numbers("log_ratio", log_ratio)


def _per(f: Integrand, log_ratio: Tensor, name: str, ids: Tensor, mask: Tensor | None) -> PerElement:
    tokens = Tokens("log_ratio", log_ratio, mask)
    elements = tokens.elements(name, ids)
    return elements.per_element(elements.mean(f(tokens, log_ratio)))


def tv_per_state(log_ratio: Tensor, state: Tensor, mask: Tensor | None = None) -> PerElement:
    """Returns `D̂_TV(s)`, the mean of `|r - 1|` over the tokens of each state (eq:dtv_mc).

    This is the paper's estimator, without the ½ of eq:dtv_def. For a fixed number of independent samples it is an
    unbiased estimate of `2·exact_tv`.

    - `log_ratio`: floating point, [N] or any one shape, in nats.
    - `state`: integers of the same shape, any ids.
    - `mask`: booleans, or 0 and 1.

    The result has a float64 value per state with an unmasked token, differentiable in `log_ratio`. Raises `BatchError`
    (values, shapes) and `HierarchyIndexError` (ids, a mask that keeps no token).
    """
    return _per(_tv, log_ratio, "state", state, mask)


def kl_per_state(log_ratio: Tensor, state: Tensor, mask: Tensor | None = None) -> PerElement:
    """Returns `D̂_KL(s)`, the mean of `-log r` over the tokens of each state, in nats (eq:dkl_mc).

    It is an unbiased estimate of `exact_kl` for a fixed number of independent samples. One batch may give a negative
    number.
    Arguments and errors as `tv_per_state`.
    """
    return _per(_kl, log_ratio, "state", state, mask)


def tv_mean(log_ratio: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mean of `|r - 1|` over all tokens (eq:dbar_mc, eq:dbar_from_traj), without the ½: float64, 0-d.

    It is the average of `tv_per_state` weighted by the counts. Arguments and errors as `tv_per_state`.
    """
    tokens = Tokens("log_ratio", log_ratio, mask)
    return _tv(tokens, log_ratio).mean()


def kl_mean(log_ratio: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mean of `-log r` over all tokens, in nats (eq:dbar_mc, eq:dbar_from_traj): float64, 0-d.

    Arguments and errors as `tv_per_state`.
    """
    tokens = Tokens("log_ratio", log_ratio, mask)
    return _kl(tokens, log_ratio).mean()


def tv_max(log_ratio: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the largest `tv_per_state` over the sampled states (eq:dtv_max_hat), without the ½: float64, 0-d.

    Its expectation is at least the largest expectation of the per-state estimates. Arguments and errors as
    `tv_per_state`.
    """
    return tv_per_state(log_ratio, state, mask).values.max()


def kl_max(log_ratio: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the largest `kl_per_state` over the sampled states, in nats: float64, 0-d.

    It estimates the maximum in the KL region of def:trust_region. Arguments and errors as `tv_per_state`.
    """
    return kl_per_state(log_ratio, state, mask).values.max()


def tv_per_trajectory(log_ratio: Tensor, trajectory: Tensor, mask: Tensor | None = None) -> PerElement:
    """Returns the mean of `|r - 1|` over the tokens of each trajectory (eq:dhat_traj), without the ½.

    `trajectory`: integer ids; `trajectories(offsets)` makes them for packed tokens. A trajectory without an unmasked
    token is left out. Other arguments and errors as `tv_per_state`.
    """
    return _per(_tv, log_ratio, "trajectory", trajectory, mask)


def kl_per_trajectory(log_ratio: Tensor, trajectory: Tensor, mask: Tensor | None = None) -> PerElement:
    """Returns the mean of `-log r` over each trajectory's tokens, in nats (eq:dhat_kl_traj): `-log s_τ` of GSPO.

    The derivation of GSPO from APC-Obj (app:apc_obj_to_gspo, step 3) omits the minus by mistake.
    Arguments and errors as `tv_per_trajectory`.
    """
    return _per(_kl, log_ratio, "trajectory", trajectory, mask)


def tv_trajectory_mean(log_ratio: Tensor, trajectory: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mean of `tv_per_trajectory` (eq:dbar_tj_mc_augmented), every trajectory once: float64, 0-d.

    It is unbiased for `2·exact_mean(exact_tv(...), ρ_tj)` if lengths do not depend on the actions. Otherwise it is
    unbiased only for the expectation over trajectories (see the module docstring). Arguments and errors as
    `tv_per_trajectory`.
    """
    return tv_per_trajectory(log_ratio, trajectory, mask).values.mean()


def kl_trajectory_mean(log_ratio: Tensor, trajectory: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mean of `kl_per_trajectory`, in nats (eq:dbar_tj_mc_augmented): float64, 0-d.

    It is unbiased for `exact_mean(exact_kl(...), ρ_tj)` under the condition of `tv_trajectory_mean`. Arguments and
    errors as `tv_per_trajectory`.
    """
    return kl_per_trajectory(log_ratio, trajectory, mask).values.mean()


# ---------------------------------------------------------------- tabulated policies


def exact_tv(old: Tensor, new: Tensor) -> Tensor:
    """Returns the total variation of tabulated policies, with its ½ (eq:dtv_def, eq:dtv_ratio): float64 [...].

    `old`, `new`: probabilities [..., A]. Each row sums to 1, within 1e-6 (1e-2 for half precision). The result lies in
    [0, 1]. Raises `BatchError`.
    """
    p, q = _policies(old, new)
    return (p - q).abs().sum(-1) / 2


def exact_kl(old: Tensor, new: Tensor) -> Tensor:
    """Returns the KL divergence from `old` to `new`, in nats (eq:dkl_def, eq:dkl_ratio): float64, in [0, inf].

    It is infinite if `new` gives 0 to an action that `old` takes. Actions that `old` never takes count 0. Arguments and
    errors as `exact_tv`.
    """
    p, q = _policies(old, new)
    taken = p > 0
    terms = p * (torch.where(taken, p, 1.0).log() - torch.where(taken, q, 1.0).log())
    return terms.sum(-1)


def exact_mean(divergences: Tensor, distribution: Tensor) -> Tensor:
    """Returns `E_{s∼ρ}[D(s)]` (eq:dbar_def, eq:dbar_tj_def): float64, 0-d.

    `divergences`: floating point [S], from `exact_tv` or `exact_kl`; `distribution`: probabilities [S]. The normalised
    state distribution gives the average divergence, the trajectory-length-normalised distribution gives the
    trajectory-normalised divergence (app:mdp). Raises `BatchError`.
    """
    weights = _probabilities("distribution", distribution)
    if divergences.shape != weights.shape or weights.ndim != 1:
        raise BatchError(
            f"distribution has shape {list(weights.shape)} for divergences of shape {list(divergences.shape)}",
            required="one probability per state, [S] and [S]",
        )
    reached = weights > 0  # a state that is never reached may have an infinite divergence
    return (weights[reached] * divergences[reached].double()).sum()


def exact_max(divergences: Tensor) -> Tensor:
    """Returns `max_s D(s)` (eq:dtv_max): float64, 0-d. `divergences`: floating point [S], S at least 1."""
    if not divergences.numel():
        raise BatchError("divergences hold no state", required="at least one")
    return divergences.double().max()


def _policies(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    p, q = _probabilities("old", old), _probabilities("new", new)
    if p.shape != q.shape:
        raise BatchError(f"new has shape {list(q.shape)}", required=f"{list(p.shape)}, the shape of old")
    return p, q


def _probabilities(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS or not tensor.ndim or not tensor.numel():
        found = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise BatchError(f"{name}: {found}", required="floating-point probabilities [..., A]")
    values = tensor.double()
    tolerance = 1e-2 if tensor.dtype in (torch.bfloat16, torch.float16) else 1e-6
    off = ~((values >= 0).all(-1) & ((values.sum(-1) - 1).abs() <= tolerance))
    if bool(off.any()):
        row = off.nonzero()[0].tolist()
        given = values[tuple(row)]
        raise BatchError(
            f"{name}{row if row else ''} is no distribution",
            required="probabilities of at least 0 that sum to 1",
            found=f"sum {float(given.sum()):g}, smallest {float(given.min()):g}",
        )
    return values
