"""A ctypes loader for a generated C file, for use without this library: torch and a C compiler are enough."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.backends import calling
from fibration.backends.c import calling as c_calling
from fibration.backends.c.calling import SHARED
from fibration.backends.c.emit import shared
from fibration.backends.standalone import NOTES, Export, example, further, joined, written
from fibration.compiler.plan import Plan
from fibration.errors import BackendError

LOADER = '''\
{header}
"""Calls to {file} through ctypes, without the library that wrote it: torch and a C compiler are enough.

Every function takes keywords and returns a dict of results. The comment of the function in {file} lists the arguments.
They are CPU tensors. This module makes sizes, strides, the workspace and the results, and `lay_out` makes the layout.
Parameters are float64, as one number or one per element:

{example}

{notes}
{further}"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # fibration_c.py and fibration.h lie beside this file
from fibration_c import call, described, laid_out, without_metrics

SOURCE = Path(__file__).with_name("{file}")
# Per function: rows, kinds of tokens, fill; arguments (name, kind, what they are of); the vectors of the workspace, by
# stratum; and the results that are not per token, with their names in the workspace or among the arguments.
{functions}


def lay_out(function, offsets, parents, leaves=None):
    """Returns the layout arguments of a function, for packed tokens without gaps: `laid_out` of fibration_c.py."""
    return laid_out(FUNCTIONS[function], offsets, parents, leaves)
{definitions}'''

DEFINITION = '''

def {name}(**arguments):
    """{title}"""
    return call(SOURCE, FUNCTIONS, "{name}", arguments)
'''


def export(
    name: str, header: str, source: str, plans: Mapping[str, Plan], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The loader, and the C file that it builds for the machine it runs on. Raises BackendError for an `arch`."""
    if arch:
        raise BackendError("the C backend compiles for the machine that the file is used on", remedy="leave --arch out")
    file = f"{name}_c.c"
    loader = LOADER.format(
        header="\n".join(header.splitlines()[:3]),
        file=file,
        functions=written(plans),
        definitions="".join(DEFINITION.format(name=n, title=titles[n]) for n in plans),
        example=example(plans, "objective(", " " * 4),
        notes=NOTES,
        further=further(plans),
    )
    beside = {SHARED: shared(), "fibration_c.py": joined(calling.__file__, c_calling.__file__)}
    return Export({f"{name}_c.py": loader, file: source, **beside})
