"""The gradient on policy: proved verdicts hold on random small batches, refuted ones fail on their counterexample.

Coefficients are those of the definition in rationals (`definition.py`), with the slopes that formulas declare: at `r = 1`
in every direction at once, and close beside it.
"""

import random
from fractions import Fraction

import pytest
from hierarchies.first_order_specs import SPECS
from hierarchies.random_levels import random_levels
from hierarchies.right import SUBSPACES
from oracles import brute_force, verdicts
from oracles.certified_facts import report
from oracles.definition import NO_VALUE, World, batches
from thorough import some

from fibration import (
    Attribute,
    Gate,
    after,
    centred,
    count,
    load,
    minimum,
    position,
    reward,
    strata,
    token_log_ratio,
)

token, trajectory = strata("token trajectory")
F, T, x = Fraction, count(token, over=trajectory), token_log_ratio


def gradient(h):
    """Its one verdict."""
    [verdict] = (v for v in report(h).verdicts if v.law == "gradient")
    return verdict


def on_rows(world, rng):
    """The batch with rows, each token on one: those of the hierarchy, or any."""
    h = world.h
    if h.rows in h.strata:
        return world
    rows = rng.randint(1, 2)
    edges = {(leaf, h.rows): [rng.randrange(rows) for _ in range(world.size(leaf))] for leaf in h.leaves}
    return World(h, {**world.sizes, h.rows: rows}, {**world.parents, **edges}, world.values)


def differs(world, rng, over):
    """Whether `∂J/∂log π` is not `μ·A`, at `r = 1` or close beside it, for advantages that are constant on a stratum."""
    n = len(world.tokens)
    for unit in (F(0), F(1, 10**12)):
        for _ in range(2):
            per = [F(rng.randint(-3, 3)) for _ in range(world.size(over))]
            advantages = [per[world.below(leaf, i, over)] for leaf, i in world.tokens]
            xs, way = ([step * rng.randint(-9, 9) for _ in range(n)] for step in (unit, F(1)))
            try:
                found = brute_force.pushed_along(world, xs, way, advantages)
            except NO_VALUE:
                return True
            expected = sum((world.mu(i) * a * d for i, (a, d) in enumerate(zip(advantages, way, strict=True))), F(0))
            if abs(found - expected) > (F(1, 10**6) if unit else brute_force.TINY):
                return True
    return False


def holds(h, verdict, seed=0, count=4):
    """What the verdict says, on random batches; whether some batch differs for advantages that are constant on rows."""
    rng, off = random.Random(seed), False
    over = next((s for s in h.order if verdict.subject.endswith(f" {s}")), h.rows)
    for plain in batches(h, seed=seed, count=count, most=4):
        world = on_rows(plain, rng)
        assert verdict.status != "proved" or not differs(world, rng, over), f"{verdict} on {world}"
        off |= differs(world, rng, h.rows)
    if verdict.status == "refuted":
        brute_force.confirm(h, verdict)
    return off


# ---------------------------------------------------------------- what is said


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(SPECS, 2, 1))  # test_first_order.py has the others
def test_the_verdict_on_gradient_is_right_on_random_batches(name):
    spec, verdict = SPECS[name], gradient(SPECS[name].h)
    assert (verdict.subject, verdict.status) == (spec.gradient or "hierarchy", "proved" if spec.gradient else "refuted")
    assert verdict.argument if spec.gradient else verdict.found and verdict.remedy and verdict.counterexample
    if spec.h.orthogonalise is None:
        holds(spec.h, verdict)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some(range(24), 5, 1))
def test_the_verdict_on_gradient_is_right_for_random_levels(seed):
    h = random_levels(random.Random(seed))
    verdict = gradient(h)
    holds(h, verdict, seed)
    assert verdict.status != "undecided"


@pytest.mark.sampled
@pytest.mark.parametrize("name", SUBSPACES)
def test_gradient_is_proved_if_it_holds_for_advantages_constant_on_rows(name):
    """A loss whose gradient is right only for advantages constant on coarser strata is refuted."""
    h, _ = SUBSPACES[name]
    verdict = gradient(h)
    assert bool(verdict.given_up) is (verdict.status != "proved")
    assert verdict.status in ("proved", "refuted")
    holds(h, verdict)


# ---------------------------------------------------------------- slips in what is shipped

SLIPS = {
    "doubled": lambda g: 2 * g, "dropped": lambda g: 0 * g, "shut above 0": lambda g: minimum(g, 0), "bent": lambda g: g * (1 + g)
}  # fmt: skip
GATES = ["cispo token", "sapo token", "gspo trajectory", "gspo_residual token", "gspo_residual trajectory"]
ON_TOKENS = "gspo_residual token"  # what tokens add beyond their mean may be anything linear
HARMLESS = {(ON_TOKENS, "doubled"), (ON_TOKENS, "dropped"), *((g, "bent") for g in GATES if g != "sapo token")}
HARMLESS |= {("cispo token", slip) for slip in SLIPS}  # 𝒢(1) = 1


@pytest.mark.sampled
@pytest.mark.parametrize(("gate", "slip"), some(((g, s) for g in GATES for s in SLIPS), 3))
def test_a_changed_gate_is_refused_unless_its_gradient_is_still_right(gate, slip):
    name, level = gate.split()
    h = load(name)
    h = h.replace(gates={s: Gate(SLIPS[slip](g.expression)) if s.name == level else g for s, g in h.gates.items()})
    verdict = gradient(h)
    assert verdict.status == ("proved" if (gate, slip) in HARMLESS else "refuted")
    assert holds(h, verdict) is (verdict.status == "refuted")


@pytest.mark.sampled
@verdicts.wrong_specs("gradient")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


def test_agreement_for_advantages_per_row_is_not_agreement_for_advantages_per_token():
    """GSPO spreads each token's share over all tokens of its trajectory."""
    token, rows, group = strata("token trajectory prompt_group")
    value, length = Attribute("value", on=token, positive=False), count(token, over=rows)
    for advantages, right in (
        (centred(reward, over=group, leave_one_out=True), True),
        (reward - length, True),
        (reward - value, False),
        (reward - position(over=rows), False),
        (reward + after(reward, over=rows), False),
    ):
        found = load("gspo").replace(groups=[group], advantages=advantages).verify().verdicts
        (verdict,) = (v for v in found if v.law == "gradient")
        assert verdict.status == ("proved" if right else "undecided"), verdict
