"""A kernel, a gate and a density read only quantities with one value at their element."""

import pytest
from oracles import quiver_verdicts, verdicts
from support import token, trajectory

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    advantage,
    before,
    channel_sign,
    clip,
    clip_gate,
    count,
    decomposition,
    deviation,
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
    populated,
    position,
    pull,
    quantile,
    residual,
    signed_log_ratio,
    some,
    strata,
    token_log_ratio,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.laws import LAWS
from fibration.laws.subject import Subject


@pytest.mark.sampled
@verdicts.wrong_specs("locality")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@quiver_verdicts.wrong_quivers("locality")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)


current, old, rollout = policies("current old rollout")
prompt_group, domain, batch, image = strata("prompt_group domain batch image")
free, share = Parameter("free", default=0.5), Parameter("share", default=0.5, upper=1)
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
    "a prefix": (token, residual * exp(before(token_log_ratio, over=trajectory, discount=share))),
    "a token's place in its group": (token, residual / (1 + position(over=prompt_group))),
    "the place of what it lies over": (token, residual / (1 + position(over=prompt_group, of=trajectory))),
    "its own place": (trajectory, residual / (1 + position(over=prompt_group, of=trajectory))),
    "the others": (
        trajectory,
        clip(residual, -1, mean(exp(mean(token_log_ratio)), over=prompt_group, of=trajectory, others=True)),
    ),
    "other tokens": (token, clip(residual, -1, mean(exp(token_log_ratio), over=prompt_group, of=token, others=True))),
    "rows of the group": (prompt_group, clip(residual, -1, deviation(advantage, over=prompt_group, of=trajectory))),
    "a quantile": (prompt_group, clip(residual, -1, quantile(exp(log_prob(current)), 0.5, over=batch))),
}


@pytest.mark.parametrize("name", READ)
def test_a_gate_that_reads_one_value_per_element_is_proved(name):
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


def decided(**changes):
    """What the law says of tokens, trajectories and prompt groups, by its subject."""
    given = [Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, prompt_group, kernel=uniform())]
    gates = {s: identity_gate() for s in (token, trajectory, prompt_group)} | changes.pop("gates", {})
    arguments = dict(fibrations=given, decomposition=log_ratio(), objective=token_mean())
    h = Hierarchy(name="mine", gates=gates, **{**arguments, **changes})
    return {d.subject: d for d in LAWS["locality"].decide(Subject(h, {}))}


# Who reads what it may not, what is read, why that is none of its business, and what to do.
NOT_READ = {
    "the places of its tokens": (trajectory, position(over=prompt_group), "an order of tokens", "a trajectory has several", "of=trajectory"),
"places of what lies over it": (trajectory, position(over=prompt_group, of=token), "an order of 'token'", "two tokens over one trajectory", "of= one of trajectory, prompt_group"),
    "places in what it does not lie over": (token, before(advantage, over=domain), "an order over 'domain'", "no token lies over a 'domain'", "trajectory, prompt_group"),
    "all but one of its rows": (prompt_group, mean(advantage, over=prompt_group, of=trajectory, others=True), "of all others", "no single trajectory", "of= one of prompt_group"),
    "all but one of its tokens": (trajectory, mean(advantage, over=trajectory, of=token, others=True), "of all others", "no single token", "of= one of trajectory"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_READ)
def test_a_gate_that_reads_several_values_per_element_is_refuted(name):
    stratum, formula, read, why, remedy = NOT_READ[name]
    given = dict(
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())],
        gates={stratum: Gate(residual * formula)},
    )
    if domain in {getattr(formula, "over", None)}:  # beside the way that tokens lie over
        given["fibrations"].append(Fibration(image, domain, uniform()))
        given["gates"] |= {image: identity_gate(), domain: identity_gate()}
    decision = decided(**given)[f"gate on {stratum}"]
    assert decision.status == "refuted"
    assert decision.found == f"{formula}, {read}"
    assert why in str(decision.counterexample)
    assert remedy in decision.remedy


