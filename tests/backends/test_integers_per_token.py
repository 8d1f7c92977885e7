"""An index and a call hold no integer per token if labels are per row."""

import gc
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from support import OF_EVERY_KIND, compiled, spec
from thorough import ALL
from torch.utils._python_dispatch import TorchDispatchMode

PER_TOKEN = {"apc_obj", "fiberpo_experts", "fiberpo_modal", "fiberpo_turns"}  # they say what single tokens are
MEASURED = {"fiberpo_crossed"}  # a projection weighs every token
NAMES = sorted(set(OF_EVERY_KIND) - PER_TOKEN - MEASURED) if ALL else ["fiberpo_domain"]
ROWS, LENGTH, PADDING = 50, 2000, 20
BYTES = 4  # for each place of the batch: masks, and what they are compared with


class Integers(TorchDispatchMode):
    """Integers as many as `least` that torch makes."""

    def __init__(self, least):
        super().__init__()
        self.least, self.seen = least, []

    def __torch_dispatch__(self, operation, _, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for t in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(t, torch.Tensor) and t.dtype in (torch.int32, torch.int64) and t.numel() >= self.least:
                self.seen.append((str(operation), t.dtype, tuple(t.shape)))
        return made


def labels(op):
    wanted = {s.name for s in op.hierarchy.strata}
    given = {"prompt_group": [f"g{i // 5}" for i in range(ROWS)], "domain": [f"d{i // 5 % 3}" for i in range(ROWS)]}
    return {k: v for k, v in given.items() if k in wanted}


def use(op, index, shape):
    """Calls with advantages per row and per token, two of each."""
    x = torch.zeros(shape)
    for advantages in (torch.ones(index.n_rows), torch.ones(shape)):
        for _ in range(2):
            op.coefficients(x, x, advantages, index, metrics=False)


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_indices_and_calls_hold_no_integer_per_token(name, kind):
    op = compiled(spec(name), "c")
    mask = torch.ones(ROWS, LENGTH + PADDING, dtype=torch.bool)
    mask[:, LENGTH:] = False
    given = dict(mask=mask) if kind == "padded" else dict(offsets=np.arange(ROWS + 1) * LENGTH)
    use(op, op.index(**given, **labels(op)), mask.shape if kind == "padded" else (ROWS * LENGTH,))
    gc.collect()
    tracemalloc.start()
    try:
        with Integers(ROWS * LENGTH // 4) as made:
            op.index(offsets=[0, 1], **{k: v[:1] for k, v in labels(op).items()})  # what this itself takes
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            index = op.index(**given, **labels(op))
            use(op, index, index.shape)
            peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert made.seen == []
    assert peak <= BYTES * mask.numel()


def test_integers_per_token_are_noticed():
    with Integers(10) as made:
        torch.arange(9), torch.zeros(10), torch.arange(10), torch.ones(10, dtype=torch.int32)
    assert [shape for _, _, shape in made.seen] == [(10,), (10,)]
