"""Gated ratios are above 0: proofs are checked on the operator in plain Python."""

import pytest
from hierarchies.builders import budget, epsilon, one
from hierarchies.first_order_specs import SPECS, three
from hierarchies.quivers import token, trajectory
from oracles import brute_force, verdicts
from oracles.certified_facts import decided

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    absolute,
    atan,
    before,
    clip,
    clip_gate,
    exp,
    log,
    ratio_deviation,
    residual,
    token_log_ratio,
    token_mean,
    uniform,
    where,
)
from fibration.language.atoms import gated, mass
from fibration.language.gates import decomposition


@pytest.mark.thorough
def test_two_levels_of_deviations_that_may_push_a_ratio_below_0_are_not_proved():
    """A trajectory that passes more than its tokens hold takes a ratio below 0."""
    for gates in ({trajectory: Gate(2 * residual)}, {token: Gate(2 * residual)}):
        refuted(three(gates, ratio_deviation(scale=mass)))
    clips = {trajectory: clip_gate(budget).per(mass), token: clip_gate(epsilon).per(mass)}
    h = three(clips, ratio_deviation(scale=mass))  # it takes tokens on three levels, which are not looked for
    assert decided(h, "positivity")[0].status == "undecided"


@pytest.mark.parametrize("bound", [0.6, 0.9])
def test_two_clips_of_deviations_that_add_up_to_more_than_1_are_positive(bound):
    """The proof needs the branches: conditions with a count in front meet those without one."""
    h = Hierarchy(
        name="two_clips", fibrations=[Fibration(token, trajectory, uniform())], decomposition=ratio_deviation(),
        gates={trajectory: clip_gate(bound), token: clip_gate(0.6)}, objective=token_mean(),
    )  # fmt: skip
    assert decided(h, "positivity")[0].status == "proved"


@pytest.mark.parametrize("name", ["apc, the state passes too", "truly_ppo"])
def test_refuted_gated_ratios_are_not_positive_on_the_counterexample(name):
    refuted(SPECS[name].h)


@pytest.mark.thorough
def test_a_steep_inward_gate_is_refuted():
    refuted(one(Gate(2 * residual).inward()))


def test_a_gated_ratio_of_0_is_a_counterexample():
    """A gate that drops a token by the deviation -1 gives the ratio 0 exactly, and no ratio below 0."""
    h = one(Gate(where(residual > 2, -1, residual)), ratio_deviation())
    refuted(h)
    verdict = decided(h, "positivity")[0]
    assert verdict.counterexample.values["gated"] == 0


@pytest.mark.parametrize("density", [1 / token_log_ratio, log(token_log_ratio), token_log_ratio / token_log_ratio])
def test_a_density_without_a_value_is_not_proved_positive(density):
    h = one(Gate(residual)).replace(decomposition=decomposition(recovery=exp(gated("")), density=density))
    verdict = decided(h, "positivity")[0]
    assert (verdict.status, verdict.found.partition(",")[0]) == ("undecided", f"a token's density is {density}")


def test_a_gate_that_sums_logarithms_of_0_is_not_proved_positive():
    z = Attribute("z", token, positive=False, lower=0)
    changed = decomposition(recovery=exp(gated("")), density=atan(token_log_ratio))
    h = one(Gate(before(log(z), over=trajectory))).replace(decomposition=changed)
    assert decided(h, "positivity")[0].status != "proved"


def test_a_gate_that_is_too_large_inside_the_recovery_is_undecided():
    bound = absolute(clip(residual * residual, -epsilon, epsilon))
    bent = decomposition(
        recovery=exp(gated("") / (1 - absolute(gated("")))), density=token_log_ratio / (1 + absolute(token_log_ratio))
    )
    h = one(Gate(clip(residual, -bound, bound))).replace(decomposition=bent)
    verdict = decided(h, "positivity")[0]
    assert (verdict.status, verdict.internal_error) == ("undecided", False)


def refuted(h):
    found = h.verify()
    brute_force.confirm(h, next(v for v in found.verdicts if v.law == "positivity"), found.verdicts)


@pytest.mark.sampled
@verdicts.wrong_specs("positivity")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
