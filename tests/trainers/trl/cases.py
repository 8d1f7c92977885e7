"""The recorded trainings as data: the options of `GRPOConfig` and of the trainer that each of them sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fibration import load
from fibration.compiler.coupling import coupling_of

SOFT, THREE, REWARDS, SHAPED, MEASURED, TAUGHT = (
    f"{Path(__file__).parent / 'spec.py'}:{name}"
    for name in ("soft", "of_three", "of_rewards", "shaped", "measured", "taught")
)
# With these, elements of every level pass, are rolled back and zeroed (domains from 5 budgets on, others from 2), on both channels: after
# an update on the same rows, and after one on other rows, which moves these less.
FAR = {
    "C_domain": {"algebra": 0.01, "code": {"+": 0.1, "-": 0.15}, "logic": 2.0, "maps": {"+": 0.08, "-": 0.2}},
    "C_prompt_group": {"+": 0.05, "-": 0.1},
    "C_trajectory": {"+": 0.15, "-": 0.2},
    "epsilon": 0.1,
}
NEAR = {
    "C_domain": {"algebra": 0.006, "code": {"+": 0.04, "-": 0.06}, "logic": 2.0, "maps": {"+": 0.03, "-": 0.08}},
    "C_prompt_group": {"+": 0.03, "-": 0.03},
    "C_trajectory": {"+": 0.02, "-": 0.03},
    "epsilon": 0.1,
}
ROWS = {"epsilon_low": 0.05, "epsilon_high": 0.08}
SMALL = {**FAR, "C_prompt_group": {"+": 0.025, "-": 0.1}}  # groups of a larger generation
# A penalty pulls the other way: groups and domains move less.
PULLED = {
    **FAR,
    "C_domain": {**FAR["C_domain"], "code": {"+": 0.1, "-": 0.06}},
    "C_prompt_group": {"+": 0.025, "-": 0.06},
}
PER_DEVICE = 10


@dataclass(frozen=True)
class Case:
    """`slices`: how many a generation has, of which an optimizer step takes `accumulation`."""

    slices: int = 3
    accumulation: int = 3
    iterations: int = 2
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    hierarchy: str = SOFT
    budgets: dict[str, Any] = field(default_factory=lambda: FAR)
    exact: bool = True  # float64, and log-probs in it; else float32, as the trainer computes them
    steps: int = 4  # 0: two epochs of one generation each
    fresh: tuple[bool, ...] = ()  # which windows train on what the weights of now sampled
    holes: bool = False  # tokens of tools
    endless: bool = False  # on the last rank no completion ends
    sampled: bool = False  # by the trainer's own `generate`
    unknown: bool = False  # the engine lacks log-probs of some tokens
    asks: bool = False  # log-probs are read by themselves, and the trainer keeps none of fresh windows
    weights: str = ""  # how an engine's importance weights are made
    resume: int = 0  # after so many steps
    twice: bool = False  # every prompt is two lines of the data
    stream: bool = False  # data that are known by and by
    broken: bool = False  # off within the first micro-batch, and trained again
    again: int = 0  # trained on to so many steps, by the same trainer
    unscored: bool = False  # some completions have no reward
    noise: float = 0.0  # the rate of dropout in attention
    equal: str = ""  # "half" of the prompts, or "all", have equal rewards
    teacher: str = ""  # log-probs of a "model", or of a "field" of what is sampled
    sharded: bool = False  # FSDP shards the teacher's model
    two_rewards: bool = False
    every_regime: bool = True
    of_prompt: int = 0  # completions per prompt, if not as below
    before: int | None = None  # forward passes before a step that is not fresh, where groups are together
    ranks: tuple[int, ...] = (1, 2)

    @property
    def is_row_local(self) -> bool:
        """Whether every micro-batch has its coefficients from its own forward pass."""
        return coupling_of(load(self.hierarchy)).is_row_local

    @property
    def samples(self) -> dict[int, int]:
        """Completions per prompt, by the number of ranks: with two of them, a group lies on both."""
        if self.of_prompt:
            return dict.fromkeys((1, 2), self.of_prompt)
        return {1: 3, 2: 4 if self.slices == 3 else 8}

    def prompts(self, ranks: int) -> int:
        """In one generation."""
        return PER_DEVICE * self.slices * ranks // self.samples[ranks]


SLOW = {"learning_rate": 3e-5}  # ratios without a bound
T, F = True, False
CASES = {
    "fresh windows": Case(iterations=1, steps=2, exact=False, fresh=(T, T), every_regime=False),
    "two iterations": Case(fresh=(T, F, T, F)),
    "three iterations": Case(iterations=3, fresh=(T, F, F, T)),
    "twice as many slices": Case(slices=6, iterations=1, budgets=NEAR, fresh=(T, F, T, F)),
    "twice as many slices, two iterations": Case(slices=6, steps=5, fresh=(T, F, F, F, T)),
    "a window that goes around": Case(accumulation=6, steps=2, exact=False, fresh=(T, T), every_regime=False),
    "windows over the end of an iteration": Case(slices=6, accumulation=4, budgets=SMALL, fresh=(T, F, F, T)),
    "a slice that comes twice": Case(accumulation=4, iterations=4, fresh=(T, F, F, T)),
    "a last window that is shorter": Case(
        slices=6, accumulation=4, iterations=1, steps=0, budgets=NEAR, fresh=(T, F, T, F)
    ),
    "resumed in the middle of a generation": Case(slices=6, resume=1, iterations=1, budgets=NEAR, fresh=(T, F, T)),
    "truncated completions": Case(config={"mask_truncated_completions": True}, fresh=(T, F, T, F)),
    "a rank with nothing": Case(
        config={"mask_truncated_completions": True}, endless=True, ranks=(2,), fresh=(T, F, T, F)
    ),
    "nothing at all": Case(
        config={"mask_truncated_completions": True}, endless=True, ranks=(1,), every_regime=False, fresh=(T, F, T, F)
    ),
    "tokens of tools": Case(holes=True, fresh=(T, F, T, F)),
    "a reference model": Case(config={"beta": 0.3, "use_bias_correction_kl": False}, fresh=(T, F, T, F)),
    "a bonus for entropy": Case(config={"entropy_coef": 0.2}, fresh=(T, F, T, F)),
    "weights per token": Case(weights="token_truncate", fresh=(T, F, T, F)),
    "weights per row": Case(weights="sequence_truncate", slices=6, iterations=1, budgets=NEAR, fresh=(T, F, T, F)),
    "weights that are zero": Case(weights="token_mask", fresh=(T, F, T, F)),
    "what sampled": Case(hierarchy=THREE, budgets={**FAR, "far": 0.75}, fresh=(T, F, T, F)),
    "what sampled, in fresh windows": Case(
        hierarchy=THREE, budgets={"far": 0.75}, iterations=1, steps=2, fresh=(T, T), every_regime=False, asks=True
    ),
    "what sampled, not of every token": Case(
        hierarchy=THREE,
        slices=6,
        iterations=1,
        budgets={**NEAR, "far": 0.75},
        unknown=True,
        config={"eval_strategy": "steps", "eval_steps": 1, "mask_truncated_completions": True},
        fresh=(T, F, T, F),
    ),
    "evaluation between updates": Case(
        slices=6,
        iterations=1,
        budgets=NEAR,
        config={"eval_strategy": "steps", "eval_steps": 1, "mask_truncated_completions": True},
        fresh=(T, F, T, F),
    ),
    "window of a generation": Case(slices=6, trainer={"window": "generation"}, steps=5, fresh=(T, F, F, F, T)),
    "window of a generation, a shorter last step": Case(
        slices=6,
        accumulation=4,
        iterations=1,
        steps=0,
        budgets=NEAR,
        trainer={"window": "generation"},
        fresh=(T, F, T, F),
    ),
    "window of a generation, over the end of an iteration": Case(
        slices=6, accumulation=4, budgets=SMALL, trainer={"window": "generation"}, fresh=(T, F, F, T)
    ),
    "window of a generation that goes around": Case(
        accumulation=4, iterations=4, trainer={"window": "generation"}, fresh=(T, F, F, T)
    ),
    "rewards and a reference model": Case(hierarchy=REWARDS, budgets=PULLED, fresh=(T, F, T, F)),
    "rewards, of parts of groups, not of every row": Case(
        hierarchy=REWARDS,
        slices=6,
        iterations=1,
        budgets={**NEAR, "C_prompt_group": {"+": 0.015, "-": 0.03}},
        unscored=True,
        config={"eval_strategy": "steps", "eval_steps": 1},
        fresh=(T, F, T, F),
    ),
    "groups without gates": Case(hierarchy="hierarchical_grpo", budgets={}, every_regime=False, fresh=(T, F, T, F)),
    "a reference model in the reward, in fresh windows": Case(
        hierarchy=SHAPED, iterations=1, steps=2, fresh=(T, T), every_regime=False
    ),
    "all metrics": Case(trainer={"metrics": "all"}, fresh=(T, F, T, F)),
    "a stream": Case(stream=True, fresh=(T, F, T, F)),
    "trained again": Case(slices=6, iterations=1, steps=3, budgets=NEAR, again=4, fresh=(T, F, T, F, T, F, T)),
    "broken off and trained again": Case(broken=True, fresh=(T, F, T, F)),
    "as it is installed": Case(exact=False, slices=6, steps=4, fresh=(T, F, F, F)),
    "completions of its own": Case(
        exact=False,
        sampled=True,
        budgets=NEAR,
        config={"remove_unused_columns": True, "activation_checkpointing": True},
        fresh=(T, F, T, F),
    ),
    "half precision": Case(exact=False, config={"bf16": True}, fresh=(T, F, T, F)),
    "a prompt that comes twice": Case(twice=True, fresh=(T, F, T, F)),
    "groups by a column": Case(trainer={"labels": {"domain": "domain", "prompt_group": "line"}}, fresh=(T, F, T, F)),
    "a shipped name": Case(
        hierarchy="fiberpo_domain", trainer={"backend": "torch"}, every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone": Case(hierarchy="gspo", budgets=ROWS, every_regime=False, fresh=(T, F, T, F)),
    "rows alone, a slice that comes twice": Case(
        hierarchy="gspo", budgets=ROWS, accumulation=4, iterations=4, every_regime=False, fresh=(T, F, F, T)
    ),
    "rows alone, window of a generation": Case(
        hierarchy="gspo",
        budgets=ROWS,
        slices=6,
        trainer={"window": "generation"},
        steps=5,
        every_regime=False,
        fresh=(T, F, F, F, T),
    ),
    "rows alone, a rank with nothing": Case(
        hierarchy="grpo",
        budgets={},
        config={"mask_truncated_completions": True},
        endless=True,
        ranks=(2,),
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "rows alone, weights per token": Case(
        hierarchy="grpo", budgets={}, weights="token_truncate", every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone, a mask of what sampled": Case(
        hierarchy="geometric_mask", budgets={"least": 0.8, "most": 1.3}, every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone, near a reference model": Case(
        hierarchy="grpo_k2", budgets={}, iterations=1, steps=2, fresh=(T, T), every_regime=False, asks=True
    ),
    "rows alone, no ratio": Case(hierarchy="rloo", budgets={}, every_regime=False, fresh=(T, F, T, F)),
    "rows alone, no ratio, a reference model in the reward": Case(
        hierarchy="rloo_kl", budgets={}, every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone, with dropout": Case(
        hierarchy="gspo", budgets=ROWS, noise=0.2, every_regime=False, ranks=(1,), fresh=(T, F, T, F)
    ),
    "rows alone, with dropout, no old log-probs": Case(
        hierarchy="gspo",
        budgets=ROWS,
        noise=0.2,
        iterations=1,
        steps=2,
        exact=False,
        every_regime=False,
        ranks=(1,),
        fresh=(T, T),
    ),
    "whole groups in a slice": Case(
        hierarchy="real",
        budgets={},
        trainer={"together": "prompt_group"},
        of_prompt=5,
        before=0,
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "whole groups in two slices": Case(
        hierarchy="real",
        budgets={},
        slices=4,
        accumulation=4,
        trainer={"together": "prompt_group"},
        of_prompt=20,
        before=2,
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "whole groups, more slices than a step has": Case(
        hierarchy="real",
        budgets={},
        slices=6,
        iterations=1,
        trainer={"together": "prompt_group"},
        of_prompt=5,
        before=0,
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "equal rewards": Case(hierarchy="gspo", budgets=ROWS, equal="half", every_regime=False, fresh=(T, F, T, F)),
    "equal rewards, of every prompt": Case(
        hierarchy="gspo", budgets=ROWS, equal="all", every_regime=False, fresh=(T, F, T, F)
    ),
    "equal rewards, coupled": Case(
        equal="half",
        every_regime=False,
        config={"mask_truncated_completions": True},
        fresh=(T, F, T, F),
    ),
    "equal rewards, window of a generation": Case(
        hierarchy="gspo",
        budgets=ROWS,
        equal="half",
        slices=6,
        trainer={"window": "generation"},
        steps=5,
        every_regime=False,
        fresh=(T, F, F, F, T),
    ),
    "equal rewards, a bonus for entropy": Case(
        hierarchy="gspo",
        budgets=ROWS,
        equal="half",
        config={"entropy_coef": 0.2},
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "attributes": Case(
        hierarchy=MEASURED,
        trainer={"attributes": {"difficulty": "level", "part": "part"}},
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "attributes, parts of groups, tokens of tools": Case(
        hierarchy=MEASURED,
        trainer={"attributes": {"difficulty": "level", "part": "part"}},
        slices=6,
        iterations=1,
        holes=True,
        budgets=NEAR,
        config={"eval_strategy": "steps", "eval_steps": 1, "mask_truncated_completions": True},
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "rows alone, entropies": Case(hierarchy="entropy_mask", budgets={}, every_regime=False, fresh=(T, F, T, F)),
    "a teacher": Case(hierarchy=TAUGHT, teacher="model", every_regime=False, fresh=(T, F, T, F)),
    "rows alone, a teacher": Case(
        hierarchy="opd_reward", budgets={}, teacher="model", config=SLOW, every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone, a teacher in shards": Case(
        hierarchy="opd_reward",
        budgets={},
        teacher="model",
        sharded=True,
        config=SLOW,
        every_regime=False,
        fresh=(T, F, T, F),
        ranks=(2,),
    ),
    "a teacher in shards, as it is installed": Case(
        hierarchy="opd_reward",
        budgets={"beta": 0.1},
        teacher="model",
        sharded=True,
        config=SLOW,
        exact=False,
        every_regime=False,
        fresh=(T, F, T, F),
        ranks=(2,),
    ),
    "a teacher, as it is installed": Case(
        hierarchy="opd_reward",
        budgets={"beta": 0.1},
        teacher="model",
        config=SLOW,
        exact=False,
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "entropies, as it is installed": Case(
        hierarchy="entropy_mask", budgets={}, exact=False, every_regime=False, fresh=(T, F, T, F)
    ),
    "rows alone, a teacher alone": Case(
        hierarchy="opd",
        budgets={},
        teacher="field",
        config={**SLOW, "mask_truncated_completions": True},
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "rows alone, two rewards": Case(
        hierarchy="gdpo",
        budgets={"weight_2": 0.6},
        two_rewards=True,
        trainer={"attributes": {"reward_1": "rewards/reward", "reward_2": "rewards/brevity"}},
        every_regime=False,
        fresh=(T, F, T, F),
    ),
    "two rewards, a window of a generation": Case(
        hierarchy="gdpo",
        budgets={},
        two_rewards=True,
        trainer={
            "attributes": {"reward_1": "rewards/reward", "reward_2": "rewards/brevity"},
            "window": "generation",
        },
        slices=6,
        steps=5,
        every_regime=False,
        fresh=(T, F, F, F, T),
    ),
    "the trainer's own loss": Case(
        hierarchy="dapo", budgets={"epsilon_high": 0.2}, exact=False, every_regime=False, fresh=(T, F, T, F)
    ),
}
