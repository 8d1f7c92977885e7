"""`fibration run` and `fibration plot` of hierarchies that read further policies, statistics, weights and conditions."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pictures import words
from support import operator
from typer.testing import CliRunner

import fibration
from fibration import absolute, load_rollouts, log_prob, token_log_ratio
from fibration.cli.main import app
from fibration.plotting.figures import gates, make, objective, regimes, undrawn
from fibration.plotting.figures.objective import Drift, baseline
from fibration.plotting.figures.sample import apart
from fibration.plotting.recorded_batch import weights
from fibration.rollouts import save_rollouts
from fibration.rollouts.replay import Gated, build_index, gate
from fibration.runtime.weights import effective

current, old, rollout = fibration.policies("current old rollout")
CEILING, FAR = 1.04, 0.05


@functools.cache
def of_three() -> fibration.Hierarchy:
    """Truncated weights, one more that reads the whole batch, and trajectories that are dropped by their mean."""
    apart_by = log_prob(old) - log_prob(rollout)
    drift = fibration.mean(absolute(token_log_ratio), over=fibration.Stratum("batch"))
    near = absolute(fibration.mean(apart_by, over=fibration.Stratum("trajectory"))) <= FAR
    made = (
        fibration.trajectory_mean()
        .weigh(fibration.minimum(fibration.exp(apart_by), CEILING))
        .weigh(1 + drift)
        .keep(near, normaliser="kept")
    )
    h = fibration.load("fiberpo_domain")
    ahead = (f"causal of weight {1 + drift}", f"causal of condition {near}")
    return h.replace(name="of_three", objective=made, gives_up={**h.gives_up, **dict.fromkeys(ahead, "of whole rows")})


@functools.cache
def recorded() -> Gated:
    op, batch = operator(of_three()), load_rollouts(engine=True)
    return gate(op, build_index(op, batch), batch, {})


def expected() -> tuple[np.ndarray, np.ndarray]:
    """Weights and what is kept of the recorded batch, from its columns."""
    b = recorded().rollouts
    x = b.old_log_probs.astype(float) - b.policies["rollout"]
    drift = np.abs(b.log_probs.astype(float) - b.old_log_probs).mean()
    means = np.bincount(b.rows, x) / np.diff(b.offsets)
    return np.minimum(np.exp(x), CEILING) * (1 + drift), np.abs(means[b.rows]) <= FAR


def test_recorded_weights_equal_the_formulas() -> None:
    w, kept = expected()
    found = recorded().weights
    assert 0 < (~kept).sum() < len(kept) and (w[kept] < w.max()).any()
    np.testing.assert_array_equal(found.kept, kept)
    np.testing.assert_allclose(found.product, np.where(kept, w, 0), rtol=1e-12)
    assert len(found.each) == 2


def test_the_recorded_objective_is_that_of_its_terms() -> None:
    """`J = Σ μ·w·𝒢·A`, where `μ` counts kept tokens, and the trajectories that have one."""
    g, (w, kept) = recorded(), expected()
    rows, advantages = g.rollouts.rows, g.rollouts.advantages.astype(float)
    count = np.bincount(rows, kept)
    mu = kept / (np.count_nonzero(count) * np.maximum(count, 1)[rows])
    terms = mu * w * g.ratio.numpy() * advantages[rows]
    assert float(g.result.objective) == pytest.approx(terms.sum(), rel=1e-11)
    assert abs(g.result.values.numpy())[~kept].max() == 0


def test_the_effective_share_of_weights_equals_its_formula() -> None:
    assert effective(np.full(7, 0.3)) == pytest.approx(1.0)
    assert effective(np.array([1.0, 0, 0, 0])) == 0.25
    assert effective(np.zeros(3)) == 0.0


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "of_three.json"
    x = log_prob(current) - log_prob(rollout)
    h = of_three().replace(penalties={"near": fibration.Penalty(x * x / 2, objective=fibration.token_mean())})
    path.write_text(h.model_dump_json())
    return path


@pytest.mark.thorough
def test_a_run_uses_the_batch_that_has_the_policy(spec: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(spec), "--all", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    w, kept = expected()
    assert "(an engine's, in bfloat16): 949 tokens in 128 trajectories, sampled by SmolLM2" in text
    row = re.search(r"all 949 (\d+)% ([\d.]+) ([\d.]+) ([\d.]+) (\d+)% ([\d.]+)", text)
    assert row is not None
    some = w[kept]
    numbers = [100 * kept.mean(), some.min(), some.mean(), some.max(), 100 * effective(some)]
    assert [float(v) for v in row.groups()[:-1]] == pytest.approx(numbers, abs=0.51, rel=1e-3)
    b = load_rollouts(engine=True)
    d = b.old_log_probs.astype(float) - b.policies["rollout"]
    (kl,) = re.findall(r"to rollout ([\d.]+)", text)
    assert float(kl) == pytest.approx((np.expm1(d) - d).mean(), abs=6e-6)
    (near,) = re.findall(r"penalty near ([\d.]+)", text)
    x = b.log_probs.astype(float) - b.policies["rollout"]
    assert float(near) == pytest.approx((x * x).mean() / 2, abs=6e-7)
    assert "A less penalties, with μ of trajectory_mean()" in text and "μ counts kept tokens" in text
    assert {p.name for p in tmp_path.iterdir()} == {"hierarchy.png", "regimes.png", "ratios.png", "weights.png"}


def test_a_file_without_the_policy_is_refused(spec: Path, tmp_path: Path) -> None:
    save_rollouts(tmp_path / "two", load_rollouts())
    result = CliRunner().invoke(app, ["run", str(spec), "--rollouts", str(tmp_path / "two"), "--out", str(tmp_path)])
    assert result.exit_code == 2
    for said in ("the policy 'rollout', which 'of_three' reads", "policies={'rollout': log_probs}"):
        assert said in result.output
    assert not list(tmp_path.glob("*.png"))


def test_a_loss_of_two_policies_takes_the_batch_of_two() -> None:
    op, batch = operator(fibration.load("grpo")), load_rollouts()
    found = gate(op, build_index(op, batch), batch, {})
    assert not found.policies and found.weights.kept.all() and found.weights.each == ()


def test_the_picture_of_weights_shows_every_token() -> None:
    page = weights(recorded())
    FigureCanvasAgg(page).draw()
    tokens, domains = page.axes
    w, kept = expected()
    drawn = np.sort(np.concatenate([c.get_offsets()[:, 1] for c in tokens.collections]))
    np.testing.assert_allclose(drawn, np.sort(np.where(kept, w, 0)), rtol=1e-9)
    assert any(f"{(~kept).sum()} of 949 dropped" in t.get_text() for t in tokens.get_legend().get_texts())
    assert max(b.get_width() for b in domains.patches) == pytest.approx(max(w[kept].mean(), 1), rel=0.1)


# ---------------------------------------------------------------- figures


def inward(name: str) -> fibration.Hierarchy:
    h = fibration.load(name)
    return h.replace(name="pulled", gates={s: g.inward() for s, g in h.gates.items()}, gives_up={})


def test_gates_that_read_a_pull_are_drawn_for_both_signs() -> None:
    op = operator(inward("fiberpo_domain"))
    seen = gates.reference(op, {})
    for channel, sign in (("+", 1), ("-", -1)):
        for stratum, pull in (("domain", "Σ μ·A·r"), ("trajectory", "A")):
            found = {s.label: s for s in gates.cases(seen, stratum, channel)}
            assert list(found) == [f"{pull} > 0", f"{pull} < 0"]
            (out,), (back,) = (found[f"{pull} {w} 0"].gated(10.0) for w in (("><"[sign < 0]), ("<>"[sign < 0])))
            assert out == 0 and back == 10.0  # pushed outward it is zeroed, pulled back it passes


def test_the_pull_decides_the_regimes_of_coarser_strata() -> None:
    op = operator(inward("fiberpo_domain"))
    domain = next(s for s in op.hierarchy.order if s.name == "prompt_group")
    assert regimes._signs(op, domain.name) == (1.0, -1.0)
    assert regimes._signs(operator(fibration.load("fiberpo_domain")), domain.name) == (0.0,)


def test_the_objective_under_drift_includes_weights_and_conditions() -> None:
    """What tokens add up to is J, with weights that change along the drift and tokens that are dropped on the way."""
    kept = absolute(token_log_ratio) <= 0.15
    made = fibration.trajectory_mean().weigh(1 + absolute(token_log_ratio)).keep(kept)
    h = fibration.load("grpo").replace(name="mine", objective=made, gives_up={})
    drift = Drift(operator(h), {})
    t = np.array([0.1, 0.3, 0.5, 0.9])
    np.testing.assert_allclose(drift.per_token(t).sum(axis=1), drift.total(t), rtol=1e-9)
    x = np.log1p(0.5 * objective.DELTA)
    np.testing.assert_allclose(drift.at(0.5).weight[0], np.where(np.abs(x) <= 0.15, 1 + np.abs(x), 0), rtol=1e-12)
    assert baseline(operator(h), {}) is not None


def test_weights_over_the_whole_batch_are_simulated_one_batch_at_a_time() -> None:
    op = operator(of_three())
    assert not apart(op) and apart(operator(fibration.load("fiberpo_domain")))
    drift = Drift(op, {})
    one, both = drift.at(0.7), drift.at([0.2, 0.7])
    assert len(both.batches) == 2
    np.testing.assert_allclose(both.weight[1:], one.weight)
    assert drift.counts_kept and baseline(op, {}) is None  # μ is another at every drift


@pytest.mark.thorough
def test_a_page_names_the_parts_that_it_does_not_draw() -> None:
    page = make(operator(of_three()), "gates", {})
    FigureCanvasAgg(page).draw()
    assert "every token ½ under old and rollout" in words(page)
    assert undrawn(of_three()) in words(page) and "2 weigh(...) and 1 keep(...)" in words(page)
    assert undrawn(fibration.load("grpo")) == ""
    (text,) = [t for t in page.texts if "½" in t.get_text()]
    assert text.get_window_extent().x1 <= page.bbox.x1
