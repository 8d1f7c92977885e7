"""Every number, table and figure of the study from its raw results: `python docs/studies/staleness/analyse.py`.

Reads `results/*.jsonl`; writes `results/summary.json`, tables of ../README.md and docs/which-loss-when.md between their
marks, and `figures/*.png`. `--check` writes nothing, and fails where a number or a table would change. All again, where
every run appends a line to `results/` and no run that is there is repeated (`--worker 0/2` shares runs in two):

    cd docs/studies/staleness
    python run.py tune && python choose.py tune && python run.py test
    python run.py search && python choose.py search && python run.py confirm
    python watch.py train && python watch.py draw && python analyse.py
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import stats
import which
from arms import ARMS
from cells import Cell, Cells, cells, identical, pairs
from choose import Setting, chosen, chosen_at, lacking, record, record_search, scores
from plan import LARGE_RATE, PARTS
from rl import CONDITIONS, Run
from store import CHOSEN, FOUND, HERE, RESULTS, command, lines, read_bases
from tables import estimate, interval, tables, written

from fibration.files import write_file

SINGLE = ("reinforce", "grpo", "grpo_dual", "gspo", "cispo", "dppo_tv")  # of which contrast 3 takes the best on tuning
BESIDE, CONFIRMED_BESIDE = "grpo", "gspo"  # what every arm is compared with
MEASURES = ("score", "mean_area", "worst_area")


def contrasts(baseline: str) -> list[tuple[str, str, str]]:
    """The four that were named beforehand: arm, arm that is taken from it, condition."""
    return [
        ("inward_domain", "placebo_shuffled", "unequal"),
        ("inward_domain", "inward_trajectory", "unequal"),
        ("inward_domain", baseline, "unequal"),
        ("fiberpo_domain", "inward_domain", "large"),
    ]


def explored(baseline: str) -> list[tuple[str, str]]:
    """Further differences, in every condition."""
    return [
        ("inward_domain", "placebo_shuffled"),
        ("inward_domain", "inward_trajectory"),
        ("inward_domain", baseline),
        ("inward_domain", "placebo_unbounded"),
        ("inward_domain", "clip_domains"),
        ("inward_domain", "inward_token"),
        ("inward_trajectory", "inward_token"),
        ("inward_group", "inward_trajectory"),
        ("inward_domain", "inward_group"),
        ("inward_ceiling", "inward_domain"),
        ("fiberpo_domain", "inward_domain"),
        ("fiberpo", "inward_trajectory"),
        ("fiberpo_domain", "fiberpo"),
        ("placebo_rollback", "inward_domain"),
        ("published_wide", "placebo_rollback"),
        ("published_wide", "inward_domain"),
        ("fiberpo_domain", "reinforce"),
        ("inward_token", "grpo"),
        ("gspo", "grpo"),
    ]


def arm_cells(found: Cells, condition: str) -> dict[str, Cell]:
    """By arm, in a part where each arm has one setting in a condition."""
    mine = [cell for (name, _, _), cell in found.items() if name == condition]
    by_arm = {cell.arm: cell for cell in mine}
    if len(by_arm) != len(mine):
        raise ValueError(f"an arm has several settings in '{condition}': what was tested follows from tuning alone")
    return by_arm


def described(cell: Cell, beside: Cell | None) -> dict:
    """One arm in one condition."""
    amplification = cell.measured("amplification")
    found = {
        "lr": cell.setting[0],
        "trust": cell.setting[1],
        "seeds": len(cell.seeds),
        **{name: stats.of_iqm(getattr(cell, name)) for name in MEASURES},
        "final": stats.of_iqm(cell.final),
        "mean_score": stats.of_mean(cell.score),  # which differences are of
        "collapses": int(cell.collapses[:, -1].sum()),
        "amplification": {"median": float(np.median(amplification)), "largest": float(amplification.max())},
        **{name: stats.of_mean(cell.measured(name).mean(1)) for name in ("outward", "against")},
        **{name: float(cell.measured(name).mean()) for name in ("zeroed", "between")},
        "gated": cell.gated,
        "entropy": float(cell.measured("entropy")[:, -1].mean()),
        "path_kl": float(np.exp(np.log(cell.path).mean())),
        "from_base": float(cell.measured("from_base")[:, -1].mean()),
    }
    if beside is not None and beside is not cell and pairs(cell, beside):
        seeds = pairs(cell, beside)
        x, y = cell.of("score", seeds), beside.of("score", seeds)
        found["better"] = stats.improvement(x, y)
        found["difference"] = stats.of_mean(x - y)
        found["wins"] = {"seeds": len(seeds), "better": float((x > y).sum() + (x == y).sum() / 2)}
        found["mcnemar"] = stats.mcnemar(cell.of("collapses", seeds)[:, -1], beside.of("collapses", seeds)[:, -1])
    return found


def compared(x: Cell | None, y: Cell | None) -> dict | None:
    """Paired differences of two arms, none where they share no seed."""
    if x is None or y is None or not pairs(x, y):
        return None
    seeds = pairs(x, y)
    of = {name: x.of(name, seeds) - y.of(name, seeds) for name in MEASURES}
    d = of["score"]
    spread = float(d.std(ddof=1)) if len(d) > 1 else math.nan
    return {
        "seeds": len(seeds),
        "identical": identical(x, y),
        **{name: stats.of_mean(values) for name, values in of.items()},
        "exact": stats.shifts(d),
        "p": stats.flips(d),
        "spread": spread,
        "detectable": spread * stats.detectable(len(d)),
        "detectable_holm": spread * stats.detectable(len(d), (1 - stats.LEVEL) / 4),
    }


Frontier = list[tuple[float, float]]


def frontiers(tuning: Cells) -> dict[str, Frontier]:
    """Of each arm, the upper hull of all its settings in the plane of the log of the path's KL and the score.

    A line through all settings would have several scores at one KL; the hull has what the best ones reach, and falls on
    both sides of the best KL.
    """
    points = defaultdict(list)
    for (_, arm, _), cell in tuning.items():
        points[arm].append((float(np.log(cell.path).mean()), float(cell.score.mean())))
    return {arm: hull(of) for arm, of in sorted(points.items())}


def hull(points: Iterable[tuple[float, float]]) -> Frontier:
    """The corners of the least concave function that no point is above, from the left."""
    found: Frontier = []
    for x, y in sorted(points):
        while found and found[-1][0] == x:
            found.pop()  # of points at one x the last is the highest
        while len(found) > 1 and not above(found[-2], found[-1], (x, y)):
            found.pop()
        found.append((x, y))
    return found


def above(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether the middle one lies above the line through the others."""
    return (middle[1] - left[1]) * (right[0] - left[0]) > (right[1] - left[1]) * (middle[0] - left[0])


