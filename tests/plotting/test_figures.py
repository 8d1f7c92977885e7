"""`fibration plot`: the numbers behind each figure against closed forms, and the files."""

from __future__ import annotations

import functools
import math
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
from pictures import inside, words
from support import OF_EVERY_KIND, operator
from thorough import some
from typer.testing import CliRunner

import fibration
from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    advantage,
    aggregate_gate,
    count,
    identity_gate,
    log_ratio,
    residual,
    token_mean,
    uniform,
)
from fibration.cli.main import app
from fibration.compiler.diagnostics import REGIMES, UNCHANGED
from fibration.errors import BackendError, LawError, ParameterError
from fibration.language.hierarchy import Hierarchy as Spec
from fibration.plotting.figures import FIGURES, caption, draw, gates, make, note, objective, regimes
from fibration.plotting.figures.joint import joint
from fibration.plotting.figures.objective import ADVANTAGE, DELTA, Drift, baseline
from fibration.plotting.figures.regimes import to_ratios
from fibration.plotting.figures.sample import OLD, apart, dealt, sample
from fibration.plotting.gate_curve import Section
from fibration.runtime.operator import Operator

ROOT = Path(__file__).resolve().parents[2]
VARIANT = ROOT / "docs" / "fiberpo_k.py"
token, turn, trajectory, batch = fibration.strata("token turn trajectory batch")
epsilon, budget = fibration.Parameter("epsilon", default=0.05), fibration.Parameter("C", default=0.2)
T = count(token, over=trajectory)


@functools.cache
def compiled(hierarchy: str | Spec) -> Operator:
    return operator(fibration.load(hierarchy) if isinstance(hierarchy, str) else hierarchy)


@functools.cache
def variant() -> Operator:
    return compiled(str(VARIANT))


def two(inner: Gate, outer: Gate | None = None, split=None, **more: object) -> Spec:  # type: ignore[no-untyped-def]
    return Hierarchy(
        name="two",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: outer or identity_gate(), token: inner},
        decomposition=split or log_ratio(scale=1 / T),
        objective=token_mean(),
        **more,  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------- gates


def g_agg(s: float, c: float, k: float) -> float:
    """eq:gagg_main."""
    if abs(s) <= c:
        return s
    return math.copysign((k + 1) * c - k * abs(s), s) if abs(s) < (1 + 1 / k) * c else 0.0


@functools.cache
def cases(op: Operator, stratum: str, channel: str, **values: float) -> list[Section]:
    return gates.cases(gates.reference(op, values), stratum, channel)


@pytest.mark.parametrize(("channel", "c"), [("+", 0.2), ("-", 0.1)])
@pytest.mark.parametrize("k", [2.0, 32.0, None])
def test_the_drawn_gate_equals_the_captions_formula(channel: str, c: float, k: float | None) -> None:
    """Of fiberpo, too, whose rollback is the number of tokens: two, as in the caption."""
    op, given, k = (compiled("fiberpo"), {}, 2.0) if k is None else (variant(), {"k": k}, k)
    (section,) = cases(op, "trajectory", channel, **given)
    end = (1 + 1 / k) * c
    assert section.breaks == pytest.approx((-end, -c, c, end), abs=1e-12) and section.ends == section.breaks[1:3]
    grid = np.array([-0.4, -c * (1 + 0.5 / k), -0.05, 0.0, 0.05, c, c * (1 + 0.25 / k), c * (1 + 0.5 / k), end, 0.5])
    seen = section.at(grid)
    np.testing.assert_allclose(seen["gated"], [g_agg(s, c, k) for s in grid], atol=1e-12)
    np.testing.assert_allclose(seen["slope"], [0, -k, 1, 1, 1, 1, -k, -k, 0, 0])
    names = ["zeroed", "rolled_back", *["passed"] * 4, "rolled_back", "rolled_back", "zeroed", "zeroed"]
    assert section.regime(grid) == names


