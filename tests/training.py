"""The policy and the loops of `docs/examples/`, and budgets with which elements of every level are rolled back and zeroed."""

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
    """One of the files under `docs/examples/`, which import others from beside them."""
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
    """Weights some updates away from those that sampled the batch, and the batch."""
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
    """With which every regime occurs, on the batch off policy."""
    op, batch = operator(), off_policy(dtype)[1]
    with torch.no_grad():
        return narrow(op, index(op, batch), policy(dtype)(batch) - batch.old_log_probs)


def narrow(op: Operator, at: Index, log_ratio: Tensor) -> dict[str, Any]:
    """A budget of each level and channel that an element of middling drift overspends by half of its rollback.

    Others pass and are zeroed; where there are too few for that, those of the second channel are zeroed.
    """
    chosen: dict[str, Any] = {}
    for (level, channel), residual in op.levels(log_ratio, at).residual.items():
        if level in at.leaves:
            continue
        drift = residual.abs()
        there = drift.argsort()[-int((drift > 1e-9).sum()) :]  # what alone has a parent deviates by nothing
        middle = int(there[len(there) // 2])
        tokens = sum(float(at.count(leaf, level)[middle]) for leaf in at.leaves_over(level))
        over = 1 + 0.5 / tokens if channel == "+" or len(there) > 2 else 3.0
        chosen.setdefault(f"C_{level}", {})[channel] = float(drift[middle]) / over
    return chosen


def every_regime(metrics: Mapping[str, Metric | float]) -> None:
    """On each channel elements of every level pass, are rolled back and zeroed; tokens pass and are limited."""
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
    """Weights of the tokens, of what sampled them against what is trained."""
    return 1 + 0.5 * torch.sin(batch.old_log_probs * 7)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Whole ones, wherever they lie, by the names of a bare policy."""
    named = ((name.removeprefix("module."), p.grad) for name, p in model.named_parameters())
    return {n: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for n, g in named if g is not None}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative difference of a parameter's gradient."""
    assert found.keys() == expected.keys()
    return max(float((found[k] - e).norm() / e.norm()) for k, e in expected.items())
