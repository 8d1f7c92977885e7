"""Facts of single gates against numbers: the report lists every jump and every falling slope, and no other."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from hierarchies import quivers
from hierarchies.builders import budget, epsilon, one, token, trajectory, two
from hierarchies.right import RIGHT
from oracles.certified_facts import facts, forest
from oracles.fact_text import number, parameter_values

from fibration import (
    Attribute,
    Parameter,
    advantage,
    aggregate_gate,
    count,
    load,
    log_ratio,
    mean,
    residual,
    stop,
    token_log_ratio,
    where,
)
from fibration.compiler.ir import Mix
from fibration.compiler.lower import lower
from fibration.language.atoms import Stratum, in_channel
from fibration.language.traversal import evaluate
from fibration.laws.gates.contributions import is_effect

SHAPES = {
    "fiberpo": load("fiberpo"),
    "fiberpo_domain": load("fiberpo_domain"),
    "fiberpo_inward": load("fiberpo_inward"),
    "dual clip": load("ppo"),
    "jump to zero": RIGHT["either bound"],
    "jump at a bound": one(where(residual > epsilon, 2 * epsilon, residual), log_ratio()),
    "jump for one sign of the advantage": one(
        where(advantage > 0, where(residual > epsilon, 2 * epsilon, residual), residual), log_ratio()
    ),
    "jump at one point": one(where((residual >= 1) & (residual <= 1), 0, residual), log_ratio()),
    "jump below": one(where(residual < -1, -2, residual), log_ratio()),
    "kink": one(where(residual > 1, 2 * residual - 1, residual), log_ratio()),
    "rollback": one(where(residual > epsilon, epsilon - 0.3 * (residual - epsilon), residual), log_ratio()),
    "rollback below only": one(where(residual < -budget, -budget - 2 * (residual + budget), residual), log_ratio()),
    "cubic": RIGHT["cubic"],
    "softsign": RIGHT["softsign"],
}  # fmt: skip


def sampled(h, stratum, channel, advantage_value):
    """A gate in intensive units, as a function of a float."""
    world = forest(h, tuple(2 for _ in h.order[1:]))
    gate = in_channel(h.gate(stratum), channel)
    leaf = h.order[-1]
    mass = sum((world.value(h.decomposition.scale, leaf, i) for i in world.over(leaf, stratum, 0)), Fraction(0))

    def g(rho):
        bound = {residual: mass * Fraction(rho), advantage: Fraction(advantage_value)}
        return float(evaluate(gate, lambda a: bound[a] if a in bound else world.atom(a, stratum, 0)) / mass)

    return g


def jumps(g, points):
    """Pairs of neighbours whose values stay apart however close they come."""
    for (low, a), (high, b) in itertools.pairwise((p, g(p)) for p in points):
        for _ in range(60):
            if abs(a - b) < 1e-6:
                break
            middle = (low + high) / 2
            value = g(middle)
            low, a, high, b = (low, a, middle, value) if abs(a - value) >= abs(value - b) else (middle, value, high, b)
        if abs(a - b) > 1e-6:
            yield low


GRID = sorted({*np.linspace(-2, 2, 81).tolist(), 0.0, 1.0, -1.0})


@pytest.mark.sampled
@pytest.mark.parametrize("name", SHAPES)
def test_the_fact_continuity_lists_every_jump_of_a_gate(name):
    h = SHAPES[name]
    certified = facts(h, "continuity")
    for stratum in h.order:
        said = certified[f"gate on {stratum}"]
        curves = [sampled(h, stratum, c, a) for c in h.decomposition.channels for a in (1, -1, 0)]
        found = any(next(jumps(g, GRID), None) is not None for g in curves)
        found |= any(abs(g(1.0) - g(1.0 + 1e-9)) > 1e-6 or abs(g(1.0) - g(1.0 - 1e-9)) > 1e-6 for g in curves)
        assert said == ("has a jump" if found else "continuous")


@pytest.mark.sampled
@pytest.mark.parametrize("name", SHAPES)
def test_the_fact_restorative_lists_every_falling_slope_of_a_gate(name):
    """Inside the listed regions the gate falls with the listed slope. Elsewhere it does not fall."""
    h = SHAPES[name]
    certified = facts(h, "restorative")
    world = forest(h, tuple(2 for _ in h.order[1:]))
    for stratum in h.order:
        for channel in h.decomposition.channels:
            values = parameter_values(h)
            values |= {k.removesuffix(f"[{channel}]"): v for k, v in values.items() if k.endswith(f"[{channel}]")}
            counts = {
                f"count({s}, over={o})": len(world.over(s, o, 0))
                for s in h.order
                for o in h.order
                if h.order.index(s) >= h.order.index(o)
            }
            regions = []
            for part in filter(None, certified.get(f"gate on {stratum}", "").split("; ")):
                said = r"(.*) < (\|ρ\||ρ) < (.*) with slope (.*?)(?: where the (?:advantage|pull) is .*)?"
                low, variable, high, slope = re.fullmatch(said, part).groups()
                ends = number(low, values, counts), number(high, values, counts)
                fall = _slope(slope, values, counts)
                regions.append((*ends, fall))
                if variable == "|ρ|":
                    regions.append((-ends[1], -ends[0], lambda v, f=fall: f(-v)))
            curves = [sampled(h, stratum, channel, a) for a in (1, -1)]
            for rho in np.linspace(-1.9, 1.9, 381) + 1e-4:
                moves = [g(rho + 1e-7) - g(rho - 1e-7) for g in curves]
                steps = [m / 2e-7 for m in moves]
                inside = [f(rho) for low, high, f in regions if low + 1e-6 < rho < high - 1e-6]
                edge = any(abs(rho - e) < 1e-5 for low, high, _ in regions for e in (low, high))
                smooth = all(abs(m) < 1e-5 for m in moves)
                if edge or not smooth:
                    continue
                if inside:
                    assert any(s == pytest.approx(inside[0], abs=1e-4) for s in steps), f"{rho}: {steps}, not {inside}"
                elif name not in {"cubic"}:
                    assert min(steps) > -1e-6, f"falls at {rho}"


def test_falling_slopes_are_listed_per_sign_of_the_advantage():
    assert facts(load("truly_ppo"), "restorative")["gate on token"] == (
        "epsilon < ρ < inf with slope -alpha where the advantage is at least 0; "
        "-1 < ρ < -epsilon with slope -alpha where the advantage is below 0"
    )


def test_the_falling_slope_of_an_inward_gate_is_listed_once():
    """One line covers both channels and both signs of the advantage."""
    h = SHAPES["fiberpo_inward"]
    assert facts(h, "restorative") == {
        "gate on trajectory": "C_trajectory < |ρ| < 2*C_trajectory with slope -1 where the pull is outward"
    }
    for channel, up in (("+", 1), ("-", -1)):
        budget_here = parameter_values(h)[f"C_trajectory[{channel}]"]
        for a, side in itertools.product((1, -1), (1, -1)):
            g, rho = sampled(h, trajectory, channel, a), side * 1.5 * budget_here
            falls = g(rho + 1e-3) < g(rho - 1e-3)
            assert falls is (up * a * side > 0)


def _slope(text, values, counts):
    return lambda rho: number(text, {**values, "residual": rho}, counts)


def test_a_smooth_fall_is_not_certified_where_its_sign_changes():
    """`ρ - ρ³` rises and falls inside one piece; only pieces that fall everywhere are named."""
    assert facts(RIGHT["bell"], "restorative") == {}
    assert facts(SHAPES["rollback"], "restorative") != {}


def test_aggregate_gate_is_continuous_for_every_rollback():
    """The roll-back ends at 0, where the zeroed region begins, for every slope."""
    for rollback in (1, 3, count(token), Parameter("k", default=2.0)):
        h = two(outer=aggregate_gate(budget, rollback=rollback))
        assert facts(h, "continuity")["gate on trajectory"] == "continuous"
        assert "slope -" in facts(h, "restorative")["gate on trajectory"]


def test_the_facts_list_every_effect_that_the_program_fits():
    """Shortcuts lead into both branches, with a crossing below them. `turn` and `page` are fitted."""
    page, over = Stratum("page"), quivers.n(quivers.text) + quivers.n(quivers.image)

    def branch(leaf, between):
        return (
            (leaf, between, 1 / count(leaf, over=between)),
            (between, trajectory, count(leaf, over=between) / over),
            (leaf, trajectory, 1 / over),
        )

    h = quivers.make(
        *branch(quivers.text, quivers.turn),
        *branch(quivers.image, page),
        *quivers.CROSS[1:],
        orthogonalise="projection",
    )
    fitted = {node.into for node in lower(h).nodes() if isinstance(node, Mix)}
    assert fitted == {"turn", "page", "domain", "modality"}
    assert fitted <= {s.name for s in h.order if is_effect(h, s)}


def test_a_falling_slope_is_listed_with_its_conditions():
    falls = where(residual > budget, 2 * budget - residual, residual)
    v = Attribute("v", on=token)
    for gate, when in (
        (where(v > 3, falls, residual), "-3 + v is above 0"),
        (where(v > 3, residual, falls), "-3 + v is at most 0"),
        (where((advantage > 0) & (v > 1), falls, residual), "the advantage is above 0 and -1 + v is above 0"),
    ):
        assert facts(one(gate, log_ratio()), "restorative") == {
            "gate on token": f"C < ρ < inf with slope -1 where {when}"
        }


def test_a_falling_slope_leaves_stopped_terms_out():
    stopped = where(residual > budget, 2 * stop(residual) - residual, residual)
    assert facts(one(stopped, log_ratio()), "restorative") == {"gate on token": "C < ρ < inf with slope -1"}
    rises = where(residual > budget, budget + (residual - stop(residual)), residual)
    assert facts(one(rises, log_ratio()), "restorative") == {}


def test_continuity_holds_statistics_of_the_policy_fixed_and_says_so():
    drift = mean(token_log_ratio, over=trajectory)
    h = one(where(abs(drift) < budget, residual, 0), log_ratio())
    assert facts(h, "continuity") == {"gate on token": f"continuous in its residual, with {drift} held"}
