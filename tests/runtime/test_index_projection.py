"""The projection of crossed strata is least squares on the batch, or is refused."""

import re
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hierarchies.edges import (
    BESIDE_EDGES,
    CROSSED_EDGES,
    PROJECTED,
    SIGNED,
    N,
    W,
    crossed,
    crossing,
    hierarchy,
    image,
    index,
    text,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rationals import combined, inner, rank, solve
from support import refuses

import fibration.runtime.index.projection as projection_module
from fibration import HierarchyIndexError, MarkovKernel, SpecError, count, proportional, total, uniform
from fibration.language.atoms import Stratum
from fibration.runtime.index.assumed import Measure


def effects(i, x, m):
    """ρ of every stratum of S on tokens, from the definition, in rationals: what indicators of its elements leave where
    the fit by all coarser ones is taken off, and one least-squares fit in all of these. Tokens of all leaves side by side.
    """
    h, shape = i.hierarchy, i.hierarchy.shape
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    weight, x = [Fraction(v) for v in m.tolist()], [Fraction(v) for v in x.tolist()]

    def indicators(s):
        rows = [[Fraction(0)] * len(m) for _ in range(i.size[s.name])]
        for leaf, start in zip(i.leaves, starts.tolist(), strict=False):
            if Stratum(leaf) in shape.leaves_over(s):
                for token, element in enumerate(i.parent(leaf, s.name).tolist()):
                    rows[element][start + token] = Fraction(1)
        return rows

    def fitted(y, rows):
        """The factors of the least-squares fit of `y` by `rows`."""
        weighted = [[w * v for w, v in zip(weight, row, strict=True)] for row in rows]
        return solve([[inner(a, b) for b in rows] for a in weighted], [inner(a, y) for a in weighted])

    involved = {u for v in shape.strata if len(shape.below(v)) > 1 for u in shape.coarser(v)}
    bases = {}
    for u in (s for s in h.order if s in involved):
        bases[u.name] = mine = indicators(u)
        coarser = [row for w in shape.coarser(u) for row in indicators(w)]
        if coarser:
            fits = [combined(fitted(y, coarser), coarser) for y in mine]
            bases[u.name] = [[a - b for a, b in zip(y, fit, strict=True)] for y, fit in zip(mine, fits, strict=True)]
    whole = [row for rows in bases.values() for row in rows]
    assert rank(whole) == sum(map(rank, bases.values()))  # so that the parts of a fit are what they are
    factors, found = iter(fitted(x, whole)), {}
    for name, rows in bases.items():
        found[name] = np.array([float(v) for v in combined(list(islice(factors, len(rows))), rows)])
    return found


def means(i, x, m):
    """`s` of every stratum."""
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    found = {}
    for s in i.hierarchy.strata:
        top = bottom = np.zeros(i.size[s.name])
        for leaf, start in zip(i.leaves, starts, strict=False):
            if s in (Stratum(leaf), *i.hierarchy.coarser(Stratum(leaf))):
                here = slice(start, start + i.size[leaf])
                parent = i.parent(leaf, s.name).numpy()
                top = top + np.bincount(parent, weights=(m * x)[here], minlength=i.size[s.name])
                bottom = bottom + np.bincount(parent, weights=m[here], minlength=i.size[s.name])
        found[s.name] = top / bottom
    return found


def agrees(i, seed=0, tolerance=1e-11):
    measure = Measure(i, "a test")
    m = np.concatenate([measure.of_leaf[leaf] for leaf in i.leaves])
    x = np.random.default_rng(seed).normal(size=len(m))
    s, expected = means(i, x, m), effects(i, x, m)
    assert set(i.projection.strata) == set(expected)
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    for u, on_tokens in expected.items():
        found = sum(i.matrix(u, w).numpy() @ s[w] for w in expected)
        for leaf, start in zip(i.leaves, starts, strict=False):
            here = on_tokens[start : start + i.size[leaf]]
            if leaf in i.leaves_over(u):
                np.testing.assert_allclose(found[i.parent(leaf, u).numpy()], here, rtol=0, atol=tolerance)
            else:
                np.testing.assert_allclose(here, 0, rtol=0, atol=tolerance)


def test_the_projection_of_two_crossed_strata_is_least_squares():
    i = crossing(PROJECTED, {("m", "t"): 2, ("m", "i"): 5, ("c", "t"): 3, ("c", "i"): 1, ("c", "a"): 2, ("d", "a"): 4})
    assert i.projection.strata == ("batch", "domain", "modality")
    agrees(i)
    assert i.matrix("domain", "modality").shape == (3, 3)
    assert i.matrix("domain", "modality").dtype == torch.float64
    assert i.matrix("domain", "batch") is i.matrix("domain", "batch")
    refuses(
        HierarchyIndexError,
        lambda: i.matrix("domain", "token"),
        what="does not involve 'token'",
        required="batch, domain, modality",
    )
    plain = crossing(crossed(), {("m", "t"): 2})
    assert plain.projection is None
    refuses(
        HierarchyIndexError, lambda: plain.matrix("domain", "batch"), what="does not involve 'domain'", required="none"
    )


def test_the_projection_of_experts_and_trajectories_is_least_squares():
    kernels = dict.fromkeys(BESIDE_EDGES, proportional(total(W)))
    h = hierarchy(*BESIDE_EDGES, kernels=kernels, orthogonalise="projection")
    experts = [["e", "f", "g", "e"], ["f", "f", "e", None], ["g", "e", None, None]]
    mask = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    agrees(index(h, mask=mask, expert=experts, attributes={"weight": np.linspace(0.5, 3, 12).reshape(3, 4)}))


def test_the_projection_of_nested_crossings_is_least_squares():
    """Tokens lie over experts and trajectories, and these over domains and modalities."""
    edges = ("token -> expert", "expert -> batch", *CROSSED_EDGES)
    h = hierarchy(
        *edges,
        kernel=proportional(N),
        kernels={"token -> expert": uniform(), "token -> trajectory": uniform()},
        orthogonalise="projection",
    )
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 6, 12)
    i = index(
        h, offsets=np.concatenate([[0], np.cumsum(lengths)]), expert=rng.integers(0, 3, lengths.sum()).tolist(),
        domain=["a", "a", "b", "b", "c", "c"] * 2, modality=["x", "y", "y", "z", "z", "z", "x", "x", "y", "y", "x", "z"],
    )  # fmt: skip
    assert i.projection.strata == ("batch", "expert", "domain", "modality", "trajectory")
    agrees(i)


