"""`index.to(device)` is the same index on another device."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from support import domain, operator, prompt_group, refuses, spec, token, trajectory, turn

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    MarkovKernel,
    clip_gate,
    count,
    exp,
    log_ratio,
    position,
    proportional,
    residual,
    strata,
    total,
    trajectory_mean,
    uniform,
)

text, image, stem, modality, batch = strata("text image stem modality batch")
B, T = 7, 6
GENERATOR = np.random.default_rng(3)
MASK = GENERATOR.random((B, T)) < 0.75
MASK[:, 0] = True
MASK[3] = False  # a row without tokens
PLACES = np.arange(B * T).reshape(B, T)
IMAGE = GENERATOR.random((B, T)) < 0.4
IMAGE[5, 0] = False
GROUPS = [1, 0, 1, 2, 0, 2, 1]
TURNS = np.empty((B, T), object)
for r, c in np.ndindex(B, T):
    TURNS[r, c] = (r, c // 2)


def weights(shape):
    return GENERATOR.uniform(0.5, 2, shape)


@functools.cache
def tree():
    """Two leaves over turns and rows, labels of labels, an order, and attributes of all kinds of elements."""
    weight, hard, size, all_of = (
        Attribute(name, on=s) for name, s in (("w", text), ("hard", trajectory), ("size", prompt_group), ("all", batch))
    )
    h = Hierarchy(
        name="everything",
        fibrations=[
            Fibration(text, turn, uniform()),
            Fibration(turn, trajectory, uniform()),
            Fibration(image, trajectory, uniform()),
            Fibration(trajectory, prompt_group, proportional(total(hard))),
            Fibration(prompt_group, stem, uniform()),
            Fibration(stem, batch, uniform()),
        ],
        gates={
            text: Gate(clip_gate(0.2).expression * weight),
            image: clip_gate(0.3),
            turn: clip_gate(0.2),
            trajectory: Gate(clip_gate(0.4).expression * hard),
            prompt_group: Gate(residual / (1 + size)),
            stem: clip_gate(0.5),
            batch: Gate(residual * all_of),
        },
        decomposition=log_ratio(),
        objective=trajectory_mean().weigh(exp(-0.1 * position(over=trajectory))),
    )
    attributes = {"w": weights((B, T)), "hard": weights(B), "size": {"g0": 1.0, "g1": 0.5, "g2": 2.0}, "all": 0.75}
    given = {"mask": MASK, "image": IMAGE, "turn": TURNS.tolist(), "prompt_group": [f"g{g}" for g in GROUPS]}
    given["stem"] = {"g0": "exact", "g1": "exact", "g2": "other"}
    return operator(h), {**given, "attributes": attributes}


@functools.cache
def projected():
    """A quiver whose effects are told apart by a projection."""
    share = lambda a, b: MarkovKernel(count(token, over=a) / count(token, over=b))  # noqa: E731
    h = Hierarchy(
        name="projected",
        fibrations=[
            Fibration(token, trajectory, uniform()),
            Fibration(trajectory, domain, share(trajectory, domain)),
            Fibration(trajectory, modality, share(trajectory, modality)),
            Fibration(domain, batch, share(domain, batch)),
            Fibration(modality, batch, share(modality, batch)),
        ],
        gates={s: clip_gate(0.3) for s in (token, trajectory, domain, modality, batch)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
        orthogonalise="projection",
    )
    return operator(h), {"mask": MASK, "domain": list("abaabba"), "modality": list("xxyxyyy")}


WORLDS = {"a tree with everything": tree, "a projection": projected}


def facts(index):
    """All that an index holds, and what it says of every two strata."""
    skipped = ("hierarchy", "projection", "refuses_rewards", "_cache")
    held = {f.name: getattr(index, f.name) for f in dataclasses.fields(index) if f.name not in skipped}
    names = (*index.leaves, *index.labels)
    for over in names:
        for of in (s for s in names if s != over and index._reaches(s, over)):
            held[of, over] = index.parent(of, over), index.count(of, over)
    if index.projection:
        held["matrices"] = [index.matrix(a, b) for a in index.projection.strata for b in index.projection.strata]
    return held


def same(one, other):
    """Equal to the bit, and in order."""
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_to_the_same_device_returns_the_index_itself():
    pieces = operator(spec("fiberpo")).index(mask=MASK, trajectory=list("abcdefa"), positions=PLACES)
    assert pieces.to("cpu") is pieces
    elsewhere = dataclasses.replace(pieces, device=torch.device("cpu", 0))
    refuses(
        HierarchyIndexError, lambda: elsewhere.to("cpu"), what="of rank 0 cannot move to cpu", remedy="device='cpu'"
    )


def test_an_index_on_another_device_shares_no_memory_and_has_the_same_bits(monkeypatch):
    """On a device of its own it works everything out again, and to the same bits."""
    op, given = tree()
    whole = op.index(**given)
    assert whole.to("cpu") is whole is whole.to(torch.device("cpu"))
    x = torch.zeros(whole.shape, dtype=torch.float64)
    op.coefficients(x, x, x, whole)  # which leaves in the index what it works out
    moved = dataclasses.replace(whole, device=torch.device("cpu", 0)).to("cpu")
    assert moved is not whole and not moved._cache and same(facts(moved), facts(whole))


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nonsense", "meta"])
def test_a_device_that_cannot_be_used_is_refused(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    index = operator(spec("fiberpo")).index(mask=MASK)
    what = "cannot be on the device 'meta'" if device == "meta" else f"device='{device}' cannot be used"
    refuses(HierarchyIndexError, lambda: index.to(device), what=what)
    refuses(HierarchyIndexError, lambda: operator(spec("fiberpo")).index(mask=MASK, device=device), what=what)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("world", WORLDS)
def test_an_index_moved_to_a_gpu_equals_one_built_there(world):
    op, given = WORLDS[world]()
    here, there = op.index(**given), op.index(**given, device="cuda")
    moved, back = here.to("cuda"), there.to("cpu")
    assert moved.device == there.device and same(facts(moved), facts(there)) and same(facts(back), facts(here))
