"""First-order agreement: for some advantages only, and by levels that agree only together.

What is proved is tried on batches in `corpus/test_judges.py`, as every law is.
"""

from functools import partial

import pytest
from hierarchies.first_order_specs import SPECS, VALUE, T, alone, apc, group, high, state, three
from hierarchies.quivers import token, trajectory
from hierarchies.right import SUBSPACES
from oracles import verdicts
from oracles.certified_facts import UNIT, decided, report
from oracles.definition import World, batches, truth
from thorough import some

from fibration import (
    Gate,
    decomposition,
    density,
    exp,
    gated,
    load,
    mean,
    minimum,
    residual,
    tanh,
    token_log_ratio,
    trajectory_mean,
    where,
)

x = token_log_ratio

# ---------------------------------------------------------------- verdicts


def first_order(name):
    return [v for v in report(SPECS[name].h).verdicts if v.law == "first_order"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(SPECS, 2))
def test_the_verdicts_on_first_order_are_the_expected_ones(name):
    spec, found = SPECS[name], report(SPECS[name].h)
    whole, *parts = first_order(name)
    assert (whole.subject, whole.status) == ("hierarchy", spec.status), found
    assert [(v.subject, v.status) for v in parts] == ([(spec.part, "proved")] if spec.part else []), found
    assert found.ok is spec.ok, found
    assert all(v.status == "proved" for v in found.verdicts if v.law == "identity") is spec.identity
    assert next(v.status for v in found.verdicts if v.law == "positivity") == spec.positivity, found
    for v in (whole, *parts):
        assert v.argument if v.status == "proved" else v.found and v.remedy and v.counterexample


def test_the_argument_for_apc_obj_shows_the_sum_of_its_levels():
    argument = first_order("apc_obj")[0].argument
    assert "0 on state" in argument
    assert "density(state)" in argument
    assert "the token's own density" in argument
    assert [v.law for v in report(SPECS["apc_obj"].h).verdicts if v.given_up] == ["identity", "identity"]


def test_giving_up_a_law_that_holds_is_refused():
    law, wrong = "given_up", report(SPECS["apc, given up though it holds"].h)
    assert [v.subject for v in wrong.failures if v.law == law] == ["law 'first_order'"]
    holds = alone(minimum(residual, high), objective=trajectory_mean().score(), gives_up={**VALUE, "identity": "habit"})
    assert [v.subject for v in holds.verify().failures] == ["law 'identity'"]


@pytest.mark.thorough
def test_giving_up_identity_does_not_cover_first_order():
    failures = report(SPECS["apc, density counted twice"].h).failures
    assert {v.law for v in failures} == {"first_order", "gradient", "positivity"}


def test_the_shortest_argument_that_holds_is_given():
    assert first_order("tree of clips")[0].argument.startswith("every gate is the identity near 0")
    soft = three({token: Gate(tanh(residual))}).verify()
    argument = next(v.argument for v in soft.verdicts if v.law == "first_order")
    assert argument.startswith("every gate has value 0 and slope 1 at 0")


MADE_UP = residual + density(state) / T  # for the state's gate, which is 0


@pytest.mark.parametrize("recovery", [1 + gated(""), exp(gated(""))], ids=str)
@pytest.mark.parametrize(
    ("make", "start"),
    [
        (partial(three, {}), "every gate is the identity near 0"),
        (partial(three, {token: Gate(tanh(residual))}), "every gate has value 0 and slope 1 at 0"),
        (partial(apc, MADE_UP), "near on-policy the gates are"),
    ],
    ids=["exact", "smooth", "together"],
)
def test_the_argument_claims_recovery_only_to_first_order_if_recovery_fails(make, start, recovery):
    said = {v.law: v for v in make(split=decomposition(density=x, recovery=recovery)).verify().verdicts}
    argument = said["first_order"].argument
    assert argument.startswith(start)
    first = said["recovery"].status == "refuted"
    assert first is (str(recovery) != 'exp(gated(""))')
    assert argument.endswith(", and R(F(r)) has value 1 and slope 1 at r = 1" if first else ", and R(F(r)) = r")


@pytest.mark.thorough
def test_a_bent_two_channel_recovery_keeps_first_order_only_with_identity_gates():
    """Tokens that drift apart have both densities. With other gates the rest of one sign is not 0."""
    plus, minus = gated("+"), gated("-")
    split = decomposition(
        plus=where(x >= 0, x, 0), minus=where(x >= 0, 0, -x), recovery=exp(plus - minus) * where(plus * minus > 0, 7, 1)
    )
    bent = {s: Gate(residual + residual**2) for s in (group, trajectory, token)}
    said = {
        name: decided(three(g, split), "first_order")[0]
        for name, g in (("exact", {}), ("bent", bent))
    }
    assert [v.status for v in said.values()] == ["proved", "refuted"]
    _, plain = rebuilt(three(bent, split), said["bent"].counterexample)
    xs = said["bent"].counterexample.values["log_ratios"]
    assert any(abs(g - truth(at)) > UNIT for g, at in zip(plain.ratios(xs), xs, strict=True))


def rebuilt(h, witness):
    """The batch of a witness, with values for the parameters that it does not name."""
    concrete = witness.concrete
    some = next(batches(h, seed=0, count=1)).values
    below = {(f.source, f.target): concrete.maps[f.source, f.target] for f in h.fibrations}
    sizes = {s: concrete.size[s] for s in h.strata}
    values = {**some, **concrete.attributes, **concrete.parameters}
    return concrete, World(h, sizes, below, values)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SUBSPACES)
def test_first_order_holds_on_the_declared_subspace(name):
    h, stratum = SUBSPACES[name]
    found = h.verify()
    assert found.ok, found
    first = [v for v in found.verdicts if v.law == "first_order"]
    assert first[0].status != "proved"
    assert first[0].given_up
    assert [v.subject for v in first[1:]] == ([] if stratum is None else [f"advantages constant on each {stratum}"])


def test_the_report_on_gspo_names_the_advantages_for_which_first_order_holds():
    found = load("gspo").verify()
    first, second = (v for v in found.verdicts if v.law == "first_order")
    assert (first.status, bool(first.given_up)) == ("refuted", True)
    assert (second.status, second.subject) == ("proved", "advantages constant on each trajectory")
    assert {v.law for v in found.verdicts if v.given_up} == {"identity", "first_order"}


def test_a_mean_of_log_ratios_that_a_gate_adds_is_no_first_order_agreement():
    """`𝒢 = 1 + x + mean(x)`: it is 1 at `r = 1`, and its value moves with the other tokens' log ratios."""
    h = alone(Gate(residual + mean(x, over=trajectory)))
    assert not any(v.law == "first_order" and v.status == "proved" for v in h.verify().verdicts)


@verdicts.wrong_specs("first_order")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
