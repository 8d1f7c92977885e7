"""Coupling: the strata over which rows decide a coefficient together, and the frozen sums of a step.

`tests/runtime/test_micro.py` holds it against brute force.
"""

import pytest
from support import programs, prompt_group, spec, token, trajectory

from fibration import (
    Fibration,
    Hierarchy,
    Penalty,
    clip_gate,
    log_prob,
    log_ratio,
    mean,
    policies,
    quantile,
    token_mean,
    uniform,
)
from fibration.compiler.coupling import coupling, coupling_of
from fibration.language.atoms import BATCH, Stratum
from fibration.language.loading import shipped

COUPLED = {
    "apc_obj": ("state",),
    "attenuated_domain": ("domain",),
    "attenuated_group": ("prompt_group",),
    "clip_cov": (BATCH,),
    "fiberpo_crossed": (BATCH, "domain", "modality"),
    "fiberpo_domain": ("domain", "prompt_group"),
    "fiberpo_domain_inward": ("domain", "prompt_group"),
    "fiberpo_domain_inward_clip": ("domain", "prompt_group"),
    "fiberpo_domain_tis": ("domain", "prompt_group"),
    "fiberpo_experts": (BATCH, "expert"),
    "fiberpo_modal": ("prompt_group",),
    "fiberpo_turns": ("prompt_group",),
    "kl_cov": (BATCH,),
    "real": ("prompt_group",),
}
current, old = policies("current old")
FROZEN = (
    "entropy_mask",
    "geometric_mask",
    "ppo_nll",
    "token_veto",
)  # they count what a condition on frozen policies keeps


def of(h):
    return coupling(programs(h)["objective"], h)


@pytest.mark.parametrize("name", shipped())
def test_shipped_losses_have_the_expected_coupling(name):
    found = of(spec(name))
    assert found.strata == COUPLED.get(name, ())
    assert found.frozen == ((BATCH,) if name in FROZEN else ())
    assert coupling_of(spec(name)) == found


@pytest.mark.parametrize("name", ["gspo", "fiberpo_domain", "geometric_mask"])
def test_verify_states_the_coupling_as_a_fact(name):
    (fact,) = [f for f in spec(name).verify().facts if f.name == "coupling"]
    assert fact.value == str(coupling_of(spec(name)))
    assert ("no second pass" in fact.argument) == coupling_of(spec(name)).is_row_local


def loss(name, **more):
    given = {"gates": {token: clip_gate(0.2)}, "decomposition": log_ratio(), "objective": token_mean()}
    return Hierarchy(name=name, **given | more)


def test_identity_gates_couple_nothing():
    """A level above a group is read by no gate: what it adds and takes away cancels in the optimised program."""
    fibrations = [Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())]
    gates = {token: clip_gate(0.2), trajectory: clip_gate(0.2)}
    narrow = loss("narrow", fibrations=fibrations[:1], gates=gates)
    assert of(narrow).is_row_local and str(of(narrow)) == "row-local"
    wide = loss("wide", fibrations=fibrations, gates={**gates, prompt_group: clip_gate(0.2)})
    assert of(wide).strata == ("prompt_group",) and str(of(wide)) == "couples all rows of a prompt_group"


def test_a_penalty_over_a_coarse_stratum_couples_it():
    """Its mean is read at every token, which has the coefficient NaN where the mean is NaN."""
    x, batch = log_prob(current), Stratum(BATCH)
    of_batch = loss("of_batch", penalties={"p": Penalty(mean(x, over=batch), over=batch)})
    assert of(of_batch).strata == (BATCH,)
    of_tokens = loss("of_tokens", penalties={"p": x * x})
    assert of(of_tokens).is_row_local


def test_a_threshold_of_old_log_probs_is_frozen():
    kept = token_mean().keep(log_prob(old) > mean(log_prob(old), over=prompt_group))
    h = loss("frozen", objective=kept, groups=[prompt_group])
    found = of(h)
    assert found.is_row_local and found.frozen == ("prompt_group",)
    assert str(found) == "row-local; sums over prompt_group are known before the update"
    assert set(programs(h)) >= {"micro", "prologue"} and "prologue" not in programs(spec("grpo"))


def test_a_threshold_of_current_log_probs_couples():
    """No other sum reaches beyond a row here: micro-batches would each have a threshold of their own."""
    x = log_prob(current)
    kept = token_mean().keep(x > quantile(x, 0.2, over=prompt_group))
    found = of(loss("threshold", objective=kept, groups=[prompt_group]))
    assert found.strata == ("prompt_group",) and not found.frozen
