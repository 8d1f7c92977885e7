"""Hierarchies that agree with `J` to first order wholly, in part or not at all, each with its expected verdicts."""

from dataclasses import dataclass

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    advantage,
    aggregate_gate,
    balanced,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    expm1,
    gated,
    identity_gate,
    log_clip_gate,
    log_ratio,
    maximum,
    minimum,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    signed_log_ratio,
    strata,
    tanh,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import mass
from hierarchies.builders import INWARD, budget, epsilon, x
from hierarchies.quivers import batch, domain, image, modality, text, token, trajectory, turn

state, group = strata("state group")
T = count(token, over=state)
delta, alpha = Parameter("delta", default=0.1), Parameter("alpha", default=0.3)
low, high = Parameter("low", default=0.2, upper=1), Parameter("high", default=0.3)
tau_pos, tau_neg = Parameter("tau_pos", default=1.0), Parameter("tau_neg", default=1.05)
DEVIATION = decomposition(
    plus=where(x >= 0, expm1(x), 0), minus=where(x >= 0, 0, -expm1(x)), recovery=1 + gated("+") - gated("-")
)


# ---------------------------------------------------------------- chains


def alone(gate, split=None, objective=None, **more):
    gate = gate if isinstance(gate, Gate) else Gate(gate)
    return Hierarchy(
        name="one",
        gates={token: gate},
        decomposition=split or ratio_deviation(),
        objective=objective or trajectory_mean(),
        **more,
    )


DRIFT = density(state, "+") + density(state, "-")
OWN = residual + density(state) / T
LEFT = maximum(T * delta - DRIFT + OWN, 0)


def apc(inner=None, outer=None, split=DEVIATION, **more):
    """APC-Obj (def:apc_obj): what a state may still drift bounds each of its tokens."""
    return Hierarchy(
        name="apc_obj",
        fibrations=[Fibration(token, state, kernel=uniform())],
        gates={state: outer or zero_gate(), token: Gate(clip(OWN, -LEFT, LEFT) if inner is None else inner)},
        decomposition=split,
        objective=more.pop("objective", trajectory_mean()),
        rows=trajectory,
        **{"gives_up": {"identity": "the state's budget is spent by its tokens"}, **more},
    )


def three(gates, split=None, **more):
    """Tokens over trajectories over groups; identity gates unless given."""
    return Hierarchy(
        name="three",
        fibrations=[Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, group, kernel=uniform())],
        gates={s: gates.get(s, identity_gate()) for s in (token, trajectory, group)},
        decomposition=split or log_ratio(scale=mass),
        objective=trajectory_mean(),
        **more,
    )


def truly_ppo():
    """Clip with rollback slope -alpha beyond the bounds."""
    above = high - alpha * (residual - high)
    below = -low - alpha * (residual + low)
    gate = where(residual > high, above, where(residual < -low, below, residual))
    return alone(gate, gives_up={"positivity": "rolled back without end, a gated ratio falls below 0", **INWARD})


def gspo_residual():
    return Hierarchy(
        name="gspo_residual",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: log_clip_gate(low, high), token: identity_gate()},
        decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )


TAU = where(advantage >= 0, tau_pos, tau_neg)
SAPO = 4 / TAU * sigmoid(TAU * residual) - 1
VALUE = {"first_order": "the value at r = 1 is not J"}
BASE = clip(density(trajectory), -budget, budget) / count(token, over=trajectory)
PULLED = density(trajectory) / count(token, over=trajectory)


# ---------------------------------------------------------------- trees and quivers

N = count(text, over=trajectory) + count(image, over=trajectory)


def tree(gates=None, split=None, weigh=1, **more):
    """Text and image tokens over a trajectory; a text token weighs as much as `weigh` image tokens."""
    whole = weigh * count(text, over=trajectory) + count(image, over=trajectory) if weigh != 1 else N
    return Hierarchy(
        name="tree",
        fibrations=[
            Fibration(text, trajectory, kernel=MarkovKernel(weigh / whole)),
            Fibration(image, trajectory, kernel=MarkovKernel(1 / whole)),
        ],
        gates={s: (gates or {}).get(s, identity_gate()) for s in (trajectory, text, image)},
        decomposition=split or log_ratio(scale=mass),
        objective=more.pop("objective", trajectory_mean()),
        **more,
    )


