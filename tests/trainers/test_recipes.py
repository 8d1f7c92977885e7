"""The recipes of `docs/trainers/others.md`, `docs/examples/recipes`, inside stand-ins for their trainers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import example_loops
import pytest
import support
import torch
import trainer_stand_ins
from thread_ranks import ThreadGroup, on_ranks
from three_policy_losses import of_three
from torch import Tensor
from trainer_stand_ins import Data, Imported, Model

from fibration.runtime.metrics import Metric

PAGE = (Path(__file__).parents[2] / "docs" / "trainers" / "others.md").read_text()
FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "recipes"
SIZE, T = 24, 10  # rows of an optimizer step
EXACT, WRONG = 1e-13, 1e-3
A_LITTLE = 1e-9  # what NeMo-RL adds to its counts
DRIVEN: dict[str, tuple[Callable[[], dict[str, ModuleType]], Any]] = {  # one process has all rows
    "skyrl_hierarchy": (trainer_stand_ins.skyrl, trainer_stand_ins.run_skyrl),
    "nemo_hierarchy": (trainer_stand_ins.nemo, trainer_stand_ins.run_nemo),
}
SPREAD: dict[str, tuple[Callable[[], dict[str, ModuleType]], Any]] = {
    "openrlhf_hierarchy": (dict, trainer_stand_ins.run_openrlhf),
    "slime_hierarchy": (trainer_stand_ins.slime, trainer_stand_ins.run_slime),
    "areal_hierarchy": (trainer_stand_ins.areal, trainer_stand_ins.run_areal),
}
RECIPES = {**DRIVEN, **SPREAD}


def rollout(fresh: bool = False) -> Data:
    """Rows of three optimizer steps, some without a token; old log-probs are of other weights, unless the first is fresh."""
    make = torch.Generator().manual_seed(2)
    rows = 3 * SIZE
    mask = torch.rand(rows, T, generator=make) < 0.8
    mask[[5, 22, 30, 60]] = False
    tokens = torch.randint(1, trainer_stand_ins.WORDS, (rows, T), generator=make)
    sampler = Model()
    with torch.no_grad():
        sampler.weights += (0 if fresh else 0.12) * torch.randn(6, generator=make, dtype=torch.float64)
        old = sampler(tokens)
    advantages = torch.randn(rows, generator=make, dtype=torch.float64)
    ends = ((8, 16), (4, 16), (12, 20))  # of the first and second domain, in each step
    domain = [("math", "code", "maps")[sum(i % SIZE >= end for end in ends[i // SIZE])] for i in range(rows)]
    sampled = old + 0.13 * torch.randn(rows, T, generator=make, dtype=torch.float64)
    return Data(tokens, mask, old, advantages, [i // 4 for i in range(rows)], domain, sampled)


class Narrow:
    """The operator, with budgets of each step with which elements of every level pass, are rolled back and zeroed."""

    def __init__(self, budgets: list[dict[str, Any]] | None, three: bool = False) -> None:
        self.op = support.operator(of_three if three else support.spec("fiberpo_domain"), "c")
        self.hierarchy, self.index = self.op.hierarchy, self.op.index
        self.given, self.budgets = budgets, list[dict[str, Any]]()
        self.metrics: list[dict[str, Metric]] = []

    def coefficients(self, now: Tensor, old: Tensor, advantages: Tensor, index: Any, *_: Any, **more: Any) -> Any:
        if self.given is not None:
            self.budgets.append(self.given[min(len(self.budgets), len(self.given) - 1)])
        else:
            self.budgets.append({} if torch.equal(now, old) else example_loops.narrow(self.op, index, now - old))
        looked_at = self.given is None  # metrics cost as much again
        given = {"policies": more["policies"], "metrics": looked_at}
        found = self.op.coefficients(now, old, advantages, index, self.budgets[-1], **given)
        self.metrics.append(found.metrics)
        return found


@functools.cache
def budgets(name: str) -> list[dict[str, Any]]:
    """Of each step, where one rank has all rows."""
    (model,), _, (op,) = ran(name, 1, block(name), None)
    assert (name == "skyrl_hierarchy") == ("fibration/trajectory/+/zeroed" in model.logged)
    steps = [metrics for metrics, chosen in zip(op.metrics, op.budgets, strict=True) if chosen]
    assert len(steps) >= len(op.budgets) - 1  # of slime's, the first is on policy
    example_loops.every_regime({m: max(float(metrics[m]) for metrics in steps) for m in steps[0]})
    return op.budgets


def block(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


def ran(name: str, ranks: int, text: str, chosen: Any, three: bool = False) -> tuple[list[Model], Data, list[Narrow]]:
    """The recipe in its trainer, over a rollout: models of all ranks, what was trained on, the operators."""
    modules, run = RECIPES[name]
    data, ops = rollout(fresh=name == "slime_hierarchy"), [Narrow(chosen, three) for _ in range(ranks)]

    def work(rank: int, group: Any) -> Model:
        scope: dict[str, Any] = {}
        exec(compile(text, f"{name}.py", "exec"), scope)
        scope["op"] = ops[rank]
        model = Model(group if isinstance(group, ThreadGroup) else None)
        run(scope, model, data, SIZE, group)
        return model

    with Imported(modules()):
        models = [work(0, ranks)] if name in DRIVEN else on_ranks(ranks, lambda group: work(group.rank, group))
    return models, data, ops


def errors(name: str, ranks: int, text: str, three: bool = False) -> list[float]:
    """Of each optimizer step, relative to the gradient of `op.loss` on its rows at the weights of the step.

    `three`: of a hierarchy that reads what sampled, too.
    """
    models, data, (op, *_) = ran(name, ranks, text, budgets(name), three)
    assert all(torch.equal(model.weights, models[0].weights) for model in models)
    assert len(models[0].steps) == len(budgets(name))
    found = []
    for at, (weights, grad) in enumerate(models[0].steps):
        rows = slice(at * SIZE % len(data), at * SIZE % len(data) + SIZE)
        model = Model()
        with torch.no_grad():
            model.weights.copy_(weights)
        labels = {"prompt_group": data.prompt_group[rows], "domain": data.domain[rows]}
        index = op.index(mask=data.mask[rows], **labels)
        sampled = {"rollout": data.rollout[rows]} if three else {}
        tokens = (model(data.tokens[rows]), data.old[rows], data.advantages[rows])
        loss = op.op.loss(*tokens, index, budgets(name)[at], policies=sampled)
        loss.loss.backward()
        assert model.weights.grad is not None
        found.append(float((grad - model.weights.grad).norm() / model.weights.grad.norm()))
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_every_optimizer_step_has_the_gradient_of_the_whole_step(name, ranks):
    assert max(errors(name, ranks, block(name))) <= (A_LITTLE if name == "nemo_hierarchy" else EXACT)


# What the page says of a third policy, written into the two recipes whose driver has all rows.
SAMPLED = {
    "skyrl_hierarchy": ('step["advantages"], labels)', 'step["rollout_logprobs"]'),
    "nemo_hierarchy": ('step["advantages"], of_rows)', 'step["generation_logprobs"]'),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_log_probs_of_the_sampling_policy_are_in_the_field_that_the_page_names(name):
    call, field = SAMPLED[name]
    assert f"`{field}`" in PAGE and call in block(name)
    text = block(name).replace(call, f'{call[:-1]}, policies={{"rollout": {field}}})')
    assert max(errors(name, 2, text, three=True)) <= (A_LITTLE if name == "nemo_hierarchy" else EXACT)
    mistaken = text.replace(field, 'step["action_log_probs"]' if name == "skyrl_hierarchy" else 'step["prev_logprobs"]')
    assert max(errors(name, 2, mistaken, three=True)) > WRONG


def test_the_first_step_of_slime_needs_no_forward_pass():
    (model, _), _, _ = ran("slime_hierarchy", 2, block("slime_hierarchy"), budgets("slime_hierarchy"))
    assert model.forwards == 3 * SIZE // 2  # rows of the second and third step, and of that in another stage


def test_the_first_block_of_the_page_runs():
    data, model = rollout(), Model()
    with torch.no_grad():
        now = model(data.tokens)
    scope = {
        "op": support.operator(support.spec("fiberpo_domain"), "c"),
        "mask": data.mask,
        "old_log_probs": data.old,
        "advantages": data.advantages,
        "uids": data.prompt_group,
        "sources": data.domain,
        "data_parallel_group": None,
        "log_probs": now,
    }
    (first,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(first, scope)
    new = now.clone().requires_grad_()
    (-(scope["a"] * (new - now).exp() * data.mask).sum() / data.mask.sum()).backward()
    torch.testing.assert_close(new.grad, -scope["c"], rtol=1e-13, atol=0)
    assert (scope["c"] != 0).any()


def test_the_page_has_a_recipe_for_each_trainer():
    assert (
        set(re.findall(r"examples/recipes/(\w+)\.py\)", PAGE)) == {f.stem for f in FOLDER.glob("*.py")} == set(RECIPES)
    )
