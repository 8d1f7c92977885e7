"""The modules of a study import each other by name, as scripts in one folder do; no two studies share a name."""

import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[2] / "docs" / "studies"
sys.path += [str(STUDIES / name) for name in ("staleness", "smollm2")]
