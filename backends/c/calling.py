"""Builds and calls generated C files, for callers without the library. `fibration compile -o` writes it beside them."""

# mypy: ignore-errors
import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch

from fibration.backends.calling import FLOATS, checked, completed, dtype_of_results

SHARED = "fibration.h"
# -fno-trapping-math lets choices become vector blends; NaN, infinities and every rounding stay as C defines them. Jump
# threading through dependent choices makes more blends, not fewer. -O3 builds longer, and its code is no faster.
FLAGS = (
    "-std=c11", "-O2", "-ftree-vectorize", "-fno-thread-jumps", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fPIC", "-shared", "-w",
)  # fmt: skip
NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
STORAGE = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
LACKING = {"positions": "WHOLE", "tokens": "COUNTED"}  # the macro that is 1 if the argument is None
PASSED = {"size": ctypes.c_int64, "places": ctypes.c_int64, "stride": ctypes.c_int64, "fill": ctypes.c_double}
VECTOR = 64  # bytes of all lanes, for the part of fibration.h that reads and stores
_loaded = {}


def call(source, functions, function, given):
    """Runs a function of a C file, after building it for these dtypes and this layout, unless it is built.

    `functions`: FUNCTIONS of the module.
    """
    about = functions[function]
    arguments, of, given = about["arguments"], about.get("of", function), checked(function, about, given)
    dtype = dtype_of_results(about, given)
    values, results = completed(about, given, dtype)
    defines = {f"WITHOUT_{other}": "1" for other in functions if other != of}
    defines |= variant(arguments, values, dtype, dtype) | {"METRICS": str(int(of == function))}
    passed = (v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values.values())
    _function(source, of, arguments, defines)(*passed, torch.get_num_threads())
    return results


def variant(arguments, values, result, real):
    """The macros that fit the source to a batch: the dtypes, and the layout of tokens.

    `arguments`: (name, kind, what it is of) each. `result`, `real`: the dtypes of results and of tokens' values.
    """
    dtypes = [values[name].dtype for name, kind, _ in arguments if kind == "token"]
    defines = {"RESULT": STORAGE[result], "REAL": STORAGE[real], "NARROW": str(narrowest(dtypes))}
    defines["PER_ROW"] = str(int(any(values[name] is not None for name, kind, _ in arguments if kind == "rows")))
    for name, kind, _ in arguments:
        if kind in FLOATS:
            defines[f"DTYPE_{name}"] = STORAGE[values[name].dtype]
        if kind == "offsets":  # rows that are so short are computed in blocks
            defines[f"SHORT_{name.removesuffix('_offsets')}"] = str(int(is_short(values[name], dtypes)))
        if kind in LACKING:
            defines[LACKING[kind] + "_" + name.removesuffix("_" + kind)] = str(int(values[name] is None))
    return defines


def narrowest(dtypes):
    """The bytes of the narrowest number, 4 without any."""
    return min((dtype.itemsize for dtype in dtypes), default=4)


def is_short(offsets, dtypes):
    """Whether no row has more tokens than lanes."""
    before = offsets.numpy()
    return bool((before[1:] - before[:-1] <= VECTOR // narrowest(dtypes)).all())


def opened(library, function, arguments):
    """A function of a library, which takes `arguments` and the number of threads."""
    loaded = getattr(library, function)
    loaded.argtypes = [*(PASSED.get(kind, ctypes.c_void_p) for _, kind, _ in arguments), ctypes.c_int]
    loaded.restype = None
    return loaded


def target(compiler):
    """The flags for this processor, unless `compiler` names one. Its own flags come after FLAGS: the later one wins."""
    own = [a for a in compiler if a.startswith(("-O", "-march=", "-mcpu="))]
    return own if any(a.startswith("-m") for a in own) else [*own, NATIVE]


def processor():
    """The processor data that `-march=native` depends on, because different machines may share a cache."""
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    told = [line for line in about if line.partition(":")[0].strip() in ("model name", "flags", "Features", "CPU part")]
    return "\n".join(dict.fromkeys(told)) or platform.processor()


def _function(source, function, arguments, defines):
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise RuntimeError(f"the environment variable CC={os.environ['CC']!r} is no compiler: {error}") from None
    flags = [*FLAGS, *target(compiler), *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    texts = [source.read_text(), source.with_name(SHARED).read_text()]
    key = hashlib.sha256("\0".join([*texts, *compiler, *flags, processor()]).encode()).hexdigest()[:24]
    if (source, function, key) not in _loaded:
        library = ctypes.CDLL(str(_build(source, [*compiler, *flags], key)))
        _loaded[source, function, key] = opened(library, function, arguments)
    return _loaded[source, function, key]


def _build(source, command, key):
    """Compiles a library next to a file. It is renamed when complete, so several processes may build it."""
    library = source.with_name(f"{source.stem}-{key}.so")
    if not library.exists():
        handle, unfinished = tempfile.mkstemp(suffix=".so", dir=source.parent)
        os.close(handle)
        try:
            done = subprocess.run([*command, "-o", unfinished, str(source), "-lm"], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{command[0]} failed on {source}:\n{done.stderr}")
            os.chmod(unfinished, 0o755)
            os.replace(unfinished, library)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    return library
