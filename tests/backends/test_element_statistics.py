"""Statistics over elements, leave-one-out means and deviations, on every backend, by hand in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.backend_cases import BACKENDS_HERE
from rank_batches import alone, spread
from support import coefficients, domain, operator, packed, padded, prompt_group, spread_batch, token, trajectory

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    Parameter,
    clip_gate,
    count,
    deviation,
    exp,
    identity_gate,
    largest,
    mean,
    ratio_deviation,
    some,
    token_log_ratio,
    token_mean,
    total,
    uniform,
    where,
)

here = pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
bound = Parameter("bound", default=0.5)
row = mean(token_log_ratio, over=trajectory)
group, rows = {"over": prompt_group}, {"over": prompt_group, "of": trajectory}
WEIGHT = (
    exp(row - mean(row, **rows, others=True))
    + deviation(row, **rows)
    + total(row**2, **rows) / count(token, over=trajectory)
    + where(some(row > 0.1, **rows), largest(row, **rows), 0.25)
    + deviation(token_log_ratio, over=prompt_group)
    + deviation(token_log_ratio, over=trajectory)
    + mean(deviation(row, **rows), over=domain, of=trajectory)
)


def weighed(weight=WEIGHT, chain=False, **changes):
    """A weight that is one number per row, beside rows that the hierarchy knows or not."""
    given = dict(name="weighed", gates={token: clip_gate(bound)}, decomposition=ratio_deviation())
    if chain:
        given |= {
            "fibrations": [Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())]
        }
        given["gates"] = {token: clip_gate(bound), trajectory: identity_gate(), prompt_group: identity_gate()}
    groups = [domain] if chain else [prompt_group, domain]
    return Hierarchy(**given, objective=token_mean().weigh(weight), groups=groups, **changes)


def by_hand(batch):
    """`WEIGHT` of every row with tokens."""
    live = [r for r, n in enumerate(batch.lengths) if n]
    x = {r: batch.x[batch.row == r] for r in live}
    m = {r: x[r].mean() for r in live}

    def like(name, r):
        return [s for s in live if batch.labels[name][s] == batch.labels[name][r]]

    def spread_of(values):
        return np.std(values, ddof=1) if len(values) > 1 else 0.0

    found = np.zeros(len(batch.lengths))
    for r in live:
        mine = [m[s] for s in like("prompt_group", r)]
        others = [m[s] for s in like("prompt_group", r) if s != r]
        tokens = np.concatenate([x[s] for s in like("prompt_group", r)])
        outer = np.mean([spread_of([m[t] for t in like("prompt_group", s)]) for s in like("domain", r)])
        found[r] = np.exp(m[r] - np.mean(others)) + spread_of(mine) + np.sum(np.square(mine)) / len(x[r])
        found[r] += (max(mine) if max(mine) > 0.1 else 0.25) + spread_of(tokens) + spread_of(x[r]) + outer
    return found


@pytest.mark.sampled
@here
@pytest.mark.parametrize("chain", [False, True])
def test_statistics_of_elements_count_each_element_once(backend, chain):
    batch = spread_batch((3, 1, 0, 4, 2, 5, 2, 1), seed=chain)
    batch.labels["prompt_group"][:] = ["a", "b", "a", "c", "b", "c", "a", "b"]
    batch.labels["domain"][:] = ["math" if g != "c" else "code" for g in batch.labels["prompt_group"]]
    op = operator(weighed(chain=chain), backend)
    ratio, expected = np.exp(batch.x) - 1, by_hand(batch)[batch.row] * batch.advantages / batch.tokens
    base = np.array([ratio[batch.row == r].mean() for r in batch.row]) if chain else 0
    gated = 1 + base + np.clip(ratio - base, -0.5, 0.5)
    for layout in (packed, padded):
        values, objective = coefficients(op, layout(op, batch), batch)
        assert objective == pytest.approx((expected * gated).sum(), rel=1e-12)
        if not chain:
            assert values == pytest.approx(expected * (1 + ratio) * (abs(ratio) <= 0.5), rel=1e-12, abs=1e-15)


@pytest.mark.sampled
@here
def test_equal_values_have_deviation_0(backend):
    """Sums of 0.1 are no multiples of it, and 0.1 is no number of float32."""
    lengths, label = (3, 1, 7, 2, 5, 2), ["a", "a", "a", "b", "a", "b"]
    score = Attribute("score", on=trajectory)
    read = 1e9 * (mean(score, **rows) - score), 1e9 * (mean(score, **rows, others=True) - score)
    apart = deviation(score, **rows) + deviation(token_log_ratio, over=prompt_group)
    op = operator(weighed(1 + read[0] ** 2 + read[1] ** 2 + 1e9 * apart), backend)
    batch = spread_batch(lengths).with_x(np.where(np.array(label)[np.repeat(range(6), lengths)] == "a", 0.1, -0.3))
    batch.labels["prompt_group"][:] = label
    batch = replace(batch, attributes={"score": {r: 0.1 if g == "a" else 0.7 for r, g in enumerate(label)}})
    for dtype in (torch.float64, torch.float32):
        made = packed(op, batch)
        now, old = made.tensor(batch.x, dtype), made.tensor(np.zeros(batch.tokens), dtype)
        metrics = op.coefficients(now, old, made.tensor(batch.advantages, dtype), made.index).metrics
        assert float(metrics["weight/max"]) == 1 == float(metrics["weight/mean_square"])


@pytest.mark.parametrize("cut", [False, True])
def test_statistics_of_elements_on_ranks_equal_one_process(cut):
    batch = spread_batch((3, 1, 4, 2, 5, 2))
    op = operator(weighed())
    pieces = [[(0, 0, 3), (3, 0, 2)], [], [(1, 0, 1), (2, 0, 4), (4, 0, 5), (5, 0, 2)]]
    if cut:
        pieces = [
            [(0, 0, 1), (3, 0, 2)],
            [(2, 3, 4), (0, 2, 3)],
            [(1, 0, 1), (2, 0, 3), (4, 0, 5), (5, 0, 2), (0, 1, 2)],
        ]
    together, one = spread(op, batch, pieces, keys=True), alone(op, batch)
    assert together.values == pytest.approx(one.values, rel=1e-13)
    assert spread(op, batch, pieces[::-1], keys=True).values.tobytes() == together.values.tobytes()
