"""No kernel, gate or density reads what it may not see."""

import pytest
from oracles import on_batches, verdicts
from support import token, trajectory

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    channel_sign,
    clip,
    count,
    decomposition,
    exp,
    gated,
    identity_gate,
    largest,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    policies,
    pull,
    quantile,
    residual,
    signed_log_ratio,
    some,
    strata,
    token_log_ratio,
    token_mean,
    uniform,
    where,
)
from fibration.laws import LAWS
from fibration.laws.proof.subject import Subject


@verdicts.wrong_specs("locality")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@on_batches.wrong_quivers("locality")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)


current, old, rollout = policies("current old rollout")
prompt_group, batch = strata("prompt_group batch")
free = Parameter("free", default=0.5)
# A gate, its stratum, and what it reads that locality lets it.
READ = {
    "a frozen policy": (token, residual * exp(log_prob(rollout))),
    "the old policy": (token, clip(residual, -1, -log_prob(old))),
    "the sign of the channel": (trajectory, where(channel_sign > 0, residual, residual / 2)),
    "what pulls": (prompt_group, where(pull > 0, residual, residual / 2)),
    "its own tokens": (trajectory, clip(residual, -1, mean(exp(log_prob(old)), over=trajectory))),
    "its own tokens, unnamed": (trajectory, clip(residual, -1, mean(exp(log_prob(old))))),
    "coarser tokens": (token, clip(residual, -1, largest(abs(token_log_ratio), over=prompt_group))),
    "the batch": (token, where(some(advantage > 0, over=batch), residual, 0)),
    "a quantile": (prompt_group, clip(residual, -1, quantile(exp(log_prob(current)), 0.5, over=batch))),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_gate_may_read(name):
    stratum, formula = READ[name]
    given = [Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, prompt_group, kernel=uniform())]
    gates = {s: identity_gate() for s in (token, trajectory, prompt_group)}
    h = Hierarchy(
        name="mine",
        fibrations=given,
        gates={**gates, stratum: Gate(formula)},
        decomposition=signed_log_ratio(),
        objective=token_mean(),
    )
    decisions = LAWS["locality"].decide(Subject(h, {}))
    assert [d.subject for d in decisions if d.status != "proved"] == []


def test_the_rows_may_be_read_where_nothing_lies_over_them():
    """On tokens alone: what lies between has no label that says of which row it is."""
    turn = strata("turn")[0]
    found = {}
    for stratum in (token, turn):
        h = Hierarchy(
            name="mine",
            fibrations=[Fibration(token, turn, kernel=uniform())],
            gates={
                token: identity_gate(),
                turn: identity_gate(),
                stratum: Gate(residual * mean(advantage, over=trajectory)),
            },
            decomposition=log_ratio(),
            objective=token_mean(),
        )
        found[stratum] = {d.subject: d for d in LAWS["locality"].decide(Subject(h, {}))}[f"gate on {stratum}"]
    assert found[token].status == "proved"
    assert found[turn].status == "refuted"
    assert found[turn].found == "mean(advantage, over=trajectory), a statistic over 'trajectory'"
    assert found[turn].remedy == "use over= one of turn, batch"


def test_a_decomposition_reads_parameters_and_the_advantage():
    one_sided = where(advantage >= 0, minimum(token_log_ratio, free), maximum(token_log_ratio, -free))
    both = free * exp(gated("+")) + (1 - free) * exp(gated("-"))
    for split in (
        decomposition(density=one_sided, recovery=exp(gated(""))),
        decomposition(
            plus=token_log_ratio, minus=token_log_ratio, recovery=where(advantage > 0, both, exp(gated("+")))
        ),
        log_ratio(scale=free / count(token, over=trajectory)),
    ):
        h = Hierarchy(
            name="mine",
            fibrations=[Fibration(token, trajectory, kernel=uniform())],
            gates={token: identity_gate(), trajectory: identity_gate()},
            decomposition=split,
            objective=token_mean(),
        )
        assert {d.status for d in LAWS["locality"].decide(Subject(h, {}))} == {"proved"}
