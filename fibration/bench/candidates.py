"""The candidates of a benchmark: fibration's backends, the hand-written loss in eager torch and in torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fibration import pipeline
from fibration.bench.baselines import baseline, prepare
from fibration.bench.shapes import Problem
from fibration.errors import BackendError
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

EAGER, COMPILED, FLOOR = "eager torch", "torch.compile", "copy of the same bytes"
ROWS = {
    "": "coefficients", "metrics": "coefficients and metrics",
    "backward": "loss and backward", "backward, metrics": "loss and backward, and metrics",
}  # fmt: skip

Result = Callable[[], Tensor]  # one evaluation; ∂J/∂log π per token


@dataclass(frozen=True)
class Candidate:
    """One row of a table, with its `name`. `backend` is empty for a baseline; `what` is a key of `ROWS`."""

    name: str
    backend: str = ""
    what: str = "backward"

    @property
    def ours(self) -> bool:
        return bool(self.backend)

    @property
    def goes_back(self) -> bool:
        """Whether the candidate returns the gradient of the loss: the coefficients with the other sign."""
        return self.what.startswith("backward")


def of_backend(backend: str, what: str = "") -> Candidate:
    suffix = {"": "", "metrics": " + metrics", "backward": " loss", "backward, metrics": " loss + metrics"}[what]
    return Candidate(f"fibration {backend}{suffix}", backend, what)


def candidates(hierarchy: Hierarchy, backends: Sequence[str], compiled: bool = True) -> list[Candidate]:
    """Every row of a hierarchy, in the order of their turns."""
    rows = [of_backend(b, what) for b in backends for what in ROWS]
    if baseline(hierarchy) is not None:
        rows += [Candidate(EAGER)] + ([Candidate(COMPILED)] if compiled else [])
    return rows


def start(candidate: Candidate, hierarchy: Hierarchy, problem: Problem, ready: Ready | None = None) -> Result:
    """Do the work that happens once per batch or per program. Returns the call to time."""
    if not candidate.ours:
        return _written(candidate.name == COMPILED, hierarchy, problem)
    ready = ready or make_ready(hierarchy, candidate.backend, problem)
    op, index, p = ready.operator, ready.index, problem
    old, more = p.old_log_probs, {**given(p, hierarchy), "index": index, "metrics": "metrics" in candidate.what}
    if candidate.goes_back:
        return _gradient(p, lambda leaf: op.loss(leaf, old, **more).loss)
    return lambda: op.coefficients(p.log_probs, old, **more).values


def given(problem: Problem, hierarchy: Hierarchy) -> dict[str, Any]:
    """The arguments of a call besides log-probs: advantages, or the same numbers as rewards, and policies."""
    word = "advantages" if hierarchy.advantages is None else "rewards"
    return {word: problem.advantages, "policies": problem.policies}


@dataclass(frozen=True)
class Ready:
    """A compiled operator with its index, made once for all rows of a backend."""

    operator: Operator
    index: Index


def make_ready(hierarchy: Hierarchy, backend: str, problem: Problem) -> Ready:
    operator = pipeline.compile(hierarchy, backend)
    return Ready(operator, problem.index(operator))


def _written(compiled: bool, hierarchy: Hierarchy, problem: Problem) -> Result:
    function, p = baseline(hierarchy), problem
    if function is None:
        raise BackendError(f"there is no hand-written loss of '{hierarchy.name}'", required="a shipped hierarchy")
    batch = prepare(problem)
    if compiled:
        torch._dynamo.reset()  # otherwise the tenth shape exceeds the limit of recompilations
        function = torch.compile(function, fullgraph=True, dynamic=False)
    chosen = function
    return _gradient(p, lambda log_probs: chosen(log_probs, p.old_log_probs, p.advantages, batch))


def _gradient(problem: Problem, loss: Callable[[Tensor], Tensor]) -> Result:
    """A call that computes value and gradient of the loss, as a trainer's `backward()` does."""
    leaf = problem.log_probs.detach().requires_grad_()

    def run() -> Tensor:
        leaf.grad = None
        loss(leaf).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return leaf.grad

    return run


def disagreement(candidate: Candidate, result: Tensor, expected: Tensor) -> tuple[float, float]:
    """Mean and largest difference from `expected`, relative to the mean and the largest size of `expected`."""
    given = -result.double() if candidate.goes_back else result.double()
    away, size = (given - expected).abs(), expected.abs()
    return tuple(float(f(away) / f(size).clamp_min(1e-300)) for f in (torch.mean, torch.amax))  # type: ignore[return-value]


def reference(hierarchy: Hierarchy, problem: Problem) -> Tensor:
    """The coefficients in float64, by the torch backend, which is tested against the interpreter."""
    ready = make_ready(hierarchy, "torch", problem)
    p = problem
    wide = replace(
        p, log_probs=p.log_probs.double(), old_log_probs=p.old_log_probs.double(), advantages=p.advantages.double(),
        policies={name: log_probs.double() for name, log_probs in p.policies.items()},
    )  # fmt: skip
    more = given(wide, hierarchy)
    found = ready.operator.coefficients(wide.log_probs, wide.old_log_probs, index=ready.index, metrics=False, **more)
    return found.values
