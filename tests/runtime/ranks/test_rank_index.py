"""The index on ranks has the elements of the whole batch in every stratum coarser than tokens."""

import functools
import itertools
import pickle

import numpy as np
import pytest
import torch
from hierarchies.edges import W, hierarchy
from hierarchies.random_chains import batch_for as chain_batch
from hierarchies.random_chains import chain
from hierarchies.random_quivers import CASES, batch_for, quiver
from hypothesis import given
from hypothesis import strategies as st
from support import OF_EVERY_KIND, spec
from thorough import examples, some
from thread_ranks import on_ranks

from fibration import proportional, total
from fibration.language.atoms import BATCH, Stratum
from fibration.language.report import Report
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

MADE = {name: (functools.partial(spec, name), batch_for, 7) for name in OF_EVERY_KIND}
MADE |= {f"{name} ({s})": (functools.partial(quiver, s), batch_for, s) for s, name in enumerate(CASES)}
MADE |= {f"chain {s}": (functools.partial(chain, s), chain_batch, s) for s in range(8)}


@functools.cache
def case(name):
    make, batch_of, seed = MADE[name]
    return make(), batch_of(make(), seed)


def index(h, batch, pieces=None, group=None, keys=False, kind="packed"):
    """Of the given pieces (row, first token, end) of a batch, or of all of it."""
    pieces = [(r, 0, n) for r, n in enumerate(batch.lengths)] if pieces is None else pieces
    starts = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(int)
    places = np.array([starts[r] + i for r, a, b in pieces for i in range(a, b)], int)
    lengths = [b - a for _, a, b in pieces]
    if sum(lengths) == len(lengths):  # labels per token and per row would have one shape
        kind = "padded"
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    shape, slots = (len(places),), np.arange(len(places))
    form = {"offsets": offsets}
    if kind == "padded":
        width = max(lengths, default=0) + 2
        mask = np.zeros((len(lengths), width), bool)
        for r, n in enumerate(lengths):
            mask[r, 1 : n + 1] = True
        shape, slots, form = mask.shape, np.flatnonzero(mask), {"mask": mask}

    def laid_out(values, nothing):
        flat = [nothing] * int(np.prod(shape))
        for slot, place in zip(slots, places, strict=True):
            flat[slot] = values[place]
        return flat if len(shape) == 1 else [flat[r * shape[1] : (r + 1) * shape[1]] for r in range(shape[0])]

    strata = {s.name for s in h.strata}
    labels = {k: [v[r] for r, _, _ in pieces] for k, v in batch.labels.items() if k in strata - {h.rows.name}}
    for k, v in batch.token_labels.items():
        if k in strata:
            labels[k] = laid_out(v, False if isinstance(v[0], bool) else None)
    if keys:
        labels[h.rows.name] = [f"row {r}" for r, _, _ in pieces]
    attributes = {}
    for a in h.attributes.values():
        value = batch.weights if a.name == "weight" and a.name not in batch.attributes else batch.attributes[a.name]
        if a.on == h.rows:
            value = [value.get(r, np.nan) for r, _, _ in pieces]
        elif isinstance(value, np.ndarray):
            value = laid_out(value, np.nan)
        attributes[a.name] = value
    op = Operator(h, Report(h, ()), "none", "", {}, None)
    found = op.index(**form, attributes=attributes, group=group, **labels)
    return found, places


def coarse(found):
    """All that an index says of what is coarser than tokens."""
    h, said = found.hierarchy, {"labels": repr(found.labels)}
    strata = [*found.labels, BATCH]
    for s, t in itertools.product([*found.leaves, *strata], strata):
        if s != t and (t == BATCH or found._reaches(s, t)):
            said["count", s, t] = found.count(s, t)
            if s not in found.leaves:
                said["parent", s, t] = found.parent(s, t)
                said["members", s, t] = found.members(s, t).offsets
            for a in h.attributes.values():
                if a.on.name == s:
                    said["total", a.name, t] = found.total(a, t)
    for a in h.attributes.values():
        if a.on.name not in found.leaves:
            said["values", a.name] = found.values[a.name]
    for s in strata:
        row = found._row_under(s)
        said["row", s] = row
    for a, b in itertools.product(found.projection.strata if found.projection else (), repeat=2):
        said["matrix", a, b] = found.matrix(a, b)
    bits = {k: (v.dtype, v.numpy().tobytes()) if isinstance(v, torch.Tensor) else v for k, v in said.items()}
    return bits | {"size": {s: found.size[s] for s in strata}}


