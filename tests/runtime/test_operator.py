"""The compiled operator on concrete batches: who lies over whom, layouts, invariances, the public surface."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import (
    SPECS,
    Batch,
    Cells,
    Oracle,
    Stratum,
    cases,
    coefficients,
    domain,
    exact,
    gated_ratio,
    operator,
    packed,
    padded,
    prompt_group,
    reads_advantage,
    spec,
    spread_batch,
    token,
    trajectory,
    turn,
)

import fibration
from fibration import (
    Attribute,
    BackendError,
    BatchError,
    Fibration,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    Objective,
    Parameter,
    aggregate_gate,
    clip_gate,
    constant_normaliser,
    count,
    density,
    identity_gate,
    log_ratio,
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    signed_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import BATCH

TINY = 1e-9  # a comparison closer to a tie than this may fall either way in float64


def needs_rows(name):
    return any(s != spec(name).leaves[0] for s in reads_advantage(spec(name)))


# ---------------------------------------------------------------- the definition


@settings(max_examples=120)
@given(cases())
def test_the_backend_computes_the_definition(case):
    """Gated ratios and J of random hierarchies: generated torch == interpreter == rational arithmetic."""
    hierarchy, batch = case
    truth = exact(hierarchy, batch)
    assume(truth.margin > TINY or truth.margin == 0)
    op, oracle = operator(hierarchy), Oracle(hierarchy, batch)
    layout = packed(op, batch)
    _, objective = coefficients(op, layout, batch)
    ratio = gated_ratio(op, layout, batch)
    assert ratio == pytest.approx(oracle.ratio(), rel=1e-12)
    size = max(1.0, np.abs(batch.advantages).max() * truth.ratio.max())
    assert objective == pytest.approx(oracle.objective(), rel=1e-12, abs=1e-13 * size)
    if truth.margin > TINY:
        assert ratio == pytest.approx(truth.ratio, rel=1e-12)
        assert objective == pytest.approx(truth.objective, rel=1e-12, abs=1e-13 * size)


@settings(max_examples=60)
@given(cases(identity=True))
def test_identity_gates_give_the_identity(case):
    """`G(r) = r` and `c_i = mu_i A_i r_i`, whatever the chain and its kernels."""
    hierarchy, batch = case
    op = operator(hierarchy)
    layout = packed(op, batch)
    values, objective = coefficients(op, layout, batch)
    ratio = np.exp(batch.x)
    cells = Cells(hierarchy, batch)
    sizes = cells.count("token", "trajectory")[cells.code["trajectory"]]
    rows = len(set(batch.row))
    mu = 1 / batch.tokens if hierarchy.objective == token_mean() else 1 / (rows * sizes)
    assert gated_ratio(op, layout, batch) == pytest.approx(ratio, rel=1e-13)
    assert values == pytest.approx(mu * batch.advantages * ratio, rel=1e-12, abs=1e-15)
    assert objective == pytest.approx((mu * batch.advantages * ratio).sum(), rel=1e-12, abs=1e-14)


# ---------------------------------------------------------------- invariances


@given(case=cases(), seed=st.integers(0, 99))
def test_packed_and_padded_agree_to_the_bit(case, seed):
    hierarchy, batch = case
    op = operator(hierarchy)
    a = packed(op, batch)
    for b in (padded(op, batch, seed), padded(op, batch, gaps=False)):
        assert coefficients(op, a, batch)[0].tolist() == coefficients(op, b, batch)[0].tolist()
        assert coefficients(op, a, batch)[1] == coefficients(op, b, batch)[1]
        assert gated_ratio(op, a, batch).tolist() == gated_ratio(op, b, batch).tolist()


@given(case=cases())
def test_the_same_call_gives_the_same_bits(case):
    hierarchy, batch = case
    op = operator(hierarchy)
    runs = [coefficients(op, packed(op, batch), batch) for _ in range(2)]
    runs.append(coefficients(op, packed(op, batch), batch, metrics=False))
    assert all(r[0].tolist() == runs[0][0].tolist() and r[1] == runs[0][1] for r in runs)


@given(case=cases(), data=st.data())
def test_the_order_of_rows_does_not_matter(case, data):
    hierarchy, batch = case
    order = data.draw(st.permutations(range(len(batch.lengths))))
    assume(exact(hierarchy, batch).margin > TINY)
    moved, places = batch.permuted(order)
    op = operator(hierarchy)
    values, objective = coefficients(op, packed(op, batch), batch)
    again, same = coefficients(op, packed(op, moved), moved)
    size = max(1.0, np.abs(values).max())
    assert again == pytest.approx(values[places], rel=1e-11, abs=1e-13 * size)
    assert same == pytest.approx(objective, rel=1e-11, abs=1e-13 * max(1, np.abs(batch.advantages).max()))


@given(case=cases())
def test_labels_are_only_names(case):
    """Any hashable labels that tell the same elements apart give the same bits."""
    hierarchy, batch = case
    op = operator(hierarchy)
    expected = coefficients(op, packed(op, batch), batch)
    renamed = [
        {k: [(7, label) for label in v] for k, v in batch.labels.items()},
        {k: [str(label) for label in v] for k, v in batch.labels.items()},
        {k: [list(dict.fromkeys(v)).index(label) for label in v] for k, v in batch.labels.items()},
        {k: torch.tensor([list(dict.fromkeys(v)).index(label) for label in v]) for k, v in batch.labels.items()},
        {k: np.array([str(label) for label in v]) for k, v in batch.labels.items()},
    ]
    wanted = {s.name for s in hierarchy.strata} - {"trajectory"}
    per_token = {k: v for k, v in batch.token_labels.items() if k in wanted}
    offsets = [0, *np.cumsum(batch.lengths).tolist()]
    for labels in renamed:
        index = op.index(
            offsets=offsets,
            attributes={"weight": batch.weights} if "weight" in hierarchy.attributes else None,
            **{k: v for k, v in labels.items() if k in wanted},
            **per_token,
        )
        result = op.coefficients(*(torch.tensor(v) for v in (batch.x, batch.x * 0, batch.advantages)), index)
        assert result.values.tolist() == expected[0].tolist()
        assert float(result.objective) == expected[1]


@given(case=cases())
def test_empty_rows_are_nobody(case):
    hierarchy, batch = case
    full = [r for r, n in enumerate(batch.lengths) if n]
    without, _ = batch.permuted(full)
    op = operator(hierarchy)
    a, b = (coefficients(op, packed(op, x), x) for x in (batch, without))
    assert a[0].tolist() == b[0].tolist()
    assert a[1] == b[1]
    assert packed(op, batch).index.size == packed(op, without).index.size


@given(case=cases(), a=st.sampled_from([0.5, 2.0, -1.0, 4.0]), b=st.sampled_from([1.0, -0.25, 3.0]))
def test_coefficients_are_linear_in_advantages(case, a, b):
    """For gates that do not read the advantage; where they do, scaling by a positive number still scales."""
    from dataclasses import replace

    hierarchy, batch = case
    op = operator(hierarchy)
    layout = packed(op, batch)
    base, j = coefficients(op, layout, batch)
    scaled, js = coefficients(op, layout, replace(batch, advantages=4 * batch.advantages))
    assert scaled.tolist() == (4 * base).tolist()  # a power of two: exactly
    assert js == 4 * j
    if not reads_advantage(hierarchy):
        other = np.cos(np.arange(batch.tokens))
        second, j2 = coefficients(op, layout, replace(batch, advantages=other))
        both, jb = coefficients(op, layout, replace(batch, advantages=a * batch.advantages + b * other))
        size = max(1.0, np.abs(base).max(), np.abs(second).max())
        assert both == pytest.approx(a * base + b * second, rel=1e-11, abs=1e-12 * size)
        assert jb == pytest.approx(a * j + b * j2, rel=1e-11, abs=1e-12 * size * batch.tokens)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("pieces", [1, 3, 20])
def test_back_propagating_coefficients_in_pieces_is_exact(name, pieces):
    """One pass without gradient, coefficients for the whole batch, then micro-batches: the gradient of the loss."""
    op = operator(spec(name))
    batch = spread_batch(lengths=(5, 1, 4, 3, 6, 2, 3), scale=0.2, per_row=needs_rows(name))
    layout = packed(op, batch)
    torch.manual_seed(0)
    features = torch.randn(batch.tokens, 4, dtype=torch.float64)
    theta = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    actions = torch.arange(batch.tokens) % 3

    def log_probs(part):
        return torch.log_softmax(features[part] @ theta, -1).gather(1, actions[part, None])[:, 0]

    everything = torch.arange(batch.tokens)
    old = log_probs(everything).detach() - layout.tensor(batch.x)
    advantages = layout.tensor(batch.advantages)
    loss = op.loss(log_probs(everything), old, advantages, layout.index).loss
    (expected,) = torch.autograd.grad(loss, theta)
    with torch.no_grad():
        result = op.coefficients(log_probs(everything), old, advantages, layout.index)
    assert loss.item() == -result.objective.item()
    for part in torch.chunk(everything[torch.randperm(batch.tokens)], pieces):
        (-(result.values[part] * log_probs(part)).sum()).backward()
    assert theta.grad.numpy() == pytest.approx(expected.numpy(), rel=1e-12, abs=1e-15)


def test_evaluating_per_piece_is_something_else():
    """Why the whole batch has to be seen at once: FiberPO-Domain on halves of a prompt group differs."""
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch(scale=0.4)
    whole = coefficients(op, packed(op, batch), batch)[0]
    halves = []
    for rows in ([0, 1, 2], [3, 4, 5]):
        part, _ = batch.permuted(rows)
        halves.append(coefficients(op, packed(op, part), part)[0] / 2)
    assert np.abs(np.concatenate(halves) - whole).max() > 1e-3


# ---------------------------------------------------------------- the index


def test_an_index_by_hand():
    op = operator(spec("fiberpo_domain"))
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]])
    index = op.index(mask=mask, prompt_group=["q", "skipped", "p", "q"], domain=["m", None, "c", "m"])
    assert index.shape == (4, 3)
    assert index.positions.tolist() == [0, 1, 7, 8, 9]
    assert dict(index.size) == {"token": 5, "trajectory": 3, "prompt_group": 2, "domain": 2, "batch": 1}
    assert index.labels["prompt_group"] == ("q", "p")
    assert index.labels["domain"] == ("m", "c")
    assert index.labels["trajectory"] == (0, 2, 3)
    assert index.parent("token", "trajectory").tolist() == [0, 0, 1, 1, 2]
    assert index.parent("trajectory", "prompt_group").tolist() == [0, 1, 0]
    assert index.parent("token", "domain").tolist() == [0, 0, 1, 1, 0]
    assert index.parent("token", "batch").tolist() == [0] * 5
    assert index.count("token", "domain").tolist() == [3, 2]
    assert index.count("trajectory", "prompt_group").tolist() == [2, 1]
    assert index.count("prompt_group", "domain").tolist() == [1, 1]
    assert index.count("trajectory", "batch").tolist() == [3]
    assert index.describe_token(2) == "token [2, 1] of trajectory 2"
    assert "5 token" in repr(index)


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([[True, False], [True, True]]),
        torch.tensor([[1, 0], [1, 1]]),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.bfloat16),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float16, requires_grad=True),
        np.array([[True, False], [True, True]]),
        [[1, 0], [1, 1]],
        torch.tensor([[1, 1], [0, 1]]).t(),
    ],
    ids=lambda m: f"{type(m).__name__} {getattr(m, 'dtype', '')}",
)
def test_masks_of_any_kind(mask):
    index = operator(spec("ppo")).index(mask=mask)
    assert index.positions.tolist() == [0, 2, 3]
    assert index.row_of_token.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "offsets", [[0, 1, 1, 3], torch.tensor([0, 1, 1, 3], dtype=torch.int32), np.array([0, 1, 1, 3])]
)
def test_offsets_of_any_kind(offsets):
    index = operator(spec("ppo")).index(offsets=offsets)
    assert index.shape == (3,)
    assert index.n_rows == 3
    assert index.row_of_token.tolist() == [0, 1, 1]
    assert index.describe_token(1) == "token [1] of trajectory 2"
    masked = operator(spec("ppo")).index(offsets=offsets, mask=torch.tensor([1, 0, 1]))
    assert masked.positions.tolist() == [0, 2]


def test_rows_may_be_named():
    op = operator(spec("fiberpo"))
    index = op.index(offsets=[0, 2, 3], trajectory=["first", "second"])
    assert index.labels["trajectory"] == ("first", "second")
    x = torch.tensor([0.3, 0.3, 0.3])
    wide = op.gate(x, index, {"C_trajectory": {"first": 1.0, "second": {"+": 0.1, "-": 0.2}}, "epsilon": 0.5})
    assert wide[:2].tolist() == pytest.approx([np.exp(0.3)] * 2, rel=1e-6)
    assert wide[2].item() < np.exp(0.2)


def test_per_row_and_per_token_labels_agree():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch()
    per_row = packed(op, batch)
    per_token = op.index(
        offsets=[0, *np.cumsum(batch.lengths).tolist()],
        **{k: [v[r] for r in batch.row] for k, v in batch.labels.items()},
    )
    for edge, parent in per_row.index.parents.items():
        assert per_token.parents[edge].tolist() == parent.tolist()


def test_as_many_tokens_as_rows():
    """Labels above the rows are read by row, below them by token; advantages that could be either are refused."""
    op = operator(spec("fiberpo_domain"))
    index = op.index(offsets=[0, 2, 3, 3], prompt_group=["a", "b", "c"], domain=["m", "m", "m"])
    assert index.parent("token", "prompt_group").tolist() == [0, 0, 1]
    x, a = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(BatchError, match="may be per token or per row") as caught:
        op.loss(x, x, a, index)
    assert "leave the rows without tokens out" in caught.value.remedy
    op.loss(x, x, torch.ones(3), index)
    plain = op.index(offsets=[0, 1, 2, 3], prompt_group=["a", "b", "c"], domain=["m", "m", "m"])
    op.loss(x, x, a, plain)
    turns = Hierarchy(
        name="turns",
        fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={trajectory: identity_gate(), turn: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    index = operator(turns).index(offsets=[0, 2, 3, 3], turn=["u", "v", "w"])
    assert index.parent("token", "turn").tolist() == [0, 1, 2]
    assert index.parent("turn", "trajectory").tolist() == [0, 0, 1]


def test_advantages_per_row_and_per_token_agree():
    for name in SPECS:
        op = operator(spec(name))
        batch = spread_batch(per_row=True)
        layout = padded(op, batch)
        first = [batch.advantages[np.flatnonzero(batch.row == r)[0]] for r in range(6)]
        zero = layout.tensor(np.zeros(batch.tokens))
        a = op.coefficients(layout.tensor(batch.x), zero, layout.tensor(batch.advantages), layout.index)
        b = op.coefficients(layout.tensor(batch.x), zero, torch.tensor(first, dtype=torch.float64), layout.index)
        assert torch.equal(a.values, b.values)


def test_a_stratum_below_the_rows_takes_a_label_per_token():
    """token → turn → trajectory."""
    h = Hierarchy(
        name="turns",
        fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, proportional(count(token)))],
        gates={trajectory: identity_gate(), turn: clip_gate(0.125).per(count(token)), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    x = torch.tensor([1.0, 1.0, 0.0, 0.0, -0.5], dtype=torch.float64)
    turns = [("a", 0), ("a", 0), ("a", 1), ("a", 1), ("b", 0)]
    gated = op.gate(x, op.index(offsets=[0, 4, 5], turn=turns), {})
    assert gated.log().tolist() == pytest.approx([0.625, 0.625, 0.375, 0.375, -0.5], rel=1e-14)
    padded_index = op.index(mask=[[1, 1, 1, 1], [0, 0, 1, 0]], turn=[turns[:4], [None, None, ("b", 0), None]])
    again = op.gate(torch.tensor([[1.0, 1, 0, 0], [9, 9, -0.5, 9]], dtype=torch.float64), padded_index)
    assert again[0].tolist() == gated[:4].tolist()
    assert again[1].tolist() == [1.0, 1.0, gated[4].item(), 1.0]


def test_attributes_reach_kernels_gates_and_objectives():
    """A weighted mean of log ratios per trajectory, by hand."""
    weight = Attribute("weight", on=token)
    bonus = Attribute("bonus", on=trajectory, positive=False)
    h = Hierarchy(
        name="weighted",
        fibrations=[Fibration(token, trajectory, MarkovKernel(weight / total(weight, over=trajectory)))],
        gates={trajectory: Gate(residual * (1 + bonus)), token: identity_gate()},
        decomposition=log_ratio(scale=weight / total(weight, over=trajectory)),
        objective=Objective(weight=(1 + bonus) / count(token)),
    )
    op = operator(h)
    x = np.array([0.5, -0.25, 0.125])
    w = np.array([1.0, 3.0, 2.0])
    index = op.index(offsets=[0, 2, 3], attributes={"weight": w, "bonus": [0.5, -0.25]})
    mean = np.array([(0.5 * 1 - 0.25 * 3) / 4, 0.125])
    row = np.array([0, 0, 1])
    expected = x + (mean * [0.5, -0.25])[row]
    assert op.gate(torch.tensor(x), index).log().tolist() == pytest.approx(expected.tolist(), rel=1e-14)
    a = np.array([1.0, 2.0, -1.0])
    objective = float(op.coefficients(torch.tensor(x), torch.zeros(3).double(), torch.tensor(a), index).objective)
    assert objective == pytest.approx((np.array([1.5 / 2, 1.5 / 2, 0.75]) * np.exp(expected) * a).sum(), rel=1e-14)
    by_name = op.index(
        offsets=[0, 2, 3], attributes={"weight": w, "bonus": {"a": 0.5, "b": -0.25}}, trajectory=["a", "b"]
    )
    assert op.gate(torch.tensor(x), by_name).tolist() == op.gate(torch.tensor(x), index).tolist()
    # one number per row of the batch, as for advantages, also for rows without tokens, which are no elements
    with_gaps = op.index(offsets=[0, 0, 2, 2, 3], attributes={"weight": w, "bonus": [9.0, 0.5, 9.0, -0.25]})
    assert op.gate(torch.tensor(x), with_gaps).tolist() == op.gate(torch.tensor(x), index).tolist()


def test_a_common_root_called_batch():
    root = Stratum(BATCH)
    h = Hierarchy(
        name="global_budget",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, root, uniform())],
        gates={root: clip_gate(0.125).per(count(trajectory)), trajectory: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )
    assert h.verify().ok
    op = operator(h)
    x = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    gated = op.gate(x, op.index(offsets=[0, 2, 3])).log()
    assert gated.tolist() == pytest.approx((x - 0.5 + 0.125).tolist(), rel=1e-14)


def test_densities_of_coarser_strata():
    """A token gate that reads how far its trajectory drifted, in extensive units."""
    h = Hierarchy(
        name="coupled",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: identity_gate(), token: Gate(residual / (1 + density(trajectory) ** 2))},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    x = np.array([1.0, 0.5, 0.25])
    sums, means = np.array([1.5, 1.5, 0.25]), np.array([0.75, 0.75, 0.25])
    gated = op.gate(torch.tensor(x), op.index(offsets=[0, 2, 3])).log()
    assert gated.tolist() == pytest.approx((means + (x - means) / (1 + sums**2)).tolist(), rel=1e-14)


@pytest.mark.parametrize(
    ("objective", "weights"),
    [
        (trajectory_mean(), lambda n, rows: 1 / (rows * n)),
        (token_mean(), lambda n, rows: np.full(len(n), 1 / len(n))),
        (constant_normaliser(8), lambda n, rows: np.full(len(n), 1 / (8 * rows))),
        (constant_normaliser(Parameter("length", default=16)), lambda n, rows: np.full(len(n), 1 / (16 * rows))),
        (constant_normaliser(count(token)), lambda n, rows: 1 / (rows * n)),
        (Objective(weight=1 / count(token) ** 2), lambda n, rows: 1 / n**2),
    ],
    ids=lambda v: repr(v) if isinstance(v, Objective) else "",
)
@pytest.mark.parametrize("levels", [1, 2])
def test_objectives_weigh_tokens(objective, weights, levels):
    """By hand, with an empty row that does not count."""
    gates = {token: identity_gate(), trajectory: identity_gate()}
    fibrations = [Fibration(token, trajectory, uniform())]
    if levels == 1:
        fibrations, gates = [], {token: identity_gate()}
    h = Hierarchy(name="weighing", fibrations=fibrations, gates=gates, decomposition=log_ratio(), objective=objective)
    batch = spread_batch(lengths=(3, 0, 1, 4))
    op = operator(h)
    n = np.array(batch.lengths)[batch.row].astype(float)
    values, j = coefficients(op, padded(op, batch), batch)
    expected = weights(n, 3) * batch.advantages * np.exp(batch.x)
    assert values == pytest.approx(expected, rel=1e-12)
    assert j == pytest.approx(expected.sum(), rel=1e-12)


# ---------------------------------------------------------------- parameters


def test_parameters_per_element():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch(scale=0.5)
    layout = packed(op, batch)
    from dataclasses import replace

    given_ = {
        "C_domain": {"math": {"+": 0.3, "-": 0.2}, "code": 0.01, "unused": 5},
        "C_prompt_group": {"a": 0.05, "b": 0.1, "c": {"+": 0.02, "-": 0.03}},
        "epsilon": 0.2,
    }
    batch = replace(batch, parameters=given_)
    ratio = gated_ratio(op, layout, batch)
    assert ratio == pytest.approx(exact(spec("fiberpo_domain"), batch).ratio, rel=1e-12)
    assert np.abs(ratio - gated_ratio(op, layout, replace(batch, parameters={"epsilon": 0.2}))).max() > 1e-3
    in_order = {**given_, "C_domain": torch.tensor([0.3, 0.01])}
    by_name = {**given_, "C_domain": {"math": 0.3, "code": 0.01}}
    found = [gated_ratio(op, layout, replace(batch, parameters=p)).tolist() for p in (in_order, by_name)]
    assert found[0] == pytest.approx(found[1], rel=1e-7)


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5), np.float64(0.5), np.float32(0.5), {"+": 0.5, "-": 0.5}])
def test_one_value_in_many_forms(value):
    op = operator(spec("fiberpo"))
    batch = spread_batch(scale=1.0)
    layout = packed(op, batch)
    x = layout.tensor(batch.x)
    expected = op.gate(x, layout.index, {"C_trajectory": 0.5})
    assert torch.equal(op.gate(x, layout.index, {"C_trajectory": value}), expected)


def test_a_parameter_may_vary_over_a_coarser_stratum():
    """`on=`: a token's clip range per domain."""
    epsilon = Parameter("epsilon", default=0.5, on=domain)
    h = Hierarchy(
        name="per_domain",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, domain, uniform())],
        gates={token: clip_gate(epsilon), trajectory: identity_gate(), domain: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    index = op.index(offsets=[0, 2, 4], domain=["m", "c"])
    x = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    gated = op.gate(x, index, {"epsilon": {"m": 0.25, "c": 0.75}}).log()
    assert gated.tolist() == pytest.approx([0.25, -0.25, 0.75, -0.75], rel=1e-14)


def test_bounds_belong_to_the_parameter():
    op = operator(spec("ppo"))
    index = op.index(offsets=[0, 1])
    one = torch.ones(1)
    for value in (1e-12, 1 - 1e-12):
        op.gate(one, index, {"epsilon_low": value}, advantages=one)


# ---------------------------------------------------------------- the surface


@pytest.mark.parametrize("name", SPECS)
def test_shipped_hierarchies_compile(name):
    h = fibration.load(name)
    op = fibration.compile(h, backend="torch")
    assert op.backend == "torch"
    assert op.report.ok
    assert op.hierarchy is h
    assert repr(op) == f"Operator({name!r}, backend='torch')"
    assert op.source.startswith(f"# {name}: generated by fibration")
    assert op.source == operator(spec(name)).source
    batch = spread_batch(per_row=needs_rows(name))
    assert (
        coefficients(op, packed(op, batch), batch)[0].tolist()
        == coefficients(operator(spec(name)), packed(operator(spec(name)), batch), batch)[0].tolist()
    )


def test_an_unverified_hierarchy_is_not_compiled():
    h = spec("fiberpo").replace(
        fibrations=[Fibration(token, trajectory, MarkovKernel(1 / (count(token, over=trajectory) + 1)))]
    )
    with pytest.raises(LawError) as caught:
        fibration.compile(h)
    assert caught.value.report is not None
    assert not caught.value.report.ok


def test_backends_are_named():
    with pytest.raises(BackendError, match="no backend 'cuda'") as caught:
        fibration.compile(spec("ppo"), backend="cuda")
    assert "torch" in caught.value.required
    assert fibration.compile(spec("ppo"), backend="torch").backend == "torch"


def test_the_choice_of_a_backend_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="fibration"):
        chosen = fibration.compile(spec("ppo"), backend="auto").backend
    assert f"backend '{chosen}'" in caplog.text


