"""The policy and the loops of `docs/examples/`, and budgets that put elements of every level into every regime."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import support
import torch
from torch import Tensor, nn

from fibration.runtime.index.index import Index
from fibration.runtime.metrics import Metric
from fibration.runtime.operator import Operator

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
LEVELS, REGIMES = ("domain", "prompt_group", "trajectory"), ("passed", "rolled_back", "zeroed")


@functools.cache
def example(name: str) -> ModuleType:
    """A module under `docs/examples/`. These modules import their neighbours."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


toy = example("toy")


def operator() -> Operator:
    return support.operator(support.spec("fiberpo_domain"), "c")


@functools.cache
def off_policy(dtype: torch.dtype) -> tuple[dict[str, Tensor], Any]:
    """Weights some updates away from the sampling weights, and the batch."""
    sampled, now = toy.Policy(seed=0).to(dtype), toy.Policy(seed=0).to(dtype)
    moved = toy.Policy(seed=1).to(dtype)
    with torch.no_grad():
        for p, q in zip(now.parameters(), moved.parameters(), strict=True):
            p += 0.2 * q
    return now.state_dict(), toy.rollouts(sampled)


def policy(dtype: torch.dtype) -> nn.Module:
    made = toy.Policy().to(dtype)
    made.load_state_dict(off_policy(dtype)[0])
    return made


def index(op: Operator, batch: Any, **more: Any) -> Any:
    return op.index(offsets=batch.offsets, prompt_group=batch.prompt_group, domain=batch.domain, **more)


@functools.cache
def budgets(dtype: torch.dtype) -> dict[str, Any]:
    """Budgets for which every regime occurs on the off-policy batch."""
    op, batch = operator(), off_policy(dtype)[1]
    with torch.no_grad():
        return narrow(op, index(op, batch), policy(dtype)(batch) - batch.old_log_probs)


def narrow(op: Operator, at: Index, log_ratio: Tensor) -> dict[str, Any]:
    """Budgets per level and channel, such that the element with the median drift is halfway through its rollback.

    Elements with less drift pass and those with more are zeroed. If at most two elements of a level have drift, the
    second channel is zeroed.
    """
    chosen: dict[str, Any] = {}
    for (level, channel), residual in op.levels(log_ratio, at).residual.items():
        if level in at.leaves:
            continue
        drift = residual.abs()
        there = drift.argsort()[-int((drift > 1e-9).sum()) :]  # the only element of a parent has no residual
        middle = int(there[len(there) // 2])
        tokens = sum(float(at.count(leaf, level)[middle]) for leaf in at.leaves_over(level))
        over = 1 + 0.5 / tokens if channel == "+" or len(there) > 2 else 3.0
        chosen.setdefault(f"C_{level}", {})[channel] = float(drift[middle]) / over
    return chosen


def every_regime(metrics: Mapping[str, Metric | float]) -> None:
    """Assert that every regime occurs on each channel: passed, rolled back, zeroed; for tokens passed and limited."""
    met = [f"{level}/{channel}/{regime}" for level in LEVELS for channel in "+-" for regime in REGIMES]
    met += [f"token/{channel}/{regime}" for channel in "+-" for regime in ("passed", "limited")]
    assert [name for name in met if not float(metrics[name]) > 0] == []


@functools.cache
def wanted(dtype: torch.dtype, weights: bool = False) -> dict[str, Tensor]:
    """The gradient of `op.loss` over the whole batch in one process."""
    op, batch, model = operator(), off_policy(dtype)[1], policy(dtype)
    a = batch.advantages * importance(batch) if weights else batch.advantages
    result = op.loss(model(batch), batch.old_log_probs, a, index(op, batch), budgets(dtype))
    every_regime(result.metrics)
    result.loss.backward()
    return gradients(model)


def importance(batch: Any) -> Tensor:
    """Made-up importance weights of the tokens, from the old log-probs."""
    return 1 + 0.5 * torch.sin(batch.old_log_probs * 7)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The full gradients by parameter name, gathered if sharded, without the prefix `module.`."""
    named = ((name.removeprefix("module."), p.grad) for name, p in model.named_parameters())
    return {n: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for n, g in named if g is not None}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative difference of a parameter's gradient."""
    assert found.keys() == expected.keys()
    return max(float((found[k] - e).norm() / e.norm()) for k, e in expected.items())