def deep_tree(gates=None, split=None, **more):
    """Text tokens over turns, image tokens beside the turns, trajectories over groups."""
    words, pictures = count(text, over=trajectory), count(image, over=trajectory)
    return Hierarchy(
        name="deep_tree",
        fibrations=[
            Fibration(text, turn, kernel=uniform()),
            Fibration(turn, trajectory, kernel=MarkovKernel(count(text, over=turn) / (words + pictures))),
            Fibration(image, trajectory, kernel=MarkovKernel(1 / (words + pictures))),
            Fibration(trajectory, group, kernel=uniform()),
        ],
        gates={s: (gates or {}).get(s, identity_gate()) for s in (group, trajectory, turn, text, image)},
        decomposition=split or log_ratio(scale=mass),
        objective=trajectory_mean(),
        **more,
    )


def quiver(gates=None, split=None, **more):
    """Trajectories have a domain and a modality; both lie over the batch."""
    n = count(trajectory)
    return Hierarchy(
        name="quiver",
        fibrations=[
            Fibration(token, trajectory, kernel=uniform()),
            Fibration(trajectory, domain, kernel=uniform()),
            Fibration(trajectory, modality, kernel=uniform()),
            Fibration(domain, batch, kernel=proportional(n)),
            Fibration(modality, batch, kernel=proportional(n)),
        ],
        gates={s: (gates or {}).get(s, identity_gate()) for s in (batch, domain, modality, trajectory, token)},
        decomposition=split or log_ratio(scale=mass),
        objective=more.pop("objective", trajectory_mean()),
        **{"assume": [balanced(domain, modality)], **more},
    )


EVERYWHERE = {s: clip_gate(budget).per(mass) for s in (batch, domain, modality, trajectory, group, turn)}
EVERYWHERE |= {s: clip_gate(epsilon).per(mass) for s in (token, text, image)}
SIGNED = signed_log_ratio(scale=mass)
DROPPED = {"first_order": "dropped on purpose"}
MADE_UP = {"identity": "made up for below"}
K_DOMAIN, K_BATCH = 1 / count(trajectory, over=domain), 1 / count(trajectory, over=batch)


@dataclass(frozen=True)
class Spec:
    """A hierarchy, the status of its first verdict of first order, and of positivity; of what the rest is proved.

    `part` is the subject for which first order is proved where it is refuted of the whole, and `gradient` that of the
    law of the gradient, '' where that is refuted.
    """

    h: Hierarchy
    status: str
    part: str = ""
    gradient: str = "hierarchy"
    ok: bool = True
    identity: bool = True
    positivity: str = "proved"