def two_leaves(*edges):
    """Text and images over trajectories and experts, or over what `edges` says, in the measure that counts tokens."""

    def n(over=None):
        return count(text, over=over) + count(image, over=over)

    rows = {"trajectory -> batch": proportional(n()), "expert -> batch": proportional(n())}
    for edge in edges:
        rows.setdefault(edge, MarkovKernel(1 / n(over=Stratum(edge.partition(" -> ")[2]))))
    return hierarchy(*edges, kernels=rows, orthogonalise="projection")


def test_the_projection_with_two_leaves_is_least_squares():
    edges = (
        "text -> expert",
        "image -> expert",
        "text -> trajectory",
        "image -> trajectory",
        "expert -> batch",
        "trajectory -> batch",
    )
    experts = [["e", "f", "g", "e"], ["f", "g", "e", "f"], ["e", "f", "f", "f"]]
    where = dict(mask=torch.ones(3, 4), image=[[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], expert=experts)
    i = index(two_leaves(*edges), **where)
    of_leaf = Measure(i, "a test").of_leaf
    assert set(of_leaf["text"]) == set(of_leaf["image"]) and len(set(of_leaf["text"])) == 1
    agrees(i)
    refuses(
        SpecError, lambda: index(two_leaves(*edges[:1], *edges[2:]), **where),
        what=("'h'", "expert, over which no image lies"), required="the same leaves over expert as over batch", remedy="let image lie over expert",
    )  # fmt: skip


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=14))
@settings(deadline=None, max_examples=40)
def test_the_projection_is_defined_if_the_cells_are_connected(rows):
    """For two strata over the batch, effects can be told apart just when the cells join all of them."""
    joined = [{("d", d), ("m", m)} for d, m, _ in rows]
    parts = []
    for pair in joined:
        inside = [p for p in parts if p & pair]
        parts = [p for p in parts if not p & pair] + [pair.union(*inside)]
    labels = dict(
        offsets=np.concatenate([[0], np.cumsum([n for _, _, n in rows])]),
        domain=[d for d, _, _ in rows], modality=[m for _, m, _ in rows],
    )  # fmt: skip
    if len(parts) == 1:
        agrees(index(PROJECTED, **labels))
        return
    with pytest.raises(HierarchyIndexError) as caught:
        index(PROJECTED, **labels)
    smallest = min(map(len, parts))
    worded = set()
    for part in (p for p in parts if len(p) == smallest):
        words = [  # labels in the order in which they appear
            f"{word} {', '.join(str(n) for n in dict.fromkeys(labels[word]) if (word[0], n) in part)}"
            for word in ("domain", "modality")
        ]
        worded.add(" and ".join(words) + (" always occur together" if smallest == 2 else " occur only with each other"))
    assert caught.value.found in worded


