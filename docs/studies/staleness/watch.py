"""Runs to look at: what a training log has of every step, and where it shows an illness before the reward does.

`python docs/studies/staleness/watch.py train` trains them; `draw` for `train` draws them and prints when each sign
showed, and `score test` how well early signs tell runs apart that end worse than they began.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from arms import LEVELS, Arm
from measures import EVERY, QUESTIONS, Series, rounded
from model import Shape
from plan import LARGE_RATE, PARTS
from rl import CONDITIONS, Learner, Run, Sampler
from run import VERSIONS, base
from stats import of_mean
from store import HERE, RESULTS, command, lines
from tables import NONE, table
from tasks import DOMAINS

from fibration.files import write_file

if TYPE_CHECKING:  # drawing takes a while to load, and signs are read without it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WATCHED, FIGURES = "watched", HERE / "figures"  # in a folder of results, and where pictures are
OF_STEP = ("reward", "grad_norm", "amplification", "against", "outward")
REGIMES = {"passed": "#DDDDDD", "rolled_back": "#E69F00", "limited": "#56B4E9", "zeroed": "#333333"}
COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SMOOTH = 10  # steps, of which lines show the mean, and marks are read from it
KL, RATIO, CLIPPED, ZEROED, FALL = 0.1, 20, 0.3, 0.25, 0.1  # what counts as a sign
MOVED, FAR, LAST = "mean of r - 1 - log r", 0.02, 3  # and looks at the end that say how a run ended


@dataclass(frozen=True)
class Patient:
    """A run to look at, and what it is an example of."""

    title: str
    run: Run


def patient(title: str, arm: str, lr: float, trust: float) -> Patient:
    return Patient(title, Run("watched", arm, "unequal", 20, lr, trust))


PATIENTS = {
    "healthy": patient("healthy", "inward_domain", 1.5e-4, 1.0),
    "pulled_out": patient("sick: published gates under large steps", "fiberpo_domain", LARGE_RATE, 1.0),
    "strangled": patient("sick: published gates with tiny budgets", "fiberpo_domain", 1.5e-4, 0.02),
    "unbounded": patient("sick: a clip that hardly binds, large steps", "grpo", LARGE_RATE, 4.0),
    "silent": patient("sick: capped ratios, large steps", "cispo", LARGE_RATE, 1.0),
}


class Recorder:
    """An operator that keeps the metrics of each step as plain floats."""

    def __init__(self, operator: Any) -> None:
        self.operator, self.hierarchy, self.index = operator, operator.hierarchy, operator.index
        self.steps: list[dict[str, float]] = []

    def coefficients(self, *given: Any, **named: Any) -> Any:
        found = self.operator.coefficients(*given, **named)
        if named.get("metrics") != []:
            self.steps.append(found.scalars())
        return found


@dataclass(frozen=True)
class Watched(Arm):
    recorder: Recorder | None = None

    @property
    def operator(self) -> Any:
        return self.recorder


def kept(name: str) -> bool:
    """What is written: of a level the shares and drifts of both channels, nothing of single elements."""
    return not name.endswith(("]", "/drift_max", "/attenuated"))


def watch(runs: Sequence[Run], results: Path = RESULTS) -> list[dict]:
    """Runs as `rl.learn` trains them: of each its log, all steps per metric, and looks at fixed questions."""
    (steps,), shape = {run.steps for run in runs}, Shape()
    learner = Learner(shape, runs, torch.stack([base(shape, run.seed, results) for run in runs]))
    recorders = [Recorder(arm.operator) for arm in learner.arms]
    learner.arms = [Watched(**vars(arm), recorder=r) for arm, r in zip(learner.arms, recorders, strict=True)]
    sampler, series, measured = Sampler(shape, runs), Series(shape, len(runs), learner.current), []
    sampler.begin(learner.current)
    for number in range(steps):
        series.look(number, learner.current)
        sampler.go_on(learner.current, number)
        measured.append(learner.step(number, sampler.waiting.pop(number)))
        series.add(measured[-1])
    series.look(steps, learner.current)
    found = []
    for run, recorder, looks, own in zip(runs, recorders, series.results(), zip(*measured, strict=True), strict=True):
        log = [{**seen, **{name: at[name] for name in OF_STEP}} for seen, at in zip(recorder.steps, own, strict=True)]
        columns = {name: rounded([step[name] for step in log]) for name in log[-1] if kept(name)}
        looked = {name: looks[name] for name in ("right", "entropy")}
        found.append({"run": asdict(run), "log": columns, "looks": looked, "versions": VERSIONS})
    return found


def file(name: str, results: Path) -> Path:
    return results / WATCHED / f"{name}.json"


def train(results: Path) -> None:
    torch.set_num_threads(1)
    runs = [patient.run for patient in PATIENTS.values()]
    for name, found in zip(PATIENTS, watch(runs, results), strict=True):
        write_file(file(name, results), json.dumps(found, separators=(",", ":")) + "\n")


def smooth(column: Sequence[float] | np.ndarray) -> np.ndarray:
    """Means of the last SMOOTH steps, of fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(column)])
    at = np.arange(1, len(total))
    since = np.maximum(at - SMOOTH, 0)
    return (total[at] - total[since]) / (at - since)


