"""First-order agreement, positivity and facts beyond chains whose gates each let small residuals pass.

Every claim is tried on the operator in plain Python (`plain.py`), on random small batches: difference quotients near
`r = 1` where agreement is proved, the witness where it is refuted.
"""

import functools
import math
import random
from dataclasses import dataclass
from fractions import Fraction

import pytest
from oracles.fact_text import interval, number, parameter_values
from oracles.plain import Plain, batches, truth
from thorough import ALL, some

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
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    signed_log_ratio,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import mass
from fibration.language.exact import NoValue

token, state, trajectory, group = strata("token state trajectory group")
text, image, turn = strata("text_token image_token turn")
domain, modality, batch = strata("domain modality batch")
x = token_log_ratio
T = count(token, over=state)
delta, alpha = Parameter("delta", default=0.1), Parameter("alpha", default=0.3)
epsilon, budget = Parameter("epsilon", default=0.1, upper=1), Parameter("C", default=0.2)
low, high = Parameter("low", default=0.2, upper=1), Parameter("high", default=0.3)
tau_pos, tau_neg = Parameter("tau_pos", default=1.0), Parameter("tau_neg", default=1.05)
DEVIATION = decomposition(
    plus=where(x >= 0, expm1(x), 0), minus=where(x >= 0, 0, -expm1(x)), recovery=1 + gated("+") - gated("-")
)


# ---------------------------------------------------------------- chains


def one(gate, split=None, objective=None, **more):
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
    return one(gate, gives_up={"positivity": "rolled back without end, a gated ratio falls below 0"})


