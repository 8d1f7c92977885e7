"""The study's tables in ../README.md, and its picture: `python docs/studies/smollm2/report.py`.

From the runs of `train.py`. `--check` writes nothing, and fails where a table would change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "staleness"))  # whose tables these are

from tables import exact, number, table, written  # noqa: E402
from train import LOSSES, RESULTS, SEEDS, STEPS  # noqa: E402

from fibration.files import write_file  # noqa: E402

PAGE = HERE.parent / "README.md"
CONTRASTS = (("fiberpo_domain", "fiberpo_domain_inward"), ("fiberpo_domain_inward", "grpo"))
T = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706}  # quantiles 0.975 of Student's t, by degrees of freedom
QUARTER = STEPS // 8  # generations, of two steps each


@dataclass(frozen=True)
class Trained:
    """One run's log: a line for every optimizer step."""

    loss: str
    seed: int
    steps: Sequence[Mapping[str, float]]

    @property
    def rewards(self) -> np.ndarray:
        """Means of the generations' answers, `[generations]`."""
        return np.array([line["reward"] for line in self.steps if "reward" in line])

    @property
    def quarters(self) -> np.ndarray:
        """Mean rewards of the quarters of a whole run, `[4]`."""
        return self.rewards.reshape(4, QUARTER).mean(1)

    @property
    def whole(self) -> bool:
        return len(self.steps) == STEPS

    @property
    def collapsed(self) -> bool:
        return bool(self.quarters[-1] < self.quarters.max() / 2)

    def off_policy(self, name: str) -> np.ndarray:
        """What was logged of the steps that train on answers of older weights, `[generations]`."""
        return np.array([line[f"fibration/{name}"] for line in self.steps[1::2]])

    def gated(self, level: str) -> np.ndarray:
        """Share of elements that a level's gate does not pass as they are; a mean over its sides, where it has two.

        `[generations]`, and `[0]` where the loss has no such level.
        """
        sides = [side for side in ("", "+/", "-/") if f"fibration/{level}/{side}passed" in self.steps[0]]
        return np.mean([1 - self.off_policy(f"{level}/{side}passed") for side in sides], 0) if sides else np.empty(0)


def trained(results: Path) -> dict[tuple[str, int], Trained]:
    """By loss and seed, in the plan's order."""
    found = {}
    for seed in SEEDS:
        for loss in LOSSES:
            file = results / f"{loss}_{seed}.jsonl"
            if file.exists():
                found[loss, seed] = Trained(loss, seed, [json.loads(line) for line in file.read_text().splitlines()])
    return found


Shares = dict[str, dict[str, float]]  # of right answers, by what was trained and by domain


def held_out(results: Path) -> dict[int, Shares]:
    """By seed: before training and after each loss."""
    files = {seed: results / f"held_out_{seed}.json" for seed in SEEDS}
    return {seed: json.loads(file.read_text()) for seed, file in files.items() if file.exists()}


def of_domains(found: Mapping[int, Shares], without: str = "") -> dict[int, dict[str, float]]:
    """Means over domains."""
    return {
        seed: {name: float(np.mean([y for d, y in shares.items() if d != without])) for name, shares in of.items()}
        for seed, of in found.items()
    }


def contrasts(found: Mapping[int, Shares], runs: Mapping[tuple[str, int], Trained]) -> str:
    """Differences of each seed's pair: on other questions, and of rewards at the end."""
    rows = []
    every, three = of_domains(found), of_domains(found, "logic")
    for one, other in CONTRASTS:
        at_end = {
            seed: runs[one, seed].quarters[-1] - runs[other, seed].quarters[-1]
            for seed in SEEDS
            if {(one, seed), (other, seed)} <= runs.keys() and runs[one, seed].whole and runs[other, seed].whole
        }
        for what, of in (
            ("right on other questions", {seed: of[one] - of[other] for seed, of in every.items()}),
            ("the same without logic", {seed: of[one] - of[other] for seed, of in three.items()}),
            ("reward, last quarter", at_end),
        ):
            d = np.array([*of.values()])
            mean = f"{number(d.mean(), sign=True)} {exact(student(d))}"
            rows.append([f"`{one}` − `{other}`", what, mean, f"{(d < 0).sum()} of {len(d)}"])
    return table(["difference", "of", "mean", "seeds below 0"], rows)


