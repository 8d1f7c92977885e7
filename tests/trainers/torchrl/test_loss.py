"""`HierarchyLoss` in torchrl's own wrapper of a language model: value and gradient of `op.loss` on the whole step.

The log-probs of the expected value come from the model alone, row by row, without torchrl. Everything is float64.
"""

from __future__ import annotations

from typing import Any

import example_loops
import off_policy_step
import pytest
import support
import thread_ranks
import torch
from off_policy_step import LABELS, B, T
from tensordict import TensorDict, TensorDictBase, lazy_stack
from three_policy_losses import of_three
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss

from fibration import BatchError, TrainerError
from fibration.trainers.torchrl import UNUSED, HierarchyLoss

WORDS, PROMPT = 24, 3
LENGTHS = [2 + (5 * i) % (T - 1) for i in range(B)]  # of the answers


class Table(nn.Module):
    """A language model as transformers' are called, whose logits are those of a table: of the token before."""

    def __init__(self) -> None:
        super().__init__()
        start = torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.table = nn.Parameter(start)

    def forward(self, input_ids: Tensor, *_: Any, **__: Any) -> Any:
        return {"logits": self.table[input_ids]}


class Words:
    """What torchrl asks of a tokenizer where tokens are given."""

    pad_token, eos_token, pad_token_id = "w0", "w1", 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [0]}


def wrapped(model: nn.Module) -> TransformersWrapper:
    return TransformersWrapper(model, tokenizer=Words(), input_mode="tokens", generate=False)


