"""The certificate that `fibration compile` writes, and the table of kernels that it prints."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib import metadata

from rich.table import Table

from fibration.backends.standalone import Export
from fibration.escaping import json_text
from fibration.files import as_bytes
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report
from fibration.pipeline import Artifact, standalone
from fibration.printing.layout import folded
from fibration.printing.text import text


def source_of(hierarchy: Hierarchy, backend: str, functions: bool = False) -> Artifact:
    """The source of a verified loss for one backend, whose header declares the loss."""
    return standalone(hierarchy, backend, functions, folded(text(hierarchy), 116))


def certificate(artifact: Artifact, report: Report, export: Export) -> str:
    """The certificate as JSON: the spec, what was proved, and hashes of spec, source and files.

    It is the same on every machine with the same versions.
    """
    document = artifact.hierarchy.model_dump_json()
    used = ["triton"] if artifact.backend == "triton" else []
    content = {
        "format": "fibration.certificate/1",
        "spec": json.loads(document),
        "spec_sha256": sha256(document.encode()).hexdigest(),
        "backend": artifact.backend,
        "module": next(iter(export.files)),
        "source_sha256": sha256(artifact.source.encode()).hexdigest(),
        "files": {name: sha256(as_bytes(contents)).hexdigest() for name, contents in export.files.items()},
        "kernels": list(export.kernels),
        "report": report.to_dict(),
        "versions": {p: metadata.version(p) for p in ("fibration", "sympy", "torch", *used)},
    }
    return json_text(content) + "\n"


def kernel_table(export: Export) -> Table:
    """A table with registers, spills and shared memory of every kernel."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = ("kernel", "arch", "registers", "spilled_bytes", "shared_bytes", "warps")
    for i, name in enumerate(shown):
        table.add_column(name.replace("_", " "), justify="right" if i else "left")
    for row in export.kernels:
        table.add_row(*(str(row[k]) for k in shown))
    return table