def test_a_rollback_narrower_than_the_search_is_found() -> None:
    (section,) = cases(variant(), "trajectory", "+", k=1e6)
    assert section.breaks == pytest.approx((-0.2000002, -0.2, 0.2, 0.2000002), rel=1e-11)
    assert float(section.at(0.2000001)["slope"][0]) == -1e6


def test_gates_that_read_the_advantage_are_drawn_for_both_signs() -> None:
    up, down = cases(compiled("ppo"), "token", "")
    assert (up.label, down.label) == ("A > 0", "A < 0")
    assert up.breaks == pytest.approx((0.2,))
    assert down.breaks == pytest.approx((-0.2, 2.0)) and down.ends == down.breaks
    up, down = cases(compiled("gspo"), "trajectory", "")
    assert up.breaks == pytest.approx((math.log1p(0.0004),))
    assert down.breaks == pytest.approx((math.log1p(-0.0003),))


def test_gates_that_read_coarser_densities_are_drawn_for_three() -> None:
    bound = epsilon + fibration.absolute(fibration.density(trajectory))
    h = two(Gate(fibration.clip(residual, -bound, bound)), split=log_ratio(scale=1))
    found = cases(compiled(h), "token", "")
    assert [s.label for s in found] == ["coarser drift 0", "coarser drift 0.02", "coarser drift 0.04"]
    # a trajectory's density is the sum over its T = 2 tokens, its drift their mean
    assert [s.breaks[-1] for s in found] == pytest.approx([0.05, 0.05 + 2 * 0.02, 0.05 + 2 * 0.04])
    picture = make(compiled(h), "gates", {})
    assert {t.get_text() for a in picture.axes if a.get_legend() for t in a.get_legend().get_texts()} == {
        s.label for s in found
    }


def test_smooth_constant_and_open_gates_are_drawn() -> None:
    op = compiled(two(Gate(epsilon * fibration.tanh(residual / epsilon))))
    (smooth,) = cases(op, "token", "")
    assert smooth.breaks == () and smooth.regime([-0.3, 0.03]) == ["attenuated"] * 2
    assert float(smooth.at(0.03)["slope"][0]) == pytest.approx(1 / math.cosh(0.03 / 0.1) ** 2)
    (passes,) = cases(op, "trajectory", "")
    assert passes.breaks == () and passes.at([0.1, 3.0])["slope"].tolist() == [1, 1]
    (zero,) = cases(compiled("gspo"), "token", "")
    assert (zero.breaks, zero.gated(2.0).tolist(), zero.at(2.0)["slope"].tolist()) == ((), [0], [0])


def test_restorative_regions_are_shaded_where_only_one_sign_rolls_back() -> None:
    rolls = fibration.where(residual <= epsilon, residual, 2 * epsilon - residual)
    gate = Gate(fibration.where(advantage >= 0, rolls, fibration.maximum(residual, -epsilon)))
    h = Hierarchy(
        name="rolls",
        gates={token: gate},
        decomposition=fibration.ratio_deviation(),
        objective=token_mean(),
        gives_up={"positivity": "rolls back without end"},
    )
    picture = make(compiled(h), "gates", {})
    hatched = [p for p in picture.axes[0].patches if p.get_hatch()]
    assert [p.get_x() for p in hatched] == pytest.approx([0.05])
    assert hatched[0].get_width() == pytest.approx(0.025)


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(OF_EVERY_KIND, 2))
def test_the_operators_results_lie_on_the_curves(name: str) -> None:
    op = compiled(name)
    tokens, worlds = gates.tokens_of(op), 200 if apart(op) else 20
    x = np.random.default_rng(3).normal(0, 0.3 if not name.startswith("gspo") else 4e-4, (worlds, tokens))
    compared = set()
    for a in (1.0, -1.0):
        seen = sample(op, x, a, {})
        for key, before in seen.residual.items():
            found = gates.cases(gates.reference(op, {}), *key)
            if any("coarser" in s.label for s in found):  # drawn for chosen densities, not for those of this batch
                continue
            compared.add(key)
            section = found[0 if a > 0 else -1]
            np.testing.assert_allclose(section.gated(before.ravel()), seen.gated[key].ravel(), atol=1e-14)
            assert section.regime(before.ravel()) == [REGIMES[i] for i in seen.regimes[key].ravel()]
    every = len(op.hierarchy.strata) * len(op.hierarchy.decomposition.channels)
    assert len(compared) >= every - 2 * (name == "apc_obj")


