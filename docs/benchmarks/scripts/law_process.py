"""A process in which one hierarchy is decided: nothing is kept in it, sympy has seen nothing, torch is not imported.

It reads a task as JSON from its stdin, and writes an answer as JSON to its stdout.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from fibration.language.hierarchy import Hierarchy


def decide(hierarchy: Hierarchy, timeout: float) -> dict[str, Any]:
    begin = time.perf_counter()
    report = hierarchy.verify(timeout)
    verified = time.perf_counter()
    facts = report.facts
    end = time.perf_counter()
    late = [v.law for v in report.verdicts if v.out_of_time] + ["facts" for f in facts if "out of time" in f.value]
    outcome = "out of time" if late else "verified" if report.ok else "refused"
    return {
        "verify": verified - begin,
        "facts": end - verified,
        "outcome": outcome,
        "out_of_time": late[0] if late else "",
    }


def main() -> None:
    task = json.load(sys.stdin)
    hierarchy = Hierarchy.model_validate_json(task["hierarchy"])
    sys.stdout.write(json.dumps(decide(hierarchy, task["timeout"])) + "\n")


if __name__ == "__main__":
    main()
