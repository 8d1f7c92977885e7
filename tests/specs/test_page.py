"""`docs/losses/`: a page per family, with a line for every loss and the text of its file. This test writes and checks them.

FIBRATION_UPDATE_GOLDEN=1 writes them anew.
"""

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest
from oracles.published_comparison import SOURCES, agreement
from support import said_of, spec
from thorough import ALL

from fibration.language.loading import shipped, shipped_file
from fibration.laws import LAWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "losses.md"
PAGES = ROOT / "docs" / "losses"
FOLDERS = ("tokens", "sequences", "rollout", "masks", "rewards", "terms", "order", "attenuated", "fiberpo")
TRAINERS = ("TRL", "verl", "SkyRL", "NeMo-RL", "OpenRLHF", "AReaL", "ROLL", "slime", "prime-rl", "ms-swift", "Tinker")


def pages() -> dict[str, str]:
    """The page of every family, by its folder, and the tables of families and of laws in `docs/losses.md`."""
    by_folder = defaultdict(list)
    for name in shipped():
        by_folder[shipped_file(name).stem].append(name)
    assert set(by_folder) == set(FOLDERS)
    made = {folder: family(folder, by_folder[folder]) for folder in FOLDERS}
    rows = ["", "| family | summary | losses |", "|---|---|---|"]
    for folder in FOLDERS:
        links = ", ".join(f"[{name}](losses/{folder}.md#{name})" for name in by_folder[folder])
        rows.append(f"| [{folder}](losses/{folder}.md) | {title(folder)} | {links} |")
    return {**made, "losses": "\n".join([*rows, ""]), "laws": laws()}


def laws() -> str:
    """The laws that losses give up, each with these losses."""
    found = defaultdict(list)
    for name in shipped():
        for reason in spec(name).gives_up:
            found[reason.partition(" ")[0]].append(f"[{name}](losses/{shipped_file(name).stem}.md#{name})")
    rows = (f"| `{law}` | {', '.join(dict.fromkeys(found[law]))} |" for law in LAWS if law in found)
    return "\n".join(["", "| law | given up by |", "|---|---|", *rows, ""])


def reversals() -> str:
    """What the fact `reversal` says of every loss."""
    found = defaultdict(list)
    for name in shipped():
        (value,) = (f.value for f in spec(name).verify().facts if f.name == "reversal")
        found[value].append(f"[{name}](losses/{shipped_file(name).stem}.md#{name})")
    found["none"] = ["every other loss"]
    rows = [
        f"| {value} | {', '.join(found[value])} |"
        for value in sorted(found, key=lambda v: (v == "none", len(found[v])))
    ]
    return "\n".join(["", "| fact | losses |", "|---|---|", *rows, ""])


def title(folder: str) -> str:
    return (ROOT / "specs" / f"{folder}.py").read_text().partition("\n")[0].strip('"')


def family(folder: str, names: list[str]) -> str:
    file = f"[specs/{folder}.py](../../specs/{folder}.py)"
    lines = [f"# Losses: {folder}", "", f"{title(folder)} [All families](../losses.md). The declarations: {file}.", ""]
    for name in names:
        shipped_by = f" ({trainers(name)})" if trainers(name) else ""
        lines.append(f"- [{name}](#{name}): {said_of(name).splitlines()[0]}{shipped_by}")
    for name in names:
        lines += ["", f"## {name}", "", *said_of(name).splitlines()[2:]]
    return "\n".join([*lines, ""])


def trainers(name: str) -> str:
    return ", ".join(t for t in TRAINERS if re.search(rf"\b{t}\b", said_of(name)))


def parts(text: str, word: str) -> tuple[str, str, str]:
    before, start, rest = text.partition(f"<!-- {word} -->")
    found, end, after = rest.partition(f"<!-- /{word} -->")
    assert start and end, "a page has lost the comments around what is written by a test"
    return before + start, found, end + after


def test_the_pages_of_losses_equal_their_specs():
    if os.environ.get("FIBRATION_UPDATE_GOLDEN") == "1":
        made = pages()
        for word in ("losses", "laws"):
            before, _, after = parts(PAGE.read_text(), word)
            PAGE.write_text(f"{before}{made.pop(word)}{after}")
        for folder, text in made.items():
            (PAGES / f"{folder}.md").write_text(text)
    index = {word: parts(PAGE.read_text(), word)[1] for word in ("losses", "laws")}
    written = {**index, **{f.stem: f.read_text() for f in PAGES.glob("*.md")}}
    assert pages() == written, (
        "docs/losses is out of date: read the difference, then renew it with FIBRATION_UPDATE_GOLDEN=1"
    )


@pytest.mark.thorough
def test_the_page_states_which_losses_reverse_tokens():
    made, (before, written, after) = reversals(), parts(PAGE.read_text(), "reversal")
    if os.environ.get("FIBRATION_UPDATE_GOLDEN") == "1":
        PAGE.write_text(f"{before}{made}{after}")
        written = made
    assert written == made


@pytest.mark.skipif(not ALL, reason="what `test_published.py` asks of fewer batches")
def test_agreement_with_sources_is_as_the_page_states():
    assert max(agreement(name, backend) for name in SOURCES for backend in ("torch", "c")) < 1e-13
