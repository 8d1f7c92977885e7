"""Writes a fused plan as one standalone, readable Triton module: kernels, and a function per program to launch them.

This file has the skeleton and the launchers; `kernels.py` has the kernels.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fibration.backends import calling
from fibration.backends.bodies import Function, functions_of
from fibration.backends.standalone import joined
from fibration.backends.triton.kernels import kernels, kernels_of_sections
from fibration.backends.triton.language import HELPERS, RESERVED, fitted, language, typed
from fibration.backends.triton.writer import Kernel
from fibration.compiler import costly
from fibration.compiler.arguments import Argument, signature
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import Key, Scalar
from fibration.compiler.plan import Plan, Spread, computing
from fibration.compiler.program import Program

__all__ = ["RESERVED", "emit", "launched", "plan"]

SKELETON = '''\
{header}
"""How to call these functions, without the library that wrote them.

Every function fills results and the workspace. It takes keywords, listed here: contiguous tensors on one CUDA or ROCm
device. Layouts, in int64, say where tokens are; other places of the flattened tensors are masked. A vector named
`..._of` is float64, with one number per element of the stratum in brackets; `[batch]` is one number. `n_...` is the
number of elements, and `..._stride` 0 if one number serves all, else 1. Arguments with "None if" in their note may be
None. No call reads from the device: a CUDA graph can record it.

