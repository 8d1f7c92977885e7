"""Coefficients of small batches in rationals, against explicit matrices and closed forms."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hierarchies import random_chains, random_quivers
from hierarchies.builders import one
from oracles import matrices
from oracles.exact_points import one_value_each, point
from support import Batch, spec

from fibration import SpecError, absolute, clip, maximum, minimum, residual, sqrt, where
from fibration.language.exact import NoValue
from fibration.language.places import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import slopes_of

F = Fraction
CLOSED = json.loads((Path(__file__).parents[1] / "vectors" / "closed_forms.json").read_text())["cases"]


def agrees(h, batch: Batch, log_prob=None):
    (here, places), truth = point(h, batch), matrices.dense(h, batch, log_prob)
    scale = max(1e-3, float(np.abs(truth.coefficients).max()))
    for got, i in zip(here.coefficients, places, strict=True):
        assert float(got) == pytest.approx(float(truth.coefficients[i]), rel=1e-12, abs=1e-14 * scale)
    for g, i in zip(here.output("gated_ratio", moves=True), places, strict=True):
        row = [float(slopes_of(g).get(k, 0)) for k in range(len(places))]
        assert row == pytest.approx([float(v) for v in truth.ratio.slope[i][places]], rel=1e-12, abs=1e-13)
    assert [float(g) for g in here.gated] == pytest.approx([float(truth.ratio.value[i]) for i in places], rel=1e-13)


@pytest.mark.parametrize("seed", range(0, len(random_chains.DEPTHS), 2))
def test_coefficients_of_random_chains_equal_the_definition(seed):
    h = random_chains.candidate(seed)
    agrees(h, one_value_each(random_chains.batch_for(h, seed, small=True)))


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(0, random_quivers.COUNT, 3))
def test_coefficients_of_random_trees_and_quivers_equal_the_definition(seed):
    h = random_quivers.quiver(seed)
    if h.orthogonalise is None:
        agrees(h, one_value_each(random_quivers.batch_for(h, seed, small=True)))


@pytest.mark.parametrize(
    "name", ["ppo", "dr_grpo", "gspo", "cispo", "sapo", "apc_obj", "fiberpo_modal", "fiberpo_experts"]
)
def test_coefficients_of_shipped_losses_equal_the_definition(name):
    h = spec(name)
    batch = one_value_each(random_quivers.batch_for(h, 5, small=True))
    agrees(h, batch, np.ones(batch.tokens))


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
    here, _ = point(spec(name), batch)
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
    here, _ = point(h, one_value_each(random_quivers.batch_for(h, 5, small=True)))
    with pytest.raises(SpecError, match="projection"):
        assert not here.gated
