"""First-order agreement: for some advantages only, and by levels that agree only together.

Every claim is tried on the definition in rationals (`definition.py`), on random small batches: difference quotients
near `r = 1` where agreement is proved, the witness where it is refuted.
"""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hierarchies.first_order_specs import SPECS, VALUE, T, alone, apc, group, high, state, three
from hierarchies.quivers import token, trajectory
from hierarchies.random_levels import random_levels
from hierarchies.right import SUBSPACES
from oracles import brute_force, verdicts
from oracles.certified_facts import UNIT, report
from oracles.definition import World, batches, truth
from thorough import some

from fibration import (
    Gate,
    decomposition,
    density,
    exp,
    gated,
    load,
    minimum,
    residual,
    tanh,
    token_log_ratio,
    trajectory_mean,
    where,
)
from fibration.language.exact import NoValue

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
        name: next(v for v in three(g, split).verify().verdicts if v.law == "first_order")
        for name, g in (("exact", {}), ("bent", bent))
    }
    assert [v.status for v in said.values()] == ["proved", "refuted"]
    _, plain = rebuilt(three(bent, split), said["bent"].counterexample)
    xs = said["bent"].counterexample.values["log_ratios"]
    assert any(abs(g - truth(at)) > UNIT for g, at in zip(plain.ratios(xs), xs, strict=True))


# ---------------------------------------------------------------- the operator near on-policy

PROVED = [n for n, s in SPECS.items() if s.status == "proved" and s.h.orthogonalise is None]


def directions(n, rng):
    yield [1] * n
    yield [-1] * n
    for _ in range(4):
        yield [rng.randint(-9, 9) for _ in range(n)]


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(PROVED, 2))
def test_proved_first_order_agreement_holds_in_difference_quotients(name):
    """`𝒢(r) = r` to first order, by difference quotients in rationals."""
    h, rng = SPECS[name].h, random.Random(name)
    for plain in batches(h, seed=1):
        for direction in directions(len(plain.tokens), rng):
            xs = [UNIT * d for d in direction]
            for got, at in zip(plain.ratios(xs), xs, strict=True):
                assert abs(got - truth(at)) <= UNIT / 10**6, f"{float(got - 1)} at {[float(v) for v in xs]} on {plain}"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [n for n, s in SPECS.items() if s.status == "refuted" and s.h.objective.estimator == "ratio" and not s.part]
)
def test_refuted_first_order_agreement_fails_on_its_counterexample(name):
    witness = first_order(name)[0].counterexample
    _, plain = rebuilt(SPECS[name].h, witness)
    a = witness.values["advantage"]
    n = len(plain.tokens)
    xs = list(witness.values.get("log_ratios", [UNIT] * n))
    got = plain_or_none(plain, xs, [a] * n)
    zero = plain_or_none(plain, [Fraction(0)] * n, [a] * n)
    if got is not None and zero is not None:
        assert any(abs(g - truth(v)) > UNIT / 10**6 for g, v in zip(got + zero, xs + [Fraction(0)] * n, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n, s in SPECS.items() if s.part])
def test_agreement_for_some_advantages_is_not_agreement_for_all(name):
    """Some batch has `𝒢(r) ≠ r` to first order. The named advantages cancel the difference."""
    spec, rng = SPECS[name], random.Random(name)
    broken = False
    for plain in batches(spec.h, seed=2):
        n = len(plain.tokens)
        start = plain.ratios([Fraction(0)] * n)
        for direction in directions(n, rng):
            xs = [UNIT * d for d in direction]
            broken |= any(abs(g - truth(v)) > UNIT / 10**3 for g, v in zip(plain.ratios(xs), xs, strict=True))
            check_subspace(plain, spec.part.removeprefix("advantages constant on each "), rng, start, xs)
    assert broken


def check_subspace(plain, coarse, rng, start, xs):
    """The change of `Σ μ A 𝒢` is that of `Σ μ A r`, with weights that are those of the objective up to a factor."""
    h = plain.h
    stratum = next(s for s in h.strata if s.name == coarse)
    per = [Fraction(rng.randint(-3, 3)) for _ in range(plain.sizes[stratum])]
    advantages = [per[plain.below(leaf, i, stratum)] for leaf, i in plain.tokens]
    moved = plain.ratios(xs, advantages)
    rows = [(leaf, plain.below(leaf, i, h.rows)) for leaf, i in plain.tokens]
    lengths = {row: sum(r == row for _, r in rows) for _, row in rows}
    weights = [Fraction(1, lengths[row]) for _, row in rows]
    change = sum((w * a * (m - s) for w, a, m, s in zip(weights, advantages, moved, start, strict=True)), Fraction(0))
    expected = sum((w * a * v for w, a, v in zip(weights, advantages, xs, strict=True)), Fraction(0))
    assert abs(change - expected) <= UNIT / 10**6 * len(xs)


