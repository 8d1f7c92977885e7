"""The files that `fibration compile -o` writes for the Triton backend: the module, and machine code for one chip."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from fibration.backends.standalone import NOTES, Export, example, further, written
from fibration.backends.triton.aot import compile_all, requests
from fibration.backends.triton.emit import ALONE, alone, launched_by, shared
from fibration.compiler.plan import Plan, computing

CALLER = '''

# ------------------------------------------------------------ for callers without the library

# Per function: rows, kinds of tokens, fill; arguments (name, kind, what they are of); the vectors of the workspace, by
# stratum; and the results that are not per token, with their names in the workspace or among the arguments.
{functions}


def lay_out(function, offsets, parents, leaves=None):
    """Returns the layout arguments of a function, for packed tokens without gaps: `laid_out` of fibration_triton.py."""
    return laid_out(FUNCTIONS[function], offsets, parents, leaves)


def run(function, *, dtype=None, shape=None, **given):
    """Calls a function. Returns the results by name.

    Pass what `lay_out` returns, tensors over tokens, and each parameter as NAME_of: one number, or one per element.

{example}

{notes}
{further}    """
    about = FUNCTIONS[function]
    given = checked(function, about, given)
    values, results = completed(about, given, dtype or dtype_of_results(about, given))
    globals()[function](**values, shape=shape)
    return results
'''


def export(
    name: str, header: str, source: str, plans: Mapping[str, Plan], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The module; for an `arch`, also the assembly, the binary and the resources of every kernel."""
    own = computing(plans)
    functions = written(plans, {k: launched_by(plans, k) for k in plans})
    called = example(plans, 'run("objective", ', " " * 8)
    notes = textwrap.indent(NOTES, "    ")
    caller = CALLER.format(functions=functions, example=called, notes=notes, further=further(plans, "    "))
    module = alone(source) + caller
    file = f"{name}_triton.py"
    files: dict[str, str | bytes] = {file: module, f"{ALONE}.py": shared()}
    resources: list[Mapping[str, str | int]] = []
    if arch:
        for program, kernels_of_it in compile_all(module, plans, arch, filename=file).items():
            for kernel, request in zip(kernels_of_it, requests(plans, program), strict=True):
                word = kernel.kernel.replace(own[program], program, 1)  # with metrics or without
                stem = f"{name}_{arch}_{word}"
                files[f"{stem}.{kernel.assembly_kind}"] = kernel.assembly
                files[f"{stem}.{kernel.binary_kind}"] = kernel.binary
                r = kernel.resources
                resources.append({
                    "kernel": word, "arch": arch, "target": kernel.target, "registers": r.registers,
                    "spilled_bytes": r.spill_bytes, "shared_bytes": r.shared_bytes, "warps": request.num_warps,
                    "parameters": str(dict(kernel.parameters)), "constants": str(dict(request.constexprs)),
                })  # fmt: skip
    return Export(files, tuple(resources))
