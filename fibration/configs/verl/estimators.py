"""verl's estimators of advantages, by `adv_estimator`: formulas of rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fibration.configs.draft import (
    batch,
    estimated_kl,
    generalised_advantage,
    mean_of,
    prompt_group,
    token,
    trajectory,
    whitened,
)
from fibration.configs.findings import ERROR, WARNING
from fibration.configs.options import Option
from fibration.configs.verl.losses import Draft
from fibration.configs.verl.options import ALGORITHM, CORRECTION, ROLLOUT
from fibration.language.atoms import Attribute, count, reward
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression
from fibration.language.operators import maximum, where
from fibration.language.statistics import after, centred, deviation, largest, standardised, total

old, reference = policies("old reference")
ESTIMATOR, NORM = "adv_estimator", "norm_adv_by_std_in_grpo"
EPSILON = 1e-6  # beside deviations of groups
WHITENING = 1e-8  # beside variances of tokens
K3_MOST = 10.0  # verl cuts k3 there, in losses and in rewards
REST = "baseline of what is left of advantages"  # not decided for formulas that are divided twice
SCALED = "scaled by how many rewards are not 0"
PER_TOKEN = "Rewards are per token [B, T]: verl puts the reward of an answer on its last token, and 0 on the others."


@dataclass(frozen=True)
class Rewards:
    """Rewards as verl's estimators see them: of a token, of a row, and from a token on. `kl`: subtracted per token."""

    kl: Expression | None

    @property
    def of_token(self) -> Expression:
        return reward if self.kl is None else reward - self.kl

    @property
    def of_row(self) -> Expression:
        return reward if self.kl is None else reward - total(self.kl, over=trajectory)

    @property
    def to_go(self) -> Expression:
        """Of a row whose reward comes at its end, without a discount."""
        return reward if self.kl is None else reward - (self.kl + after(self.kl, over=trajectory))


def rewards_of(d: Draft) -> Rewards:
    o = d.options
    if not o["use_kl_in_reward"]:
        return Rewards(None)
    kind = o["kl_penalty"].rstrip("+")  # no gradient flows through rewards
    adapts = o["kl_ctrl.type"] == "adaptive"
    if adapts:
        d.say("kl_ctrl.type=adaptive changes kl_coef after each batch: set the parameter 'kl_coef' in each call.")
    coef = d.parameter("kl_coef" if adapts else "beta", o["kl_coef"], otherwise="kl_coef")
    return Rewards(coef * estimated_kl(kind, log_prob(old) - log_prob(reference), K3_MOST))


def set_advantages(d: Draft) -> None:
    """Sets the formula of advantages, and the groups that it reads. Adds the laws that it gives up."""
    o = d.options
    if o.raw(ESTIMATOR) in BY_POSITION:
        raise o.refusal(
            ESTIMATOR,
            "an estimator whose baseline is one per row or group: this one has a baseline for each position in the "
            "answers of a group, from Σπ² of the whole vocabulary",
            "hierarchies take its advantages as given: fibration show dapo",
        )
    estimator = o.read(ESTIMATOR, Option("choice", of=tuple(ESTIMATORS)))
    if d.by_token and estimator not in OF_GROUPS:
        raise o.refusal(
            f"{CORRECTION}rollout_rs",
            f"masks of whole rows with adv_estimator={estimator}, whose sums skip tokens that are dropped",
            "rollout_rs=seq_mean_k1",
        )
    if estimator in UNFETCHED and not d.is_legacy:
        d.say(
            f"{o.said(ESTIMATOR)} with trainer.use_v1=true: verl 0.9.1 does not fetch {UNFETCHED[estimator]} for it, "
            "and raises an error.",
            ERROR,
            "trainer.use_v1=false",
        )
    is_alone = o["n"] < 2
    if estimator not in OF_GROUPS:
        d.advantages, d.groups = ESTIMATORS[estimator](d, rewards_of(d)), ()
    elif is_alone:
        d.advantages, d.groups = _of_one(d, estimator), ()
    else:
        d.advantages = ESTIMATORS[estimator](d, rewards_of(d))
        if estimator not in ALONE:
            here = "is an error" if estimator == "rloo" else "has 0"
            alone = "A group of one answer, which filters may leave, has its undivided reward as advantage in verl"
            d.say(f"{alone}; here it {here}.")


# What these do with an answer that has none to be compared with; others take its reward for the advantage.
ALONE = {"grpo_passk": "raises an error", "rloo_vectorized": "gives every answer the advantage 0"}