def at_equal_kl(x: Cell | None, y: Cell | None, along: Mapping[str, Frontier]) -> dict | None:
    """The difference of two arms if both had moved equally far: each goes along its own frontier to the KL between.

    Seeds are paired; the frontier says how much an arm's score changes between two KL, never how high it is; it is
    flat beyond its ends.
    """
    if x is None or y is None or not pairs(x, y):
        return None
    seeds, moved, beyond = pairs(x, y), [], 0
    middle = (np.log(x.of("path", seeds)) + np.log(y.of("path", seeds))) / 2
    for cell in (x, y):
        frontier = along.get(ARMS[cell.arm].of or cell.arm)
        if not frontier:
            return None
        kl, score = map(np.array, zip(*frontier, strict=True))
        own = np.log(cell.of("path", seeds))
        beyond += int(((np.minimum(own, middle) < kl[0]) | (np.maximum(own, middle) > kl[-1])).sum())
        moved.append(cell.of("score", seeds) + np.interp(middle, kl, score) - np.interp(own, kl, score))
    difference = moved[0] - moved[1]
    return {
        "seeds": len(seeds),
        "path_kl": [float(np.exp(np.log(cell.of("path", seeds)).mean())) for cell in (x, y)],
        "score": stats.of_mean(difference),
        "exact": stats.shifts(difference),
        "beyond": beyond,
    }


def searched(found: Cells) -> list[dict]:
    """Every setting of a search, from the best: its score over seeds, by condition."""
    rows = [
        {
            "arm": cell.arm,
            "condition": cell.condition,
            "lr": cell.setting[0],
            "trust": cell.setting[1],
            "seeds": len(cell.seeds),
            "score": stats.of_mean(cell.score),
            "path_kl": float(np.exp(np.log(cell.path).mean())),
            "collapses": int(cell.collapses[:, -1].sum()),
            "largest": float(cell.measured("amplification").max()),
        }
        for cell in found.values()
    ]
    return sorted(
        rows, key=lambda row: (row["condition"], row["lr"], -row["score"].value, row["arm"], row["trust"] or 0)
    )


def confirmed(found: Cells) -> dict:
    """Arms of a confirmation by condition, and the paired differences of all of them."""
    conditions = {}
    for condition in [name for name in CONDITIONS if any(key[0] == name for key in found)]:
        by_arm = arm_cells(found, condition)
        names = list(by_arm)
        conditions[condition] = {
            "arms": {name: described(cell, by_arm.get(CONFIRMED_BESIDE)) for name, cell in by_arm.items()},
            "differences": [
                {"arm": x, "less": y, **difference}
                for k, x in enumerate(names)
                for y in names[k + 1 :]
                if (difference := compared(by_arm[x], by_arm[y]))
            ],
        }
    return conditions


