"""FiberPO-Domain with a slower rollback, so that few elements are enough for some of each regime."""

import sys
from pathlib import Path

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    Parameter,
    after,
    aggregate_gate,
    centred,
    clip_gate,
    count,
    log_prob,
    policies,
    proportional,
    quantile,
    reward,
    signed_log_ratio,
    strata,
    total,
    trajectory_mean,
    uniform,
)

sys.path.append(str(Path(__file__).parents[2]))
from three_policy_losses import weighed

token, trajectory, prompt_group, prompt, domain, batch = strata("token trajectory prompt_group prompt domain batch")


def gate(level, rollback=1):
    budget = Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})
    return aggregate_gate(budget, rollback=rollback)


PULLED_BACK = {"inward": "the paper's roll-backs, which the trainers' tests are to meet"}
clip = clip_gate(Parameter("epsilon", default=0.05)).per(1 / count(token, over=trajectory))
of_prompts = Hierarchy(
    name="of_prompts",
    fibrations=[Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, prompt, kernel=uniform())],
    gates={prompt: gate(prompt).per(count(trajectory)), trajectory: gate(trajectory), token: clip},
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up=PULLED_BACK,
)
soft = Hierarchy(
    name="soft",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(count(trajectory))),
    ],
    gates={
        domain: gate(domain, rollback=0.25).per(count(trajectory)),
        prompt_group: gate(prompt_group).per(count(trajectory)),
        trajectory: gate(trajectory),
        token: clip,
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up=PULLED_BACK,
)
of_three = weighed(soft, "of_three")

current, old, reference = policies("current old reference")
beta = Parameter("beta", default=0.3)
apart = log_prob(current) - log_prob(reference)
of_rewards = soft.replace(
    name="of_rewards",
    advantages=centred(reward, over=prompt_group, leave_one_out=True),
    penalties={"kl": beta * apart * apart / 2},
)
moved = log_prob(current) - log_prob(old)
near_old = soft.replace(name="near_old", penalties={"kl": moved * moved / 2})
drifted = total(log_prob(old) - log_prob(reference), over=trajectory)
shaped = soft.replace(name="shaped", advantages=centred(reward - beta * drifted, over=prompt_group, leave_one_out=True))
to_go = soft.replace(name="to_go", advantages=reward + after(reward, over=trajectory))

entropy = Attribute("entropy", on=token, positive=False, lower=0)
difficulty, part = Attribute("difficulty", on=trajectory), Attribute("part", on=domain)
high = entropy >= quantile(entropy, 0.3, over=batch)
measured = soft.replace(
    name="measured",
    objective=trajectory_mean().weigh(difficulty * part).keep(high),
    gives_up={**PULLED_BACK, "agreement": "weights of data", "mask_open": "a mask of data", "causal": "the same"},
)
(teacher,) = policies("teacher")
behind = log_prob(teacher) - log_prob(old)
taught = soft.replace(
    name="taught",
    advantages=centred(reward, over=prompt_group, leave_one_out=True) + 0.1 * total(behind, over=trajectory),
)
