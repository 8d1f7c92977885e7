"""FiberPO-Domain from rewards: with a divergence from a reference, and with the rewards from each token on."""

from fibration import Stratum, after, centred, load, log_prob, policies, reward
from fibration.language.hierarchy import Hierarchy

trajectory, prompt_group = (Stratum(name) for name in ("trajectory", "prompt_group"))
current, reference = policies("current reference")
apart = log_prob(current) - log_prob(reference)
plain: Hierarchy = load("fiberpo_domain")
of_rewards = plain.replace(
    name="of_rewards",
    advantages=centred(reward, over=prompt_group),
    penalties={"kl": 0.3 * apart * apart / 2},
)
to_go = plain.replace(name="to_go", advantages=reward + after(reward, over=trajectory))
