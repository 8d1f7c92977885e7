"""What levels can do: facts `share`, `idle` and `spill` against sums over small batches, and against the operator."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from fuzz.batches import Batches
from fuzz.judges.level_facts import added, found_facts, of_rows
from fuzz.world import Batch, World
from hierarchies.builders import FULL, budget, domain, prompt_group, token, trajectory
from hierarchies.first_order_specs import SIGNED
from oracles.certified_facts import facts_of, judged
from support import spec
from thorough import some

import fibration
from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    advantage,
    centred,
    clip,
    clip_gate,
    constant_normaliser,
    count,
    deviation,
    exp,
    identity_gate,
    largest,
    log_prob,
    log_ratio,
    mean,
    policies,
    proportional,
    ratio_deviation,
    residual,
    reward,
    standardised,
    strata,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import Stratum, mass
from fibration.language.expressions import as_expression
from fibration.language.strata import Shape

F = Fraction
M, T = count(trajectory), count(token, over=trajectory)
(batch,) = strata("batch")


def facts(h, name):
    return {f.subject.removeprefix("gate on "): f.value for f in facts_of(h, name)}


# ---------------------------------------------------------------- share


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["gspo", "fiberpo", "fiberpo_domain", "fiberpo_domain_inward", "fiberpo_turns"])
def test_what_is_said_of_the_levels_of_shipped_losses_holds(name):
    """Also of random towers, which the judge draws itself (`fuzz/test_judges.py`)."""
    judged(spec(name))


def plain(*edges, rows=trajectory):
    """Identity gates on a shape, whose kernels weigh the tokens of every leaf alike."""
    pairs = [tuple(map(Stratum, e.split(">"))) for e in edges]
    strata = tuple(dict.fromkeys(s for pair in pairs for s in pair))
    shape = Shape(strata, tuple(Fibration(*p, uniform()) for p in pairs))

    def tokens(s):
        return sum((as_expression(1) if o == s else count(o, over=s) for o in sorted(shape.leaves_over(s), key=str)), 0)

    kernels = [Fibration(a, b, kernel=MarkovKernel(tokens(a) / tokens(b))) for a, b in pairs]
    return Hierarchy(
        name="plain", fibrations=kernels, gates={s: identity_gate() for s in strata}, rows=rows,
        decomposition=log_ratio(scale=mass), objective=Objective(1 / count(trajectory, over=batch)),
    )  # fmt: skip


APART = {  # the levels that add 0 on policy, if every row has one advantage
    "chain": (plain("token>trajectory", "trajectory>prompt_group"), {"token"}),
    "turns": (plain("token>turn", "turn>trajectory", "trajectory>prompt_group"), {"token", "turn"}),
    "rows cross": (plain("token>trajectory", "trajectory>domain", "trajectory>prompt_group"), {"token"}),
    "experts cross rows": (plain("token>trajectory", "token>domain", "trajectory>batch", "domain>batch"), set()),
    "experts without a root": (plain("token>trajectory", "token>domain"), set()),
    "groups of tokens": (plain("token>prompt_group", "prompt_group>domain"), set()),
    "turns that may cross rows": (plain("token>turn"), set()),
    "two branches": (plain("text>trajectory", "image>trajectory"), set()),
    "a branch of pictures": (plain("text>trajectory", "image>picture", "picture>trajectory"), {"image"}),
    "the shipped experts": (spec("fiberpo_experts"), set()),
    "the shipped turns": (spec("fiberpo_turns"), {"token", "turn"}),
    "the shipped branches": (spec("fiberpo_modal"), set()),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", APART)
def test_a_level_is_said_to_add_nothing_exactly_if_it_lies_in_rows_with_all_that_it_subtracts(name):
    h, expected = APART[name]
    said = {f.subject.removeprefix("gate on ") for f in found_facts(h, ("share",)) if "on policy 0 for" in f.argument}
    draw, adds = Batches(h, random.Random(name), 12), set()
    for _ in range(30):
        drawn = draw("exact")
        of_rows(h, drawn)
        adds |= {s.name for s in h.order if s.name not in adds and any(abs(c) > 1e-12 for c in added(h, drawn, s.name))}
        if adds | expected == {s.name for s in h.order}:
            break
    assert said == expected == {s.name for s in h.order} - adds


def test_a_gate_that_reads_densities_has_no_share():
    assert not facts(spec("gspo_token"), "share") and not facts(spec("gspo_token"), "spill")
    assert not facts(spec("apc_obj"), "share")
    assert not facts(spec("grpo"), "share")  # one level


# ---------------------------------------------------------------- idle

share = Parameter("share", default=0.75, upper=1)
others = {s: mean(reward, over=s, of=trajectory, others=True) for s in (prompt_group, domain)}
in_group = centred(reward, over=prompt_group)
ADVANTAGES = {
    "group": in_group,
    "domain": centred(reward, over=domain),
    "batch": centred(reward, over=batch),
    "leave one out": centred(reward, over=prompt_group, leave_one_out=True),
    "leave one out of the domain": centred(reward, over=domain, leave_one_out=True),
    "standardised": standardised(reward, over=prompt_group),
    "standardised in the domain": standardised(reward, over=domain),
    "deviation of the batch": in_group / (1 + deviation(reward, over=batch, of=trajectory)),
    "twice": 2 * reward - mean(reward, over=prompt_group, of=trajectory) * 2,
    "by tokens": reward - mean(reward, over=prompt_group),
    "domain by tokens": reward - mean(reward, over=domain),
    "not quite": reward - mean(reward, over=prompt_group, of=trajectory) * 2,
    "reward": reward - share,
    "largest": reward - largest(reward, over=prompt_group, of=trajectory),
    "hierarchical": reward - share * others[prompt_group] - (1 - share) * others[domain],
    "square": centred(reward * reward, over=prompt_group),
    "times itself": reward * in_group,
    "by length": in_group / T,
    "where several": where(count(trajectory, over=prompt_group) > 1, in_group, 0),
    "clipped": clip(in_group, -1, 1),
}
OBJECTIVES = {
    "rows": trajectory_mean(),
    "tokens": token_mean(),
    "length": constant_normaliser(7),
    "row sums": Objective(1 / (T * count(trajectory, over=batch))),
}


def tower(kind, objective, split=None, levels=FULL, **more):
    kernels = {token: uniform(), trajectory: uniform(), prompt_group: proportional(M), batch: uniform()}
    return Hierarchy(
        name="tower",
        fibrations=[Fibration(a, b, kernel=kernels[a]) for a, b in itertools.pairwise(levels)],
        gates={s: clip_gate(budget).per(mass) for s in levels},
        decomposition=split or log_ratio(scale=mass),
        objective=OBJECTIVES[objective],
        **{"advantages": ADVANTAGES[kind] if kind else None, **more},
    )


def towers_of(rng):
    """A random batch in which every answer has another beside it in its group, and a reward of its own."""
    counts = [rng.randint(1, 2), lambda: rng.randint(1, 2), lambda: rng.randint(2, 3), lambda: rng.randint(1, 2)]
    above = [(d,) for d in range(counts[0])]
    for number in counts[1:]:
        above = [(*e, k) for e in above for k in range(number())]
    names = {domain: 1, prompt_group: 2, trajectory: 3}
    labels = {str(s): [e[:n] for e in above] for s, n in names.items()}
    rewards = {r: F(rng.randint(-9, 9), 2) for r in labels["trajectory"]}
    n, given = len(above), {"C": F(1, 5), "share": F(3, 4)}
    return Batch([token] * n, labels, [F(0)] * n, [F(0)] * n, {"old": [F(-1)] * n}, parameters=given, rewards=rewards)


def moves(h, stratum, at_0=True):
    """Whether some batch has other coefficients with another slope of the gate of this level."""
    rng, other = random.Random(0), h.replace(gates={**h.gates, stratum: Gate(residual / 3)})
    for drawn in (towers_of(rng) for _ in range(5 if at_0 else 1)):
        b = drawn if at_0 else replace(drawn, x=[F(rng.randint(-9, 9), 97) for _ in drawn.x])
        here, there = (World(g, b, exact=True).coefficients for g in (h, other))
        if any(abs(c - d) > F(1, 10**30) for c, d in zip(here, there, strict=True)):
            return True
    return False


CASES = some([(k, o, s) for k in ADVANTAGES for o in OBJECTIVES for s in (log_ratio(scale=mass), SIGNED)], 3)


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "objective", "split"), CASES)
def test_a_level_is_idle_if_no_slope_of_its_gate_moves_a_coefficient_on_policy(kind, objective, split):
    h = tower(kind, objective, split)
    said = facts(h, "idle")
    assert set(said.values()) <= {"idle on policy"}
    for stratum in (domain, prompt_group, trajectory):
        moved = moves(h, stratum)
        assert not (moved and stratum.name in said), stratum
        assert moved or stratum.name in said, stratum  # nothing that holds is left out


@pytest.mark.parametrize(
    ("kind", "names"),
    [("group", {"domain", "prompt_group"}), ("domain", {"domain"}), ("batch", set()), ("hierarchical", {"domain"})],
)
def test_advantages_leave_idle_what_lies_below_the_stratum_that_centres_them(kind, names):
    assert set(facts(tower(kind, "rows"), "idle")) == names


@pytest.mark.thorough
def test_enough_levels_are_idle_and_enough_are_not():
    idle = [len(facts(tower(k, o), "idle")) for k in ADVANTAGES for o in OBJECTIVES]
    assert sum(idle) >= 40 and sum(3 - n for n in idle) >= 40


@pytest.mark.parametrize("objective", ["rows", "tokens"])
def test_deviations_leave_a_level_idle_off_policy_too(objective):
    h = tower("group", objective, ratio_deviation(scale=mass))
    said = facts(h, "idle")
    assert set(said.values()) <= {"idle"} and bool(said) is (objective == "rows")
    for name in said:
        assert not moves(h, next(s for s in h.order if s.name == name), at_0=False)
    assert moves(h, trajectory, at_0=False)
    assert moves(tower("group", objective), prompt_group, at_0=False)  # log ratios


CONDITIONS = {
    "rows": "where the advantages of the trajectories of every {} sum to 0",
    "tokens": "where the advantages of the tokens of every {} sum to 0",
    "length": "where the advantages of the tokens of every {} sum to 0",
}


@pytest.mark.sampled
@pytest.mark.parametrize("objective", CONDITIONS)
def test_without_declared_advantages_a_level_is_idle_on_a_condition(objective):
    said = facts(tower("", objective), "idle")
    expected = {n: f"idle on policy {CONDITIONS[objective].format(n)}" for n in ("prompt_group", "domain")}
    assert said == expected


def test_weights_that_are_not_1_on_policy_leave_no_level_idle():
    current, old, rollout = policies("current old rollout")
    rho = exp(log_prob(old) - log_prob(rollout))
    h = tower("group", "rows")
    truncated = h.replace(objective=trajectory_mean().weigh(fibration.minimum(rho, 2)))
    assert facts(truncated, "idle") == facts(h, "idle") != {}
    by_advantage = h.replace(objective=trajectory_mean().weigh(where(advantage > 0, 2, 1)))
    assert not facts(by_advantage, "idle")
    dropped = h.replace(objective=trajectory_mean().keep(advantage > 0))
    assert not facts(dropped, "idle")
    assert not facts(h.replace(objective=trajectory_mean().score()), "idle")


def test_a_group_without_a_level_centres_advantages_too():
    h = tower("group", "rows", levels=(token, trajectory, batch), groups=[prompt_group])
    assert facts(h, "idle") == {"batch": "idle on policy"}
    without = tower("", "rows", levels=(token, trajectory))
    assert not facts(without, "idle")


# ---------------------------------------------------------------- spill

@pytest.mark.parametrize("kernel", ["even", "proportional"])
def test_siblings_get_what_an_element_does_not_keep(kernel):
    h = tower("", "rows")
    if kernel == "even":
        h = h.replace(fibrations=[Fibration(f.source, f.target, uniform()) for f in h.fibrations])
    assert judged(h).count("spill") == 3


def test_a_level_that_passes_everything_has_no_spill():
    h = tower("", "rows")
    assert set(facts(h, "spill")) == {"prompt_group", "trajectory", "token"}
    assert set(facts(h.replace(gates={**h.gates, trajectory: identity_gate()}), "spill")) == {"prompt_group", "token"}
    assert facts(h.replace(gates={**h.gates, token: zero_gate()}), "spill")["token"] == (
        "1 - 1/count(token, over=trajectory)"
    )