def test_a_group_without_a_gate_may_be_read():
    """Counts, attributes and parameters of a group may be read by a reader that lies over one row."""
    group, at_group = strata("group")[0], Attribute("at_group", on=strata("group")[0])
    size, per = count(token, over=group), Parameter("per", default=1.0, on=group)
    gates = {token: clip_gate(at_group), trajectory: clip_gate(per).per(size)}
    split = decomposition(density=at_group * token_log_ratio, recovery=exp(gated("") / at_group), scale=1 / size)
    found = decided(gates=gates, groups=[group], decomposition=split)
    assert {d.status for d in found.values()} == {"proved"}
    for formula, what in ((count(trajectory, over=group), "a sum over 'group'"), (at_group, "attribute 'at_group'")):
        decision = decided(gates={prompt_group: clip_gate(formula)}, groups=[group])["gate on prompt_group"]
        assert decision.status == "refuted"
        assert what in decision.found
        assert "no prompt_group lies over a 'group'" in str(decision.counterexample)


def test_a_gate_reads_no_mean_of_a_branch_that_may_be_empty():
    size = mean(exp(token_log_ratio), over=trajectory, of=image)
    number = count(image, over=trajectory)
    given = [
        Fibration(s, trajectory, MarkovKernel(1 / (count(token, over=trajectory) + number))) for s in (token, image)
    ]
    given.append(Fibration(trajectory, prompt_group, uniform()))

    def gate(formula, stratum=token, **assumed):
        gates = {image: identity_gate(), stratum: Gate(residual * formula)}
        return decided(fibrations=given, gates=gates, **assumed)[f"gate on {stratum}"]

    verdict = gate(size)
    assert (verdict.status, verdict.found) == ("refuted", str(size))
    assert str(verdict.counterexample) == "a trajectory may have no image"
    assert (
        verdict.remedy
        == "ask for it, where(count(image, over=trajectory) > 0, ...), or assume=[populated(image, over=...)]"
    )
    for right in (
        gate(size, image),
        gate(size, assume=[populated(image, over=trajectory)]),
        gate(where(number > 0, size, 1)),
        gate(total(exp(token_log_ratio), over=trajectory, of=image)),
        gate(mean(exp(mean(token_log_ratio)), over=prompt_group, of=trajectory)),
    ):
        assert right.status == "proved"


def test_a_decomposition_may_read_order_and_a_recovery_or_kernel_may_not():
    """Order is read in a decomposition, and inside it only quantities that a decomposition may read."""
    there, back = token_log_ratio, exp(gated(""))
    prefix = before(token_log_ratio, over=trajectory, discount=share)
    found = decided(decomposition=decomposition(density=there + prefix * position(over=prompt_group), recovery=back))
    assert {d.status for d in found.values()} == {"proved"}
    assert found["decomposition"].argument == "reads only the token itself, and what comes before it or after it"
    for density, recovery, subject, read in (
        (there + 0 * before(log_prob(old), over=trajectory), back, "decomposition", "'log_prob(old)'"),
        (there + 0 * before(mean(token_log_ratio, over=trajectory), over=trajectory), back, "decomposition", "'mean("),
        (there, back + 0 * prefix, "recovery", f"'{prefix}'"),
    ):
        decision = decided(decomposition=decomposition(density=density, recovery=recovery))[subject]
        assert decision.status == "refuted"
        assert decision.found.startswith(read)
    kernel = uniform().weight * (1 + 0 * position(over=prompt_group))
    spread = [Fibration(token, trajectory, MarkovKernel(kernel)), Fibration(trajectory, prompt_group, uniform())]
    assert decided(fibrations=spread)["kernel token → trajectory"].found == "'position(over=prompt_group)'"


def test_a_gate_on_tokens_may_read_rows_that_have_no_gate():
    """A stratum between them has no label that names its row."""
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
    assert found[turn].remedy.endswith("in gates; that is, use over= one of turn, batch")


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
