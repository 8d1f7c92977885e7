"""`op.live`: rows that are not live have coefficients of exactly 0, and it finds every such row.

Brute force decides: log-probs are drawn anew, at scales that reach every branch of the gates.
"""

import numpy as np
import pytest
import torch
from random_steps import RANDOM, SPECS, Step, made
from support import operator, prompt_group, refuses, spec, token
from thorough import ALL
from thread_ranks import try_on_ranks

from fibration import (
    BatchError,
    Hierarchy,
    advantage,
    clip_gate,
    log_prob,
    log_ratio,
    mean,
    policies,
    token_mean,
    where,
)
from fibration.runtime.index.micro import coupled_rows

# Losses that call a row with advantages of 0 live, although no log-probs gave it a gradient in any trial: why.
UNMOVED: dict[str, str] = {}


def some_zeros(step, seed):
    """Advantages of which about half are 0, in some steps over whole elements of every stratum."""
    generator = np.random.default_rng(seed)
    keep = torch.from_numpy(generator.random(len(step.index)) < 0.5)
    for stratum in step.index.labels:
        if seed % 2 and stratum != step.op.hierarchy.rows.name and stratum not in step.index.leaves:
            gone = generator.random(step.index.size[stratum]) < 0.5
            for row, mine in enumerate(step.elements(stratum)):
                keep[row] = keep[row] and not any(gone[e] for e in mine)
    return torch.where(keep, step.advantages, 0.0)


def moved(step, seed, trials):
    """Yields the rows that get a coefficient other than 0 for some log-probs of the current policy: bool [B]."""
    generator = np.random.default_rng(seed)
    spread = step.new - step.old
    for trial in range(trials):
        noise = torch.from_numpy(generator.normal(size=tuple(step.new.shape)))
        scale = (0.0, 0.1, 1.0)[trial % 3]
        new = step.old + spread * generator.choice([0.3, 1.0, -1.0]) + scale * noise
        values = step.coefficients(new, metrics=False).values
        yield torch.tensor([bool((step.of(values, [row]) != 0).any()) for row in range(len(step.index))])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4 if ALL else 2))
@pytest.mark.parametrize("name", [*SPECS, *RANDOM])
def test_dead_rows_have_no_gradient(name, seed):
    step = Step(made(name), seed)
    step.advantages = some_zeros(step, seed)
    live = step.op.live(step.advantages, step.index)
    for rows in moved(step, seed, 6):
        assert not (rows & ~live).any(), str(step.op.dead_if)


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_rows_without_advantages_are_live_only_where_they_can_get_a_gradient(name):
    alive = False
    for seed in range(12):
        step = Step(made(name), seed)
        step.advantages = some_zeros(step, seed)
        without = step.op.live(step.advantages, step.index) & (step.advantages == 0)
        alive |= bool(without.any())
        if without.any() and any((rows & without).any() for rows in moved(step, seed, 9)):
            assert name not in UNMOVED
            return
    assert alive == (name in UNMOVED), str(step.op.dead_if)


# ---------------------------------------------------------------- fixed steps

OFFSETS = np.cumsum([0, 3, 1, 4, 2, 5, 0, 3])
GROUPS = ["a", "b", "a", "b", "c", "c", "c"]
A = torch.tensor([0.0, 1, 0, 0, 0, 1, 0], dtype=torch.float64)


def labels(op, rows=range(7)):
    wanted = {s.name for s in (*op.hierarchy.strata, *op.hierarchy.groups)}
    given = {"prompt_group": GROUPS, "domain": ["x" if g == "a" else "y" for g in GROUPS]}
    return {k: [v[r] for r in rows] for k, v in given.items() if k in wanted}


def of(name):
    op = operator(spec(name), "torch")
    return op, op.index(offsets=OFFSETS, **labels(op))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("grpo", [1]),
        ("gspo", [1]),
        ("fiberpo_domain", [1, 3, 4, 6]),  # the domain of row 1
        ("grpo_k3", [0, 1, 2, 3, 4, 6]),  # a penalty; row 5 has no tokens
    ],
)
def test_the_live_rows_of_four_losses_are_as_expected(name, wanted):
    op, index = of(name)
    assert op.live(A, index).nonzero()[:, 0].tolist() == wanted
    assert not op.live(A * 0, index).any() or name == "grpo_k3"


