"""The tables of README.md, from `results/summary.json` alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

DOMAINS = ("addition", "sorting", "reversing", "sums")
NONE = "·"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(x: float | None, digits: int = 3, sign: bool = False) -> str:
    if x is None:
        return NONE
    said = f"{x:{'+' if sign else ''}.{digits}f}"
    return (said if float(said) else f"{0:.{digits}f}").replace("-", "−")


def short(x: float | None) -> str:
    """Two or three digits of what may be of any size."""
    return NONE if x is None else f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def interval(of: Mapping | None, sign: bool = False) -> str:
    if of is None:
        return NONE
    value, low, high = (number(of[end], sign=sign) for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def exact(ends: Sequence[float | None]) -> str:
    low, high = ends
    return NONE if low is None or high is None else f"[{number(low, sign=True)}, {number(high, sign=True)}]"


def rate(x: float) -> str:
    return f"{x:g}".replace("e-05", "e-5")


def chance(p: float | None) -> str:
    return NONE if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"


def less(of: Mapping) -> str:
    return f"`{of['arm']}` − `{of['less']}`"


def planned(parts: Mapping) -> str:
    rows = [
        [
            part,
            *(str(of[name]) for name in ("planned", "there", "without")),
            number(of["hours"], 1),
            "; ".join(of["versions"]) or NONE,
        ]
        for part, of in parts.items()
    ]
    head = ["part", "runs planned", "in the results", "lacking", "core-hours", "versions"]
    lack = [f"- {part}: {'; '.join(of['lacking'])}" for part, of in parts.items() if of["lacking"]]
    return (
        table(head, rows)
        + "\n\n"
        + (
            "\n".join(["Lacking (arm, condition, learning rate, scale of trust: seeds):", "", *lack])
            if lack
            else "No planned run lacks."
        )
    )


def bases(of: Mapping | None) -> str:
    if of is None:
        return "No base is in the results."
    rows = [[name, *(number(x, 2) for x in row)] for name, row in zip(DOMAINS, of["right"], strict=True)]
    return table(["share of samples right", "least", "median", f"greatest of {of['seeds']} bases"], rows)


def tuning(arms: Mapping) -> str:
    rates = sorted({setting["lr"] for of in arms.values() for setting in of["settings"]})
    rows = []
    for arm, of in arms.items():
        best = {lr: max((s["score"] for s in of["settings"] if s["lr"] == lr), default=None) for lr in rates}
        at = [f"`{arm}`", rate(of["lr"]), scale(of["trust"]), scale(of["large"])]
        rows.append([*at, *(number(best[lr]) for lr in rates)])
    head = ["arm", "learning rate", "scale of trust", "scale at 4.5e-4", *(f"best at {rate(lr)}" for lr in rates)]
    return table(head, rows)


def scale(trust: float | None) -> str:
    return NONE if trust is None else f"{trust:g}"


def contrasts(found: Sequence[Mapping]) -> str:
    rows = [
        [
            str(k),
            f"{less(of)} in `{of['condition']}`",
            *(interval(of[name], sign=True) for name in ("score", "mean_area", "worst_area")),
            exact(of["exact"]),
            chance(of["p"]),
            chance(of["holm"]),
            str(of["seeds"]),
            str(of["identical"]),
        ]
        for k, of in enumerate(found, 1)
    ]
    head = ["", "contrast", "both measures", "mean of domains", "worst domain", "exact interval", "p", "Holm", "pairs"]
    return table([*head, "of these the same run"], rows)


def power(found: Sequence[Mapping]) -> str:
    rows = [
        [f"{less(of)} in `{of['condition']}`", str(of["seeds"])]
        + [number(of[name], 4) for name in ("spread", "detectable", "detectable_holm")]
        for of in found
        if of["identical"] < of["seeds"]
    ]
    head = ["contrast", "pairs", "deviation of differences", "found with power 0.8 at p ≤ 0.05", "at p ≤ 0.0125"]
    return table(head, rows)


def equal_kl(found: Sequence[Mapping]) -> str:
    rows = [
        [
            f"{less(of)} in `{of['condition']}`",
            *(short(kl) for kl in of["path_kl"]),
            interval(of["difference"], sign=True),
            interval(of["score"], sign=True),
            exact(of["exact"]),
            f"{of['beyond']} of {2 * of['seeds']}",
        ]
        for of in found
    ]
    head = ["difference", "path KL of the first", "of the second", "as it is", "at equal KL", "exact interval"]
    return table([*head, "beyond a frontier"], rows)


def explored(found: Sequence[Mapping]) -> str:
    conditions = list(dict.fromkeys(where for of in found for where in of["conditions"]))

    def said(of: Mapping | None) -> str:
        if not of:
            return NONE
        low, high = of["exact"]
        return interval({"value": of["score"]["value"], "low": low, "high": high}, sign=True)

    rows = [[less(of), *(said(of["conditions"].get(where)) for where in conditions)] for of in found]
    return table(["difference", *(f"`{where}`" for where in conditions)], rows)


def overall(found: Mapping) -> str:
    ordered = sorted(found.items(), key=lambda item: -item[1]["value"])
    return table(["arm", "both measures, over all conditions"], [[f"`{arm}`", interval(of)] for arm, of in ordered])


def arms(found: Mapping, beside: str = "grpo") -> str:
    """One table of arms, each compared with one of them."""
    head = ["arm", "rate", "trust", "mean of domains", "worst domain", "at the end", f"score less `{beside}`'s"]
    head += [
        "better on",
        "P(better)",
        "collapsed",
        "p",
        "amplification: median, largest",
        "outward",
        "against",
        "path KL",
    ]
    rows = []
    for arm, of in found.items():
        amplification = of["amplification"]
        rows.append(
            [
                f"`{arm}`",
                rate(of["lr"]),
                scale(of["trust"]),
                *(interval(of[name]) for name in ("mean_area", "worst_area", "final")),
                interval(of.get("difference"), sign=True),
                f"{of['wins']['better']:g} of {of['wins']['seeds']}" if "wins" in of else NONE,
                interval(of.get("better")),
                f"{of['collapses']} of {of['seeds']}",
                chance(of.get("mcnemar")),
                f"{short(amplification['median'])}, {short(amplification['largest'])}",
                *(interval(of[name]) for name in ("outward", "against")),
                short(of["path_kl"]),
            ]
        )
    return table(head, rows)


def levels(found: Mapping) -> str:
    """What gates of each level do, of the arms that have several."""
    order = ("token", "trajectory", "prompt_group", "domain")
    arms = dict.fromkeys(arm for of in found.values() for arm, row in of.items() if len(row["gated"]) > 1)

    def said(row: Mapping | None) -> str:
        return ", ".join(share(row["gated"][level]) for level in order if level in row["gated"]) if row else NONE

    rows = [[f"`{arm}`", *(said(of.get(arm)) for of in found.values())] for arm in arms]
    return table(["arm", *(f"`{where}`" for where in found)], rows)


def share(x: float) -> str:
    """In percent, and 0 only where it is."""
    return "0" if x == 0 else "< 0.1" if x < 0.001 else f"{100 * x:.1f}"


def by_condition(found: Mapping) -> str:
    return "\n\n".join(f"### {where}\n\n{arms(of)}" for where, of in found.items()) or "No run of the test is in yet."


def search(rows: Sequence[Mapping], most: int = 8) -> str:
    """The best settings by condition and learning rate; all are in `results/summary.json`."""
    if not rows:
        return "No run of the search is in yet."
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault((row["condition"], row["lr"]), []).append(row)
    said = []
    for (condition, lr), members in groups.items():
        head = [f"`{condition}` at {rate(lr)}: the best of {len(members)} settings", "trust", "both measures"]
        shown = [
            [
                f"`{of['arm']}`",
                scale(of["trust"]),
                interval(of["score"]),
                str(of["seeds"]),
                short(of["path_kl"]),
                f"{of['collapses']} of {of['seeds']}",
                short(of["largest"]),
            ]
            for of in members[:most]
        ]
        said.append(table([*head, "seeds", "path KL", "collapsed", "largest amplification"], shown))
    return "\n\n".join(said)


def confirm(conditions: Mapping) -> str:
    if not conditions:
        return "No run of the confirmation is in yet."
    said = []
    for where, of in conditions.items():
        rows = [
            [less(d), interval(d["score"], sign=True), exact(d["exact"]), chance(d["p"]), str(d["seeds"])]
            for d in of["differences"]
        ]
        differences = table(["difference", "both measures", "exact interval", "p", "pairs"], rows)
        said.append(f"### {where}, confirmed\n\n{arms(of['arms'], 'gspo')}\n\n{differences}")
    return "\n\n".join(said)


PICTURES = {
    "differences": "The four contrasts, and every arm beside GRPO",
    "learning": "Accuracy over training",
    "gates": "Amplification, pushes outward and collapse",
    "between": "Share of drift between domains",
}  # which there are once the test has runs


def tables(summary: Mapping) -> dict[str, str]:
    """By the mark that they stand at."""
    return {
        "planned": planned(summary["planned"]),
        "bases": bases(summary["bases"]),
        "tuning": tuning(summary["tuning"]),
        "contrasts": contrasts(summary["contrasts"]),
        "power": power(summary["contrasts"]),
        "equal_kl": equal_kl(summary["equal_kl"]),
        "explored": explored(summary["explored"]),
        "overall": overall(summary["over_conditions"]),
        "levels": levels(summary["test"]),
        "arms": by_condition(summary["test"]),
        "search": search(summary["search"]),
        "confirm": confirm(summary["confirm"]),
        **{name: f"![{says}](figures/{name}.png)" if summary["test"] else "" for name, says in PICTURES.items()},
    }


def written(page: str, found: Mapping[str, str]) -> str:
    """A page with what stands between `<!-- NAME -->` and `<!-- /NAME -->` replaced, which every table needs once."""
    for name, text in found.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        body = f"{text}\n" if text else ""
        page, times = re.subn(pattern, lambda m, body=body: f"{m[1]}{body}{m[2]}", page, flags=re.DOTALL)
        if times != 1:
            raise ValueError(f"the page has the marks <!-- {name} --> ... <!-- /{name} --> {times} times, not once")
    return page
