"""The table of a comparison: the parts in which two losses differ, in the words of each side."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fibration.errors import listed
from fibration.language.comparable import Options
from fibration.language.report import Report
from fibration.laws.equivalent.decide import REMEDY, Comparison
from fibration.printing.law_table import KINDS


class Parts(NamedTuple):
    """The parts in which two losses differ. `rows`: a part, and what each side declares, with what decides it."""

    names: tuple[str, str]
    rows: list[tuple[str, list[tuple[str, str]]]]
    said: dict[str, str]  # by titles
    fix: str


def parts_of(report: Report, options: tuple[Options, Options]) -> Parts | None:
    """Returns the parts in which two losses differ, and a batch that tells them apart; None without parts.

    `options`: what decides the parts of each loss that a config declares.
    """
    (verdict,) = report.verdicts
    if not isinstance(verdict, Comparison) or not verdict.parts:
        return None
    first, second = report.hierarchy.name, verdict.subject.split("'")[1]
    rows = []
    for part in (part for part in verdict.parts if part.differs):
        decided = (f"[{', '.join(of[part.name])}]" if of.get(part.name) else "" for of in options)
        declared = (text or "none" for text in part[1:])
        rows.append((part.name.removeprefix("the "), [*zip(declared, decided, strict=True)]))
    same = [part.name.removeprefix("the ") for part in verdict.parts if not part.differs]
    factor = f"every coefficient is {verdict.factor} times that of {verdict.subject}, which is proved"
    said = {
        "the same in both": listed(same),
        "found": "" if verdict.counterexample else verdict.found,
        "a multiple": factor if verdict.factor else "",
        "counterexample": str(verdict.counterexample or ""),
    }
    names = (first, second) if first != second else ("the first", "the second")
    return Parts(names, rows, {title: text for title, text in said.items() if text}, verdict.remedy)


def parts_table(report: Report, options: tuple[Options, Options]) -> RenderableType | None:
    """Returns `parts_of` as text, the two losses beside each other."""
    found = parts_of(report, options)
    if found is None:
        return None
    grid = Table.grid(padding=(0, 2, 0, 0))
    for width in (dict(no_wrap=True), dict(ratio=1), dict(ratio=1)):
        grid.add_column(overflow="fold", **width)  # type: ignore[arg-type]
    grid.add_row("", *(Text(name, "bold") for name in found.names))
    shown = KINDS[report.verdicts[0].status]
    for name, sides in found.rows:
        texts = (Text(text).append(f"\n{decided}" * bool(decided), "dim") for text, decided in sides)
        grid.add_row(Text.assemble((f"{shown.sign} ", shown.style), name), *texts)
    lines: list[RenderableType] = [Text(), grid] if found.rows else []
    lines += [Text(), *(Text.assemble((f"{title}: ", "bold"), text) for title, text in found.said.items())]
    wraps = found.fix == REMEDY  # what is written into a config is pasted
    fix = Text.assemble(("fix: ", "bold"), found.fix, no_wrap=not wraps, overflow="fold" if wraps else "ignore")
    return Group(*lines, fix)
