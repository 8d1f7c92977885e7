"""Calls a generated Triton module. It lies in the cache, because Triton reads the text of kernels from a file."""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from threading import Lock
from types import ModuleType

import numpy as np

from fibration.backends.triton.emit import launched_by
from fibration.backends.triton.launches import Launches
from fibration.cache import entry
from fibration.compiler.plan import Plan, computing
from fibration.errors import BackendError
from fibration.runtime.batch import Batch, Index, Run
from fibration.runtime.calling import Binding, Call, Frame, Holes, Runner

MODULE = "kernels.py"
VERSION = metadata.version("fibration")
one_at_a_time = Lock()  # the interpreter patches the language while it runs, for all threads


def load(name: str, source: str, plans: Mapping[str, Plan]) -> Run:
    """The function that runs batches through a generated module. Raises BackendError without the package triton."""
    on_cpu = interpreted()
    module = import_from_cache(name, source)
    computed_by = computing(plans)
    bindings = {k: Binding(plan, launched_by(plans, k)) for k, plan in plans.items()}

    def check(index: Index) -> None:
        if index.device.type != "cuda" and not on_cpu:
            raise BackendError(
                f"operator '{name}' is compiled for the Triton backend, and the index lies on {index.device}",
                required="tensors and index on a CUDA or ROCm device",
                remedy="move the batch, or compile with backend='c' or backend='torch'; to debug kernels on the CPU, "
                "set TRITON_INTERPRET=1 before triton is imported",
            )

    def ready(program: str, frame: Frame, batch: Batch) -> Call:
        names = [a.name for a in bindings[program].arguments]
        # one tile shape for a whole step, so that the order of sums does not depend on a row's rank or micro-batch
        values = {**dict(zip(names, frame.values, strict=True)), "tokens": batch.index.tokens_of_step}
        called = dict(zip(*map(plans[program].functions, (program, computed_by[program])), strict=True))
        values |= {"metrics": False} if plans[program].of else {}

        if on_cpu:

            def interpret(function: str, holes: Holes) -> None:
                given = {**values, **{names[i]: tensor for i, tensor in holes}}
                # the interpreter computes both branches of a choice; one may overflow
                with one_at_a_time, np.errstate(all="ignore"):
                    getattr(module, called[function])(**given)

            return interpret

        known: dict[str, Launches] = {}

        def call(function: str, holes: Holes) -> None:
            launches = known.get(function)
            if launches is None:
                changing = [names[i] for i, _ in holes]
                chosen = getattr(module, called[function])
                launches = known[function] = Launches(chosen, values, changing)
            launches(holes)

        return call

    return Runner(bindings, check, ready)


def interpreted() -> bool:
    """Whether kernels run on the CPU. Triton decides that once, at import. Raises BackendError without triton."""
    try:
        import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise BackendError(
            "the triton backend is not available",
            required="the package triton",
            found=str(error),
            remedy="pip install triton (Linux; it comes with torch for CUDA and ROCm), or use backend='torch'",
        ) from error
    from triton.runtime.jit import JITFunction  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return not isinstance(tl.sum, JITFunction) and os.environ.get("TRITON_INTERPRET") == "1"


def import_from_cache(name: str, source: str) -> ModuleType:
    """The module of `source`, from a permanent file in the cache. No byte code is stored."""
    key = hashlib.sha256(f"{VERSION}\0{source}".encode()).hexdigest()[:32]

    def make(workshop: Path) -> None:
        (workshop / MODULE).write_text(source)

    place = entry(f"triton-{key}", make) / MODULE
    module = ModuleType(f"fibration_generated_{name}_{key[:8]}")
    module.__file__ = str(place)
    sys.modules[module.__name__] = module
    exec(builtins.compile(source, str(place), "exec"), module.__dict__)  # our own output, over validated names
    return module