ON_TRAJECTORIES = "advantages constant on each trajectory"
SPECS = {
    # systems of the paper and of the field
    "apc_obj": Spec(apc(), "proved", identity=False),
    "sapo": Spec(alone(SAPO, gives_up=VALUE), "refuted", identity=False),
    "cispo": Spec(alone(minimum(residual, high), objective=trajectory_mean().score(), gives_up=VALUE), "refuted"),
    "gspo_residual": Spec(gspo_residual(), "proved"),
    "truly_ppo": Spec(truly_ppo(), "proved", positivity="refuted"),
    # variants of these
    "apc, log ratios": Spec(apc(split=signed_log_ratio()), "proved", identity=False),
    "apc, the state passes too": Spec(
        apc(outer=identity_gate(), gives_up=VALUE), "refuted", gradient="", ok=False, identity=False, positivity="refuted"
    ),
    "apc, density counted twice": Spec(
        apc(clip(residual + 2 * density(state) / T, -LEFT, LEFT)), "refuted", gradient="", ok=False, identity=False, positivity="refuted"
    ),
    "apc, residual in place of the density": Spec(
        apc(clip(residual, -LEFT, LEFT), gives_up=VALUE | {"positivity": "not looked into"}), "refuted", gradient="", ok=False, identity=False, positivity="refuted"
    ),
    "apc, first order not given up": Spec(apc(outer=identity_gate()), "refuted", gradient="", ok=False, identity=False, positivity="refuted"),
    "apc, identity not given up": Spec(apc(gives_up={}), "proved", ok=False, identity=False),
    "apc, given up though it holds": Spec(apc(gives_up={**MADE_UP, **VALUE}), "proved", ok=False, identity=False),
    "apc, budget that may be 0": Spec(
        apc(clip(OWN, -maximum(T * (delta - delta) - DRIFT + OWN, 0), maximum(T * (delta - delta) - DRIFT + OWN, 0))),
        "refuted", gradient="", ok=False, identity=False,
    ),
    "apc, score": Spec(apc(objective=trajectory_mean().score(), gives_up=VALUE), "refuted", identity=False),
    "sapo, not given up": Spec(alone(SAPO), "refuted", ok=False, identity=False),
    "sapo, slope not 1": Spec(alone(2 / TAU * sigmoid(TAU * residual), gives_up=VALUE), "refuted", gradient="", ok=False, identity=False),
    "sapo, gates log ratios": Spec(alone(SAPO, log_ratio(), gives_up=VALUE), "refuted", gradient="", ok=False, identity=False),
    "sapo, score": Spec(
        alone(SAPO, objective=trajectory_mean().score(), gives_up=VALUE), "refuted", gradient="", ok=False, identity=False
    ),
    "sapo, score, not given up": Spec(
        alone(SAPO, objective=trajectory_mean().score()), "refuted", gradient="", ok=False, identity=False
    ),
    "cispo, not given up": Spec(alone(minimum(residual, high), objective=trajectory_mean().score()), "refuted", ok=False),
    "score of a slope that is not 1": Spec(
        alone(2 * residual, objective=token_mean().score(), gives_up=VALUE), "refuted", identity=False, positivity="refuted", ok=False
    ),
    "score, trajectory level alone": Spec(
        gspo_residual().replace(
            gates={trajectory: log_clip_gate(low, high), token: zero_gate()}, objective=trajectory_mean().score(), gives_up=VALUE
        ),
        "refuted", identity=False,
    ),
    "constants that levels take from each other": Spec(
        three({group: Gate(residual + 0.1 * mass), token: Gate(residual - 0.1 * mass)}, gives_up=MADE_UP), "proved", identity=False
    ),
    "constants that the channels take from each other": Spec(
        three({group: Gate(residual + 0.1 * mass)}, SIGNED, gives_up=MADE_UP), "proved", identity=False
    ),
    "tokens take up what their trajectory drops": Spec(
        three({trajectory: zero_gate(), token: Gate(residual + PULLED - density(group) / (count(token, over=trajectory) * count(trajectory, over=group)))}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "to first order only": Spec(
        three({group: zero_gate(), trajectory: Gate(tanh(residual + density(group) / count(trajectory, over=group)))}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "residual against the gated base": Spec(
        gspo_residual().replace(gates={trajectory: clip_gate(budget), token: Gate(residual + PULLED - BASE)}), "proved", ok=False, identity=False
    ),
    "intermediate residuals dropped": Spec(three({trajectory: zero_gate()}), "refuted", "advantages constant on each group", gradient="", ok=False, identity=False),
    "half of what a trajectory drops": Spec(
        gspo_residual().replace(gates={trajectory: zero_gate(), token: Gate(residual + PULLED / 2)}), "refuted", gradient="", ok=False, identity=False
    ),
    "taken up above 0 alone": Spec(
        gspo_residual().replace(gates={trajectory: zero_gate(), token: Gate(residual + maximum(PULLED, 0))}), "refuted", gradient="", ok=False, identity=False
    ),
    "taken up at long trajectories alone": Spec(
        gspo_residual().replace(gates={trajectory: zero_gate(), token: Gate(residual + where(count(token, over=trajectory) > 2, PULLED, 0))}),
        "refuted", gradient="", ok=False, identity=False,
    ),
    "a removable singularity": Spec(alone(residual * residual / residual, log_ratio()), "refuted", gradient="", ok=False, identity=False, positivity="refuted"),
    # trees
    "tree of identities": Spec(tree(), "proved"),
    "tree of clips": Spec(tree(EVERYWHERE), "proved"),
    "tree of clips, split by sign": Spec(tree(EVERYWHERE, SIGNED), "proved"),
    "deep tree of clips": Spec(deep_tree(EVERYWHERE), "proved"),
    "deep tree, split by sign": Spec(
        deep_tree({**EVERYWHERE, trajectory: aggregate_gate(budget, rollback=4).per(mass)}, SIGNED, gives_up=INWARD), "proved"
    ),
    "tree of identities of deviations": Spec(tree(split=ratio_deviation(scale=mass)), "proved"),
    "tree, one leaf dropped": Spec(tree({image: zero_gate()}), "refuted", gradient="", ok=False, identity=False),
    "deep tree, turns and images dropped": Spec(
        deep_tree({turn: zero_gate(), image: zero_gate()}, gives_up=DROPPED), "refuted", ON_TRAJECTORIES, ON_TRAJECTORIES, identity=False
    ),
    "deep tree, turns dropped": Spec(deep_tree({turn: zero_gate()}, gives_up=DROPPED), "refuted", gradient="", ok=False, identity=False),
    "deep tree, texts halved": Spec(
        deep_tree({text: Gate(residual / 2)}, gives_up=DROPPED), "refuted", ON_TRAJECTORIES, ON_TRAJECTORIES, identity=False
    ),
    "tree, both leaves dropped": Spec(
        tree({image: zero_gate(), text: zero_gate()}, gives_up=DROPPED), "refuted", ON_TRAJECTORIES, ON_TRAJECTORIES, identity=False
    ),
    "tree, both leaves dropped, that count otherwise": Spec(
        tree({image: zero_gate(), text: zero_gate()}, weigh=2, gives_up=DROPPED), "refuted", gradient="", ok=False, identity=False
    ),
    "tree, base made up for": Spec(
        tree({trajectory: zero_gate(), text: Gate(residual + density(trajectory) / N), image: Gate(residual + density(trajectory) / N)}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "tree, base made up for on one leaf": Spec(
        tree({trajectory: zero_gate(), text: Gate(residual + density(trajectory) / N)}), "refuted", gradient="", ok=False, identity=False
    ),
    "tree, score": Spec(tree(EVERYWHERE, objective=trajectory_mean().score(), gives_up=VALUE), "refuted"),
    "tree of budgets": Spec(
        tree(
            {
                trajectory: zero_gate(),
                **{
                    s: Gate(clip(residual + density(trajectory) / N, -maximum(N * delta - density(trajectory, "+"), 0), maximum(N * delta - density(trajectory, "-"), 0)))
                    for s in (text, image)
                },
            },
            DEVIATION,
            gives_up=MADE_UP,
        ),
        "proved", identity=False,
    ),
    # quivers
    "quiver of identities": Spec(quiver(), "proved"),
    "quiver of clips": Spec(quiver(EVERYWHERE), "proved"),
    "quiver of clips, split by sign": Spec(quiver(EVERYWHERE, SIGNED), "proved"),
    "quiver by projection": Spec(quiver(EVERYWHERE, assume=(), orthogonalise="projection"), "proved"),
    "quiver, domain dropped": Spec(
        quiver({domain: zero_gate()}, gives_up=DROPPED | {"gradient": "a domain is to be left as it is"}), "refuted", "advantages constant on each batch", gradient="", identity=False
    ),
    "quiver, trajectory dropped": Spec(quiver({trajectory: zero_gate()}), "refuted", "advantages constant on each modality", gradient="", ok=False, identity=False),
    "quiver, token dropped": Spec(
        quiver({token: zero_gate()}, gives_up=DROPPED), "refuted", ON_TRAJECTORIES, ON_TRAJECTORIES, identity=False
    ),
    "quiver, domain made up for": Spec(
        quiver({domain: zero_gate(), trajectory: Gate(residual + density(domain) * K_DOMAIN - density(batch) * K_BATCH)}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "quiver, domain made up for without the batch": Spec(
        quiver({domain: zero_gate(), trajectory: Gate(residual + density(domain) * K_DOMAIN)}), "refuted", gradient="", ok=False, identity=False
    ),
    "quiver, score": Spec(quiver(EVERYWHERE, objective=trajectory_mean().score(), gives_up=VALUE), "refuted"),
}  # fmt: skip


# ---------------------------------------------------------------- facts

SHAPED = {
    "tree": tree(EVERYWHERE),
    "tree, split": tree(EVERYWHERE, SIGNED),
    "tree, image clipped alone": tree({image: clip_gate(epsilon).per(mass)}),
    "deep tree": deep_tree(EVERYWHERE),
    "deep tree, split": deep_tree(EVERYWHERE, SIGNED),
    "deep tree, turns alone": deep_tree({turn: clip_gate(budget).per(mass)}),
    "quiver": quiver(EVERYWHERE),
    "quiver, split": quiver(EVERYWHERE, SIGNED),
    "quiver, trajectories alone": quiver({trajectory: clip_gate(budget).per(mass)}),
    "quiver, asymmetrical": quiver({trajectory: Gate(clip(residual, -budget / 4, budget)).per(mass)}, SIGNED),
    "quiver, domains alone": quiver({domain: clip_gate(budget).per(mass)}),
    "quiver of deviations": quiver({trajectory: clip_gate(epsilon).per(mass)}, ratio_deviation(scale=mass), gives_up={"positivity": "not looked into"}),
}  # fmt: skip