def test_the_source_can_be_shown(monkeypatch, capsys):
    monkeypatch.setenv("FIBRATION_PRINT", "1")
    op = fibration.compile(spec("ppo"))
    assert op.source in capsys.readouterr().err


def test_levels_show_what_every_gate_read_and_gave():
    op = operator(spec("fiberpo"))
    x = torch.tensor([0.5, -0.25, 0.125, 0.0], dtype=torch.float64)
    index = op.index(offsets=[0, 2, 4])
    seen = op.levels(x, index, {"C_trajectory": {"+": 0.2, "-": 0.15}, "epsilon": 0.1})
    assert seen.residual["trajectory", "+"].tolist() == [0.25, 0.0625]
    assert seen.residual["trajectory", "-"].tolist() == [0.125, 0.0]
    assert seen.gated["trajectory", "+"].tolist() == pytest.approx([0.2 - 2 * 0.05, 0.0625], rel=1e-14)
    assert seen.gated["trajectory", "-"].tolist() == [0.125, 0.0]
    assert seen.residual["token", "+"].tolist() == [0.25, -0.25, 0.0625, -0.0625]
    assert seen.gated["token", "+"].tolist() == [0.1, -0.1, 0.0625, -0.0625]
    assert seen.residual["token", "-"].tolist() == [-0.125, 0.125, 0.0, 0.0]
    total_ = sum(
        sign * (seen.gated["trajectory", c][[0, 0, 1, 1]] + seen.gated["token", c]) for c, sign in (("+", 1), ("-", -1))
    )
    assert op.gate(x, index, {"C_trajectory": {"+": 0.2, "-": 0.15}, "epsilon": 0.1}).tolist() == pytest.approx(
        total_.exp().tolist(), rel=1e-14
    )


