"""Groups of rows without gates: labels per row, statistics over them, and refusals."""

import numpy as np
import pytest
import torch
from oracles.backend_cases import BACKENDS_HERE
from support import (
    coefficients,
    domain,
    operator,
    packed,
    padded,
    prompt_group,
    refuses,
    spread_batch,
    token,
    trajectory,
)

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    Parameter,
    clip_gate,
    exp,
    identity_gate,
    log_ratio,
    mean,
    ratio_deviation,
    residual,
    token_log_ratio,
    token_mean,
    uniform,
    where,
)

here = pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
bound = Parameter("bound", default=0.2)


def grouped(**changes):
    """A weight that is one number per prompt group, beside a chain that does not know of it."""
    weight = exp(mean(token_log_ratio, over=prompt_group)) + mean(token_log_ratio**2, over=domain)
    given = dict(
        name="grouped",
        gates={token: clip_gate(bound)},
        decomposition=ratio_deviation(),
        objective=token_mean().weigh(weight),
        groups=[prompt_group, domain],
    )
    return Hierarchy(**{**given, **changes})


def weights(batch):
    """Of every token, by hand."""
    found = np.zeros(batch.tokens)
    for name, of in (("prompt_group", lambda x: np.exp(x.mean())), ("domain", lambda x: (x**2).mean())):
        labels = np.array([str(label) for label in batch.labels[name]])[batch.row]
        for label in set(labels):
            found[labels == label] += of(batch.x[labels == label])
    return found


@pytest.mark.sampled
@here
@pytest.mark.parametrize("layout", [packed, padded])
def test_a_statistic_over_groups_equals_plain_numpy(backend, layout):
    """Beside rows that the hierarchy knows, and that it does not; a row without tokens is in no group."""
    batch = spread_batch((3, 1, 0, 4, 2, 5))
    chain = {"fibrations": [Fibration(token, trajectory, uniform())]}
    chain["gates"] = {token: clip_gate(bound), trajectory: identity_gate()}
    ratio, expected = np.exp(batch.x), weights(batch) * batch.advantages / batch.tokens
    of_row = np.array([ratio[batch.row == r].mean() - 1 for r in batch.row])
    for h, base in ((grouped(), 0), (grouped(**chain), of_row)):
        op = operator(h, backend)
        made = layout(op, batch)
        values, objective = coefficients(op, made, batch)
        assert objective == pytest.approx(
            (expected * (1 + base + np.clip(ratio - 1 - base, -0.2, 0.2))).sum(), rel=1e-12
        )
        if h.strata == (token,):
            assert values == pytest.approx(expected * ratio * (abs(ratio - 1) <= 0.2), rel=1e-12, abs=1e-15)
        assert made.index.size["prompt_group"] == 3 and made.index.size["domain"] == 2


def test_a_gate_may_read_a_statistic_of_its_group():
    """A gate on rows, and one on tokens, by what their group says."""
    over = mean(token_log_ratio, over=prompt_group)
    gates = {token: Gate(where(over > 0, residual, residual / 2)), trajectory: Gate(residual * (1 + over**2))}
    h = Hierarchy(
        name="gates", fibrations=[Fibration(token, trajectory, uniform())], gates=gates, decomposition=log_ratio(),
        objective=token_mean(), groups=[prompt_group],
    )  # fmt: skip
    batch = spread_batch()
    op = operator(h)
    made = packed(op, batch)
    values = op.gate(made.tensor(batch.x), made.index)
    groups = np.array(batch.labels["prompt_group"])[batch.row]
    of = np.array([batch.x[groups == g].mean() for g in groups])
    row = np.array([batch.x[batch.row == r].mean() for r in batch.row])
    expected = np.exp(row * (1 + of**2) + (batch.x - row) * np.where(of > 0, 1, 0.5))
    assert made.read(values) == pytest.approx(expected, rel=1e-12)


def test_groups_take_a_label_per_row():
    op, mask = operator(grouped()), torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]])
    index = op.index(mask=mask, prompt_group=["q", None, "p", "q"], domain=["m", None, "c", "m"])
    assert index.labels["prompt_group"] == ("q", "p")
    assert index.parent("trajectory", "prompt_group").tolist() == [0, 1, 0]
    assert index.parent("token", "domain").tolist() == [0, 0, 1, 1, 0]
    assert index.count("token", "prompt_group").tolist() == [3, 2]
    assert index.count("trajectory", "prompt_group").tolist() == [2, 1]
    assert index.describe_element("prompt_group", 1) == "prompt_group 'p'"
    assert "2 prompt_group" in repr(index)
    named = op.index(mask=mask, trajectory=list("abcd"), prompt_group=dict(a=1, c=2, d=1), domain=[1, 1, 1, 1])
    assert named.parent("trajectory", "prompt_group").tolist() == [0, 1, 0]
    h = grouped(
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={token: clip_gate(bound), trajectory: identity_gate()},
    )
    as_many = operator(h).index(offsets=[0, 2, 2, 3], prompt_group=["q", None, "p"], domain=["m", None, "m"])
    assert as_many.parent("token", "prompt_group").tolist() == [0, 0, 1]
    per_token = [["q", "q", None], [None] * 3, [None, "p", "p"], ["q", None, None]]
    assert op.index(mask=mask, prompt_group=per_token, domain=[1] * 4).labels["prompt_group"] == ("q", "p")


def test_wrong_labels_of_groups_are_refused():
    op, mask = operator(grouped()), torch.ones(2, 2)
    refuses(
        HierarchyIndexError, lambda: op.index(mask=mask, domain=[1, 1]), what="no labels for 'prompt_group'",
        required="one label per row", remedy="pass prompt_group=...",
    )  # fmt: skip
    refuses(
        HierarchyIndexError, lambda: op.index(mask=mask, domain=[1, 1], prompt_group=[1, None]),
        what="row 1 has no label for 'prompt_group'",
    )  # fmt: skip
    refuses(
        HierarchyIndexError, lambda: op.index(mask=mask, domain=[1, 1], prompt_group=[["a", "a"], ["a", "b"]]),
        what="trajectory 1 lies over two elements of prompt_group", found="'a' at token [1, 0] and 'b' at token [1, 1]",
    )  # fmt: skip
    refuses(
        HierarchyIndexError, lambda: op.index(mask=mask, domain=[1, 1], prompt_group=[1, 1], prompt=[1, 1]),
        what="unknown label 'prompt'", required="prompt_group, domain", found="groups by prompt_group, domain",
    )  # fmt: skip