def test_advantages_per_token_are_read_at_tokens_alone():
    op, index = of("grpo")
    per_token = torch.zeros(OFFSETS[-1], dtype=torch.float64)
    per_token[OFFSETS[4] + 2] = 1
    assert op.live(per_token, index).nonzero()[:, 0].tolist() == [4]
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[0, 2] = mask[2] = False
    under = torch.zeros(3, 4)
    under[0, 2], under[1, 0], under[2] = 1, torch.nan, torch.nan  # the first and the last are masked
    assert op.live(under, op.index(mask=mask)).tolist() == [False, True, False]


def test_the_condition_for_a_dead_row_prints_as_expected():
    def words(name):
        return str(operator(spec(name), "torch").dead_if)

    assert words("grpo") == "a token has no gradient if its advantage is 0"
    assert words("gspo") == "a token has no gradient if every advantage of the tokens of its trajectory is 0"
    assert words("grpo_k3") == "a token always may have a gradient"


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["grpo", "gspo", "fiberpo_domain"])
def test_ranks_find_the_live_rows_of_one_process(name):
    """Rows 1 and 3 share a domain, on two ranks."""
    op, index = of(name)
    wanted = op.live(A, index)
    split = [[0, 2, 3], [], [1, 4, 5, 6]]

    def on_rank(group):
        rows = split[group.rank]
        index = op.index(offsets=np.cumsum([0, *np.diff(OFFSETS)[rows]]), group=group, **labels(op, rows))
        return op.live(A[rows], index).tolist()

    ran = try_on_ranks(3, on_rank)
    assert not any(ran.errors), ran.errors
    for rows, found in zip(split, ran.results, strict=True):
        assert found == wanted[rows].tolist()


def test_pieces_of_a_row_are_live_together_if_a_gate_couples_them():
    """Rows 0 and 3 are one trajectory on two ranks; of its tokens, one of row 0 has an advantage."""
    per_token = torch.zeros(2, 4, 3, dtype=torch.float64)  # rank, row, token
    per_token[0, 0, 1] = 1
    keys = ["t", "u"]

    def on_rank(op):
        def call(group):
            index = op.index(
                mask=torch.ones(2, 3, dtype=torch.bool), trajectory=[keys[0], f"{keys[1]}{group.rank}"], group=group,
                positions=torch.arange(3).repeat(2, 1) + 3 * group.rank,
            )  # fmt: skip
            return op.live(per_token[group.rank, :2], index).tolist()

        return call

    assert try_on_ranks(2, on_rank(operator(spec("grpo"), "torch"))).results == [[True, False], [False, False]]
    assert try_on_ranks(2, on_rank(operator(spec("fiberpo"), "torch"))).results == [[True, False], [True, False]]


def test_rows_of_a_penalty_weighed_by_advantages_are_live_together_with_their_group():
    """The weight is the group's share of good answers: no log-prob is coupled."""
    x = log_prob(policies("current")[0])
    h = Hierarchy(
        name="weighed", gates={token: clip_gate(0.2)}, decomposition=log_ratio(), groups=[prompt_group],
        objective=token_mean(), penalties={"p": mean(where(advantage > 0, 1, 0), over=prompt_group) * x * x / 2},
    )  # fmt: skip
    op = operator(h, "torch")
    assert op.live(A, op.index(offsets=OFFSETS, prompt_group=GROUPS)).nonzero()[:, 0].tolist() == [1, 3]


def test_wrong_arguments_of_live_are_refused():
    op, index = of("grpo")
    refuses(BatchError, lambda: op.live(A), what="no index is given")
    refuses(
        BatchError, lambda: op.live(A[:2], index.micro([0, 1])), remedy="live = op.live(advantages, index) of the whole"
    )
    refuses(BatchError, lambda: op.live(A[:2], index), what="advantages have shape [2]")
    refuses(BatchError, lambda: op.live(A.long(), index), what="advantages: torch.int64")


def test_rows_whose_log_probs_are_read():
    """Row 1 shares a domain with rows 3, 4 and 6, over two groups; row 5 has no tokens."""
    rows = torch.arange(7) == 1
    for name, wanted in (("grpo", [1]), ("fiberpo_domain", [1, 3, 4, 6]), ("clip_cov", [0, 1, 2, 3, 4, 6])):
        assert coupled_rows(of(name)[1], rows).nonzero()[:, 0].tolist() == wanted