# ---------------------------------------------------------------- regimes


def by_hand(r: list[float], eps: float, plus: float, minus: float, k: float) -> tuple[int, str]:
    """Tokens with |u_i| > ε, and the global regime, from the paper's formulas."""
    x = [math.log(v) for v in r]
    s = {1: sum(max(v, 0) for v in x) / 3, -1: sum(max(-v, 0) for v in x) / 3}
    clipped = sum(abs(abs(v) - s[1 if v >= 0 else -1]) > eps for v in x)
    past = [(s[1] > plus) + (s[1] >= plus * (1 + 1 / k)), (s[-1] > minus) + (s[-1] >= minus * (1 + 1 / k))]
    name = {(0, 0): "G-I", (0, 1): "G-II,r", (0, 2): "G-II", (1, 1): "G-III,r", (1, 2): "G-III,r", (2, 2): "G-III"}
    return clipped, name[min(past), max(past)]


def points(op: Operator, ratios: object, advantage: float = 1.0, **values: object) -> regimes.Window:
    """The map's worlds of these ratios."""
    worlds = sample(op, np.log(ratios), advantage, values)
    return regimes.Window(0.0, np.ones((1, len(worlds.log_ratio)), bool), worlds)


def test_every_pixel_of_the_map_has_its_regime() -> None:
    op = compiled("fiberpo")  # three tokens: its rollback is the caption's k = 3
    seen = regimes.window(op, 0.0, 60, 1.0, caption(op.hierarchy, "regimes"))
    ratios = np.exp(seen.worlds.log_ratio)
    np.testing.assert_allclose(ratios.sum(axis=1), 3)
    expected = [by_hand(r, 0.025, 0.15, 0.09, 3) for r in ratios.tolist()]
    assert seen.clipped().tolist() == [n for n, _ in expected]
    assert seen.joint("trajectory") == [name for _, name in expected]
    assert {name for _, name in expected} == {"G-I", "G-II,r", "G-II", "G-III,r", "G-III"}
    image = seen.field(np.arange(len(expected), dtype=float))
    assert np.isnan(image).sum() == image.size - len(expected)


def test_corners_and_centre_of_the_simplex_have_their_ratios() -> None:
    np.testing.assert_allclose(to_ratios(*regimes.CENTRE), 1)
    np.testing.assert_allclose(to_ratios(*regimes.CORNERS.T), 3 * np.eye(3), atol=1e-15)
    x, y = regimes.CORNERS.T @ np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(to_ratios(x, y), [1.5, 0.9, 0.6])


def test_the_advantage_decides_which_side_is_clipped() -> None:
    r = [[1.5, 0.9, 0.6], [1.2, 1.15, 0.65]]
    found = [points(compiled("dapo"), r, a).clipped().tolist() for a in (1.0, -1.0)]
    assert found == [[1, 0], [1, 1]]  # above 1.28 for A > 0, below 0.8 for A < 0


def test_joint_regimes_ignore_the_order_of_tokens() -> None:
    assert joint(["zeroed", "passed"]) == joint(["passed", "zeroed"]) == "G-II"
    assert joint(["zeroed", "rolled_back"]) == "G-III,r"
    assert (joint(["limited"]), joint(["passed", "limited"])) == ("limited", "passed / limited")


# ---------------------------------------------------------------- objective


