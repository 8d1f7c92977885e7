"""Losses of three policies that need the whole step: the sampling policy decides weights and masks.

Weights are truncated a little above their mean over the batch. A prompt group with a token far from its sampling policy
is dropped, and `μ` counts the remaining tokens.
"""

from fibration import (
    Hierarchy,
    Parameter,
    Policy,
    Stratum,
    absolute,
    exp,
    largest,
    load,
    log_prob,
    mean,
    minimum,
    policies,
    trajectory_mean,
)

current, old, rollout = policies("current old rollout")
apart = log_prob(old) - log_prob(rollout)
far = Parameter("far", default=0.35)


def weighed(h: Hierarchy, name: str) -> Hierarchy:
    weight = minimum(exp(apart), 0.05 + mean(exp(apart), over=Stratum("batch")))
    kept = largest(absolute(apart), over=Stratum("prompt_group")) <= far
    objective = trajectory_mean().weigh(weight).keep(kept, normaliser="kept")
    given_up = dict.fromkeys((f"causal of weight {weight}", f"causal of condition {kept}"), "statistics of many rows")
    return h.replace(name=name, objective=objective, gives_up={**h.gives_up, **given_up})


of_three = weighed(load("fiberpo_domain"), "of_three")
of_teacher = of_three.replace(
    name="of_teacher",
    gives_up=load("fiberpo_domain").gives_up,
    objective=trajectory_mean().weigh(exp(log_prob(old) - log_prob(Policy("teacher")))),
)