def _of_one(d: Draft, estimator: str) -> Expression:
    """One answer to a prompt has none to be compared with."""
    if estimator in ALONE:
        why = f"2 or more: adv_estimator={estimator} {ALONE[estimator]}"
        raise d.options.refusal("n", why, f"{ROLLOUT}n=8")
    d.say(
        f"{ROLLOUT}n=1: an answer is compared with no other, so that {estimator} takes its reward for the advantage. "
        f"Set {ROLLOUT}n for groups.",
        WARNING,
        f"{ROLLOUT}n=8",
    )
    rewards = rewards_of(d)
    score = _gdpo_weight(d, rewards) * reward if estimator == "gdpo" else rewards.of_row
    if estimator in ("grpo", "grpo_vectorized", "gdpo") and _is_normed(d, estimator):
        score = score / (1 + 2**-20)  # 1 + EPSILON in float32, as verl adds them
    if estimator == "gpg":
        score = _alpha(score) * score
        d.give_up("baseline", ESTIMATOR, SCALED)
    return _whitened(d, score) if estimator in ("reinforce_plus_plus_baseline", "gdpo") else score


def _is_normed(d: Draft, estimator: str) -> bool:
    """Whether advantages are divided by deviations: verl's dispatcher hands the option to grpo alone."""
    is_normed: bool = d.options[NORM]
    if is_normed or estimator == "grpo":
        return is_normed
    d.say(
        f"{ALGORITHM}{NORM}=false has no effect with adv_estimator={estimator}: verl's dispatcher does not hand it on, "
        "so that advantages are divided by a deviation of the group all the same.",
        ERROR,
        f"{ALGORITHM}{ESTIMATOR}=grpo",
    )
    return True


def _normed(d: Draft, estimator: str, score: Expression) -> Expression:
    if not _is_normed(d, estimator):
        return centred(score, over=prompt_group)
    why = "groups whose rewards differ less count for more"
    d.give_up("baseline", NORM if d.options[NORM] else ESTIMATOR, why)
    return standardised(score, over=prompt_group, epsilon=EPSILON)


def _whitened(d: Draft, formula: Expression) -> Expression:
    d.give_up("baseline", ESTIMATOR, "divided by a deviation of all tokens, the row's own among them")
    d.say(
        "Advantages are whitened over the tokens of all rows that verl sampled for a training step, with 1e-8 beside "
        "their number; here over those of the batch at hand."
    )
    return whitened(formula, WHITENING, d.mask)


def _grpo(d: Draft, r: Rewards) -> Expression:
    return _normed(d, "grpo", r.of_row)


def _grpo_vectorized(d: Draft, r: Rewards) -> Expression:
    d.say(
        "grpo_vectorized takes means and deviations in float32: where all rewards of a group are equal its advantages "
        "are up to 0.01, here exactly 0."
    )
    return _normed(d, "grpo_vectorized", r.of_row)


def _rloo(d: Draft, r: Rewards) -> Expression:
    return centred(r.of_row, over=prompt_group, leave_one_out=True)


def _opo(d: Draft, r: Rewards) -> Expression:
    d.give_up("baseline", ESTIMATOR, "an answer's own length and reward are in what it is compared with")
    if d.mask is not None:
        d.say("opo: a group of which rollout_rs drops every token has NaN for advantages in verl.", WARNING)
    return r.of_row - mean_of(r.of_row, prompt_group, d.mask)


def _passk(d: Draft, r: Rewards) -> Expression:
    best = largest(r.of_row, over=prompt_group, of=trajectory)
    least = -largest(-r.of_row, over=prompt_group, of=trajectory)
    second = largest(where(r.of_row >= best, least, r.of_row), over=prompt_group, of=trajectory)
    at_best = total(where(r.of_row >= best, 1, 0), over=prompt_group, of=trajectory)
    d.give_up("baseline", ESTIMATOR, "an answer's own reward decides whether it is compared")
    lead = r.of_row - second
    if d.options[NORM]:
        lead = lead / (deviation(r.of_row, over=prompt_group, of=trajectory) + EPSILON)
    return where((r.of_row >= best) & (at_best <= 1), lead, 0)


def _gpg(d: Draft, r: Rewards) -> Expression:
    d.give_up("baseline", ESTIMATOR, SCALED)
    d.say("gpg counts rewards that are not 0 among all rows that verl sampled for a training step.")
    return _alpha(r.of_row) * centred(r.of_row, over=prompt_group)


def _alpha(score: Expression) -> Expression:
    """How many rows there are for each whose score is not 0."""
    scored = total(where((score > 0) | (score < 0), 1, 0), over=batch, of=trajectory)
    return count(trajectory, over=batch) / maximum(scored, 1)