def test_levels_of_constant_gates_have_full_size():
    op = operator(spec("gspo"))
    batch = spread_batch(per_row=True)
    layout = packed(op, batch)
    seen = op.levels(layout.tensor(batch.x), layout.index, advantages=layout.tensor(batch.advantages))
    assert seen.gated["token", ""].tolist() == [0.0] * batch.tokens
    assert seen.residual["token", ""].shape == (batch.tokens,)


def test_gate_needs_advantages_only_where_a_gate_reads_them():
    x = torch.zeros(2)
    for name in ("fiberpo", "fiberpo_domain"):
        op = operator(spec(name))
        labels = {"prompt_group": ["a"], "domain": ["m"]} if name == "fiberpo_domain" else {}
        assert op.gate(x, op.index(offsets=[0, 2], **labels)).tolist() == [1.0, 1.0]


def test_ratio_coordinates_and_pessimism_by_hand():
    h = Hierarchy(
        name="clipped_ratio",
        gates={token: pessimistic_clip_gate(0.2, 0.3)},
        decomposition=ratio_deviation(),
        objective=token_mean(),
    )
    op = operator(h)
    x = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.1], dtype=torch.float64)
    a = torch.tensor([1.0, 1, -1, -1, 0], dtype=torch.float64)
    gated = op.gate(x, op.index(offsets=[0, 5]), advantages=a)
    assert gated.tolist() == pytest.approx([1.3, np.exp(-0.5), np.exp(0.5), 0.8, np.exp(0.1)], rel=1e-14)


