"""`fibration run` on a small batch, and its pictures."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from pictures import inside
from rich.console import Console
from thorough import some
from typer.testing import CliRunner

import fibration
from fibration import Fibration, Hierarchy, strata, uniform
from fibration.cli import findings
from fibration.cli.main import app
from fibration.compiler.interpret import interpret
from fibration.errors import HierarchyIndexError
from fibration.plotting.canvas import DPI, INK, character
from fibration.plotting.gate_curve import sections
from fibration.plotting.hierarchy import colours, hierarchy, net, wrapped
from fibration.plotting.hierarchy import drift as drift_of
from fibration.plotting.recorded_batch import ratios, regimes
from fibration.printing.text import REGIMES
from fibration.rollouts import replay as recorded_module
from fibration.rollouts.file import Labels, Rollouts, save_rollouts
from fibration.rollouts.replay import Gated, build_index, disagreement, gate


def recorded(
    spread: float = 0.1, domains: tuple[str, ...] = ("arithmetic", "logic", "with $ and much too long")
) -> Rollouts:
    """3 prompts per domain with 4 trajectories of 1 to 12 tokens; domains and trajectories drift."""
    g = np.random.default_rng(1)
    groups, samples = 3 * len(domains), 4
    lengths = g.integers(1, 13, groups * samples)
    tokens = int(lengths.sum())
    domain_of_group = np.repeat(np.arange(len(domains)), 3)
    prompt_group = np.repeat(np.arange(groups), samples)
    drift = g.normal(0, 1, len(domains))[domain_of_group[prompt_group]] + g.normal(0, 0.5, groups * samples)
    log_ratio = spread * (np.repeat(drift, lengths) + g.normal(0, 1, tokens))
    old = -2 - g.exponential(1, tokens)
    old -= max(0.0, float((old + log_ratio).max()))  # both are of probabilities
    return Rollouts(
        log_probs=(old + log_ratio).astype(np.float32),
        old_log_probs=old.astype(np.float32),
        token_ids=g.integers(0, 100, tokens).astype(np.int32),
        offsets=np.concatenate([[0], lengths.cumsum()]),
        advantages=g.normal(0, 1, groups * samples).astype(np.float32),
        rewards=g.integers(0, 2, groups * samples).astype(np.float32),
        labels={
            "prompt_group": Labels(prompt_group.astype(np.int32), tuple(f"prompt/{i}" for i in range(groups))),
            "domain": Labels(domain_of_group[prompt_group].astype(np.int32), domains),
        },
        provenance={"model": {"name": "a small model"}},
    )


compiled = functools.cache(fibration.compile)


def gated(name: str | Hierarchy, rollouts: Rollouts | None = None, **parameters: object) -> Gated:
    op = compiled(fibration.load(name) if isinstance(name, str) else name)
    rollouts = rollouts or recorded()
    return gate(op, build_index(op, rollouts), rollouts, parameters)


@pytest.fixture(scope="module")
def batch() -> Gated:
    return gated("fiberpo_domain")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollouts") / "small.safetensors"
    save_rollouts(path, recorded())
    return path


def printed(g: Gated, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    for part in findings.findings(g):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def pictures(g: Gated) -> list[Figure]:
    return [hierarchy(g.op.hierarchy, g), regimes(g), ratios(g)]


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


# ---------------------------------------------------------------- what is printed


@pytest.mark.thorough
def test_run_writes_its_tables_and_pictures(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, output = invoke("fiberpo_domain", "--rollouts", file, "--out", out)
    assert code == 0
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80 or str(out) in max(lines, key=len)
    words = " ".join(output.split())
    assert lines[0] == "fiberpo_domain  verified  11 laws proved, 1 given up, 1 warning"
    assert "! warning reversal some tokens" in words and "fibration audit my_file.py:loss" in words
    sizes = {"domain": "3", "prompt_group": "9", "trajectory": "36", "token": "232"}
    levels = [tuple(line.split()[:3]) for line in lines if line.partition(" ")[0] in sizes]
    assert {(level, channel, sizes[level]) for level in sizes for channel in "+−"} <= {*levels}
    assert "36 trajectories, sampled by a small model; labels: 9 prompt_group, 3 domain" in words
    assert "✓ at most 1e-09" in words
    assert sorted(p.name for p in out.iterdir()) == ["hierarchy.png", "ratios.png", "regimes.png"]
    for picture in out.iterdir():
        header = picture.read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", header[16:])
        assert 800 < width < 3000
        assert 300 < height < 4000


def test_the_tables_are_the_metrics(batch: Gated) -> None:
    output = printed(batch, width=80)
    assert "…" not in output.replace(" … ", "").replace("with $ …o long", "")
    rows = [line.split() for line in output.splitlines()]
    metrics = batch.result.metrics
    row = next(r for r in rows if r[:3] == ["domain", "+", "arithmetic"])
    assert row[3] == "1" and row[4] == row[5] == f"{float(metrics['domain/+/drift[domain=arithmetic]']):.4f}"
    everything = [r for r in rows if r[:1] == ["all"]]
    assert everything[-1][1:4] == ["9", "36", str(batch.rollouts.n_tokens)]
    assert everything[-2][2:4] == [f"{float(metrics[f'token/-/{k}']):.4f}" for k in ("drift", "drift_max")]
    assert f"{float(batch.result.objective):+.6f}" in output
    assert f"{float(metrics['gated_ratio/min']):.3f} … {float(metrics['gated_ratio/max']):.3f}" in output


@pytest.mark.parametrize("name", some(["cispo", "ppo", "gspo_residual", "gspo", "sapo", "truly_ppo"], 6))
def test_a_hierarchy_takes_only_the_labels_that_it_needs(name: str, file: Path, tmp_path: Path) -> None:
    code, output = invoke(name, "--rollouts", file, "--out", tmp_path)
    assert code == 0
    assert "arithmetic" in output
    assert ("Σ μ·stop(𝒢(r))·A·log π" if name == "cispo" else "Σ μ·𝒢(r)·A") in output


@pytest.mark.thorough
def test_parameters_are_passed_on(file: Path, tmp_path: Path) -> None:
    given = ["--param", "epsilon=0.001", "--param", 'C_trajectory={"+": 0.001, "-": 0.002}']
    code, output = invoke("fiberpo", "--rollouts", file, "--out", tmp_path, *given)
    assert code == 0
    tight = gated("fiberpo", epsilon=0.001, C_trajectory={"+": 0.001, "-": 0.002})
    assert f"{float(tight.ratio.min()):.3f} … {float(tight.ratio.max()):.3f}" in output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("epsilon", "cannot be read"),
        ("epsilon_low=high", "cannot be read"),
        ("epsilon=0.1", "no parameter 'epsilon'"),
        ("epsilon_low=-1", "epsilon_low"),
        ("epsilon_low=NaN", "epsilon_low"),
        ('epsilon_low={"+": 1}', "epsilon_low"),
        ('epsilon_low={"+": 0.1, "+": 0.2}', "the key '+' is given twice"),
        ('epsilon_low={"math": {"+": 0.1, "+": 0.2}}', "the key '+' is given twice"),
    ],
)
def test_wrong_parameters_are_refused(given: str, expected: str, file: Path, tmp_path: Path) -> None:
    code, output = invoke("ppo", "--rollouts", file, "--out", tmp_path / "out", "--param", given)
    assert code == 2
    assert expected in output
    assert "error: " in output
    assert not (tmp_path / "out").exists()


def test_a_result_that_differs_from_the_interpreter_fails(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(program, *rest):  # type: ignore[no-untyped-def]
        return {k: v * (1 + 1e-6) for k, v in interpret(program, *rest).items()}

    monkeypatch.setattr(recorded_module, "interpret", wrong)
    code, output = invoke("ppo", "--rollouts", file, "--out", tmp_path / "out")
    assert code == 1
    assert "✗ more than 1e-09" in " ".join(output.split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_run_when_a_spec_is_refused(file: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from fibration import *\n(token,) = strata('token')\n"
        "wrong = Hierarchy(name='wrong', gates={token: zero_gate()},"
        " decomposition=log_ratio(), objective=token_mean())\n"
    )
    code, output = invoke(wrong, "--rollouts", file, "--out", tmp_path / "out")
    assert code == 1
    assert output.startswith("error: gate on token of 'wrong' breaks the law") and "  fix: " in output
    assert "What every gate did" not in output and not (tmp_path / "out").exists()
    assert invoke(tmp_path / "nothing.py", "--rollouts", file)[0] == 2


def test_a_file_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no safetensors")
    for path in (tmp_path / "text", tmp_path / "nothing", tmp_path):
        code, output = invoke("ppo", "--rollouts", path, "--out", tmp_path / "out")
        assert code == 2
        assert str(path) in output
        assert "error: " in output


def test_a_folder_that_cannot_be_written_is_an_error(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = invoke("ppo", "--rollouts", file, "--out", tmp_path / "file")
    assert code == 2
    assert "the pictures cannot go to" in output
    assert "is a file" in output


def crossed(orthogonalise: str | None = None, **more: object) -> Hierarchy:
    """Trajectories over prompt groups and over domains, which recorded rollouts know, and both over the batch."""
    token, trajectory, prompt_group, domain, batch = strata("token trajectory prompt_group domain batch")
    share = fibration.proportional(fibration.count(trajectory))
    gives_up = {} if orthogonalise else {"orthogonality": "prompt groups are nested in domains"}
    return Hierarchy(
        name="crossed",
        fibrations=[
            Fibration(token, trajectory, kernel=uniform()),
            Fibration(trajectory, prompt_group, kernel=uniform()),
            Fibration(trajectory, domain, kernel=uniform()),
            Fibration(prompt_group, batch, kernel=share),
            Fibration(domain, batch, kernel=share),
        ],
        gates={
            s: fibration.clip_gate(0.05).per(fibration.mass) for s in (token, trajectory, prompt_group, domain, batch)
        },
        decomposition=fibration.signed_log_ratio(scale=fibration.mass),
        objective=fibration.trajectory_mean(),
        orthogonalise=orthogonalise,  # type: ignore[arg-type]
        gives_up=gives_up,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.thorough
def test_a_batch_that_lacks_something_is_not_drawn(file: Path, tmp_path: Path) -> None:
    code, output = invoke("fiberpo_modal", "--rollouts", file, "--out", tmp_path / "out")
    assert code == 2
    assert output.startswith("fiberpo_modal  verified  ") and "What every gate did" not in output
    assert not (tmp_path / "out").exists()


def branching() -> Rollouts:
    """With a modality of every trajectory, an expert and a turn of every token, and images among the tokens."""
    plain, g = recorded(), np.random.default_rng(2)
    tokens, rows = plain.n_tokens, plain.n_trajectories
    starts = np.zeros(tokens, bool)
    starts[plain.offsets[:-1]] = True
    turn = np.cumsum(starts | (g.random(tokens) < 0.2)) - 1
    labels = {
        "modality": Labels((np.arange(rows) % 2).astype(np.int32), ("text", "image")),
        "expert": Labels(g.integers(0, 3, tokens).astype(np.int32), ("first", "second", "third")),
        "turn": Labels(turn.astype(np.int32), tuple(map(str, range(turn[-1] + 1)))),
    }
    return dataclasses.replace(plain, labels={**plain.labels, **labels}, masks={"text_token": g.random(tokens) < 0.7})


@pytest.mark.thorough
@pytest.mark.parametrize("name", some(["fiberpo_modal", "fiberpo_turns", "fiberpo_crossed", "fiberpo_experts"], 4))
def test_trees_and_quivers_run(name: str, tmp_path: Path) -> None:
    """The image tokens are those that the one mask leaves."""
    save_rollouts(tmp_path / "batch", branching())
    code, output = invoke(name, "--rollouts", tmp_path / "batch", "--out", tmp_path / "out")
    assert code == 0
    assert "✓ at most 1e-09" in " ".join(output.split())
    assert len(list((tmp_path / "out").iterdir())) == 3
    one_of = {"modal": "image_token +", "crossed": "modality +", "experts": "second", "turns": "turn +"}
    assert one_of[name.removeprefix("fiberpo_")] in output


def test_masks_and_labels_of_rollouts_reach_the_index() -> None:
    rollouts = branching()
    tree = build_index(compiled(fibration.load("fiberpo_modal")), rollouts)
    assert tree.positions_of("text_token").tolist() == np.flatnonzero(rollouts.masks["text_token"]).tolist()
    quiver = build_index(compiled(fibration.load("fiberpo_experts")), rollouts)
    experts = [quiver.labels["expert"][i] for i in quiver.parent("token", "expert").tolist()]
    assert experts == rollouts.labels["expert"].each


def test_a_crossing_that_no_projection_tells_apart_is_refused() -> None:
    with pytest.raises(HierarchyIndexError, match="cannot be separated"):
        gated(crossed("projection"))


@pytest.mark.thorough
def test_a_quiver_of_known_strata_runs() -> None:
    g = gated(crossed())
    metrics, total = g.result.metrics, g.rollouts.n_tokens
    rows = [line.split() for line in printed(g).splitlines()]
    # over both coarsest strata, each level's own rows first and then all of its elements
    here = next(i for i, r in enumerate(rows) if r[:3] == ["token", "+", "prompt_group"])
    assert [r[0] for r in rows[here + 1 : here + 10]] == list(g.rollouts.labels["prompt_group"].names)
    assert rows[here + 10] == ["domain"]
    assert rows[here + 11][0] == "arithmetic"
    assert rows[here + 11][2] == f"{float(metrics['token/+/drift[domain=arithmetic]']):.4f}"
    assert rows[here + 14][:2] == ["all", str(total)]
    assert rows[here + 14][2] == f"{float(metrics['token/+/drift']):.4f}"
    assert [r for r in rows if r[:3] == ["batch", "+", "all"]]
    # every level counts once towards a token's drift
    np.testing.assert_allclose(drift_of(g, "token"), g.log_ratio.numpy(), atol=1e-12)
    means = np.array([g.log_ratio[g.rollouts.offsets[i] : g.rollouts.offsets[i + 1]].mean() for i in range(36)])
    group = np.array([means[g.rollouts.labels["prompt_group"].of == i].mean() for i in range(9)])
    tokens = g.rollouts.of_tokens(g.rollouts.labels["prompt_group"].of)
    np.testing.assert_allclose(drift_of(g, "prompt_group"), group[tokens], atol=1e-12)
    assert max(disagreement(g).values()) < 1e-12
    inside(*pictures(g))


def test_elements_of_several_domains_are_drawn_as_several() -> None:
    who = colours(gated(crossed()))
    assert who.rows("batch") == (*who.names, "several")
    assert who.rows("prompt_group") == who.names
    assert who.of["batch"].tolist() == [3]
    assert who.of["prompt_group"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert who.colour(3) == INK


@pytest.mark.thorough
def test_tokens_outside_a_branch_are_drawn() -> None:
    op, r = compiled(fibration.load("fiberpo_modal")), recorded()
    image = np.arange(r.n_tokens) % 3 == 0
    index = op.index(offsets=r.offsets, image_token=image, prompt_group=r.labels["prompt_group"].each)
    g = gate(op, index, r, {})
    np.testing.assert_array_equal(np.isnan(drift_of(g, "image_token")), ~image)
    both = np.where(image, drift_of(g, "image_token"), drift_of(g, "text_token"))
    np.testing.assert_allclose(both, g.log_ratio.numpy(), atol=1e-12)
    assert max(disagreement(g).values()) < 1e-12
    inside(*pictures(g))
    assert "tokens that the gates on text_token and image_token changed" in " ".join(printed(g).split())


@pytest.mark.parametrize("width", [12, 20, 60])
def test_code_is_broken_after_commas_and_brackets(width: int) -> None:
    code = "aggregate_gate(C_prompt_group, rollback=count(token)).per(mass)"
    broken = wrapped(code, width)
    assert broken.replace("\n", "").replace(" ", "") == code.replace(" ", "")
    assert all(line.endswith(("(", ",", ")")) for line in broken.splitlines())
    assert max(map(len, broken.splitlines())) <= max(width, len("rollback=count("))


# ---------------------------------------------------------------- the numbers


def test_the_comparison_measures_against_what_is_compared(batch: Gated) -> None:
    assert set(disagreement(batch)) == {"ratio", "coefficients", "objective"}
    assert max(disagreement(batch).values()) < 1e-12
    on_policy = gated(batch.op.hierarchy, recorded(spread=0.0))
    assert torch.equal(on_policy.ratio, torch.ones_like(on_policy.ratio))
    assert max(disagreement(on_policy).values()) < 1e-12  # J cancels to almost 0 here


def test_drifts_add_up_to_the_log_ratio(batch: Gated) -> None:
    leaf = "token"
    total = sum(net(batch, s.name)[batch.index.parent(leaf, s.name).numpy()] for s in batch.op.hierarchy.order)
    np.testing.assert_allclose(total, batch.log_ratio.numpy(), atol=1e-12)


def test_gates_are_drawn_at_median_operands(batch: Gated) -> None:
    grid = np.linspace(-1, 1, 2001)
    for channel, budget in (("+", 0.2), ("-", 0.1)):
        (curve,) = sections(batch, "domain", channel)
        assert curve.ends == (-budget, budget) and {*curve.regime(grid)} >= {"passed", "zeroed"}
    (clip,) = sections(batch, "token", "+")
    np.testing.assert_allclose(clip.gated(grid), np.clip(grid, -0.05, 0.05))
    up, down = sections(gated("grpo"), "token", "")
    assert (up.label, up.ends, down.label, down.ends) == ("A > 0", (0.2,), "A < 0", (-0.2,))
    (zero,) = sections(gated("gspo"), "token", "")
    assert float(gated(smooth()).result.metrics["token/attenuated"]) > 0.9
    assert not zero.gated(grid).any() and zero.ends == () and zero.regime([-1, 1]) == ["zeroed"] * 2


def test_every_regime_of_the_metrics_has_a_colour() -> None:
    from fibration.compiler.diagnostics import REGIMES as MEASURED

    assert tuple(REGIMES) == MEASURED
    assert len({r.colour for r in REGIMES.values()}) == len(REGIMES)


# ---------------------------------------------------------------- the pictures


def smooth() -> Hierarchy:
    temperature = fibration.Parameter("temperature", default=0.5)
    gate = fibration.Gate(temperature * fibration.tanh(fibration.residual / temperature))
    given = {"decomposition": fibration.log_ratio(), "objective": fibration.token_mean()}
    return Hierarchy(name="smooth", gates={strata("token")[0]: gate}, **given)


MADE = {
    "usual": lambda: gated("fiberpo_domain"),
    "without a budget": lambda: gated(smooth()),
    "on policy": lambda: gated("fiberpo", recorded(spread=0.0)),
    "many and far": lambda: gated("gspo", recorded(spread=3.0, domains=tuple(f"domain {i}" for i in range(12)))),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(MADE, 4))
def test_pictures_keep_to_their_page(name: str) -> None:
    inside(*pictures(MADE[name]()))


def test_ratios_below_0_have_no_logarithm() -> None:
    g = gated("truly_ppo", recorded(spread=3.0), alpha=20.0)
    below = int((g.ratio <= 0).sum())
    assert below > 0
    picture = ratios(g)
    assert any(f"{below} gated ratios are not above 0" in t.get_text() for axes in picture.axes for t in axes.texts)
    inside(picture)


def test_a_tree_without_a_batch_is_drawn() -> None:
    token, image, trajectory = strata("token image trajectory")
    tree = Hierarchy(
        name="tree",
        fibrations=[Fibration(token, trajectory, kernel=uniform()), Fibration(image, trajectory, kernel=uniform())],
        gates={s: fibration.identity_gate() for s in (token, image, trajectory)},
        decomposition=fibration.log_ratio(),
        objective=fibration.token_mean(),
    )
    inside(hierarchy(tree), hierarchy(fibration.load("ppo")))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["fiberpo_modal", "fiberpo_crossed", "fiberpo_domain", "fiberpo_experts"])
def test_kernels_hide_no_arrowhead_and_gates_keep_to_their_boxes(name: str) -> None:
    figure = hierarchy(fibration.load(name))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    boxes = [p.get_window_extent() for p in axes.patches if isinstance(p, FancyBboxPatch)]
    extents = [t.get_window_extent() for t in axes.texts]
    inner = [t for t in extents if any(b.contains(t.x0, (t.y0 + t.y1) / 2) for b in boxes)]
    labels = [t for t in extents if t not in inner]
    assert len(labels) == len(fibration.load(name).fibrations)
    assert all(
        any(b.x0 < t.x0 and t.x1 < b.x1 and b.y0 < t.y0 and t.y1 < b.y1 for b in boxes) for t in inner if t.width
    )
    assert not any(a.overlaps(b) for a, b in itertools.combinations(labels, 2))
    for arrow in (p for p in axes.patches if isinstance(p, FancyArrowPatch)):
        start, tip = axes.transData.transform(arrow._posA_posB)  # type: ignore[attr-defined]
        head = tip + (start - tip) / np.linalg.norm(start - tip) * np.arange(25)[:, None]  # and a piece of the shaft
        assert not any(t.contains(x, y) for t in labels for x, y in head)
        assert 0 <= axes.transAxes.inverted().transform([tip])[0, 0] <= 1
    for t in labels:
        assert axes.bbox.x0 <= t.x0 < t.x1 <= axes.bbox.x1


@pytest.mark.parametrize("size", [7.5, 8.5])
def test_a_character_is_no_wider_than_assumed(size: float) -> None:
    figure = Figure(figsize=(13, 1), dpi=DPI)
    drawn = figure.text(0, 0.5, "m" * 100, family="monospace", fontsize=size)
    FigureCanvasAgg(figure).draw()
    width = drawn.get_window_extent().width / DPI / 100
    assert width <= character(size) <= 1.1 * width
