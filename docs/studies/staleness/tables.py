"""The tables of the first study in ../README.md, from `results/summary.json` alone, and what tables are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

NONE = "·"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


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


def scale(trust: float | None) -> str:
    return NONE if trust is None else f"{trust:g}"


def estimate(of: Mapping) -> str:
    """A mean difference with its exact interval."""
    return f"{number(of['score']['value'], sign=True)} {exact(of['exact'])}"


def contrasts(found: Sequence[Mapping], equal_kl: Sequence[Mapping]) -> str:
    """The planned ones, as they are and at equal KL."""
    moved = {(of["arm"], of["less"], of["condition"]): of for of in equal_kl}
    rows = []
    for of in found:
        name = of["arm"], of["less"], of["condition"]
        at_equal_kl = estimate(moved[name]) if name in moved else NONE
        rows.append([less(of), f"`{name[2]}`", estimate(of), chance(of["p"]), chance(of["holm"]), at_equal_kl])
    return table(["difference", "in", "both measures", "p", "Holm's p", "at equal KL"], rows)


SHOWN = ("unequal", "large", "apart")  # conditions; the others are in results/summary.json, as are all pairs
PAIRS = {
    "inward_domain": ("placebo_shuffled", "placebo_unbounded", "clip_domains", "inward_token", "inward_trajectory"),
    "inward_trajectory": ("inward_token",),
    "fiberpo_domain": ("inward_domain", "reinforce"),
    "published_wide": ("placebo_rollback",),
}


def explored(found: Sequence[Mapping]) -> str:
    rows = [
        [less(of), *(estimate(of["conditions"][where]) if where in of["conditions"] else NONE for where in SHOWN)]
        for of in found
        if of["less"] in PAIRS.get(of["arm"], ())
    ]
    return table(["difference", *(f"`{where}`" for where in SHOWN)], rows)


def confirm(conditions: Mapping[str, Mapping]) -> str:
    """The best hierarchy and the best loss of one gate that were found."""
    rows = [
        [f"`{where}`", less(d), estimate(d), chance(d["p"])]
        for where, of in conditions.items()
        for d in of["differences"]
        if "gspo" not in (d["arm"], d["less"])
    ]
    return table(["in", "difference", "both measures", "p"], rows)


def tables(summary: Mapping) -> dict[str, str]:
    """By the mark that they stand at."""
    return {
        "contrasts": contrasts(summary["contrasts"], summary["equal_kl"]),
        "explored": explored(summary["explored"]),
        "confirm": confirm(summary["confirm"]),
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