def levels(log: Mapping[str, list]) -> list[str]:
    """Strata with a gate, the coarsest first."""
    return [level.name for level in reversed(LEVELS) if any(name.startswith(f"{level.name}/") for name in log)]


def of_level(log: Mapping[str, list], level: str, word: str) -> np.ndarray:
    """A regime's share or a drift, the mean of the channels."""
    return np.mean([column for name, column in log.items() if re.fullmatch(rf"{level}(/[+-])?/{word}", name)], 0)


def signs(found: Mapping) -> dict[str, int | None]:
    """What shows in a log, and from which step on; what is of steps, in means of the last SMOOTH of them."""
    log, right = found["log"], np.mean(found["looks"]["right"], 1) / QUESTIONS
    zeroed = [smooth(of_level(log, level, "zeroed")) for level in levels(log) if level != "token"]
    reward = smooth(np.mean(log["reward"], 1))
    shown = {
        f"token/clipped > {CLIPPED}": smooth(log["token/clipped"]) > CLIPPED,
        f"zeroed > {ZEROED} of a coarser level": np.max([*zeroed, np.zeros_like(reward)], 0) > ZEROED,
        f"kl > {KL}": smooth(log["kl"]) > KL,
        f"gated_ratio/max > {RATIO}": smooth(log["gated_ratio/max"]) > RATIO,
        f"reward {FALL} below its first {SMOOTH} steps'": reward <= reward[SMOOTH - 1] - FALL,
    }
    at = {name: int(when.argmax()) + 1 if when.any() else None for name, when in shown.items()}
    fell = right <= right[0] - FALL
    return {**at, f"held-out accuracy {FALL} below its start": int(fell.argmax()) * EVERY if fell.any() else None}


def mark(axes: Axes, step: int | None, colour: str = "black") -> None:
    if step is not None:
        axes.axvline(step, color=colour, lw=0.8, ls="--")
        place = axes.get_xaxis_transform()
        axes.text(step, 1.01, str(step), color=colour, fontsize=7, ha="center", va="bottom", transform=place)


