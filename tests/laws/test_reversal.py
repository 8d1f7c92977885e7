"""The fact `reversal`: whether some token is pushed further out against its own advantage, on random hierarchies."""

import random
from fractions import Fraction

import pytest
from fuzz.judges.joint_facts import Said, off, with_rows
from fuzz.judges.judge import worlds
from fuzz.witnesses import world_of
from hierarchies.builders import budget, epsilon, token, trajectory
from hierarchies.first_order_specs import DEVIATION, SIGNED, deep_tree, three, tree
from oracles.brute_force import coefficients
from oracles.certified_facts import facts_of, report
from oracles.definition import World
from support import spec
from thorough import some

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    advantage,
    aggregate_gate,
    before,
    centred,
    clip_gate,
    count,
    decomposition,
    exp,
    gated,
    identity_gate,
    log_clip_gate,
    log_ratio,
    maximum,
    minimum,
    pessimistic_clip_gate,
    ratio_deviation,
    residual,
    reward,
    stop,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import mass
from fibration.laws.off_policy.reversal_search import reversed_token

F = Fraction
high = Parameter("high", default=0.3)
share = Parameter("share", default=0.5, upper=1)
NONE, SOME, UNKNOWN = "none", "some tokens are pushed out against their advantage", "not certified"
ONE_EACH = f"{NONE} where every trajectory has one advantage"


def said(h):
    (fact,) = facts_of(h, "reversal")
    return fact


def chain(gates, split=None, **more):
    """Tokens over trajectories; or tokens alone."""
    over = [Fibration(token, trajectory, uniform())] if trajectory in gates else []
    return Hierarchy(
        name="chain",
        fibrations=over,
        gates=gates,
        decomposition=split or (log_ratio(scale=mass) if over else log_ratio()),
        objective=trajectory_mean(),
        **more,
    )


GATES = [
    clip_gate(budget).per(mass),
    clip_gate(epsilon).per(mass).inward(),
    aggregate_gate(budget, rollback=2).per(mass),
    aggregate_gate(budget, rollback=1).per(mass).inward(),
    identity_gate(),
    zero_gate(),
    Gate(residual / 3),
    Gate(where(residual > budget * mass, 2 * residual - budget * mass, residual)),
]
ALONE = [clip_gate(budget), log_clip_gate(epsilon, high), aggregate_gate(budget, rollback=2), identity_gate(), GATES[6]]


def random_hierarchy(seed):
    rng = random.Random(seed)
    if seed % 5 == 4:
        kind = rng.choice([log_ratio(), ratio_deviation()])
        gate = rng.choice([*ALONE, pessimistic_clip_gate(epsilon, high), GATES[0].inward()])
        return chain({token: gate}, kind)
    if seed % 5 == 3:
        build = rng.choice([three, tree, deep_tree])
        return build({s: rng.choice(GATES) for s in build({}).order}, rng.choice([log_ratio(scale=mass), SIGNED]))
    split = rng.choice([log_ratio(scale=mass), SIGNED, SIGNED, ratio_deviation(scale=mass), DEVIATION])
    return chain({trajectory: rng.choice(GATES), token: rng.choice(GATES)}, split)


T = count(token, over=trajectory)
x = token_log_ratio
SPLITS = [  # two densities of a token, which are one where both are the same
    where(advantage >= 0, minimum(x, high), maximum(x, -high)) / T,
    x / T,
    maximum(x, -high) / T,
    -x / T,
    where(x > high, 2 * high - x, x) / T,
    where((x >= 0) & (x <= 0), -2 * x, x) / T,
]
BACK = [exp(T * gated("+")), exp(-T * gated("+")), gated("+") + 1]
PAIRS = [(identity_gate(), identity_gate()), (identity_gate(), zero_gate()), (zero_gate(), identity_gate())]
PAIRS += [(clip_gate(budget).per(mass), zero_gate()), (GATES[1], zero_gate()), (GATES[6], zero_gate())]
PAIRS += [(aggregate_gate(budget, rollback=2).per(mass), zero_gate()), (GATES[6], identity_gate())]


def own_split(seed):
    """Tokens over trajectories, in densities and a recovery of their own."""
    rng = random.Random(seed)
    plus, minus = rng.choice(SPLITS[: 6 if seed % 2 else 3]), rng.choice(SPLITS[: 6 if seed % 4 == 1 else 2])
    first, second = rng.choice(PAIRS), rng.choice(PAIRS)
    back = rng.choice(BACK) if seed % 3 == 1 else BACK[0]
    split = decomposition(
        plus=plus, minus=minus, recovery=share * back + (1 - share) * exp(T * gated("-")), scale=1 / T
    )
    gates = {s: {"+": a, "-": b} for s, a, b in zip((trajectory, token), first, second, strict=True)}
    return chain(gates, split)


