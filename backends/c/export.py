"""A ctypes loader for a generated C file, for use without this library: torch and a C compiler are enough."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pformat

from fibration.backends.c.build import FLAGS
from fibration.backends.c.emit import LACKING
from fibration.backends.c.language import dtype_of
from fibration.backends.standalone import LAY_OUT, Export, further, written
from fibration.compiler.ir import BATCH
from fibration.compiler.plan import Plan
from fibration.errors import BackendError

LOADER = '''\
{header}
"""Calls to {file} through ctypes, without the library that wrote it: torch and a C compiler are enough.

Every function takes keywords and returns a dict of results. The comment of the function in {file} lists the arguments.
They are CPU tensors. This module makes sizes, strides, the workspace and the results, and `lay_out` makes the layout.
Pass the tensors over tokens, and the parameters in float64, as one number or one per element:

    layout = lay_out("objective", cu_seqlens.long(), {{("trajectory", "prompt_group"): groups, ...}})
    objective(log_probs=..., old_log_probs=..., advantages=..., NAME_of=torch.tensor([0.1]).double(), **layout)

- If formulas name a further policy, pass its log-probs, such as `rollout_log_probs`.
- Advantages are per token. For advantages per row, pass `trajectory_rows`, int64: the row of each trajectory.
- A result `nonfinite` above 0 is the number of rows with an infinite or undefined log ratio or advantage. Do not use
  the results then: the objective is NaN, and so are the results of such tokens.
{further}"""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("{file}")
FLAGS = {flags}
NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
STORAGE = {{torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}}
LACKING_MACRO = {lacking}
# Per function: "arguments" are (name, kind, object), "work" are its vectors by stratum, in order. "returns"
# are the results that are not per token, with their names in the workspace or among the arguments.
{functions}
_loaded = {{}}


{definitions}
{lay_out}

def call(function, given):
    """Runs the function, after building it for these dtypes and this layout, unless it is built."""
    arguments = FUNCTIONS[function]["arguments"]
    given = checked(function, given)
    wide = dtype_of_results(function, given) == torch.float64
    values, results = completed(function, given, torch.float64 if wide else torch.float32)
    of = FUNCTIONS[function].get("of", function)
    defines = {{f"WITHOUT_{{other}}": "1" for other in FUNCTIONS if other != of}}
    defines |= {{"METRICS": str(int(of == function))}}
    defines |= {{"RESULT": "f64" if wide else "f32", "REAL": "f64" if wide else "f32"}}
    defines["PER_ROW"] = str(int(any(values[name] is not None for name, kind, _ in arguments if kind == "rows")))
    for name, kind, _ in arguments:
        if kind in FLOATS:
            defines[{macro}] = STORAGE[values[name].dtype]
        if kind in LACKING_MACRO:
            defines[LACKING_MACRO[kind] + "_" + name.removesuffix("_" + kind)] = str(int(values[name] is None))
    sizes = (values[name].element_size() for name, kind, _ in arguments if kind == "token")
    defines["NARROW"] = str(min(sizes, default=4))
    passed = (v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values.values())
    _function(of, defines)(*passed, torch.get_num_threads())
    return results


def _function(function, defines):
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise RuntimeError(f"the environment variable CC={{os.environ['CC']!r}} is no compiler: {{error}}") from None
    own = [a for a in compiler if a.startswith(("-O", "-march=", "-mcpu="))]
    target = own if any(a.startswith("-m") for a in own) else [*own, NATIVE]
    flags = [*FLAGS, *target, *(f"-D{{k}}={{v}}" for k, v in sorted(defines.items()))]
    processor = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else platform.processor()
    chip = sorted({{line for line in processor.splitlines() if line.startswith(("model name", "flags", "Features"))}})
    key = hashlib.sha256("\\0".join([SOURCE.read_text(), *compiler, *flags, *chip]).encode()).hexdigest()[:24]
    if (function, key) not in _loaded:
        library = _build([*compiler, *flags], key)
        loaded = getattr(ctypes.CDLL(str(library)), function)
        kinds = {{"size": ctypes.c_int64, "places": ctypes.c_int64, "stride": ctypes.c_int64, "fill": ctypes.c_double}}
        arguments = FUNCTIONS[function]["arguments"]
        loaded.argtypes = [*(kinds.get(kind, ctypes.c_void_p) for _, kind, _ in arguments), ctypes.c_int]
        loaded.restype = None
        _loaded[function, key] = loaded
    return _loaded[function, key]


def _build(command, key):
    """Compiles a library next to this file. It is renamed when complete, so several processes may build it."""
    library = SOURCE.with_name(f"{{SOURCE.stem}}-{{key}}.so")
    if not library.exists():
        handle, unfinished = tempfile.mkstemp(suffix=".so", dir=SOURCE.parent)
        os.close(handle)
        try:
            done = subprocess.run([*command, "-o", unfinished, str(SOURCE), "-lm"], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{{command[0]}} failed on {{SOURCE}}:\\n{{done.stderr}}")
            os.chmod(unfinished, 0o755)
            os.replace(unfinished, library)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    return library
'''

DEFINITION = '''\
def {name}(**arguments):
    """{title}"""
    return call("{name}", arguments)


'''


def export(
    name: str, header: str, source: str, plans: Mapping[str, Plan], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The loader, and the C file that it builds for the machine it runs on. Raises BackendError for an `arch`."""
    if arch:
        raise BackendError("the C backend compiles for the machine that the file is used on", remedy="leave --arch out")
    file = f"{name}_c.c"
    return Export({f"{name}_c.py": loader(header, file, plans, titles), file: source})


def loader(header: str, file: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a Python module that builds and calls `file`."""
    return LOADER.format(
        header=header.rstrip(),
        file=file,
        batch=BATCH,
        flags=pformat(list(FLAGS), width=110, compact=True),
        macro='f"' + dtype_of("{name}") + '"',
        lacking=pformat(LACKING),
        functions=written(plans),
        definitions="".join(DEFINITION.format(name=n, title=titles[n]) for n in plans),
        lay_out=LAY_OUT.rstrip(),
        further=further(plans),
    )