def draw(title: str, found: Mapping) -> Figure:
    """Above what is learnt and how far the policy has moved, below what each level's gate does."""
    from matplotlib.figure import Figure

    run, log, right = found["run"], found["log"], np.array(found["looks"]["right"]) / QUESTIONS
    steps, looks = np.arange(1, run["steps"] + 1), np.arange(len(right)) * EVERY
    clipped, zeroed, kl, ratio, reward, accuracy = signs(found).values()
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    figure.suptitle(f"{title}   ({run['arm']}, learning rate {run['lr']:g}, trust × {run['trust']:g})", fontsize=11)
    grid, chain = figure.add_gridspec(2, 4), levels(log)
    titles = ("reward of the samples", "held-out accuracy", "kl, clipped", "ratios", "drift, nats")
    places = (*(grid[0, k] for k in range(4)), grid[1, 3])
    upper = [figure.add_subplot(place, title=title) for place, title in zip(places, titles, strict=True)]
    rewards, answers, far, ratios, drifts = upper
    for k, (domain, colour) in enumerate(zip(DOMAINS, COLOURS, strict=True)):
        rewards.plot(steps, smooth(np.array(log["reward"])[:, k]), color=colour, lw=1, label=domain)
        answers.plot(looks, right[:, k], color=colour, lw=1)
    rewards.plot(steps, smooth(np.mean(log["reward"], 1)), color="black", lw=2, label="mean")
    answers.plot(looks, right.mean(1), color="black", lw=2)
    far.plot(steps, smooth(log["kl"]), color=COLOURS[0], label="kl, nats")
    far.plot(steps, smooth(log["token/clipped"]), color=COLOURS[1], label="token/clipped")
    ratios.semilogy(steps, smooth(log["amplification"]), color=COLOURS[1], lw=3, alpha=0.5, label="max |c| / (μ |A|)")
    ratios.semilogy(steps, smooth(log["gated_ratio/max"]), color=COLOURS[0], lw=1, label="gated_ratio/max")
    inner = grid[1, :3].subgridspec(1, len(LEVELS))
    for k, (level, colour) in enumerate(zip(reversed(chain), COLOURS, strict=False)):
        drifts.semilogy(steps, smooth(of_level(log, level, "drift")), color=colour, label=level.replace("_", " "))
        axes = figure.add_subplot(inner[0, -1 - k], title=f"{level.replace('_', ' ')}, share")
        shares = [smooth(of_level(log, level, word)) for word in REGIMES]
        axes.stackplot(steps, shares, colors=REGIMES.values(), labels=[word.replace("_", " ") for word in REGIMES])
        if k == 0:
            axes.legend(fontsize=6, loc="lower right")
    for axes in figure.axes:
        axes.set_title(axes.get_title(), fontsize=9, pad=11)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if axes not in (ratios, drifts):
            axes.set_ylim(0, 1)
    ratios.set_ylim(0.5, 300)
    drifts.set_ylim(3e-3, 3)
    for axes in (rewards, far, ratios, drifts):
        axes.legend(fontsize=6, frameon=False, loc="upper right", ncol=2 if axes in (rewards, drifts) else 1)
    mark(rewards, reward)
    mark(answers, accuracy)
    mark(far, clipped, COLOURS[1])
    mark(far, kl, COLOURS[0])
    mark(ratios, ratio, COLOURS[0])
    if len(chain) > 1:
        mark(figure.axes[-1], zeroed)
    return figure


