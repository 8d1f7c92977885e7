"""Formulas, gated ratios and coefficients of small batches in rationals, against the definition and closed forms."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fuzz.batches import Batches
from fuzz.dual_numbers import slopes_of, value_of
from fuzz.judges.judge import attempt
from fuzz.points import of_rows, one_value_each, point
from fuzz.witnesses import are_close
from fuzz.world import World
from hierarchies import random_quivers
from hierarchies.builders import one
from hierarchies.every import FAMILIES
from support import Batch, spec
from thorough import some

from fibration import (
    SpecError,
    absolute,
    after,
    before,
    clip,
    count,
    deviation,
    largest,
    log_prob,
    maximum,
    mean,
    minimum,
    policies,
    position,
    quantile,
    residual,
    sqrt,
    strata,
    token_log_ratio,
    token_mean,
    total,
    where,
)
from fibration import (
    some as any_of,
)
from fibration.language.exact import NoValue
from fibration.language.outline import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values import duals

F = Fraction
CLOSED = json.loads((Path(__file__).parents[1] / "vectors" / "closed_forms.json").read_text())["cases"]


def agrees(h, batch):
    """Whether there are values to compare: weights and conditions, gated ratios with slopes, coefficients."""
    order = [i for leaf in h.leaves for i, own in enumerate(batch.leaf) if own == leaf]  # that of the laws
    world = World(h, batch, exact=True).of(order)
    made, why = attempt(lambda: point(h, world.batch))
    if why:
        return False
    here, plain = made[0], World(h.replace(penalties={}), world.batch, exact=True)
    for formula in (*h.objective.weighed, *(k.condition for k in h.objective.kept)):
        expected, why = attempt(lambda: [value_of(world.at_token(formula, i)) for i in range(world.n)])  # noqa: B023 - at once
        if not why:
            assert are_close([duals.value_of(here.value(formula, i)) for i in range(world.n)], expected)
    expected, why = attempt(lambda: (world.ratios, plain.coefficients))
    if why:
        return False
    for found, right in zip(here.output("gated_ratio", moves=True), expected[0], strict=True):
        assert are_close([duals.value_of(found)], [value_of(right)])
        assert are_close(*([slopes.get(k, 0) for k in range(world.n)] for slopes in (duals.slopes_of(found), slopes_of(right))))
    assert are_close(here.coefficients, expected[1])
    return True


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "seed"), some([(f, s) for s in range(12) for f in FAMILIES], 2))
def test_exact_points_equal_the_definition(family, seed):
    """Of levels, statistics and order."""
    h = FAMILIES[family](seed)
    if h.orthogonalise:
        pytest.skip("effects by least squares are not evaluated")
    compared = [agrees(h, batch) for batch in Batches(h, random.Random(seed), 8).several(4)]
    assert any(compared) or family == "anything"


def test_every_statistic_and_order_equal_the_definition():
    (current, old), (token, trajectory, batch) = policies("current old"), strata("token trajectory batch")
    read, part = log_prob(old), 0.3
    objective = token_mean()
    for formula in (
        quantile(read, part, over=trajectory), quantile(token_log_ratio, 1, over=batch), largest(-read, over=trajectory),
        mean(log_prob(current), over=batch), total(read * read, over=trajectory), where(any_of(read > -1, over=batch), 3, 2),
        before(read, over=trajectory), before(read, over=trajectory, discount=part), after(read, over=batch, discount=part),
        position(over=trajectory), deviation(read, over=batch), count(token, over=trajectory),
    ):  # fmt: skip
        objective = objective.weigh(formula)
    h = one(residual).replace(objective=objective, rows=trajectory)
    assert all(agrees(h, batch) for batch in Batches(h, random.Random(1), 8).several(6) if batch.size > 1)


@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_coefficients_equal_the_closed_forms(name):
    case = min(CLOSED, key=lambda c: (not any(c["log_ratio"]), len(c["log_ratio"])))
    of_row = case["group_of_trajectory"]
    batch = Batch(
        lengths=tuple(case["trajectory_of_token"].count(t) for t in range(len(of_row))),
        x=np.array(case["log_ratio"]),
        advantages=np.array(case["advantage"]),
        labels={"prompt_group": of_row, "domain": [case["domain_of_group"][g] for g in of_row]},
        parameters={"epsilon": case["epsilon"]}
        | {f"C_{level}": dict(zip("+-", case["budgets"][level], strict=True)) for level in case["budgets"]},
    )
    h = spec(name)
    here, _ = point(h, of_rows(h, batch))
    assert [float(c) for c in here.coefficients] == pytest.approx(case[name]["coefficients"], rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------- breakpoints


def slope(gate):
    """The declared slope of a gate at a residual of 0: the coefficient of one token on policy."""
    h = one(gate)
    shape = whole_batch(h)
    here = Point(h, Concrete(shape, {(f.source, f.target): (0,) for f in shape.fibrations}), (F(0),), (F(1),))
    return here.coefficients[0]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (clip(residual, -1, 0), 1),
        (minimum(residual, 0), 1),
        (minimum(0, residual), 0),
        (maximum(2 * residual, residual), 2),
        (absolute(residual), 1),
        (where(residual > 0, residual, 3 * residual), 3),
        (where(residual >= 0, residual, 3 * residual), 1),
        (5 * residual + residual**3, 5),
    ],
)
def test_at_a_kink_the_branch_that_holds_is_differentiated(gate, expected):
    assert slope(gate) == expected


def test_a_gate_without_a_slope_has_no_coefficient():
    with pytest.raises(NoValue):
        slope(sqrt(absolute(residual)))


def test_exact_coefficients_of_projections_are_refused():
    h = spec("fiberpo_crossed")
    here, _ = point(h, of_rows(h, one_value_each(random_quivers.batch_for(h, 5, small=True))))
    with pytest.raises(SpecError, match="projection"):
        assert not here.gated