def tuned(tuning: Sequence[Mapping]) -> dict:
    """Every arm's scores at all settings, and what is chosen."""
    all_scores, setting, large = scores(tuning), chosen(tuning), chosen_at(tuning, LARGE_RATE)
    return {
        arm: {
            "lr": setting[arm][0],
            "trust": setting[arm][1],
            "score": of[setting[arm]],
            "large": large[arm][1] if arm in large else None,
            "settings": [
                {"lr": lr, "trust": trust, "score": y} for (lr, trust), y in sorted(of.items(), key=by_setting)
            ],
        }
        for arm, of in all_scores.items()
    }


def by_setting(item: tuple[Setting, float]) -> tuple[float, float]:
    (lr, trust), _ = item
    return lr, trust or 0


def planned(found: Mapping[str, Sequence[Mapping]], results: Path) -> dict:
    """Of each part: how many runs are planned, which lack, what ran them, for how long; no plan before its settings."""
    said = {}
    for part, runs in PARTS.items():
        there = found[part]
        every = runs(results) if part != "test" or (results / CHOSEN).exists() else []
        said[part] = {
            "planned": len(every),
            "there": len(there),
            "hours": sum(line["seconds"] for line in there) / 3600,
            "versions": sorted({" ".join(f"{k} {v}" for k, v in sorted(line["versions"].items())) for line in there}),
            "lacking": by_name(lacking(every, there)) if there else ["all of them"] * bool(every),
            "without": len(lacking(every, there)),
        }
    return said


def by_name(runs: Iterable[Run]) -> list[str]:
    """Runs in words, seeds of one setting together."""
    seeds = defaultdict(list)
    for run in runs:
        seeds[f"`{run.arm}` in `{run.condition}` at {run.lr:g}, {run.trust}"].append(str(run.seed))
    return [f"{name}: {', '.join(of)}" for name, of in seeds.items()]


def bases(results: Path, seeds: Iterable[int]) -> dict | None:
    """Share of samples right in each domain before any step: least, median and greatest of these seeds' bases."""
    wanted = set(seeds)
    rows = list(zip(*(right for seed, right in read_bases(results).items() if seed in wanted), strict=True))
    return {"seeds": len(rows[0]), "right": [[min(r), median(r), max(r)] for r in rows]} if rows else None


def step_costs(results: Path) -> dict[str, dict[str, float]]:
    """What `speed.py` measured last, by the way a step is made; nothing where it was not run."""
    file = results / "speed.json"
    return json.loads(file.read_text())["ways"] if file.exists() else {}


def analysed(results: Path) -> tuple[dict, Cells, dict[str, dict[str, Cell]]]:
    """All numbers, and the runs of tuning and of the test that figures draw."""
    found_lines = {part: lines(part, results) for part in PARTS}
    tuning = found_lines["tune"]
    tuning_cells, test_cells = cells(tuning), cells(found_lines["test"])
    test = {name: arm_cells(test_cells, name) for name in CONDITIONS if any(key[0] == name for key in test_cells)}
    test = {name: {arm: by_arm[arm] for arm in ARMS if arm in by_arm} for name, by_arm in test.items()}
    setting, all_scores = chosen(tuning), scores(tuning)
    single = [arm for arm in SINGLE if arm in setting]
    if not single:
        tune = command("run.py tune", results)
        raise SystemExit(f"{results / 'tune.jsonl'} has no loss of one gate, beside which arms stand: run `{tune}`")
    baseline = max(single, key=lambda arm: all_scores[arm][setting[arm]])
    along = frontiers(tuning_cells)

    def cell(condition: str, arm: str) -> Cell | None:
        return test.get(condition, {}).get(arm)

    named = [
        {"arm": x, "less": y, "condition": where, **found}
        for x, y, where in contrasts(baseline)
        if (found := compared(cell(where, x), cell(where, y)))
    ]
    for contrast, p in zip(named, stats.holm([contrast["p"] for contrast in named]), strict=True):
        contrast["holm"] = float(p)
    summary = {
        "planned": planned(found_lines, results),
        "bases": bases(results, {seed for by_arm in test.values() for c in by_arm.values() for seed in c.seeds}),
        "cost": step_costs(results),
        "tuning": tuned(tuning),
        "baseline": baseline,
        "contrasts": named,
        "equal_kl": [
            {"arm": x, "less": y, "condition": where, "difference": plain["score"], **found}
            for x, y, where in [*contrasts(baseline), ("inward_domain", "clip_domains", "unequal"),
                                ("inward_domain", "clip_domains", "large"),
                                ("inward_domain", "placebo_shuffled", "large"), ("inward_domain", baseline, "large")]
            if (found := at_equal_kl(cell(where, x), cell(where, y), along))
            and (plain := compared(cell(where, x), cell(where, y)))
        ],
        "explored": [
            {"arm": x, "less": y, "conditions": {
                where: found for where in test if (found := compared(cell(where, x), cell(where, y)))}}
            for x, y in explored(baseline)
        ],
        "test": {
            where: {arm: described(c, by_arm.get(BESIDE)) for arm, c in by_arm.items()}
            for where, by_arm in test.items()
        },
        "frontiers": along,
        "search": searched(cells(found_lines["search"])),
        "confirm": confirmed(cells(found_lines["confirm"])),
    }  # fmt: skip
    return summary, tuning_cells, test