def student(differences: np.ndarray) -> tuple[float | None, float | None]:
    """The interval of a mean of normal differences `[seeds]`: exact tests have none of 95 % for fewer than six."""
    n = len(differences)
    if n - 1 not in T:
        return None, None
    reach = T[n - 1] * differences.std(ddof=1) / n**0.5
    return differences.mean() - reach, differences.mean() + reach


def listed(runs: Mapping[tuple[str, int], Trained], found: Mapping[int, object]) -> str:
    """What was run, and what was not, in words."""
    part = [f"`{run.loss}` of seed {run.seed} ({len(run.steps)} steps)" for run in runs.values() if not run.whole]
    whole = [run for run in runs.values() if run.whole]
    without = [str(seed) for seed in SEEDS if seed not in found]
    words = [f"{len(whole)} runs of {STEPS} steps are whole; {sum(run.collapsed for run in whole)} collapsed."]
    words += [f"Broken off: {', '.join(part)}."] if part else []
    words += [f"Without an evaluation: seeds {', '.join(without)}."] if without else []
    return " ".join(words)


def drawn(runs: Mapping[tuple[str, int], Trained], found: Mapping[int, Mapping[str, float]]) -> bytes:
    from figures import BLUE, GREY, RED, begin, fewer_colours, named
    from matplotlib.axes import Axes

    from fibration.plotting.canvas import page

    colours = {"grpo": GREY, "fiberpo_domain": RED, "fiberpo_domain_inward": BLUE}
    says = "SmolLM2-135M at 8e-5: runs thin, their means thick; rewards are means of four generations in a row"
    figure, ((rewards, gated, after),) = begin(
        11, 3.6, says, 1, 3, left=0.045, right=0.975, top=0.82, bottom=0.16, wspace=0.5
    )  # fmt: skip
    words: dict[Axes, list[tuple[str, float, str]]] = {rewards: [], gated: []}
    for loss, colour in colours.items():
        mine = [run for (name, _), run in runs.items() if name == loss and run.whole]
        smooth = np.ones(QUARTER) / QUARTER
        for axes, curves in (
            (rewards, np.array([np.convolve(run.rewards, smooth, "valid") for run in mine])),
            (gated, np.array([100 * run.gated("token") for run in mine])),
        ):
            x = 2 * np.arange(curves.shape[1]) + (2 * QUARTER if axes is rewards else 2)
            for curve in curves:
                axes.plot(x, curve, color=colour, linewidth=0.6, alpha=0.5)
            axes.plot(x, curves.mean(0), color=colour, linewidth=1.8)
            words[axes].append((loss, curves.mean(0)[-1], colour))
    names = ["before", *LOSSES]
    for of in found.values():
        after.plot(range(4), [of[name] for name in names], color="#BFC5CC", linewidth=0.8, zorder=1)
    for k, name in enumerate(names):
        values = [of[name] for of in found.values()]
        after.plot([k] * len(values), values, "o", color=colours.get(name, "black"), markersize=4)
    after.set_xticks(range(4), [name.replace("_", "_\n") for name in names], fontsize=7.5)
    after.set_xlim(-0.4, 3.4)
    titles = {
        rewards: "reward",
        gated: "tokens not passed as they are, %, off policy",
        after: "right on other questions",
    }
    for axes, title in titles.items():
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
    for axes, curves_end in words.items():
        axes.set_xlabel("optimizer step", fontsize=8)
        axes.set_xlim(0, STEPS)
        named(axes, curves_end, STEPS, 7)
    return fewer_colours(page(figure, "png"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table would change")
    given = parser.parse_args(arguments)
    runs, found = trained(RESULTS), held_out(RESULTS)
    if not found:
        raise SystemExit(f"{RESULTS} has no seed that is whole: python {HERE / 'train.py'}")
    tables = {
        "smollm2_contrasts": contrasts(found, runs),
        "smollm2_listed": listed(runs, found),
    }
    page = PAGE.read_text()
    said = written(page, tables, PAGE.name)
    if given.check:
        if said != page:
            raise SystemExit(f"{PAGE.name} is not what the results say: run python docs/studies/smollm2/report.py")
        return
    write_file(PAGE, said)
    write_file(HERE / "curves.png", drawn(runs, of_domains(found)))


if __name__ == "__main__":
    main()
