"""Mutants of programs against the dense evaluation of the definition, or advantages in fractions, which share no code with
lowering.

The rules apply to the program as lowered, before its adjoint is taken; to its adjoint; and to the optimised program. The
tests of the backends and of the optimiser compare with the same numbers and bounds.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from oracles.backend_cases import F64, FLOAT64, Bounded, Truth, indexed
from oracles.rewards import Rewards
from support import Batch, raw_programs, spec
from thorough import ALL

from fibration import Hierarchy
from fibration.compiler.adjoint import adjoint, drops_tokens
from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import BATCH, Const, Input, Key, Matrix
from fibration.compiler.lower import from_log_probs, lower
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.errors import IRError
from mutants.batches import cases, hierarchy, numbers
from mutants.programs import mutants

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ratios of exp(800)
WORDS = ("objective", "coefficients")
SPECS = (
    "aspo", "cispo", "clip_cov", "ctpo", "entropy_mask", "fiberpo", "fiberpo_crossed", "fiberpo_domain",
    "fiberpo_inward", "fiberpo_modal", "fipo", "grpo", "grpo_k3", "gspo",
    "kl_cov", "mis", "ppo", "ppo_entropy", "sapo", "topr", "vespo", "weighed grpo", "quiver 0", "order 2",
)  # fmt: skip
REWARDED = ("best_of_group", "grpo_rewards", "maxrl", "pass_at_k", "reinforce_pp_baseline", "rloo")
BATCHES, MOST = 16, 120  # batches that every mutant meets, and those that few mutants need
MANY_MUTANTS = 200 if ALL else 30  # of each loss, evenly over stages and nodes
NOTICED, SAME_PROGRAM, SAME_VALUES = "noticed", "the optimised program is the same", "all inputs give the same values"
RULES = (
    "another argument", "another discount", "another input", "another number", "another quantile", "another reduction",
    "another stratum", "bound moved", "branches of a choice exchanged", "comparison turned", "condition forgotten",
    "difference turned", "factor dropped", "factor for normaliser", "first branch of a choice lost", "function dropped",
    "gradient stopped", "input dropped", "leaf left out", "matrix dropped", "negation forgotten", "normaliser dropped",
    "one for the other of 'and' and 'or'", "order turned", "second branch of a choice lost", "sign turned",
    "stop forgotten", "term dropped",
)  # fmt: skip


# ---------------------------------------------------------------- stages


def lowered(h: Hierarchy) -> Program:
    base = lower(h)
    return replace(base, outputs={Key("objective"): base.outputs[Key("objective")]})


def derived(base: Program, h: Hierarchy) -> Program:
    """The objective and its coefficients."""
    moving = {
        base.part("coefficients", leaf): tuple(base.token_input(kind, leaf) for kind in ("log_ratio", "log_prob"))
        for leaf in base.leaves
    }
    return adjoint(base, {Key("objective"): Const(1.0, BATCH)}, moving, drops_tokens(h))


def optimised(program: Program) -> Program:
    return optimise(from_log_probs(program))


# ---------------------------------------------------------------- what tells mutants apart


class Judge:
    """What tells mutants of a loss apart from it: a few batches, with the values that the definition gives them."""

    def __init__(self, h: Hierarchy) -> None:
        self.h = h
        self.base = lowered(h)
        self.right = derived(self.base, h)
        self.optimised = optimised(self.right)
        self.free = [FreeInputs(h, seed) for seed in range(3)]
        self.batches: list[tuple[Truth, Mapping[str, Bounded]]] = []
        self.cases = cases(h)

    def judged(self, first: int, last: int) -> Iterator[tuple[Truth, Mapping[str, Bounded]]]:
        """Batches of these numbers, with what the definition gives."""
        for number in range(last):
            while len(self.batches) <= number:
                c = next(self.cases)
                truth = c.bounds(indexed(self.h, c.batch), FLOAT64)
                expected = truth.run("objective")
                if all(np.isfinite(expected[word].value).all() for word in WORDS):
                    self.batches.append((truth, expected))
            if number >= first:
                yield self.batches[number]

    def notices(self, program: Program, first: int = 0, last: int = BATCHES) -> bool:
        for truth, expected in self.judged(first, last):
            found = truth.interpreted(program)
            try:
                for word in WORDS:
                    expected[word].check(found[word], F64, word)
            except AssertionError:
                return True
        return False

    def mutants(self) -> Iterator[tuple[str, Callable[[], Program]]]:
        """Mutants of every stage: what they are, and how to get their objective and coefficients."""
        for m in mutants(self.base, gradients=True):
            yield f"lowered: {m}", lambda m=m: derived(m.program(), self.h)  # type: ignore[misc]
        yield from self.further_mutants()

    def further_mutants(self) -> Iterator[tuple[str, Callable[[], Program]]]:
        for stage, program in (("derived", self.right), ("optimised", self.optimised)):
            for m in mutants(program):
                yield f"{stage}: {m}", m.program

    def outcome(self, made: Callable[[], Program]) -> str:
        """NOTICED, or the reason why no batch can notice a mutant; "" if there is neither."""
        try:
            program = made().validate()
            if self.notices(program):
                return NOTICED
            if all(optimised(program).outputs[k] is v for k, v in self.optimised.outputs.items()):
                return SAME_PROGRAM
            if not any(free.tell_apart(program, self.right) for free in self.free):
                return SAME_VALUES
            return NOTICED if self.notices(program, BATCHES, MOST) else ""
        except (IRError, IndexError):  # no derivative; a quantile beyond its values
            return NOTICED


class RewardJudge(Judge):
    """What tells programs of advantages apart: a few batches of rewards, with the advantages of the formula in fractions."""

    def __init__(self, h: Hierarchy) -> None:
        self.h = h
        program = raw_programs(h)["advantages"]
        self.right = replace(program, outputs={k: v for k, v in program.outputs.items() if k.word == "advantages"})
        self.optimised = optimised(self.right)
        self.free = [FreeInputs(h, seed) for seed in range(3)]
        self.known = functools.cache(self._known)

    mutants = Judge.further_mutants

    def _known(self, seed: int) -> tuple[Truth, np.ndarray]:
        """Groups of one row and of many, rows without tokens, rewards of two values and of all."""
        for attempt in itertools.count():
            generator = np.random.default_rng([seed, attempt])
            lengths, group = (
                generator.integers(0, 4, size=14),
                generator.integers(0, generator.choice([2, 3, 6]), size=14),
            )
            if np.bincount(group, lengths > 0).min() > ("others" in str(self.h.advantages)):  # nobody alone has others
                break
        labels = {"prompt_group": group.tolist(), "domain": (group % 2).tolist()}
        n = int(lengths.sum())
        batch = Batch(tuple(lengths.tolist()), np.zeros(n), np.zeros(n), labels)
        rewards = generator.choice([generator.normal(size=14), generator.integers(0, 2, size=14)])[batch.row]
        truth = Truth(indexed(self.h, batch), batch.x, rewards, {}, FLOAT64)
        return truth, Rewards(self.h, batch, rewards).advantages()

    def notices(self, program: Program, first: int = 0, last: int = BATCHES) -> bool:
        for truth, expected in map(self.known, range(first, last)):
            found = truth.interpreted(program)["advantages"]
            if not np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max(initial=1):
                return True
        return False


# ---------------------------------------------------------------- free inputs

MANY, FEWER = 600, 100  # elements of a leaf, and of a coarser stratum


@dataclass
class FreeInputs:
    """Inputs that no batch need have: sums that disagree, labels of any kind. Parameters keep their bounds, tokens of one
    element its advantage or reward."""

    h: Hierarchy
    seed: int
    size: dict[str, int] = field(default_factory=dict)
    parents: dict[tuple[str, str], Any] = field(default_factory=dict)
    right: dict[Key, np.ndarray] = field(default_factory=dict)

    def values(self, program: Program) -> dict[Key, np.ndarray]:
        for s in (n.stratum for n in program.nodes()):
            self.size[s] = 1 if s == BATCH else MANY if s in program.leaves else FEWER
        for e in program.edges:
            self.parents[e] = self.generator(*e).integers(0, self.size[e[1]], size=self.size[e[0]])
        given = {i: self.drawn(i, program) for i in (*program.inputs, *program.matrices)}
        return interpret(program, given, Sizes(self.parents, self.size))

    def generator(self, *words: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(" ".join(words).encode())])

    def drawn(self, node: Input | Matrix, program: Program) -> Any:
        generator = self.generator(node.word)
        if isinstance(node, Matrix):
            return generator.normal(size=(self.size[node.into], self.size[node.of]))
        if node.kind == "parameter":
            name, channel = node.key
            value = numbers(self.h.parameters[name], self.generator(name))
            return value[channel] if channel else value
        if node.kind == "log_ratio":
            kinds = ("log_prob", "old_log_prob")
            now, old = (self.drawn(replace(node, word=kind, kind=kind), program) for kind in kinds)
            return now - old
        if node.kind in ("log_prob", "old_log_prob"):
            generator = self.generator(node.kind, node.over)
        if node.kind == "count" and node.key in self.parents:
            return np.maximum(np.bincount(self.parents[node.key], minlength=self.size[node.over]), 1)
        if node.kind in ("advantage", "reward") and node.over in program.leaves:
            for i in program.inputs:
                if i.kind == node.kind and (node.over, i.over) in self.parents:
                    return self.drawn(i, program)[self.parents[node.over, i.over]]
        n = self.size[node.over]
        if node.kind == "count":
            return generator.integers(1, 9, size=n)
        return generator.uniform(0.1, 3, size=n) if node.kind in ("total", "attribute") else generator.normal(size=n)

    def tell_apart(self, program: Program, right: Program) -> bool:
        self.right = self.right or self.values(right)
        for key, value in self.values(program).items():
            is_known = np.isfinite(self.right[key])
            assert is_known.any()
            scale = np.abs(self.right[key][is_known]).max()
            if not (np.abs(value - self.right[key])[is_known] <= 1e-9 * scale).all():
                return True
        return False


# ---------------------------------------------------------------- tests


@functools.cache
def judge_of(name: str) -> Judge:
    return RewardJudge(spec(name)) if name in REWARDED else Judge(hierarchy(name))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*SPECS, *REWARDED])
def test_every_mutant_is_noticed_or_has_the_same_values(name: str) -> None:
    judge = judge_of(name)
    assert not judge.notices(judge.right)
    assert not judge.notices(judge.optimised)
    every = list(judge.mutants())
    found = {what: judge.outcome(made) for what, made in every[:: max(1, len(every) // MANY_MUTANTS)]}
    outcomes = Counter(found.values())
    survivors = [what for what, outcome in found.items() if not outcome]
    assert not survivors, "\n".join(survivors)
    assert outcomes[SAME_PROGRAM] + outcomes[SAME_VALUES] < len(found) / 4, outcomes


def test_mutants_by_every_rule_are_noticed() -> None:
    left = set(RULES)
    for name in ("ppo", "cispo", "entropy_mask", "prime_rl", "order 2", "fiberpo_crossed"):
        judge = judge_of(name)
        for what, made in judge.mutants():
            rule = what.split(": ")[1]
            assert rule in RULES
            if rule in left:
                with suppress(IRError, IndexError):
                    left -= {rule} if judge.notices(made().validate()) else set()
    assert not left
