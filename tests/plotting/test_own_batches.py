"""A user's own batches: strata of any names, many parts or none, no advantages; and `fibration.run`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from pictures import inside
from support import operator

import fibration
from fibration import Fibration, Hierarchy, Rollouts, count, uniform
from fibration.errors import FibrationError
from fibration.plotting.hierarchy import apart, colours, hierarchy
from fibration.plotting.recorded_batch import ratios, regimes, weights
from fibration.rollouts import replay
from fibration.rollouts.replay import MOST, Gated, build_index, disagreement, gate, parts

pytestmark = pytest.mark.usefixtures("quick_c")
ROWS, LENGTH = 24, 6
rng = np.random.default_rng(5)
OLD = -rng.exponential(1, (ROWS, LENGTH)) - 3
NEW = OLD + 0.15 * rng.normal(size=(ROWS, 1)) + 0.15 * rng.normal(size=OLD.shape)
MASK = np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (ROWS, 1))
ADVANTAGES = rng.normal(size=ROWS)


def batch(advantages: Any = ADVANTAGES, **labels: Any) -> Rollouts:
    return Rollouts.from_batch(NEW, OLD, advantages, mask=MASK, **labels)


@functools.cache
def own() -> Hierarchy:
    """Tokens in samples, by other names, and nothing coarser."""
    step, sample = fibration.strata("step sample")
    mine = 1 / count(step, over=sample)
    return Hierarchy(
        name="own",
        rows=sample,
        fibrations=[Fibration(step, sample, kernel=uniform())],
        gates={sample: fibration.aggregate_gate(0.1, rollback=count(step)), step: fibration.clip_gate(0.1).per(mine)},
        decomposition=fibration.signed_log_ratio(scale=mine),
        objective=fibration.trajectory_mean(),
        gives_up={"inward": "as published"},
    )


def gated(h: Hierarchy, r: Rollouts, by: str | None = None) -> Gated:
    op = operator(h)
    return gate(op, build_index(op, r), r, {}, by)


def drawn(figure: Figure) -> list[Any]:
    """Every text that is shown, with where; nothing reaches over the edge of the page."""
    inside(figure)
    return [(t.get_text(), t.get_window_extent()) for axes in figure.axes for t in axes.texts]


# ---------------------------------------------------------------- fibration.run


@pytest.mark.thorough
def test_run_accepts_a_batch_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fibration.run(own(), batch(), tmp_path / "pictures")
    words = " ".join(capsys.readouterr().out.split())
    assert f"in {ROWS} trajectories; labels: none" in words
    assert f"{float(found.result.objective):+.6f}" in words and "✓ at most 1e-09" in words
    assert "How far the batch has moved" in words and "tokens |log r|" in words
    assert {p.name for p in (tmp_path / "pictures").iterdir()} == {"hierarchy.png", "regimes.png", "ratios.png"}
    batch().save(tmp_path / "batch")
    again = fibration.run(own(), tmp_path / "batch")
    assert again.result.values.equal(found.result.values) and len(list(tmp_path.iterdir())) == 2


@pytest.mark.thorough
def test_a_result_that_differs_from_the_interpreter_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replay.interpret
    monkeypatch.setattr(replay, "interpret", lambda *a: {k: v * 1.0001 for k, v in real(*a).items()})
    with pytest.raises(fibration.BackendError, match="'own' is not what its formulas say"):
        fibration.run(own(), batch())


# ---------------------------------------------------------------- without advantages


@pytest.mark.thorough
def test_a_batch_without_advantages_shows_all_other_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    without, known = gated(own(), batch(None, rewards=ADVANTAGES)), gated(own(), batch())
    assert without.advantages is None and without.ratio.equal(known.ratio)
    shared = [k for k in known.result.metrics if "/" in k and not k.endswith("/pull")]
    assert shared and all(float(without.result.metrics[k]) == float(known.result.metrics[k]) for k in shared)
    assert list(disagreement(without)) == ["ratio"] and set(disagreement(known)) > {"ratio"}
    fibration.run(own(), without.rollouts, tmp_path)
    words = " ".join(capsys.readouterr().out.split())
    assert "objective J · " in words and "not recorded, so the objective is not known" in words
    assert "tokens reward |log r|" in words
    assert len(list(tmp_path.iterdir())) == 3


# ---------------------------------------------------------------- attributes


def test_attributes_are_of_tokens_rows_and_labels() -> None:
    token, trajectory, domain = fibration.strata("token trajectory domain")
    made = fibration.signed_log_ratio(scale=1 / count(token, over=trajectory))

    def weighed(on: Any) -> Hierarchy:
        weight = fibration.Attribute("weight", on=on)
        gates = {s: fibration.identity_gate() for s in (token, trajectory, domain)}
        return Hierarchy(
            name=f"by_{on}",
            fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, domain, uniform())],
            gates={**gates, on: fibration.Gate(fibration.where(weight > 1.5, 0, fibration.residual))},
            decomposition=made,
            objective=fibration.trajectory_mean(),
            gives_up={law: "a test" for law in ("identity", "first_order", "gradient", "inward")},
        )

    labels = ["a"] * 10 + ["b"] * 14
    per_row = np.where(np.arange(ROWS) < 10, 1.0, 2.0)
    per_token = rng.uniform(1, 2, OLD.shape)
    of_token = gated(weighed(token), batch(domain=labels, attributes={"weight": per_token}))
    zeroed = of_token.levels.gated["token", "+"].numpy() == 0
    assert zeroed[per_token[MASK] > 1.5].all() and not zeroed.all()
    for on in (trajectory, domain):
        found = gated(weighed(on), batch(domain=labels, attributes={"weight": per_row}))
        after = found.levels.gated[on.name, "+"].numpy()
        above = per_row > 1.5 if on is trajectory else np.array([False, True])
        np.testing.assert_array_equal(after == 0, above | (found.levels.residual[on.name, "+"].numpy() == 0))
        with pytest.raises(fibration.RolloutsError, match=rf"attribute 'weight' of {on} .* has two values"):
            gated(weighed(on), batch(domain=labels, attributes={"weight": per_token}))


# ---------------------------------------------------------------- parts


def test_a_batch_is_drawn_in_parts_by_one_of_its_strata() -> None:
    modality, turns = ["text", "image"] * 12, np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 3
    assert parts(batch(), own()).names == ()
    assert parts(batch(modality=modality), own()).stratum == "modality"
    both = batch(user=list(range(ROWS)), prompt_group=[i // 4 for i in range(ROWS)], turn=turns)
    assert parts(both, own()).stratum == "user"
    assert parts(both, fibration.load("fiberpo_domain")).stratum == "prompt_group"
    assert parts(batch(modality=modality, domain=modality[::-1]), own()).stratum == "domain"
    by = parts(both, own(), by="turn")
    np.testing.assert_array_equal(np.array(by.names).astype(int)[by.of_token], turns[MASK])
    downwards = parts(batch(domain=[9 - i // 4 if i else None for i in range(ROWS)]), own())
    assert downwards.names == ("4", "5", "6", "7", "8", "9", "no domain")
    assert downwards.of_token[[0, MASK[0].sum(), -1]].tolist() == [6, 5, 0]
    some = parts(batch(domain=["a", None] * 12), own())
    assert some.names == ("a", "no domain") and set(some.of_token) == {0, 1}


def test_the_largest_of_many_parts_are_named() -> None:
    each = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) // 2
    found = parts(batch(domain=each), own())
    assert len(found.names) == MOST and found.names[-1].endswith("others")
    sizes = np.bincount(each[MASK])
    named = [int(name) for name in found.names[:-1]]
    assert sizes[named].min() >= np.delete(sizes, named).max()
    for name, size in zip(found.names, np.bincount(found.of_token), strict=True):
        assert size == (sizes.sum() - sizes[named].sum() if name.endswith("others") else sizes[int(name)])


@pytest.mark.sampled
@pytest.mark.parametrize("many", [3, 6, 24])
def test_every_part_is_named_above_its_strip(many: int) -> None:
    """Narrow strips too: beside each other, or upright, and no name over another."""
    wide = [min(i, many - 1) for i in range(ROWS)]  # one token-rich part, the others are narrow
    names = [f"a data set of number {i}" for i in wide]
    g = gated(own(), batch(domain=names))
    texts = drawn(hierarchy(g.op.hierarchy, g))
    shown = [(text, box) for text, box in texts if text.startswith("a data")]
    assert sorted(text for text, _ in shown) == sorted(colours(g).names) and len(shown) == many
    assert not any(a.overlaps(b) for (_, a), (_, b) in itertools.combinations(shown, 2))
    assert not any(a.overlaps(box) for _, a in shown for text, box in texts if text not in dict(shown) and text)


@given(st.data())
def test_names_stay_apart_and_near_their_strips(data: st.DataObject) -> None:
    widths = np.array(data.draw(st.lists(st.floats(0.01, 1), max_size=12)))
    widths = widths / max(widths.sum() * data.draw(st.floats(1, 3)), 1e-9)
    wanted = np.sort(data.draw(st.lists(st.floats(0, 1), min_size=len(widths), max_size=len(widths))))
    found = apart(wanted, widths)
    low, high = found - widths / 2, found + widths / 2
    assert (low >= -1e-9).all() and (high <= 1 + 1e-9).all() and (low[1:] >= high[:-1] - 1e-9).all()
    free = (wanted - widths / 2 >= 0) & (wanted + widths / 2 <= 1)
    if free.all() and ((wanted - widths / 2)[1:] >= (wanted + widths / 2)[:-1]).all():
        np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.thorough
def test_pictures_have_many_parts_or_none() -> None:
    names = [f"a data set of number {i}" for i in range(ROWS)]
    h = own().replace(objective=fibration.trajectory_mean().weigh(1 + fibration.absolute(fibration.token_log_ratio)))
    for r in (batch(domain=names), batch()):
        g = gated(h, r)
        inside(regimes(g), ratios(g), weights(g))
    legend = next(axes.get_legend() for axes in ratios(gated(h, batch(domain=names))).axes[3:] if axes.get_legend())
    said = [text.get_text() for text in legend.get_texts()]
    assert len(said) == 7 and said[-1] == "18 others"
    assert len({line.get_color() for line in legend.get_lines()}) == 7


def test_every_error_is_a_fibration_error() -> None:
    for wrong in ({"by": "nothing"}, {"parameters": {"nothing": 1}}, {"out": Path(__file__)}):
        with pytest.raises(FibrationError):
            fibration.run(own(), dataclasses.replace(batch()), **wrong)