def test_effects_that_cannot_be_separated_are_refused():
    rule = dict(
        what="effects of crossed strata cannot be separated",
        required="one least-squares fit in batch, domain, modality",
    )
    refuses(
        HierarchyIndexError, lambda: crossing(PROJECTED, {("a", "x"): 1, ("a", "y"): 2, ("math", "text"): 3}), **rule,
        found="domain 'math' and modality 'text' always occur together", remedy=("common coarsening as a stratum", "leave domain or modality out"),
    )  # fmt: skip
    cells = {("a", "x"): 1, ("a", "y"): 2, ("b", "z"): 1, ("b", "w"): 1}
    refuses(
        HierarchyIndexError,
        lambda: crossing(PROJECTED, cells),
        **rule,
        found="domain 'a' and modality 'x', 'y' occur only with each other",
    )
    rootless = hierarchy(
        *CROSSED_EDGES[:3],
        kernel=proportional(N),
        kernels={"token -> trajectory": uniform()},
        orthogonalise="projection",
    )
    refuses(
        HierarchyIndexError, lambda: crossing(rootless, {("a", "x"): 1, ("a", "y"): 1, ("b", "x"): 1, ("b", "y"): 1}),
        found="lie over no common stratum", remedy="for example batch",
    )  # fmt: skip
    edges = (*CROSSED_EDGES, "trajectory -> tool", "tool -> batch")
    three = hierarchy(
        *edges, kernel=proportional(N), kernels={"token -> trajectory": uniform()}, orthogonalise="projection"
    )
    # a Latin square too small for three factors: the third is the sum of the others, though all pairs hang together
    d, m = np.divmod(np.arange(4), 2)
    i = index(three, offsets=range(9), domain=[*d, *d], modality=[*m, *m], tool=[*(d ^ m), *(1 - (d ^ m))])
    agrees(i)
    refuses(
        HierarchyIndexError,
        lambda: index(three, offsets=range(5), domain=["a", "a", "b", "c"], modality=["x", "y", "x", "y"], tool=["u", "v", "v", "v"]),
        found=("cannot be separated", "tool"), remedy="a common coarsening of them",
    )  # fmt: skip


def test_a_projection_of_too_many_elements_is_refused(monkeypatch):
    monkeypatch.setattr(projection_module, "MAX_ELEMENTS", 4)
    refuses(
        HierarchyIndexError, lambda: crossing(PROJECTED, {("m", "t"): 1, ("m", "i"): 1, ("c", "t"): 1, ("c", "i"): 1}),
        what="solves for 5 elements", required="at most 4", found="1 batch, 2 domain, 2 modality",
    )  # fmt: skip


def test_a_projection_of_elements_without_mass_is_refused():
    edges = ("token -> domain", "token -> modality", *CROSSED_EDGES[3:])
    h = hierarchy(*edges, kernel=proportional(total(SIGNED)), orthogonalise="projection")
    one = dict(offsets=[0, 3], domain=[["m", "m", "c"]], modality=[["t", "i", "i"]])
    one = {k: v if k == "offsets" else v[0] for k, v in one.items()}
    refuses(
        HierarchyIndexError, lambda: index(h, **one, attributes={"signed": [0.0, 1.0, 1.0]}),
        what="modality 't' has the mass 0", required="a positive mass",
    )  # fmt: skip
    agrees(index(h, **{**one, "modality": ["t", "i", "t"]}, attributes={"signed": [2.0, 1.0, 1.0]}))


def test_the_example_of_the_page_batches_runs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "batches.md").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "orthogonalise" in b)
    standin = SimpleNamespace(compile=lambda h: SimpleNamespace(index=lambda **k: index(h, **k)))
    scope = {"fibration": standin, "torch": torch}
    exec(block, scope)
    i = scope["index"]
    assert dict(i.size) == {"text": 5, "image": 3, "trajectory": 3, "domain": 2, "modality": 2, "batch": 1}
    agrees(i)
    assert f"at most {projection_module.MAX_ELEMENTS} elements" in page