def test_values_under_the_mask_are_neutral():
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = padded(op, batch)
    covered = np.ones(layout.shape, bool).reshape(-1)
    covered[layout.slots] = False
    x = layout.tensor(batch.x)
    assert (op.gate(x, layout.index).reshape(-1)[covered] == 1).all()
    result = op.coefficients(x, layout.tensor(np.zeros(batch.tokens)), layout.tensor(batch.advantages), layout.index)
    assert (result.values.reshape(-1)[covered] == 0).all()


def test_tensors_need_not_be_contiguous():
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = padded(op, batch)
    x, a = layout.tensor(batch.x, under_mask=0.0), layout.tensor(batch.advantages)
    odd = x.t().contiguous().t().requires_grad_()
    wide = torch.stack([x, x], -1)[..., 0]
    expected = op.coefficients(x, torch.zeros_like(x), a, layout.index).values
    assert torch.equal(
        op.coefficients(wide, torch.zeros_like(x), a.t().contiguous().t(), layout.index).values, expected
    )
    op.loss(odd, torch.zeros_like(x), a, layout.index).loss.backward()
    assert torch.equal(odd.grad, -expected)


def test_an_index_may_be_used_again():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch()
    layout = packed(op, batch)
    first = coefficients(op, layout, batch)[0]
    coefficients(op, layout, batch.with_x(-batch.x))
    assert coefficients(op, layout, batch)[0].tolist() == first.tolist()
    other = fibration.compile(fibration.load("fiberpo_domain"), backend="torch")
    assert coefficients(other, layout, batch)[0].tolist() == first.tolist()