def rebuilt(h, witness):
    """The batch of a witness, with values for the parameters that it does not name."""
    concrete = witness.concrete
    some = next(batches(h, seed=0, count=1)).values
    below = {(f.source, f.target): concrete.maps[f.source, f.target] for f in h.fibrations}
    sizes = {s: concrete.size[s] for s in h.strata}
    values = {**some, **concrete.attributes, **concrete.parameters}
    return concrete, World(h, sizes, below, values)


def plain_or_none(plain, xs, advantages):
    try:
        return plain.ratios(xs, advantages)
    except (NoValue, ZeroDivisionError):
        return None


# ---------------------------------------------------------------- random_levels at random


def uphold(h, seed, count=5):
    """What is said of first order and positivity of a hierarchy, against the operator. Returns what is said."""
    found, rng = h.verify(), random.Random(seed)
    said = [(v.subject, v.status) for v in found.verdicts if v.law == "first_order"]
    positive = any(v.law == "positivity" and v.status == "proved" for v in found.verdicts)
    passes = next((f.value for f in found.facts if f.name == "radius"), "") not in ("", "0", "not certified")
    off = False
    for plain in batches(h, seed=seed, count=count, most=4):
        n = len(plain.tokens)
        start = plain.ratios([Fraction(0)] * n)
        for direction in directions(n, rng):
            xs = [UNIT * d for d in direction]
            moved = plain.ratios(xs)
            off |= any(abs(g - truth(v)) > UNIT / 10**6 for g, v in zip(moved, xs, strict=True))
            for subject, status in said:
                if subject.startswith("advantages") and status == "proved":
                    check_subspace(plain, subject.removeprefix("advantages constant on each "), rng, start, xs)
        if positive:
            assert all(g > 0 for g in plain.ratios([Fraction(rng.randint(-30, 30), 7) for _ in range(n)]))
    assert not off or ("hierarchy", "proved") not in said
    assert not (off and passes)
    witness = next((v.counterexample for v in found.verdicts if v.law == "first_order" and v.status == "refuted"), None)
    if witness is not None and "log_ratios" in witness.values:
        _, plain = rebuilt(h, witness)
        xs = list(witness.values["log_ratios"])
        got = plain_or_none(plain, xs, [witness.values["advantage"]] * len(xs))
        assert got is None or any(abs(g - truth(v)) > UNIT / 10**7 for g, v in zip(got, xs, strict=True))
    return [*said, ("off", off)]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(24), 4, 2))
def test_verdicts_on_random_levels_are_right(seed):
    uphold(random_levels(random.Random(seed)), seed)


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
    brute_force.uphold(h, found.verdicts, brute_force.worlds_for(h, (1, 2, 3, 4)))


# A parameter that varies over trajectories has one value in each of these worlds.
# Slopes that depend on the advantage are not looked into.
UNCLAIMED = [n for n, (_, s) in SUBSPACES.items() if s is None and "parameter" not in n and "sign" not in n]


@pytest.mark.parametrize("name", UNCLAIMED)
def test_first_order_fails_on_every_subspace_that_is_not_claimed(name):
    """Brute force finds a batch on which the claim would be false."""
    h, _ = SUBSPACES[name]
    found = h.verify()
    good = next(s for s in reversed(h.order[:-1]) if found_identity(found, s))
    claim = next(v for v in found.verdicts if v.law == "first_order")
    false = replace(claim, status="proved", subject=f"advantages constant on each {good}")
    with pytest.raises(AssertionError):
        brute_force.uphold(h, [false], brute_force.worlds_for(h, (2, 3, 4)))


def found_identity(found, stratum):
    return any(
        v.law == "identity" and v.subject == f"gate on {stratum}" and v.status == "proved" for v in found.verdicts
    )


def test_the_report_on_gspo_names_the_advantages_for_which_first_order_holds():
    found = load("gspo").verify()
    first, second = (v for v in found.verdicts if v.law == "first_order")
    assert (first.status, bool(first.given_up)) == ("refuted", True)
    assert (second.status, second.subject) == ("proved", "advantages constant on each trajectory")
    assert {v.law for v in found.verdicts if v.given_up} == {"identity", "first_order"}


@verdicts.wrong_specs("first_order")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
