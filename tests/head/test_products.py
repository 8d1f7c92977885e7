"""How many products of the head's size a call makes, for which tokens, and how many logits exist at once."""

import numpy as np
import pytest
import torch
from random_steps import VOCABULARY, WIDTH, HeadStep, Products
from support import operator, padded, spec

import fibration
from fibration.head import parts, products


def counted(made, chunk, leaves=None, **more):
    with Products() as counter:
        made.loss_of_head(made.leaves() if leaves is None else leaves, chunk=chunk, metrics=False, **more)
    assert counter.most <= chunk
    return sum(counter.tokens)


def clipped(name, seed=2):
    """A step, its unmasked tokens, and those with a coefficient: some tokens are clipped, and some rows have A = 0."""
    made = HeadStep(operator(spec(name)), seed, padded)
    made.advantages[::3] = 0
    tokens = made.coefficients().values.nan_to_num(0)
    n, live = len(made.layout.slots), int((tokens != 0).sum())
    assert 0 < live <= n < made.targets.numel() and n < 200
    assert live < n or name == "real"
    return made, n, live


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo", "real", "fiberpo_domain"])
def test_a_chunk_of_whole_rows_takes_3_products_and_two_skip_dead_tokens(name):
    made, n, live = clipped(name)
    assert counted(made, n) == n + 2 * live


def test_rows_in_several_chunks_take_3_products():
    for name in ("grpo", "gspo"):
        made, n, live = clipped(name)
        longest = int(np.diff(made.index.every.before).max())
        assert n > longest and counted(made, longest) == n + 2 * live


@pytest.mark.parametrize(("name", "again"), [("grpo", 0), ("gspo", 1), ("real", 1), ("fiberpo_domain", 1)])
def test_rows_longer_than_a_chunk_take_4_products_unless_tokens_are_independent(name, again):
    made, n, live = clipped(name)
    lonely = made.index.every.sizes[made.index.every.row_of_token()] == 1  # rows of one token are chunks
    once = int((lonely & (made.layout.read(made.coefficients().values) != 0)).sum()) if name == "gspo" else 0
    assert counted(made, 1) == n + (2 + again) * live - once


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_gradient_that_is_not_needed_costs_no_product(chunk):
    made, n, live = clipped("grpo")
    hidden, weight = made.leaves()
    assert counted(made, chunk, [hidden, weight.detach()]) == n + live
    assert counted(made, chunk, [hidden.detach(), weight]) == n + live
    with torch.no_grad():
        assert counted(made, chunk) == n
    made, n, _ = clipped("gspo")
    with torch.no_grad():
        assert counted(made, chunk) == n


def test_with_an_entropy_bonus_every_unmasked_token_has_a_gradient():
    made, n, _ = clipped("grpo")
    assert counted(made, n, entropy_bonus=0.1) == 3 * n


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_half_precision_needs_no_more_logits(dtype):
    made, n, live = clipped("grpo")
    made.new = made.old  # on policy: rounding moves no token over a bound
    assert counted(made, 3, made.leaves(dtype)) >= n


def test_the_default_chunk_has_a_quarter_of_a_gibibyte_of_logits_and_on_a_gpu_one():
    for device, most in (("cpu", 2**28), ("cuda", 2**30)):
        tokens = parts.default_chunk(152_064, torch.device(device))
        assert tokens * 152_064 * 4 <= most < (tokens + 1) * 152_064 * 4
        assert parts.default_chunk(2**30, torch.device(device)) == 1


def test_parts_are_whole_rows_in_order_and_have_all_of_them():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    op = operator(spec("gspo"))
    index = op.index(mask=mask)
    found = {chunk: [p.rows.tolist() for p in parts.cut(op, index, chunk)] for chunk in (1, 3, 5)}
    assert found == {1: [[0], [2], [3], [4]], 3: [[0], [2], [3, 4]], 5: [[0, 2], [3, 4]]}
    assert [(p.tokens.start, p.tokens.stop) for p in parts.cut(op, index, 3)] == [(0, 2), (2, 5), (5, 8)]
    assert parts.cut(op, index, 8)[0].index is index
    assert parts.cut(op, index, 3) is parts.cut(op, index, 3)  # made once per index
    coupled = operator(spec("fiberpo_domain"))
    index = coupled.index(mask=mask, prompt_group=[0] * 5, domain=[0] * 5)
    assert [p.index for p in parts.cut(coupled, index, 1)] == [index]


