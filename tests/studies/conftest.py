"""Makes the modules of a study importable by name, as for scripts in one folder. No two studies share a name."""

import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[2] / "docs" / "studies"
sys.path += [str(STUDIES / name) for name in ("staleness", "smollm2", "levels")]
