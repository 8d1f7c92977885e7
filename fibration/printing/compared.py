"""The table of a comparison: the parts in which two losses differ, in the words of each side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fibration.errors import listed
from fibration.language.comparable import Options
from fibration.language.report import Report
from fibration.laws.equivalent.decide import REMEDY, Comparison
from fibration.printing.law_table import KINDS


def parts_table(report: Report, options: tuple[Options, Options]) -> RenderableType | None:
    """Returns the parts in which two losses differ, beside each other, and under them a batch that tells them apart.

    `options`: what decides the parts of each loss that a config declares. None for a verdict without parts.
    """
    (verdict,) = report.verdicts
    if not isinstance(verdict, Comparison) or not verdict.parts:
        return None
    parts = verdict.parts
    shown, differ = KINDS[verdict.status], [part for part in parts if part.differs]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for width in (dict(no_wrap=True), dict(ratio=1), dict(ratio=1)):
        grid.add_column(overflow="fold", **width)  # type: ignore[arg-type]
    first, second = report.hierarchy.name, verdict.subject.split("'")[1]
    names = (first, second) if first != second else ("the first", "the second")
    grid.add_row("", *(Text(name, "bold") for name in names))
    for part in differ:
        cells = zip(part[1:], options, strict=True)
        texts = [Text(text or "none").append(_decided(of.get(part.name, ())), "dim") for text, of in cells]
        grid.add_row(Text.assemble((f"{shown.sign} ", shown.style), part.name.removeprefix("the ")), *texts)
    lines: list[RenderableType] = [Text(), grid] if differ else []
    same = [part.name.removeprefix("the ") for part in parts if not part.differs]
    factor = f"every coefficient is {verdict.factor} times that of {verdict.subject}, which is proved"
    told = {
        "the same in both": listed(same),
        "found": "" if verdict.counterexample else verdict.found,
        "a multiple": factor if verdict.factor else "",
        "counterexample": str(verdict.counterexample or ""),
    }
    lines += [Text(), *(Text.assemble((f"{title}: ", "bold"), text) for title, text in told.items() if text)]
    wraps = verdict.remedy == REMEDY  # what is written into a config is pasted
    fix = Text.assemble(("fix: ", "bold"), verdict.remedy, no_wrap=not wraps, overflow="fold" if wraps else "ignore")
    return Group(*lines, fix)


def _decided(options: Sequence[str]) -> str:
    return f"\n[{', '.join(options)}]" if options else ""
