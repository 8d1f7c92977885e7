"""An index checks the assumptions of its hierarchy: populated branches, balanced crossings."""

from fractions import Fraction

import numpy as np
import pytest
from hierarchies.edges import (
    BALANCED,
    CROSSED_EDGES,
    FAMILY_EDGES,
    SIGNED,
    N,
    W,
    crossed,
    crossing,
    domain,
    hierarchy,
    image,
    index,
    modality,
    trajectory,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refuses

import fibration.runtime.index.assumed as checks_module
from fibration import HierarchyIndexError, Parameter, SpecError, balanced, populated, proportional, total, uniform
from fibration.runtime.index.assumed import Measure


def test_an_empty_branch_that_is_assumed_populated_is_refused():
    edges = ("text -> trajectory", "image -> trajectory", "trajectory -> domain")
    per_row = hierarchy(*edges, assume=[populated(image, over=trajectory)])
    per_domain = hierarchy(*edges, assume=[populated(image, over=domain)])
    labels = dict(offsets=[0, 2, 4], image=[1, 0, 0, 0], domain=["a", "a"], trajectory=["r", "s"])
    refuses(
        HierarchyIndexError, lambda: index(per_row, **labels),
        what="trajectory 's' has no image", required="populated(image, over=trajectory)",
        found="1 of 2 trajectory elements without an image",
    )  # fmt: skip
    index(per_domain, **labels)
    index(per_row, **{**labels, "image": [1, 0, 0, 1]})
    refuses(
        HierarchyIndexError,
        lambda: index(per_domain, **{**labels, "domain": ["a", "b"]}),
        what="domain 'b' has no image",
    )


def test_balance_is_proportional_not_equal():
    crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 4, ("c", "t"): 3, ("c", "i"): 6})
    refuses(
        HierarchyIndexError,
        lambda: crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 4, ("c", "t"): 3, ("c", "i"): 7}),
        what="balanced(domain, modality) is assumed",
        required="m(domain∩modality)·m(batch) = m(domain)·m(modality)",
        found=(
            "domain 'c' and modality 't' share the mass 3, and balance requires 3.125",
            "averaged over modality 't', reach 0.05 for log ratios",
        ),
        remedy=("cells (domain, modality) as a stratum", 'orthogonalise="projection"'),
    )
    refuses(
        HierarchyIndexError,
        lambda: crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 2, ("c", "t"): 2}),
        found=(
            "domain 'c' and modality 'i' share the mass 0, and balance requires 0.666667",
            "averaged over domain 'c', reach 0.667",
        ),
    )


def test_balance_within_every_element_of_the_meet():
    kernels = {"token -> trajectory": uniform()}
    h = hierarchy(*FAMILY_EDGES, kernels=kernels, kernel=proportional(N), assume=[balanced(domain, modality)])

    def rows(*cells):
        d, m, f = zip(*cells, strict=True)
        return lambda: index(h, offsets=range(len(cells) + 1), domain=d, modality=m, family=f)

    inside = [("a", "x", 1), ("a", "y", 1), ("b", "x", 1), ("b", "y", 1), ("c", "z", 2), ("c", "w", 2)]
    rows(*inside)()
    refuses(
        HierarchyIndexError, rows(*inside, ("d", "z", 2), ("d", "z", 2), ("d", "q", 2)),
        found=("domain 'd' and modality 'w' share the mass 0, and balance requires 0.6", "over family 2"),
    )  # fmt: skip


def test_balance_uses_the_masses_of_the_kernels():
    h = crossed()
    weighted = hierarchy(*CROSSED_EDGES, kernel=proportional(total(W)))
    i = crossing(weighted, {("m", "t"): 2, ("c", "i"): 1}, attributes={"weight": [1.0, 2.0, 4.0]})
    measure = Measure(i, "a test")
    m = measure.of_leaf["token"]
    np.testing.assert_allclose(m / m.sum(), np.array([1, 2, 4]) / 7, rtol=1e-14)
    np.testing.assert_allclose(measure.of("domain") / m.sum(), [3 / 7, 4 / 7], rtol=1e-14)
    assert Measure(crossing(h, {("m", "t"): 2, ("c", "i"): 1}), "a test").of("modality").tolist() == [2, 1]
    rows = hierarchy("token -> trajectory", "trajectory -> batch")
    found = Measure(index(rows, offsets=[0, 2, 3]), "a test").of("trajectory")
    assert found[0] == pytest.approx(found[1], rel=1e-14)
    split = hierarchy("text -> trajectory", "image -> trajectory", kernels={
        "text -> trajectory": uniform(Fraction(1, 4)), "image -> trajectory": uniform(Fraction(3, 4)),
    })  # fmt: skip
    of_leaf = Measure(index(split, offsets=[0, 3], image=[1, 1, 0]), "a test").of_leaf
    assert of_leaf["text"].tolist() == pytest.approx([2 * of_leaf["image"].sum() / 6], rel=1e-14)