def gspo_token():
    return Hierarchy(
        name="gspo_token",
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
    """A hierarchy, the status of its first verdict of first order, of those on a part of it, and of positivity."""

    h: Hierarchy
    status: str
    parts: tuple[tuple[str, str], ...] = ()
    ok: bool = True
    identity: bool = True
    positivity: str = "proved"


GRADIENT = (("gradient", "proved"),)
SPECS = {
    # systems of the paper and of the field
    "apc_obj": Spec(apc(), "proved", identity=False),
    "sapo": Spec(one(SAPO, gives_up=VALUE), "refuted", GRADIENT, identity=False),
    "cispo": Spec(one(minimum(residual, high), objective=trajectory_mean().score(), gives_up=VALUE), "refuted", GRADIENT),
    "gspo_token": Spec(gspo_token(), "proved"),
    "truly_ppo": Spec(truly_ppo(), "proved", positivity="refuted"),
    # variants of these
    "apc, log ratios": Spec(apc(split=signed_log_ratio()), "proved", identity=False),
    "apc, the state passes too": Spec(
        apc(outer=identity_gate(), gives_up=VALUE), "refuted", ok=False, identity=False, positivity="undecided"
    ),
    "apc, density counted twice": Spec(
        apc(clip(residual + 2 * density(state) / T, -LEFT, LEFT)), "refuted", ok=False, identity=False, positivity="undecided"
    ),
    "apc, residual in place of the density": Spec(
        apc(clip(residual, -LEFT, LEFT), gives_up=VALUE | {"positivity": "not looked into"}), "refuted", identity=False, positivity="undecided"
    ),
    "apc, first order not given up": Spec(apc(outer=identity_gate()), "refuted", ok=False, identity=False, positivity="undecided"),
    "apc, identity not given up": Spec(apc(gives_up={}), "proved", ok=False, identity=False),
    "apc, given up though it holds": Spec(apc(gives_up={**MADE_UP, **VALUE}), "proved", ok=False, identity=False),
    "apc, budget that may be 0": Spec(
        apc(clip(OWN, -maximum(T * (delta - delta) - DRIFT + OWN, 0), maximum(T * (delta - delta) - DRIFT + OWN, 0))),
        "refuted", ok=False, identity=False,
    ),
    "apc, score": Spec(apc(objective=trajectory_mean().score(), gives_up=VALUE), "refuted", GRADIENT, identity=False),
    "sapo, not given up": Spec(one(SAPO), "refuted", GRADIENT, ok=False, identity=False),
    "sapo, slope not 1": Spec(one(2 / TAU * sigmoid(TAU * residual), gives_up=VALUE), "refuted", identity=False),
    "sapo, gates log ratios": Spec(one(SAPO, log_ratio(), gives_up=VALUE), "refuted", identity=False),
    "sapo, score": Spec(
        one(SAPO, objective=trajectory_mean().score(), gives_up=VALUE), "refuted", (("gradient", "refuted"),), identity=False
    ),
    "sapo, score, not given up": Spec(
        one(SAPO, objective=trajectory_mean().score()), "refuted", (("gradient", "refuted"),), ok=False, identity=False
    ),
    "cispo, not given up": Spec(one(minimum(residual, high), objective=trajectory_mean().score()), "refuted", GRADIENT, ok=False),
    "score of a slope that is not 1": Spec(
        one(2 * residual, objective=token_mean().score(), gives_up=VALUE), "refuted", GRADIENT, identity=False, positivity="refuted", ok=False
    ),
    "score, trajectory level alone": Spec(
        gspo_token().replace(
            gates={trajectory: log_clip_gate(low, high), token: zero_gate()}, objective=trajectory_mean().score(), gives_up=VALUE
        ),
        "refuted", GRADIENT, identity=False,
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
        gspo_token().replace(gates={trajectory: clip_gate(budget), token: Gate(residual + PULLED - BASE)}), "proved", ok=False, identity=False
    ),
    "intermediate residuals dropped": Spec(three({trajectory: zero_gate()}), "refuted", (("advantages constant on each group", "proved"),), ok=False, identity=False),
    "half of what a trajectory drops": Spec(
        gspo_token().replace(gates={trajectory: zero_gate(), token: Gate(residual + PULLED / 2)}), "refuted", ok=False, identity=False
    ),
    "taken up above 0 alone": Spec(
        gspo_token().replace(gates={trajectory: zero_gate(), token: Gate(residual + maximum(PULLED, 0))}), "refuted", ok=False, identity=False
    ),
    "taken up at long trajectories alone": Spec(
        gspo_token().replace(gates={trajectory: zero_gate(), token: Gate(residual + where(count(token, over=trajectory) > 2, PULLED, 0))}),
        "refuted", ok=False, identity=False,
    ),
    "a removable singularity": Spec(one(residual * residual / residual, log_ratio()), "refuted", ok=False, identity=False, positivity="refuted"),
    # trees
    "tree of identities": Spec(tree(), "proved"),
    "tree of clips": Spec(tree(EVERYWHERE), "proved"),
    "tree of clips, split by sign": Spec(tree(EVERYWHERE, SIGNED), "proved"),
    "deep tree of clips": Spec(deep_tree(EVERYWHERE), "proved"),
    "deep tree, split by sign": Spec(
        deep_tree({**EVERYWHERE, trajectory: aggregate_gate(budget, rollback=4).per(mass)}, SIGNED), "proved"
    ),
    "tree of identities of deviations": Spec(tree(split=ratio_deviation(scale=mass)), "proved"),
    "tree, one leaf dropped": Spec(tree({image: zero_gate()}), "refuted", ok=False, identity=False),
    "deep tree, turns and images dropped": Spec(
        deep_tree({turn: zero_gate(), image: zero_gate()}, gives_up=DROPPED), "refuted", (("advantages constant on each trajectory", "proved"),), identity=False
    ),
    "deep tree, turns dropped": Spec(deep_tree({turn: zero_gate()}, gives_up=DROPPED), "refuted", identity=False),
    "deep tree, texts halved": Spec(
        deep_tree({text: Gate(residual / 2)}, gives_up=DROPPED), "refuted", (("advantages constant on each trajectory", "proved"),), identity=False
    ),
    "tree, both leaves dropped": Spec(
        tree({image: zero_gate(), text: zero_gate()}, gives_up=DROPPED), "refuted", (("advantages constant on each trajectory", "proved"),), identity=False
    ),
    "tree, both leaves dropped, that count otherwise": Spec(
        tree({image: zero_gate(), text: zero_gate()}, weigh=2, gives_up=DROPPED), "refuted", identity=False
    ),
    "tree, base made up for": Spec(
        tree({trajectory: zero_gate(), text: Gate(residual + density(trajectory) / N), image: Gate(residual + density(trajectory) / N)}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "tree, base made up for on one leaf": Spec(
        tree({trajectory: zero_gate(), text: Gate(residual + density(trajectory) / N)}), "refuted", ok=False, identity=False
    ),
    "tree, score": Spec(tree(EVERYWHERE, objective=trajectory_mean().score(), gives_up=VALUE), "refuted", GRADIENT),
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
        quiver({domain: zero_gate()}, gives_up=DROPPED), "refuted", (("advantages constant on each batch", "proved"),), identity=False
    ),
    "quiver, trajectory dropped": Spec(quiver({trajectory: zero_gate()}), "refuted", (("advantages constant on each modality", "proved"),), ok=False, identity=False),
    "quiver, token dropped": Spec(
        quiver({token: zero_gate()}, gives_up=DROPPED), "refuted", (("advantages constant on each trajectory", "proved"),), identity=False
    ),
    "quiver, domain made up for": Spec(
        quiver({domain: zero_gate(), trajectory: Gate(residual + density(domain) * K_DOMAIN - density(batch) * K_BATCH)}, gives_up=MADE_UP),
        "proved", identity=False,
    ),
    "quiver, domain made up for without the batch": Spec(
        quiver({domain: zero_gate(), trajectory: Gate(residual + density(domain) * K_DOMAIN)}), "refuted", ok=False, identity=False
    ),
    "quiver, score": Spec(quiver(EVERYWHERE, objective=trajectory_mean().score(), gives_up=VALUE), "refuted", GRADIENT),
}  # fmt: skip


@functools.cache
def report(name):
    return SPECS[name].h.verify()


def first_order(name):
    return [v for v in report(name).verdicts if v.law == "first_order"]


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize("name", SPECS)
def test_what_is_said(name):
    spec, found = SPECS[name], report(name)
    whole, *parts = first_order(name)
    assert (whole.subject, whole.status) == ("hierarchy", spec.status), found
    assert [(v.subject, v.status) for v in parts] == list(spec.parts), found
    assert found.ok is spec.ok, found
    assert all(v.status == "proved" for v in found.verdicts if v.law == "identity") is spec.identity
    assert next(v.status for v in found.verdicts if v.law == "positivity") == spec.positivity, found
    for v in (whole, *parts):
        assert v.argument if v.status == "proved" else v.found and v.remedy and v.counterexample


def test_apc_shows_how_the_levels_add_up():
    argument = first_order("apc_obj")[0].argument
    assert "0 on state" in argument
    assert "density(state)" in argument
    assert "the token's own density" in argument
    assert [v.law for v in report("apc_obj").verdicts if v.given_up] == ["identity", "identity"]


def test_a_law_that_holds_is_not_given_up():
    law, wrong = "given_up", report("apc, given up though it holds")
    assert [v.subject for v in wrong.failures if v.law == law] == ["law 'first_order'"]
    holds = one(minimum(residual, high), objective=trajectory_mean().score(), gives_up={**VALUE, "identity": "habit"})
    assert [v.subject for v in holds.verify().failures] == ["law 'identity'"]


def test_giving_up_identity_does_not_cover_first_order():
    failures = report("apc, density counted twice").failures
    assert {v.law for v in failures} == {"first_order", "positivity"}


def test_a_gradient_that_fails_is_covered_by_the_same_reason():
    assert [v.given_up != "" for v in first_order("sapo, score")] == [True, True]
    assert {v.subject for v in report("sapo, score, not given up").failures if v.law == "first_order"} == {
        "hierarchy",
        "gradient",
    }


def test_the_old_arguments_are_still_given_where_they_hold():
    assert first_order("tree of clips")[0].argument.startswith("every gate is the identity near 0")
    soft = three({token: Gate(tanh(residual))}).verify()
    argument = next(v.argument for v in soft.verdicts if v.law == "first_order")
    assert argument.startswith("every gate has value 0 and slope 1 at 0")


# ---------------------------------------------------------------- the operator near on-policy

UNIT, TINY = Fraction(1, 10**12), Fraction(1, 10**30)
PROVED = [n for n, s in SPECS.items() if s.status == "proved" and s.h.orthogonalise is None]


def directions(n, rng):
    yield [1] * n
    yield [-1] * n
    for _ in range(4):
        yield [rng.randint(-9, 9) for _ in range(n)]


@pytest.mark.parametrize("name", PROVED)
def test_proved_agreement_is_seen(name):
    """`𝒢(r) = r` to first order, from difference quotients in rationals."""
    h, rng = SPECS[name].h, random.Random(name)
    for plain in batches(h, seed=1):
        for direction in directions(len(plain.tokens), rng):
            xs = [UNIT * d for d in direction]
            for got, at in zip(plain.ratios(xs), xs, strict=True):
                assert abs(got - truth(at)) <= UNIT / 10**6, f"{float(got - 1)} at {[float(v) for v in xs]} on {plain}"


@pytest.mark.parametrize("name", [n for n, s in SPECS.items() if s.status == "refuted" and not s.parts])
def test_refuted_agreement_fails_on_its_witness(name):
    witness = first_order(name)[0].counterexample
    _, plain = rebuilt(SPECS[name].h, witness)
    a = witness.values["advantage"]
    n = len(plain.tokens)
    xs = list(witness.values.get("log_ratios", [UNIT] * n))
    got = plain_or_none(plain, xs, [a] * n)
    zero = plain_or_none(plain, [Fraction(0)] * n, [a] * n)
    if got is not None and zero is not None:
        assert any(abs(g - truth(v)) > UNIT / 10**6 for g, v in zip(got + zero, xs + [Fraction(0)] * n, strict=True))


@pytest.mark.parametrize(
    "name", [n for n, s in SPECS.items() if s.status == "refuted" and s.parts and "score" not in n and "cispo" not in n]
)
def test_what_holds_of_a_part_does_not_hold_of_the_whole(name):
    """Somewhere `𝒢(r)` differs from `r` to first order; what is proved of a part does hold."""
    spec, rng = SPECS[name], random.Random(name)
    part = spec.parts[0][0]
    broken = False
    for plain in batches(spec.h, seed=2):
        n = len(plain.tokens)
        start = plain.ratios([Fraction(0)] * n)
        for direction in directions(n, rng):
            xs = [UNIT * d for d in direction]
            moved = plain.ratios(xs)
            broken |= any(abs(g - truth(v)) > UNIT / 10**3 for g, v in zip(moved, xs, strict=True))
            if part == "gradient":
                assert all(abs(m - s - v) <= UNIT / 10**6 for m, s, v in zip(moved, start, xs, strict=True))
            else:
                check_subspace(plain, part.removeprefix("advantages constant on each "), rng, start, xs)
    assert broken


def check_subspace(plain, coarse, rng, start, xs):
    """The change of `Σ μ A 𝒢` is that of `Σ μ A r`, with weights that are those of the objective up to a factor."""
    h = plain.h
    stratum = next(s for s in h.strata if s.name == coarse)
    per = [Fraction(rng.randint(-3, 3)) for _ in range(plain.sizes[stratum])]
    advantages = [per[plain.down(leaf, i, stratum)] for leaf, i in plain.tokens]
    moved = plain.ratios(xs, advantages)
    rows = [(leaf, plain.down(leaf, i, h.rows)) for leaf, i in plain.tokens]
    lengths = {row: sum(r == row for _, r in rows) for _, row in rows}
    weights = [Fraction(1, lengths[row]) for _, row in rows]
    change = sum((w * a * (m - s) for w, a, m, s in zip(weights, advantages, moved, start, strict=True)), Fraction(0))
    expected = sum((w * a * v for w, a, v in zip(weights, advantages, xs, strict=True)), Fraction(0))
    assert abs(change - expected) <= UNIT / 10**6 * len(xs)


@pytest.mark.parametrize("name", [n for n, s in SPECS.items() if s.h.objective.estimator == "score"])
def test_the_gradient_of_a_score_estimator(name):
    """`𝒢(1) = 1` on every batch, or on the witness not."""
    h, verdict = SPECS[name].h, first_order(name)[-1]
    assert verdict.subject == "gradient"
    if verdict.status == "proved":
        for plain in batches(h, seed=3):
            assert plain.ratios([Fraction(0)] * len(plain.tokens)) == [1] * len(plain.tokens)
    else:
        _, plain = rebuilt(h, verdict.counterexample)
        n = len(plain.tokens)
        assert plain.ratios([Fraction(0)] * n, [verdict.counterexample.values["advantage"]] * n) != [1] * n


def rebuilt(h, witness):
    """The batch of a witness, with values for the parameters that it does not name."""
    concrete = witness.concrete
    some = next(batches(h, seed=0, count=1)).values
    below = {(f.source, f.target): concrete.maps[f.source, f.target] for f in h.fibrations}
    sizes = {s: concrete.size[s] for s in h.strata}
    values = {**some, **concrete.attributes, **concrete.parameters}
    return concrete, Plain(h, sizes, below, values)


def plain_or_none(plain, xs, advantages):
    try:
        return plain.ratios(xs, advantages)
    except (NoValue, ZeroDivisionError):
        return None


# ---------------------------------------------------------------- positivity


@pytest.mark.parametrize(
    "name", [n for n, s in SPECS.items() if s.positivity == "proved" and s.h.orthogonalise is None]
)
def test_proved_positivity_is_seen(name):
    h, rng = SPECS[name].h, random.Random(name)
    for plain in batches(h, seed=4, count=6):
        n = len(plain.tokens)
        for size in (1, 8, 60):
            xs = [Fraction(rng.randint(-size, size), 7) for _ in range(n)]
            found = plain.ratios(xs, [Fraction(rng.choice([-1, 1]))] * n)
            assert all(g > 0 for g in found), f"{[float(g) for g in found]} at {[float(v) for v in xs]}"
            if "between 1 and r" in next(v.argument for v in report(name).verdicts if v.law == "positivity"):
                for g, v in zip(found, xs, strict=True):
                    assert min(1, truth(v)) * (1 - TINY) <= g <= max(1, truth(v)) * (1 + TINY)


def test_two_levels_of_deviations_that_push_apart_are_not_proved_positive():
    """A trajectory that passes more than its tokens hold takes a ratio below 0."""
    clips = {trajectory: clip_gate(budget).per(mass), token: clip_gate(epsilon).per(mass)}
    for gates in (clips, {trajectory: Gate(2 * residual)}, {token: Gate(2 * residual)}):
        h = three(gates, ratio_deviation(scale=mass))
        assert next(v.status for v in h.verify().verdicts if v.law == "positivity") == "undecided"


# ---------------------------------------------------------------- facts


def facts(h, name):
    return {f.subject: f.value for f in h.verify().facts if f.name == name}


def fixed(h, plain):
    """The batch with every parameter at its default."""
    values = {p: Fraction(str(p.default)) for p in h.parameters.values()}
    return Plain(h, plain.sizes, plain.below, {**plain.values, **values})


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


def corners(n, rng):
    yield [1] * n
    yield [-1] * n
    for _ in range(6):
        yield [rng.choice([-1, 0, 1]) for _ in range(n)]
        yield [rng.choice([-1, 1]) for _ in range(n)]


@pytest.mark.parametrize("name", SHAPED)
def test_nothing_changes_inside_the_radius(name):
    h, rng = SHAPED[name], random.Random(name)
    radius = number(facts(h, "radius")["hierarchy"], parameter_values(h))
    assert 0 < radius < 1
    for plain in batches(h, seed=5, count=10 if ALL else 4, most=6):
        plain = fixed(h, plain)
        for corner in corners(len(plain.tokens), rng):
            xs = [Fraction(radius) * c * Fraction(999, 1000) for c in corner]
            assert all(abs(g - truth(v)) < TINY for g, v in zip(plain.ratios(xs), xs, strict=True))


def test_the_radius_of_a_crossing_is_the_largest():
    """A quarter of a trajectory's budget: its domain and modality may lie opposite to it, and their batch beside it."""
    h = SHAPED["quiver, trajectories alone"]
    assert facts(h, "radius") == {"hierarchy": "C/4"}
    wide = 40  # so that domain and modality of the first trajectory, which balance, are nearly those of the others
    cells = [(0, 0), *[(0, 1)] * wide, *[(1, 0)] * wide, *[(1, 1)] * (wide * wide)]
    signs = {(0, 0): 1, (0, 1): -1, (1, 0): -1, (1, 1): 1}
    domain_mean, modality_mean = (_mean(cells, signs, lambda c, k=k: c[k] == 0) for k in (0, 1))
    assert 1 - domain_mean - modality_mean + _mean(cells, signs, lambda c: True) > 3.7


def _mean(cells, signs, inside):
    values = [signs[c] for c in cells if inside(c)]
    return sum(values) / len(values)


def test_a_crossing_of_sign_channels_reaches_half_as_far_on_either_side():
    """Means of `max(±x, 0)` lie in `[0, R]`: two of them count for the residual, and two against it."""
    for gate in (clip(residual, -budget / 4, budget), clip(residual, -budget, budget / 4)):
        assert facts(quiver({trajectory: Gate(gate).per(mass)}, SIGNED), "radius") == {"hierarchy": "C/8"}


@pytest.mark.parametrize("name", SHAPED)
def test_bounds_are_not_exceeded(name):
    h, rng = SHAPED[name], random.Random(name)
    certified = {k: interval(v, parameter_values(h)) for k, v in facts(h, "bounds").items()}
    totals = {k: v for k, v in certified.items() if k.startswith("log 𝒢")}
    if "deviations" in name:
        assert not certified
        return
    assert len(totals) == len(h.leaves)
    assert set(certified) - set(totals) == {f"{s} level" for s in h.strata}
    for plain in batches(h, seed=6, count=10 if ALL else 4):
        plain = fixed(h, plain)
        for corner in corners(len(plain.tokens), rng):
            xs = [Fraction(c) * rng.choice([Fraction(1, 10), 1, 9]) for c in corner]
            for (leaf, _), g in zip(plain.tokens, plain.ratios(xs), strict=True):
                least, most = totals["log 𝒢" if len(totals) == 1 else f"log 𝒢 on {leaf}"]
                assert least - 1e-9 <= math.log(g) <= most + 1e-9


def test_each_leaf_of_a_tree_has_its_own_bounds():
    found = facts(
        deep_tree(
            {turn: clip_gate(budget).per(mass), text: zero_gate(), group: zero_gate(), trajectory: zero_gate()},
            gives_up=DROPPED,
        ),
        "bounds",
    )
    assert found["log 𝒢 on text_token"] == "[-C, C]"
    assert found["log 𝒢 on image_token"] == "(-inf, inf)"


@pytest.mark.parametrize(
    ("h", "value"),
    [
        (tree(), "diagonal"),
        (tree({image: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (deep_tree({text: clip_gate(epsilon).per(mass)}), "block-diagonal over turn"),
        (deep_tree({text: clip_gate(epsilon).per(mass), image: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (deep_tree({group: clip_gate(epsilon).per(mass)}), "block-diagonal over group"),
        (quiver(), "block-diagonal over token"),
        (quiver({token: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (quiver({trajectory: clip_gate(epsilon).per(mass)}), "block-diagonal over batch"),
        (quiver({token: Gate(residual / (1 + density(domain) ** 2))}), "block-diagonal over domain"),
        (quiver({token: Gate(residual / (1 + density(domain) ** 2 + density(modality) ** 2))}), "block-diagonal over batch"),
    ],
)  # fmt: skip
def test_blocks(h, value):
    """What is certified, and that a token of another block changes nothing."""
    assert facts(h, "blocks") == {"Jacobian of 𝒢": value}
    names = value.removeprefix("block-diagonal over ")
    for plain in batches(h, seed=7, count=8):
        plain = fixed(h, plain)
        tokens = plain.tokens
        stratum = next((s for s in h.strata if s.name == names), None)
        block = [(leaf, i) if stratum is None else plain.down(leaf, i, stratum) for leaf, i in tokens]
        xs = [Fraction(k % 5 - 2, 3) for k in range(len(tokens))]
        start = plain.ratios(xs)
        for j in range(len(tokens)):
            moved = plain.ratios([v + (k == j) for k, v in enumerate(xs)])
            for k in range(len(tokens)):
                assert block[k] == block[j] or moved[k] == start[k]


def test_least_squares_effects_have_no_radius():
    h = quiver(EVERYWHERE, assume=(), orthogonalise="projection")
    [fact] = [f for f in h.verify().facts if f.name == "radius"]
    assert fact.value == "not certified"
    assert "least-squares" in fact.argument
    free = quiver({token: clip_gate(epsilon).per(mass)}, assume=(), orthogonalise="projection")
    assert facts(free, "radius") == {"hierarchy": "epsilon/2"}


def test_gates_that_make_up_for_one_another_have_no_radius_of_0():
    """`𝒢` is the identity near `r = 1`, though no gate is; how far is not looked into."""
    for name in ("apc_obj", "apc, score", "sapo, score", "residual against the gated base", "tree, base made up for"):
        assert "radius" not in {f.name for f in report(name).facts}
    assert facts(SPECS["sapo"].h, "radius") == {"hierarchy": "0"}


def test_both_signs_of_a_clip_are_read_per_advantage():
    """A score estimator's facts are those of its gate."""
    h = one(pessimistic_clip_gate(low, high), objective=trajectory_mean().score(), gives_up=VALUE)
    assert facts(h, "radius") == facts(h.replace(objective=trajectory_mean(), gives_up={}), "radius")


# ---------------------------------------------------------------- drawn at random


def pull(h, source, target):
    """The factor that spreads a density of `target` over the elements of `source`."""
    path = h.shape.path(source, target)
    result = path[0].weight
    for f in path[1:]:
        result = result * f.weight
    return result


def drawn(rng):
    """A shape, and gates that keep, drop, halve, bend, clip, or take up what a coarser level holds, right or wrong."""
    shapes = [three, tree, deep_tree, quiver]
    build, split = (
        rng.choice(shapes),
        rng.choice([log_ratio(scale=mass), SIGNED, ratio_deviation(scale=mass), DEVIATION]),
    )
    plain = build({})
    gates, broken = {}, rng.random()
    for s in plain.order:
        up = plain.coarser(s)
        options = [
            residual,
            residual,
            residual,
            tanh(residual),
            clip(residual, -budget, budget),
            residual * residual + residual,
        ]
        if broken < 0.7:
            options += [0 * residual, residual / 2, where(residual >= 0, residual, 0), residual + 0.1, residual - 0.1]
        gate = rng.choice(options)
        dropped = [u for u in up if gates.get(u) == Gate(0 * residual)]
        for u in dropped if dropped and rng.random() < 0.8 else rng.sample(list(up), len(up) > 0 and broken < 0.2):
            factor = pull(plain, s, u)
            own = density(u) * factor
            if rng.random() < 0.85:  # what the level dropped: its own density less what is coarser
                for v, c in plain.shape.moebius(u).items():
                    own = own - c * density(v) * factor * pull(plain, u, v)
            gate = gate + rng.choice([own, own, own, own / 2, where(own >= 0, own, 0), clip(own, -epsilon, epsilon)])
        gates[s] = Gate(gate)
    more = {"objective": trajectory_mean().score()} if rng.random() < 0.15 and build in (tree, quiver) else {}
    return build(gates, split, **more)


def uphold(h, seed, count=5):
    """What is said of first order and positivity of a hierarchy, against the operator. Returns what is said."""
    found, rng = h.verify(), random.Random(seed)
    said = [(v.subject, v.status) for v in found.verdicts if v.law == "first_order"]
    ratio = h.objective.estimator == "ratio"
    positive = any(v.law == "positivity" and v.status == "proved" for v in found.verdicts)
    passes = next((f.value for f in found.facts if f.name == "radius"), "") not in ("", "0", "not certified")
    off = False
    for plain in batches(h, seed=seed, count=count, most=4):
        n = len(plain.tokens)
        start = plain.ratios([Fraction(0)] * n)
        for direction in directions(n, rng):
            xs = [UNIT * d for d in direction]
            moved = plain.ratios(xs)
            off |= any(abs(g - truth(v)) > UNIT / 10**6 for g, v in zip(moved, xs, strict=True))
            if ("gradient", "proved") in said and ratio:
                assert all(abs(m - s - v) <= UNIT / 10**6 for m, s, v in zip(moved, start, xs, strict=True))
            for subject, status in said:
                if subject.startswith("advantages") and status == "proved":
                    check_subspace(plain, subject.removeprefix("advantages constant on each "), rng, start, xs)
        if ("gradient", "proved") in said and not ratio:
            assert start == [1] * n
        if positive:
            assert all(g > 0 for g in plain.ratios([Fraction(rng.randint(-30, 30), 7) for _ in range(n)]))
    assert not off or ("hierarchy", "proved") not in said
    assert not (off and passes)
    witness = next((v.counterexample for v in found.verdicts if v.law == "first_order" and v.status == "refuted"), None)
    if witness is not None and "log_ratios" in witness.values:
        _, plain = rebuilt(h, witness)
        xs = list(witness.values["log_ratios"])
        got = plain_or_none(plain, xs, [witness.values["advantage"]] * len(xs))
        assert got is None or any(abs(g - truth(v)) > UNIT / 10**7 for g, v in zip(got, xs, strict=True))
    return [*said, ("off", off)]


@pytest.mark.parametrize("seed", some(range(24), 2))
def test_what_is_said_of_random_levels_is_so(seed):
    uphold(drawn(random.Random(seed)), seed)
