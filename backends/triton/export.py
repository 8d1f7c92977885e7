"""The files that `fibration compile -o` writes for the Triton backend: the module, and machine code for one chip."""

from __future__ import annotations

from collections.abc import Mapping

from fibration.backends.standalone import LAY_OUT, Export, further, table, written
from fibration.backends.triton.emit import launched
from fibration.backends.triton.kernels import kernels
from fibration.backends.triton.resources import compile_all, requests
from fibration.compiler.plan import Plan

CALLER = '''

# ------------------------------------------------------------ for callers without the library

# Per function: its arguments as (name, kind, what of), the vectors of the workspace as (name, stratum), and what is
# returned besides results per token: where each lies in the workspace or among the arguments.
FUNCTIONS = {functions}


{lay_out}

def run(function, *, dtype=None, shape=None, **given):
    """Call a function with what `lay_out` gives, the tensors over tokens, and the parameters (float64, as NAME_of: one
    number, or one per element). Sizes, strides, results and the workspace are made here. Returns the results by name.

        layout = lay_out("objective", cu_seqlens.long(), {{("trajectory", "prompt_group"): groups, ...}})
        run("objective", log_probs=..., old_log_probs=..., advantages=..., epsilon_of=..., **layout)

    Where formulas name a further policy, its log-probs are an argument of its name, as `rollout_log_probs`.
    Advantages are per token; give `trajectory_rows`, int64, to say in which row of them each trajectory lies. A result
    `nonfinite` above 0 says that so many rows have an infinite or undefined log ratio or advantage. The objective is
    NaN then, and so is every result at such a token: nothing has to be read back to be told.
{further}    """
    given = checked(function, given)
    values, results = completed(function, given, dtype or dtype_of_results(function, given))
    globals()[function](**values, shape=shape)
    return results
'''


def export(
    name: str, header: str, source: str, plans: Mapping[str, Plan], titles: Mapping[str, str], arch: str | None
) -> Export:
    """The module; for an `arch`, also the assembly, the binary and the resources of every kernel."""
    functions = {k: table(plan, launched(plan, kernels(k, plan))) for k, plan in plans.items()}
    module = (
        source.rstrip("\n")
        + "\n"
        + CALLER.format(functions=written(functions), lay_out=LAY_OUT, further=further(plans, "    "))
    )
    file = f"{name}_triton.py"
    files: dict[str, str | bytes] = {file: module}
    resources: list[Mapping[str, str | int]] = []
    if arch:
        for one in compile_all(module, plans, arch, filename=file):
            for kernel, request in zip(one.kernels, requests(one.program, plans[one.program]), strict=True):
                stem = f"{name}_{arch}_{kernel.kernel}"
                files[f"{stem}.{kernel.assembly_kind}"] = kernel.assembly
                files[f"{stem}.{kernel.binary_kind}"] = kernel.binary
                r = kernel.resources
                resources.append(
                    {
                        "kernel": kernel.kernel,
                        "arch": arch,
                        "target": kernel.target,
                        "registers": r.registers,
                        "spilled_bytes": r.spill_bytes,
                        "shared_bytes": r.shared_bytes,
                        "warps": request.num_warps,
                        "parameters": str(dict(kernel.parameters)),
                        "constants": str(dict(request.constexprs)),
                    }
                )
    return Export(files, tuple(resources))