def parents(found, places, total):
    """The label of every token's element of each stratum, by its place in the whole batch."""
    said = {}
    for leaf in found.leaves:
        tokens = found.tokens_of(leaf)
        mine = places if tokens is None else places[tokens.numpy()]
        for s, t in found.edges:
            if s == leaf:
                said[leaf, t] = np.full(total, -1)
                said[leaf, t][mine] = found.parent(leaf, t).numpy()
    return said


def together(h, batch, pieces, keys, kind):
    """What all ranks say of the whole, which is one thing; and of the tokens that they share."""

    def work(group):
        found, places = index(h, batch, pieces[group.rank], group, keys, kind)
        check_tokens(found, places)
        return coarse(found), parents(found, places, batch.tokens), found.ranks.cut

    ran = on_ranks(len(pieces), work)
    assert [differing(one[0], ran[0][0]) for one in ran] == [[]] * len(ran)
    assert all(one[2] == ran[0][2] for one in ran)
    joined = {k: np.max([one[1][k] for one in ran], axis=0).tolist() for k in ran[0][1]}
    return ran[0][0], joined


def differing(one, other):
    """The keys alone: pytest would take minutes to compare the rest."""
    return [k for k in one.keys() | other.keys() if one.get(k) != other.get(k)]


def check_tokens(found, places):
    """What a rank has of its own."""
    assert found.group.size == found.gradient_scale == len(found.ranks.rank_elements[BATCH].elements)
    for leaf in found.leaves:
        assert found.size[leaf] == len(found.positions_of(leaf)) == len(found.rows_of_tokens(leaf))
    for s in [*found.labels, BATCH]:
        here = np.unique(np.concatenate([found.parent(leaf, s).numpy() for leaf in found.leaves_over(s)]))
        held = found.ranks.rank_elements[s]
        assert held.elements[found.group.rank].tolist() == here.tolist()
        assert held.size == found.size[s]
        rows = found.rows_of(s)
        for leaf in found.leaves_over(s):
            layout, parent = found.layout(s, leaf), found.parent(leaf, s)
            sizes = np.bincount(parent.numpy(), minlength=found.size[s])
            assert layout.offsets.tolist() == [0, *np.cumsum(sizes)]
            if rows is not None and not found.ranks.cut:
                assert torch.equal(rows[parent], found.row_tensor()[found.rows_of_tokens(leaf)])
        if rows is not None:
            assert ((rows < 0) == torch.from_numpy(~np.isin(np.arange(found.size[s]), here))).all()


def test_elements_are_numbered_by_their_labels_where_rows_have_keys():
    h = hierarchy("token -> trajectory", "trajectory -> domain")
    op = Operator(h, Report(h, ()), "none", "", {}, None)
    rows = [(f"row {i}", f"domain {2 - i % 3}") for i in range(7)]

    def labels(parts, keys=True):
        def work(group):
            keys_, domains = ([part[k] for part in parts[group.rank]] for k in (0, 1))
            named = {"trajectory": keys_} if keys else {}
            return op.index(offsets=range(len(keys_) + 1), domain=domains, group=group, **named).labels

        one, *others = on_ranks(len(parts), work)
        assert others == [one] * len(others)
        return one

    named = labels([rows])
    assert labels([rows[3:], rows[:3]]) == labels([[], rows[::-1]]) == named
    assert set(named["trajectory"]) == {key for key, _ in rows} and named["domain"] != labels([rows], False)["domain"]
    assert labels([rows[4:], rows[:4]], False)["domain"] == ("domain 1", "domain 0", "domain 2")


