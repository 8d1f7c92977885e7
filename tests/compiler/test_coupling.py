"""Coupling: the strata over which rows decide a coefficient together, and the frozen sums of a step.

`tests/runtime/test_micro.py` holds it against brute force.
"""

import pytest
from random_steps import Step
from support import domain, operator, programs, prompt_group, spec, token, trajectory

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Penalty,
    clip_gate,
    count,
    decomposition,
    exp,
    gated,
    identity_gate,
    log_prob,
    log_ratio,
    mass,
    mean,
    policies,
    proportional,
    quantile,
    ratio_deviation,
    residual,
    stop,
    tanh,
    token_log_ratio,
    token_mean,
    uniform,
    zero_gate,
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


def groups(gates=(), **more):
    """Tokens over trajectories over groups, with identity gates but for those given."""
    gates = dict.fromkeys((token, trajectory, prompt_group), identity_gate()) | dict(gates)
    fibrations = [Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())]
    return loss("groups", fibrations=fibrations, gates=gates, decomposition=ratio_deviation(scale=mass), **more)


x, mean_of_group = token_log_ratio, mean(token_log_ratio, over=prompt_group)
crossed = [Fibration(token, trajectory, uniform())] + [
    Fibration(trajectory, s, uniform()) for s in (prompt_group, domain)
]
batch = Stratum(BATCH)
chain = [*crossed[:2], Fibration(prompt_group, batch, proportional(count(trajectory)))]
OF_THE_VALUE = {  # gradients are row-local; and where `J` reads more
    "identity": (groups(), ()),
    "a level is removed": (groups(gates={prompt_group: zero_gate()}), ("prompt_group",)),
    "a level is halved": (groups(gates={prompt_group: Gate(residual / 2)}), ("prompt_group",)),
    "a statistic of groups": (groups(gates={token: Gate(residual + mass * tanh(mean_of_group))}), ("prompt_group",)),
    "a statistic of rows": (groups(gates={token: Gate(residual + mass * tanh(mean(x, over=trajectory)))}), ()),
    "a frozen statistic": (groups(penalties={"p": x * x - mean(log_prob(old), over=prompt_group)}), ()),
    "a held statistic": (groups(penalties={"p": x * x - stop(mean_of_group)}), ("prompt_group",)),
    "a penalty with a constant": (groups(penalties={"p": x * x + 1}), ()),
    "crossed": (
        loss("crossed", fibrations=crossed, gates=dict.fromkeys((token, trajectory, domain), identity_gate())
             | {prompt_group: zero_gate()}, decomposition=ratio_deviation(scale=mass)), ("prompt_group",),
    ),
    "sums that cancel beside a frozen one": (
        loss("frozen", fibrations=chain, gates=dict.fromkeys((token, trajectory, prompt_group, batch), identity_gate()),
             decomposition=decomposition(recovery=exp(gated("")), density=log_prob(old)),
             objective=token_mean().weigh(exp(mean(log_prob(old), over=batch)))), (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THE_VALUE)
def test_rows_that_only_the_objective_reads_are_coupled_too(name):
    """Else the losses of micro-batches would not add up to `-J`."""
    h, strata = OF_THE_VALUE[name]
    assert set(of(h).strata) == set(strata) and coupling_of(h) == of(h)
    step = Step(operator(h), 3)
    step.freeze()
    whole, parts = step.coefficients(), [(step.loss(rows, step.new).loss, step.places(rows)) for rows in step.closed()]
    assert len(parts) > 1
    assert float(sum(part for part, _ in parts)) == pytest.approx(-float(whole.objective), rel=1e-12, abs=1e-14)


def test_a_penalty_over_a_coarse_stratum_couples_it():
    """Its mean is read at every token, which has the coefficient NaN where the mean is NaN."""
    x = log_prob(current)
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
