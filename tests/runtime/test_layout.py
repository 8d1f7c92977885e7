"""The places of tokens: runs of a mask, rows of runs, and segments of any rows, against their definition."""

import numpy as np
import pytest
import torch
from hierarchies.edges import hierarchy, index
from hypothesis import given
from hypothesis import strategies as st

from fibration.runtime.index.spans import Intervals, Spans, lay_out

MASKS = st.lists(st.booleans(), max_size=24).map(lambda bits: np.array(bits, bool))


@given(MASKS, st.lists(st.integers(0, 24), max_size=6))
def test_intervals_equal_the_runs_of_a_mask(keep, bounds):
    runs, places = Intervals.of(keep), np.flatnonzero(keep)
    assert len(runs) == len(places)
    assert runs.places().tolist() == runs.place(np.arange(len(places))).tolist() == places.tolist()
    assert len(runs.starts) == len(np.flatnonzero(np.diff(places) > 1)) + bool(len(places))
    bounds = np.minimum([0, *sorted(bounds), len(keep)], len(keep))
    before = runs.before_places(bounds)
    assert before.tolist() == [int(keep[:b].sum()) for b in bounds]
    spans = Spans.of(runs, before)
    of_token = [r for r, (a, b) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)) for _ in range(keep[a:b].sum())]
    assert spans.row_of_token().tolist() == [spans.row_of(i) for i in range(len(places))] == of_token
    assert spans.rows.tolist() == sorted(set(of_token))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_intervals_without_a_mask_are_all_places(n):
    assert Intervals.first(n).places().tolist() == list(range(n))
    assert Intervals.first(n).before.tolist() == Intervals.of(np.ones(n, bool)).before.tolist()


@st.composite
def pieces(draw):
    """Pieces in order of place, with gaps between them, and the segment of each: any, those of rows in order, or none."""
    sizes, gaps = (draw(st.lists(st.integers(low, 3), min_size=6, max_size=6)) for low in (1, 0))
    count, segments = draw(st.integers(0, 6)), draw(st.integers(1, 8))
    segment = draw(st.lists(st.integers(0, segments - 1), min_size=count, max_size=count))
    if draw(st.booleans()):
        segment = sorted(segment)
    sizes, gaps = np.array(sizes[:count], int), np.array(gaps[:count], int)
    before = np.append(0, np.cumsum(sizes))
    starts = np.cumsum(gaps) + before[:-1]
    return np.array(segment, int), segments, starts, before, int(gaps.sum() + before[-1]) + draw(st.integers(0, 2))


@given(pieces())
def test_a_layout_of_pieces_equals_its_definition(drawn):
    segment, segments, starts, before, places = drawn
    layout = lay_out(segment, segments, starts, before, torch.device("cpu"))
    tokens = [(s, start + i) for s, start, n in zip(segment, starts, np.diff(before), strict=True) for i in range(n)]
    wanted = [[p for s, p in tokens if s == b] for b in range(segments)]
    together = [p for w in wanted for p in w]
    offsets = layout.offsets.tolist()
    assert offsets == [0, *np.cumsum([len(w) for w in wanted]).tolist()]
    numbers = range(len(tokens)) if layout.tokens is None else layout.tokens.tolist()
    assert [tokens[k][1] for k in numbers] == together
    in_order = segment.tolist() == sorted(segment.tolist())
    assert (layout.tokens is None) == in_order
    neighbours = all(w == list(range(w[0], w[0] + len(w))) for w in wanted if w)
    assert (layout.positions is None) == neighbours
    if layout.positions is not None:
        assert layout.positions.tolist() == together
        return
    begin = layout.starts.tolist()
    assert all(begin[b] == w[0] for b, w in enumerate(wanted) if w)
    if not in_order:
        return
    written = []  # as kernels do that fill what lies between segments
    for b in range(segments):
        written += range(begin[0]) if b == 0 else []
        written += range(begin[b], begin[b] + len(wanted[b]))
        written += range(begin[b] + len(wanted[b]), begin[b + 1] if b + 1 < segments else places)
    assert sorted(written) == list(range(places))  # every place once


def test_a_layout_of_rows_has_no_number_per_token():
    """Layouts of rows, and what they are made of, are as long as the rows."""
    h = hierarchy("token -> trajectory", "trajectory -> domain")
    mask = torch.arange(50) < torch.tensor([[50], [7], [0], [20]])
    for i in (index(h, mask=mask, domain=[*"abca"]), index(h, offsets=[0, 50, 57, 57, 77], domain=[*"abca"])):
        layout = i.layout("trajectory")
        assert layout.positions is None and layout.tokens is None
        assert layout.offsets.tolist() == [0, 50, 57, 77]
        assert i.of_rows("token", "domain").tolist() == [0, 1, 0]
        assert i.count("token", "domain").tolist() == [70, 7]
        assert i.rows_of("trajectory").tolist() == [0, 1, 3]
        assert i.describe_token(57) == f"token {'[3, 0]' if len(i.shape) == 2 else '[57]'} of trajectory 3"
        held = [t for kept in i._cache.values() for t in getattr(kept, "__dict__", {"": kept}).values()]
        assert max(t.numel() for t in [*held, *i.edges.values()] if isinstance(t, torch.Tensor)) < 5
        assert i.parents["token", "trajectory"] is i.parent("token", "trajectory")  # made once
        assert i.parent("token", "trajectory").tolist() == [0] * 50 + [1] * 7 + [2] * 20
        assert i.row_of_token.tolist() == i.parent("token", "trajectory").tolist()
