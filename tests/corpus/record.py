"""What the library says of every hierarchy of the tests, of all shipped losses and of pairs, as data in this folder.

    python -m corpus.record            writes it all anew, in the folder `tests`; an hour on one core
    python -m corpus.record wrong_specs pairs

A record has the status of each verdict with its cause and the beginning of its counterexample, each fact, and J and a
weighed sum of the coefficients on ten batches. These numbers are of `fuzz.world`, in fractions and fifty digits: they
share nothing with the compiler. A change of the library shows as a change of these files, which needs a reason.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from fuzz.batches import Batches
from fuzz.dual_numbers import value_of
from fuzz.world import Batch, World
from hierarchies import loss_pairs, loss_pairs_with_penalties, loss_pairs_with_weights
from hierarchies.every import MODULES, hierarchies_of

from fibration import Hierarchy, equivalent, load
from fibration.errors import FibrationError
from fibration.language.hierarchy import fingerprint
from fibration.language.loading import shipped
from fibration.language.report import Verdict

HERE = Path(__file__).parent
SECONDS = 600.0  # for a hierarchy: no verdict may depend on the machine
BATCHES, TOKENS, DIGITS = 10, 8, 20
Record = dict[str, Any]


def hierarchies(file: str) -> dict[str, Hierarchy]:
    """The hierarchies of a file, by name and what they are."""
    found = map(load, shipped()) if file == "shipped" else hierarchies_of(file)
    return {f"{h.name} {(fingerprint(h) or str(k))[:8]}": h for k, h in enumerate(found)}


def pairs() -> dict[str, Any]:
    modules = loss_pairs, loss_pairs_with_weights, loss_pairs_with_penalties
    tables = [
        (m.__name__.rpartition("_")[2], word, getattr(m, word)) for m in modules for word in ("SAME", "DIFFERENT")
    ]
    return {f"{module} {word}: {name}": pair for module, word, table in tables for name, pair in table.items()}


FILES = ("shipped", *MODULES, "pairs")


def keys(file: str) -> Mapping[str, Any]:
    return pairs() if file == "pairs" else hierarchies(file)


def record(of: Any) -> Any:
    """The record of a hierarchy, or of a pair."""
    if isinstance(of, Hierarchy):
        report = of.verify(timeout=SECONDS)
        verdicts = {f"{v.law}: {v.subject}": said(v) for v in report.verdicts}
        facts: dict[str, list[str]] = {}
        for f in report.facts:
            facts.setdefault(f"{f.name}: {f.subject}", []).append(f.value)
        seeds = range(BATCHES) if report.verdicts[0].status == "proved" else ()  # a structure has batches
        return {"verdicts": verdicts, "facts": facts, "values": [values(of, seed) for seed in seeds]}
    try:
        verdict = equivalent(of.first, of.second, of.when, parameters=dict(of.parameters), timeout=SECONDS).verdicts[0]
        return said(verdict)
    except FibrationError as error:
        return type(error).__name__


def said(v: Verdict) -> str:
    cause = f", after {v.cause.law} of {v.cause.subject}" if v.cause else ""
    return (
        f"{v.status}{', given up' * bool(v.given_up)}{cause}{f': {v.counterexample}'[:80] if v.counterexample else ''}"
    )


def batch(h: Hierarchy, seed: int) -> Batch:
    return Batches(h, random.Random(f"corpus {seed}"), TOKENS)(tries=300)


def values(h: Hierarchy, seed: int) -> list[str] | str:
    """`J` and the sum of `(i + 1)·cᵢ` over tokens; or why brute force has none."""
    try:
        world = World(h, batch(h, seed), exact=True)
        return [rounded(world.objective), rounded(sum((i + 1) * c for i, c in enumerate(world.coefficients)))]
    except Exception as error:  # of a formula that reads what it may not, too
        return type(error).__name__


def rounded(x: Any) -> str:
    """A number with twenty digits."""
    exact = Fraction(value_of(x))
    if not exact:
        return "0"
    shift = DIGITS - len(str(int(abs(exact)))) if abs(exact) >= 1 else DIGITS
    return f"{round(exact * 10**shift)}e{-shift}"


def main(files: list[str]) -> None:
    for file in files or FILES:
        found = {key: record(of) for key, of in keys(file).items()}
        lines = (
            f"{json.dumps(key)}: {json.dumps(found[key], ensure_ascii=False, sort_keys=True)}" for key in sorted(found)
        )
        (HERE / f"{file}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(file, len(found), flush=True)


def recorded(file: str) -> Record:
    return json.loads((HERE / f"{file}.json").read_text())  # type: ignore[no-any-return]


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Each place where two records differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{where}{key} | ")
    elif old != new:
        yield f"{where}was {old}, is {new}"


if __name__ == "__main__":
    main(sys.argv[1:])
