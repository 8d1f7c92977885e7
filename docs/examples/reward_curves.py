"""Runs beside each other: `python docs/examples/reward_curves.py runs/*/log.jsonl --png curves.png`

Of the logs of `trl_reasoning.py` it prints the mean reward, and what share of each domain's answers was right, in the
first and in the last quarter of the generations.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def generations(path: Path) -> list[dict[str, float]]:
    """What was logged of the optimizer steps that began with new answers."""
    return [line for line in map(json.loads, path.read_text().splitlines()) if "reward" in line]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def draw(logs: dict[str, list[dict[str, float]]], columns: dict[str, str], window: int = 5) -> Figure:
    """A panel per column: every generation as a dot, and the mean of each `window` of them in a row as a line."""
    figure = Figure(figsize=(2.6 * len(columns), 2.9), layout="constrained")
    for axes, (column, title) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
        for (name, lines), colour in zip(logs.items(), COLOURS, strict=False):
            steps, values = [line["step"] for line in lines], [line[column] for line in lines]
            smooth = [mean(values[k : k + window]) for k in range(len(values) - window + 1)]
            axes.plot(steps, values, ".", color=colour, alpha=0.35, markersize=5)
            axes.plot(steps[window - 1 :], smooth, color=colour, label=name)
        axes.set_title(title if column == "reward" else f"{title}, share right", fontsize=10)
        axes.set_xlabel("optimizer step")
        axes.set_ylim(0, None if column == "reward" else 1.03)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path, nargs="+", help="named after the folders they are in")
    parser.add_argument("--png", type=Path)
    given = parser.parse_args()
    logs = {path.parent.name: generations(path) for path in given.logs}
    domains = [column for column in next(iter(logs.values()))[0] if column.startswith("right/")]
    columns = {"reward": "reward"} | {column: column.removeprefix("right/") for column in domains}
    print("|", *columns.values(), sep=" | ", end=" |\n")
    print("|---" * (1 + len(columns)) + "|")
    for name, lines in logs.items():
        part = max(1, len(lines) // 4)
        cells = [
            f"{mean([x[c] for x in lines[:part]]):.2f} → {mean([x[c] for x in lines[-part:]]):.2f}" for c in columns
        ]
        print("|", name, "|", " | ".join(cells), "|")
    if given.png:
        draw(logs, columns).savefig(given.png, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