MARKED, ESTIMATE = r"<!-- (\w+) -->(.*?)<!-- /\1 -->", r"[+−]?\d\.\d+ \[[+−]?\d\.\d+, [+−]?\d\.\d+\]"


def unsigned(words: str) -> tuple[float, ...]:
    """An estimate's value and ends as numbers, or those of the opposite difference: whichever has the larger value."""
    value, low, high = (float(x.replace("−", "-")) for x in re.findall(r"[+−]?[\d.]+", words))
    return max((value, low, high), (-value, -high, -low))


def estimates(found: object) -> Iterator[str]:
    """All estimates of a summary as pages write them, with bootstrap intervals and with exact ones."""
    if isinstance(found, list):
        for each in found:
            yield from estimates(each)
    elif isinstance(found, Mapping):
        if {"value", "low", "high"} <= found.keys():
            yield interval(found)
        if None not in found.get("exact", [None]):
            yield estimate(found)
        for each in found.values():
            yield from estimates(each)


def unfounded(pages: Mapping[str, str], summary: Mapping, test: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Estimates in sentences that neither the summary nor a table that a script writes has."""
    given = [*estimates(summary)]
    noise = [test[where]["grpo"] for where in ("unequal", "noisy") if "grpo" in test.get(where, {})]
    if len(noise) == 2:  # what wrong rewards cost
        given.append(interval(stats.of_mean(noise[0].score - noise[1].of("score", noise[0].seeds))._asdict()))
    for page in pages.values():
        given += [words for _, text in re.findall(MARKED, page, re.DOTALL) for words in re.findall(ESTIMATE, text)]
    known = {unsigned(words) for words in given}
    return [
        f"{name} says {words}, which no result says"
        for name, page in pages.items()
        for words in re.findall(ESTIMATE, re.sub(MARKED, "", page, flags=re.DOTALL))
        if unsigned(words) not in known
    ]


def plain(found: object) -> Any:
    """For JSON: four digits of every number, `null` for what there is none of; estimates say what is what."""
    if isinstance(found, stats.Estimate):
        return plain(found._asdict())
    if isinstance(found, Mapping):
        return {str(name): plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    if isinstance(found, float):
        return float(f"{found:.4g}") if math.isfinite(found) else None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where numbers or tables would change")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of raw results")
    parser.add_argument("--page", type=Path, default=HERE.parent / "README.md", help="the page of the studies")
    parser.add_argument("--losses", type=Path, default=which.PAGE, help="the page that says which loss when, likewise")
    parser.add_argument("--images", type=Path, default=HERE / "figures", help="the folder of figures")
    given = parser.parse_args(arguments)
    summary, tuning, test = analysed(given.results)
    said = plain(summary)
    wanted = {
        given.results / "summary.json": json.dumps(said, indent=1) + "\n",
        given.page: written(given.page.read_text(), tables(said), given.page.name),
        given.losses: which.filled(given.losses, said, given.results),
    }
    if given.check:
        chosen_from = {}
        if not said["planned"]["tune"]["lacking"]:
            chosen_from["choose.py tune"] = {given.results / CHOSEN: record(lines("tune", given.results))}
        if not said["planned"]["search"]["lacking"]:
            chosen_from["choose.py search"] = {given.results / FOUND: record_search(lines("search", given.results))}
        others = {x: vars(given)[x] for x in ("page", "losses", "images") if vars(given)[x] != parser.get_default(x)}
        stale = [
            (command(script, given.results, **(others if of is wanted else {})), names)
            for script, of in {**chosen_from, "analyse.py": wanted}.items()
            if (names := [file.name for file, text in of.items() if not file.exists() or file.read_text() != text])
        ]
        said_of = [f"{', '.join(names)} not as the results say: run `{words}`" for words, names in stale]
        said_of += unfounded({page.name: wanted[page] for page in (given.page, given.losses)}, said, test)
        if said_of:
            raise SystemExit("\n".join(said_of))
        return
    import figures  # which takes a while, and is not needed to check numbers

    figures.draw(given.images, said, tuning, test)
    for file, text in wanted.items():
        write_file(file, text)


if __name__ == "__main__":
    main()