def closed_form(r: np.ndarray, eps: float | np.ndarray, plus: float, minus: float, k: float) -> np.ndarray:
    """`𝒢_i` of FiberPO at the ratios (eq:fiberpo_gating_decomp)."""
    x = np.log(r)
    s = {1: np.maximum(x, 0).mean(), -1: np.maximum(-x, 0).mean()}
    base = g_agg(s[1], plus, k) - g_agg(s[-1], minus, k)
    sign = np.where(x >= 0, 1, -1)
    u = sign * x - np.where(sign > 0, s[1], s[-1])
    v = -np.where(sign > 0, s[-1], s[1])
    return np.exp(base + sign * (np.clip(u, -eps, eps) - np.clip(v, -eps, eps)))


@functools.cache
def drift() -> Drift:
    return Drift(variant(), caption(variant().hierarchy, "objective"))


def test_the_objective_under_drift_equals_the_closed_form() -> None:
    t = np.array([0.0, 0.05, 0.3, 0.62, 0.65, 0.9, 1.1, 1.3])
    expected = np.stack([closed_form(1 + v * DELTA, 0.04, 0.12, 0.05, 32) for v in t]) * ADVANTAGE / 10
    np.testing.assert_allclose(drift().per_token(t), expected, rtol=1e-12)
    np.testing.assert_allclose(drift().total(t), expected.sum(axis=1), atol=1e-13)
    assert drift().weight == pytest.approx(0.1)


def test_a_tokens_weight_does_not_include_penalties() -> None:
    assert Drift(compiled("grpo_k3"), {}).weight == pytest.approx(0.1, rel=1e-12)


def test_the_objective_bends_at_the_expected_drift() -> None:
    def crossing(f, value: float) -> float:  # type: ignore[no-untyped-def]
        low, high = 0.0, 1.4
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if f(middle) < value else (low, middle)
        return low

    up = lambda t: np.maximum(np.log1p(t * DELTA), 0).mean()  # noqa: E731
    down = lambda t: np.maximum(-np.log1p(t * DELTA), 0).mean()  # noqa: E731
    coarse = [(e.channel, e.before, e.after, e.t) for e in drift().events if e.stratum == "trajectory"]
    expected = [
        ("-", "passed", "rolled_back", crossing(down, 0.05)),
        ("-", "rolled_back", "zeroed", crossing(down, 0.05 * (1 + 1 / 32))),
        ("+", "passed", "rolled_back", crossing(up, 0.12)),
        ("+", "rolled_back", "zeroed", crossing(up, 0.12 * (1 + 1 / 32))),
    ]
    assert [c[:3] for c in coarse] == [e[:3] for e in expected]
    # a gate counts as passing while it changes its residual by less than UNCHANGED
    assert [c[3] for c in coarse] == pytest.approx([e[3] for e in expected], rel=2 * UNCHANGED)
    first = drift().events[0]
    assert (first.stratum, first.element, first.channel, first.after) == ("token", 0, "+", "limited")
    assert first.t == pytest.approx(crossing(lambda t: np.log1p(t * DELTA[0]) - up(t), 0.04), rel=2 * UNCHANGED)
    assert first.t < coarse[0][3]  # local regulation engages first


def test_the_baseline_of_a_figure_is_grpo_with_the_same_clip() -> None:
    grpo = baseline(variant(), caption(variant().hierarchy, "objective"))
    assert grpo is not None
    assert grpo.parameters == {"epsilon_low": 0.04, "epsilon_high": 0.04}
    t = np.array([0.05, 0.5, 1.2])
    r = 1 + t[:, None] * DELTA
    gated = np.where(ADVANTAGE > 0, np.minimum(r, 1.04), np.maximum(r, 0.96))
    np.testing.assert_allclose(grpo.total(t), (gated * ADVANTAGE).mean(axis=1), rtol=1e-12)
    assert objective.weigh(drift(), grpo) == 1
    assert objective.weigh(Drift(compiled("dr_grpo"), {}), grpo) == pytest.approx(10 / 1024)  # μ = 1/1024, not 1/10
    assert baseline(compiled("grpo"), {}) is None
    assert baseline(compiled("dapo"), {}).parameters == {"epsilon_low": 0.2, "epsilon_high": 0.28}  # type: ignore[union-attr]


