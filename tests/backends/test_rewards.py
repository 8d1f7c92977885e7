"""Advantages from rewards on every backend, against fractions: the field's formulas, and random ones over any strata."""

import importlib.util

import numpy as np
import pytest
import torch
from hierarchies import random_chains, random_quivers
from hierarchies.advantage_formulas import BY_ROW, FIELD, halved, of_rows, rewarded, with_formula
from oracles.backend_cases import BACKENDS_HERE, triton_interprets
from oracles.rewards import Rewards
from support import operator, packed, padded, programs, spread_batch
from thorough import ALL

from fibration import pipeline as compiling
from fibration.language.atoms import reward
from fibration.language.hierarchy import adds_up_tokens
from fibration.language.statistics import after, centred


def batch_of(seed=0):
    """Rows of 0 tokens and of 1; no group is one row alone."""
    return spread_batch((3, 1, 0, 4, 2, 5, 1, 2), seed=seed)


def log_probs(batch, seed=1):
    generator = np.random.default_rng(seed)
    return {name: -generator.uniform(0.1, 2, batch.tokens) for name in ("old", "reference")}


def close(found, expected):
    assert np.abs(found - expected).max(initial=0) <= 1e-13 * np.abs(expected).max(initial=1)


# Building takes time: of compiled backends few everyday, of every kind of program.
FEW = {"c": ("length", "reinforce_pp"), "triton": ("grpo", "opo", "kl_of_tokens")}
CASES = [(b.name, n) for b in BACKENDS_HERE if b.device == "cpu" for n in (FIELD if ALL else FEW.get(b.name, FIELD))]


@pytest.mark.sampled
@pytest.mark.parametrize(("backend", "name"), CASES)
def test_published_advantages_equal_fractions(backend, name):
    """Packed and padded, per row and per token; where all is a row's own, one number for each."""
    batch, r = batch_of(), of_rows(batch_of())
    h, probs = rewarded(FIELD[name]), log_probs(batch_of())
    op, expected = operator(h, backend), Rewards(h, batch, r[batch.row], probs).advantages()
    for make, dtype in ((packed, torch.float64), (padded, torch.float32)):
        layout = make(op, batch)
        given = {k: layout.tensor(v) for k, v in probs.items() if k in h.policies}
        by_row = op.advantages(torch.tensor(r, dtype=dtype), layout.index, policies=given)
        by_token = op.advantages(layout.tensor(r[batch.row], dtype), layout.index, policies=given)
        assert by_row.dtype == by_token.dtype == torch.float64 and tuple(by_token.shape) == layout.shape
        close(layout.read(by_token), expected)
        assert tuple(by_row.shape) == ((len(r),) if name in BY_ROW else layout.shape)
        close(by_row.numpy()[batch.row] if name in BY_ROW else layout.read(by_row), expected)
        if name in BY_ROW:
            assert not by_row[[n == 0 for n in batch.lengths]].any()


def test_a_mean_over_the_tokens_of_groups_takes_one_sweep():
    """The second sweep writes the advantages. A row is summed in the sweep that finds its largest value."""
    h = rewarded(FIELD["grpo"])
    to_go = reward + after(reward, over=h.rows)
    h = h.replace(advantages=centred(to_go, over=h.groups[0], of=h.leaves[0]))
    assert len(compiling.plan(h, "advantages").sweeps) == 2


@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
def test_equal_rewards_of_tokens_are_centred_to_exactly_zero(backend):
    """Rows without tokens add nothing, and rows with other values are far away."""
    batch = batch_of()
    h = rewarded(FIELD["grpo"])
    h = h.replace(advantages=centred(reward, over=h.groups[0], of=h.leaves[0]))
    op = operator(h, backend)
    layout = packed(op, batch)
    assert 0 in batch.lengths
    same = op.advantages(layout.tensor(np.full(batch.tokens, 0.1)), layout.index)
    assert not layout.read(same).any()
    other = np.where(batch.row % 2 == 0, 0.1, 1e8)
    close(layout.read(op.advantages(layout.tensor(other), layout.index)), Rewards(h, batch, other, {}).advantages())


