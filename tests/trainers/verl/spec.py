"""FiberPO-Domain from rewards: with a divergence from a reference, and with the rewards from each token on."""

from fibration import (
    Attribute,
    Stratum,
    after,
    centred,
    load,
    log_prob,
    policies,
    quantile,
    reward,
    total,
    trajectory_mean,
)
from fibration.language.hierarchy import Hierarchy

token, trajectory, prompt_group, domain, batch = (
    Stratum(name) for name in ("token", "trajectory", "prompt_group", "domain", "batch")
)
current, old, reference, teacher = policies("current old reference teacher")
apart = log_prob(current) - log_prob(reference)
plain: Hierarchy = load("fiberpo_domain")
of_rewards = plain.replace(
    name="of_rewards",
    advantages=centred(reward, over=prompt_group),
    penalties={"kl": 0.3 * apart * apart / 2},
)
to_go = plain.replace(name="to_go", advantages=reward + after(reward, over=trajectory))
entropy = Attribute("entropy", on=token, positive=False, lower=0)
difficulty, part = Attribute("difficulty", on=trajectory), Attribute("part", on=domain)
behind = log_prob(teacher) - log_prob(old)
taught = plain.replace(
    name="taught",
    objective=trajectory_mean().weigh(part),
    advantages=centred(reward, over=prompt_group) + 0.1 * total(behind, over=trajectory),
    gives_up={**plain.gives_up, "agreement": "weights of data"},
)
measured = load("grpo").replace(
    name="measured",
    objective=trajectory_mean().weigh(difficulty).keep(entropy >= quantile(entropy, 0.3, over=batch)),
    gives_up={"agreement": "weights of data", "mask_open": "a mask of data", "causal": "the same"},
)