def test_the_legend_says_which_clip_of_grpo_is_its_own() -> None:
    mine = Drift(compiled("grpo"), {"epsilon_low": 0.1, "epsilon_high": 0.3})
    for drift, label in (
        (mine, "GRPO, clipped to [1 − 0.1, 1 + 0.3]"),
        (Drift(mine.op, {"epsilon_high": 0.3}), "GRPO, clipped to [1 − 0.2 (its default), 1 + 0.3]"),
        (baseline(compiled("apc_obj"), {}), "GRPO, clipped at its default to [1 − 0.2, 1 + 0.2]"),
    ):
        assert drift is not None
        assert objective._baseline_label(mine, drift) == label


def test_a_gate_without_a_passed_residual_changes_regime_by_the_ratio() -> None:
    """APC-Obj's budget T·δ is spent at once by all tokens of a state, at t = 1/Σ|Δ|."""
    d = Drift(compiled("apc_obj"), {})
    assert d.by_ratio == ("token",)
    first = d.events[:10]
    assert sorted(e.element for e in first) == list(range(10))
    assert [e.t for e in first] == pytest.approx([1 / np.abs(DELTA).sum()] * 10, rel=1e-5)
    assert {e.after for e in d.events[10:]} == {"zeroed"}
    assert Drift(compiled("fiberpo"), {}).by_ratio == Drift(compiled("gspo"), {}).by_ratio == ()


def test_a_removed_level_has_no_plane_of_channels() -> None:
    page = make(compiled("apc_obj"), "gates", {})
    assert [a.get_title(loc="left") for a in page.axes if a.get_title(loc="left")] == [
        "state, channel +", "state, channel −", "token, channel +", "token, channel −"
    ]  # fmt: skip
    assert "G-I" not in [t.get_text() for a in page.axes for t in a.texts]


def test_a_page_names_the_channel_of_a_budget() -> None:
    values = {"C_trajectory": {"a": {"+": 0.3, "-": 0.25}, "b": 0.1}}
    assert note(fibration.load("fiberpo"), {}) == "C_trajectory[+] = 0.2, [−] = 0.1;  epsilon = 0.05"
    assert note(fibration.load("fiberpo"), values).startswith("C_trajectory[a][+] = 0.3, [a][−] = 0.25, [b] = 0.1;")


def test_a_gate_that_reads_the_advantage_is_drawn_with_a_trajectory_per_sign() -> None:
    gspo = Drift(compiled("gspo"), {})
    assert gspo.rows == 2
    means = [lambda t: np.log1p(t * DELTA[:5]).mean(), lambda t: np.log1p(t * DELTA[5:]).mean()]
    assert [(e.stratum, e.after) for e in gspo.events] == [("trajectory", "limited")] * 2
    assert means[0](gspo.events[0].t) == pytest.approx(math.log1p(0.0004), rel=2 * UNCHANGED)
    assert means[1](gspo.events[1].t) == pytest.approx(math.log1p(-0.0003), rel=2 * UNCHANGED)
    np.testing.assert_allclose(gspo.per_token(0.001).sum(), gspo.total(np.array([0.001]))[0])


# ---------------------------------------------------------------- other hierarchies


def test_simulated_rows_of_a_figure_are_independent() -> None:
    whole = Hierarchy(
        name="whole",
        fibrations=[Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, batch, kernel=uniform())],
        gates={
            batch: aggregate_gate(budget, rollback=4),
            trajectory: identity_gate(),
            token: fibration.clip_gate(epsilon),
        },
        decomposition=fibration.signed_log_ratio(),
        objective=token_mean(),
    )
    assert not apart(compiled(whole))
    assert apart(compiled("fiberpo_domain"))
    d, t = Drift(compiled(whole), {}), np.array([0.2, 0.9])
    np.testing.assert_array_equal(d.at(t).ratio, [d.at(one).ratio[0] for one in t])


# ---------------------------------------------------------------- trees and quivers


def test_simulated_rows_form_a_group() -> None:
    """And each sign is a trajectory where a penalty above the tokens reads the advantage."""
    seen = Drift(compiled("real"), {})
    assert seen.rows == 2 and Drift(compiled("kimi_k2"), {}).rows == 1
    assert seen.start.index.count("trajectory", "prompt_group").tolist() == [2]


