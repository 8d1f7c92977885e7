"""Time a generated JAX loss with its gradient, padded and packed, beside losses written by hand in JAX.

OMP_NUM_THREADS=2 python docs/benchmarks/scripts/jax_losses.py [--rows 512] [--tokens 1024] [--rounds 51] [--other DIR]

All run in turns, in float32 under `jax.jit`. `--other` adds the modules that another checkout of the library writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

ROOT = Path(__file__).resolve().parents[3]
LOSSES = ("grpo", "gspo")  # those that are written by hand below
LOW, HIGH = {"grpo": 0.2, "gspo": 3e-4}, {"grpo": 0.2, "gspo": 4e-4}
DRIFT = {"grpo": 0.2, "gspo": 0.01}  # of log-probs, with which rows of 1024 tokens have clipped and other ratios


def by_hand(name: str, rows: int, packed: bool) -> Callable[..., Array]:
    """The loss as its papers have it, of masked rows `[B, T]`, or of packed tokens by `jax.ops.segment_sum`."""

    def loss(now: Array, old: Array, advantages: Array, where: Array) -> Array:
        """`where`: the mask, or the row of every token."""
        unmasked = jnp.ones(now.shape) if packed else where

        def of_rows(x: Array) -> Array:
            return jax.ops.segment_sum(x, where, rows, indices_are_sorted=True) if packed else x.sum(1)

        def at_tokens(x: Array) -> Array:
            return x[where] if packed else x[:, None]

        log_ratio, counts = jnp.where(unmasked != 0, now - old, 0), of_rows(unmasked)
        if name == "gspo":
            ratio, a = jnp.exp(of_rows(log_ratio) / counts), advantages
        else:
            ratio, a = jnp.exp(log_ratio), at_tokens(advantages)
        gated = jnp.minimum(ratio * a, jnp.clip(ratio, 1 - LOW[name], 1 + HIGH[name]) * a)
        return -jnp.mean(gated if name == "gspo" else of_rows(jnp.where(unmasked != 0, gated, 0)) / counts)

    return loss


def generated(name: str, checkout: Path, label: str) -> Any:
    """The module that a checkout writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fibration", "compile", name, "--backend", "jax", "-o", folder]
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        subprocess.run(command, check=True, env=env, cwd=checkout, stdout=subprocess.DEVNULL)
        found = importlib.util.spec_from_file_location(f"{name}_{label}", Path(folder) / f"{name}_jax.py")
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[module.__name__] = module
        found.loader.exec_module(module)
    return module


def candidates(name: str, rows: int, checkouts: dict[str, Path], packed: bool) -> dict[str, Callable[..., Array]]:
    def of(module: Any) -> Callable[..., Array]:
        if packed:
            return lambda now, old, a, row: module.loss(now, old, a, segments=row, n_trajectory=rows)
        return lambda now, old, a, mask: module.loss(now, old, a, mask=mask)

    found = {"by hand": by_hand(name, rows, packed)}
    return found | {label: of(generated(name, checkout, label)) for label, checkout in checkouts.items()}


def batch(name: str, rows: int, tokens: int, packed: bool) -> tuple[Array, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    now = -jax.random.exponential(keys[0], (rows, tokens))
    old, advantages = now + DRIFT[name] * jax.random.normal(keys[1], now.shape), jax.random.normal(keys[2], (rows,))
    if packed:
        return now.reshape(-1), old.reshape(-1), advantages, jnp.repeat(jnp.arange(rows), tokens)
    return now, old, advantages, jnp.ones((rows, tokens), bool)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--other", type=Path, help="another checkout of the library")
    options = parser.parse_args()
    checkouts = {"generated": ROOT} | ({"other": options.other.resolve()} if options.other else {})
    print(f"jax {jax.__version__} on {jax.devices()[0]}: loss and gradient, {options.rows} x {options.tokens}, float32")
    for name in LOSSES:
        for packed in (False, True):
            given = batch(name, options.rows, options.tokens, packed)
            calls = candidates(name, options.rows, checkouts, packed)
            steps = {label: jax.jit(jax.value_and_grad(call)) for label, call in calls.items()}
            seconds: dict[str, list[float]] = {label: [] for label in steps}
            results = {label: jax.block_until_ready(step(*given)) for label, step in steps.items()}
            for value, gradient in results.values():
                assert jnp.allclose(value, results["by hand"][0], rtol=1e-3, atol=1e-6)
                assert jnp.allclose(gradient, results["by hand"][1], rtol=1e-3, atol=1e-9)
            for _ in range(options.rounds):
                for label, step in steps.items():
                    begun = time.perf_counter()
                    jax.block_until_ready(step(*given))
                    seconds[label].append(time.perf_counter() - begun)
            least = {label: min(of) for label, of in seconds.items()}
            median = {label: statistics.median(of) for label, of in seconds.items()}
            said = "; ".join(
                f"{label} {1e3 * least[label]:.2f} ms ({least[label] / least['by hand']:.2f} of by hand; medians: "
                f"{median[label] / median['by hand']:.2f})"
                for label in steps
            )
            print(f"{name}, {'packed' if packed else 'padded'}: {said}", flush=True)


if __name__ == "__main__":
    main()
