"""The tables of docs/which-loss-when.md, which `analyse.py` writes: from its summary, and from runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cells import cells
from plan import AT_LARGE_RATE, RATES
from stats import Array
from store import lines
from tables import NONE, interval, number, rate, scale, table, written
from watch import alarm, score, shown

PAGE = Path(__file__).parents[2] / "which-loss-when.md"
SHOWN = ("unequal", "stale", *AT_LARGE_RATE)  # all conditions and losses are in results/summary.json
LEFT_OUT = ("placebo_", "published_wide", "clip_domains", "inward_group", "inward_ceiling", "inward_narrow")
TUNED, BESIDE = "unequal", "grpo"


def settings(tuning: Mapping[str, Mapping], results: Path) -> str:
    """What tuning chose; and what is lost with three times the rate, and with the worst budgets at that rate.

    Of settings that were run with the same seeds; nothing of a rate that is none of the larger ones.
    """
    found = cells(lines("tune", results))
    rows = []
    for arm, of in sorted(tuning.items(), key=lambda item: -item[1]["score"]):
        if arm.startswith(LEFT_OUT):
            continue
        lr, trust = of["lr"], of["trust"]
        best, seeds = (getattr(found[TUNED, arm, (lr, trust)], name) for name in ("score", "seeds"))
        scores = {at: cell.score for (_, name, at), cell in found.items() if name == arm and cell.seeds == seeds}
        steeper = min(RATES, key=lambda other: abs(other - 3 * lr))
        worst = min((score for (at, _), score in scores.items() if at == lr), key=lambda score: score.mean())
        there = steeper > lr and (steeper, trust) in scores
        lost = [spread(best - scores[steeper, trust]) if there else NONE, spread(best - worst) if trust else NONE]
        rows.append([f"`{arm}`", rate(lr), scale(trust), *lost, scale(of["large"])])
    head = ["loss", "learning rate", "budgets ×", "lost with the rate × 3", "lost with the worst budgets"]
    return table([*head, "budgets × at 4.5e-4"], rows)


def spread(values: Array) -> str:
    """Mean and range of tuning's seeds."""
    return f"{number(values.mean())} ({number(values.min())} to {number(values.max())})"


def beside(test: Mapping[str, Mapping]) -> str:
    """Scores less GRPO's with their intervals, of GRPO the mean score itself; and how many runs collapsed, if any."""
    there = [where for where in SHOWN if where in test]
    if not there:
        return "None of these is in the results yet."
    arms = {arm for where in there for arm in test[where] if not arm.startswith(LEFT_OUT)}

    def ahead(arm: str) -> float:
        of = [test[where][arm] for where in there if arm in test[where]]
        return sum(x["difference"]["value"] for x in of if "difference" in x) / len(of)

    def said(arm: str, of: Mapping | None) -> str:
        if of is None or (arm != BESIDE and "difference" not in of):
            return NONE
        numbers = interval(of["mean_score"]) if arm == BESIDE else interval(of["difference"], sign=True)
        return f"{numbers}; {of['collapses']}" if of["collapses"] else numbers

    rows = [
        [f"`{arm}`" + (", itself" if arm == BESIDE else ""), *(said(arm, test[where].get(arm)) for where in there)]
        for arm in sorted(arms, key=lambda arm: (-ahead(arm), arm))
    ]
    return table(["", *(f"`{where}`" for where in there)], rows)


def filled(page: Path, summary: Mapping, results: Path) -> str:
    """The page with its tables as they should be."""
    found = {
        "settings": settings(summary["tuning"], results),
        "losses": beside(summary["test"]),
        "watched": shown(results),
        "signs": score("test", results),
        "alarm": alarm("test", results),
    }
    return written(page.read_text(), found, page.name)