def test_tokens_are_assigned_to_the_leaves_in_turn() -> None:
    """Anew in every trajectory."""
    seen, h = sample(compiled("fiberpo_modal"), np.zeros((2, 5)), 1.0, {}), compiled("fiberpo_modal").hierarchy
    elements = {s.name: (seen.tokens_over(s).tolist(), seen.element(s).tolist()) for s in h.order}
    coarser = [0, 1, 2, 3, 4], [0] * 5
    leaves = {"text_token": ([0, 2, 4], [0, 1, 2]), "image_token": ([1, 3], [0, 1])}
    assert elements == {"prompt_group": coarser, "trajectory": coarser, **leaves}
    assert [seen.tokens_of(leaf).tolist() for leaf in h.leaves] == [[0, 2, 4], [1, 3]]
    assert dealt(6, 2, 2).tolist() == [0, 1, 0, 0, 1, 0]


def by_hand_modal(r: np.ndarray) -> np.ndarray:
    """`𝒢_i` of fiberpo_modal with one trajectory in its group: FiberPO, with a clip per kind of token."""
    return closed_form(r, np.where(np.arange(len(r)) % 2 == 0, 0.05, 0.02), 0.2, 0.1, len(r))


def test_a_tree_under_drift_equals_the_closed_form() -> None:
    d, t = Drift(compiled("fiberpo_modal"), {}), np.array([0.0, 0.05, 0.3, 0.8, 1.3])
    expected = np.stack([by_hand_modal(1 + v * DELTA) for v in t]) * ADVANTAGE / 10
    np.testing.assert_allclose(d.per_token(t), expected, rtol=1e-12)
    np.testing.assert_allclose(d.total(t), expected.sum(axis=1), atol=1e-13)
    first = d.events[0]  # image tokens have the narrower clip, and the second token drifts fastest of them
    assert (first.stratum, first.element, first.channel) == ("image_token", 1, "+")
    assert {e.stratum for e in d.events} == {"text_token", "image_token", "prompt_group"}
    assert all(e.element % 2 == (e.stratum == "image_token") for e in d.events if "token" in e.stratum)


@pytest.mark.parametrize("name", ["fiberpo_crossed", "fiberpo_experts"])
def test_a_quiver_of_single_elements_equals_fiberpo(name: str) -> None:
    """What crosses has one element each, and adds nothing to the batch's drift."""
    t, values = np.array([0.05, 0.4, 1.2]), {"epsilon": 0.04}
    budgets = {"C_batch": {"+": 0.12, "-": 0.05}}
    d = Drift(compiled(name), {**values, **budgets})
    assert not apart(d.op)
    expected = np.stack([closed_form(1 + v * DELTA, 0.04, 0.12, 0.05, 10) for v in t])
    np.testing.assert_allclose(d.at(t).ratio, expected, rtol=1e-12)
    seen = d.at(1.0)
    for stratum in d.op.hierarchy.order:
        still = stratum.name not in ("batch", "token")
        assert (max(np.abs(seen.residual[stratum.name, c]).max() for c in "+-") < 1e-12) == still


@pytest.mark.parametrize("name", ["fiberpo_modal", "fiberpo_crossed", "apc_obj", "dapo"])
def test_regimes_of_many_simulated_batches_equal_those_of_each(name: str) -> None:
    x, advantages = np.random.default_rng(5).normal(0, 0.2, (12, 4)), [1.0, 1.0, -1.0, -1.0]
    together = sample(compiled(name), x, advantages, {}).regimes
    each = [sample(compiled(name), x[i : i + 1], advantages, {}).regimes for i in range(len(x))]
    assert set(together) == set(each[0])
    for level, codes in together.items():
        np.testing.assert_array_equal(codes, np.concatenate([found[level] for found in each]))