def test_as_many_rows_as_tokens_in_a_part_leave_advantages_per_row():
    """A packed part with an empty row could have `[2]` advantages and two tokens."""
    op, generator = operator(spec("grpo")), torch.Generator().manual_seed(0)
    index = op.index(offsets=[0, 2, 2, 4, 4, 7])
    hidden, weight = (torch.randn(n, WIDTH, generator=generator) for n in (7, VOCABULARY))
    advantages = torch.tensor([1.0, 9.0, -2.0, 9.0, 0.5])
    given = (torch.zeros(7, dtype=torch.int64), torch.full((7,), -3.0), advantages, index)
    cut, whole = (fibration.head.loss(op, hidden, weight, *given, chunk=chunk) for chunk in (2, 7))
    assert float(cut.loss) == pytest.approx(float(whole.loss), rel=1e-6)


def test_bfloat16_is_multiplied_directly_if_torch_returns_float32(monkeypatch):
    """Torch has such products on GPUs; here they are made of float32 ones, and the rest is the same."""
    mm, seen = torch.mm, []

    def wide(a, b, out_dtype=None, out=None):
        if out_dtype is None:
            return mm(a, b) if out is None else mm(a, b, out=out)
        seen.append((a.dtype, b.dtype))
        return mm(a.float(), b.float())

    def added(total, a, b, out_dtype=None, out=None):
        seen.append((a.dtype, b.dtype))
        assert out is total
        return total.add_(mm(a.float(), b.float()))

    made, n, live = clipped("grpo")
    leaves = made.leaves(torch.bfloat16)
    made.loss_of_head(leaves, chunk=3).loss.backward()
    wanted = made.got(leaves)
    monkeypatch.setattr(torch, "mm", wide)
    monkeypatch.setattr(torch, "addmm", added)
    monkeypatch.setattr(products, "returns_float32", lambda device: True)
    leaves = made.leaves(torch.bfloat16)
    made.loss_of_head(leaves, chunk=3).loss.backward()
    assert seen and set(seen) == {(torch.bfloat16, torch.bfloat16)}
    for got, expected in zip(made.got(leaves), wanted, strict=True):
        assert np.abs(got - expected).max() <= 2 * torch.finfo(torch.bfloat16).eps * np.abs(expected).max()


def test_the_float32_output_of_a_device_is_probed_once():
    products.returns_float32.cache_clear()
    assert products.returns_float32(torch.device("cpu")) == products.returns_float32(torch.device("cpu"))
    assert products.returns_float32.cache_info().misses == 1


def test_values_under_the_mask_are_never_read():
    made = HeadStep(operator(spec("grpo")), 2, padded)
    leaves = made.leaves()
    assert leaves[0].isnan().any() and int(made.targets.min()) == -100
    made.loss_of_head(leaves).loss.backward()
    hidden = leaves[0].grad
    assert hidden.isfinite().all() and not hidden[leaves[0].isnan()].any()


def test_a_micro_batch_without_tokens_has_a_loss_of_0():
    for name in ("grpo", "gspo"):
        op = operator(spec(name))
        index = op.index(mask=torch.tensor([[1, 0, 1], [0, 0, 0]])).micro([1])
        hidden = torch.zeros(1, 3, WIDTH, requires_grad=True)
        weight = torch.zeros(VOCABULARY, WIDTH, requires_grad=True)
        given = (torch.full((1, 3), -100), torch.zeros(1, 3), torch.ones(1), index)
        result = fibration.head.loss(op, hidden, weight, *given, entropy_bonus=1.0)
        result.loss.backward()
        assert float(result.loss.detach()) == 0 and not hidden.grad.any() and not weight.grad.any()