def test_devices_may_be_spelled_in_full():
    op = operator(spec("ppo"))
    x = torch.zeros(1, 2)
    for device in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)):
        index = op.index(mask=np.ones((1, 2), bool), device=device)
        assert index.device == x.device
        op.loss(x, x, torch.ones(1), index)


def test_single_elements_everywhere():
    for name in SPECS:
        op = operator(spec(name))
        batch = Batch((1,), np.array([0.01]), np.array([2.0]), {"prompt_group": ["a"], "domain": ["m"]})
        for layout in (packed(op, batch), padded(op, batch)):
            values, objective = coefficients(op, layout, batch)
            oracle = Oracle(spec(name), batch)
            assert values == pytest.approx(oracle.coefficients(), rel=1e-14)
            assert objective == pytest.approx(oracle.objective(), rel=1e-14)


@pytest.mark.parametrize(
    "labels", ["ab", [1, "1"], [True, "True"], [(1, 2), (1, 3)], [0.5, 0.25], [frozenset("a"), frozenset("b")]]
)
def test_labels_that_differ_are_different_elements(labels):
    op = operator(spec("fiberpo_domain"))
    index = op.index(offsets=[0, 1, 2], prompt_group=list(labels), domain=["m", "m"])
    assert index.size["prompt_group"] == 2
    assert index.labels["prompt_group"] == tuple(labels)


def test_aggregates_run_over_the_whole_batch():
    """Two rows of one group far apart in the batch belong together."""
    h = Hierarchy(
        name="groups",
        fibrations=[Fibration(token, prompt_group, uniform())],
        gates={prompt_group: aggregate_gate(10, rollback=1), token: Gate(residual * 0)},
        decomposition=signed_log_ratio(),
        objective=token_mean(),
        gives_up={"first_order": "a test"},
    )
    op = operator(h)
    x = torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    gated = op.gate(x, op.index(offsets=[0, 1, 2, 3, 4], prompt_group=["a", "b", "a", "b"])).log()
    assert gated.tolist() == pytest.approx([0.5, 0.75, 0.5, 0.75], rel=1e-14)
