"""Facts of weights, masks and normalisers."""

import pytest
from hierarchies.quivers import domain, expert, make
from hierarchies.weights_and_masks import (
    C,
    D,
    T,
    advantage,
    batch,
    epsilon,
    k,
    mu,
    one,
    rho,
    token,
    trajectory,
    two,
)
from oracles.certified_facts import facts_of

from fibration import (
    Attribute,
    Gate,
    Objective,
    Parameter,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    mass,
    maximum,
    mean,
    minimum,
    policies,
    quantile,
    residual,
    some,
    sqrt,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)

current, old, rollout = policies("current old rollout")
bias = Parameter("bias", default=0.5, lower=-1, upper=1)


def moment(objective):
    """The bounds of the weight and of its square's mean."""
    (fact,) = facts_of(one(objective), "second_moment")
    words = fact.value.removeprefix("w is at most ").split(", E[w²] at most ")
    return tuple(words)


MOMENTS = {
    "TIS": (mu.weigh(minimum(rho, C)), ("C", "C under rollout")),
    "TIS with a cap of any size": (mu.weigh(minimum(rho, D)), ("D", "D under rollout")),
    "of sequences": (mu.weigh(minimum(exp(total(k, over=trajectory)), C)), ("C", "C under rollout")),
    "a mask for a cap": (mu.weigh(rho).keep(rho <= C), ("C", "C under rollout")),
    "a mask of logarithms": (mu.weigh(rho).keep(k <= C), ("exp(C)", "exp(C) under rollout")),
    "on both sides": (mu.weigh(rho).keep((rho <= C) & (rho >= 1 / C)), ("C", "C under rollout")),
    "to the current policy": (mu.weigh(minimum(exp(log_prob(current) - log_prob(rollout)), C)), ("C", "C under rollout")),
    "a veto of a sequence": (mu.weigh(rho).keep(~some(rho > C, over=trajectory)), ("C", "C under rollout")),
    "a veto beside a mask": (mu.weigh(rho).keep((k > -9) & ~some(rho > C, over=batch)), ("C", "C under rollout")),
    "half of a capped one": (mu.weigh(minimum(rho, C) / 2), ("C/2", "C/2 under rollout")),
    "a root of a capped one": (mu.weigh(sqrt(minimum(rho, C))), ("sqrt(C)", "C")),
    "its square": (mu.weigh(minimum(rho * rho, C)), ("C", "C**2")),
    "of both signs": (mu.weigh(where(advantage >= 0, 1, clip(exp(token_log_ratio), 0, 1))), ("1", "1")),
    "a probability": (mu.weigh(exp(log_prob(old))), ("1", "1")),
    "a mean of probabilities": (mu.weigh(1 + mean(exp(log_prob(old)), over=batch)), ("2", "4")),
    "bounded by itself": (mu.weigh(1 + tanh(k)), ("2", "2 under rollout")),  # nowhere above exp(k)
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", MOMENTS)
def test_the_second_moment_of_a_weight_is_the_expected_text(name):
    objective, expected = MOMENTS[name]
    assert moment(objective) == expected


@pytest.mark.parametrize(
    "objective",
    [
        mu.weigh(rho),
        mu.weigh(1 / rho),
        mu.weigh(rho).keep(some(rho <= C, over=trajectory)),
        mu.weigh(sqrt(rho)),
        mu.weigh(rho).keep(rho >= 1 / C),
        mu.weigh(1 / maximum(bias, 0.5)),  # 1/bias bounds one branch and has no value at bias = 0
    ],
)
def test_a_weight_without_a_bound_is_reported_as_unbounded(objective):
    (fact,) = facts_of(one(objective), "second_moment")
    assert fact.value == "w has no bound that is known"


# ---------------------------------------------------------------- normaliser


def needs(hierarchy):
    (fact,) = facts_of(hierarchy, "normaliser")
    return fact.value


def test_the_fact_normaliser_lists_the_counts_of_the_whole_batch():
    per_row = Objective(1 / T)
    assert needs(one(per_row)) == "nothing"
    assert needs(one(token_mean())) == "count(token, over=batch)"
    assert needs(one(trajectory_mean())) == "count(trajectory, over=batch)"
    assert needs(one(token_mean().keep(rho <= C))) == "count(token, over=batch)"
    assert needs(one(token_mean().keep(rho <= C, normaliser="kept"))) == "count(token, over=batch) of what is kept"
    assert needs(one(per_row.keep(rho <= C, normaliser="kept"))) == "nothing"
    assert needs(one(per_row.weigh(rho / mean(rho, over=trajectory)))) == "nothing"
    assert needs(one(per_row.keep(~some(k > 9, over=batch)))) == f"some({k} > 9, over=batch)"
    inner = mean(k, over=batch)
    assert needs(one(per_row.weigh(exp(mean(k - inner, over=trajectory))))) == str(inner)
    entropy = Attribute("entropy", on=token)
    top = quantile(entropy, 0.8, over=batch)
    both = one(token_mean().keep(entropy >= top).weigh(rho / mean(rho, over=batch)), gives_up={"mask_open": "the top"})
    assert needs(both) == f"count(token, over=batch); {mean(rho, over=batch)}; {top}"


@pytest.mark.thorough
def test_statistics_over_strata_that_cross_the_rows_need_the_whole_batch():
    """An expert has tokens of several rows, as a domain has. A statistic of one row needs that row alone."""
    crossed = make(
        (token, expert), (token, trajectory), (expert, batch), (trajectory, batch), objective=Objective(1 / T)
    )
    assert needs(crossed) == "nothing"
    assert needs(crossed.replace(objective=Objective(1 / T).weigh(1 + 0 * largest(k, over=expert)))) == str(
        largest(k, over=expert)
    )
    gate = Gate(where(mean(k, over=domain) > 1, residual / 2, residual))
    over = make((token, trajectory), (trajectory, domain), objective=Objective(1 / T), gates={domain: gate})
    assert needs(over) == f"density(domain); {mean(k, over=domain)}"


def test_gates_that_join_rows_need_the_whole_batch():
    """A gate of rows that reads its deviation from coarser strata joins rows. Levels that pass cancel."""
    plain = make((token, trajectory), (trajectory, domain), objective=Objective(1 / T))
    assert needs(plain) == "nothing"
    assert needs(plain.replace(gates={**plain.gates, token: clip_gate(epsilon).per(mass)})) == "nothing"
    for stratum in (trajectory, domain):
        assert needs(plain.replace(gates={**plain.gates, stratum: clip_gate(epsilon).per(mass)})) == "density(domain)"
    n = count(trajectory, over=domain)
    assert needs(plain.replace(gates={**plain.gates, token: clip_gate(epsilon / n).per(mass)})) == str(n)
    assert needs(one(Objective(1 / T).weigh(1 + 0 * k / count(token, over=batch)))) == "count(token, over=batch)"


def test_the_fact_blocks_says_that_statistics_are_held_fixed():
    """The Jacobian is that of the gates, with their statistics held fixed."""
    read = {trajectory: mean(exp(k), over=trajectory), batch: mean(exp(k), over=batch)}
    said = {s: facts_of(two(clip_gate(epsilon * w), clip_gate(epsilon).per(1 / T)), "blocks")[0] for s, w in read.items()}
    assert {f.value for f in said.values()} == {"block-diagonal over trajectory"}
    assert [f.argument.endswith(", but for statistics, which are held") for f in said.values()] == [False, True]


# ---------------------------------------------------------------- amplification


def test_the_amplification_is_multiplied_by_the_bound_of_the_weight():
    plain = facts_of(one(mu), "amplification")[0].value
    assert facts_of(one(mu.weigh(minimum(rho, C))), "amplification")[0].value == f"{plain}; times w, at most C"
    assert facts_of(one(mu.weigh(rho)), "amplification")[0].value == f"{plain}; times w"
    assert facts_of(one(mu.weigh(exp(log_prob(old)))), "amplification")[0].value == plain
    assert facts_of(one(mu.weigh(minimum(rho, C)).weigh(minimum(1 / rho, D))), "amplification")[0].value.endswith(
        "at most C*D"
    )


def test_counts_of_kept_tokens_differ_from_counts_in_kernels():
    steep = two(aggregate_gate(epsilon, rollback=T), clip_gate(epsilon).per(1 / T))
    assert "at most" in facts_of(steep, "amplification")[0].value
    masked = steep.replace(objective=mu.keep(rho <= C, normaliser="kept"))
    (fact,) = facts_of(masked, "amplification")
    assert fact.value.startswith("not certified") and "tokens that are kept" in fact.argument
    assert "at most" in facts_of(steep.replace(objective=mu.keep(rho <= C)), "amplification")[0].value


def test_a_gate_that_reads_a_probability_has_no_radius_and_no_bounds():
    reads = one(gate=Gate(clip(residual, -epsilon, epsilon / exp(log_prob(old)))))
    assert reads.verify().ok
    assert facts_of(reads, "amplification")[0].value.startswith("not certified")
    assert not facts_of(reads, "radius") and not facts_of(reads, "bounds")


def test_a_count_in_an_objective_counts_tokens():
    assert needs(make((token, trajectory), objective=Objective(count(token) / count(token, over=batch)))) == (
        "count(token, over=batch)"
    )
    assert identity_gate().expression == residual
