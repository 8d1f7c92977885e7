"""verl's optimal token baseline: its trainer makes the advantages from what its actor computes, and our worker trains.

The expected advantages are computed here, from the weights, in float64 and without code of verl.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import recorded_worker
import rollouts
import torch
from cases import Case, Rollouts, dynamic, spread
from rollouts import Row, Terms
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import no_padding_2_padding

ESTIMATORS = ("optimal_token_baseline", "tir_optimal_token_baseline")
DAPO = {"actor.policy_loss.hierarchy": "dapo", "actor.calculate_sum_pi_squared": True, "actor.optim.lr": 0.02}
NARROW = {"epsilon_low": 0.05, "epsilon_high": 0.08}
CASE = Case(
    dynamic(32) | DAPO,
    "nested",
    terms=Terms(loss="dapo"),
    budgets=NARROW,
    said={"mini_batch_size": 10, "epochs": 2, "shuffle": True},
)


def advantages(rows: Sequence[Row], energies: dict[int, list[float]]) -> dict[int, list[float]]:
    """The rewards from each token on, less the mean of its cell, weighted by the energies up to the token.

    A cell has the tokens at one position of the answers to one prompt, masked tokens not counted. A token alone in its
    cell has no baseline.
    """
    to_go, weights, cells = {}, {}, defaultdict(list)
    for row in rows:
        kept = [t for t, m in enumerate(row.mask) if m]
        to_go[row.number] = [sum(row.rewards[s] for s in kept if s >= t) for t in kept]
        weights[row.number] = np.cumsum([energies[row.number][t] for t in kept]).tolist()
        for place in range(len(kept)):
            cells[row.uid, place].append(row.number)
    made = {}
    for row in rows:
        kept, found = [t for t, m in enumerate(row.mask) if m], [0.0] * len(row.mask)
        for place, t in enumerate(kept):
            cell = cells[row.uid, place]
            weight = sum(weights[n][place] for n in cell) + 1e-8
            baseline = sum(weights[n][place] * to_go[n][place] for n in cell) / weight if len(cell) > 1 else 0.0
            found[t] = to_go[row.number][place] - baseline
        made[row.number] = found
    return made


def energies_of(rows: Sequence[Row]) -> dict[int, list[float]]:
    """`1 - 2π + Σπ²` of each token: the squared norm of its gradient in the logits."""
    policy, found = rollouts.model().double(), {}
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.prompt + row.response])
            p = policy(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1].softmax(-1)
            chosen = torch.nn.functional.one_hot(torch.tensor(row.response), p.shape[1])
            found[row.number] = (chosen - p).square().sum(-1).tolist()
    return found


def by_verl(rows: Sequence[Row], squares: dict[int, list[float]], estimator: str) -> dict[int, list[float]]:
    """What verl's trainer makes of the rows of all ranks, padded."""

    def padded(of: Any) -> torch.Tensor:
        return torch.tensor(
            [[*of(row), *[0.0] * (rollouts.LONGEST - len(row.mask))] for row in rows], dtype=torch.float64
        )

    tensors = {"token_level_rewards": padded(lambda row: row.rewards), "response_mask": padded(lambda row: row.mask)}
    tensors |= {"old_log_probs": padded(lambda row: row.old), "sum_pi_squared": padded(lambda row: squares[row.number])}
    data = DataProto.from_dict(tensors, {"uid": np.array([row.uid for row in rows], dtype=object)})
    made = compute_advantage(data, AdvantageEstimator(estimator), config={}).batch["advantages"]
    return {row.number: a[: len(row.mask)].tolist() for row, a in zip(rows, made, strict=True)}


def trained(data: Rollouts, estimator: str) -> dict[str, Any]:
    """Two mini-batches, twice each: the second time they are off policy."""
    given = data.rows[False]
    if estimator == ESTIMATORS[0]:  # it reads positions of padded rows, and so knows no tools
        given = [replace(row, mask=[1] * len(row.mask)) if any(row.mask) else row for row in given]
    found, mine = data.watched(CASE), spread(given)
    carried = rollouts.carried(mine, "padded", CASE.dtype)
    tu.assign_non_tensor(carried, temperature=1.0, compute_loss=False)
    tu.assign_non_tensor(carried, calculate_entropy=False, calculate_sum_pi_squared=True)
    output = found.worker.compute_log_prob(carried)
    old, squares = (
        no_padding_2_padding(tu.get(output, name), carried).tolist() for name in ("log_probs", "sum_pi_squared")
    )
    sampled = [
        (replace(row, old=o[: len(row.mask)]), s[: len(row.mask)]) for row, o, s in zip(mine, old, squares, strict=True)
    ]
    everyone = sorted(
        (pair for part in recorded_worker.everyone(sampled) for pair in part), key=lambda pair: pair[0].number
    )
    rows = [row for row, _ in everyone]
    theirs = by_verl(rows, {row.number: s for row, s in everyone}, estimator)
    own = advantages(rows, energies_of(rows))
    now = copy(data)
    now.rows = {False: [replace(row, advantages=theirs[row.number]) for row in rows]}
    logged = now.train(found, CASE)
    now.rows = {False: [replace(row, advantages=own[row.number]) for row in rows]}
    steps = [now.judged(CASE, step, n, logged) for n, step in enumerate(found.steps)]
    now.rows = {False: [replace(row, advantages=a) for row, a in zip(rows, without(rows), strict=True)]}
    return {
        "advantages": max(abs(a - b) for row in rows for a, b in zip(theirs[row.number], own[row.number], strict=True)),
        "steps": steps,
        "without": [now.judged(CASE, step, n, logged)["distance"] for n, step in enumerate(found.steps)],
    }


def without(rows: Sequence[Row]) -> list[list[float]]:
    """The rewards from each token on alone."""
    return [[sum(row.rewards[t:]) * m for t, m in enumerate(row.mask)] for row in rows]


def token_baselines(data: Rollouts) -> dict[str, Any]:
    return {estimator: trained(data, estimator) for estimator in ESTIMATORS}