def test_masses_that_read_a_parameter_or_are_negative_are_refused():
    share = Parameter("share", upper=1.0)
    kernels = {"text -> trajectory": uniform(share), "image -> trajectory": uniform(1 - share)}
    edges = ("text -> trajectory", "image -> trajectory", *CROSSED_EDGES[1:])
    one = dict(offsets=[0, 2], image=[1, 0], domain=["a"], modality=["b"])
    index(hierarchy(*edges, kernels=kernels), **one)
    for more in ({"assume": [balanced(domain, modality)]}, {"orthogonalise": "projection"}):
        refuses(
            SpecError, lambda more=more: index(hierarchy(*edges, kernels=kernels, **more), **one),
            what=("'h'", "parameter 'share'"), required="before parameters have values", remedy="Attribute",
        )  # fmt: skip
    sign = hierarchy(*CROSSED_EDGES, kernel=proportional(total(SIGNED)), orthogonalise="projection")
    refuses(
        HierarchyIndexError, lambda: crossing(sign, {("a", "b"): 2}, attributes={"signed": [-1.0, 3.0]}),
        what=("token [0] of trajectory 0", "the mass -0.5"), required="not negative",
    )  # fmt: skip


COUNTS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=3)


@given(counts=COUNTS, scale=st.lists(st.integers(1, 3), min_size=3, max_size=3), outer=st.booleans())
@settings(deadline=None, max_examples=60)
def test_balance_equals_brute_force(counts, scale, outer):
    if outer:  # proportional by construction
        counts = [[(row[0] + 1) * s for s in scale] for row in counts]
    cells = {(i, j): n for i, row in enumerate(counts) for j, n in enumerate(row)}
    whole = sum(cells.values())
    if not whole:
        return
    row = {i: sum(n for (a, _), n in cells.items() if a == i) for i, _ in cells}
    column = {j: sum(n for (_, b), n in cells.items() if b == j) for _, j in cells}
    off = {
        (i, j): abs(Fraction(n, whole) - Fraction(row[i] * column[j], whole * whole))
        for (i, j), n in cells.items()
        if row[i] and column[j]
    }
    if not any(off.values()):
        crossing(BALANCED, cells)
        return
    assert not outer
    with pytest.raises(HierarchyIndexError) as caught:
        crossing(BALANCED, cells)
    worst = [k for k, v in off.items() if v == max(off.values())]
    assert any(f"domain {i} and modality {j} share the mass {cells[i, j]}, " in caught.value.found for i, j in worst)
    leaks = [
        sum(abs(Fraction(cells[i, j], row[i]) - Fraction(column[j], whole)) for j in column if column[j])
        for i in row
        if row[i]
    ] + [
        sum(abs(Fraction(cells[i, j], column[j]) - Fraction(row[i], whole)) for i in row if row[i])
        for j in column
        if column[j]
    ]
    assert f"reach {float(max(leaks)):.3g} for" in caught.value.found


def test_balance_in_chunks_names_the_same_cell(monkeypatch):
    """Cells are looked at in chunks: whatever their size, the same cell is the worst."""
    rng = np.random.default_rng(5)
    labels = dict(offsets=range(41), domain=rng.integers(0, 9, 40).tolist(), modality=rng.integers(0, 7, 40).tolist())
    messages = set()
    for chunk in (1, 10, 1 << 22):
        monkeypatch.setattr(checks_module, "CHUNK", chunk)
        with pytest.raises(HierarchyIndexError) as caught:
            index(BALANCED, **labels)
        messages.add(str(caught.value))
    assert len(messages) == 1
