"""The losses that are compared: hierarchies of this library, what of them is tuned, and what makes a placebo of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import fibration
from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    Stratum,
    aggregate_gate,
    clip_gate,
    count,
    dual_clip_gate,
    log_ratio,
    proportional,
    ratio_deviation,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

token, trajectory, prompt_group, domain = strata("token trajectory prompt_group domain")
LEVELS = (token, trajectory, prompt_group, domain)
T, M = count(token), count(trajectory)  # how many tokens / trajectories lie over an element
SPREAD = 1 / count(token, over=trajectory)  # a token's share of its trajectory

grpo_dual = Hierarchy(
    name="grpo_dual",
    gates={
        token: dual_clip_gate(
            Parameter("epsilon_low", default=0.2, upper=1), Parameter("epsilon_high", default=0.2), 3.0
        )
    },
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
)


def tower(
    name: str, gates: Mapping[Stratum, Gate], split: bool = True, gives_up: Mapping[str, str] | None = None
) -> Hierarchy:
    """Strata over each other from tokens on, in the order of their gates; trajectories weigh alike on every level.

    `split` has a channel for log ratios of each sign, as FiberPO.
    """
    into = signed_log_ratio if split else log_ratio
    return Hierarchy(
        name=name,
        fibrations=[
            Fibration(below, above, uniform() if below in (token, trajectory) else proportional(M))
            for below, above in itertools.pairwise(gates)
        ],
        gates={level: gates[level] for level in reversed(tuple(gates))},
        decomposition=into(scale=SPREAD) if len(gates) > 1 else into(),
        objective=trajectory_mean(),
        gives_up=gives_up,
    )


def ladder(levels: int, rollback: object = 1, ceiling: float | None = None, narrow: float | None = None) -> Hierarchy:
    """FiberPO with inward gates on the first so many of token, trajectory, prompt group and domain.

    `rollback` is the slope of coarse gates past their budgets, `ceiling`, in nats, bounds what these pass of a drift
    that comes back by itself. `narrow` bounds its density instead, which over `M` trajectories is `M` times as much.
    """

    def coarse(level: Stratum) -> Gate:
        budget = Parameter(f"C_{level}", per_channel=True, default={"+": 0.2, "-": 0.1})
        gate = aggregate_gate(budget, rollback=rollback)
        gate = gate if ceiling is None else gate.inward(ceiling)
        gate = gate if level is trajectory else gate.per(M)
        return gate if ceiling is not None else gate.inward(narrow)

    _, *above = LEVELS[:levels]
    clip = clip_gate(Parameter("epsilon", default=0.2))
    told = {
        LEVELS[levels - 1].name: True,
        "rollback": rollback != 1,
        "ceiling": ceiling is not None,
        "narrow": narrow is not None,
    }
    return tower(
        "_".join(["ladder", *(word for word, holds in told.items() if holds)]),
        {token: (clip.per(SPREAD) if above else clip).inward(), **{level: coarse(level) for level in above}},
    )


def budgets(levels: Sequence[object], epsilon: float, plus: float = 0.2, minus: float = 0.1) -> Callable:
    """Parameters at a scale of trust: every bound of a hierarchy times it."""
    coarse = {f"C_{level}": {"+": plus, "-": minus} for level in levels}

    def scaled(trust: float) -> dict:
        budget = {name: {sign: trust * c for sign, c in pair.items()} for name, pair in coarse.items()}
        return {**budget, "epsilon": trust * epsilon}

    return scaled


def both(low: float, high: float) -> Callable:
    return lambda trust: {"epsilon_low": trust * low, "epsilon_high": trust * high}


@dataclass(frozen=True)
class Arm:
    """One loss of the study. `parameters` of a scale of trust; none where there is nothing to scale."""

    hierarchy: Callable[[], Hierarchy]
    parameters: Callable[[float], Mapping] | None = None
    scales: tuple[float, ...] = ()
    shuffled: bool = False  # prompt groups get the labels of domains at random, anew in every step
    clip_domains: bool = False  # the gradient of every domain is clipped to the norm `trust` by itself
    of: str | None = None  # the arm whose tuned learning rate and scale it takes: a placebo's, or a variant's
    fixed: Mapping = field(default_factory=dict)  # parameters that are not scaled
    adapt: Callable[[dict, Mapping[str, float]], None] | None = None  # changes parameters by what a step measured

    @property
    def labels(self) -> tuple[str, ...]:
        names = {stratum.name for stratum in self.operator.hierarchy.strata}
        return tuple(name for name in ("prompt_group", "domain") if name in names)

    @property
    def operator(self) -> fibration.Operator:
        return compiled(self.hierarchy)

    def given(self, trust: float | None) -> dict:
        scaled = self.parameters(trust) if self.parameters and trust is not None else {}
        return {**scaled, **self.fixed}


@cache
def compiled(hierarchy: Callable[[], Hierarchy]) -> fibration.Operator:
    return fibration.compile(hierarchy(), backend="c")


def shipped(name: str) -> Callable[[], Hierarchy]:
    return lambda: fibration.load(name)


WIDE = (0.25, 0.5, 1.0, 2.0, 4.0)
NAMES = ("trajectory", "prompt_group", "domain")
THREE = ("grpo", "fiberpo_domain", "inward_domain")  # which are shown where there is no room for all
ARMS: dict[str, Arm] = {
    "reinforce": Arm(shipped("reinforce")),
    "grpo": Arm(shipped("grpo"), both(0.2, 0.2), WIDE),
    "grpo_dual": Arm(lambda: grpo_dual, both(0.2, 0.2), WIDE),
    "gspo": Arm(shipped("gspo"), both(0.03, 0.04), WIDE),
    "cispo": Arm(shipped("cispo"), lambda trust: {"epsilon_high": 0.28 * trust}, WIDE),
    "dppo_tv": Arm(shipped("dppo_tv"), both(0.2, 0.2), WIDE),
    "fiberpo": Arm(shipped("fiberpo"), budgets(NAMES[:1], 0.05), WIDE),
    "fiberpo_domain": Arm(shipped("fiberpo_domain"), budgets(NAMES, 0.05), WIDE),
    **{
        f"inward_{name}": Arm(partial(ladder, n), budgets(NAMES[: n - 1], 0.2), WIDE)
        for n, name in enumerate(("token", "trajectory", "group", "domain"), 1)
    },
    "inward_ceiling": Arm(lambda: ladder(4, ceiling=1.0), budgets(NAMES, 0.2), WIDE),
    "inward_narrow": Arm(lambda: ladder(4, narrow=1.0), budgets(NAMES, 0.2), WIDE),
    "clip_domains": Arm(shipped("grpo"), None, (0.5, 1.0, 2.0, 4.0, 8.0), clip_domains=True),
    "placebo_shuffled": Arm(lambda: ladder(4), budgets(NAMES, 0.2), shuffled=True, of="inward_domain"),
    "placebo_unbounded": Arm(lambda: ladder(4), budgets(NAMES[:2], 0.2), of="inward_domain", fixed={"C_domain": 1e9}),
    "published_wide": Arm(shipped("fiberpo_domain"), budgets(NAMES, 0.2), of="inward_domain"),
    "placebo_rollback": Arm(lambda: ladder(4, rollback=T), budgets(NAMES, 0.2), of="inward_domain"),
}
