"""The law identity: undecided gates, and gates that divide by the count of a branch that may be empty."""

import math
import random

import pytest
import torch
from hierarchies import quivers, wrong_specs
from hierarchies.builders import budget, epsilon, one, token
from hierarchies.quivers import (
    batch,
    image,
    make,
    n,
    text,
    trajectory,
)
from oracles import verdicts
from oracles.backend_cases import BACKENDS_HERE
from oracles.certified_facts import decided
from thorough import ALL

from fibration import (
    Gate,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    log_ratio,
    mass,
    mean,
    policies,
    residual,
    sign,
    signed_log_ratio,
    sqrt,
    tanh,
    where,
    zero_gate,
)
from fibration.laws import LAWS
from fibration.laws.subject import Subject

UNDECIDABLE = wrong_specs.undecidable()


def test_an_undecided_gate_is_reported_with_the_comparison_and_a_remedy():
    """The report shows the comparison, and names a gate to write."""
    found = {
        name: next(
            v for v in decided(UNDECIDABLE[name].hierarchy, "identity") if v.status == "undecided"
        )
        for name in (
            "wrong for an advantage that is no fraction",
            "slope 2 below 0, where the root of a channel never is",
        )
    }
    asked, silent = found.values()
    assert asked.found.endswith("were not decided: it is not known whether -2 + advantage**2 is 0")
    assert silent.found.endswith("were not decided")
    for verdict, stratum in ((asked, "token"), (silent, "trajectory")):
        assert verdict.remedy.startswith(f"write {stratum}: identity_gate() in gates")


def test_a_clip_with_a_positive_lower_bound_is_refuted_with_a_remedy():
    low, high = Parameter("low", default=0.2, upper=1), Parameter("high", default=0.2)
    verdict = decided(one(Gate(clip(residual, low, high))), "identity")[0]
    assert verdict.status == "refuted"
    assert verdict.remedy.startswith("write token: Gate(clip(residual, -low, high)) in gates")
    assert verdict.remedy.endswith("(parameters: low, high)")


@pytest.mark.parametrize(
    ("gate", "coefficient"),
    [
        (sign(residual) * sqrt(residual * residual), None),
        (residual + residual * sqrt(residual * residual), None),
        (sign(residual) * absolute(residual), 0),
        (where(residual > 0, residual, 2 * residual) - where(residual < 0, residual, 0), 2),
    ],
)
def test_a_gate_that_is_not_the_identity_at_0_itself_is_refuted(gate, coefficient):
    """Near 0 each gate is the residual to first order. At 0 the operator differentiates the branch that holds."""
    h = one(gate, log_ratio())
    found = {v.law: v for v in h.verify().verdicts if v.law in ("identity", "gradient")}
    assert {v.status for v in found.values()} == {"refuted"}
    said = "not a number" if coefficient is None else f"g'(0) = {coefficient}, not 1"
    assert said in str(found["identity"].counterexample)
    assert found["gradient"].counterexample.values["coefficients"] == (None if coefficient is None else (coefficient,))
    refused = {v.law: "on purpose" for v in h.verify().verdicts if v.status != "proved"}
    for backend in BACKENDS_HERE:
        op = backend.operator(h.replace(gives_up=refused))
        rest = torch.zeros(1, 1, dtype=torch.float64, device=backend.device)
        index = op.index(mask=rest >= 0)
        value = op.coefficients(rest - 1, rest - 1, rest + 1, index).values.item()
        assert math.isnan(value) if coefficient is None else value == coefficient


def gated_tree(law, **gates):
    named = {s.name: s for s in (text, image, trajectory)}
    h = make(*quivers.TREE[:2], gates={named[k]: g for k, g in gates.items()}, decomposition=log_ratio(scale=mass))
    return next((v for v in LAWS[law].decide(Subject(h, [])) if v.status != "proved"), None)


def test_the_refusal_names_the_count_of_an_empty_branch_that_a_gate_divides_by():
    """The refusal names the count. It does not ask to let small residuals pass."""
    offered = (
        "count(image_token, over=trajectory) is 0 where that branch is empty: assume=[populated(image_token, over=tr"
    )
    share = clip_gate(1 / n(image)).per(mass)
    found = gated_tree("identity", text_token=share)
    assert str(found.counterexample).startswith("on a text_token, count(image_token, over=trajectory) = 0: g")
    assert found.remedy.startswith(offered)
    assert gated_tree("positivity", text_token=share).remedy.startswith(offered)
    steep = gated_tree("identity", text_token=Gate(where(n(image) > 0, 2 * residual, residual)))
    assert "populated" not in steep.remedy, "nothing divides by the count"


def test_the_remedy_for_a_rollback_by_a_count_of_an_empty_branch_is_populated():
    found = gated_tree("positivity", trajectory=aggregate_gate(0.1, rollback=count(image)).per(mass))
    assert found.remedy.startswith("count(image_token, over=trajectory) is 0 where that branch is empty: assume=[popul")
    assert not gated_tree("positivity", trajectory=aggregate_gate(0.1, rollback=count(text) + count(image)).per(mass))


@pytest.mark.sampled
@verdicts.wrong_specs("identity")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@pytest.mark.thorough
def test_at_most_a_quarter_of_random_gates_is_undecided():
    """Over random gates, the procedure says 'undecided' of at most one in four."""
    rng = random.Random(5)
    counts = {"proved": 0, "refuted": 0, "undecided": 0}
    leaves = [
        residual,
        2 * residual,
        clip(residual, -epsilon, budget),
        residual + residual**2,
        absolute(residual),
        tanh(residual),
    ]
    conditions = [
        residual > 0,
        residual <= 0,
        absolute(residual) <= epsilon,
        advantage >= 0,
        residual > epsilon,
        budget > residual,
    ]
    tried = 80 if ALL else 24
    for _ in range(tried):
        formula = where(
            rng.choice(conditions),
            rng.choice(leaves),
            where(rng.choice(conditions), rng.choice(leaves), rng.choice(leaves)),
        )
        found = one(formula, log_ratio()).verify()
        counts[verdicts.status(found, "identity", "gate on token")] += 1
    assert counts["undecided"] <= tried // 4
    assert min(counts["proved"], counts["refuted"]) >= tried // 10


current, old, rollout = policies("current old rollout")
k = log_prob(old) - log_prob(rollout)
WIDTHS = {
    "the mean of ratios": epsilon * mean(exp(k), over=batch),
    "the largest ratio": epsilon * largest(exp(k), over=trajectory),
    "wider by distances": epsilon + mean(absolute(k), over=trajectory),
    "no wider than distances": mean(absolute(k), over=batch),
    "the mean of log ratios": mean(k, over=batch),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WIDTHS)
def test_a_clip_is_the_identity_if_its_width_stays_away_from_0(name):
    """A ratio as width stays away from 0, and a distance does not."""
    found = one(clip_gate(WIDTHS[name]).expression, log_ratio()).verify()
    holds = name in ("the mean of ratios", "the largest ratio", "wider by distances")
    assert verdicts.status(found, "identity", "gate on token") == ("proved" if holds else "refuted")


def test_the_counterexample_names_the_channel_of_the_wrong_gate():
    h = one(identity_gate().expression, signed_log_ratio())
    found = h.replace(gates={token: {"+": identity_gate(), "-": zero_gate()}}).verify()
    told = next(v for v in found.verdicts if v.law == "identity")
    assert str(told.counterexample).startswith('on a token on channel "-": g(')
    both = decided(h.replace(gates={token: zero_gate()}), "identity")[0]
    assert str(both.counterexample).startswith("on a token: g(")
