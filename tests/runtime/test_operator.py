"""The compiled operator on concrete batches: the definition, invariances, the public surface."""

import logging
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.definition import exact
from oracles.interpreter import Interpreter
from support import (
    SPECS,
    Batch,
    cases,
    coefficients,
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
)
from thorough import ALL

import fibration
from fibration import (
    BackendError,
    Fibration,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    aggregate_gate,
    count,
    pessimistic_clip_gate,
    ratio_deviation,
    residual,
    signed_log_ratio,
    token_mean,
    uniform,
)

TINY = 1e-9  # a comparison closer to a tie than this may fall either way in float64


def needs_rows(name):
    return any(s != spec(name).leaves[0] for s in reads_advantage(spec(name)))


# ---------------------------------------------------------------- the definition


@settings(max_examples=120 if ALL else 60)
@given(cases())
def test_the_backend_computes_the_definition(case):
    """Gated ratios and J of random hierarchies: generated torch == interpreter == rational arithmetic."""
    hierarchy, batch = case
    truth = exact(hierarchy, batch)
    assume(truth.margin > TINY or truth.margin == 0)
    op, oracle = operator(hierarchy), Interpreter.of(hierarchy, batch)
    layout = packed(op, batch)
    _, objective = coefficients(op, layout, batch)
    ratio = gated_ratio(op, layout, batch)
    assert ratio == pytest.approx(oracle.ratio(), rel=1e-12)
    size = max(1.0, np.abs(batch.advantages).max() * truth.ratio.max())
    assert objective == pytest.approx(oracle.objective(), rel=1e-12, abs=1e-13 * size)
    if truth.margin > TINY:
        assert ratio == pytest.approx(truth.ratio, rel=1e-12)
        assert objective == pytest.approx(truth.objective, rel=1e-12, abs=1e-13 * size)


@given(cases(identity=True))
def test_identity_gates_give_the_identity(case):
    """`G(r) = r` and `c_i = mu_i A_i r_i`, whatever the chain and its kernels."""
    hierarchy, batch = case
    op = operator(hierarchy)
    layout = packed(op, batch)
    values, objective = coefficients(op, layout, batch)
    ratio = np.exp(batch.x)
    sizes = np.array(batch.lengths)[batch.row]
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


@pytest.mark.thorough
@given(case=cases())
def test_renaming_labels_changes_no_bit(case):
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
def test_empty_rows_change_no_coefficient(case):
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


@pytest.mark.sampled
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


def test_evaluating_each_half_of_a_group_gives_another_result():
    """Why the whole batch has to be seen at once: FiberPO-Domain on halves of a prompt group differs."""
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch(scale=0.4)
    whole = coefficients(op, packed(op, batch), batch)[0]
    halves = []
    for rows in ([0, 1, 2], [3, 4, 5]):
        part, _ = batch.permuted(rows)
        halves.append(coefficients(op, packed(op, part), part)[0] / 2)
    assert np.abs(np.concatenate(halves) - whole).max() > 1e-3


# ---------------------------------------------------------------- the surface


@pytest.mark.sampled
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


def test_an_unknown_backend_is_an_error_that_lists_the_backends():
    with pytest.raises(BackendError, match="no backend 'cuda'") as caught:
        fibration.compile(spec("ppo"), backend="cuda")
    assert "torch" in caught.value.required
    assert fibration.compile(spec("ppo"), backend="torch").backend == "torch"


def test_the_choice_of_a_backend_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="fibration"):
        chosen = fibration.compile(spec("ppo"), backend="auto").backend
    assert f"backend '{chosen}'" in caplog.text


def test_fibration_print_prints_the_source(monkeypatch, capsys):
    monkeypatch.setenv("FIBRATION_PRINT", "1")
    op = fibration.compile(spec("ppo"))
    assert op.source in capsys.readouterr().err


def test_levels_return_the_residual_and_the_gated_value_of_every_gate():
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


def test_a_pessimistic_clip_of_ratios_equals_one_written_by_hand():
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


def test_results_under_the_mask_are_neutral():
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


def test_a_device_may_be_named_in_full():
    op = operator(spec("ppo"))
    x = torch.zeros(1, 2)
    for device in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)):
        index = op.index(mask=np.ones((1, 2), bool), device=device)
        assert index.device == x.device
        op.loss(x, x, torch.ones(1), index)


def test_a_batch_of_a_single_token_is_accepted():
    for name in SPECS:
        op = operator(spec(name))
        batch = Batch((1,), np.array([0.01]), np.array([2.0]), {"prompt_group": ["a"], "domain": ["m"]})
        for layout in (packed(op, batch), padded(op, batch)):
            values, objective = coefficients(op, layout, batch)
            oracle = Interpreter.of(spec(name), batch)
            assert values == pytest.approx(oracle.coefficients(), rel=1e-14)
            assert objective == pytest.approx(oracle.objective(), rel=1e-14)


def test_aggregates_run_over_the_whole_batch():
    """Two rows of one group far apart in the batch belong together."""
    h = Hierarchy(
        name="groups",
        fibrations=[Fibration(token, prompt_group, uniform())],
        gates={prompt_group: aggregate_gate(10, rollback=1), token: Gate(residual * 0)},
        decomposition=signed_log_ratio(),
        objective=token_mean(),
        gives_up={"first_order": "a test", "gradient": "a test"},
    )
    op = operator(h)
    x = torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    gated = op.gate(x, op.index(offsets=[0, 1, 2, 3, 4], prompt_group=["a", "b", "a", "b"])).log()
    assert gated.tolist() == pytest.approx([0.5, 0.75, 0.5, 0.75], rel=1e-14)


def test_an_ordinary_step_raises_no_warning():
    """A whole ordinary step, with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SPECS:
            op = operator(spec(name))
            batch = spread_batch(per_row=True)
            layout = packed(op, batch)
            x = layout.tensor(batch.x).requires_grad_()
            op.loss(x, x.detach() * 0, layout.tensor(batch.advantages), layout.index).loss.backward()
            op.gate(x, layout.index, advantages=layout.tensor(batch.advantages)).sum().backward()
