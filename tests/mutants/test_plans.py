"""Mutants of plans and schedules against the float64 interpreter: built with the C compiler, run as torch, or in numpy
over four ranks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from oracles.backend_cases import F32, F64, FLOAT64, Truth, indexed
from oracles.plans_on_ranks import on_ranks
from support import Layout, programs, raw_programs, spec
from thorough import some

from fibration.compiler.fuse import sweeps
from fibration.compiler.interpret import interpret
from fibration.compiler.ir import Key, Node
from fibration.compiler.plan import Plan
from fibration.errors import BackendError
from fibration.pipeline import Artifact, load, spread_of
from fibration.runtime.batch import Batch
from fibration.runtime.inputs import make_batch, policy_tensors
from mutants.batches import hierarchy, near_cases
from mutants.plans import is_unread, of_plan, of_schedule

# A plan that lacks a value, or makes it too late, cannot be printed, built or run.
REFUSED = (KeyError, IndexError, ValueError, NameError, AttributeError, AssertionError, BackendError)
BATCHES = 6  # so that no memory holds by chance what a mutant leaves out
ROUNDED = 3e-6  # of results in float32
OF_PRECISION = ("pass made narrow", "float64 values made narrow")


@dataclass(frozen=True)
class Compared:
    """A program of a loss on a backend. Its results are those of the interpreter, up to `close` times the largest."""

    name: str
    program: str
    backend: str
    dtype: torch.dtype = F64
    close: float = 1e-10

    def __str__(self) -> str:
        return f"{self.name.replace(' ', '_')}-{self.program}-{self.backend}-{self.dtype}".replace("torch.", "")

    @property
    def emitter(self) -> Any:
        return import_module(f"fibration.backends.{self.backend}.emit")

    @functools.cached_property
    def right(self) -> Any:
        h = hierarchy(self.name)
        return self.emitter.plan(programs(h)[self.program], h.rows.name)

    @functools.cached_property
    def batches(self) -> list[tuple[Layout, Batch, dict[str, np.ndarray]]]:
        h, found = hierarchy(self.name), []
        for c in near_cases(h, BATCHES):
            layout, batch = indexed(h, c.batch), c.batch
            direct = self.program == "levels"  # the caller gives log ratios
            both = (batch.x, 0 * c.old) if direct else (c.now, c.old)
            now, old = (layout.tensor(v, self.dtype) for v in both)
            policies = {k: layout.tensor(v, self.dtype) for k, v in batch.policies.items() if k in h.policies}
            advantages = layout.tensor(batch.advantages, self.dtype)
            program, every = programs(h)[self.program], programs(h)["evaluate"]
            tokens = {"log_probs": now, "old_log_probs": old, "log_ratio": now - old}
            tokens |= policy_tensors(h, program, tokens, policies)
            given = make_batch(program, every, layout.index, tokens, advantages, batch.parameters, self.dtype, 0.0)
            log_probs, before, seen = map(layout.read, (now, old, advantages))
            others = {**{k: layout.read(v) for k, v in policies.items()}, "old": before}
            truth = Truth(layout, log_probs - before, seen, batch.parameters, FLOAT64, log_probs, others)
            found.append((layout, given, truth.interpreted(raw_programs(h)[self.program])))
        return found

    def notices(self, plan: Any) -> bool:
        h = hierarchy(self.name)
        program, plans = programs(h)[self.program], {self.program: plan}
        try:
            source = self.emitter.emit("#", plans, {self.program: ""})
            run = load(Artifact(h, self.backend, source, {self.program: program}, plans))
            for layout, batch, expected in self.batches:
                found = run(self.program, batch)
                for key, word in program.called.items():
                    if len(program.leaves) > 1 and key.stratum in program.leaves:  # a part of what all leaves fill
                        continue
                    value = found[key]
                    per_token = value.shape == layout.shape
                    close = ROUNDED if per_token and self.dtype == F32 else self.close
                    if not is_close(layout.read(value) if per_token else value.numpy(), expected[word], close):
                        return True
        except REFUSED:
            return True
        return False


def mutants_of(plan: Any) -> Iterator[tuple[str, Any]]:
    return of_plan(plan) if isinstance(plan, Plan) else of_schedule(plan)


def is_close(value: np.ndarray, expected: np.ndarray, close: float) -> bool:
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-300)
    return bool(((value == expected) | (np.abs(value - expected) <= close * largest)).all())


COMPARED = {
    Compared("fiberpo", "objective", "c"): 2,
    Compared("fiberpo_domain", "objective", "c"): 10,
    Compared("fiberpo_modal", "objective", "c"): 9,
    Compared("fipo", "objective", "c"): 3,
    Compared("kl_cov", "objective", "c"): 8,
    Compared("fiberpo", "objective", "torch"): 1,
    Compared("kl_cov", "objective", "torch"): 1,
    Compared("order 2", "objective", "torch"): 24,
}


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("compared", "step"), COMPARED.items(), ids=str)
def test_every_mutant_of_a_plan_is_noticed(compared: Compared, step: int) -> None:
    """Or lacks a value that nothing reads. With float64 tokens both precisions are the same."""
    plan = compared.right
    assert not compared.notices(plan)
    every = [(rule, m) for rule, m in mutants_of(plan) if rule not in OF_PRECISION]
    survivors = [rule for rule, m in some(every, step) if not compared.notices(m)]
    unread = [rule for rule, m in every if isinstance(plan, Plan) and is_unread(plan, m)]
    assert not Counter(survivors) - Counter(unread)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "compared",
    [Compared("fiberpo", "levels", "c", F32, 1e-12), Compared("upto grpo", "objective", "c", F32, 1e-6)],
    ids=str,
)
def test_a_float64_pass_or_value_made_narrow_is_noticed(compared: Compared) -> None:
    """A sum that a gate compares with a bound, and a token that has the value of a quantile."""
    assert not compared.notices(compared.right)
    found = [compared.notices(m) for rule, m in mutants_of(compared.right) if rule in OF_PRECISION]
    assert found and all(found)


def test_the_rules_for_plans_apply() -> None:
    found = {rule for compared in COMPARED for rule, _ in mutants_of(compared.right)}
    assert found == {
        "stage left out", "stages exchanged", "step left out", "steps exchanged", "group left out", "groups exchanged",
        "value not saved", "sum left out", "result not written", "value not set aside", "sum in order left out",
        "value dropped too early", *OF_PRECISION,
    }  # fmt: skip


# ---------------------------------------------------------------- over ranks

RANKS = 4


def changed(plan: Plan, mutant: Plan) -> set[Node]:
    """The values that collectives combine in another way, or not at all."""
    found: set[Node] = set()
    for one, other in zip(plan.collectives, mutant.collectives, strict=False):
        found |= {*one.whole} ^ {*other.whole} | {*one.parts} ^ {*other.parts}
    return found or {*plan.program.outputs.values()}


def is_tiny(plan: Plan, node: Node, batches: list[tuple[Truth, Any]]) -> bool:
    """Whether a value is below rounding in all batches. Such are some parts of sums, which are cut by their size."""
    program = replace(plan.program, outputs={Key("objective"): node})
    found = (interpret(program, inputs, truth.index.sizes(program.edges)) for truth, inputs in batches)
    return all(np.abs(values[Key("objective")]).max() < 2.0**-50 for values in found)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_every_mutant_of_a_plan_over_ranks_is_noticed(name: str, cut: bool) -> None:
    """Every rank has the bits that one process has, of its own tokens and of all elements."""
    h = spec(name)
    leaf, program = h.leaves[0].name, programs(h)["objective"]
    plan = sweeps(program, h.rows.name, spread=spread_of(h, cut))
    met, alone = [], []
    for c in near_cases(h, 3 if cut else 12):
        of = np.random.default_rng(len(met)).integers(0, RANKS - 1, c.batch.tokens)  # the last rank has nothing
        truth = c.bounds(indexed(h, c.batch), FLOAT64)
        inputs, sizes = truth.given(program, {})
        met.append((truth, inputs, of if cut else of[c.batch.row]))
        alone += on_ranks(plan, truth.index, inputs, {leaf: 0 * of}, 1)
        for key, value in interpret(program, inputs, sizes).items():
            assert is_close(alone[-1][key], value, 1e-9)

    def notices(plan: Plan) -> bool:
        try:
            for (truth, inputs, of), expected in zip(met, alone, strict=True):
                for rank, found in enumerate(on_ranks(plan, truth.index, inputs, {leaf: of}, RANKS)):
                    for key, node in program.outputs.items():
                        mine = expected[key][of == rank] if node.stratum == leaf else expected[key]
                        if not np.array_equal(found[key], mine):
                            return True
        except (KeyError, AssertionError):  # a value is missing; ranks differ, or parts are no multiples of a unit
            return True
        return False

    assert not notices(plan)
    every = [(rule, m) for rule, m in of_plan(plan) if rule not in OF_PRECISION]
    assert "value of other ranks left out" in {rule for rule, _ in every}
    survivors = [(rule, m) for rule, m in some(every, 3) if not notices(m) and not is_unread(plan, m)]
    batches = [(truth, inputs) for truth, inputs, _ in met]
    assert not [rule for rule, m in survivors if not all(is_tiny(plan, n, batches) for n in changed(plan, m))]
