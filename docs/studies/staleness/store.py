"""The folder of results: a line of JSON for every run, read and appended, and the settings chosen from them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CHOSEN, FOUND = "chosen.json", "found.json"  # what tuning chose, and what the search found

Settings = dict[str, dict[str, dict]]  # by kind, `best` or `large`, and arm: its learning rate and scale of trust


def command(script: str, results: Path = RESULTS, **others: Path) -> str:
    """How a script of the study is run on a folder of results, from the repository's root."""
    folders = ({} if results == RESULTS else {"results": results}) | others
    options = (f" --{name} {shlex.quote(str(folder))}" for name, folder in folders.items())
    return f"python docs/studies/staleness/{script}{''.join(options)}"


def key(run: Mapping) -> str:
    """What tells a run from all others."""
    return json.dumps(dict(run), sort_keys=True)


def whole(file: Path) -> Iterator[dict]:
    """Lines of a file that may not be there; one that was cut off is none."""
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            continue


def lines(part: str, results: Path = RESULTS) -> list[dict]:
    """The results of a part, each run's once, in an order of their own."""
    found: dict[str, dict] = {}
    for line in whole(results / f"{part}.jsonl"):
        found.setdefault(key(line["run"]), line)
    return [found[run] for run in sorted(found)]


def append(file: Path, line: dict) -> None:
    """A whole line in one write, so that processes that share a file do not mix theirs, and after none that was cut."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b", buffering=0) as target:
        end = target.seek(0, os.SEEK_END)
        target.seek(max(0, end - 1))
        ended = target.read(1) in (b"", b"\n")
        target.write(("\n" * (not ended) + json.dumps(line, separators=(",", ":")) + "\n").encode())


def read_bases(results: Path = RESULTS) -> dict[int, list[float]]:
    """By seed what its base can do: the share of samples right in each domain, as it was written last."""
    return {line["seed"]: line["right"] for line in whole(results / "bases.jsonl")}


def read_chosen(results: Path = RESULTS) -> Settings:
    """What `choose.py tune` has written."""
    file = results / CHOSEN
    if not file.exists():
        choose = command("choose.py tune", results)
        raise SystemExit(f"{results} has no {CHOSEN}, whose settings are tested: run `{choose}` first")
    return json.loads(file.read_text())


def read_found(results: Path = RESULTS) -> Settings | None:
    """What `choose.py search` has written, none before it has."""
    file = results / FOUND
    return json.loads(file.read_text()) if file.exists() else None
