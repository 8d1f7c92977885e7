"""The modules of a study import each other by name, as scripts in one folder do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "staleness"))
