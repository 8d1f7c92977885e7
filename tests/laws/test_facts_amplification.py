"""The amplification against the operator: no batch exceeds the certified bound, and some come near."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fuzz.points import of_rows, point
from hierarchies import random_quivers
from hierarchies.builders import T, budget, chain, epsilon, one, prompt_group, token, trajectory, two
from hierarchies.first_order_specs import SHAPED
from hierarchies.right import RIGHT
from oracles.certified_facts import amplified, facts, facts_of
from support import Batch, coefficients, operator, packed, spec

from fibration import (
    Gate,
    Parameter,
    advantage,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    density,
    exp,
    log_ratio,
    proportional,
    residual,
    sign,
    stop,
    token_mean,
    trajectory_mean,
    uniform,
    where,
)
from fibration.language.atoms import mass
from fibration.language.exact import TooLarge
from fibration.laws.batches.coefficients import Point
from fibration.laws.facts.amplification_search import crowd, pull

F = Fraction
STRIP = aggregate_gate(budget, rollback=count(token))
FINE = clip_gate(epsilon).per(1 / T)
LOG = log_ratio(scale=1 / T)
SIGNED = Gate(where(advantage > 0, clip(residual, -epsilon, epsilon), clip(residual, -epsilon, 2 * epsilon)))
GATES = {token: FINE, trajectory: clip_gate(budget), prompt_group: STRIP.per(mass)}
COUPLED = {
    **{name: spec(name) for name in ("fiberpo", "fiberpo_domain", "fiberpo_experts")},
    **{name: SHAPED[name] for name in ("tree, split", "quiver")},
    "one channel": two(outer=STRIP, inner=FINE, split=LOG),
    "trajectories fall": chain(
        uniform(), uniform(), split=LOG, objective=trajectory_mean(),
        gates={prompt_group: clip_gate(budget).per(mass), trajectory: STRIP, token: FINE},
    ),
    "tokens weigh alike": chain(uniform(), uniform(), split=LOG, objective=token_mean(), gates=GATES),
    "kernels weigh tokens alike": chain(
        uniform(), proportional(count(token)), objective=token_mean(), split=log_ratio(scale=mass),
        gates={token: clip_gate(epsilon).per(mass), trajectory: clip_gate(budget).per(mass), prompt_group: STRIP.per(mass)},
    ),
    "tokens read the advantage": two(outer=STRIP, inner=SIGNED.per(1 / T), split=LOG),
    "trajectories read the advantage": two(
        outer=Gate(where(advantage > 0, clip(residual, -budget, budget), STRIP.expression)), inner=FINE, split=LOG
    ),
}  # fmt: skip
ALONE = {
    **{name: spec(name) for name in ("ppo", "grpo", "dapo", "dr_grpo", "cispo", "truly_ppo", "ce_gppo")},
    **{name: RIGHT[name] for name in ("asymmetrical clip", "halved fall of ratios", "exponential less one")},
    "back by its slope alone": one(
        where(abs(residual) <= budget, residual, sign(residual) * budget + stop(residual) - residual), log_ratio()
    ),
    "passed by its slope alone": one(
        where(residual > budget, budget + residual - stop(residual), residual), log_ratio()
    ),
}
SAID = {
    "grpo": "1 + epsilon_high where the advantage is above 0; "
    "r, without bound, where the advantage is below 0 and r > 1 - epsilon_low",
    "ppo": "1 + epsilon_high where the advantage is above 0; ceiling where the advantage is below 0",
    "cispo": "1 + epsilon_high",
    "gspo": "1 + epsilon_high where the advantage is above 0; "
    "r, without bound, where the advantage is below 0 and r > 1 - epsilon_low",
    "truly_ppo": "alpha*r, without bound, where the advantage is above 0 and r > 1 + epsilon; "
    "r, without bound, where the advantage is below 0 and r > 1 - epsilon",
    "ce_gppo": "maximum(1 + epsilon_high, beta_high*epsilon_high + beta_high) where the advantage is above 0; "
    "r, without bound, where the advantage is below 0 and r > 1 - epsilon_low",
    "fiberpo": "at most (2 + count(token, over=trajectory))*exp(2*epsilon + C_trajectory[+]), "
    "at least count(token, over=trajectory)*exp(C_trajectory[+]); "
    "reached: 12.2116, 122.116, 1221.16, 12211.6 with 10, 100, 1000, 10000 tokens",
    "fiberpo_inward": "at most 3*exp(2*epsilon + C_trajectory[+]), at least exp(C_trajectory[+]); "
    "reached: 1.2214 with 10 tokens where the advantage is above 0; "
    "r, without bound, where the advantage is below 0 and r > 1",
    "gspo_residual": "no bound known, at least 1 + epsilon_high; reached: 22026.5 with 10 tokens",
    "fiberpo_crossed": "not certified; reached: 12.2116, 122.116, 1221.16, 12211.6 with 10, 100, 1000, 10000 tokens",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SAID)
def test_the_amplification_of_shipped_losses_is_the_expected_text(name):
    assert facts(spec(name), "amplification") == {"hierarchy": SAID[name]}


# ---------------------------------------------------------------- no batch goes beyond it: a judge of the fuzz tries


def pulls(h, batch):
    """`|c|/(μ·max|A|)` of every token by the operator, the claims about it, and the exact batch behind them."""
    here, places = point(h, of_rows(h, batch))
    made = operator(h)
    found, _ = coefficients(made, packed(made, batch), batch)
    largest = float(np.abs(batch.advantages).max())
    return [abs(found[i]) / (float(m) * largest) for i, m in zip(places, here.weights, strict=True)], here


def test_the_amplification_counts_tokens_of_other_trajectories():
    """The share of one token among 200 others is bounded by their number and by their weight in the objective."""
    falling, weighing = 0.2 * (1 + 0.5 / 200), 0.2 * (1 + 0.5 / 201)
    for name, short, long, least in (
        ("trajectories fall", -falling, falling, 50),
        ("tokens weigh alike", weighing, weighing, 20000),
    ):
        batch = Batch((1, 200), np.array([short, *[long] * 200]), np.ones(201), {"prompt_group": [0, 0]})
        found, here = pulls(COUPLED[name], batch)
        assert least < found[0] <= amplified(COUPLED[name])[0].at_most(here.concrete, *here.places[0])


@pytest.mark.sampled
@pytest.mark.parametrize("name", ALONE)
def test_the_amplification_of_one_gate_is_its_supremum(name):
    """No ratio exceeds it, and one nearly reaches it. The report says if there is no bound."""
    h = ALONE[name]
    claims, said = amplified(h), facts(h, "amplification")["hierarchy"]
    x = np.unique(np.concatenate([np.linspace(-4, 4, 33), np.log(np.linspace(0.5, 4, 701))]))
    batch = random_quivers.batch_for(h, 0)
    batch = Batch(lengths=(len(x),), x=x, advantages=np.ones(len(x)), labels=batch.labels)
    for a in (1, -1):
        found, here = pulls(h, replace(batch, advantages=a * batch.advantages))
        claim = claims.get(a, claims.get(0))
        if claim is None:
            assert "without bound" in said
            assert max(found) > 10
        else:
            most = claim.at_most(here.concrete, *here.places[0])
            assert most * 0.99 < max(found) <= most * (1 + 1e-12)


# ---------------------------------------------------------------- what is reached


def of_one_ratio(h, tokens, x, a=1.0):
    """A trajectory of tokens that all have one log ratio."""
    names = {s.name for s in h.strata}
    labels = {name: [0] for name in names & {"prompt_group", "domain", "modality"}}
    per_token = {name: [0] * tokens for name in names & {"turn", "expert"}}
    return Batch((tokens,), np.full(tokens, x), np.full(tokens, a), labels, per_token)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain", "fiberpo_crossed", "fiberpo_experts"])
def test_the_operator_reaches_the_reported_amplification(name):
    """The batch lies a thousandth into the strip, whose slope is the number of tokens. Least squares are included."""
    h = spec(name)
    claim = amplified(h)[0]
    for n, value in claim.reached.items():
        batch = of_one_ratio(h, n, 0.2 * (1 + 1 / (1000 * n)))
        made = operator(h)
        found, _ = coefficients(made, packed(made, batch), batch)
        assert abs(found) * n == pytest.approx(value, rel=1e-5)


def test_the_amplification_of_fiberpo_grows_with_the_trajectory():
    """In the middle of the strip of fiberpo: 11 for 10 tokens, 1.1e2, 1.1e3; grpo has 1.2 there."""
    for n in (10, 100, 1000):
        for name, expected in (("fiberpo", n * np.exp(0.1)), ("grpo", np.exp(0.2 * (1 + 1 / (2 * n))))):
            made, batch = operator(spec(name)), of_one_ratio(spec(name), n, 0.2 * (1 + 1 / (2 * n)), -1.0)
            found, _ = coefficients(made, packed(made, batch), batch)
            assert abs(found) * n == pytest.approx(expected, rel=1e-9)


@pytest.mark.sampled
@pytest.mark.parametrize("name", COUPLED)
def test_the_reached_amplification_lies_between_its_bounds(name):
    h = COUPLED[name]
    for claim in amplified(h).values():
        assert claim.reached
        for n, value in claim.reached.items():
            here = crowd(h, n), h.leaves[0], 0
            assert claim.at_least(*here) * 0.99 <= value <= claim.at_most(*here)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_modal", "fiberpo_experts", "gspo", "cispo", "apc_obj", "sapo"])
def test_one_token_that_stands_for_many_has_their_coefficient(name):
    """It has the same coefficients, counts and weights as the tokens that it replaces."""
    h, n = spec(name), 5
    few = crowd(h, n)
    leaf, others = h.leaves[0], sum(few.size[s] for s in h.leaves[1:])
    many = replace(few, alike={}, maps={k: v * n if k[0] == leaf else v for k, v in few.maps.items()})
    many = replace(many, maps={k: v[:n] if k[0] == leaf else v for k, v in many.maps.items()})
    for one_x, x in ((F(1, 4), F(-1, 50)), (F(1, 9), F(1, 9)), (F(-3), F(7, 30))):
        for a in (F(1), F(-1)):
            short = Point(h, few, (one_x, *[x] * (1 + others)), (a,) * (2 + others))
            long = Point(h, many, (one_x, *[x] * (n - 1 + others)), (a,) * (n + others))
            assert short.coefficients == [*long.coefficients[:2], *long.coefficients[n:]]
            assert pull(h, few, short.log_ratios, a) == max(
                abs(c / m) for c, m in zip(long.coefficients, long.weights, strict=True)
            )


# ---------------------------------------------------------------- what changes it, and what is not certified


def test_a_steeper_rollback_raises_the_amplification():
    for k, expected in (
        (6, "at most 8*exp(C + epsilon), at least 6*exp(C)"),
        (
            2 * count(token),
            "at most (2 + 2*count(token, over=trajectory))*exp(C + epsilon), "
            "at least 2*count(token, over=trajectory)*exp(C)",
        ),
    ):
        h = two(outer=aggregate_gate(budget, rollback=k), inner=FINE, split=LOG)
        assert facts(h, "amplification")["hierarchy"].split(";")[0] == expected


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("h", "why"),
    [
        (spec("apc_obj"), "densities are no log ratios"),
        (spec("sapo"), "rises and falls"),
        (spec("fiberpo_crossed"), "least-squares"),
        (two(inner=Gate(residual / (1 + density(trajectory) ** 2)), split=LOG), "reads more of the batch"),
        (one(where(residual > advantage, advantage, residual), log_ratio()), "could not be put in order"),
    ],
)
def test_an_amplification_that_is_not_certified_says_why(h, why):
    [fact] = facts_of(h, "amplification")
    assert fact.value.startswith("not certified")
    assert why in fact.argument


def test_a_bound_with_too_many_terms_is_not_printed():
    for n, said in ((20, "at most 2*exp("), (21, "not certified, at least exp(")):
        names = [Parameter(f"c{i}", default=0.1) for i in range(n - 1)]
        h = two(outer=clip_gate(sum(names[1:], names[0])), inner=FINE, split=LOG)
        [fact] = facts_of(h, "amplification")
        assert fact.value.startswith(said)
        assert ("more than 20 counts and parameters" in fact.argument) == (n > 20)


def test_the_amplification_allows_advantages_of_both_signs_in_a_trajectory():
    """If only tokens read their advantage, those of one trajectory may differ. One bound holds for both signs."""
    assert list(amplified(COUPLED["tokens read the advantage"])) == [0]
    assert list(amplified(COUPLED["trajectories read the advantage"])) == [1, -1]


def test_batches_with_numbers_of_too_many_digits_are_left_out():
    steep = Gate(where(residual < 1, residual, residual * exp(exp(residual * residual))))
    report = one(steep, log_ratio(scale=1)).verify()
    assert report.ok
    assert report.fact("amplification").startswith("not certified; reached: ")


def test_a_fact_that_needs_too_many_digits_is_not_certified(monkeypatch):
    def too_large(*arguments):
        raise TooLarge
        yield

    monkeypatch.setattr("fibration.laws.facts.certified.amplification", too_large)
    found = one(Gate(clip(residual, -epsilon, epsilon / 7)), log_ratio(scale=1)).verify()
    assert found.fact("amplification") == "not certified"
    assert found.fact("radius")