def _gdpo(d: Draft, r: Rewards) -> Expression:
    scale = _gdpo_weight(d, r)
    d.give_up(REST, ESTIMATOR, "divided by a deviation of the group, then of all tokens")
    score = _normed(d, "gdpo", reward)
    return _whitened(d, scale * score if scale != 1 else score)


def _gdpo_weight(d: Draft, r: Rewards) -> float:
    """The weight of the one reward that gdpo has."""
    o, name = d.options, "gdpo_reward_keys"
    keys, weights = o[name], o["gdpo_reward_weights"]
    if not isinstance(keys, list | tuple) or not keys or not all(isinstance(key, str) for key in keys):
        why = "the names of the rewards, as verl does with adv_estimator=gdpo"
        raise o.refusal(name, why, f"{ALGORITHM}{name}=[acc]")
    is_whole = isinstance(weights, list | tuple) and len(weights) == len(keys)
    if weights is not None and not (is_whole and all(isinstance(w, int | float) for w in weights)):
        raise o.refusal("gdpo_reward_weights", f"{len(keys)} numbers, one for each of gdpo_reward_keys")
    if len(keys) > 1:
        raise o.refusal(
            name, "one reward: a call of a hierarchy takes one reward per row, and gdpo standardises each by itself"
        )
    if r.kl is not None:
        d.say("gdpo reads the rewards of gdpo_reward_keys: use_kl_in_reward has no effect on them.")
    d.say("gdpo takes rewards in float32.")
    return 1.0 if weights is None else float(weights[0])


def _reinforce_pp_baseline(d: Draft, r: Rewards) -> Expression:
    if d.mask is not None:
        why = "rollout_rs: divided by a deviation of the tokens that are left"
        d.gives_up["baseline of what is left of hierarchy"] = why
    return _whitened(d, centred(r.of_row, over=prompt_group))


def _remax(d: Draft, r: Rewards) -> Expression:
    d.say("remax: the attribute 'greedy_reward' of a row is the reward of the greedy answer to its prompt.")
    return r.to_go - Attribute("greedy_reward", on=trajectory, positive=False)


def _reinforce_pp(d: Draft, r: Rewards) -> Expression:
    gamma = _discount(d, "gamma")
    if gamma == 1:
        return _whitened(d, r.to_go)
    d.say(PER_TOKEN)
    if gamma == 0:
        return _whitened(d, r.of_token)
    d.give_up(REST, ESTIMATOR, "discounted sums, divided by their deviation")
    return _whitened(d, r.of_token + after(r.of_token, over=trajectory, discount=gamma))


def _gae(d: Draft, r: Rewards) -> Expression:
    value = Attribute("value", on=token, positive=False)
    gamma, lam = _discount(d, "gamma"), _discount(d, "lam")
    if lam == 0 and gamma != 0:
        raise d.options.refusal(
            "lam",
            "a number above 0: at 0 an advantage is one step of the next value, for which there is no word",
            "algorithm.lam=0.001",
        )
    d.say(PER_TOKEN)
    d.say("gae: the attribute 'value' of a token is what the critic says of it. The critic's own loss is no part.")
    if d.options["use_pf_ppo"]:
        d.say("use_pf_ppo draws rows at random, with chances that depend on their rewards, before they are trained on.")
    if gamma != 0:
        d.give_up(REST, ESTIMATOR, "sums of rewards and values, divided by their deviation")
    return _whitened(d, generalised_advantage(r.of_token, value, gamma, lam))


def _discount(d: Draft, name: str) -> Expression | float:
    """0 and 1 are numbers, since bounds of parameters are strict."""
    value = d.options[name]
    return int(value) if value in (0, 1) else d.parameter(name, value, upper=1)


UNFETCHED = {"gdpo": "the rewards of gdpo_reward_keys", "remax": "reward_baselines, the rewards of greedy answers"}
BY_POSITION = ("optimal_token_baseline", "tir_optimal_token_baseline")
ESTIMATORS: dict[str, Callable[[Draft, Rewards], Expression]] = {
    "gae": _gae, "grpo": _grpo, "grpo_vectorized": _grpo_vectorized, "gdpo": _gdpo, "grpo_passk": _passk, "gpg": _gpg,
    "rloo": _rloo, "rloo_vectorized": _rloo, "opo": _opo, "reinforce_plus_plus": _reinforce_pp,
    "reinforce_plus_plus_baseline": _reinforce_pp_baseline, "remax": _remax,
}  # fmt: skip
OF_GROUPS = ESTIMATORS.keys() - {"gae", "reinforce_plus_plus", "remax"}  # the others compare answers to one prompt