@pytest.mark.parametrize(
    ("keys", "cut"), [(["ab", "c"], False), (["aa", "b"], True), (["ab", "cb"], True), (["", "aba"], True)]
)
def test_rows_count_as_cut_if_one_has_several_pieces(keys, cut):
    h = hierarchy("token -> trajectory", "trajectory -> batch")
    op = Operator(h, Report(h, ()), "none", "", {}, None)

    def work(group):
        mine = list(keys[group.rank])
        return op.index(offsets=range(0, 2 * len(mine) + 1, 2), trajectory=mine, group=group)

    for rank, found in enumerate(on_ranks(2, work)):
        assert found.ranks.cut == cut
        assert found.labels["trajectory"] != () and set(found.labels["trajectory"]) == set("".join(keys))
        counted = {key: 2.0 * "".join(keys).count(key) for key in found.labels["trajectory"]}
        assert found.count("token", "trajectory").tolist() == list(counted.values())
        rows = found.rows_of("trajectory").tolist()
        for key, row in zip(found.labels["trajectory"], rows, strict=True):
            assert keys[rank][row] == key if key in keys[rank] else row == -1


KINDS = st.sampled_from(["packed", "padded"])


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(MADE, 4))
@examples(12)
@given(data=st.data())
def test_the_index_of_whole_rows_on_ranks_equals_that_of_one_process(name, data):
    """Without keys: the same bits as of one process; ranks may have nothing."""
    h, batch = case(name)
    ranks, kind = data.draw(st.integers(1, 4)), data.draw(KINDS)
    ends = sorted(data.draw(st.lists(st.integers(0, len(batch.lengths)), min_size=ranks - 1, max_size=ranks - 1)))
    rows = [(r, 0, n) for r, n in enumerate(batch.lengths)]
    pieces = [rows[a:b] for a, b in itertools.pairwise([0, *ends, len(rows)])]
    one, places = index(h, batch, kind=kind)
    whole, tokens = together(h, batch, pieces, False, kind)
    assert differing(whole, coarse(one)) == []
    assert differing(tokens, {k: v.tolist() for k, v in parents(one, places, batch.tokens).items()}) == []


@st.composite
def scattered(draw, batch):
    """Rows in pieces of at least a token, on any ranks in any order."""
    pieces = [[] for _ in range(draw(st.integers(1, 4)))]
    for r, n in enumerate(batch.lengths):
        ends = sorted(draw(st.sets(st.integers(1, n - 1), max_size=2)) if n > 1 else ())
        for a, b in itertools.pairwise([0, *ends, n]):
            pieces[draw(st.integers(0, len(pieces) - 1))].append((r, a, b))
    return [draw(st.permutations(mine)) for mine in pieces]


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(MADE, 4, 1))
@examples(12)
@given(data=st.data())
def test_the_index_of_rows_with_keys_on_ranks_equals_that_of_one_process(name, data):
    """The same bits, whatever rank has whatever piece of whatever row."""
    h, batch = case(name)
    one, places = together(h, batch, [[(r, 0, n) for r, n in enumerate(batch.lengths)]], True, "packed")
    whole, tokens = together(h, batch, data.draw(scattered(batch)), True, data.draw(KINDS))
    assert differing(whole, one) == differing(tokens, places) == []


class Counted:
    """A group that counts the bytes of what this rank sends."""

    def __init__(self, group):
        self.group, self.rank, self.size, self.sent = group, group.rank, group.size, []

    def all_gather(self, tensor):
        self.sent.append(tensor.nbytes)
        return self.group.all_gather(tensor)

    def all_gather_object(self, obj):
        self.sent.append(len(pickle.dumps(obj)))
        return list(map(pickle.loads, map(pickle.dumps, self.group.all_gather_object(obj))))