@pytest.mark.sampled
@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
def test_rewards_may_be_a_strided_view(backend):
    """As a column of rewards per token is; here no row is without tokens."""
    batch = spread_batch((3, 1, 4, 2), seed=0)
    h, r = rewarded(FIELD["length" if backend == "c" else "grpo"]), of_rows(batch)
    op, expected = operator(h, backend), Rewards(h, batch, r[batch.row], {}).advantages()
    layout = padded(op, batch)
    column = torch.stack([-torch.tensor(r), torch.tensor(r)], dim=1)[:, 1]
    assert not column.is_contiguous()
    close(op.advantages(column, layout.index).numpy()[batch.row], expected)


SEEDS = range(60 if ALL else 10)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
def test_random_formulas_for_advantages_equal_fractions(seed):
    """Over chains, trees and quivers; the compiled backends take a few of them."""
    if seed % 2:
        h = random_quivers.quiver(seed // 2 % random_quivers.COUNT)
        batch = halved(random_quivers.batch_for(h, seed, small=True))
    else:
        h = random_chains.chain(seed // 2)
        batch = halved(random_chains.batch_for(h, seed, small=True))
    if sum(n > 0 for n in batch.lengths) < 2:
        pytest.skip("one row has no others")
    h = with_formula(h, seed)
    r = of_rows(batch, seed)
    expected = Rewards(h, batch, r[batch.row]).advantages()
    interpreted = triton_interprets()
    for backend in [
        "torch",
        *(["c"] if ALL or seed == 3 else []),
        *(["triton"] if interpreted and (ALL or seed == 4) else []),
    ]:
        op = operator(h, backend)
        layout = (packed if seed % 3 else padded)(op, batch)
        by_token = op.advantages(layout.tensor(r[batch.row]), layout.index, batch.parameters)
        close(layout.read(by_token), expected)
        if adds_up_tokens(h):  # a row's reward is not to count as often as it has tokens
            continue
        by_row = op.advantages(torch.tensor(r), layout.index, batch.parameters)
        close(by_row.numpy()[batch.row] if by_row.shape != by_token.shape else layout.read(by_row), expected)


@pytest.mark.parametrize(
    "backend", [b for b in ("c", "triton") if b in {x.name for x in BACKENDS_HERE if x.device == "cpu"}]
)
@np.errstate(all="ignore")  # both sides of a choice are computed
def test_standalone_files_compute_advantages(backend, tmp_path):
    """Per row and per token, of packed tokens; rewards per row beside what is a token's own."""
    batch = batch_of()
    batch, _ = batch.permuted([r for r, n in enumerate(batch.lengths) if n])
    r, probs = of_rows(batch), log_probs(batch)
    groups = {name: torch.tensor([list(dict.fromkeys(v)).index(g) for g in v]) for name, v in batch.labels.items()}
    parents = {("trajectory", name): groups[name] for name in ("prompt_group", "domain")}
    offsets = torch.tensor(np.cumsum([0, *batch.lengths]))
    for name in ("grpo", "kl_of_tokens"):
        h = rewarded(FIELD[name], name=name)
        artifact = compiling.emit(h, backend, programs(h))
        for file, text in compiling.export(artifact).files.items():
            (tmp_path / file).write_text(text)
        place = importlib.util.spec_from_file_location(f"{name}_{backend}_alone", tmp_path / f"{name}_{backend}.py")
        made = importlib.util.module_from_spec(place)
        place.loader.exec_module(made)
        call = (
            made.run if backend == "triton" else lambda function, made=made, **given: getattr(made, function)(**given)
        )
        given = {f"{k}_log_probs": torch.from_numpy(v) for k, v in probs.items() if k in h.policies}
        given |= {"beta_of": 0.25} if given else {}
        expected = Rewards(h, batch, r[batch.row], probs).advantages()
        rows = {"reward_trajectory_of": torch.tensor(r)} if name == "grpo" else {}
        per_token = call(
            "advantages",
            rewards=torch.tensor(r[batch.row]),
            **rows,
            **given,
            **made.lay_out("advantages", offsets, parents),
        )
        close(per_token["advantages"].numpy(), expected)
        by_row = {"rewards": torch.tensor(r), "trajectory_rows": torch.arange(len(r))}
        per_row = call("advantages", **by_row, **rows, **given, **made.lay_out("advantages", offsets, parents))
        assert torch.equal(per_row["advantages"], per_token["advantages"])
        if name == "grpo":
            found = call(
                "advantages_of_rows", reward_of=torch.tensor(r), **made.lay_out("advantages_of_rows", offsets, parents)
            )
            close(found["advantages"].numpy()[batch.row], expected)
            assert float(found["nonfinite"]) == 0