{arguments}
"""

import torch
import triton
import triton.language as tl

{shared}

{functions}'''

CALLED = re.compile(r"(?<![\w.])(\w+)[(\[]|combine_fn=(\w+)")
SHARED, ALONE = "fibration.backends.triton.functions", "fibration_triton"
BESIDE = f"""\
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parent))  # {ALONE}.py lies beside this file
from {ALONE} import checked, completed, described, dtype_of_results, laid_out, without_metrics
from {ALONE} import ("""

WITHOUT_METRICS = '''\
def {name}(**given):
    """{title}"""
    return {of}(**given, metrics=False)'''

GENERAL = ("size", "stride")  # arguments that need no note of their own
EXTRA = {
    "tokens": "optional: the number of tokens, from which the shape of the launch follows",
    "shape": "optional: that shape, (BLOCK_R, BLOCK_T, warps)",
}


def plan(program: Program, rows: str, spread: Spread | None = None, metrics: Collection[Key] = ()) -> Plan:
    """Fused sweeps over the tokens."""
    return sweeps(costly.shared(program), rows, RESERVED, spread, within=False, by_length=True, metrics=metrics)


def emit(header: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a module with one launcher per plan, or one per section if the batch is spread over ranks.

    `header` is a comment block.
    """
    parts = []
    functions = functions_of(plans, RESERVED)
    notes: dict[str, str] = {}
    for name, one in plans.items():
        if one.of is not None:
            parts.append(WITHOUT_METRICS.format(name=name, title=titles[name], of=computing(plans)[name]))
            continue
        sections = kernels_of_sections(plans, name, functions)
        arguments = launched(one, itertools.chain(*sections))
        notes = {a.name: a.note for a in arguments if a.kind not in GENERAL} | notes
        for function, made in zip(one.functions(name), sections, strict=True):
            if made:
                parts += [k.text for k in made if k.text]
                parts.append(_launcher(function, bool(one.metrics), titles[name], made, arguments, notes))
    parts = [*(_defined(body, f) for body, f in functions.items()), *parts]
    texts = "\n\n\n".join(parts)
    used = [word for word in HELPERS if word in {name for names in CALLED.findall(texts) for name in names}]
    shared = [f"from {SHARED} import (", *textwrap.wrap(", ".join(used) + ",", 112), ")  # fmt: skip"]
    shared[1:-1] = [f"    {line}" for line in shared[1:-1]]
    notes["work"] = "float64 workspace, whose vectors FUNCTIONS lists"
    width = max(map(len, notes))
    listed = "\n".join(f"{name:<{width}}  {note}" for name, note in (notes | EXTRA).items())
    module = SKELETON.replace("{shared}", "\n".join(shared)).replace("{functions}", texts + "\n")
    module = module.replace("{arguments}", listed)
    return module.replace("{header}", header.rstrip())  # last, because the header is free text


def alone(source: str) -> str:
    """The module for use without this library: it imports a file beside it, whose text is `shared`."""
    own = f"import torch\nimport triton\nimport triton.language as tl\n\nfrom {SHARED} import ("
    begin = '"""How to call these functions, without the library that wrote them'
    return source.replace(own, BESIDE).replace(f"{begin}.", f"{begin}: with `run`, at the end of this file.", 1)


def shared() -> str:
    """What modules without this library import."""
    return joined(str(Path(__file__).with_name("functions.py")), calling.__file__)


def launched(plan: Plan, made: Iterable[Kernel]) -> tuple[Argument, ...]:
    """The arguments of a launcher: those that a kernel uses, and the workspace, which holds coarse results."""
    used = {a.name for kernel in made for a in kernel.arguments}
    return tuple(a for a in signature(plan).arguments if a.name in used or a.kind == "work")


def launched_by(plans: Mapping[str, Plan], name: str) -> tuple[Argument, ...]:
    """The arguments of a program's launcher, with the vectors that its metrics alone read."""
    own = launched(plans[name], kernels(plans, name))
    of = computing(plans)[name]
    others = () if of == name else launched(plans[of], kernels(plans, of))
    return *own, *(a for a in others if a.kind in ("vector", "stride") and a not in own)


def _defined(body: Scalar, function: Function) -> str:
    """A scalar body as a function. Its arguments have one dtype."""
    given = function.parameters
    dtype = f"{given[0]}.dtype"
    before, text = language(dtype, function.coarse).write(body, given, "part", RESERVED | set(given))
    lines = [f"{name} = {shared}" for name, shared in before] + [f"return {typed(text, dtype)}"]
    written = [line for text in lines for line in fitted(text, "    ")]
    head = ["@triton.jit", f"def {function.name}({', '.join(given)}):", f'    """{function.about}"""']
    return "\n".join([*head, *written])


# ------------------------------------------------------------ launchers


def _launcher(
    name: str, metrics: bool, title: str, made: list[Kernel], arguments: tuple[Argument, ...], notes: Mapping[str, str]
) -> str:
    """`notes`: what the module says of arguments; of others the function says it."""
    names = [a.name for a in arguments]
    lines = [f"def {name}("]
    extra = "tokens=None, shape=None," + " metrics=True," * metrics
    lines += [f"    {w}" for w in textwrap.wrap(f"*, {', '.join(names)}, {extra}", 112)]
    own = [f"    {a.name}  {a.note}" for a in arguments if a.note != notes.get(a.name, a.note)]
    lines += ["):  # fmt: skip", f'    """{title}', *(["", *own, '    """'] if own else [])]
    lines[-1] += "" if own else '"""'
    floats = [a.name for a in arguments if a.kind == "token" and a.key != ("cotangent",)]
    floats += [a.name for a in arguments if a.kind == "result"]
    others = [a.name for a in arguments if a.kind == "advantage" or (a.kind == "token" and a.name not in floats)]
    positions = [a.name for a in arguments if a.kind == "positions"]
    tensors = [a.name for a in arguments if a.kind == "token"]
    if tensors or "places" in names:
        lines.append(f"    tokens = {f'{tensors[0]}.numel()' if tensors else 'places'} if tokens is None else tokens")
    lists = ", ".join(f"[{', '.join(words)}]" for words in (floats, others, positions))
    lines += [*fitted(f"call = Call(locals(), {lists})", "    "), "    with torch.cuda.device_of(work):"]
    for kernel in made:
        launch = fitted(kernel.launch, "        ")
        lines += ["        if metrics:", *(f"    {line}" for line in launch)] if kernel.spare else launch
    # functions of functions.py use torch between the launches of their own, so no later call can repeat these
    return "\n".join([*lines, *(["    return call.launched"] if all(k.text for k in made) else [])])