@pytest.mark.parametrize("keys", [False, True])
def test_traffic_of_an_index_does_not_grow_with_tokens(keys):
    """A word, and once what is coarser than tokens; attributes of tokens and strata beside the rows too."""
    h = hierarchy(
        "token -> trajectory", "token -> expert", "trajectory -> domain", "domain -> batch", "expert -> batch",
        kernels={"token -> trajectory": proportional(total(W))}, kernel=proportional(total(W)),
    )  # fmt: skip
    op = Operator(h, Report(h, ()), "none", "", {}, None)

    def sent(tokens, rows):
        def work(group):
            group = Counted(group)
            n = tokens * rows
            named = {"trajectory": [f"{group.rank}/{r}" for r in range(rows)]} if keys else {}
            op.index(
                offsets=range(0, n + 1, tokens), domain=["a", "b"] * (rows // 2), expert=[i % 3 for i in range(n)],
                attributes={"weight": np.full(n, 1 / 3)}, group=group, **named,
            )  # fmt: skip
            return group.sent

        return on_ranks(3, work)

    few, many, more_rows = sent(10, 20), sent(4000, 20), sent(10, 40)
    assert all(len(one) == 2 and one[0] == 16 for one in few)
    for one, other in zip(few, many, strict=True):
        assert abs(one[1] - other[1]) < 200
    for one, other in zip(few, more_rows, strict=True):
        assert 0 < other[1] - one[1] < 20 * 120  # bytes per row


def test_without_a_group_nothing_is_sent():
    h, batch = case("fiberpo_domain")
    found, _ = index(h, batch)
    assert type(found) is Index and found.ranks is found.group is None and found.gradient_scale == 1


def test_the_repr_of_a_distributed_index_names_its_ranks():
    h, batch = case("fiberpo_domain")
    pieces = [[(0, 0, batch.lengths[0])], [(r, 0, n) for r, n in enumerate(batch.lengths) if r]]
    found, _ = on_ranks(2, lambda group: index(h, batch, pieces[group.rank], group))[1]
    here, both = batch.tokens - batch.lengths[0], batch.tokens
    assert repr(found).startswith(
        f"Index('fiberpo_domain': {here} of {both} token, {found.size['trajectory']} trajectory,"
    )
    assert repr(found).endswith("; rank 1 of 2; cpu)")
    last = found.labels["trajectory"][-1]
    assert last == max(r for r, n in enumerate(batch.lengths) if n)
    assert found.describe_element("trajectory", found.size["trajectory"] - 1) == f"trajectory {last}"
    assert found.element_numbers["domain"] == {d: i for i, d in enumerate(found.labels["domain"])}
    first = next(r for r, n in enumerate(batch.lengths) if r and n)
    row = f"row {first - 1} (trajectory {first})"
    assert found.describe_token(0) == f"token [0] of {row}" == found.describe_element("token", 0)


@pytest.mark.parametrize("per_token", [False, True])
def test_an_error_names_a_token_by_the_key_of_its_row(per_token):
    """Here rows 0 and 2 are two pieces of one sample, row 1 is empty, and keys are in the order of their bytes."""
    turns = ["turn -> sample"] if per_token else []
    h = hierarchy(
        "token -> turn" if per_token else "token -> sample", *turns, "sample -> batch", rows=Stratum("sample")
    )
    op = Operator(h, Report(h, ()), "none", "", {}, None)
    keys = [["a", "-", "a", "b"], ["c", "-", "c", "d"]]

    def work(group):
        mine = keys[group.rank]
        labels = {"turn": [mine[0]] * 3 + [mine[3]]} if per_token else {}
        found = op.index(offsets=[0, 2, 2, 3, 4], sample=mine, group=group, **labels)
        return [found.describe_token(i) for i in range(4)]

    for (one, _, _, other), words in zip(keys, on_ranks(2, work), strict=True):
        rows = [f"row 0 (sample '{one}')"] * 2 + [f"row 2 (sample '{one}')", f"row 3 (sample '{other}')"]
        assert words == [f"token [{i}] of {row}" for i, row in enumerate(rows)]
