"""`fibration.head.loss` and micro-batches on a GPU: what runs there alone, against float64 on the CPU."""

import pytest
import torch
from support import operator, spec

import fibration
from fibration.head import products

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROWS, LENGTH, WIDTH, VOCABULARY = 6, 40, 64, 1000
CHUNK = 32  # rows in several chunks, and chunks of part of a row
SPECS = ("grpo", "gspo", "real")  # of tokens alone, of rows, of all rows


def batch(seed=0):
    """On the CPU: hidden states and weight as bfloat16 has them, targets, old log-probs, advantages, mask."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, LENGTH, WIDTH, generator=generator).bfloat16()
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.2).bfloat16()
    targets = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    log_probs = (hidden.double() @ weight.double().T).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    old = log_probs + torch.randn(ROWS, LENGTH, generator=generator) * 0.1
    advantages = torch.randn(ROWS, generator=generator)
    mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.8
    return hidden, weight, targets, old, advantages, mask


def gradients(name, device, dtype, rows=None, **more):
    """Value, gradients and log-probs of `fibration.head.loss`, on the CPU in float64. `rows`: in micro-batches."""
    backend = "torch" if device == "cpu" else "triton"
    op = fibration.compile(spec(name), backend=backend) if device != "cpu" else operator(spec(name), backend)
    hidden, weight, targets, old, advantages, mask = batch()
    labels = {"prompt_group": [r // 2 for r in range(ROWS)]} if name == "real" else {}
    index = op.index(mask=mask, device=device, **labels)
    hidden, weight = (t.to(device, dtype).requires_grad_() for t in (hidden, weight))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    old, advantages, targets = old.to(device, wide), advantages.to(device, wide), targets.to(device)
    value = 0.0
    for part in rows or (None,):
        pick = slice(None) if part is None else torch.tensor(part, device=device)
        tensors = (hidden[pick], weight, targets[pick], old[pick], advantages[pick])
        result = fibration.head.loss(op, *tensors, index if part is None else index.micro(part), chunk=CHUNK, **more)
        result.loss.backward()
        value += float(result.loss.detach())
    return value, hidden.grad.double().cpu(), weight.grad.double().cpu()


def differ(got, wanted):
    return max(float((g - w).abs().max() / w.abs().max()) for g, w in zip(got[1:], wanted[1:], strict=True))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 2**-7)])
def test_values_and_gradients_on_a_gpu_are_those_of_float64_on_the_cpu(name, dtype, bound):
    wanted = gradients(name, "cpu", torch.float64)
    got = gradients(name, "cuda", dtype)
    assert got[0] == pytest.approx(wanted[0], rel=bound, abs=bound)
    assert differ(got, wanted) <= bound


def test_bfloat16_products_on_a_gpu_return_float32():
    assert products.returns_float32(torch.device("cuda"))


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_micro_batches_on_a_gpu_add_up_to_the_whole(name):
    whole = gradients(name, "cuda", torch.float64)
    parts = gradients(name, "cuda", torch.float64, rows=([0, 3], [1], [5, 2, 4]))
    assert parts[0] == pytest.approx(whole[0], rel=1e-12)
    assert differ(parts, whole) <= 1e-12


def test_the_same_inputs_give_the_same_bits_on_a_gpu():
    once, again = (gradients("gspo", "cuda", torch.bfloat16) for _ in range(2))
    assert once[0] == again[0] and all(torch.equal(a, b) for a, b in zip(once[1:], again[1:], strict=True))


def test_the_bonus_of_the_entropy_on_a_gpu_is_that_of_the_cpu():
    wanted = gradients("grpo", "cpu", torch.float64, entropy_bonus=0.3)
    got = gradients("grpo", "cuda", torch.float32, entropy_bonus=0.3)
    assert got[0] == pytest.approx(wanted[0], rel=1e-5) and differ(got, wanted) <= 1e-4
