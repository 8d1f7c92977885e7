"""Compiles the kernels of one module, without a device. `aot.py` runs this script in a separate process.

`@triton.jit` decides when it decorates whether a function is compiled or interpreted, and an interpreted kernel leaves
`triton.language` patched. So a process that has interpreted a kernel, or may do so later, cannot compile one. This
script loads only the standard library, Triton and the imports of the module.

Reads a JSON request on stdin; writes the artefacts to the current folder, and a JSON answer to `answer.json`.
"""

import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def load(source: str, filename: str) -> types.ModuleType:
    """The module of `source`. Triton reads a kernel's text by file name; no path of this machine gets into the code."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(Path(filename).stem)
    module.__file__ = filename
    sys.modules[module.__name__] = module
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def cubin_resources(cubin: Path) -> Json:
    """Registers and spilled bytes of the machine code. Kernels have no local arrays, so the whole stack is spills."""
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    path = os.environ.get("TRITON_CUOBJDUMP_PATH") or (str(tool) if tool.exists() else shutil.which("cuobjdump"))
    if path is None:
        raise FileNotFoundError("Cannot find cuobjdump")
    shown = subprocess.run([path, "--dump-resource-usage", str(cubin)], check=True, capture_output=True, text=True)
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", shown.stdout))
    return {"registers": int(found["REG"]), "spill_bytes": int(found["STACK"]) + int(found["LOCAL"])}


def hsaco_resources(assembly: str) -> Json:
    """Registers and spilled bytes, from the metadata that the AMD assembler prints with the code."""
    found = dict(re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s*(\d+)", assembly))
    return {"registers": int(found["vgpr_count"]), "spill_bytes": int(found["private_segment_fixed_size"])}


def build(module: types.ModuleType, job: Json, number: int) -> Json:
    """Compiles one kernel. The files are named after the number of the job."""
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-untyped,import-not-found,unused-ignore]

    kernel = getattr(module, job["kernel"])
    given = {**job["signature"], **dict.fromkeys(job["constexprs"], "constexpr")}
    signature = {name: given[name] for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(kernel, signature, job["constexprs"]),
        target=GPUTarget(*job["target"]),
        options={word: job[word] for word in ("num_warps", "num_stages")},
    )
    assembly, binary = ("ptx", "cubin") if job["target"][0] == "cuda" else ("amdgcn", "hsaco")
    Path(f"{number}.{assembly}").write_text(compiled.asm[assembly])
    machine_code = Path(f"{number}.{binary}")
    machine_code.write_bytes(compiled.asm[binary])
    used = cubin_resources(machine_code) if binary == "cubin" else hsaco_resources(compiled.asm[assembly])
    own = {name: kind for name, kind in signature.items() if kind != "constexpr"}
    made = {"assembly": assembly, "binary": binary, "parameters": own, "shared_bytes": compiled.metadata.shared}
    return {**made, **used}


def main() -> None:
    request = json.load(sys.stdin)
    done: list[Json] = []
    answer: Json = {"done": done}
    try:
        import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401

        load(request["shared"], "fibration_triton.py")
        module = load(request["source"], request["filename"])
        for number, job in enumerate(request["jobs"]):
            done.append(build(module, job, number))
    except Exception as error:  # the caller reports every failure
        cause = error.__cause__ or error
        answer["error"] = {"kind": type(error).__name__, "module": getattr(error, "name", None), "message": str(cause)}
    Path("answer.json").write_text(json.dumps(answer))


main()
