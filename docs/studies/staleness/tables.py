"""The tables of README.md and arms.md, from `results/summary.json` alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tasks import DOMAINS

NONE = "·"
MEDIAN = "median", "largest"
NO_TEST, NO_CONFIRMATION = "No run of the test is in yet.", "No run of the confirmation is in yet."


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
    """As people write learning rates: 4.5e-4."""
    digits, power = f"{x:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


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


Column = tuple[str, Callable[[Mapping], str]]  # its head, and what it says of an arm


def column(head: str, name: str, sign: bool = False) -> Column:
    """An estimate with its interval, where there is one."""
    return head, lambda of: interval(of.get(name), sign=sign)


def settings() -> list[Column]:
    return [("rate", lambda of: rate(of["lr"])), ("trust", lambda of: scale(of["trust"]))]


def outcomes() -> list[Column]:
    pairs = {"mean of domains": "mean_area", "worst domain": "worst_area", "at the end": "final"}
    return [*settings(), *(column(head, name) for head, name in pairs.items())]


def collapsed(of: Mapping) -> str:
    return f"{of['collapses']} of {of['seeds']}"


def paired(beside: str) -> list[Column]:
    """What an arm is beside another on the same seeds."""
    return [
        column(f"score less `{beside}`'s", "difference", sign=True),
        ("better on", lambda of: f"{of['wins']['better']:g} of {of['wins']['seeds']}" if "wins" in of else NONE),
        column("P(better)", "better"),
        ("collapsed", collapsed),
        ("p", lambda of: chance(of.get("mcnemar"))),
    ]


def pulls() -> list[Column]:
    """What the gates of an arm make of the gradient, and how far the policy went."""
    return [
        ("amplification: median, largest", lambda of: ", ".join(short(of["amplification"][x]) for x in MEDIAN)),
        *(column(name, name) for name in ("outward", "against")),
        ("path KL", lambda of: short(of["path_kl"])),
    ]


def brief(beside: str) -> list[Column]:
    return [*settings(), paired(beside)[0], ("collapsed", collapsed), *(pulls()[k] for k in (0, 2, 3))]


def by_arm(found: Mapping[str, Mapping], columns: Sequence[Column]) -> str:
    rows = [[f"`{arm}`", *(says(of) for _, says in columns)] for arm, of in found.items()]
    return table(["arm", *(head for head, _ in columns)], rows)


def in_full(found: Mapping[str, Mapping], beside: str) -> str:
    """All that is known of the arms of one condition, in tables that fit on a page."""
    return "\n\n".join(by_arm(found, columns) for columns in (outcomes(), paired(beside), pulls()))


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


def some(test: Mapping[str, Mapping]) -> str:
    """The arms where tuning was, and where steps are large."""
    said = [
        f"### In `{where}`\n\n{by_arm(test[where], brief('grpo'))}" for where in ("unequal", "large") if where in test
    ]
    return "\n\n".join(said) or NO_TEST


def every(test: Mapping[str, Mapping]) -> str:
    return "\n\n".join(f"## In `{where}`\n\n{in_full(of, 'grpo')}" for where, of in test.items()) or NO_TEST


def every_confirmed(conditions: Mapping[str, Mapping]) -> str:
    said = [f"### In `{where}`, confirmed\n\n{in_full(of['arms'], 'gspo')}" for where, of in conditions.items()]
    return "\n\n".join(said) or NO_CONFIRMATION


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
    said = []
    for where, of in conditions.items():
        rows = [
            [less(d), interval(d["score"], sign=True), exact(d["exact"]), chance(d["p"]), str(d["seeds"])]
            for d in of["differences"]
        ]
        differences = table(["difference", "both measures", "exact interval", "p", "pairs"], rows)
        said.append(f"### Confirmed in `{where}`\n\n{by_arm(of['arms'], brief('gspo'))}\n\n{differences}")
    return "\n\n".join(said) or NO_CONFIRMATION


def cost(ways: Mapping[str, Mapping]) -> str:
    """What a step of one model takes of a processor, from the plainest way on."""
    first = next(iter(ways.values()), {}).get("processor_seconds")
    rows = [
        [name, f"{1e3 * of['processor_seconds']:.0f}", f"{first / of['processor_seconds']:.1f}"]
        for name, of in ways.items()
    ]
    return table(["each way has what those above it have", "ms", "times as cheap as the first"], rows)


PICTURES = {
    "differences": "The four contrasts, and every arm beside GRPO",
    "learning": "Accuracy over training",
    "gates": "Amplification, pushes outward and collapse",
    "between": "Share of drift between domains",
}  # which there are once the test has runs


def tables(summary: Mapping) -> dict[str, dict[str, str]]:
    """By page, by the mark that they stand at."""
    test = summary["test"]
    return {
        "README.md": {
            "planned": planned(summary["planned"]),
            "bases": bases(summary["bases"]),
            "cost": cost(summary["cost"]),
            "tuning": tuning(summary["tuning"]),
            "contrasts": contrasts(summary["contrasts"]),
            "power": power(summary["contrasts"]),
            "equal_kl": equal_kl(summary["equal_kl"]),
            "explored": explored(summary["explored"]),
            "levels": levels(test),
            "arms": some(test),
            "search": search(summary["search"]),
            "confirm": confirm(summary["confirm"]),
            **{name: f"![{says}](figures/{name}.png)" if test else "" for name, says in PICTURES.items()},
        },
        "arms.md": {"arms": every(test), "confirm": every_confirmed(summary["confirm"])},
    }


def written(page: str, found: Mapping[str, str], name: str) -> str:
    """A page with what stands between `<!-- NAME -->` and `<!-- /NAME -->` replaced, which every table needs once."""
    for mark, text in found.items():
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
        body = f"{text}\n" if text else ""
        page, times = re.subn(pattern, lambda m, body=body: f"{m[1]}{body}{m[2]}", page, flags=re.DOTALL)
        if times != 1:
            raise ValueError(f"{name} has the marks <!-- {mark} --> ... <!-- /{mark} --> {times} times, not once")
    return page
