"""Pairs of losses to compare: more than twenty pairs of equal losses, and as many of different ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    absolute,
    advantage,
    clip,
    clip_gate,
    count,
    decomposition,
    exp,
    expm1,
    gated,
    identity_gate,
    load,
    log,
    log1p,
    log_clip_gate,
    log_ratio,
    mass,
    maximum,
    minimum,
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    sign,
    signed_log_ratio,
    strata,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.declared import FrozenMap


class Pair(NamedTuple):
    first: Hierarchy
    second: Hierarchy
    when: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = FrozenMap()


token, text, image, trajectory, prompt_group, expert, batch = strata(
    "token text_token image_token trajectory prompt_group expert batch"
)
T, LENGTH = count(token), count(token, over=trajectory)
SAME_LENGTH = "equal(count(token, over=trajectory))"
A, x = advantage, token_log_ratio
NEVER_BINDS = dict.fromkeys(("C_domain", "C_prompt_group", "C_trajectory", "epsilon"), math.inf)

gspo, fiberpo, grpo, dapo, ppo, sapo, truly_ppo = map(load, "gspo fiberpo grpo dapo ppo sapo truly_ppo".split())
low, high = gspo.parameters["epsilon_low"], gspo.parameters["epsilon_high"]
epsilon = Parameter("epsilon", default=0.2, upper=1)


def of_tokens(gate: Any = residual, split: Any = None, objective: Any = None, name: str = "ours") -> Hierarchy:
    gates = {token: gate if isinstance(gate, Gate) else Gate(gate)}
    return Hierarchy(
        name=name, gates=gates, decomposition=split or ratio_deviation(), objective=objective or trajectory_mean()
    )


def of_trajectories(gate: Any, name: str = "ours", **changes: Any) -> Hierarchy:
    """GSPO with another gate."""
    gates = {trajectory: gate if isinstance(gate, Gate) else Gate(gate), token: zero_gate()}
    return gspo.replace(**{"name": name, "gates": gates, **changes})


def written_anew(gate: Any, token_gate: Any) -> Hierarchy:
    """FiberPO with other gates."""
    return fiberpo.replace(name="ours", gates={trajectory: Gate(gate), token: Gate(token_gate)})


def chain(*levels: Any, gates: dict[Any, Gate]) -> Hierarchy:
    return Hierarchy(
        name="ours",
        fibrations=[Fibration(a, b, uniform()) for a, b in zip(levels, levels[1:], strict=False)],
        gates=gates,
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


def modal(gates: dict[Any, Gate]) -> Hierarchy:
    of = count(text, over=trajectory) + count(image, over=trajectory)
    return Hierarchy(
        name="ours",
        fibrations=[Fibration(s, trajectory, MarkovKernel(1 / of)) for s in (text, image)],
        gates={trajectory: identity_gate(), **gates},
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


def crossed(last: Gate) -> Hierarchy:
    return Hierarchy(
        name="crossed",
        fibrations=[
            Fibration(token, trajectory, uniform()),
            Fibration(token, expert, uniform()),
            Fibration(trajectory, batch, proportional(T)),
            Fibration(expert, batch, proportional(T)),
        ],
        gates={batch: identity_gate(), expert: identity_gate(), trajectory: identity_gate(), token: last},
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


plain = of_tokens(name="plain")
geometric = of_trajectories(residual, "geometric")
C, e = fiberpo.parameters["C_trajectory"], fiberpo.parameters["epsilon"]
drift, unit = absolute(residual), e / LENGTH
tau = where(advantage > 0, sapo.parameters["tau_pos"], sapo.parameters["tau_neg"])
TWO = {trajectory: identity_gate(), token: clip_gate(e).per(mass)}
eps, alpha = truly_ppo.parameters["epsilon"], truly_ppo.parameters["alpha"]
renamed = {"epsilon_low": Parameter("below", default=0.1, upper=1), "epsilon_high": Parameter("above", default=0.1)}
EITHER = {text: clip_gate(epsilon).per(mass), image: clip_gate(epsilon).per(mass)}
EACH = {s: clip_gate(Parameter(f"epsilon_{s}", default=0.1)).per(mass) for s in (text, image)}

SAME = {
    "gspo, the negative side first": Pair(
        gspo, of_trajectories(where(A < 0, maximum(residual, log1p(-low)), minimum(residual, log1p(high))))
    ),
    "gspo by where alone": Pair(
        gspo,
        of_trajectories(
            where(
                A < 0,
                where(residual < log1p(-low), log1p(-low), residual),
                where(residual <= log1p(high), residual, log1p(high)),
            )
        ),
    ),
    "gspo in ratios": Pair(
        gspo, of_trajectories(where(A < 0, log(maximum(exp(residual), 1 - low)), log(minimum(exp(residual), 1 + high))))
    ),
    "gspo with its density written out": Pair(
        gspo,
        of_trajectories(
            log_clip_gate(low, high), decomposition=decomposition(density=x / LENGTH, recovery=exp(gated("") * LENGTH))
        ),
    ),
    "gspo with sums for means": Pair(gspo, of_trajectories(log_clip_gate(low, high).per(T), decomposition=log_ratio())),
    "gspo under other names": Pair(
        gspo,
        of_trajectories(log_clip_gate(renamed["epsilon_low"], renamed["epsilon_high"])),
        parameters={"epsilon_low": "below", "epsilon_high": "above"},
    ),
    "grpo and dapo, equal lengths": Pair(grpo, dapo, (SAME_LENGTH,)),
    "grpo and dapo, one trajectory": Pair(grpo, dapo, ("one(trajectory)",)),
    "ppo and dapo, no negative advantage": Pair(ppo, dapo, ("advantage >= 0",)),
    "ppo and grpo, no negative advantage, equal lengths": Pair(ppo, grpo, ("advantage>=0", SAME_LENGTH)),
    "ppo without its ceiling": Pair(ppo, dapo, parameters={"ceiling": math.inf}),
    "budgets that never bind": Pair(load("fiberpo_domain"), plain, ("one(domain)", "one(prompt_group)"), NEVER_BINDS),
    "fiberpo by other words": Pair(
        fiberpo,
        written_anew(
            where(
                drift <= C,
                residual,
                where(drift < (1 + 1 / T) * C, where(residual > 0, 1, -1) * (C - T * (drift - C)), 0),
            ),
            minimum(maximum(residual, -unit), unit),
        ),
    ),
    "ratios and log ratios": Pair(plain, of_tokens(split=log_ratio())),
    "ratios and signed log ratios": Pair(plain, of_tokens(split=signed_log_ratio())),
    "ratios and scores": Pair(plain, of_tokens(objective=trajectory_mean().score())),
    "a trajectory's ratio and its score": Pair(
        geometric, of_trajectories(residual, objective=trajectory_mean().score()), ("advantage=trajectory",)
    ),
    "gspo on policy": Pair(gspo, plain, ("on_policy",)),
    "cispo and dapo on policy": Pair(load("cispo"), dapo, ("on_policy",)),
    "a sigmoid written out": Pair(sapo, of_tokens(4 / tau / (1 + exp(-tau * residual)) - 1)),
    "a rollback by other words": Pair(
        truly_ppo,
        of_tokens(
            where(
                A < 0,
                where(residual < -eps, -eps - alpha * (eps + residual), residual),
                minimum(residual, eps - alpha * (residual - eps)),
            ),
            objective=token_mean(),
        ),
    ),
    "a level that passes everything": Pair(
        chain(token, trajectory, gates=TWO),
        chain(token, trajectory, prompt_group, gates={prompt_group: identity_gate(), **TWO}),
    ),
    "two bounds that are one": Pair(
        modal(EACH), modal(EITHER), parameters={"epsilon_text_token": "epsilon", "epsilon_image_token": "epsilon"}
    ),
    "crossed levels that pass everything": Pair(crossed(identity_gate()), plain),
}

DIFFERENT = {
    "grpo and dapo": Pair(grpo, dapo),
    "grpo and dapo, one advantage per trajectory": Pair(grpo, dapo, ("advantage=trajectory",)),
    "ppo and grpo": Pair(ppo, grpo),
    "ppo and grpo, no negative advantage": Pair(ppo, grpo, ("advantage >= 0",)),
    "ppo and dapo, negative advantages": Pair(ppo, dapo, ("advantage < 0",)),
    "gspo and grpo": Pair(gspo, grpo),
    "gspo and its variant by tokens": Pair(gspo, load("gspo_residual")),
    "identity where zero was meant": Pair(
        gspo, gspo.replace(name="ours", gates={trajectory: log_clip_gate(low, high), token: identity_gate()})
    ),
    "a count that is 1": Pair(gspo, gspo.replace(name="ours", objective=Objective(1 / count(trajectory)))),
    "fiberpo and its variant by domains": Pair(fiberpo, load("fiberpo_domain")),
    "one domain, means of trajectories all the same": Pair(
        load("fiberpo_domain"),
        fiberpo,
        ("one(domain)", "one(prompt_group)"),
        {"C_domain": math.inf, "C_prompt_group": math.inf},
    ),
    "flat at the bound itself": Pair(
        gspo,
        of_trajectories(
            where(A < 0, maximum(residual, log1p(-low)), where(residual < log1p(high), residual, log1p(high)))
        ),
    ),
    "flat at the bound itself, in ratios": Pair(
        grpo,
        of_tokens(where(A >= 0, where(residual < high, residual, high), maximum(residual, -low))),
    ),
    "bounds swapped": Pair(
        grpo, of_tokens(pessimistic_clip_gate(Parameter("epsilon_high", default=0.2, upper=1), low))
    ),
    "temperatures swapped": Pair(
        sapo,
        of_tokens(
            4
            / where(A > 0, sapo.parameters["tau_neg"], sapo.parameters["tau_pos"])
            * sigmoid(where(A > 0, sapo.parameters["tau_neg"], sapo.parameters["tau_pos"]) * residual)
            - 1
        ),
    ),
    "cispo and dapo": Pair(load("cispo"), dapo),
    "gspo and its score": Pair(gspo, gspo.replace(name="ours", objective=trajectory_mean().score())),
    "twice the weight": Pair(plain, of_tokens(objective=Objective(2 / (count(trajectory, over=batch) * LENGTH)))),
    "a rollback of slope 1": Pair(
        fiberpo,
        written_anew(
            where(drift <= C, residual, where(drift < 2 * C, sign(residual) * (2 * C - drift), 0)),
            clip(residual, -unit, unit),
        ),
    ),
    "a mean of ratios for a ratio of means": Pair(
        gspo,
        of_trajectories(
            log_clip_gate(low, high),
            decomposition=decomposition(density=expm1(x) / LENGTH, recovery=1 + gated("") * LENGTH),
        ),
    ),
    "a trajectory's ratio on policy": Pair(geometric, plain, ("on_policy",)),
    "a clip on both sides": Pair(grpo, of_tokens(clip(residual, -low, high))),
    "budgets that never bind, and a clip that does": Pair(
        load("fiberpo_domain"), plain, (), {k: v for k, v in NEVER_BINDS.items() if k != "epsilon"}
    ),
    "a constant length": Pair(load("dr_grpo"), grpo),
    "two bounds that are not one": Pair(
        modal(EACH), modal({text: EACH[text], image: clip_gate(Parameter("epsilon_text_token", default=0.1)).per(mass)})
    ),
    "crossed levels with a clip": Pair(crossed(clip_gate(epsilon).per(mass)), plain),
    "a mean over the group for one over the trajectory": Pair(
        chain(token, trajectory, gates={trajectory: identity_gate(), token: zero_gate()}),
        chain(token, prompt_group, gates={prompt_group: identity_gate(), token: zero_gate()}),
    ),
}