def rows() -> tuple[Table, list[Tensor], TensorDictBase]:
    """The model, its rows of tokens, and torchrl's batch of them, off policy, of rows with different lengths."""
    make, step, model = torch.Generator().manual_seed(1), off_policy_step.step(), Table()
    off = (step["new"] - step["old"]).nan_to_num(0.1)
    tokens, found = [], []
    for i, length in enumerate(LENGTHS):
        row = torch.randint(1, WORDS, (PROMPT + length,), generator=make)
        old = log_probs(model, row).detach()
        old[PROMPT:] -= off[i, :length]
        tokens.append(row)
        given = {
            ("tokens", "full"): row,
            ("tokens", "prompt"): row[:PROMPT],
            ("masks", "all_attention_mask"): torch.ones(len(row), dtype=torch.bool),
            ("log_probs", "full"): old,
            ("teacher", "full"): old + 0.1,
            "advantage": (step["advantages"].nan_to_num(0.5)[i] + torch.zeros(len(row), 1)).double(),
            "query": str(LABELS["prompt_group"][i]),
            "source": torch.tensor([i // 8]),
        }
        found.append(TensorDict(given))
    return model, tokens, lazy_stack(found)


def log_probs(model: Table, row: Tensor) -> Tensor:
    """`[PROMPT + length]`, 0 for the first token, which none is before."""
    scores = model(row[None])["logits"][0].log_softmax(1)
    return torch.cat([scores.new_zeros(1), scores[:-1].gather(1, row[1:, None])[:, 0]])


def expected(op: Any, parameters: Any = None, policies: Any = None) -> tuple[Any, Tensor]:
    """`op.loss` on answers alone, padded on the right."""
    model, tokens, batch = rows()
    padded = {
        name: pad_sequence([values[PROMPT:] for values in batch.get((name, "full"), as_list=True)], batch_first=True)
        for name in ("log_probs", "teacher")
    }
    now = pad_sequence([log_probs(model, row)[PROMPT:] for row in tokens], batch_first=True)
    mask = torch.arange(now.shape[1]) < torch.tensor(LENGTHS)[:, None]
    advantages = torch.stack([values[0, 0] for values in batch.get("advantage", as_list=True)])
    strata = {s.name for s in op.hierarchy.order}
    labels = {"prompt_group": [str(x) for x in LABELS["prompt_group"]], "domain": [i // 8 for i in range(B)]}
    index = op.index(mask=mask, **{name: values for name, values in labels.items() if name in strata})
    more = {} if policies is None else {"policies": {policies: padded["teacher"]}}
    if parameters == "narrow":
        parameters = example_loops.narrow(op, index, (now - padded["log_probs"]).detach())
    result = op.loss(now, padded["log_probs"], advantages, index, parameters, **more)
    result.loss.backward()
    return (result, parameters), model.table.grad


KEYS = {"prompt_group": "query", "domain": "source"}


@pytest.mark.parametrize("name", ["fiberpo_domain", "gspo", "dapo"])
@pytest.mark.parametrize("pieces", [None, 24, 5])
def test_a_step_has_the_loss_and_the_gradient_of_op_loss(name, pieces):
    op = off_policy_step.operator(name)
    labels = KEYS if name == "fiberpo_domain" else {}
    (result, parameters), gradient = expected(op, "narrow" if labels else None)
    if labels:
        example_loops.every_regime(result.metrics)
    model, _, batch = rows()
    loss = HierarchyLoss(wrapped(model), op, labels=labels, gate_parameters=parameters, entropy_bonus=False)
    value = 0.0
    for piece in [batch] if pieces is None else loss.prepare(batch, 7).split(pieces):
        found = loss(piece)
        found.loss_objective.backward()
        value += float(found.loss_objective.detach())
    assert value == pytest.approx(float(result.loss), rel=1e-12, abs=1e-15)
    assert float((model.table.grad - gradient).norm() / gradient.norm()) <= 1e-12
    clipped = result.scalars().get("token/clipped")
    assert (clipped is None and found.clip_fraction.isnan()) or found.clip_fraction == pytest.approx(clipped)
    assert loss.scalars["fibration/kl"] == pytest.approx(result.scalars()["kl"])


@pytest.mark.parametrize("name", ["fiberpo_domain", "dapo"])
@pytest.mark.parametrize("pieces", [None, 5])
def test_ranks_with_rows_of_their_own_share_one_step(name, pieces):
    """DDP averages their gradients. Rank 1 has fewer rows, and no prompt group is on one rank alone."""
    op = off_policy_step.operator(name)
    labels = KEYS if name == "fiberpo_domain" else {}
    (result, parameters), gradient = expected(op, "narrow" if labels else None)
    _, _, batch = rows()
    parts = [[i for i in range(B) if i % 3], [i for i in range(B) if i % 3 == 0]]

    def of_rank(group: Any) -> tuple[float, Tensor, dict[str, float]]:
        model, mine = Table(), lazy_stack([batch[i].copy() for i in parts[group.rank]])
        given = {"labels": labels, "gate_parameters": parameters, "entropy_bonus": False, "group": group}
        loss, value = HierarchyLoss(wrapped(model), op, **given), 0.0
        for piece in [mine] if pieces is None else loss.prepare(mine, 7).split(pieces):
            found = loss(piece).loss_objective
            found.backward()
            value += float(found.detach())
        return value, model.table.grad, loss.scalars

    values, gradients, scalars = zip(*thread_ranks.on_ranks(2, of_rank), strict=True)
    assert sum(values) / 2 == pytest.approx(float(result.loss), rel=1e-12, abs=1e-15)
    assert float((sum(gradients) / 2 - gradient).norm() / gradient.norm()) <= 1e-12
    assert scalars[0] == scalars[1] and scalars[0]["fibration/kl"] == pytest.approx(result.scalars()["kl"])


def test_every_rank_raises_for_a_key_that_one_rank_lacks():
    op, (_, _, batch) = off_policy_step.operator(), rows()

    def of_rank(group: Any) -> None:
        mine = lazy_stack([batch[i].copy() for i in range(group.rank, B, 2)])
        mine = mine.exclude("source") if group.rank else mine
        HierarchyLoss(wrapped(Table()), op, labels=KEYS, group=group)(mine)

    errors = thread_ranks.try_on_ranks(2, of_rank).errors
    assert all("rank 1: the tensordict has no 'source'" in str(error) for error in errors)


@pytest.mark.parametrize("size", [1, 2])
def test_several_ranks_without_a_group_are_refused(monkeypatch, size):
    """DDP would average the losses of single ranks, each with its own normaliser."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    model, _, batch = rows()
    loss = HierarchyLoss(wrapped(model), "dapo")
    if size == 1:
        loss(batch)
        return
    with pytest.raises(TrainerError, match=r"2 ranks[\s\S]*group=torch\.distributed\.group\.WORLD"):
        loss(batch)
    with pytest.raises(TrainerError, match="2 ranks"):
        loss.prepare(batch, 7)


def test_the_entropy_and_kl_terms_are_torchrls_own():
    model, _, batch = rows()
    given = {"entropy_bonus": True, "kl_to_inference_coeff": 0.1}
    mine, theirs = HierarchyLoss(wrapped(model), "dapo", **given)(batch), GRPOLoss(wrapped(model), **given)(batch)
    for name in ("loss_entropy", "loss_kl_to_inference", "ESS", "kl_approx"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))


def test_a_further_policy_has_the_log_probs_of_its_key():
    op = support.operator(of_three, "torch")
    (result, _), gradient = expected(op, policies="rollout")
    model, _, batch = rows()
    loss = HierarchyLoss(
        wrapped(model), op, labels=KEYS, policies={"rollout": ("teacher", "full")}, entropy_bonus=False
    )
    found = loss(batch).loss_objective
    found.backward()
    torch.testing.assert_close(found, result.loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(model.table.grad, gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("option", UNUSED)
def test_options_without_an_effect_are_refused(option):
    with pytest.raises(TrainerError, match=f"'?{option}'? of GRPOLoss, beside the hierarchy 'dapo'"):
        HierarchyLoss(wrapped(Table()), "dapo", **{option: 0.1})


@pytest.mark.parametrize("option", ["labels", "policies"])
def test_keys_without_names_are_refused(option):
    with pytest.raises(BatchError, match=rf"{option}=\['query'\]\n  required: a mapping from names"):
        HierarchyLoss(wrapped(Table()), "gspo", **{option: ["query"]})


def test_a_formula_of_advantages_is_refused():
    with pytest.raises(TrainerError, match=r"hierarchy\.replace\(advantages=None\)"):
        HierarchyLoss(wrapped(Table()), "rloo")


@pytest.mark.parametrize(
    "given", [{"labels": {**KEYS, "domain": "topic"}}, {"labels": KEYS, "policies": {"x": "topic"}}]
)
def test_a_key_that_the_tensordict_lacks_is_an_error(given):
    model, _, batch = rows()
    with pytest.raises(TrainerError, match="the tensordict has no 'topic'"):
        HierarchyLoss(wrapped(model), off_policy_step.operator(), **given)(batch)
