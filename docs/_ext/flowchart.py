"""Blocks of mermaid, as GitHub draws them, drawn here as SVG: boxes in layers, and arrows from a box to those below it.

Only what pages use is read: `flowchart TD`, and a line `a --> b` per arrow.
"""

import re
from html import escape
from typing import Any

import networkx as nx

ARROW = re.compile(r"(\w+) --> (\w+)")
HIGH, GAP, LETTER, PAD, BOW = 30, 44, 8.4, 24, 90  # of a box, between layers, of a letter, beside a name, of an arrow


def graph(text: str) -> nx.DiGraph:
    first, *lines = (line.strip() for line in text.strip().splitlines())
    arrows = [ARROW.fullmatch(line) for line in lines]
    if first != "flowchart TD" or not all(arrows):
        raise ValueError("a mermaid block that is not `flowchart TD` with an arrow `a --> b` per line")
    return nx.DiGraph(a.groups() for a in arrows if a)


def layers(g: nx.DiGraph) -> list[list[str]]:
    """Every box as low as what it leads to allows, next to each other near to where arrows come from."""
    depth = {n: 0 for n in g}
    for n in reversed(list(nx.topological_sort(g))):
        depth[n] = max((depth[m] + 1 for m in g[n]), default=0)
    rows = [[n for n in g if depth[n] == d] for d in range(max(depth.values()), -1, -1)]
    place = {n: (i + 0.5) / len(row) for row in rows for i, n in enumerate(row)}
    for row in [*rows, *reversed(rows), *rows]:
        near = {n: [place[m] for m in (*g.predecessors(n), *g.successors(n))] for n in row}
        row.sort(key=lambda n: sum(near[n]) / len(near[n]) if near[n] else place[n])
        place |= {n: (i + 0.5) / len(row) for i, n in enumerate(row)}
    return rows


def svg(text: str) -> str:
    g = graph(text)
    rows = layers(g)
    wide = {n: LETTER * len(n) + PAD for n in g}
    width = max(sum(wide[n] + PAD for n in row) for row in rows)
    centre: dict[str, tuple[float, float]] = {}
    depth = {n: y for y, row in enumerate(rows) for n in row}
    for y, row in enumerate(rows):
        free = (width - sum(wide[n] for n in row)) / (len(row) + 1)
        x = free
        for n in row:
            centre[n] = (x + wide[n] / 2, y * (HIGH + GAP) + HIGH / 2 + 2)
            x += wide[n] + free
    arrows, boxes = [], []
    for a, b in g.edges:
        (x, y), (to, below) = centre[a], centre[b]
        y, below = y + HIGH / 2, below - HIGH / 2 - 5
        middle = (y + below) / 2
        aside = BOW if depth[b] - depth[a] > 1 and abs(x - to) < BOW else 0  # round what lies straight between
        curve = f"{x + aside:.0f} {middle:.0f} {to + aside:.0f} {middle:.0f} {to:.0f} {below:.0f}"
        arrows.append(f'<path d="M{x:.0f} {y:.0f}C{curve}"/>')
    for n, (x, y) in centre.items():
        boxes.append(
            f'<rect x="{x - wide[n] / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{wide[n]:.0f}" height="{HIGH}" rx="5"/>'
        )
        boxes.append(f'<text x="{x:.0f}" y="{y + 5:.0f}">{escape(n)}</text>')
    high = len(rows) * (HIGH + GAP) - GAP + 4
    return (
        f'<svg class="flowchart" viewBox="0 0 {width:.0f} {high}" role="img" style="width:{width:.0f}px">'
        '<marker id="arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z"/></marker>{"".join(arrows + boxes)}</svg>'
    )


def setup(app: Any) -> dict[str, bool]:
    from docutils import nodes
    from docutils.parsers.rst import Directive

    class Mermaid(Directive):
        has_content = True

        def run(self) -> list[nodes.Node]:
            drawn = svg("\n".join(self.content))
            return [nodes.raw("", f'<div class="formula">{drawn}</div>', format="html")]

    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
