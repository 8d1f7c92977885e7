"""What is searched: hierarchies of several levels, and losses of one level, as many of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from arms import (
    ARMS,
    NAMES,
    SPREAD,
    Arm,
    M,
    both,
    budgets,
    domain,
    prompt_group,
    shipped,
    token,
    tower,
    trajectory,
)
from tasks import DOMAINS

from fibration import Gate, Hierarchy, Parameter, Stratum, clip_gate, residual, tanh, zero_gate

SCALES = (0.5, 1.0, 2.0)
PACE, WITHIN, NARROWEST, WIDEST = 0.3, 0.75, 0.002, 0.4  # of budgets that adapt: docs/how-to/adaptive_budgets.md


def smooth_gate(bound: Parameter) -> Gate:
    """`bound · tanh(residual / bound)`: slope 1 at 0, and no corner."""
    return Gate(bound * tanh(residual / bound))


def chain(
    name: str,
    *above: Stratum,
    gate: Callable[[Parameter], Gate] = clip_gate,
    ceiling: float | None = None,
    split: bool = True,
    tokens: bool = True,
) -> Callable[[], Hierarchy]:
    """Inward gates of one kind on tokens and on the strata above them, from fine to coarse.

    `split` has a channel for log ratios of each sign, as FiberPO; without `tokens` what a token adds to its trajectory
    is dropped, as in GSPO.
    """

    def declare() -> Hierarchy:
        own = gate(Parameter("epsilon", default=0.2)).inward(ceiling)  # before `per`, so that ceilings are in nats
        gates = {token: (own.per(SPREAD) if above else own) if tokens else zero_gate()}
        for level in above:
            coarse = gate(Parameter(f"C_{level}", per_channel=split, default=0.1)).inward(ceiling)
            gates[level] = coarse if level is trajectory else coarse.per(M)
        dropped = "what single tokens do beyond their trajectory is dropped"
        return tower(name, gates, split, {} if tokens else {"first_order": dropped})

    return declare


def of_means(levels: Iterable[str], plus: float, epsilon: float | None = None) -> Callable[[float], dict]:
    """Bounds of hierarchies that are not split by sign."""
    own = {} if epsilon is None else {"epsilon": epsilon}
    bounds = {**{f"C_{level}": plus for level in levels}, **own}
    return lambda trust: {name: trust * bound for name, bound in bounds.items()}


def follow(known: dict, measured: Mapping[str, float]) -> None:
    """Budgets of domains that follow what is measured: within three times of four, on both channels."""
    budget = known.setdefault("C_domain", {})
    for label in range(len(DOMAINS)):
        pair = budget.get(label, {"+": 0.1, "-": 0.1})
        for sign, bound in pair.items():
            drift = measured[f"domain/{sign}/drift[domain={label}]"]
            pair[sign] = min(max(bound * math.exp(PACE * (WITHIN - (drift <= bound))), NARROWEST), WIDEST)
        budget[label] = pair


def scaled(parameters: Callable[[float], dict], **more: Callable[[float], object]) -> Callable[[float], dict]:
    return lambda trust: {**parameters(trust), **{name: value(trust) for name, value in more.items()}}


EVERYWHERE = (trajectory, prompt_group, domain)
tight = scaled(budgets(NAMES, 0.2), C_domain=lambda trust: {"+": 0.02 * trust, "-": 0.02 * trust})
HIERARCHIES: dict[str, Arm] = {
    "clip_trajectory": Arm(chain("clip_trajectory", trajectory), budgets(NAMES[:1], 0.2), SCALES),
    "clip_domain": Arm(chain("clip_domain", *EVERYWHERE), budgets(NAMES, 0.2), SCALES),
    "clip_no_group": Arm(chain("clip_no_group", trajectory, domain), budgets(("trajectory", "domain"), 0.2), SCALES),
    "clip_tight_domain": Arm(chain("clip_tight_domain", *EVERYWHERE), tight, SCALES),
    "clip_ceiling": Arm(chain("clip_ceiling", *EVERYWHERE, ceiling=0.3), budgets(NAMES, 0.2), SCALES),
    "smooth_trajectory": Arm(chain("smooth_trajectory", trajectory, gate=smooth_gate), budgets(NAMES[:1], 0.2), SCALES),
    "smooth_domain": Arm(chain("smooth_domain", *EVERYWHERE, gate=smooth_gate), budgets(NAMES, 0.2), SCALES),
    "adaptive_domain": Arm(chain("adaptive_domain", *EVERYWHERE), budgets(NAMES[:2], 0.2), SCALES, adapt=follow),
    "mean_trajectory": Arm(chain("mean_trajectory", trajectory, split=False), of_means(NAMES[:1], 0.03, 0.2), SCALES),
    "mean_domain": Arm(chain("mean_domain", *EVERYWHERE, split=False), of_means(NAMES, 0.03, 0.2), SCALES),
    "gspo_group": Arm(
        chain("gspo_group", trajectory, prompt_group, split=False, tokens=False), of_means(NAMES[:2], 0.03), SCALES
    ),
    "gspo_domain": Arm(chain("gspo_domain", *EVERYWHERE, split=False, tokens=False), of_means(NAMES, 0.03), SCALES),
}
ONE_LEVEL: dict[str, Arm] = {
    "clip_token": Arm(chain("clip_token"), budgets((), 0.2), SCALES),
    "ceiling_token": Arm(chain("ceiling_token", ceiling=0.3), budgets((), 0.2), SCALES),
    "smooth_token": Arm(chain("smooth_token", gate=smooth_gate), budgets((), 0.2), SCALES),
    "grpo_high": Arm(shipped("grpo"), both(0.2, 0.4), SCALES),
    "grpo_low": Arm(shipped("grpo"), both(0.4, 0.2), SCALES),
    "gspo_high": Arm(shipped("gspo"), both(0.03, 0.1), SCALES),
    "gspo_low": Arm(shipped("gspo"), both(0.1, 0.03), SCALES),
    "dapo": Arm(shipped("dapo"), both(0.2, 0.28), SCALES),
    "ppo": Arm(shipped("ppo"), both(0.2, 0.2), SCALES),
    "sapo": Arm(shipped("sapo"), lambda trust: {"tau_pos": 1 / trust, "tau_neg": 1.05 / trust}, SCALES),
    "dppo_kl": Arm(shipped("dppo_kl"), both(0.05, 0.05), SCALES),
    "gmpo": Arm(shipped("gmpo"), both(0.2, 0.2), SCALES),
}
CANDIDATES = {**HIERARCHIES, **ONE_LEVEL}
LOSSES = {**ARMS, **CANDIDATES}
