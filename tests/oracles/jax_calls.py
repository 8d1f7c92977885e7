"""Calls of generated JAX modules on the batches of the tests. JAX is imported by the first call, not before."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import numpy as np
import torch
from support import Batch, Layout, spec

from fibration import Hierarchy
from fibration.pipeline import generate
from oracles.backend_cases import Case


@functools.cache
def jax_module(h: Hierarchy) -> Any:
    """The generated module of a hierarchy, which breaks a law or not."""
    made = types.ModuleType(f"{h.name}_jax")
    exec(compile(generate(h, "jax").source, f"{h.name}_jax.py", "exec"), made.__dict__)
    return made


def shipped_module(name: str) -> Any:
    return jax_module(spec(name))


def numbers(values: Any) -> np.ndarray:
    """Labels as whole numbers, in order of appearance."""
    known = {label: i for i, label in enumerate(dict.fromkeys(values))}
    return np.array([known[v] for v in values])


def array(tensor: torch.Tensor) -> Any:
    """A tensor for JAX, in its own dtype."""
    import jax.numpy as jnp

    return jnp.asarray(tensor.double().numpy(), str(tensor.dtype).removeprefix("torch."))


def named(h: Hierarchy, batch: Batch, layout: Layout, kind: str, wanted: Any) -> dict[str, Any]:
    """The arguments by name that a function with the parameters `wanted` takes for a batch, but tensors of floats.

    `kind`: "padded", "packed", or "segments": the padded tensors with the row of each token, -1 where no token is.
    """

    def whole(values: Any, empty: Any) -> np.ndarray:
        found = np.full(int(np.prod(layout.shape)), empty)
        found[layout.slots] = values
        return found.reshape(layout.shape)

    given: dict[str, Any] = {}
    if kind == "padded":
        given["mask"] = whole(True, False)
    else:
        given |= {"segments": whole(batch.row, -1), f"n_{h.rows}": len(batch.lengths)}
    given |= {k: numbers(v) for k, v in batch.labels.items() if k in wanted}
    given |= {k: whole(numbers(v), -1) for k, v in batch.token_labels.items() if k in wanted}
    if batch.weights is not None and "weight" in wanted:
        given["weight"] = whole(batch.weights, np.nan)
    return given | {
        k: whole(v, np.nan) for k, v in batch.attributes.items() if k in wanted and isinstance(v, np.ndarray)
    }


@functools.cache
def jitted(function: Any) -> Any:
    """A generated function under `jax.jit`: without it every operation is compiled alone, which takes far longer."""
    import jax

    wanted = inspect.signature(function).parameters
    return jax.jit(function, static_argnames=[name for name in wanted if name.startswith("n_")])


def jax_call(c: Case, layout: Layout, kind: str, **more: Any) -> tuple[float, np.ndarray, np.ndarray]:
    """J, the coefficients at the tokens, and the coefficients in the shape of the batch."""
    import jax

    function = jax_module(c.hierarchy).value_and_coefficients
    wanted = inspect.signature(function).parameters
    with jax.enable_x64(c.dtype == torch.float64):
        policies = {f"{k}_log_probs": array(v) for k, v in c.policies(layout).items()}
        given = {**named(c.hierarchy, c.batch, layout, kind, wanted), **policies, **more}
        value, whole = jitted(function)(*map(array, c.tensors(layout)), **{k: given[k] for k in given if k in wanted})
    found = np.asarray(whole)
    return float(value), found.astype(np.float64).reshape(-1)[layout.slots], found