def test_each_leaf_has_a_local_map() -> None:
    op = compiled("fiberpo_modal")
    text, image = op.hierarchy.leaves
    assert [regimes.tokens_of(op, leaf) for leaf in (text, image)] == [[0, 2], [1]]
    r = np.array([[1.0, 1.0, 1.0], [1.03, 0.97, 1.0], [1.3, 0.7, 1.0]])
    seen = points(op, r)
    changed = []
    for row in np.log(r):
        s = {1: np.maximum(row, 0).mean(), -1: np.maximum(-row, 0).mean()}
        u = np.abs(np.abs(row) - np.where(row >= 0, s[1], s[-1]))
        changed.append([int((u[[0, 2]] > 0.05).sum()), int(u[1] > 0.02)])
    assert changed == [[0, 0], [0, 1], [2, 1]]
    assert [[int(seen.clipped(leaf)[i]) for leaf in (text, image)] for i in range(3)] == changed


def test_a_gate_that_passes_no_residual_is_mapped_by_ratios() -> None:
    op = compiled("apc_obj")
    (leaf,) = op.hierarchy.leaves
    seen = regimes.look(op, leaf, 1.0, {})
    assert (seen.by_ratio, seen.half) == (True, regimes.ZOOM)
    spent = np.abs(np.exp(seen.worlds.log_ratio) - 1).sum(axis=1)
    far = np.abs(spent - 0.3) > 1e-6  # T·δ
    assert ((seen.clipped(leaf) == 0) == (spent <= 0.3))[far].all()
    assert not regimes.look(compiled("fiberpo"), compiled("fiberpo").hierarchy.leaves[0], 1.0, {}).by_ratio


def test_score_estimators_under_drift_equal_the_closed_form() -> None:
    d, t = Drift(compiled("cispo"), {}), np.array([0.0, 0.4, 1.2])
    r = 1 + t[:, None] * DELTA
    expected = np.minimum(r, 1.28) * ADVANTAGE * np.log(r * OLD) / 10
    np.testing.assert_allclose(d.per_token(t), expected, rtol=1e-12)
    np.testing.assert_allclose(d.total(t), expected.sum(axis=1), atol=1e-13)
    assert (r * OLD < 1).all()
    assert baseline(d.op, {}) is None
    assert "score estimator, π_old = 0.5 for every token" in words(make(d.op, "objective", {}))


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_pages_say_how_tokens_are_assigned_to_leaves() -> None:
    for figure in FIGURES:
        assert "its tokens are text_token, image_token in turn" in words(make(compiled("fiberpo_modal"), figure, {}))


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_more_leaves_than_tokens_are_drawn() -> None:
    leaves = fibration.strata("speech picture word gesture")
    count_all = sum((count(s, over=trajectory) for s in leaves[1:]), start=count(leaves[0], over=trajectory))
    h = Hierarchy(
        name="many",
        fibrations=[Fibration(s, trajectory, kernel=fibration.MarkovKernel(1 / count_all)) for s in leaves],
        gates={
            trajectory: aggregate_gate(budget, rollback=4),
            **{s: fibration.clip_gate(epsilon).per(fibration.mass) for s in leaves},
        },
        decomposition=fibration.signed_log_ratio(scale=fibration.mass),
        objective=token_mean(),
    )
    left_out = "not drawn: gesture, of which 3 tokens dealt out to 4 leaves are none"
    assert left_out in words(make(compiled(h), "regimes", {}))
    assert "a trajectory of 4 tokens" in words(make(compiled(h), "gates", {}))


