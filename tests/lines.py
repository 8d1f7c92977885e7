"""Lines of source and of tests, and words of documentation, per room, against `lines.json`: a room never grows.

`make lint` runs it. A feature takes its lines from somewhere: what one room needs, another gives, and the table says
so. `python tests/lines.py --less` writes what has become less.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".json")
CODE = (".py", ".h")
COUNTED = {"fibration": CODE, "backends": CODE, "specs": CODE, "tests": (*CODE, ".txt"), "docs": (".md",)}
WORDS = "docs"  # counted in words, the others in lines


def files() -> Iterator[tuple[str, Path]]:
    """Every file of the checkout that counts, with its room: a folder of a package, or the package itself for what lies
    beside them. None where git does not list files: no checkout, or somebody else's."""
    listed = subprocess.run(["git", "ls-files", *COUNTED], cwd=ROOT, capture_output=True, text=True)
    for path in map(Path, listed.stdout.splitlines()):
        top, *inside = path.parts
        if path.suffix in COUNTED[top] and (ROOT / path).exists():
            yield f"{top}/{inside[0]}" if len(inside) > 1 and top != "specs" else top, ROOT / path


def count() -> dict[str, int]:
    found: Counter[str] = Counter()
    for room, path in files():
        text = path.read_text()
        found[room] += len(text.split()) if room.startswith(WORDS) else text.count("\n")
    return dict(sorted(found.items()))


def main() -> int:
    found, table = count(), json.loads(TABLE.read_text())
    if not found:
        print("lines are not counted: git lists no files here")
        return 0
    if "--less" in sys.argv:
        less = {room: min(n, table.get(room, n)) for room, n in found.items()}
        TABLE.write_text(json.dumps(less, indent=1) + "\n")
        return 0
    grown = {room: (n, table.get(room, 0)) for room, n in found.items() if n > table.get(room, 0)}
    for room, (n, most) in grown.items():
        what = "words" if room.startswith(WORDS) else "lines"
        print(f"{room} has {n:,} {what}, of {most:,}: take {n - most:,} away there, or from another room in lines.json")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
