"""Kernels of a batch that is spread over ranks: bits do not depend on which of a program's shapes or loops a row meets."""

import numpy as np
import pytest
import torch
from oracles.backend_cases import BACKENDS_HERE
from support import spec
from thread_ranks import on_ranks

LENGTHS = (12, 1, 14, 30, 9, 27, 3, 13)  # on average in tiles of another shape than on a rank that has few of them
GROUPS = ["a", "b", "a", "c", "b", "c", "a", "b"]


def coefficients(op, x, advantages, pieces, group=None, keys=None):
    """Of rows' pieces (row, first token, end), off policy; by row and token."""
    places = np.concatenate([[0], np.cumsum(LENGTHS)])
    tokens = np.concatenate([np.arange(places[r] + a, places[r] + b) for r, a, b in pieces] or [[]]).astype(int)
    labels = {"prompt_group": [GROUPS[r] for r, _, _ in pieces], "domain": [GROUPS[r] == "c" for r, _, _ in pieces]}
    if keys:
        labels["trajectory"] = [r for r, _, _ in pieces]
    offsets = np.cumsum([0, *(b - a for _, a, b in pieces)])
    index = op.index(offsets=offsets, group=group, **labels)
    old = torch.full((len(tokens),), -2.0, dtype=x.dtype)
    found = op.coefficients(x[tokens] - 2, old, advantages[[r for r, _, _ in pieces]], index, metrics=False)
    return tokens, found.values, found.objective.item()


def spread(op, x, advantages, ways, keys):
    """The same for every way to lie on ranks: what all of them say, in bits."""
    for pieces in ways:
        found = on_ranks(len(pieces), lambda g, p=pieces: coefficients(op, x, advantages, p[g.rank], g, keys))
        values = found[0][1].new_zeros(len(x))
        for tokens, mine, said in found:
            values[tokens] = mine
            assert repr(said) == repr(found[0][2])
        yield values, repr(found[0][2])


@pytest.mark.thorough
@pytest.mark.parametrize("backend", [b for b in BACKENDS_HERE if b.device == "cpu"], ids=str)
def test_the_bits_on_ranks_are_those_of_one_process(backend):
    """Whole rows in order: those of one process. Cut ones, at any token: the same for any cut.

    C is optimised as it is shipped: of a piece, other tokens are left over for the end of its loops.
    """
    dtype = torch.float64 if backend.name == "torch" else torch.float32
    op, generator = backend.operator(spec("fiberpo_domain")), np.random.default_rng(3)
    x = generator.normal(scale=0.3, size=sum(LENGTHS)) + np.repeat(generator.normal(scale=0.3, size=8), LENGTHS)
    x, advantages = torch.from_numpy(x).to(dtype), torch.from_numpy(generator.normal(size=8)).to(dtype)
    rows = [(r, 0, n) for r, n in enumerate(LENGTHS)]
    _, alone, said = coefficients(op, x, advantages, rows)
    for values, told in spread(op, x, advantages, [[rows[:1], rows[1:2], [], rows[2:]]], keys=False):
        assert values.numpy().tobytes() == alone.numpy().tobytes()
        assert told == repr(said)
    halves = [[(r, 0, n // 2) for r, n in enumerate(LENGTHS)], [(r, n // 2, n) for r, n in enumerate(LENGTHS)]]
    strewn = [[(r, n - 1, n) for r, _, n in rows], [(r, 0, n - 1) for r, _, n in rows if n > 1][::-1]]
    (first, told), (second, retold) = spread(op, x, advantages, [halves, strewn], keys=True)
    assert first.numpy().tobytes() == second.numpy().tobytes()
    assert told == retold
    assert float((first - alone).abs().max()) <= (1e-14 if dtype == torch.float64 else 1e-6) * float(alone.abs().max())