# ---------------------------------------------------------------- pictures and files


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse pixels: fewer of the same points."""
    for module, name, value in (
        (regimes, "PIXELS", 60),
        (regimes, "PROBE", 40),
        (regimes, "ALONE", 16),
        (objective, "SEARCH", objective.SEARCH[::5]),
    ):
        monkeypatch.setattr(module, name, value)


KINDS = ("fiberpo", "gspo", "ppo", "cispo", "fiberpo_modal", "fiberpo_crossed", "apc_obj")  # one of each kind


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("figure", "name"),
    some(((f, n) for f in FIGURES for n in OF_EVERY_KIND if f == "gates" or n in KINDS), 8, 2),
)
def test_pictures_keep_to_their_page(name: str, figure: str) -> None:
    inside(make(compiled(name), figure, {}))


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plot", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_the_command_writes_every_figure_and_always_the_same(tmp_path: Path) -> None:
    out, again = tmp_path / "new" / "out", tmp_path / "again"
    code, output = invoke(VARIANT, "--paper", "--format", "png,svg", "-o", out)
    assert code == 0, output
    assert invoke(VARIANT, "--paper", "--format", "svg", "-o", again)[0] == 0
    assert invoke(VARIANT, "--paper", "--figure", "gates", "-o", again)[0] == 0
    assert len(list(again.iterdir())) == 4
    names = sorted(f"fiberpo_k_{figure}.{form}" for figure in FIGURES for form in ("png", "svg"))
    assert sorted(p.name for p in out.iterdir()) == names
    for name in names:
        contents = (out / name).read_bytes()
        assert not (again / name).exists() or contents == (again / name).read_bytes()
        assert contents.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert f"{name}: " in output.replace("\n", "")
    text = (out / "fiberpo_k_objective.svg").read_text()
    assert "<dc:date>" not in text


def test_parameters_reach_the_figure(tmp_path: Path) -> None:
    given = ["--param", "k=5", "--param", 'C_trajectory={"+": 0.3, "-": 0.2}', "--figure", "gates", "-f", "svg"]
    assert invoke(VARIANT, *given, "-o", tmp_path)[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["fiberpo_k_gates.svg"]
    picture = make(variant(), "gates", {"k": 5.0, "C_trajectory": {"+": 0.3, "-": 0.2}})
    assert "k = 5" in words(picture)
    ticks = [t.get_text() for child in picture.axes[0].child_axes for t in child.get_xticklabels()]
    assert ticks == ["0.3", "0.36"]


def test_given_parameters_replace_those_of_the_captions() -> None:
    assert "k = 7" in words(make(variant(), "gates", {"k": 7.0}, paper=True))
    assert caption(fibration.load("fiberpo"), "objective") == {"C_trajectory": {"+": 0.12, "-": 0.05}, "epsilon": 0.04}
    assert caption(fibration.load("ppo"), "objective") == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ppo", "--param", "epsilon=0.1"], "'ppo' has no parameter 'epsilon'"),
        (["ppo", "--param", "epsilon_low=2"], "epsilon_low"),
        (["ppo", "--figure", "gate"], "no figure 'gate'"),
        (["ppo", "--figure", "gates", "--format", "pdf"], "no format 'pdf'"),
        (["no_such_spec"], "cannot load 'no_such_spec'"),
    ],
)
def test_a_hierarchy_that_cannot_be_drawn_is_an_error(arguments: list[str], expected: str, tmp_path: Path) -> None:
    code, output = invoke(*arguments, "-o", tmp_path / "out")
    assert code == 2
    assert expected in output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    code, output = invoke("ppo", "-o", tmp_path / "file")
    assert (code, "is a file" in output, "--output" in output) == (2, True, True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BackendError, match="is read-only"):
        draw(fibration.load("ppo"), tmp_path / "out")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("broken", "name", "error"), [(fibration.files.os, "replace", OSError), (objective, "figure", ParameterError)]
)
def test_nothing_is_written_unless_everything_can_be(broken, name, error, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def fails(*_: object) -> None:
        raise error("a test")

    monkeypatch.setattr(broken, name, fails)
    with pytest.raises(error):
        draw(fibration.load("ppo"), tmp_path, ["gates", "objective"])
    assert list(tmp_path.iterdir()) == []


def test_a_hierarchy_that_does_not_verify_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(LawError):
        draw(two(fibration.zero_gate()), tmp_path)


def test_the_variant_of_the_documentation_verifies() -> None:
    found = runpy.run_path(str(VARIANT))["fiberpo_k"]
    assert found.verify().ok
    assert found.parameters["k"].default == 2