SEEDS = range(140)


def holds(h, value, seed):
    """That no token of random batches is reversed, if that is said."""
    assert value in (NONE, ONE_EACH, SOME, UNKNOWN)
    claim = Said(h, reverses_none=value in (NONE, ONE_EACH))
    for world in map(with_rows, worlds(h, random.Random(seed), 12, most=8) if claim.reverses_none else ()):
        assert not (complaint := off(claim, world)), complaint


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
def test_no_batch_contradicts_the_fact(seed):
    h = random_hierarchy(seed)
    value = said(h).value
    holds(h, value, seed)
    if value == SOME:
        witness = reversed_token(h)
        assert said(h).argument.startswith(f"{witness}; ")
        world, k = world_of(h, witness), witness.values["token"]
        x = world.batch.x[k]
        assert world.coefficients[k] * x > 0 > world.batch.advantages[k] * x


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(60))
def test_no_batch_contradicts_the_fact_of_other_decompositions(seed):
    h = own_split(seed)
    holds(h, said(h).value, seed)


FALLING, STEEP = (where((x <= 0.1) & (x >= -0.1), x, beyond) for beyond in (2 * stop(x) - x, 3 * x - 2 * stop(x)))
BACK_FALLS = where(abs(gated("")) <= 0.1, exp(gated("")), exp(2 * stop(gated("")) - gated("")))
OWN = decomposition(
    plus=where(x >= 0, FALLING, 0) / T,
    minus=where(x >= 0, 0, -FALLING) / T,
    recovery=BACK[0] * exp(-T * gated("-")),
    scale=1 / T,
)
OTHERS = x + before(x, over=trajectory) - stop(before(x, over=trajectory))
STOPPED = {  # values of log ratios with other slopes; and |c|/(μ·A) of a token at x = 0.15
    "slopes below 0": (chain({token: identity_gate()}, decomposition(density=FALLING, recovery=exp(gated("")))), "1.17"),
    "slopes of 3": (chain({token: clip_gate(0.2)}, decomposition(density=STEEP, recovery=exp(gated("")))), "3.48"),
    "a recovery": (chain({token: identity_gate()}, decomposition(density=x, recovery=BACK_FALLS)), "1.17"),
    "in a chain": (
        chain(dict.fromkeys((trajectory, token), identity_gate()), decomposition(density=FALLING / T, recovery=exp(T * gated("")), scale=1 / T)),
        "1.17",
    ),
    "of two channels": (chain(dict.fromkeys((trajectory, token), identity_gate()), OWN), "1.17"),
    "at r = 1 alone": (
        chain({token: identity_gate()}, decomposition(density=where((x >= 0) & (x <= 0), 2 * stop(x) - x, x), recovery=exp(gated("")))),
        "1",
    ),
    "towards other tokens": (chain({token: identity_gate()}, decomposition(density=OTHERS, recovery=exp(gated("")))), None),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", STOPPED)
def test_slopes_that_a_stop_changes_are_certified_by_no_fact(name):
    """At log ratios of 0.15 and -0.5, against advantages, or at 0."""
    h, least = STOPPED[name]
    found = {f.name: f.value for f in report(h).facts}
    assert found["reversal"] in ((SOME, UNKNOWN))
    assert found["amplification"].startswith("not certified") and "radius" not in found
    if least is not None:
        world = World.chain(h, {} if len(h.order) == 1 else {token: (0,)}, {}, roots=1)
        (c,) = coefficients(world, [F(least != "1") * F(15, 100)], [F(1)])
        assert abs(abs(c) / world.mu(0) - F(least)) < F(1, 100)


@pytest.mark.thorough
def test_enough_other_decompositions_are_decided():
    values = [said(own_split(seed)).value for seed in some(range(60), 4)]
    least = len(values) // 4
    assert sum(v in (NONE, ONE_EACH) for v in values) >= least and values.count(SOME) >= least


@pytest.mark.thorough
def test_enough_hierarchies_reverse_tokens_and_enough_do_not():
    values = [said(random_hierarchy(seed)).value for seed in some(SEEDS, 4)]
    least = len(values) * 2 // 7
    assert sum(v in (NONE, ONE_EACH) for v in values) >= least and values.count(SOME) >= least
    assert values.count(UNKNOWN) <= len(values) // 4


# ---------------------------------------------------------------- shipped losses

EXPECTED = {
    **dict.fromkeys(("grpo", "gspo", "fiberpo_inward", "fiberpo_inward_clip", "cispo", "vespo"), NONE),
    **dict.fromkeys(("attenuated_trajectory", "attenuated_group", "attenuated_domain"), NONE),
    **dict.fromkeys(("fiberpo", "fiberpo_domain", "fiberpo_domain_inward", "fiberpo_domain_inward_clip"), SOME),
    **dict.fromkeys(("gspo_residual", "apc_obj", "fiberpo_modal"), SOME),
    **{"gmpo": ONE_EACH, "fspo": NONE, "dhpo": NONE},
    "fiberpo_crossed": UNKNOWN,  # a least-squares fit
    "gspo_token": UNKNOWN,  # a gate on tokens reads the trajectory
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXPECTED)
def test_of_shipped_losses(name):
    assert said(spec(name)).value == EXPECTED[name]


def test_inward_gates_of_prompt_groups_reverse_a_token_of_another_answer():
    """Every gate keeps the law `inward`, and the tower reverses tokens: only batches of several answers show it."""
    h = spec("fiberpo_domain_inward")
    assert all(v.status == "proved" for v in h.verify().verdicts if v.law == "inward")
    assert said(h).level == "warning" and "in a batch of" in said(h).argument


# ---------------------------------------------------------------- conditions of the proofs


def test_one_gate_may_turn_outward_pulls_round_and_no_inward_ones():
    rolled_back = aggregate_gate(budget, rollback=2)
    assert said(chain({token: rolled_back})).value == SOME
    assert said(chain({token: rolled_back.inward()})).value == NONE
    assert said(chain({token: clip_gate(budget)})).value == NONE


def test_levels_that_read_no_advantage_need_one_for_each_row():
    plain = chain({trajectory: identity_gate(), token: zero_gate()})
    assert said(plain).value == ONE_EACH
    assert said(chain({trajectory: identity_gate(), token: identity_gate()})).value.startswith(NONE)
    assert said(chain({trajectory: clip_gate(budget).per(mass).inward(), token: zero_gate()})).value == NONE
    # a closed trajectory leaves what its tokens add beyond their mean, in either direction
    assert said(chain({trajectory: clip_gate(budget).per(mass), token: identity_gate()})).value == SOME


def test_ratios_that_fall_as_a_log_ratio_rises_are_not_certified_as_none():
    def said_of(density, back):
        split = decomposition(density=density / T, recovery=back, scale=1 / T)
        return said(chain({trajectory: identity_gate(), token: zero_gate()}, split)).value

    up, down = exp(T * gated("")), exp(-T * gated(""))
    assert said_of(minimum(x, high), up) == ONE_EACH
    assert said_of(-minimum(x, high), up) == said_of(minimum(x, high), down) == SOME
    assert said_of(where(x > high, 2 * high - x, x), up) == SOME
    assert said_of(-minimum(x, high), down) == UNKNOWN  # they rise, by two changes of sign


@pytest.mark.thorough
def test_a_recovery_may_fall_where_no_token_lies():
    """The means of a trajectory lie between the densities of its tokens, where `R(F(r)) = r` says nothing of R."""
    y = T * gated("")
    back = where(y < 1, exp(y), where(y < 2, exp(2 - y), exp(y - 1)))
    split = decomposition(density=where(x < 1, x, x + 1) / T, recovery=back, scale=1 / T)
    assert said(chain({trajectory: identity_gate(), token: zero_gate()}, split)).value == SOME
    split = decomposition(density=(exp(x) - 1) / T, recovery=where(y > -1, y + 1, -1 - y), scale=1 / T)
    steep = Gate(where(residual < -mass / 2, 3 * residual + mass, residual))
    assert said(chain({trajectory: steep, token: zero_gate()}, split)).value not in (NONE, ONE_EACH)


def test_a_mean_with_weights_below_0_is_not_certified_as_none():
    rows = count(token, over=trajectory)
    h = chain({token: identity_gate()})
    assert said(h).value == NONE
    assert said(h.replace(objective=Objective(-1 / rows))).value == SOME


def test_a_level_of_groups_that_passes_everything_couples_nothing():
    assert said(three({})).value == said(three({token: zero_gate()})).value == ONE_EACH
    for dropped in ([trajectory], [trajectory, token]):  # a group's pull is that of other rows
        assert said(three(dict.fromkeys(dropped, zero_gate()))).value == SOME


def test_declared_advantages_are_those_of_rewards():
    h = three({trajectory: clip_gate(budget).per(mass).inward()}).replace(
        advantages=centred(reward, over=three({}).order[0])
    )
    fact = said(h)
    assert fact.value == SOME and reversed_token(h).values["advantages"]
    total = sum(reversed_token(h).values["advantages"])
    assert len(reversed_token(h).values["advantages"]) > 1 and isinstance(total, Fraction)