def png(figure: Figure) -> bytes:
    """In 128 colours, which is a third of the bytes."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png", dpi=100, metadata={"Software": None})
    Image.open(whole).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def watched(results: Path = RESULTS) -> dict[str, dict]:
    """What `train` has written."""
    lack = [name for name in PATIENTS if not file(name, results).exists()]
    if lack:
        again = command("watch.py train", results)
        raise SystemExit(f"{results / WATCHED} has no runs to look at named {', '.join(lack)}: run `{again}` first")
    return {name: json.loads(file(name, results).read_text()) for name in PATIENTS}


def draw_all(results: Path, images: Path) -> None:
    for name, run in watched(results).items():
        write_file(images / f"watched_{name}.png", png(draw(PATIENTS[name].title, run)))


def shown(results: Path = RESULTS) -> str:
    """From which step on each sign showed, as a table."""
    columns = {name.replace("_", " "): signs(run) for name, run in watched(results).items()}
    rows = [[sign, *(str(found[sign] or "") for found in columns.values())] for sign in columns["healthy"]]
    return table(["from step", *columns], rows)


def early(measured: Mapping[str, list], look: int) -> dict[str, float]:
    """What ten steps of a run said."""
    coarse = [shares[look] for name, shares in measured.items() if name.startswith("gated/") and name != "gated/token"]
    return {
        MOVED: float(np.mean(measured["divergence"][look])),
        "largest amplification": measured["amplification"][look],
        "share of tokens gated": measured.get("gated/token", [0.0] * look + [0.0])[look],
        "share gated of a coarser level": max(coarse, default=0.0),
        "gradient norm": measured["grad_norm"][look],
        "a low reward": -float(np.mean(measured["reward"][look])),
        "a low held-out accuracy": -float(np.mean(measured["right"][look + 1])),
    }


def told_apart(values: np.ndarray, sick: np.ndarray) -> float:
    """The chance that a sick run shows more of a sign than a healthy one."""
    ill, well = values[sick][:, None], values[~sick][None]
    return float(((ill > well) + 0.5 * (ill == well)).mean())


@dataclass(frozen=True)
class Outcomes:
    """Runs by seed, and whether each ended worse than it began: accuracy at the last looks is below the base's.

    Where a trick is rewarded, runs that learn it lose accuracy by design; they are left out.
    """

    runs: Mapping[int, list[dict]]
    sick: Mapping[int, np.ndarray]

    @classmethod
    def of(cls, part: str, results: Path, condition: str | None = None) -> Outcomes:
        runs: dict[int, list[dict]] = defaultdict(list)
        for line in lines(part, results):
            where = line["run"]["condition"]
            if set(CONDITIONS[where].tricks) == {None} and condition in (None, where):
                runs[line["run"]["seed"]].append(line["measured"])
        right = {seed: np.array([np.mean(run["right"], 1) for run in mine]) for seed, mine in runs.items()}
        return cls(runs, {seed: looks[:, -LAST:].mean(1) < looks[:, 0] for seed, looks in right.items()})


def score(part: str, results: Path = RESULTS) -> str:
    """Of each early sign, how well it tells runs of one seed apart: means over seeds that have both, and intervals.

    Of all conditions together, which mostly tells learning rates apart, and of the one with large steps alone.
    """
    every, large = Outcomes.of(part, results), Outcomes.of(part, results, "large")
    cells: dict[str, list[str]] = {}
    head = [""]
    for words, found, look in (("all", every, 0), ("`large`", large, 0), ("`large`", large, 1)):
        both = [seed for seed, sick in found.sick.items() if 0 < sick.sum() < len(sick)]
        if len(both) < 2:
            return f"Too few runs of {part} are in the results yet."
        head.append(f"{words}, steps {EVERY * look + 1} to {EVERY * (look + 1)}")
        said = {seed: [early(run, look) for run in found.runs[seed]] for seed in both}
        for sign in next(iter(said.values()))[0]:
            chances = [told_apart(np.array([x[sign] for x in said[seed]]), found.sick[seed]) for seed in both]
            cells.setdefault(sign, []).append(estimate(of_mean(chances)))
    counts = [f"{sum(map(sum, of.sick.values()))} of {sum(map(len, of.sick.values()))}" for of in (every, large, large)]
    return table(head, [["runs that end worse", *counts], *([sign, *row] for sign, row in cells.items())])


def alarm(part: str, results: Path = RESULTS) -> str:
    """How often runs end worse than they began, whose first ten steps moved far, and not: by seed, with intervals.

    Of seeds that have such runs.
    """
    found = Outcomes.of(part, results)
    if not found.runs:
        return f"No run of {part} is in the results yet."
    far = {seed: np.array([early(run, 0)[MOVED] > FAR for run in runs]) for seed, runs in found.runs.items()}
    rows = []
    for words, loud in ((f"above {FAR}", True), (f"at most {FAR}", False)):
        shares = [found.sick[seed][x == loud].mean() for seed, x in far.items() if (x == loud).any()]
        runs = sum(int((x == loud).sum()) for x in far.values())
        rows.append([words, str(runs), estimate(of_mean(shares)) if shares else NONE])
    return table([f"{MOVED}, steps 1 to {EVERY}", "runs", "share that ends worse than it began"], rows)


def estimate(of: Sequence[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*of)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    training = commands.add_parser("train", help="train the runs to look at")
    drawing = commands.add_parser("draw", help="draw them, and print when each sign showed")
    scoring = commands.add_parser("score", help="print how well early signs tell runs apart")
    for each in (training, drawing, scoring):
        each.add_argument("--results", type=Path, default=RESULTS, help="the folder of raw results")
    drawing.add_argument("--images", type=Path, default=FIGURES, help="the folder of figures")
    scoring.add_argument("part", nargs="?", choices=sorted(PARTS), default="test", help="of the results")
    given = parser.parse_args(arguments)
    if given.what == "train":
        train(given.results)
    elif given.what == "draw":
        draw_all(given.results, given.images)
        print(shown(given.results))
    else:
        print(score(given.part, given.results), alarm(given.part, given.results), sep="\n\n")


if __name__ == "__main__":
    main()
